"""The tables of papers, measured again: one function a table, its trainings run once a seed and kept."""
