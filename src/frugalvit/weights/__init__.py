"""Parameters in and out: foreign names, other grids, other class counts, files that may be hostile."""
