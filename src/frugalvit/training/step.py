"""One optimizer step: a function of the weights, the batches and the step's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from frugalvit.data.batch import Batch
from frugalvit.data.batches import read
from frugalvit.data.encoded import EncodedBatches
from frugalvit.data.finish import normalize
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randomness import Stream, numpy_generator, torch_generator
from frugalvit.errors import SpecError
from frugalvit.training.devices import Place
from frugalvit.training.filed_answers import FiledAnswers
from frugalvit.training.optimizer import peak_lr
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Clock
from frugalvit.training.state import State
from frugalvit.training.teacher import Teacher

RESERVED = ("loss", "gradient_norm", "nonfinite", "step", "epoch", "lr", "bad_pictures", "advice")  # other values of a record
BEGINNINGS = ("time_", "val_")  # of the rest


class Step:
    """Takes steps and keeps sums on the device, so that nothing waits for it until a record is made."""

    def __init__(
        self,
        recipe: Recipe,
        state: State,
        place: Place,
        clock: Clock,
        preprocess: Preprocess,
        teacher: Teacher | None = None,
    ):
        self.recipe = recipe
        self.state = state
        self.place = place
        self.clock = clock
        self.preprocess = preprocess
        self.teacher = teacher
        self.filed: FiledAnswers | None = None  # the teacher's answers, where it need not be asked
        self.peak = peak_lr(recipe.optimizer, recipe.pictures)
        self.sums: dict[str, Tensor] = {}
        self.count = 0
        self.in_a_row = torch.zeros((), device=place.device)  # non-finite steps until now
        self.most_in_a_row = torch.zeros((), device=place.device)
        self.notes: list[str] = []  # what is worth telling, until somebody does

    def reader(self, batches: Dataset[Batch] | EncodedBatches, numbers: range, workers: int) -> Iterator[Batch]:
        """Those batches, as `take` wants them."""
        assert not isinstance(batches, EncodedBatches)
        return read(batches, numbers, workers)

    def take(self, batches: Sequence[Batch]) -> None:
        """Gradients of all batches, then one update; a step that is no number changes nothing and is counted."""
        state, recipe = self.state, self.recipe
        total = torch.zeros((), device=self.place.device)
        remembered = [(one, one.clone()) for one in changing_buffers(state.module)]
        for part, batch in enumerate(batches):
            loss = self.gradients(batch, state.step * recipe.accumulate + part)
            total = total + loss.detach()
        if state.scaler is not None:
            state.scaler.unscale_(state.optimizer)
        norm = total_norm(state.optimizer, recipe.clip)
        finite = torch.isfinite(total) & torch.isfinite(norm)
        for buffer, before in remembered:
            buffer.copy_(torch.where(finite, buffer, before))
        self.update(finite)
        self.in_a_row = torch.where(finite, torch.zeros_like(self.in_a_row), self.in_a_row + 1)
        self.most_in_a_row = torch.maximum(self.most_in_a_row, self.in_a_row)
        self.add("loss", total)
        self.add("gradient_norm", norm)
        self.add("nonfinite", (~finite).float())
        self.count += 1
        state.step += 1

    def gradients(self, batch: Batch, number: int) -> Tensor:
        """Adds the gradients of batch `number` and returns its share of the loss."""
        recipe, state, seed = self.recipe, self.state, self.recipe.seed
        batch = self.finished(batch, number)
        if self.filed is not None:
            batch = replace(batch, answers=self.filed(batch.index_B.to(self.place.device)))
        elif self.teacher is not None:  # it sees what the student sees, augmented and mixed
            batch = replace(batch, answers=self.teacher(batch.image_BCHW))
        draws = None
        if state.module.draws:
            draws = state.module.random_draws(
                len(batch.label_B), torch_generator(self.place.device, seed, number, Stream.DEPTH)
            )
        with self.place.autocast():
            outputs = state.module(batch.image_BCHW, draws)
            terms = state.objective(outputs, batch)
        refuse_terms(terms)
        for name, value in terms.items():
            self.add(name, value.detach() / recipe.accumulate)
        loss = torch.stack(list(terms.values())).sum() / recipe.accumulate
        (loss if state.scaler is None else state.scaler.scale(loss)).backward()
        return loss

    def finished(self, batch: Batch, number: int) -> Batch:
        """On the device: floats, erased, mixed."""
        recipe, device = self.recipe, self.place.device
        image_BCHW = normalize(batch.image_BCHW.to(device, non_blocking=True), self.preprocess.mean, self.preprocess.std)
        if recipe.data.erase is not None:
            image_BCHW = recipe.data.erase.erase(image_BCHW, torch_generator(device, recipe.seed, number, Stream.ERASE))
        batch = replace(batch, image_BCHW=image_BCHW, label_B=batch.label_B.to(device, non_blocking=True))
        assert recipe.model.classes is not None
        return recipe.data.mix.mix(batch, recipe.model.classes, 0.0, numpy_generator(recipe.seed, number, Stream.MIX))

    def update(self, finite: Tensor) -> None:
        state = self.state
        lr = self.recipe.schedule.lr(state.step, self.peak, self.clock)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        if state.scaler is not None:
            state.scaler.step(state.optimizer)
            state.scaler.update()
        else:
            state.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]  # fused optimizers skip by it
            state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        if state.average is not None:
            state.average.update(state.module, state.step, finite)

    def add(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()

    def taken(self) -> dict[str, float]:
        """The means since the last call, the only place where the host waits for the device; `nonfinite` is a count."""
        values = {name: value.item() / self.count for name, value in self.sums.items()}
        values["nonfinite"] = round(values["nonfinite"] * self.count)
        self.sums, self.count = {}, 0
        return values


def terms_of(
    module: nn.Module, objective: nn.Module, place: Place, accumulate: int
) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """What computes the loss and its terms, as shares of all batches of a step.

    No method of the step, which keeps it: each would keep the other, and a finished run its memory.
    """

    def terms_and_loss(
        image_BCHW: Tensor,
        target_BC: Tensor,
        label_B: Tensor,
        index_B: Tensor,
        draws_RB: Tensor | None,
        answers: Mapping[str, Tensor] | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with place.autocast():
            outputs = module(image_BCHW, draws_RB)
            terms = objective(outputs, Batch(image_BCHW, label_B, index_B, target_BC, answers))
        refuse_terms(terms)
        shares = {name: value / accumulate for name, value in terms.items()}
        return torch.stack(list(shares.values())).sum(), shares

    return terms_and_loss


def refuse_terms(terms: object) -> None:
    """What an objective of one's own may not return; a record has one value of a name."""
    if not isinstance(terms, Mapping):
        kind = type(terms).__name__
        raise SpecError(f"it returned {kind}. Return a dict of terms, for example {{'own': loss}}.", path="objective")
    if not terms:
        raise SpecError("it returned no term at all, so there is nothing to learn. Return one or more.", path="objective")
    for name, value in terms.items():
        if not isinstance(value, Tensor) or value.ndim:
            kind = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise SpecError(f"the term '{name}' is {kind}. Return scalar tensors, such as means.", path="objective")
        if name in RESERVED or name.startswith(BEGINNINGS):
            raise SpecError(f"a term is called '{name}', as another value of the log is. Use another name.", path="objective")


def changing_buffers(module: nn.Module) -> list[Tensor]:
    """What forward may change: the statistics of batch norms, for one. Buffers that are not saved are constants."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}  # tied ones have several names
    return [value for name, value in module.state_dict(keep_vars=True).items() if name not in parameters]


def total_norm(optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor:
    """The norm of all gradients together, which are shortened to `clip` where it is given."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    norm = torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
    if clip is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    return norm
