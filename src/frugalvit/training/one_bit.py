"""In which precision a model of one bit trains.

Its few real products run in full precision and only its products of signs in bf16, which holds them exactly but for sums above
256. So the model that is trained and measured decides as its packed program does: under autocast, rounded patches and rounded
sums behind attention turn signs over, and a few of them change many further on.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from frugalvit.nn.attention import MultiHead
from frugalvit.nn.binary_channels import RPReLU
from frugalvit.nn.binary_conv import BinaryMaps
from frugalvit.nn.quantize import OneBit
from frugalvit.training.devices import Place

SHARE = 0.5  # of the weights in matrices and kernels: a model with fewer signs has too many real products for full precision


def of_one_bit(module: nn.Module) -> bool:
    """Whether nearly all its products are those of signs."""
    if any(isinstance(one, MultiHead) for one in module.modules()):
        return False
    bits = sum(
        weight.numel() for one in module.modules() if isinstance(one, OneBit) for weight in one.parameters(recurse=False)
    )
    return bits > 0 and bits >= SHARE * sum(weight.numel() for weight in module.parameters() if weight.ndim > 1)


def has_binary_maps(module: nn.Module) -> bool:
    """Whether it has binary maps, or their twins with real weights or in full precision."""
    return any(isinstance(one, (RPReLU, BinaryMaps)) for one in module.modules())


def precision_of(module: nn.Module, place: Place) -> str:
    """In a few words, for people."""
    factors = {one.factors for one in module.modules() if isinstance(one, OneBit)}
    return f"{place.precision}, products of signs in bf16" if torch.bfloat16 in factors else place.precision


def place_of_bits(module: nn.Module, place: Place) -> Place:
    """Where to train the module: with products of signs in bf16 and all else in fp32 if it is of one bit, else as given."""
    if place.precision not in ("bf16", "bf16_stream") or not of_one_bit(module):
        return place
    for one in module.modules():
        if isinstance(one, OneBit):
            one.factors = torch.bfloat16
    return replace(place, precision="fp32")
