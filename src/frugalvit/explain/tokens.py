"""How alike the class and the distillation token are, from the learned vectors to the heads (Touvron et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from frugalvit.errors import DataError, SpecError
from frugalvit.nn.layers import SummaryTokens
from frugalvit.nn.network import Network
from frugalvit.nn.shape import Shape

LEARNED, READ = "learned", "readout"  # the parameters themselves, without positions; the normalized tokens that heads read


@dataclass(frozen=True)
class Cosine:
    """The cosine of two tokens at one place: its mean over pictures and their sample standard deviation."""

    place: str
    mean: float
    sd: float | None  # the learned vectors are the same for all pictures

    def text(self, digits: int = 3) -> str:
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ± {self.sd:.{digits}f}")


@dataclass(frozen=True)
class TokenCosines:
    """The cosine of a model's two summary tokens, place by place from the input to the heads."""

    tokens: tuple[str, str]
    places: tuple[Cosine, ...]
    pictures: int

    def rows(self) -> list[dict[str, str]]:
        """A row a place, for `report.table`."""
        return [{"place": one.place, f"cos({', '.join(self.tokens)})": one.text()} for one in self.places]

    def note(self) -> str:
        """What belongs under the table."""
        return f"Mean ± standard deviation over n = {self.pictures} pictures."

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"tokens": list(self.tokens), "pictures": self.pictures, "places": [asdict(one) for one in self.places]}


def summary_pair(module: Network) -> tuple[str, str]:
    """The names of a model's two summary tokens, or an error that says why there is no pair."""
    last = module.shapes[-1] if module.shapes else None
    if not isinstance(last, Shape):
        raise SpecError(f"a {type(module.spec).__name__} has no summary tokens to compare.", path="model")
    if len(last.summary) != 2:
        raise SpecError(
            f"its summary tokens are {', '.join(last.summary) or 'none'}, and a cosine takes two. Distilled models have class "
            "and distill: with_distillation(...) gives a model both.",
            path="model",
        )
    return last.summary[0], last.summary[1]


def token_taps(module: Network) -> tuple[str, ...]:
    """The taps of every block that leaves both tokens behind: `model.build(taps=token_taps(module))`."""
    pair = summary_pair(module)
    blocks = [index for index, layer in enumerate(module.layers) if hasattr(layer, "attention")]
    return tuple(f"tokens[{number}]" for number, index in enumerate(blocks) if set(pair) <= set(summary(module, index)))


def summary(module: Network, layer: int) -> tuple[str, ...]:
    shape = module.shapes[layer + 1]
    return shape.summary if isinstance(shape, Shape) else ()


@torch.inference_mode()
def token_cosines(module: Network, images: Iterable[Tensor]) -> TokenCosines:
    """The cosines over batches image_BCHW as the model takes them, of a module built with `token_taps`.

    DeiT's paper: 0.06 between the learned vectors, growing from layer to layer, 0.93 at the end.
    """
    pair = summary_pair(module)
    places = {
        tap: [summary(module, layer).index(name) for name in pair]
        for layer, kinds in sorted(module.taps.items())
        for tap in kinds.get("tokens", ())
        if set(pair) <= set(summary(module, layer))
    }
    if not places:
        raise SpecError("no block shows its tokens. Build the model with taps=token_taps(module).", path="taps")
    found: dict[str, list[Tensor]] = {tap: [] for tap in places}
    with evaluating(module):
        for image_BCHW in images:
            x_BND, outputs = module.run(image_BCHW, None)
            for tap, (first, second) in places.items():
                found[tap].append(cosine(outputs[tap][:, first], outputs[tap][:, second]))
            read = module.readout.features(x_BND) if hasattr(module.readout, "features") else {}  # type: ignore[operator]
            if set(pair) <= set(read):
                found.setdefault(READ, []).append(cosine(read[pair[0]], read[pair[1]]))
    cosines = {place: torch.cat(parts) for place, parts in found.items() if parts}
    if not cosines:
        raise DataError("there is no picture to look at.")
    pictures = len(next(iter(cosines.values())))
    means = [
        Cosine(place, cosine_B.mean().item(), cosine_B.std().item() if pictures > 1 else None)
        for place, cosine_B in cosines.items()
    ]
    return TokenCosines(pair, (*learned(module, pair), *means), pictures)


def learned(module: Network, pair: tuple[str, str]) -> Iterator[Cosine]:
    """The cosine of the vectors that join, where the layers show them and they are of one width."""
    joins = [layer.tokens for layer in module.layers if isinstance(layer, SummaryTokens)]
    tokens = {name: token.flatten() for join in joins for name, token in join.items()}
    if set(pair) <= set(tokens) and tokens[pair[0]].shape == tokens[pair[1]].shape:
        yield Cosine(LEARNED, cosine(tokens[pair[0]], tokens[pair[1]]).item(), None)


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Over the last axis, in float64 on the host: not every device has that type."""
    return cosine_similarity(first.detach().cpu().double(), second.detach().cpu().double(), dim=-1)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
