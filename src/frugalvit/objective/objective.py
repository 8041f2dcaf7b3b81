"""A sum of named terms, each reading a head of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError, at, suggestion
from frugalvit.objective.loss import CrossEntropy, Loss


@dataclass(frozen=True)
class Supervised:
    """A head learns the true labels."""

    head: str = "class"
    loss: Loss = CrossEntropy()
    weight: float = 1.0

    @property
    def name(self) -> str:
        return f"supervised_{self.head}"

    def build(self, heads: tuple[str, ...], counts_C: Tensor) -> HeadLoss:
        if self.head not in heads:
            with at("head"):
                raise SpecError(f"the model has no head '{self.head}'. {suggestion(self.head, heads)}")
        return HeadLoss(self.head, self.loss.build(counts_C), self.weight)


class HeadLoss(nn.Module):
    def __init__(self, head: str, loss: nn.Module, weight: float):
        super().__init__()
        self.head = head
        self.loss = loss
        self.weight = weight

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return self.weight * self.loss(outputs[self.head], batch)


Term = Supervised  # what may stand in `Objective.terms`


@dataclass(frozen=True)
class Objective:
    """The loss is the sum of its terms."""

    terms: tuple[Term, ...] = (Supervised(),)

    def build(self, heads: tuple[str, ...], counts_C: Tensor) -> TermSum:
        """`heads` are the model's; `counts_C` says how many training pictures each class has."""
        names = [term.name for term in self.terms]
        if not names or len(set(names)) < len(names):
            raise SpecError(f"terms {names}. Give at least one, each of another kind or head.", path="objective.terms")
        built = {}
        for index, term in enumerate(self.terms):
            with at(f"objective.terms[{index}]"):
                built[term.name] = term.build(heads, counts_C)
        return TermSum(built)


class TermSum(nn.Module):
    def __init__(self, terms: Mapping[str, nn.Module]):
        super().__init__()
        self.terms = nn.ModuleDict(terms)

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Each weighted term by its name; their sum is the loss."""
        return {name: term(outputs, batch) for name, term in self.terms.items()}
