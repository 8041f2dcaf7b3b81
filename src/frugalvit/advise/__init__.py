"""From a data set, a device and a budget to a recipe, with the rule and the paper behind each choice."""
