"""Models out: the classifier that ordinary code can call."""
