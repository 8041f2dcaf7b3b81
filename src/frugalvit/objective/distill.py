"""Heads that learn from a teacher: its labels, or its probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError, at, suggestion

Sizes = Mapping[str, tuple[int, ...]]  # of outputs or answers, without the batch axis


@dataclass(frozen=True)
class HardLabel:
    """−log softmax(z_s)_t with t = argmax z_t, mean over the batch (DeiT, eq. 3): never smoothed, never mixed."""

    def build(self) -> TeacherLabels:
        return TeacherLabels()


class TeacherLabels(nn.Module):
    def forward(self, logits_BC: Tensor, teacher_BC: Tensor) -> Tensor:
        return cross_entropy(logits_BC.float(), teacher_BC.argmax(-1))


@dataclass(frozen=True)
class SoftKl:
    """τ² Σ_k p_k (log p_k − log q_k), p = softmax(z_t / τ), q = softmax(z_s / τ) (Hinton et al. 2015; DeiT, eq. 2).

    Divided by the batch, or as in DeiT's released code by batch × classes: for 1000 classes, a term 1000 times smaller.
    """

    temperature: float
    reduction: Literal["batchmean", "released"]

    def __post_init__(self) -> None:
        if isinstance(self.temperature, (int, float)) and not self.temperature > 0:
            raise SpecError(f"a temperature of {self.temperature}. Use a number above 0; DeiT has 3.", path="temperature")

    def build(self) -> Divergence:
        return Divergence(self.temperature, self.reduction)


class Divergence(nn.Module):
    def __init__(self, temperature: float, reduction: Literal["batchmean", "released"]):
        super().__init__()
        self.temperature = temperature
        self.reduction = reduction

    def forward(self, logits_BC: Tensor, teacher_BC: Tensor) -> Tensor:
        log_q_BC = log_softmax(logits_BC.float() / self.temperature, -1)
        log_p_BC = log_softmax(teacher_BC.float() / self.temperature, -1)
        # Deviation: DeiT's eq. 2 names the student first; its code computes KL(teacher || student), as Hinton et al. do
        total = kl_div(log_q_BC, log_p_BC, reduction="sum", log_target=True)
        return self.temperature**2 * total / (len(logits_BC) if self.reduction == "batchmean" else logits_BC.numel())


@dataclass(frozen=True)
class LogitCrossEntropy:
    """−Σ_k softmax(z_t)_k log softmax(z_s)_k, mean over the batch: all that BinaryViT learns from (its released code)."""

    def build(self) -> TeacherProbabilities:
        return TeacherProbabilities()


class TeacherProbabilities(nn.Module):
    def forward(self, logits_BC: Tensor, teacher_BC: Tensor) -> Tensor:
        return -(softmax(teacher_BC.float(), -1) * log_softmax(logits_BC.float(), -1)).sum(-1).mean()


How = HardLabel | SoftKl | LogitCrossEntropy  # what may stand in `Distilled.how`


@dataclass(frozen=True)
class Distilled:
    """A head learns what the teacher says of the same pictures. With α as `weight`, labels weigh 1 − α in DeiT."""

    head: str = "distill"
    how: How = HardLabel()
    weight: float = 0.5

    def __post_init__(self) -> None:
        refuse_weight(self.weight)

    @property
    def name(self) -> str:
        return f"distilled_{self.head}"

    @property
    def long_name(self) -> str:
        """Tells terms on one head apart: `distilled_class_soft_kl`."""
        kind = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(self.how).__name__)
        return self.name + kind

    @property
    def student_taps(self) -> tuple[str, ...]:
        return ()

    @property
    def teacher_taps(self) -> tuple[str, ...]:
        return ()

    def refuse_other_heads(self, heads: tuple[str, ...]) -> None:
        if self.head not in heads:
            with at("head"):
                raise SpecError(
                    f"the model has no head '{self.head}'. {suggestion(self.head, heads)} "
                    "with_distillation(...) gives a model its distill head; any other head can learn from a teacher too."
                )

    def build(self, heads: tuple[str, ...], counts_C: Tensor, shapes: Sizes, answers: Sizes) -> TaughtHead:
        self.refuse_other_heads(heads)
        with at("head"):
            ours, theirs = size_of("student", self.head, shapes), size_of("teacher", "logits", answers)
            if ours != theirs:
                raise SpecError(
                    f"it tells {ours[-1]} classes apart, and the teacher {theirs[-1]}. "
                    "Use a teacher of the same classes, or match its tokens (MatchedTokens)."
                )
        return TaughtHead(self.head, self.how.build(), self.weight)


class TaughtHead(nn.Module):
    def __init__(self, head: str, how: nn.Module, weight: float):
        super().__init__()
        self.head = head
        self.how = how
        self.weight = weight

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return self.weight * self.how(outputs[self.head], answer(batch, "logits"))


def answer(batch: Batch, name: str) -> Tensor:
    """What the teacher said, as a constant."""
    if batch.answers is None or name not in batch.answers:
        known = suggestion(name, batch.answers or ())
        raise SpecError(f"the batch holds no '{name}' of a teacher. {known}", path="batch.answers")
    return batch.answers[name].detach()


def size_of(whose: str, name: str, sizes: Sizes) -> tuple[int, ...]:
    if name not in sizes:
        raise SpecError(f"the {whose} shows no '{name}'. {suggestion(name, sizes)}")
    return tuple(sizes[name])


def refuse_weight(weight: float) -> None:
    if isinstance(weight, (int, float)) and not weight > 0:
        raise SpecError(f"a weight of {weight}. Use a number above 0, or leave the term out.", path="weight")
