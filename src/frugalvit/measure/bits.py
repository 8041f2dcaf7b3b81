"""What a model of one bit costs, by the rule of BinaryViT's tables: OPs = BOPs / 64 + FLOPs.

BOPs are multiply-accumulates whose both factors have one bit. FLOPs are all others, and one multiplication for each number that
goes through an affine map; norms, activations, softmax, pools and sums are not counted (docs/papers/binaryvit.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from frugalvit.nn.binary_channels import ChannelAffine
from frugalvit.nn.quantize import OneBit

TOGETHER = 64  # products of one bit that cost as much as one of floats
WORD = 64  # bits that lie together in a packed file; a row begins with a new word


class Tally:
    """What a part computes while it runs: products of one bit, and multiplications of affine maps."""

    def __init__(self) -> None:
        self.flops = 0  # two a multiply-accumulate of one bit
        self.scaled = 0  # numbers that an affine map multiplied

    @contextmanager
    def counting(self, part: nn.Module, counter: FlopCounterMode) -> Iterator[None]:
        """Inside, `counter` counts every product, and this what it says before and after those of one bit."""

        def begin(module: nn.Module, inputs: object) -> None:
            self.flops -= counter.get_total_flops()

        def end(module: nn.Module, inputs: object, output: object) -> None:
            self.flops += counter.get_total_flops()

        def scale(module: nn.Module, inputs: object, output: Tensor) -> None:
            self.scaled += output.numel()

        hooks: list[RemovableHandle] = []
        for one in part.modules():
            if isinstance(one, OneBit):
                hooks += [one.register_forward_pre_hook(begin), one.register_forward_hook(end)]
            elif isinstance(one, ChannelAffine):
                hooks.append(one.register_forward_hook(scale))
        try:
            with counter:
                yield
        finally:
            for hook in hooks:
                hook.remove()


def one_bit_weights(part: nn.Module) -> Iterator[Tensor]:
    """The weights of a part that need a bit each."""
    for one in part.modules():
        if isinstance(one, OneBit):
            yield from one.parameters(recurse=False)


def packed_bytes(part: nn.Module) -> int:
    """What the parameters of a part take in a packed file: a bit a weight, its rows in whole words, and 4 bytes for all else.

    Scales and statistics need none: a row's scale goes into the norm behind it, and a norm is a multiplication and a sum.
    """
    rows = list(one_bit_weights(part))
    words = sum(len(weight) * math.ceil(weight[0].numel() / WORD) for weight in rows)
    real = sum(one.numel() for one in part.parameters()) - sum(weight.numel() for weight in rows)
    return words * WORD // 8 + 4 * real
