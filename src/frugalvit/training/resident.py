"""A step whose pictures lie on the device: the host sends the numbers of a batch, and all else is one CUDA graph.

Small models on small pictures leave a GPU idle while Python launches their kernels and Pillow changes their pictures. Here
reading, augmenting, mixing, forward, backward and the update are captured once and replayed; what differs from step to step
(which pictures, the key of all draws, the learning rate, the average's share) lies in tensors that the host writes before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from frugalvit.data.batch import Batch
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.erase import erase
from frugalvit.data.device.mix import mix
from frugalvit.data.device.pipeline import pipeline
from frugalvit.data.device.size import MapSize
from frugalvit.data.finish import normalize
from frugalvit.data.order import Order, epoch_batches, steps_per_epoch
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randomness import Stream
from frugalvit.data.store_device import OneSize
from frugalvit.errors import SpecError
from frugalvit.training.devices import Place
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Clock
from frugalvit.training.state import State
from frugalvit.training.step import Step

WARM = 3  # steps before a capture, in which libraries choose their kernels


@dataclass(frozen=True, eq=False)
class NumberedBatches(Dataset[Batch]):
    """Batch `step` of a training as numbers alone; the pictures are on the device."""

    labels: np.ndarray
    order: Order
    seed: int
    batch: int
    epoch: dict[int, np.ndarray] = field(default_factory=dict)  # the rows of the epoch read last

    def __getitem__(self, step: int) -> Batch:
        number, row = divmod(step, steps_per_epoch(self.order, self.labels, self.batch))
        if number not in self.epoch:
            self.epoch.clear()
            self.epoch[number] = epoch_batches(self.order, self.labels, self.seed, number, self.batch)
        index_B = self.epoch[number][row]
        none = torch.empty(0, dtype=torch.uint8)
        return Batch(none, torch.from_numpy(self.labels[index_B]), torch.from_numpy(index_B.astype(np.int64)))


class Prepared(nn.Module):
    """From numbers to what the model takes: pictures read, augmented, normalized, erased and mixed, by draws of a key."""

    def __init__(self, recipe: Recipe, kept: OneSize, preprocess: Preprocess):
        super().__init__()
        assert recipe.model.classes is not None
        _, channels, height, width = kept.image_NCHW.shape
        self.kept = kept
        self.preprocess = preprocess
        self.augment = pipeline(recipe.data.augment, MapSize(height, width, channels), (preprocess.height, preprocess.width))
        self.erase = None if recipe.data.erase is None else erase(recipe.data.erase)
        self.mix = mix(recipe.data.mix, recipe.model.classes, 0.0)

    def forward(self, index_B: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(image_BCHW, target_BC, label_B)"""
        label_B = self.kept.label_N[index_B]
        draws_BK = uniform(key, Stream.AUGMENT, (len(index_B), self.augment.draws))
        image_BCHW = self.augment(self.kept.image_NCHW[index_B], draws_BK)
        image_BCHW = normalize(image_BCHW, self.preprocess.mean, self.preprocess.std)
        if self.erase is not None:
            draws_BK = uniform(key, Stream.ERASE, (len(index_B), self.erase.draws))
            image_BCHW = self.erase(image_BCHW, draws_BK, key)
        draws_1K = uniform(key, Stream.MIX, (1, max(self.mix.draws, 1)))
        image_BCHW, target_BC = self.mix(image_BCHW, label_B, draws_1K)
        return image_BCHW, target_BC, label_B


class ResidentStep(Step):
    """Takes steps on pictures that are on the device. Its draws are others than those of `Step`, and so are its batches."""

    def __init__(self, recipe: Recipe, state: State, place: Place, clock: Clock, preprocess: Preprocess, kept: OneSize):
        super().__init__(recipe, state, place, clock, preprocess)
        if state.scaler is not None:
            raise SpecError("fp16 scales its loss by steps of its own. Use bf16 or fp32 here.", path="recipe.precision")
        device = place.device
        self.prepared: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = Prepared(recipe, kept, preprocess).to(device)
        self.forward: Callable[..., dict[str, Tensor]] = state.module
        self.index_AB = torch.zeros((recipe.accumulate, recipe.batch), dtype=torch.int64, device=device)
        self.key = torch.tensor([recipe.seed, 0], dtype=torch.int64, device=device)
        self.rate = torch.zeros((), device=device)  # the learning rate
        self.share = torch.zeros((), device=device)  # how far the average moves
        self.skips = torch.zeros((), device=device)  # 1 where the step is no number
        for group in state.optimizer.param_groups:
            group["lr"] = torch.zeros((), device=device)
            if "capturable" in group:
                group["capturable"] = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None

    def take(self, batches: Sequence[Batch]) -> None:
        state, recipe = self.state, self.recipe
        index_AB = torch.stack([batch.index_B for batch in batches])
        if self.place.device.type == "cuda":
            index_AB = index_AB.pin_memory()
        self.index_AB.copy_(index_AB, non_blocking=True)
        self.key[1].fill_(state.step * recipe.accumulate)
        self.rate.fill_(recipe.schedule.lr(state.step, self.peak, self.clock))
        if state.average is not None:
            self.share.fill_(1 - state.average.spec.rate(state.step))
        if self.place.device.type == "cuda" and self.graph is None:
            self.capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.compute()
        self.count += 1
        state.step += 1

    def compute(self) -> None:
        """All of a step that happens on the device: nothing here waits for it, and nothing is allocated but by torch."""
        state, recipe = self.state, self.recipe
        state.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.place.device)
        remembered = [(one, one.clone()) for one in state.module.buffers()]
        for part in range(recipe.accumulate):
            total = total + self.part_gradients(part)
        parameters = [one for group in state.optimizer.param_groups for one in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.clip or math.inf)
        finite = torch.isfinite(total) & torch.isfinite(norm)
        for buffer, before in remembered:
            buffer.copy_(torch.where(finite, buffer, before))
        self.updated(finite)
        self.in_a_row.copy_(torch.where(finite, torch.zeros_like(self.in_a_row), self.in_a_row + 1))
        self.most_in_a_row.copy_(torch.maximum(self.most_in_a_row, self.in_a_row))
        self.add("loss", total)
        self.add("gradient_norm", norm)
        self.add("nonfinite", (~finite).float())

    def part_gradients(self, part: int) -> Tensor:
        """Adds the gradients of one batch and returns its share of the loss."""
        recipe, state = self.recipe, self.state
        index_B = self.index_AB[part]
        key = torch.stack([self.key[0], self.key[1] + part])
        image_BCHW, target_BC, label_B = self.prepared(index_B, key)
        draws_RB = uniform(key, Stream.DEPTH, (state.module.draws, recipe.batch)) if state.module.draws else None
        with self.place.autocast():
            outputs = self.forward(image_BCHW, draws_RB)
            terms = state.objective(outputs, Batch(image_BCHW, label_B, index_B, target_BC))
        for name, value in terms.items():
            self.add(name, value.detach() / recipe.accumulate)
        loss = torch.stack(list(terms.values())).sum() / recipe.accumulate
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def updated(self, finite: Tensor) -> None:
        state = self.state
        for group in state.optimizer.param_groups:
            group["lr"].copy_(self.rate * group["scale"])
        self.skips.copy_((~finite).float())
        state.optimizer.found_inf = self.skips  # type: ignore[attr-defined]  # fused optimizers skip by it
        state.optimizer.step()
        if state.average is not None:
            own, averaged = state.module.state_dict(), state.average.tensors
            floats = [name for name, value in own.items() if value.is_floating_point()]
            ways = torch._foreach_sub([own[name] for name in floats], [averaged[name] for name in floats])
            torch._foreach_mul_(ways, self.share * finite)
            torch._foreach_add_([averaged[name] for name in floats], ways)

    def add(self, name: str, value: Tensor) -> None:
        if name not in self.sums:
            self.sums[name] = torch.zeros((), device=self.place.device)
        self.sums[name].add_(value)

    def taken(self) -> dict[str, float]:
        values = {name: value.item() / self.count for name, value in self.sums.items()}
        values["nonfinite"] = round(values["nonfinite"] * self.count)
        for value in self.sums.values():
            value.zero_()
        self.count = 0
        return values

    def capture(self) -> None:
        """Compile, warm up, put everything back as it was, and record the step."""
        self.prepared = torch.compile(self.prepared, fullgraph=True)
        self.forward = torch.compile(self.state.module)
        before = self.snapshot()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        self.restore(before)
        self.state.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        self.restore(before)
        self.graph = graph

    def moving(self) -> dict[Any, Tensor]:
        """Every tensor that a step changes."""
        state = self.state
        found: dict[Any, Tensor] = {("module", name): value for name, value in state.module.state_dict().items()}
        found |= {("objective", name): value for name, value in state.objective.state_dict().items()}
        if state.average is not None:
            found |= {("average", name): value for name, value in state.average.tensors.items()}
        for parameter, moments in state.optimizer.state.items():
            found |= {(parameter, key): value for key, value in moments.items() if isinstance(value, Tensor)}
        found |= {("sums", name): value for name, value in self.sums.items()}
        return found | {("row", 0): self.in_a_row, ("row", 1): self.most_in_a_row}

    def snapshot(self) -> dict[Any, Tensor]:
        return {key: value.detach().clone() for key, value in self.moving().items()}

    @torch.no_grad()
    def restore(self, before: dict[Any, Tensor]) -> None:
        """In place: a graph reads these very tensors. What was not there before began at zero."""
        for key, value in self.moving().items():
            if key in before:
                value.copy_(before[key])
            else:
                value.zero_()
