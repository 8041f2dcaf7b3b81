"""What a run leaves behind, and what is read from it: folders, logs, displays, statistics and tables. No torch."""
