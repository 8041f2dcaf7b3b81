"""A step as one CUDA graph: the host sends the numbers of a batch, and all else is captured once and replayed.

Small models on small pictures leave a GPU idle while Python launches their kernels and Pillow changes their pictures. Here
reading, augmenting, mixing, forward, backward and the update are recorded; what differs from step to step (which pictures, the
key of all draws, the learning rate, the average's share) lies in tensors that the host writes before. On a device without
graphs, and where a capture fails, the same functions run one after the other, to the same numbers but for rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from frugalvit.data.ahead import ahead
from frugalvit.data.batch import Batch
from frugalvit.data.batches import TrainingBatches
from frugalvit.data.encoded import EncodedBatches, files_ahead
from frugalvit.data.numbered import NumberedBatches
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.store_device import OnDevice
from frugalvit.errors import SpecError, interruptible
from frugalvit.nn.foreign import OwnDraws
from frugalvit.training import compiled
from frugalvit.training.devices import Place
from frugalvit.training.judgment import copies, judged, kept_where
from frugalvit.training.one_bit import has_binary_maps
from frugalvit.training.prepared import Prepared
from frugalvit.training.quick_teacher import quicken
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Clock
from frugalvit.training.state import State
from frugalvit.training.step import Step, changing_buffers, terms_of, total_norm
from frugalvit.training.teacher import Teacher
from frugalvit.training.update import Update, fits

WARM = 3  # steps before a capture, in which libraries choose their kernels
FLIGHTS = 4  # steps that the host may be ahead. Where it fills the driver's queue it waits there, and all other threads with it
CAPTURING = threading.Lock()  # one at a time: neither the compiler nor a capture likes company


class GraphStep(Step):
    """Takes steps whose draws are made on the device: others than those of `Step`, and so are its batches.

    With `kept` pictures it needs their numbers alone; without, batches come augmented from the host, or as files.
    """

    def __init__(
        self,
        recipe: Recipe,
        state: State,
        place: Place,
        clock: Clock,
        preprocess: Preprocess,
        teacher: Teacher | None,
        kept: OnDevice | None,
    ):
        super().__init__(recipe, state, place, clock, preprocess, teacher)
        if state.scaler is not None:
            raise SpecError("fp16 scales its loss by steps of its own. Use bf16 or fp32 here.", path="recipe.precision")
        device = place.device
        self.kept = kept
        prepared = Prepared(recipe, preprocess, kept, state.module.draws).to(device)
        self.prepared: Callable[..., Any] = prepared
        self.drawn = prepared.drawn
        self.terms = terms_of(state.module, state.objective, place, recipe.accumulate)
        self.judged: Callable[..., Tensor] = judged
        self.kept_where: Callable[..., None] = kept_where
        self.answers: Callable[[Tensor], dict[str, Tensor]] | None = teacher
        self.number_2AB = torch.zeros((2, recipe.accumulate, recipe.batch), dtype=torch.int64, device=device)
        size = (0,) if kept is not None else (len(preprocess.mean), preprocess.height, preprocess.width)
        self.image_ABCHW = torch.zeros((recipe.accumulate, recipe.batch, *size), dtype=torch.uint8, device=device)
        self.key = torch.tensor([recipe.seed, 0], dtype=torch.int64, device=device)
        self.rate = torch.zeros((), device=device)  # the learning rate
        self.share = torch.zeros((), device=device)  # how far the average moves
        self.skips = torch.zeros((), device=device)  # 1 where the step is no number
        for group in state.optimizer.param_groups:
            group["lr"] = torch.zeros((), device=device)
            if "capturable" in group:
                group["capturable"] = device.type == "cuda"
        self.update_at_once: Update | None = None  # instead of the optimizer's own, from a capture on
        self.graph: torch.cuda.CUDAGraph | None = None
        self.landings: list[torch.cuda.Event] = []  # of the last steps, oldest first
        self.tried = device.type != "cuda"

    def reader(self, batches: Dataset[Batch] | EncodedBatches, numbers: range, workers: int) -> Iterator[Batch]:
        device = self.place.device
        if isinstance(batches, NumberedBatches):
            return (batches[number] for number in numbers)
        if isinstance(batches, EncodedBatches):
            return files_ahead(batches, numbers, workers, self.drawn, device)
        assert isinstance(batches, TrainingBatches)
        return ahead(batches, numbers, workers, device)

    def take(self, batches: Sequence[Batch]) -> None:
        state, recipe = self.state, self.recipe
        self.send(batches)
        self.key[1].fill_(state.step * recipe.accumulate)
        self.rate.fill_(recipe.schedule.lr(state.step, self.peak, self.clock))
        if state.average is not None:
            self.share.fill_(1 - state.average.spec.rate(state.step))
        if not self.tried:
            with CAPTURING:
                self.begin()
        if self.graph is not None:
            self.graph.replay()
            self.wait_for_earlier()
        else:
            self.compute()
        self.count += 1
        state.step += 1

    def wait_for_earlier(self) -> None:
        """Until few steps are under way; other threads go on."""
        landing = self.landings.pop(0) if len(self.landings) == FLIGHTS else torch.cuda.Event(blocking=True)
        landing.synchronize()  # at once for one that was never recorded
        landing.record()
        self.landings.append(landing)

    def send(self, batches: Sequence[Batch]) -> None:
        """Write a step's batches where the graph reads them."""
        number_2AB = torch.stack([torch.stack([one.index_B, one.label_B]) for one in batches], 1)
        if self.place.device.type == "cuda" and not number_2AB.is_cuda:
            number_2AB = number_2AB.pin_memory()
        self.number_2AB.copy_(number_2AB, non_blocking=True)
        if self.kept is None:
            for part, batch in enumerate(batches):
                self.image_ABCHW[part].copy_(batch.image_BCHW, non_blocking=True)

    def compute(self) -> None:
        """All of a step that happens on the device: nothing here waits for it, and nothing is allocated but by torch."""
        state, recipe = self.state, self.recipe
        state.optimizer.zero_grad(set_to_none=True)
        buffers = changing_buffers(state.module)
        before = copies(buffers)
        parts = [self.part_gradients(part) for part in range(recipe.accumulate)]
        values = parts[0] if len(parts) == 1 else {name: sum(part[name] for part in parts) for name in parts[0]}
        values["gradient_norm"], shorten = self.total_norm()
        for name in (*values, "nonfinite"):
            if name not in self.sums:
                self.sums[name] = torch.zeros((), device=self.place.device)
        groups = state.optimizer.param_groups
        rates, scales = [group["lr"] for group in groups], [float(group["scale"]) for group in groups]
        finite = self.judged(values, self.sums, self.in_a_row, self.most_in_a_row, self.skips, self.rate, rates, scales)
        if buffers:
            self.kept_where(finite, buffers, before)
        self.updated(finite, shorten)

    def total_norm(self) -> tuple[Tensor, Tensor | None]:
        """The norm of all gradients, and what the update multiplies them by: None where they are as they should be."""
        update, clip = self.update_at_once, self.recipe.clip
        if update is None:
            return total_norm(self.state.optimizer, clip), None
        if not torch.cuda.is_current_stream_capturing():
            update.locate()
        norm = update.norm()
        return norm, None if clip is None else (clip / (norm + 1e-6)).clamp(max=1.0)

    def part_gradients(self, part: int) -> dict[str, Tensor]:
        """Adds the gradients of one batch and returns its share of the loss and of each term."""
        index_B, label_B = self.number_2AB[:, part].unbind()
        key = torch.stack([self.key[0], self.key[1] + part]) if part else self.key
        with torch.no_grad():
            image_BCHW, target_BC, draws_RB = self.prepared(self.image_ABCHW[part], index_B, label_B, key)
        answers = self.answered(image_BCHW, index_B)
        loss, terms = self.terms(image_BCHW, target_BC, label_B, index_B, draws_RB, answers)
        loss.backward()
        return {name: value.detach() for name, value in terms.items()} | {"loss": loss.detach()}

    def answered(self, image_BCHW: Tensor, index_B: Tensor) -> Mapping[str, Tensor] | None:
        """What the teacher says, if there is one."""
        if self.filed is not None:
            return self.filed(index_B)
        return None if self.answers is None else self.answers(image_BCHW)

    @torch.no_grad()
    def updated(self, finite: Tensor, shorten: Tensor | None) -> None:
        state, share, update = self.state, self.share * finite, self.update_at_once
        if update is None:
            state.optimizer.found_inf = self.skips  # type: ignore[attr-defined]  # fused optimizers skip by it
            state.optimizer.step()
        else:
            update.take(self.skips, shorten, share)
        if state.average is not None:
            state.average.move(state.module, share, set() if update is None else update.averaged_names)

    def taken(self) -> dict[str, float]:
        names = list(self.sums)
        values = dict(zip(names, (torch.stack(list(self.sums.values())) / self.count).tolist(), strict=True))
        values["nonfinite"] = round(values["nonfinite"] * self.count)
        for value in self.sums.values():
            value.zero_()
        self.count = 0
        return values

    def begin(self) -> None:
        """Capture the step: compiled where that pays, as it is where the compiler fails, not at all where the capture does."""
        self.tried = True
        if self.teacher is not None and self.filed is None:
            quicken(self.teacher, self.recipe.batch)
        before = self.snapshot()
        side = torch.cuda.Stream(self.place.device)  # of all attempts: gradients gather on the one where they did at first
        plain = self.prepared, self.terms, self.answers, self.judged, self.kept_where
        reasons: list[str] = []
        for options in compiled.OPTIONS if self.clock.total >= compiled.FROM else ():
            try:
                with interruptible(), torch._dynamo.config.patch(recompile_limit=compiled.VARIANTS):
                    self.compile(options)
                    self.capture(before, side)
                compiled.uncompile_layers(self.state.module)  # evaluation has other shapes
                return
            except Exception as error:  # a compiler can fail in any way, and training must go on
                reasons = [] if isinstance(error, OwnDraws) else [f"torch.compile failed ({reason(error)})"]
                self.prepared, self.terms, self.answers, self.judged, self.kept_where = plain
                self.update_at_once = None
                compiled.uncompile_layers(self.state.module)
                compiled.forget(self.teacher)
                end_capture(self.place.device)
                if not compiled.failed_by(error):  # no option's fault
                    break
        try:
            with interruptible():
                self.capture(before, side)
        except Exception as error:  # as can a capture, in what a model of the user's does
            reasons.append(f"the step cannot be captured as a CUDA graph ({reason(error)})")
            end_capture(self.place.device)
            self.graph, self.update_at_once = None, None
            self.restore(before)
        if reasons:
            self.notes.append(f"slower than it could be: {'; '.join(reasons)}")

    def compile(self, options: compiled.Options) -> None:
        """All of the step but the update, which libraries have kernels for, or we."""
        self.prepared = compiled.compiled(self.prepared, options, whole=True)
        if has_binary_maps(self.state.module):  # a whole one takes minutes: each map is a dozen operations
            compiled.compile_layers(self.state.module, options)
        else:
            self.terms = compiled.compiled(self.terms, options, whole=False)
        self.judged = compiled.compiled(self.judged, options, whole=True)
        self.kept_where = compiled.compiled(self.kept_where, options, whole=True)
        if self.teacher is not None and self.filed is None:
            self.answers = compiled.compiled_teacher(self.teacher, options)

    def capture(self, before: dict[Any, Tensor], side: torch.cuda.Stream) -> None:
        """Warm up, put everything back as it was, and record the step."""
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self.compute()
                if self.update_at_once is None and fits(self.state.optimizer):
                    self.update_at_once = Update(self.state.optimizer, self.state.average, self.state.module)
        torch.cuda.current_stream().wait_stream(side)
        self.state.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):  # where gradients gathered while warming
            self.compute()
        if self.update_at_once is not None:
            self.update_at_once.locate()  # the gradients of the capture, which every replay writes
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


def end_capture(device: torch.device) -> None:
    """For torch's generator: one that failed leaves it believing that draws are recorded, and it refuses all others."""
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    generator.graphsafe_set_state(generator.clone_state())


def reason(error: Exception) -> str:
    """The kind of the error and its first line; the last one too where the first announces it, as of a compiler's process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    told = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {told[:300]}"
