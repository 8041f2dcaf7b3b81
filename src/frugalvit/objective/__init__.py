"""What is minimized: a sum of named terms."""
