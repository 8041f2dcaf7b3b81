"""Batches augmented whole on their device, each picture by draws of its own.

A step is a module with `draws`, the uniform numbers a picture needs, and `step(image_BCHW, draws_BK)`: bytes in, bytes out.
Nothing inside is random, shapes are static and the host is never waited for, so a compiler or a CUDA graph takes it whole.

Suffixes beside those of `nn/__init__.py`: K draws of a picture, L places along a side, T taps of a filter, V the 256 values
of a byte, R rows of draws (1 or B).
"""
