"""The packed program in numpy, written from docs/format.md: in float64, or in float32 with the file's order of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from packed import Step, unpack_signs

Buffers = dict[str, np.ndarray]


class Twin:
    """Runs steps on buffers. `real` is float64 for the plain equations, float32 for the very bits of the runtime."""

    def __init__(self, program: dict[str, Any], tensors: dict[str, np.ndarray], real: type) -> None:
        self.program, self.tensors, self.real = program, tensors, real
        self.steps: dict[str, Callable[[Step, Buffers], np.ndarray]] = {
            "affine": lambda step, b: self.affine(step, b[step["from"]]),
            "add": lambda step, b: self.affine(step, b[step["from"]]) + b[step["to"]],
            "linear": lambda step, b: self.linear(step, b[step["from"]], b[step["from"]]),
            "mlp": self.mlp,
            "attention": self.attention,
            "pool": self.pool,
            "cross": self.cross,
            "merge": self.merge,
            "merge_real": lambda step, b: self.product(step, self.taps(step, b)) + self.tensor(step["positions"]),
            "mean": self.mean,
            "head": lambda step, b: self.product(step, b[step["from"]]),
        }

    def tensor(self, name: str) -> np.ndarray:
        return self.tensors[name].astype(self.real)

    def fma(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(self.real)

    def empty(self) -> Buffers:
        return {name: np.zeros(shape, self.real) for name, shape in self.program["buffers"].items()}

    def run(self, step: Step, buffers: Buffers, image_HWC: np.ndarray) -> np.ndarray:
        """The step's buffer after it."""
        before = buffers[step["to"]]
        if step["kind"] == "tokens":
            after, first = before.copy(), step["first"]
            after[first : first + step["count"]] = self.tensor(step["value"])
            return after
        if step["kind"] == "patches":
            after, first = before.copy(), step["first"]
            rows = self.product(step, self.patches(step["patch"], image_HWC)) + self.tensor(step["positions"])
            after[first : first + len(rows)] = rows
            return after
        return self.steps[step["kind"]](step, buffers)

    def patches(self, side: int, image_HWC: np.ndarray) -> np.ndarray:
        spec = self.program["image"]
        mean, std = (np.array(spec[name], dtype=np.float32) for name in ("mean", "std"))
        image = ((image_HWC.astype(np.float32) / np.float32(255) - mean) / std).astype(self.real)
        height, width, channels = image.shape
        grid = image.reshape(height // side, side, width // side, side, channels)
        return grid.transpose(0, 2, 4, 1, 3).reshape(-1, channels * side * side)

    def product(self, step: Step, x_NI: np.ndarray) -> np.ndarray:
        weight_OI = self.tensor(step["weight"])
        if self.real is np.float64:
            return x_NI @ weight_OI.T + self.tensor(step["bias"])
        sum_NO = np.broadcast_to(self.tensor(step["bias"]), (len(x_NI), len(weight_OI)))
        for i in range(x_NI.shape[1]):
            sum_NO = self.fma(x_NI[:, i, None], weight_OI[None, :, i], sum_NO)
        return sum_NO

    def affine(self, step: Step, x_ND: np.ndarray) -> np.ndarray:
        return self.fma(x_ND, self.tensor(step["gain"]), self.tensor(step["bias"]))

    def signs(self, x_ND: np.ndarray, threshold: str) -> np.ndarray:
        return np.where(x_ND < self.tensor(threshold), np.float32(-1), np.float32(1))

    def bent(self, step: Step, v_ND: np.ndarray) -> np.ndarray:
        slope, move = self.tensor(step["slope"]), self.tensor(step["move"])
        return np.where(v_ND < 0, self.fma(v_ND, slope, move), v_ND + move)

    def activate(self, step: Step, product_ND: np.ndarray, *shortcuts: np.ndarray) -> np.ndarray:
        v = self.fma(self.tensor(step["gain"]), product_ND, self.tensor(step["bias"]))
        for shortcut in shortcuts:
            v = v + shortcut
        return self.bent(step, v)

    def linear(self, step: Step, x_ND: np.ndarray, shortcut: np.ndarray) -> np.ndarray:
        weight = unpack_signs(self.tensors[step["weight"]], x_ND.shape[1])
        return self.activate(step, self.signs(x_ND, step["threshold"]) @ weight.T, shortcut)

    def mlp(self, step: Step, buffers: Buffers) -> np.ndarray:
        z_ND, expand = buffers[step["from"]], step["expand"]
        h = self.linear(step["up"], z_ND, np.tile(z_ND, (1, expand)))
        groups = h.reshape(len(h), -1, expand)
        total = np.zeros(groups.shape[:2], self.real)
        for e in range(expand):
            total = total + groups[:, :, e]
        return self.linear(step["down"], h, total * self.real(np.float32(1) / np.float32(expand)))

    def attention(self, step: Step, buffers: Buffers) -> np.ndarray:
        q_ND, k_MD, v_MD = (buffers[step[name]] for name in ("query", "key", "value"))
        heads, (rows, dim) = step["heads"], q_ND.shape
        signs = (self.signs(x, step[f"{name}_threshold"]) for x, name in ((q_ND, "query"), (k_MD, "key"), (v_MD, "value")))
        q, k, v = (x.reshape(len(x), heads, dim // heads).transpose(1, 0, 2) for x in signs)
        chosen = self.chosen(step, q @ k.transpose(0, 2, 1), dim // heads)
        context = (chosen.astype(np.float32) @ v).transpose(1, 0, 2).reshape(rows, dim)
        shown = np.arange(rows)
        if step["side"] > 1:
            width, side = step["width"], step["side"]
            shown = shown // width // side * (width // side) + shown % width // side
        return self.activate(step, context, q_ND, k_MD[shown], v_MD[shown])

    def chosen(self, step: Step, scores_HNM: np.ndarray, depth: int) -> np.ndarray:
        """Which probabilities are above the limit."""
        if self.real is np.float64:
            powers = np.exp(step["scale"] * (scores_HNM - scores_HNM.max(axis=2, keepdims=True)).astype(np.float64))
            return powers / powers.sum(axis=2, keepdims=True) > step["limit"]
        coarse, fine = (np.exp(-2 * step["scale"] * np.arange(16) * by).astype(np.float32) for by in (16, 1))
        mismatches = ((depth - scores_HNM) / 2).astype(int)
        weights = coarse[mismatches // 16] * fine[mismatches % 16]
        padded = np.pad(weights, ((0, 0), (0, 0), (0, -weights.shape[2] % 16)))
        lanes = np.zeros((*padded.shape[:2], 16), np.float32)
        for start in range(0, padded.shape[2], 16):
            lanes = lanes + padded[:, :, start : start + 16]
        while lanes.shape[2] > 1:
            half = lanes.shape[2] // 2
            lanes = lanes[:, :, :half] + lanes[:, :, half:]
        return weights > np.float32(step["limit"]) * lanes

    def pool(self, step: Step, buffers: Buffers) -> np.ndarray:
        x_ND, width, side = buffers[step["from"]], step["width"], step["side"]
        grid = x_ND.reshape(-1, side, width // side, side, x_ND.shape[1])
        total = np.zeros((grid.shape[0], grid.shape[2], grid.shape[4]), self.real)
        for i in range(side):
            for j in range(side):
                total = total + grid[:, i, :, j]
        return total.reshape(-1, x_ND.shape[1]) * self.real(np.float32(1) / np.float32(side * side))

    def cross(self, step: Step, buffers: Buffers) -> np.ndarray:
        z_ND, width = buffers[step["from"]], step["width"]
        z = np.pad(z_ND.reshape(-1, width, z_ND.shape[1]), ((2, 2), (2, 2), (0, 0)))
        height = z.shape[0] - 4

        def shifted(i: int, j: int) -> np.ndarray:
            return z[2 + i : 2 + i + height, 2 + j : 2 + j + width].reshape(z_ND.shape)

        total = self.fma(self.tensor(step["center"]), z_ND, self.tensor(step["bias"]))
        for name, i, j in (("near_rows", 1, 0), ("far_rows", 2, 0), ("near_columns", 0, 1), ("far_columns", 0, 2)):
            total = self.fma(self.tensor(step[name]), shifted(-i, -j) + shifted(i, j), total)
        return buffers[step["to"]] + total

    def taps(self, step: Step, buffers: Buffers) -> np.ndarray:
        """The four tokens of each 2 x 2 square behind each other."""
        x_ND, width = buffers[step["from"]], step["width"]
        grid = x_ND.reshape(-1, 2, width // 2, 2, x_ND.shape[1])
        return grid.transpose(0, 2, 1, 3, 4).reshape(-1, 4 * x_ND.shape[1])

    def merge(self, step: Step, buffers: Buffers) -> np.ndarray:
        dim = buffers[step["from"]].shape[1]
        taps = self.taps(step, buffers).reshape(-1, 4, dim)
        words = self.tensors[step["weight"]]
        weights = [unpack_signs(part, dim) for part in np.split(words, 4, axis=1)]
        bits = self.signs(taps, step["threshold"])
        product = sum(bits[:, i] @ weights[i].T for i in range(4))
        mean = (taps[:, 0] + taps[:, 1] + taps[:, 2] + taps[:, 3]) * self.real(0.25)
        copies = np.tile(mean, (1, len(words) // dim))
        return self.activate(step, np.asarray(product), copies) + self.tensor(step["positions"])

    def mean(self, step: Step, buffers: Buffers) -> np.ndarray:
        total = np.zeros((1, buffers[step["from"]].shape[1]), self.real)
        for row in range(step["first"], step["first"] + step["count"]):
            total = total + buffers[step["from"]][row]
        return total * self.real(np.float32(1) / np.float32(step["count"]))
