"""Dropout against loops written from its equation, and its hash against integers of Python and the laws of chance."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, replace

import pytest
import torch
from tests.nn.test_mechanisms import WIDE, naive_attention, naive_gelu, naive_linear, naive_norm, randomized, tokens
from torch import Tensor, nn

from frugalvit.assign import override
from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, PreNorm, SummaryBlock
from frugalvit.nn.dropout import Drop, dropped, kept
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.residual import Plain
from frugalvit.nn.scope import SummaryOnly
from frugalvit.nn.shape import Shape
from frugalvit.spec import decode, encode
from frugalvit.zoo.find import model
from frugalvit.zoo.hybrid import hybrid
from frugalvit.zoo.vit import vit

IMAGE = (2, 3, 20, 28)
SMALL = dict(dim=12, heads=3, depth=2, patch=4, image=(20, 28), classes=9)


# ------------------------------------------------------------------------------------------------ the hash


def naive_mixed(bits: int) -> int:
    bits = bits * 0x21F0AAAD % 2**32
    return naive_folded(bits) * 0xD35A2D97 % 2**32


def naive_folded(bits: int) -> int:
    return bits ^ bits >> 16


def naive_factor(draw: float, place: int, rate: float) -> float:
    """m / (1 − rate) for one number, with unsigned integers that do not wrap by themselves."""
    (bits,) = struct.unpack("<I", struct.pack("<f", draw))
    signed = (naive_mixed(naive_folded(naive_mixed(bits)) ^ naive_folded(naive_mixed(place))) + 2**31) % 2**32
    return 1 / (1 - rate) if signed >= rate * 2**32 else 0.0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.97])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_is_its_equation(rate: float, dtype: torch.dtype) -> None:
    x_BND = torch.randn(5, 36, 12, dtype=dtype)
    draw_B = torch.tensor([0.0, 2**-24, 0.3, 0.5, 1 - 2**-24])
    found = dropped(x_BND, draw_B.to(dtype), rate)
    for b, draw in enumerate(draw_B.tolist()):
        factor_ND = [[naive_factor(draw, n * 12 + d, rate) for d in range(12)] for n in range(36)]
        torch.testing.assert_close(found[b], x_BND[b] * torch.tensor(factor_ND, dtype=dtype))
    assert found.dtype == dtype
    assert dropped(x_BND, None, rate) is x_BND


def test_gradients_pass_where_numbers_do() -> None:
    x_BND = torch.randn(3, 7, 5, dtype=torch.float64, requires_grad=True)
    draw_B = torch.rand(3)
    dropped(x_BND, draw_B, 0.4).sum().backward()
    torch.testing.assert_close(x_BND.grad, kept(draw_B, (7, 5), 0.4).double() / 0.6)


def test_low_precision_stays_and_what_is_dropped_is_zero_even_where_it_was_no_number() -> None:
    draw_B = torch.rand(4)
    gone = ~kept(draw_B, (50,), 0.5)
    x_BN = torch.ones(4, 50, dtype=torch.bfloat16).masked_fill(gone, math.nan)
    found = dropped(x_BN, draw_B, 0.5)
    assert found.dtype == torch.bfloat16
    assert set(found.unique().tolist()) == {0.0, 2.0}


def standardized(draw_B: Tensor, count: int, rate: float) -> Tensor:
    """m with mean 0 and variance 1, if it is what it should be."""
    return (kept(draw_B, (count,), rate).double() - (1 - rate)) / math.sqrt(rate * (1 - rate))


DRAWS = {
    "uniform": lambda batch: torch.rand(batch, generator=torch.Generator().manual_seed(2)),
    "next to each other": lambda batch: (torch.arange(batch) + 2**23) / 2**24,  # as close as draws can be
    "near zero": lambda batch: torch.arange(batch) / 2**24,
}


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("rate", [0.03, 0.1, 0.5])
def test_masks_are_as_chance_would_have_them(rate: float, draws: str) -> None:
    batch, count = 64, 40_000
    m_BI = standardized(DRAWS[draws](batch), count, rate)
    assert abs(m_BI.sum()) < 4 * math.sqrt(m_BI.numel())
    for dim, many in ((0, count), (1, batch)):  # no place and no sample is kept more often than others: χ²
        squares = (m_BI.sum(dim) ** 2 / m_BI.shape[dim]).sum()
        assert abs(squares - many) < 5 * math.sqrt(2 * many)
    for lag in (1, 2, 3, 8, 12, 64, 192, 197, 384, 768, 1536):  # neighbors in a token, and above each other
        assert abs((m_BI[:, lag:] * m_BI[:, :-lag]).sum()) < 4 * math.sqrt(m_BI[:, lag:].numel()), lag
    samples = (m_BI @ m_BI.T / math.sqrt(count)).fill_diagonal_(0)
    assert samples.abs().max() < 5.5
    assert abs(samples.square().sum() / (batch * (batch - 1)) - 1) < 0.1


def test_bytes_of_masks_are_equally_frequent() -> None:
    m_BI = kept(torch.rand(100), (80_000,), 0.5)
    for eight in (m_BI.unflatten(1, (-1, 8)), m_BI.unflatten(1, (8, -1)).transpose(1, 2)):  # side by side, and far apart
        byte = (eight * 2 ** torch.arange(8)).sum(-1).flatten()
        expected = len(byte) / 256
        squares = ((torch.bincount(byte, minlength=256) - expected) ** 2 / expected).sum()
        assert abs(squares - 255) < 5 * math.sqrt(2 * 255)


def test_rates_are_kept_to_the_last_bits() -> None:
    draw_B = torch.rand(10)
    assert kept(draw_B, (1000,), 1e-12).all()
    assert not kept(draw_B, (1000,), 1 - 1e-12).any()


@pytest.mark.slow
def test_compiling_changes_no_bit() -> None:
    compiled = torch.compile(dropped, fullgraph=True)
    x_BND, draw_B = torch.randn(3, 36, 12), torch.rand(3)
    assert torch.equal(compiled(x_BND, draw_B, 0.1), dropped(x_BND, draw_B, 0.1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_mask_is_the_same_on_cuda() -> None:
    draw_B = torch.rand(7)
    compiled = torch.compile(kept, fullgraph=True)
    for rate in (0.1, 0.5):
        wanted = kept(draw_B, (197, 385), rate)
        assert torch.equal(kept(draw_B.cuda(), (197, 385), rate).cpu(), wanted)
        assert torch.equal(compiled(draw_B.cuda(), (197, 385), rate).cpu(), wanted)


# ------------------------------------------------------------------------------------------------ blocks


def masked(rows: list[list[float]], draw: float, rate: float) -> list[list[float]]:
    width = len(rows[0])
    return [[v * naive_factor(draw, n * width + d, rate) for d, v in enumerate(row)] for n, row in enumerate(rows)]


def plus(rows: list[list[float]], others: list[list[float]], factor: float) -> list[list[float]]:
    return [[a + b * factor for a, b in zip(*pair, strict=True)] for pair in zip(rows, others, strict=True)]


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_block_drops_what_attention_gives_its_hidden_units_and_what_the_mlp_gives(shape: Shape, drop: float) -> None:
    block = Block(Attention(3, linear=WIDE), Mlp(2.5, linear=WIDE), residual=Plain(drop), dropout=0.3)
    module = randomized(block.build(shape)[0])
    assert isinstance(module, PreNorm) and module.draws == (5 if drop else 3)
    depth = [[0.1, 0.9], [0.2, 0.3]] if drop else []  # the second sample loses its first branch
    draws = [*depth, [0.15, 0.5], [0.25, 0.6], [0.35, 0.7]]
    x_BND = tokens(shape)
    found = module(x_BND, torch.tensor(draws))
    for b in range(2):
        first, second = [(row[b] < 1 - drop) / (1 - drop) for row in depth] or [1, 1]
        attended_draw, hidden_draw, fed_draw = (torch.tensor(row[b]).item() for row in draws[len(depth) :])
        rows = x_BND[b].tolist()
        normed = [naive_norm(x, module.norm1.weight, module.norm1.bias, 1e-6) for x in rows]
        attended = naive_attention(module.attention, normed, [4**-0.5] * 3, hide=False)
        rows = plus(rows, masked(attended, attended_draw, 0.3), first)
        normed = [naive_norm(x, module.norm2.weight, module.norm2.bias, 1e-6) for x in rows]
        up, down = module.mlp.up, module.mlp.down
        hidden = [[naive_gelu(v) for v in naive_linear(x, up.weight, up.bias)] for x in normed]
        fed = [naive_linear(h, down.weight, down.bias) for h in masked(hidden, hidden_draw, 0.3)]
        expected = plus(rows, masked(fed, fed_draw, 0.3), second)
        torch.testing.assert_close(found[b].tolist(), expected, atol=1e-10, rtol=1e-10)
    explained, _ = module.explained(x_BND, torch.tensor(draws))
    torch.testing.assert_close(explained, found)


@pytest.mark.parametrize("drop", [0.0, 0.25])
def test_without_dropout_a_block_is_bit_by_bit_what_it_was(shape: Shape, drop: float) -> None:
    module, _ = Block(Attention(3, linear=WIDE), Mlp(linear=WIDE), residual=Plain(drop), dropout=0.0).build(shape)
    assert module.draws == (2 if drop else 0)
    x_BND = tokens(shape).float()
    first_B, second_B = draws = torch.rand(2, 2) if drop else (None, None)
    y_BND = module.sum1(x_BND, module.attention(module.norm1(x_BND)), first_B)
    y_BND = module.sum2(y_BND, module.mlp.down(module.mlp.activation(module.mlp.up(module.norm2(y_BND)))), second_B)
    assert torch.equal(module(x_BND, draws if drop else None), y_BND)


def test_class_attention_drops_on_summary_tokens_alone(shape: Shape) -> None:
    block = SummaryBlock(Attention(3, SummaryOnly(), linear=WIDE), Mlp(linear=WIDE), dropout=0.5)
    module, _ = block.build(shape)
    x_BND, draws = tokens(shape).float(), torch.rand(3, 2)
    assert module.draws == 3
    found, plain = module(x_BND, draws), module(x_BND)
    assert torch.equal(found[:, 1:], x_BND[:, 1:]) and not torch.equal(found[:, 0], plain[:, 0])


@dataclass(frozen=True)
class Squared:
    """A user's MLP."""

    def build(self, shape: Shape) -> nn.Module:
        return nn.Linear(shape.dim, shape.dim)


@dataclass(frozen=True)
class Doubled:
    """A user's attention."""

    def build(self, shape: Shape) -> nn.Module:
        return nn.Linear(shape.dim, shape.dim)


def test_a_users_attention_is_dropped_and_a_users_mlp_refused(toy: Model) -> None:
    own = replace(toy.layers[2], attention=Doubled(), dropout=0.5)
    module = own.build(Shape(12, 5, 7))[0]
    x_BND = torch.randn(2, 35, 12)
    assert not torch.equal(module(x_BND, torch.rand(3, 2)), module(x_BND))
    plain = replace(toy.layers[2], mlp=Squared())
    replace(toy, layers=(*toy.layers[:2], plain)).build()
    with pytest.raises(
        SpecError,
        match=r"^model\.layers\[2\]\.mlp: dropout=0\.5 needs hidden units .* Squared shows none\. Use Mlp, or dropout=0",
    ):
        replace(toy, layers=(*toy.layers[:2], replace(plain, dropout=0.5))).build()


# ------------------------------------------------------------------------------------------------ models

MODELS = {
    "vit": vit(**SMALL, dropout=0.2, drop_path=0.1),
    "hybrid": hybrid(depths=(), dim=12, heads=3, depth=2, patch=1, image=(16, 24), classes=9, dropout=0.2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_drops_behind_its_positions_and_in_every_block(name: str) -> None:
    spec = MODELS[name]
    assert [type(layer) for layer in spec.layers] == [Join, AddPositions, Drop, Block, Block]
    assert spec.layers[2].rate == spec.layers[3].dropout == spec.layers[4].dropout == 0.2
    module = spec.build(seed=0)
    assert module.rows == [0, 0, 1, 3, 5 if name == "vit" else 3]
    assert decode(json.loads(json.dumps(encode(spec))), Model) == spec


@pytest.mark.parametrize("name", MODELS)
def test_dropout_has_no_weights_and_costs_no_products(name: str) -> None:
    spec = MODELS[name]
    plain = override(spec, "layers[*].dropout=0")
    plain = replace(plain, layers=tuple(layer for layer in plain.layers if not isinstance(layer, Drop)))
    with_it, without = cost(spec), cost(plain)
    assert (with_it.parameters, with_it.macs) == (without.parameters, without.macs)
    assert with_it.activations > without.activations
    one, two = spec.build(seed=1).state_dict(), plain.build(seed=1).state_dict()
    assert all(torch.equal(*pair) for pair in zip(one.values(), two.values(), strict=True))


def test_rate_zero_leaves_the_model_as_it_was() -> None:
    assert vit(**SMALL, dropout=0.0) == vit(**SMALL)
    assert not vit(**SMALL).build().draws
    assert model("vit_tiny_patch16_224", dropout=0.1) == vit(dim=192, heads=3, depth=12, patch=16, dropout=0.1)


def lively(spec: Model) -> nn.Module:
    """Logits that differ, since a ViT's head starts at zero."""
    return override(spec, "readout.linear.weight=Normal(1.0)").build(seed=0)


def test_training_is_a_function_of_the_draws_and_evaluation_ignores_them() -> None:
    module, image = lively(MODELS["vit"]), torch.randn(IMAGE)
    draws = module.random_draws(2, torch.Generator().manual_seed(3))
    first = module(image, draws)["class"]
    torch.manual_seed(99)
    assert torch.equal(module(image, draws)["class"], first)
    for row in range(module.draws):
        if row != 4 and row != 5:  # stochastic depth, whose decision may stay the same
            other = draws.clone()
            other[row] = torch.rand(2)
            assert not torch.equal(module(image, other)["class"], first), row
    with pytest.raises(SpecError, match=r"draws: .*units \(dropout > 0\), and was given nothing to decide by"):
        module(image)
    module.eval()
    plain = lively(vit(**SMALL)).eval()
    assert torch.equal(module(image)["class"], plain(image)["class"])
    assert torch.equal(module(image, draws)["class"], plain(image)["class"])


def test_a_sample_is_dropped_by_its_own_draws_whatever_else_is_in_the_batch() -> None:
    module, image = lively(MODELS["vit"]), torch.randn(IMAGE)
    draws = module.random_draws(2)
    torch.testing.assert_close(module(image, draws)["class"][1:], module(image[1:], draws[:, 1:])["class"])


def test_the_model_compiles_whole_and_agrees() -> None:
    module, image = lively(MODELS["vit"]), torch.randn(IMAGE)
    draws = module.random_draws(2)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(image, draws), module(image, draws))


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5, math.nan])
def test_rates_that_are_none_are_refused(rate: float) -> None:
    with pytest.raises(SpecError, match=r"^rate: a drop rate of .* is not a probability below 1\. Use 0 to 0\.99"):
        Drop(rate)
    for make in (Block, SummaryBlock):
        with pytest.raises(SpecError, match=r"^dropout: a drop rate of"):
            make(Attention(3), dropout=rate)
    with pytest.raises(SpecError, match=r"^dropout: a drop rate of"):
        vit(**SMALL, dropout=rate)
    with pytest.raises(SpecError, match=r"layers\[2\]\.dropout: (a drop rate of|'nan' does not fit)"):
        override(vit(**SMALL), f"layers[2].dropout={rate}")
