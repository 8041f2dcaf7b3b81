"""Parts of models: specs above the modules they build. Tensors in, tensors out; no files, no clocks, no globals.

A suffix names the axes of every tensor of rank two and more:

    B batch    N tokens      D token width     H heads     K width of a head     S summary tokens
    C channels, or classes   G groups (windows of the batch)     M queries, where they are not the N keys
    I, O features going into and out of a linear map           R rows of draws (one per random decision)
"""
