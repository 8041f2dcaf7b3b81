"""From a trained binary model to the packed program that computes the same (docs/format.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier
from frugalvit.deploy.fold import (
    folded_branches,
    folded_head,
    folded_heads,
    folded_linear,
    folded_merge,
    folded_norm,
    folded_real_merge,
    folded_sum,
    limit_of,
)
from frugalvit.deploy.opening import Opening
from frugalvit.deploy.packable import cover_of, refuse_unpackable
from frugalvit.deploy.packed_file import Packed
from frugalvit.deploy.program import Precision, ProgramWriter, SignPlace
from frugalvit.nn.binary_attention import OneBitHeads
from frugalvit.nn.binary_block import PoolingPreNorm
from frugalvit.nn.binary_channels import TokenBatchNormalized
from frugalvit.nn.binary_merge import BinarySquares, RealSquares
from frugalvit.nn.layers import FixedPositions, LearnedPositions, SummaryTokens
from frugalvit.nn.readout import MeanHeads, OneHead
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class PackedModel:
    """A packed file's contents, and which of its bits stand where in the model."""

    packed: Packed
    places: tuple[SignPlace, ...]


def packed_model(classifier: Classifier, name: str, precision: Precision = "single") -> PackedModel:
    """The program of a classifier: one step a map, norms folded into them. A SpecError where a part has no packed form."""
    return written_by(ProgramWriter(precision), classifier, name)


@torch.no_grad()
def written_by(writer: ProgramWriter, classifier: Classifier, name: str) -> PackedModel:
    spec, module = classifier.spec, classifier.module
    refuse_unpackable(spec, module.shapes)
    walk = Walk(module, [shape for shape in module.shapes if isinstance(shape, Shape)], writer)
    walk.run(spec.fusion.name if isinstance(spec.fusion, OneHead) else "")
    program = {
        "name": name,
        "image": image_of(spec.preprocess),
        "labels": list(spec.classes),
        "buffers": writer.buffers,
        "steps": writer.steps,
        "logits": "logits",
    }
    return PackedModel(Packed(program, writer.tensors), tuple(writer.places))


def image_of(preprocess: Preprocess) -> dict[str, Any]:
    return {
        "height": preprocess.height,
        "width": preprocess.width,
        "cover": list(cover_of(preprocess)),
        "filter": preprocess.interpolation,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


class Walk:
    """Through a module's parts in order, writing the steps of each."""

    def __init__(self, module: nn.Module, shapes: list[Shape], writer: ProgramWriter):
        self.module, self.shapes, self.writer = module, shapes, writer
        self.stage = 0
        self.opening: Opening | None = None
        self.merging = ""  # the path of the merge that the opening is

    def run(self, head: str) -> None:
        """All steps; of several heads, the one of that name, or the mean of all without one."""
        tokenizer: Any = self.module.tokenizer
        real = tokenizer.weight.double().flatten(1), tokenizer.bias.double()
        self.opening = Opening("patches", {"patch": tokenizer.patch[0]}, real, self.shapes[0])
        for index, layer in enumerate(self.module.layers):  # type: ignore[arg-type]
            self.layer(layer, f"layers.{index}", self.shapes[index], self.shapes[index + 1])
        self.open(self.shapes[-1])
        self.readout(self.module.readout, self.shapes[-1], head)

    def layer(self, layer: nn.Module, path: str, shape: Shape, leaves: Shape) -> None:
        if isinstance(layer, TokenBatchNormalized):
            self.normalize(folded_norm(layer), shape)
        elif isinstance(layer, (LearnedPositions, FixedPositions)):
            positions_1ND = layer.positions if isinstance(layer, LearnedPositions) else layer.positions_1ND
            self.add_positions(positions_1ND[0].double(), shape)
        elif isinstance(layer, SummaryTokens):
            assert self.opening is not None
            self.opening.join(torch.cat([token[0].double() for token in layer.tokens.values()]))
        elif isinstance(layer, PoolingPreNorm):
            self.open(shape)
            self.block(layer, path, shape)
        elif isinstance(layer, (BinarySquares, RealSquares)):
            self.open(shape)
            self.merge(layer, path, shape, leaves)

    # ------------------------------------------------------------------------------------------------ buffers

    def buffer(self, name: str, shape: Shape, side: int = 1) -> str:
        """A buffer of this stage, for the tokens or for means of squares of them."""
        return self.writer.buffer(f"{self.stage}{name}", shape.length // side**2, shape.dim)

    def open(self, shape: Shape) -> None:
        """Write the step that fills this stage's tokens, if it has been held back."""
        if self.opening is not None:
            step = self.opening.write(self.writer, self.buffer("x", shape))
            if self.merging:
                self.writer.places.append(
                    SignPlace(step, "threshold", f"{self.merging}.norm1", "output", f"{self.merging}.shift")
                )
        self.opening, self.merging = None, ""

    # ------------------------------------------------------------------------------------------------ layers

    def normalize(self, affine: tuple[Tensor, Tensor], shape: Shape) -> None:
        if self.opening is not None and self.opening.real is not None:
            self.opening.normalize(*affine)
            return
        self.open(shape)
        x = self.buffer("x", shape)
        self.affine("affine", x, x, affine)

    def add_positions(self, positions_ND: Tensor, shape: Shape) -> None:
        if self.opening is not None:
            self.opening.add(positions_ND)
            return
        x, added = self.buffer("x", shape), self.buffer("p", shape)
        self.writer.step("tokens", added, {"first": 0, "count": shape.length, "value": positions_ND})
        self.affine("add", added, x, (torch.ones(shape.dim).double(), torch.zeros(shape.dim).double()))

    def affine(self, kind: str, source: str, to: str, numbers: tuple[Tensor, Tensor]) -> None:
        self.writer.step(kind, to, {"from": source, "gain": numbers[0], "bias": numbers[1]})

    def linear(self, source: str, to: str, module: Any, path: str) -> None:
        step = self.writer.step("linear", to, {"from": source, **folded_linear(module)})
        self.writer.places.append(SignPlace(step, "threshold", path, "input", f"{path}.shift"))

    def block(self, block: PoolingPreNorm, path: str, shape: Shape) -> None:
        """In the order in which threads wait least: queries last, next to the attention that reads them."""
        x, u, z, y = (self.buffer(name, shape) for name in "xuzy")
        self.attention(block.attention, f"{path}.attention", folded_norm(block.norm1), shape)  # type: ignore[arg-type]
        self.affine("add", u, x, folded_sum(block.sum1, shape.dim))
        self.affine("affine", x, z, folded_norm(block.norm2))  # type: ignore[arg-type]
        mlp: Any = block.mlp
        up, down = folded_linear(mlp.up), folded_linear(mlp.down)
        fields = {"from": z, "expand": len(mlp.up.act.slope) // shape.dim, "up": up, "down": down}
        step = self.writer.step("mlp", y, fields)
        for name in ("up", "down"):
            place = f"{path}.mlp.{name}"
            self.writer.places.append(SignPlace(step, f"{name}.threshold", place, "input", f"{place}.shift"))
        self.affine("add", y, x, folded_sum(block.sum2, shape.dim))
        if len(block.pools):
            cross = folded_branches(block.pools, shape.dim)  # type: ignore[arg-type]
            self.writer.step("cross", x, {"from": z, "width": shape.width, **cross})

    def attention(self, heads: OneBitHeads, path: str, norm: tuple[Tensor, Tensor], shape: Shape) -> None:
        """From x to u, by y. An average commutes with a norm, so that squares are averaged first."""
        side = heads.grid[1]
        x, u, q, y = (self.buffer(name, shape) for name in "xuqy")
        k, v = (self.buffer(name, shape, side) for name in "kv")
        seen = u
        if heads.reduce is None:
            self.affine("affine", x, u, norm)
        else:
            pooled, keys, seen = (self.buffer(name, shape, side) for name in ("pooled", "keys", "reduced"))
            self.writer.step("pool", pooled, {"from": x, "width": shape.width, "side": side})
            self.affine("affine", pooled, keys, norm)
            self.linear(keys, seen, heads.reduce, f"{path}.reduce")
        self.linear(seen, k, heads.key, f"{path}.key")
        self.linear(seen, v, heads.value, f"{path}.value")
        if heads.reduce is not None:
            self.affine("affine", x, u, norm)
        self.linear(u, q, heads.query, f"{path}.query")
        width = shape.length if shape.summary else shape.width
        fields = {"query": q, "key": k, "value": v, "heads": heads.heads, "width": width, "side": side}
        fields |= {"scale": heads.scale, "limit": limit_of(heads), **folded_heads(heads)}
        step = self.writer.step("attention", y, fields)
        for name in ("query", "key", "value"):
            shift = f"{path}.shift_{name[0]}"
            self.writer.places.append(SignPlace(step, f"{name}_threshold", f"{path}.{name}", "output", shift))
        self.writer.places.append(SignPlace(step, "attended", f"{path}.gather", "input"))
        self.linear(y, u, heads.out, f"{path}.out")

    def merge(self, squares: BinarySquares | RealSquares, path: str, shape: Shape, leaves: Shape) -> None:
        source = self.buffer("x", shape)
        if isinstance(squares, RealSquares):
            fields = {"from": source, "width": shape.width}
            self.opening = Opening("merge_real", fields, folded_real_merge(squares), leaves)
        else:
            normed = self.buffer("u", shape)
            self.affine("affine", source, normed, folded_norm(squares.norm1))
            fields = {"from": normed, "width": shape.width, **folded_merge(squares)}
            self.opening, self.merging = Opening("merge", fields, None, leaves), path
        self.stage += 1

    def readout(self, readout: Any, shape: Shape, head: str) -> None:
        names = [head] if head else [*readout.heads]
        x = self.buffer("x", shape)
        for index, name in enumerate(names):
            linear = readout.heads[name]
            features = self.writer.buffer(f"features_{name}", 1, shape.dim)
            rows = {"first": len(shape.summary), "count": shape.patches}
            if not isinstance(readout, MeanHeads):
                rows = {"first": readout.places[[*readout.heads].index(name)], "count": 1}
            self.writer.step("mean", features, {"from": x, **rows})
            weight_CD, bias_C = folded_head(readout.norm, linear, 1 / len(names))
            to = self.writer.buffer("logits" if index == 0 else f"logits_{name}", 1, len(weight_CD))
            self.writer.step("head", to, {"from": features, "weight": weight_CD, "bias": bias_C})
            if index:
                self.affine("add", to, "logits", (torch.ones(len(bias_C)).double(), torch.zeros(len(bias_C)).double()))
