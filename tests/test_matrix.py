"""Every pair of the papers' changes on every family: it builds, takes a training step and survives JSON, or says why not.

FRUGALVIT_WRITE_DOCS=1 pytest -n 0 tests/test_matrix.py    writes docs/results/combinations.md anew
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from frugalvit.errors import SpecError
from frugalvit.nn.model import Model
from frugalvit.spec import decode, encode
from frugalvit.zoo.binaryvit import binaryvit
from frugalvit.zoo.cait import cait
from frugalvit.zoo.change import (
    binarized,
    with_binary_linears,
    with_class_attention,
    with_distillation,
    with_gpsa,
    with_layer_scale,
    with_lsa,
    with_mean_readout,
    with_pooling,
    with_spt,
    with_talking_heads,
    with_windows,
)
from frugalvit.zoo.convit import convit
from frugalvit.zoo.deit import deit
from frugalvit.zoo.hybrid import hybrid
from frugalvit.zoo.pit import pit
from frugalvit.zoo.small import small_t2t
from frugalvit.zoo.swin import swin
from frugalvit.zoo.vit import vit

PAGE = Path(__file__).parents[1] / "docs" / "results" / "combinations.md"

CHANGES: dict[str, Callable[[Model], Model]] = {
    "SPT": with_spt,
    "LSA": with_lsa,
    "talking heads": with_talking_heads,
    "GPSA": with_gpsa,
    "LayerScale": with_layer_scale,
    "class attention": with_class_attention,
    "distillation": with_distillation,
    "mean": with_mean_readout,
    "windows": functools.partial(with_windows, side=4),
    "pooling": with_pooling,
}
ONE_BIT: dict[str, Callable[[Model], Model]] = {"binary linears": with_binary_linears, "binarized": binarized}
ALL_CHANGES = CHANGES | ONE_BIT
SMALL = dict(image=32, classes=5, drop_path=0.1)
FAMILIES = {
    "ViT": vit(dim=24, heads=4, depth=4, patch=4, **SMALL),
    "DeiT": deit(dim=24, heads=4, depth=4, patch=4, **SMALL),
    "CaiT": cait(dim=24, heads=4, depth=4, patch=4, layer_scale=0.1, **SMALL),
    "ConViT": convit(dim=24, heads=4, depth=4, local=2, patch=4, **SMALL),
    "PiT": pit(dim=24, heads=(2, 4), depths=(2, 2), patch=4, stride=4, **SMALL),
    "Swin": swin(dim=24, heads=(2, 4), depths=(2, 2), patch=4, window=4, **SMALL),
    "T2T": small_t2t(dim=24, width=6, heads=4, depth=4, **SMALL),
    "hybrid": hybrid(dim=24, heads=4, depth=4, depths=(), patch=2, image=64, classes=5, drop_path=0.1),
}
BINARY = binaryvit(dim=24, heads=(2, 4), depths=(2, 2), ratios=(4, 2), reductions=(2, 1), patch=4, **SMALL)
ALL_FAMILIES = FAMILIES | {"BinaryViT": BINARY}


@functools.cache  # many orders of changes end in the same model
def trained(model: Model) -> None:
    """One step of training, after a round trip through JSON."""
    again = decode(json.loads(json.dumps(encode(model))), Model)
    assert again == model
    module = again.build(seed=0).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    image_BCHW = torch.randn(2, 3, model.image.height, model.image.width, generator=torch.Generator().manual_seed(1))
    outputs = module(image_BCHW, module.random_draws(2))
    assert tuple(outputs) == model.heads
    losses = [torch.nn.functional.cross_entropy(logits_BC, torch.tensor([1, 3])) for logits_BC in outputs.values()]
    torch.stack(losses).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def outcome(model: Model, first: str, second: str) -> str:
    """Empty where both changes work on the model, in this order; else the reason."""
    try:
        changed = ALL_CHANGES[first](model)
        trained(changed if first == second else ALL_CHANGES[second](changed))
    except SpecError as error:
        assert error.path, error
        return str(error).split(": ", 1)[1]
    return ""


def table(family: str, reasons: list[str]) -> list[str]:
    """A row for the change that comes first, a column for the second; a number where they are refused."""
    lines = [f"## {family}", "", f"| first, then | {' | '.join(ALL_CHANGES)} |", "|---|" + ":-:|" * len(ALL_CHANGES)]
    for first in ALL_CHANGES:
        cells = []
        for second in ALL_CHANGES:
            reason = outcome(ALL_FAMILIES[family], first, second)
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(str(reasons.index(reason) + 1) if reason else "yes")
        lines.append(f"| {first} | {' | '.join(cells)} |")
    return [*lines, ""]


def page() -> str:
    reasons: list[str] = []
    tables = [line for family in ALL_FAMILIES for line in table(family, reasons)]
    numbered = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    head = [
        "# What combines with what",
        "",
        "Two changes of `frugalvit.zoo.change` on a small model of each family (grid 8 x 8, windows of 4 x 4): `yes` where the "
        "result builds, takes a training step with finite gradients everywhere, and survives JSON; a number where it is "
        "refused, with the reason below. On the diagonal, the change alone. What a family has already is left as it is. "
        "Written and checked by `tests/test_matrix.py`.",
        "",
    ]
    return "\n".join([*head, *tables, "## Why not", "", *numbered, ""])


def test_the_page_of_combinations_says_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    text = page()
    if os.environ.get("FRUGALVIT_WRITE_DOCS"):
        PAGE.write_text(text, encoding="utf-8")
    with capsys.disabled():
        print("\n" + text)
    assert PAGE.read_text(encoding="utf-8") == text


def test_most_pairs_work() -> None:
    lines = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "first, then" not in line
    ]
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines]
    assert [len(row) for row in rows] == [len(ALL_CHANGES)] * len(ALL_FAMILIES) * len(ALL_CHANGES)
    cells = [cell for row in rows for cell in row]
    assert cells.count("yes") > 0.7 * len(cells)
    full = [cell for line, row in zip(lines, rows, strict=True) for cell in row[:-2] if not line.startswith("| bina")]
    full = full[: len(FAMILIES) * len(CHANGES) ** 2]
    assert full.count("yes") > 0.8 * len(full)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_the_order_of_changes_does_not_matter_where_both_orders_work(family: str) -> None:
    model = ALL_FAMILIES[family]
    allowed = {"windows", "pooling", "class attention", "mean", "LayerScale"}  # which look at what is there already
    for (first, one), (second, two) in itertools.combinations(ALL_CHANGES.items(), 2):
        if {first, second} & allowed:
            continue
        try:
            forth, back = two(one(model)), one(two(model))
        except SpecError:
            continue
        assert forth == back, (first, second)
