"""What a model costs, from shapes."""
