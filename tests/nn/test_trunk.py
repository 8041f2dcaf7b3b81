"""Blocks taken together compute what they compute one after the other; which may be taken so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from frugalvit.assign import override
from frugalvit.nn import trunk
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block
from frugalvit.nn.fixed_depth import Kept
from frugalvit.nn.init import Normal
from frugalvit.nn.linear import Dense
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.residual import FixedCountDepth, LayerScale, Plain
from frugalvit.nn.scope import Windows
from frugalvit.nn.shape import Shape
from frugalvit.zoo.deit import deit

WIDE = Dense(Normal(0.3), Normal(0.3))
SHAPE = Shape(24, 3, 4, ("class",))
BATCH = 7
SUMS = {
    "nothing drops": (Plain(), Plain(), Plain()),
    "samples drop": (Plain(), Plain(0.3), Plain(0.6)),
    "a count drops": (FixedCountDepth(Plain(0.3), 0.2), FixedCountDepth(Plain(0.4), 0.9), FixedCountDepth(Plain(0.6), 0.5)),
    "first none, then a count": (FixedCountDepth(Plain()), FixedCountDepth(Plain(0.5), 0.6), FixedCountDepth(Plain(0.2), 0.3)),
}


def definition(
    x_BND: Tensor, branch_KND: Tensor, bias_D: Tensor, factor_B: Tensor, norm: nn.LayerNorm, come: Kept, go: Kept
) -> tuple[Tensor, Tensor]:
    some_KND = come.some(x_BND) + come.some(factor_B)[:, None, None] * (branch_KND + bias_D)
    new_BND = come.back(some_KND, x_BND)
    return new_BND, norm(go.some(new_BND))


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("drawn", [True, False], ids=["draws", "no draws"])
def test_blocks_together_are_blocks_in_a_row(name: str, drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk, "joined", definition)
    torch.manual_seed(0)
    spec = Block(Attention(3, linear=WIDE), Mlp(2.0, linear=WIDE))
    blocks = nn.ModuleList(replace(spec, residual=one).build(SHAPE)[0] for one in SUMS[name]).double()
    assert all(trunk.is_plain(block) for block in blocks)
    x_BND = torch.randn(BATCH, SHAPE.length, SHAPE.dim, dtype=torch.float64)
    draws = [torch.rand(block.draws, BATCH) if drawn and block.draws else None for block in blocks]
    results = []
    for together in (True, False):
        given_BND = x_BND.clone().requires_grad_()
        y_BND = given_BND
        if together:
            y_BND = trunk.through(blocks, y_BND, draws)
        else:
            for block, rows in zip(blocks, draws, strict=True):
                y_BND = block(y_BND, rows)
        blocks.zero_grad()
        (y_BND * torch.arange(y_BND.numel()).view_as(y_BND).cos()).sum().backward()
        results.append([y_BND, given_BND.grad, *(one.grad.clone() for one in blocks.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)  # factors are fp32


@pytest.mark.parametrize(
    ("block", "plain"),
    [
        (Block(Attention(3)), True),
        (Block(Attention(3, Windows((3, 4)))), True),
        (Block(Attention(3), dropout=0.1), False),
        (Block(Attention(3), residual=LayerScale(0.1)), False),
        (Block(Attention(3, linear=Dense(bias=None))), False),
        (Block(Attention(3), Mlp(linear=Dense(bias=None))), False),
    ],
)
def test_only_blocks_of_the_usual_parts_are_taken_together(block: Block, plain: bool) -> None:
    shape = Shape(24, 3, 4)
    assert trunk.is_plain(block.build(shape)[0]) == plain
    assert not trunk.is_plain(nn.Identity())


def test_runs_of_blocks_end_at_taps_and_other_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = deit(dim=24, heads=3, depth=5, patch=8, image=32, classes=10)
    assert spec.build().trunks == {} or torch.cuda.is_available()
    monkeypatch.setattr(trunk, "has_kernel", lambda module: True)
    first = len(spec.layers) - 5
    assert spec.build().trunks == {first: first + 5}
    assert spec.build(taps=("attention[2]",)).trunks == {first: first + 2, first + 3: first + 5}
    assert spec.build(taps=("tokens[1]", "tokens[3]")).trunks == {}
    scaled = override(spec, f"layers[{first + 1}].residual=LayerScale(0.1)")
    assert isinstance(scaled, Model) and scaled.build().trunks == {first + 2: first + 5}


def test_a_network_takes_them_together_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk, "has_kernel", lambda module: True)
    module = deit(dim=24, heads=3, depth=4, patch=8, image=32, classes=10, drop_path=0.4).build(seed=0).train()
    image_BCHW, draws = torch.randn(3, 3, 32, 32), module.random_draws(3)
    expected = module(image_BCHW, draws)["class"]
    taken = []
    monkeypatch.setattr(trunk, "joined", lambda *given: taken.append(1) or definition(*given))
    monkeypatch.setattr(trunk, "pays", lambda x_BND, blocks: True)
    torch.testing.assert_close(module(image_BCHW, draws)["class"], expected)
    assert len(taken) == 7
    torch.testing.assert_close(module.eval()(image_BCHW)["class"], expected_without_draws(module, image_BCHW))


def expected_without_draws(module: nn.Module, image_BCHW: Tensor) -> Tensor:
    """Block by block, whatever the network would do."""
    x_BND = module.tokenizer(image_BCHW)
    for layer in module.layers:
        x_BND = layer(x_BND)
    return module.readout(x_BND)["class"]


def test_who_watches_a_block_sees_it() -> None:
    first, second = (Block(Attention(3)).build(Shape(24, 3, 4))[0] for _ in range(2))
    assert not trunk.watched([first, second])
    hook = second.attention.register_forward_hook(lambda *_: None)
    assert trunk.watched([first, second]) and not trunk.watched([first])
    hook.remove()
    first.register_forward_pre_hook(lambda *_: None)
    assert trunk.watched([first, second]) and not trunk.watched([second])
