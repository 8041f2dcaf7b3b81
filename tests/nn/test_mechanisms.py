"""Every mechanism against a naive loop in float64, written from its equation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention, MultiHead
from frugalvit.nn.block import Block, deepening
from frugalvit.nn.init import Normal
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.linear import Dense
from frugalvit.nn.mlp import Mlp, TanhGelu
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.readout import MeanLogits, SumSoftmax, Tokens, fuse
from frugalvit.nn.residual import Plain
from frugalvit.nn.score import HideSelf, LearnedScale
from frugalvit.nn.shape import Image, Shape
from frugalvit.nn.tokenizer import Patches

WIDE = Dense(weight=Normal(0.5), bias=Normal(0.5))  # weights large enough that a wrong one shows


def naive_linear(x: list[float], weight: Tensor, bias: Tensor) -> list[float]:
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weight.tolist(), bias.tolist(), strict=True)]


def naive_norm(x: list[float], weight: Tensor, bias: Tensor, eps: float) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return [(v - mean) / math.sqrt(variance + eps) * w + b for v, w, b in zip(x, weight.tolist(), bias.tolist(), strict=True)]


def naive_gelu(v: float) -> float:
    return v * 0.5 * (1 + math.erf(v / math.sqrt(2)))


def naive_softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [p / sum(powers) for p in powers]


def naive_attention(module: MultiHead, x_ND: list[list[float]], scales: list[float], hide: bool) -> list[list[float]]:
    heads, dim = len(scales), len(x_ND[0])
    width = dim // heads
    rows = [naive_linear(x, module.qkv.weight, module.qkv.bias) for x in x_ND]
    out = []
    for m in range(len(x_ND)):
        joined: list[float] = []
        for h in range(heads):
            at = range(h * width, (h + 1) * width)
            q = [rows[m][i] for i in at]
            scores = []
            for n in range(len(x_ND)):
                k = [rows[n][dim + i] for i in at]
                score = sum(a * b for a, b in zip(q, k, strict=True)) * scales[h]
                scores.append(-math.inf if hide and n == m else score)
            weights = naive_softmax(scores)
            joined += [sum(weights[n] * rows[n][2 * dim + i] for n in range(len(x_ND))) for i in at]
        out.append(naive_linear(joined, module.out.weight, module.out.bias))
    return out


def tokens(shape: Shape, batch: int = 2) -> Tensor:
    return torch.randn(batch, shape.length, shape.dim, dtype=torch.float64)


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module.double()


def test_patches_are_flattened_channel_first_and_read_row_by_row() -> None:
    module, shape = Patches((4, 3), 6).build(Image(8, 15, 2))
    module.double()
    assert shape == Shape(6, 2, 5)
    image = torch.randn(2, 2, 8, 15, dtype=torch.float64)
    found = module(image)
    for b in range(2):
        for i in range(2):
            for j in range(5):
                pixels = [image[b, c, i * 4 + y, j * 3 + x].item() for c in range(2) for y in range(4) for x in range(3)]
                expected = naive_linear(pixels, module.weight.flatten(1), module.bias)
                torch.testing.assert_close(found[b, i * 5 + j].tolist(), expected, atol=1e-12, rtol=0)


def test_attention_is_its_equation(shape: Shape) -> None:
    module = Attention(3, linear=WIDE).build(shape).double()
    x_BND = tokens(shape)
    for found, x_ND in zip(module(x_BND), x_BND, strict=True):
        expected = naive_attention(module, x_ND.tolist(), [4**-0.5] * 3, hide=False)
        torch.testing.assert_close(found.tolist(), expected, atol=1e-12, rtol=0)


def test_locality_self_attention_is_its_equation(shape: Shape) -> None:
    module = Attention(3, scale=LearnedScale(), before=(HideSelf(),), linear=WIDE).build(shape).double()
    torch.nn.init.uniform_(module.scale.scale_H, 0.2, 2.0)
    x_BND = tokens(shape)
    for found, x_ND in zip(module(x_BND), x_BND, strict=True):
        expected = naive_attention(module, x_ND.tolist(), module.scale.scale_H.tolist(), hide=True)
        torch.testing.assert_close(found.tolist(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "spec",
    [
        Attention(3, linear=WIDE),
        Attention(3, scale=LearnedScale(), linear=WIDE),
        Attention(3, before=(HideSelf(),), linear=WIDE),
        Attention(3, scale=LearnedScale(), before=(HideSelf(),), linear=WIDE),
    ],
)
def test_the_fused_path_is_the_plain_one_in_value_and_gradient(shape: Shape, spec: Attention) -> None:
    module = spec.build(shape).double()
    assert module.fused
    results = []
    for run in (module, lambda x: module.explained(x)[0]):
        torch.manual_seed(1)
        x_BND = tokens(shape).requires_grad_()
        module.zero_grad()
        y_BND = run(x_BND)
        (y_BND * torch.randn_like(y_BND)).sum().backward()
        results.append([y_BND, x_BND.grad, *(parameter.grad.clone() for parameter in module.parameters())])
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, atol=1e-10, rtol=1e-10)


def test_attention_weights_of_the_plain_path_sum_to_one_and_hide_the_token_itself(shape: Shape) -> None:
    module = Attention(3, before=(HideSelf(),), linear=WIDE).build(shape).double()
    _, attention_BHNN = module.explained(tokens(shape))
    assert attention_BHNN.shape == (2, 3, 36, 36)
    torch.testing.assert_close(attention_BHNN.sum(-1), torch.ones(2, 3, 36, dtype=torch.float64))
    assert attention_BHNN.diagonal(dim1=-2, dim2=-1).abs().max() == 0


def test_mlp_is_its_equation(shape: Shape) -> None:
    module = Mlp(2.5, linear=WIDE).build(shape).double()
    assert module.up.out_features == 30
    x_BND = tokens(shape)
    found = module(x_BND)
    for n in (0, 35):
        hidden = [naive_gelu(v) for v in naive_linear(x_BND[1, n].tolist(), module.up.weight, module.up.bias)]
        expected = naive_linear(hidden, module.down.weight, module.down.bias)
        torch.testing.assert_close(found[1, n].tolist(), expected, atol=1e-12, rtol=0)


def test_tanh_gelu_is_its_equation() -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    torch.testing.assert_close(TanhGelu().build()(x).tolist(), expected, atol=1e-12, rtol=0)


def test_layer_norm_is_its_equation(shape: Shape) -> None:
    module = randomized(LayerNorm(1e-3).build(shape))
    x_BND = tokens(shape) * 0.05  # small, so that eps matters
    expected = naive_norm(x_BND[1, 3].tolist(), module.weight, module.bias, 1e-3)
    torch.testing.assert_close(module(x_BND)[1, 3].tolist(), expected, atol=1e-12, rtol=0)


def test_a_block_is_two_residual_branches_behind_norms(shape: Shape) -> None:
    module, _ = Block(Attention(3, linear=WIDE), Mlp(linear=WIDE)).build(shape)
    module = randomized(module)
    x_BND = tokens(shape, 1)
    rows = x_BND[0].tolist()
    normed = [naive_norm(x, module.norm1.weight, module.norm1.bias, 1e-6) for x in rows]
    attended = naive_attention(module.attention, normed, [4**-0.5] * 3, hide=False)
    rows = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(rows, attended, strict=True)]
    for n, x in enumerate(rows):
        inner = naive_norm(x, module.norm2.weight, module.norm2.bias, 1e-6)
        hidden = [naive_gelu(v) for v in naive_linear(inner, module.mlp.up.weight, module.mlp.up.bias)]
        y = naive_linear(hidden, module.mlp.down.weight, module.mlp.down.bias)
        torch.testing.assert_close(module(x_BND)[0, n].tolist(), [a + b for a, b in zip(x, y, strict=True)], atol=1e-10, rtol=0)


def test_stochastic_depth_drops_a_branch_of_a_sample_and_scales_the_kept_ones() -> None:
    module = Plain(0.25).build(Shape(12, 5, 7)).double()
    x_BND, branch_BND = torch.randn(2, 3, 35, 12, dtype=torch.float64)
    draw_B = torch.tensor([0.1, 0.9, 0.7499], dtype=torch.float64)  # kept where below 0.75
    found = module(x_BND, branch_BND, draw_B)
    torch.testing.assert_close(found[0], x_BND[0] + branch_BND[0] / 0.75)
    torch.testing.assert_close(found[1], x_BND[1])
    torch.testing.assert_close(found[2], x_BND[2] + branch_BND[2] / 0.75)
    torch.testing.assert_close(module(x_BND, branch_BND), x_BND + branch_BND)


def test_stochastic_depth_keeps_the_mean() -> None:
    module = Plain(0.3).build(Shape(1, 1, 1))
    x_BND = torch.zeros(200_000, 1, 1)
    found = module(x_BND, torch.ones_like(x_BND), torch.rand(200_000))
    assert abs(found.mean().item() - 1) < 4 * math.sqrt(0.3 / 0.7 / 200_000)


def test_both_branches_of_a_block_decide_by_rows_of_their_own(shape: Shape) -> None:
    module, _ = Block(Attention(3, linear=WIDE), Mlp(linear=WIDE), residual=Plain(0.5)).build(shape)
    module = module.double()
    assert module.draws == 2
    x_BND = tokens(shape, 2)
    kept, dropped = 0.1, 0.9
    draws_RB = torch.tensor([[kept, dropped], [dropped, kept]], dtype=torch.float64)
    found = module(x_BND, draws_RB)
    torch.testing.assert_close(found[0], (x_BND + 2 * module.attention(module.norm1(x_BND)))[0])
    torch.testing.assert_close(found[1], (x_BND + 2 * module.mlp(module.norm2(x_BND)))[1])


def test_deepening_raises_the_drop_rate_in_equal_steps_from_zero() -> None:
    rates = [block.residual.drop for block in deepening(Block(Attention(3)), 12, 0.1)]
    assert rates == pytest.approx(torch.linspace(0, 0.1, 12).tolist(), abs=1e-8)
    assert [block.residual.drop for block in deepening(Block(Attention(3)), 1, 0.1)] == [0.0]


def test_summary_tokens_join_in_front_and_positions_cover_them() -> None:
    join, joined = Join(("class", "distill")).build(Shape(12, 5, 7))
    add, left = AddPositions().build(joined)
    assert left == joined == Shape(12, 5, 7, ("class", "distill"))
    x_BND = torch.randn(2, 35, 12)
    found = add(join(x_BND))
    assert found.shape == (2, 37, 12)
    for b in range(2):
        for n in range(37):
            token = join.tokens["class" if n == 0 else "distill"][0, 0] if n < 2 else x_BND[b, n - 2]
            torch.testing.assert_close(found[b, n], token + add.positions[0, n])


def test_each_head_reads_its_own_normalized_token() -> None:
    shape = Shape(12, 5, 7, ("class", "distill"))
    module = randomized(Tokens(("class", "distill"), linear=WIDE).build(shape, 9))
    x_BND = tokens(shape)
    found = module(x_BND)
    assert list(found) == ["class", "distill"]
    for place, name in enumerate(found):
        head = module.heads[name]
        normed = naive_norm(x_BND[1, place].tolist(), module.norm.weight, module.norm.bias, 1e-6)
        expected = naive_linear(normed, head.weight, head.bias)
        torch.testing.assert_close(found[name][1].tolist(), expected, atol=1e-11, rtol=0)
        torch.testing.assert_close(module.features(x_BND)[name][1].tolist(), normed, atol=1e-12, rtol=0)


def test_fusing_is_the_mean_of_logits_or_the_mean_of_probabilities() -> None:
    outputs = {"class": torch.randn(2, 9).double() * 3, "distill": torch.randn(2, 9).double() * 3, "tokens[1]": torch.zeros(1)}
    for b in range(2):
        one, two = outputs["class"][b].tolist(), outputs["distill"][b].tolist()
        mean = [(a + c) / 2 for a, c in zip(one, two, strict=True)]
        torch.testing.assert_close(fuse(outputs)[b].tolist(), mean)
        torch.testing.assert_close(fuse(outputs, MeanLogits())[b].tolist(), mean)
        both = [(a + c) / 2 for a, c in zip(naive_softmax(one), naive_softmax(two), strict=True)]
        torch.testing.assert_close(fuse(outputs, SumSoftmax())[b].exp().tolist(), both)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Attention(5), r"heads: 5 heads do not divide a width of 12. Use one of \[1, 2, 3, 4, 6, 12\]"),
        (Attention(0), "heads: 0 heads"),
        (Attention(3, before=(HideSelf(), HideSelf())), r"before\[0\]: HideSelf must stand last"),
        (Attention(3, after=(HideSelf(),)), r"after\[0\]: HideSelf hides scores"),
        (Mlp(0.01), "ratio: 0.01 times a width of 12"),
    ],
)
def test_impossible_parts_are_refused_at_build(shape: Shape, spec: Attention | Mlp, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec.build(shape)


def test_a_single_token_cannot_hide_itself() -> None:
    with pytest.raises(SpecError, match="leaves it nothing to see"):
        Attention(3, before=(HideSelf(),)).build(Shape(12, 1, 1))


def test_a_model_of_two_heads_is_its_parts_in_order(toy: Model) -> None:
    module = toy.build(seed=3).double().eval()
    image = torch.randn(2, 3, 20, 28, dtype=torch.float64)
    x_BND = module.tokenizer(image)
    for layer in module.layers:
        x_BND = layer(x_BND)
    torch.testing.assert_close(module(image), module.readout(x_BND))
