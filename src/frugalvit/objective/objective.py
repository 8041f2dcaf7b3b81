"""A sum of named terms, each reading a head of the model, or what lies inside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError, at, suggestion
from frugalvit.objective.distill import Distilled, Sizes, refuse_weight
from frugalvit.objective.loss import CrossEntropy, Loss
from frugalvit.objective.match import MatchedAttention, MatchedTokens


@dataclass(frozen=True)
class Supervised:
    """A head learns the true labels."""

    head: str = "class"
    loss: Loss = CrossEntropy()
    weight: float = 1.0

    def __post_init__(self) -> None:
        refuse_weight(self.weight)

    @property
    def name(self) -> str:
        return f"supervised_{self.head}"

    def refuse_other_heads(self, heads: tuple[str, ...]) -> None:
        if self.head not in heads:
            with at("head"):
                raise SpecError(f"the model has no head '{self.head}'. {suggestion(self.head, heads)}")

    def build(self, heads: tuple[str, ...], counts_C: Tensor) -> HeadLoss:
        self.refuse_other_heads(heads)
        return HeadLoss(self.head, self.loss.build(counts_C), self.weight)


class HeadLoss(nn.Module):
    def __init__(self, head: str, loss: nn.Module, weight: float):
        super().__init__()
        self.head = head
        self.loss = loss
        self.weight = weight

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return self.weight * self.loss(outputs[self.head], batch)


Taught = Distilled | MatchedTokens | MatchedAttention  # learn from a teacher
Term = Supervised | Taught  # what may stand in `Objective.terms`


@dataclass(frozen=True)
class Objective:
    """The loss is the sum of its terms."""

    terms: tuple[Term, ...] = (Supervised(),)

    @property
    def names(self) -> tuple[str, ...]:
        """The terms' names, which records and saved states carry: with its kind only where a head is distilled twice."""
        short = [term.name for term in self.terms]
        return tuple(
            term.long_name if isinstance(term, Distilled) and short.count(term.name) > 1 else term.name for term in self.terms
        )

    @property
    def needs_teacher(self) -> bool:
        """Whether a term learns from a teacher."""
        return bool(self.taught)

    @property
    def student_taps(self) -> tuple[str, ...]:
        """What the model is to show beside its heads: `build(taps=...)`."""
        return tuple(dict.fromkeys(tap for term in self.taught for tap in term.student_taps))

    @property
    def teacher_taps(self) -> tuple[str, ...]:
        """What the teacher is to show beside its logits."""
        return tuple(dict.fromkeys(tap for term in self.taught for tap in term.teacher_taps))

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that terms read."""
        return tuple(dict.fromkeys(term.head for term in self.terms if isinstance(term, (Supervised, Distilled))))

    def refuse_other_heads(self, heads: tuple[str, ...]) -> None:
        """Raise for a term whose head the model does not have: known before anything is built."""
        for place, term in enumerate(self.terms):
            if isinstance(term, (Supervised, Distilled)):
                with at(f"terms[{place}]"):
                    term.refuse_other_heads(heads)

    @property
    def taught(self) -> tuple[Taught, ...]:
        return tuple(term for term in self.terms if not isinstance(term, Supervised))

    def build(
        self, heads: tuple[str, ...], counts_C: Tensor, shapes: Sizes | None = None, answers: Sizes | None = None
    ) -> TermSum:
        """`heads` are the model's; `counts_C` says how many training pictures each class has.

        For terms that learn from a teacher: `shapes` of the model's outputs (by default its heads) and of the teacher's
        `answers`, without the batch axis.
        """
        names = self.names
        if not names or len(set(names)) < len(names):
            raise SpecError(f"terms {list(names)}. Give at least one, each of another kind or head.", path="objective.terms")
        shapes = dict.fromkeys(heads, (len(counts_C),)) if shapes is None else shapes
        built: dict[str, nn.Module] = {}
        for index, (name, term) in enumerate(zip(names, self.terms, strict=True)):
            with at(f"objective.terms[{index}]"):
                if isinstance(term, Supervised):
                    built[name] = term.build(heads, counts_C)
                elif answers is None:
                    raise SpecError(
                        f"{type(term).__name__} learns from a teacher, and there is none. Name one "
                        "(teaching=Teaching(RunTeacher('runs/teacher'))), give one (train(..., teacher=module)), or leave the "
                        "term out."
                    )
                else:
                    built[name] = term.build(heads, counts_C, shapes, answers)
        return TermSum(built)


class TermSum(nn.Module):
    def __init__(self, terms: Mapping[str, nn.Module]):
        super().__init__()
        self.terms = nn.ModuleDict(terms)

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Each weighted term by its name; their sum is the loss."""
        return {name: term(outputs, batch) for name, term in self.terms.items()}
