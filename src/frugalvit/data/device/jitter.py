"""Brightness, contrast and saturation of a batch: the device version of `ColorJitter`."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from frugalvit.data.augment import ColorJitter
from frugalvit.data.device import tone
from frugalvit.data.device.draws import whole


class DeviceColorJitter(nn.Module):
    """`ColorJitter`. Draws: three factors, one of the six orders. A reach of zero is a factor of 1, which changes nothing."""

    draws = 4
    order_O3: Tensor

    def __init__(self, spec: ColorJitter):
        super().__init__()
        self.reach = (spec.brightness, spec.contrast, spec.saturation)
        orders = list(itertools.permutations(range(3)))
        self.register_buffer("order_O3", torch.tensor(orders), persistent=False)

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        factor_B3 = self.factors(draws_BK).float()
        order_B3 = self.order_O3[whole(draws_BK[:, 3], len(self.order_O3))]
        for change_B in order_B3.unbind(1):
            gray_B1HW = tone.luma(image_BCHW)
            change_B111 = change_B[:, None, None, None]
            dull_B1HW = torch.where(change_B111 == 2, gray_B1HW, torch.where(change_B111 == 1, tone.mean(gray_B1HW), 0))
            image_BCHW = tone.blended(dull_B1HW, image_BCHW, factor_B3.gather(1, change_B[:, None])[:, 0])
        return image_BCHW

    def factors(self, draws_BK: Tensor) -> Tensor:
        """factor_B3: of brightness, contrast and saturation, float64."""
        low = [max(0.0, 1 - by) for by in self.reach]
        return torch.stack([low[at] + (1 + by - low[at]) * draws_BK[:, at].double() for at, by in enumerate(self.reach)], 1)
