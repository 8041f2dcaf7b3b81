"""Every part in every slot, alone and in pairs, with and without a distillation token: built, stepped, counted, encoded."""

from __future__ import annotations

import itertools
import json
import typing
from dataclasses import replace

import pytest
import torch

from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn.model import Model
from frugalvit.slots import choices, members, slots
from frugalvit.spec import decode, encode, swap
from frugalvit.zoo.change import with_distillation, with_lsa
from frugalvit.zoo.deit import deit

CHANGES = {"distillation": with_distillation, "lsa": with_lsa}
SMALL = dict(dim=12, heads=3, depth=2, patch=4, image=(20, 28), classes=9)


# parts that cannot stand here in a DeiT with two summary tokens, and say so: their places are in test_matrix.py
REFUSED = {
    "before": {"GatePosition", "RelativeBias"},
    "after": {"GatePosition", "RelativeBias", "HideSelf"},
    "scope": {"SummaryOnly", "PatchesOnly"},
    "weight": {"Identity"},
    "bias": {"Identity"},
    "init": {"Identity"},
    "Tokens.linear": {"Binary"},  # 9 classes have no shortcut from 12 channels
}


def filled(owner: type, field: str) -> list[tuple[type, str, object]]:
    """Each built-in part that needs no arguments, for one field of a spec class."""
    annotation = slots(owner)[field]
    many = typing.get_origin(annotation) is tuple
    parts: list[tuple[type, str, object]] = []
    for kind in choices(typing.get_args(annotation)[0] if many else annotation).values():
        try:
            parts.append((owner, field, (kind(),) if many else kind()))
        except TypeError:
            continue  # needs sizes of its own: the models have it already
    return parts


def all_parts() -> list[tuple[type, str, object]]:
    from frugalvit.nn.attention import Attention
    from frugalvit.nn.block import Block
    from frugalvit.nn.layers import AddPositions, Join
    from frugalvit.nn.linear import Dense
    from frugalvit.nn.mlp import Mlp
    from frugalvit.nn.readout import Tokens
    from frugalvit.nn.tokenizer import Patches

    owners = (Attention, Block, AddPositions, Join, Dense, Mlp, Tokens, Patches)
    return [part for owner in owners for field in slots(owner) for part in filled(owner, field)]


def placed(model: Model, owner: type, field: str, part: object) -> Model:
    return swap(model, owner, lambda node: replace(node, **{field: part}))


def works(model: Model) -> None:
    assert decode(json.loads(json.dumps(encode(model))), Model) == model
    module = model.build(seed=0)
    outputs = module(torch.randn(2, 3, 20, 28), module.random_draws(2) if module.draws else None)
    sum(logits.square().sum() for logits in outputs.values()).backward()
    assert all(logits.isfinite().all() for logits in outputs.values())
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in module.parameters())
    assert cost(model).parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
@pytest.mark.parametrize("names", [c for n in range(3) for c in itertools.permutations(CHANGES, n)], ids="+".join)
def test_changes_combine_in_any_order(names: tuple[str, ...], drop_path: float) -> None:
    model = deit(**SMALL, drop_path=drop_path)
    for name in names:
        model = CHANGES[name](model)
    works(model)


@pytest.mark.parametrize(("owner", "field", "part"), all_parts(), ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_part_works_in_its_slot(owner: type, field: str, part: object) -> None:
    model = with_distillation(placed(deit(**SMALL), owner, field, part))
    name = type(part[0] if isinstance(part, tuple) else part).__name__
    if name in (*REFUSED.get(field, ()), *REFUSED.get(f"{owner.__name__}.{field}", ())):
        with pytest.raises(SpecError, match=r"^model\.[^ ]+: .*\."):
            model.build()
    else:
        works(model)


@torch.inference_mode()
def test_every_pair_of_parts_works_or_says_why_not() -> None:
    parts = all_parts()
    assert len(parts) > 40
    base = deit(**SMALL | {"depth": 1})
    for one, two in itertools.combinations(parts, 2):
        if one[:2] == two[:2]:
            continue
        model = placed(placed(base, *one), *two)
        try:
            module = model.build(seed=0)
        except SpecError as error:
            assert error.path, error
            continue
        assert module(torch.zeros(1, 3, 20, 28))["class"].shape == (1, 9)


def test_every_slot_says_what_may_stand_in_it() -> None:
    for annotation in slots(Model).values():
        assert members(annotation)
