"""Trainings as functions that return recipes: one file a paper, the command and the expected number in each docstring."""
