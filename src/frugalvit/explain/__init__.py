"""What classifiers and tokens say of each other: from outputs to numbers. It reads no files."""
