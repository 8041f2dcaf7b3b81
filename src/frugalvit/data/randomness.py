"""Draws that are a function of where they are used: keyed (seed, step, stream), never from a global generator.

So batch 812 of seed 3 is the same in every run, whatever was drawn before it, and resuming needs no state.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """What draws are for: the second number of a place (step, stream, ...), so that ORDER to DEPTH never share any.

    SPLIT and INIT come first in theirs: (SPLIT, class), (SPLIT, class, 1), (INIT,) and (INIT, 1). As numbers, all but (INIT,)
    can be places of other streams too: with one seed, class 1 of a split is shuffled by the draws that order epoch 0, and class
    4 by those that mix the first batch. They decide about different things, and other draws would be other splits.
    """

    SPLIT = 0  # held-out pictures of a data set
    ORDER = 1  # which pictures a batch holds
    AUGMENT = 2  # a picture's crop, flip and colors
    ERASE = 3
    MIX = 4
    DEPTH = 5  # stochastic depth and dropout
    INIT = 6  # weights


def key(seed: int, *place: int) -> int:
    """64 bits from a seed and a place, such as (step, stream, position in the batch)."""
    text = ",".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def numpy_generator(seed: int, *place: int) -> np.random.Generator:
    """A numpy generator for one place: counter-based (Philox), so making one is cheap."""
    return np.random.Generator(np.random.Philox(key(seed, *place)))


def torch_generator(device: torch.device | str, seed: int, *place: int) -> torch.Generator:
    """A torch generator on `device` for one place."""
    return torch.Generator(device).manual_seed(key(seed, *place) >> 1)
