"""Policies over a batch: the device versions of AutoAugment, TrivialAugment and both RandAugments.

Where strengths are few, a table holds every operation at every strength and a picture's draws choose a row; timm's
RandAugment has continuous magnitudes and computes its operations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from frugalvit.data import autoaugment, tf_operations, trivialaugment
from frugalvit.data import operations as timm_operations
from frugalvit.data.autoaugment import POLICIES, SPAN, TOP, AutoAugment
from frugalvit.data.device.affine import Affine, bicubic, nearest, rotation
from frugalvit.data.device.draws import radius, signs, whole
from frugalvit.data.device.layer import Colors, Dull, Operation, Operations, OperationTable, Table
from frugalvit.data.device.size import MapSize
from frugalvit.data.operations import Fill
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.tf_operations import SCALE
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.data.trivialaugment import BINS, BITS, ENHANCE, ROTATE, SHEAR, SOLARIZE, TRANSLATE, TrivialAugment

NEAREST_WHOLE, WHOLE_BELOW = 13, 0  # how `tone.smooth` rounds
INVERT = Operation(threshold=0)
AUTO_CONTRAST = Operation(table=Table.STRETCHED)
EQUALIZE = Operation(table=Table.EQUALIZED)
DULLS = {"Brightness": Dull.FLAT, "Contrast": Dull.MEAN, "Color": Dull.LUMA, "Sharpness": Dull.SMOOTH}


def kept_bits(bits: int) -> int:
    """The mask of the highest bits of a byte."""
    return 255 >> (8 - bits) << (8 - bits)


class Fills(nn.Module):
    """A color on the device."""

    color_C11: Tensor

    def __init__(self, fill: Fill, size: MapSize):
        super().__init__()
        color_C11 = torch.tensor(size.filled(fill), dtype=torch.uint8)[:, None, None]
        self.register_buffer("color_C11", color_C11, persistent=False)

    def forward(self) -> Tensor:
        return self.color_C11


# ------------------------------------------------------------------------------------------------ AutoAugment


class DeviceAutoAugment(nn.Module):
    """`AutoAugment`. Draws: which pair, two chances, two directions."""

    draws = 5
    chance_P2: Tensor

    def __init__(self, spec: AutoAugment, size: MapSize):
        super().__init__()
        policy = POLICIES[spec.policy]
        rows = [
            autoaugment_operation(one.operation, one.level, sign, size) for pair in policy for one in pair for sign in (-1, 1)
        ]
        self.pairs = len(policy)
        self.stay = len(rows)
        self.table = OperationTable([*rows, Operation()])
        self.colors = Colors(NEAREST_WHOLE)
        self.fill = Fills(spec.fill, size)
        chance_P2 = torch.tensor([[one.probability for one in pair] for pair in policy], dtype=torch.float64)
        self.register_buffer("chance_P2", chance_P2, persistent=False)

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        for entry_B in self.entries(draws_BK).unbind(1):
            chosen = self.table(entry_B)
            image_BCHW = self.colors(image_BCHW, nearest(image_BCHW, chosen.affine_B6, self.fill()), chosen)
        return image_BCHW

    def entries(self, draws_BK: Tensor) -> Tensor:
        """entry_B2: rows of the table, the last one where a trial is not carried out."""
        pair_B1 = whole(draws_BK[:, :1], self.pairs)
        carried_out_B2 = draws_BK[:, 1:3].double() < self.chance_P2[pair_B1[:, 0]]
        trial_2 = torch.arange(2, device=draws_BK.device)
        entry_B2 = (2 * pair_B1 + trial_2) * 2 + whole(draws_BK[:, 3:5], 2)
        return torch.where(carried_out_B2, entry_B2, self.stay)


def autoaugment_operation(name: str, level: int, sign: int, size: MapSize) -> Operation:
    """What autoaugment.py's function of this name does at a level."""
    share = level / TOP
    match name:
        case "ShearX":
            return Operation((1, sign * level / TOP * 0.3, 0, 0, 1, 0))
        case "ShearY":
            return Operation((1, 0, 0, sign * level / TOP * 0.3, 1, 0))
        case "TranslateX":
            return Operation((1, 0, -sign * int(share * SPAN * size.width), 0, 1, 0))
        case "TranslateY":
            return Operation((1, 0, 0, 0, 1, -sign * int(share * SPAN * size.height)))
        case "Rotate":
            return Operation(rotation(sign * level / TOP * 30.0, size.height, size.width))
        case "Posterize":
            return Operation(mask=kept_bits(8 - round(share * 4)))
        case "Solarize":
            return Operation(threshold=math.ceil(255 - 255 * level / TOP))
        case "AutoContrast":
            return AUTO_CONTRAST
        case "Equalize":
            return EQUALIZE
        case "Invert":
            return INVERT
    return Operation(dull=DULLS[name], factor=autoaugment.enhancement(level, sign))


# ------------------------------------------------------------------------------------------------ TrivialAugment


class DeviceTrivialAugment(nn.Module):
    """`TrivialAugment`. Draws: operation, level, direction."""

    draws = 3

    def __init__(self, spec: TrivialAugment, size: MapSize):
        super().__init__()
        names = list(trivialaugment.STRENGTHS)
        rows = [trivial_operation(name, level, sign, size) for name in names for level in range(BINS) for sign in (-1, 1)]
        self.names = len(names)
        self.table = OperationTable(rows)
        self.colors = Colors(NEAREST_WHOLE)
        self.fill = Fills(spec.fill, size)

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        name_B, level_B, sign_B = (whole(draws_BK[:, at], count) for at, count in enumerate((self.names, BINS, 2)))
        chosen = self.table((name_B * BINS + level_B) * 2 + sign_B)
        return self.colors(image_BCHW, nearest(image_BCHW, chosen.affine_B6, self.fill()), chosen)


def trivial_operation(name: str, level: int, sign: int, size: MapSize) -> Operation:
    """What trivialaugment.py's function of this name does at a level."""
    match name:
        case "Identity":
            return Operation()
        case "ShearX":
            return Operation((1, sign * SHEAR[level], 0, 0, 1, 0))
        case "ShearY":
            return Operation((1, 0, 0, sign * SHEAR[level], 1, 0))
        case "TranslateX":
            return Operation((1, 0, -sign * int(TRANSLATE[level]), 0, 1, 0))
        case "TranslateY":
            return Operation((1, 0, 0, 0, 1, -sign * int(TRANSLATE[level])))
        case "Rotate":
            return Operation(rotation(sign * ROTATE[level], size.height, size.width))
        case "Posterize":
            return Operation(mask=kept_bits(BITS[level]))
        case "Solarize":
            return Operation(threshold=math.ceil(SOLARIZE[level]))
        case "AutoContrast":
            return AUTO_CONTRAST
        case "Equalize":
            return EQUALIZE
    return Operation(dull=DULLS[name], factor=1.0 + sign * ENHANCE[level])


# ------------------------------------------------------------------------------------------------ AugReg's RandAugment


class DeviceTfRandAugment(nn.Module):
    """`TfRandAugment`. Draws of a layer: operation, direction, Cutout's place down and to the right."""

    def __init__(self, spec: TfRandAugment, size: MapSize):
        super().__init__()
        names = list(tf_operations.OPERATIONS)
        self.layers, self.names = spec.layers, len(names)
        self.draws = 4 * spec.layers
        self.table = OperationTable([tf_operation(name, spec.magnitude, sign, size) for name in names for sign in (-1, 1)])
        self.colors = Colors(WHOLE_BELOW)
        self.fill = Fills(spec.fill, size)

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        for draws_B4 in draws_BK.split(4, 1)[: self.layers]:
            chosen = self.table(2 * whole(draws_B4[:, 0], self.names) + whole(draws_B4[:, 1], 2))
            changed_BCHW = self.colors(image_BCHW, nearest(image_BCHW, chosen.affine_B6, self.fill()), chosen)
            image_BCHW = torch.where(cut_out(image_BCHW, chosen.half_B, draws_B4), self.fill(), changed_BCHW)
        return image_BCHW


def cut_out(image_BCHW: Tensor, half_B: Tensor, draws_B4: Tensor) -> Tensor:
    """inside_B1HW: a square of side 2 · half around a uniform place, cut at the border (DeVries & Taylor 2017)."""
    inside = []
    for side, draw_B in zip(image_BCHW.shape[2:], draws_B4[:, 2:].unbind(1), strict=True):
        from_place_BL = torch.arange(side, device=image_BCHW.device) - whole(draw_B, side)[:, None]
        inside.append((from_place_BL >= -half_B[:, None]) & (from_place_BL < half_B[:, None]))
    return inside[0][:, None, :, None] & inside[1][:, None, None, :]


def tf_operation(name: str, magnitude: float, sign: int, size: MapSize) -> Operation:
    """What tf_operations.py's function of this name does."""
    by = sign * magnitude / SCALE
    match name:
        case "Rotate":
            angle = math.radians(by * 30.0)
            cosine, sine = math.cos(angle), math.sin(angle)
            x, y = (size.width - 1) / 2, (size.height - 1) / 2
            affine = (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y)
            return Operation(from_centers(affine))
        case "ShearX":
            return Operation(from_centers((1, by * 0.3, 0, 0, 1, 0)))
        case "ShearY":
            return Operation(from_centers((1, 0, 0, by * 0.3, 1, 0)))
        case "TranslateX":
            return Operation((1, 0, by * 100, 0, 1, 0))
        case "TranslateY":
            return Operation((1, 0, 0, 0, 1, by * 100))
        case "Cutout":
            return Operation(half=int(magnitude / SCALE * 40))
        case "Posterize":
            return Operation(mask=kept_bits(min(8, max(1, int(magnitude / SCALE * 4)))))
        case "Solarize":
            return Operation(threshold=int(magnitude / SCALE * 256))
        case "SolarizeAdd":
            return Operation(more=int(magnitude / SCALE * 110))
        case "AutoContrast":
            return AUTO_CONTRAST
        case "Equalize":
            return EQUALIZE
        case "Invert":
            return INVERT
        case "Contrast":
            flat = min(255, size.width * size.height // 256)
            return Operation(dull=Dull.FLAT, level=flat, factor=magnitude / SCALE * 1.8 + 0.1)
    return Operation(dull=DULLS[name], factor=magnitude / SCALE * 1.8 + 0.1)


def from_centers(affine: Affine) -> Affine:
    """A map between pixel centers as one between corners, as in `tf_operations.nearest`."""
    a, b, c, d, e, f = affine
    return a, b, c + (1 - a - b) / 2, d, e, f + (1 - d - e) / 2


# ------------------------------------------------------------------------------------------------ timm's RandAugment


class DeviceRandAugment(nn.Module):
    """`RandAugment`. Draws of an operation: which, whether, two for the magnitude (Box-Muller), direction."""

    def __init__(self, spec: RandAugment, size: MapSize):
        super().__init__()
        self.spec, self.size = spec, size
        self.draws = 5 * spec.count
        self.names = list(timm_operations.OPERATIONS)
        self.colors = Colors(NEAREST_WHOLE)
        self.fill = Fills(spec.fill, size)

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        for draws_B5 in draws_BK.split(5, 1)[: self.spec.count]:
            chosen = self.operations(draws_B5)
            image_BCHW = self.colors(image_BCHW, bicubic(image_BCHW, chosen.affine_B6, self.fill()), chosen)
        return image_BCHW

    def magnitudes(self, draws_B5: Tensor) -> Tensor:
        """magnitude_B ~ N(m, deviation), 0 to 10, float64."""
        far_B, turn_B = draws_B5[:, 2:4].double().unbind(1)
        noise_B = radius(far_B) * torch.cos(2.0 * math.pi * turn_B)
        return (self.spec.magnitude + self.spec.deviation * noise_B).clamp(0.0, timm_operations.MOST)

    def operations(self, draws_B5: Tensor) -> Operations:
        """What operations.py's functions do at these magnitudes, in the same doubles."""
        name_B = whole(draws_B5[:, 0], len(self.names))
        name_B = torch.where(draws_B5[:, 1].double() < self.spec.probability, name_B, -1)
        share_B, sign_B = self.magnitudes(draws_B5) / timm_operations.MOST, signs(draws_B5[:, 4])
        numbers = {name: name_B == self.names.index(name) for name in self.names}

        def at(name: str, value: Tensor | int, other: Tensor | int) -> Tensor:
            return torch.where(numbers[name], value, other)

        bits_B = 4 - (share_B * 4).to(torch.int32)
        mask_B = at("Posterize", (255 >> (8 - bits_B)) << (8 - bits_B), 255)
        threshold_B = at("Solarize", 256 - (share_B * 256).to(torch.int32).clamp(max=256), at("Invert", 0, 256))
        more_B = at("SolarizeAdd", (share_B * 110).to(torch.int32).clamp(max=128), 0)
        table_B = at("AutoContrast", Table.STRETCHED.value, at("Equalize", Table.EQUALIZED.value, Table.POINT.value))
        dull_B = at("Contrast", Dull.MEAN.value, Dull.FLAT.value)
        dull_B = at("Color", Dull.LUMA.value, at("Sharpness", Dull.SMOOTH.value, dull_B))
        enhanced_B = (dull_B != Dull.FLAT.value) | numbers["Brightness"]
        factor_B = torch.where(enhanced_B, (1.0 + sign_B * (share_B * 0.9)).clamp(min=0.1), 1.0).float()
        zero_B = torch.zeros_like(mask_B)
        affine_B6 = self.affines(share_B, sign_B, numbers)
        return Operations(affine_B6, mask_B, threshold_B, more_B, table_B, dull_B, zero_B, zero_B, factor_B)

    def affines(self, share_B: Tensor, sign_B: Tensor, numbers: dict[str, Tensor]) -> Tensor:
        """affine_B6, float64; a picture that is not moved is read at its own pixels."""
        angle_B = torch.where(numbers["Rotate"], -torch.deg2rad(sign_B * (share_B * 30.0)), 0.0)
        cosine_B, sine_B = angle_B.cos(), angle_B.sin()
        shear_B = sign_B * (share_B * 0.3)
        x, y = self.size.width / 2, self.size.height / 2
        shift_B = sign_B * (share_B * 0.45)
        b_B = torch.where(numbers["ShearX"], shear_B, sine_B)
        d_B = torch.where(numbers["ShearY"], shear_B, -sine_B)
        c_B = torch.where(numbers["TranslateX"], shift_B * self.size.width, cosine_B * -x + sine_B * -y + x)
        f_B = torch.where(numbers["TranslateY"], shift_B * self.size.height, -sine_B * -x + cosine_B * -y + y)
        return torch.stack((cosine_B, b_B, c_B, d_B, cosine_B, f_B), 1)
