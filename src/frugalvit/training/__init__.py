"""Training: a recipe is a value, the loop is a generator of records, and a killed run resumes to the same bits."""
