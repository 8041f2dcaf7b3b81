"""What a model of one bit costs, by the rule of BinaryViT's tables: OPs = BOPs / 64 + FLOPs.

BOPs are multiply-accumulates whose both factors have one bit. FLOPs are all others, and one multiplication for each number that
goes through an affine map; norms, activations, softmax, pools and sums are not counted (docs/papers/binaryvit.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from frugalvit.nn.binary_channels import ChannelAffine
from frugalvit.nn.quantize import OneBit

TOGETHER = 64  # products of one bit that cost as much as one of floats


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
