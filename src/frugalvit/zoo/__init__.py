"""Sizes to models, one file a family, and changes from model to model (`change.py`).

A named size, such as `deit.deit_tiny_patch16_224`, is its family's function with the paper's sizes filled in; every
keyword of the family can still be set.
"""
