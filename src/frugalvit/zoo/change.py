"""Functions from model to model: what every architecture can be given."""

from __future__ import annotations

from dataclasses import replace

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.layers import Join
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.nn.score import HideSelf, LearnedScale
from frugalvit.nn.shape import Size, pair
from frugalvit.spec import check, swap


def with_distillation(model: Model) -> Model:
    """A token that learns from a teacher: it joins behind the class token and has a head of its own (DeiT, §4)."""
    places = [join for join in model.layers if isinstance(join, Join) and "class" in join.names]
    if not places or not isinstance(model.readout, Tokens):
        raise SpecError("a distillation token joins where the class token does, and this model has none.", path="model.layers")
    if "distill" in places[0].names:
        raise SpecError("the model has a distillation token already.", path="model.layers")
    layers = swap(model.layers, Join, lambda join: replace(join, names=behind_class(join.names)))
    return replace(model, layers=layers, readout=replace(model.readout, names=behind_class(model.readout.names)))


def behind_class(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for name in names for one in ((name, "distill") if name == "class" else (name,)))


def with_lsa(model: Model) -> Model:
    """Locality self-attention (Lee et al. 2021, §3.2): a learned temperature per head, and no token sees itself."""
    if not isinstance(model, Model):
        raise SpecError(f"with_lsa changes the description of a model, not {type(model).__name__}. Give frugalvit.model(...).")
    return swap(model, Attention, localized)


def localized(attention: Attention) -> Attention:
    before = (*(term for term in attention.before if term != HideSelf()), HideSelf())
    return replace(attention, scale=LearnedScale(), before=before)


def resized(model: Model, image: Size) -> Model:
    """The same model for images of another size. Weights follow when they are loaded: their positions are resampled."""
    check(image, Size)
    height, width = pair(image)
    return replace(model, image=replace(model.image, height=height, width=width))


def with_classes(model: Model, classes: int) -> Model:
    """The same model for another number of classes."""
    return replace(model, classes=classes)
