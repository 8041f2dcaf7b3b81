"""A packed program in PyTorch, many pictures at once: slow, and the very bits of the runtime (docs/format.md).

Every operation rounds to float32 in the format's order. Products of signs are whole numbers, which float32 holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frugalvit.deploy.fitting import refuse_misfit
from frugalvit.deploy.multiply_add import CACHED, fma, rounded_sum
from frugalvit.deploy.packed_file import Packed, Step, signs_of

Buffers = dict[str, Tensor]  # x_BND by name
Watch = Callable[[int, str, Tensor], None]  # (number of the step, name of its bits, bits): −1 is true, and so is attended
AT_ONCE = 1 << 22  # numbers of the widest step that are computed at a time


class Simulation:
    """Runs a packed program, if it is as the format says. `watch`, where given, sees every bit that is decided."""

    def __init__(self, packed: Packed):
        refuse_misfit(packed)
        self.packed = packed
        self.kinds: dict[str, Callable[[Step, Buffers], Tensor]] = {
            "affine": lambda step, buffers: self.affine(step, buffers[step["from"]]),
            "add": lambda step, buffers: self.affine(step, buffers[step["from"]]) + buffers[step["to"]],
            "linear": self.linear,
            "mlp": self.mlp,
            "attention": self.attention,
            "pool": self.pool,
            "cross": self.cross,
            "merge": self.merge,
            "merge_real": lambda step, buffers: self.real(step, self.taps(step, buffers)) + self.tensor(step["positions"]),
            "mean": self.mean,
            "head": lambda step, buffers: self.real(step, buffers[step["from"]]),
        }
        self.kept: dict[tuple[str, int], Tensor] = {}
        self.watch: Watch | None = None
        self.number = 0

    # ------------------------------------------------------------------------------------------------ running

    @torch.inference_mode()
    def logits(self, image_BHWC: np.ndarray, watch: Watch | None = None) -> np.ndarray:
        """The logits_BC of pictures of the model's size, in uint8."""
        found = [np.zeros((0, self.packed.classes), np.float32)]
        for start in range(0, len(image_BHWC), self.batch()):
            found.append(self.one_batch(torch.from_numpy(image_BHWC[start : start + self.batch()]), watch))
        return np.concatenate(found)

    def batch(self) -> int:
        """How many pictures are worth computing at a time."""
        buffers = self.packed.program["buffers"]
        widest = [rows * columns for rows, columns in buffers.values()]
        for step in self.packed.steps:
            rows, columns = buffers[step["to"]]
            widest.append(rows * columns * step.get("expand", 1))
            if step["kind"] == "attention":
                widest.append(step["heads"] * rows * buffers[step["key"]][0])
        return max(1, AT_ONCE // max(widest))

    def one_batch(self, image_BHWC: Tensor, watch: Watch | None) -> np.ndarray:
        buffers = self.empty(len(image_BHWC))
        pixels_BHWC = self.normalized(image_BHWC)
        self.watch = watch
        for number, step in enumerate(self.packed.steps):
            self.number = number
            buffers[step["to"]] = self.run(step, buffers, pixels_BHWC)
        return buffers[self.packed.program["logits"]][:, 0].numpy()

    def empty(self, pictures: int) -> Buffers:
        return {name: torch.zeros(pictures, *shape) for name, shape in self.packed.program["buffers"].items()}

    def run(self, step: Step, buffers: Buffers, pixels_BHWC: Tensor) -> Tensor:
        """What a step leaves in its buffer."""
        if step["kind"] not in ("tokens", "patches"):
            return self.kinds[step["kind"]](step, buffers)
        if step["kind"] == "tokens":
            rows_BND = self.tensor(step["value"]).expand(len(pixels_BHWC), -1, -1)
        else:
            rows_BND = self.real(step, patches(pixels_BHWC, step["patch"])) + self.tensor(step["positions"])
        found_BND = buffers[step["to"]].clone()
        found_BND[:, step["first"] : step["first"] + rows_BND.shape[1]] = rows_BND
        return found_BND

    def normalized(self, image_BHWC: Tensor) -> Tensor:
        image = self.packed.program["image"]
        mean_C, std_C = (torch.tensor(image[name], dtype=torch.float32) for name in ("mean", "std"))
        return (image_BHWC.float() / 255 - mean_C) / std_C

    # ------------------------------------------------------------------------------------------------ tensors

    def tensor(self, name: str) -> Tensor:
        return self.once(name, 0, lambda: torch.from_numpy(self.packed.tensors[name].astype(np.float32)))

    def signed(self, name: str, columns: int) -> Tensor:
        """weight_OI of ±1."""
        return self.once(name, columns, lambda: torch.from_numpy(signs_of(self.packed.tensors[name], columns)))

    def once(self, name: str, columns: int, make: Callable[[], Tensor]) -> Tensor:
        if (name, columns) not in self.kept:
            self.kept[name, columns] = make()
        return self.kept[name, columns]

    # ------------------------------------------------------------------------------------------------ what recurs

    def signs(self, x: Tensor, threshold: str, name: str = "threshold") -> Tensor:
        minus = x < self.tensor(threshold)
        if self.watch is not None:
            self.watch(self.number, name, minus)
        return 1 - 2 * minus.float()

    def real(self, step: Step, x_BNI: Tensor) -> Tensor:
        weight_IO = self.once(step["weight"], -1, lambda: self.tensor(step["weight"]).double().T.contiguous())
        rows = max(1, CACHED // weight_IO.shape[1])
        found = []
        for x_RI in x_BNI.flatten(0, 1).split(rows):
            total_RO = self.tensor(step["bias"]).expand(len(x_RI), -1)
            for x_R, weight_O in zip(x_RI.double().T, weight_IO, strict=True):
                total_RO = rounded_sum(x_R[:, None] * weight_O, total_RO)
            found.append(total_RO)
        return torch.cat(found).unflatten(0, x_BNI.shape[:2])

    def affine(self, step: Step, x_BND: Tensor) -> Tensor:
        return fma(x_BND, self.tensor(step["gain"]), self.tensor(step["bias"]))

    def activate(self, step: Step, product_BND: Tensor, *shortcuts_BND: Tensor) -> Tensor:
        v_BND = fma(self.tensor(step["gain"]), product_BND, self.tensor(step["bias"]))
        for shortcut_BND in shortcuts_BND:
            v_BND = v_BND + shortcut_BND
        move_D = self.tensor(step["move"])
        return torch.where(v_BND < 0, fma(v_BND, self.tensor(step["slope"]), move_D), v_BND + move_D)

    def binary(self, step: Step, x_BND: Tensor, shortcut_BND: Tensor, name: str = "threshold") -> Tensor:
        weight_OI = self.signed(step["weight"], x_BND.shape[-1])
        return self.activate(step, self.signs(x_BND, step["threshold"], name) @ weight_OI.T, shortcut_BND)

    # ------------------------------------------------------------------------------------------------ kinds of steps

    def linear(self, step: Step, buffers: Buffers) -> Tensor:
        return self.binary(step, buffers[step["from"]], buffers[step["from"]])

    def mlp(self, step: Step, buffers: Buffers) -> Tensor:
        z_BND, expand = buffers[step["from"]], step["expand"]
        h_BNI = self.binary(step["up"], z_BND, z_BND.repeat(1, 1, expand), "up.threshold")
        shortcut_BND = mean_of(h_BNI.unflatten(2, (-1, expand)).unbind(3))
        return self.binary(step["down"], h_BNI, shortcut_BND, "down.threshold")

    def attention(self, step: Step, buffers: Buffers) -> Tensor:
        real = {name: buffers[step[name]] for name in ("query", "key", "value")}
        q_BHNK, k_BHMK, v_BHMK = (
            self.signs(x, step[f"{name}_threshold"], f"{name}_threshold").unflatten(2, (step["heads"], -1)).transpose(1, 2)
            for name, x in real.items()
        )
        attended_BHNM = self.attended(step, q_BHNK @ k_BHMK.transpose(2, 3), q_BHNK.shape[3])
        if self.watch is not None:
            self.watch(self.number, "attended", attended_BHNM)
        context_BND = (attended_BHNM.float() @ v_BHMK).transpose(1, 2).flatten(2)
        shown_N, side, width = torch.arange(context_BND.shape[1]), step["side"], step["width"]
        if side > 1:
            shown_N = shown_N // width // side * (width // side) + shown_N % width // side
        return self.activate(step, context_BND, real["query"], real["key"][:, shown_N], real["value"][:, shown_N])

    def attended(self, step: Step, scores_BHNM: Tensor, width: int) -> Tensor:
        """Which probabilities are above the limit. Sums run in 16 lanes, which are then added in halves."""
        coarse, fine = (torch.tensor([math.exp(-by * step["scale"] * i) for i in range(16)]).float() for by in (32, 2))
        powers = (coarse[:, None] * fine).flatten()
        e_BHNM = powers[((width - scores_BHNM) / 2).long()]
        lanes_BHNL = torch.zeros(*e_BHNM.shape[:3], 16)
        for part in e_BHNM.split(16, dim=3):
            lanes_BHNL[..., : part.shape[3]] += part
        while lanes_BHNL.shape[3] > 1:
            half = lanes_BHNL.shape[3] // 2
            lanes_BHNL = lanes_BHNL[..., :half] + lanes_BHNL[..., half:]
        return e_BHNM > torch.tensor(step["limit"], dtype=torch.float32) * lanes_BHNL

    def pool(self, step: Step, buffers: Buffers) -> Tensor:
        x_BND, side = buffers[step["from"]], step["side"]
        grid = x_BND.unflatten(1, (-1, side, step["width"] // side, side))
        return mean_of([grid[:, :, i, :, j] for i in range(side) for j in range(side)]).flatten(1, 2)

    def cross(self, step: Step, buffers: Buffers) -> Tensor:
        z_BND, width = buffers[step["from"]], step["width"]
        z_BHWD = z_BND.unflatten(1, (-1, width))
        padded = torch.nn.functional.pad(z_BHWD, (0, 0, 2, 2, 2, 2))
        height = z_BHWD.shape[1]

        def both(i: int, j: int) -> Tensor:
            before, after = (padded[:, 2 + s * i : 2 + s * i + height, 2 + s * j : 2 + s * j + width] for s in (-1, 1))
            return (before + after).flatten(1, 2)

        total_BND = fma(self.tensor(step["center"]), z_BND, self.tensor(step["bias"]))
        for name, i, j in (("near_rows", 1, 0), ("far_rows", 2, 0), ("near_columns", 0, 1), ("far_columns", 0, 2)):
            total_BND = fma(self.tensor(step[name]), both(i, j), total_BND)
        return buffers[step["to"]] + total_BND

    def taps(self, step: Step, buffers: Buffers) -> Tensor:
        """The four tokens of each square, behind each other."""
        grid = buffers[step["from"]].unflatten(1, (-1, 2, step["width"] // 2, 2))
        return grid.transpose(2, 3).flatten(3).flatten(1, 2)

    def merge(self, step: Step, buffers: Buffers) -> Tensor:
        x_BND = buffers[step["from"]]
        dim, words_OW = x_BND.shape[2], self.packed.tensors[step["weight"]]
        weight_OI = self.once(
            step["weight"],
            dim,
            lambda: torch.from_numpy(np.concatenate([signs_of(part, dim) for part in np.split(words_OW, 4, axis=1)], axis=1)),
        )
        bits_BNI = self.taps(step, {step["from"]: self.signs(x_BND, step["threshold"])})
        first, second, third, fourth = self.taps(step, buffers).unflatten(2, (4, dim)).unbind(2)
        means_BND = (first + second + third + fourth) * 0.25
        copies_BND = means_BND.repeat(1, 1, len(words_OW) // dim)
        return self.activate(step, bits_BNI @ weight_OI.T, copies_BND) + self.tensor(step["positions"])

    def mean(self, step: Step, buffers: Buffers) -> Tensor:
        rows_BND = buffers[step["from"]][:, step["first"] : step["first"] + step["count"]]
        return mean_of(rows_BND.split(1, dim=1))


def mean_of(parts: Any) -> Tensor:
    """Their sum from 0 on, in order, times float32 1 / n."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total * torch.tensor(1 / len(parts), dtype=torch.float32)


def patches(pixels_BHWC: Tensor, side: int) -> Tensor:
    """Each square's pixels_BNI in the order (channel, row, column)."""
    grid = pixels_BHWC.unflatten(2, (-1, side)).unflatten(1, (-1, side))
    return grid.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)
