"""The mechanisms of CaiT, ConViT, Swin, PiT, T2T, SPT and LSA, each against a loop over tokens written from its equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from frugalvit.nn.attention import Attention, MultiHead, SkipAttention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.init import Normal
from frugalvit.nn.layers import AddSinusoid, Normalize
from frugalvit.nn.linear import Dense
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.norm import LayerNorm, SummaryNorm
from frugalvit.nn.pooling import MergePatches, PoolTokens, SeparablePool, ShiftedMerge
from frugalvit.nn.projection import Together
from frugalvit.nn.readout import Mean
from frugalvit.nn.residual import LayerScale
from frugalvit.nn.scope import PatchesOnly, SummaryOnly, Windows
from frugalvit.nn.score import GatePosition, HideSelf, LearnedScale, MixHeads, RelativeBias
from frugalvit.nn.shape import Image, Shape
from frugalvit.nn.t2t import Shifts, TokensToTokens
from frugalvit.nn.tokenizer import OverlappingPatches, ShiftedPatches

Vector = list[float]
Rows = list[Vector]  # one vector a token, or one row of scores a head
Term = Callable[[Rows, int], Rows]  # (scores of every head for all keys, which query) -> the same, changed

HEADS = 3
PATCHES = Shape(12, 5, 7)
EVEN = Shape(12, 4, 6)
SUMMARY = ("class", "distill")


def linear(rows: Rows, weight: Tensor, bias: Tensor | None) -> Rows:
    matrix = weight.tolist()
    constants = [0.0] * len(matrix) if bias is None else bias.tolist()
    return [
        [sum(w * v for w, v in zip(line, x, strict=True)) + b for line, b in zip(matrix, constants, strict=True)] for x in rows
    ]


def through(rows: Rows, module: nn.Linear) -> Rows:
    return linear(rows, module.weight, module.bias)


def normed(rows: Rows, norm: nn.LayerNorm, eps: float) -> Rows:
    weight, bias = norm.weight.tolist(), norm.bias.tolist()
    out = []
    for x in rows:
        mean = sum(x) / len(x)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + eps)
        out.append([(v - mean) / deviation * w + b for v, w, b in zip(x, weight, bias, strict=True)])
    return out


def fed_forward(rows: Rows, mlp: nn.Module) -> Rows:
    hidden = [[v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x] for x in through(rows, mlp.up)]
    return through(hidden, mlp.down)


def softmax(scores: Vector) -> Vector:
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [power / sum(powers) for power in powers]


def added(one: Rows, two: Rows, factors: Vector | None = None) -> Rows:
    factors = factors or [1.0] * len(one[0])
    return [[a + f * b for a, b, f in zip(x, y, factors, strict=True)] for x, y in zip(one, two, strict=True)]


def joint_maps(module: MultiHead) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of q, k and v, however the module keeps them."""
    if isinstance(module.qkv, Together):
        weights = module.qkv.weight.chunk(3)
        biases = module.qkv.bias.chunk(3) if module.qkv.bias is not None else (None,) * 3
        return list(zip(weights, biases, strict=True))
    return [(one.weight, one.bias) for one in (module.qkv.q, module.qkv.k, module.qkv.v)]


def attended(
    module: MultiHead,
    queries: Rows,
    keys: Rows,
    scales: Vector,
    before: tuple[Term, ...] = (),
    after: tuple[Term, ...] = (),
) -> Rows:
    """out(after(softmax(before(scale_h q_h · k_h))) v_h), query by query, head by head, key by key."""
    (q_map, k_map, v_map), heads = joint_maps(module), len(scales)
    q, k, v = linear(queries, *q_map), linear(keys, *k_map), linear(keys, *v_map)
    width = len(q[0]) // heads
    out = []
    for m in range(len(queries)):
        rows = []
        for h in range(heads):
            at = range(h * width, (h + 1) * width)
            rows.append([scales[h] * sum(q[m][i] * k[n][i] for i in at) for n in range(len(keys))])
        for term in before:
            rows = term(rows, m)
        rows = [softmax(row) for row in rows]
        for term in after:
            rows = term(rows, m)
        out.append([sum(rows[i // width][n] * v[n][i] for n in range(len(keys))) for i in range(heads * width)])
    return through(out, module.out)


def hide_self(rows: Rows, m: int) -> Rows:
    return [[-math.inf if n == m else score for n, score in enumerate(row)] for row in rows]


def mix_heads(rows: Rows, m: int, *, weight: Tensor, bias: Tensor | None) -> Rows:
    constants = [0.0] * len(rows) if bias is None else bias.tolist()
    return [
        [sum(w * row[n] for w, row in zip(weights, rows, strict=True)) + b for n in range(len(rows[0]))]
        for weights, b in zip(weight.tolist(), constants, strict=True)
    ]


def relative_bias(rows: Rows, m: int, *, table: Tensor, width: int, window: tuple[int, int]) -> Rows:
    """Each offset has a row of the table, which counts (query − key) from −(side − 1), rows of the grid first, as Swin does."""
    high, wide = window
    values = table.tolist()
    out = []
    for h, row in enumerate(rows):
        line = []
        for n, score in enumerate(row):
            dy, dx = m // width - n // width, m % width - n % width
            inside = abs(dy) < high and abs(dx) < wide  # outside a window nothing is seen anyway
            line.append(score + values[(dy + high - 1) * (2 * wide - 1) + dx + wide - 1][h] if inside else score)
        out.append(line)
    return out


def gate_position(rows: Rows, m: int, *, gate: nn.Module, width: int) -> Rows:
    """(1 − σ(λ)) A + σ(λ) softmax(w · (dx, dy, dx² + dy²) + b), δ = place of the key − place of the query."""
    out = []
    for h, row in enumerate(rows):
        w, b = gate.weight[h].tolist(), gate.bias[h].item()
        share = 1 / (1 + math.exp(-gate.gate_H[h].item()))
        scores = []
        for n in range(len(row)):
            dx, dy = n % width - m % width, n // width - m // width
            scores.append(w[0] * dx + w[1] * dy + w[2] * (dx * dx + dy * dy) + b)
        out.append([(1 - share) * a + share * p for a, p in zip(row, softmax(scores), strict=True)])
    return out


def windows(rows: Rows, m: int, *, width: int, window: tuple[int, int], shift: int) -> Rows:
    """Two tokens of the picture see each other iff no line of a grid that starts at (shift, shift) runs between them."""

    def band(n: int) -> tuple[int, int]:
        return (n // width - shift) // window[0], (n % width - shift) // window[1]

    return [[score if band(n) == band(m) else -math.inf for n, score in enumerate(row)] for row in rows]


def tokens(shape: Shape, batch: int = 2) -> Tensor:
    return torch.randn(batch, shape.length, shape.dim, dtype=torch.float64)


def randomized(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def assert_rows(found_BND: Tensor, expected: list[Rows]) -> None:
    torch.testing.assert_close(found_BND, torch.tensor(expected, dtype=torch.float64), atol=1e-11, rtol=0)


def assert_attention(
    module: MultiHead, shape: Shape, scales: Vector, before: tuple[Term, ...] = (), after: tuple[Term, ...] = ()
) -> None:
    x_BND = tokens(shape)
    expected = [attended(module, rows, rows, scales, before, after) for rows in x_BND.tolist()]
    assert_rows(module(x_BND), expected)
    assert_rows(module.explained(x_BND)[0], expected)


# ------------------------------------------------------------------------------------------------ residuals and norms


def test_layer_scale_multiplies_each_channel_of_the_branch() -> None:
    module = randomized(LayerScale(1e-5).build(PATCHES))
    x_BND, branch_BND = tokens(PATCHES), tokens(PATCHES)
    gamma = module.gamma.tolist()
    expected = [added(x, y, gamma) for x, y in zip(x_BND.tolist(), branch_BND.tolist(), strict=True)]
    assert_rows(module(x_BND, branch_BND), expected)
    assert_rows(module(x_BND, branch_BND, torch.rand(2)), expected)  # nothing is dropped at a rate of 0
    assert module.draws == 0


def test_layer_scale_drops_the_scaled_branch_of_a_sample_and_lifts_the_kept_ones() -> None:
    module = randomized(LayerScale(1e-5, drop=0.2).build(PATCHES))
    assert module.draws == 1
    x_BND, branch_BND = tokens(PATCHES, 3), tokens(PATCHES, 3)
    draw_B = torch.tensor([0.79, 0.81, 0.0], dtype=torch.float64)  # kept where below 0.8
    gamma = module.gamma.tolist()
    lifted = [g / 0.8 for g in gamma]
    one, two, three = zip(x_BND.tolist(), branch_BND.tolist(), strict=True)
    assert_rows(module(x_BND, branch_BND, draw_B), [added(*one, lifted), two[0], added(*three, lifted)])
    assert_rows(module(x_BND, branch_BND), [added(x, y, gamma) for x, y in (one, two, three)])


def test_normalize_is_a_norm_of_every_token() -> None:
    module, left = Normalize(LayerNorm(1e-3)).build(PATCHES)
    assert left == PATCHES
    module, x_BND = randomized(module), 0.05 * tokens(PATCHES)  # small, so that eps matters
    assert_rows(module(x_BND), [normed(rows, module, 1e-3) for rows in x_BND.tolist()])


def test_summary_norm_leaves_the_patches_as_they_are() -> None:
    shape = Shape(12, 5, 7, SUMMARY)
    module = randomized(SummaryNorm(LayerNorm(1e-3)).build(shape))
    x_BND = 0.05 * tokens(shape)
    assert_rows(module(x_BND), [[*normed(rows[:2], module.norm, 1e-3), *rows[2:]] for rows in x_BND.tolist()])


# ------------------------------------------------------------------------------------------------ attention


def test_a_head_may_be_wider_or_narrower_than_its_part_of_a_token() -> None:
    module = randomized(Attention(HEADS, head_dim=5).build(PATCHES))
    assert (module.qkv.weight.shape, module.out.weight.shape) == ((45, 12), (12, 15))
    assert_attention(module, PATCHES, [5**-0.5] * HEADS)


def test_linear_maps_without_bias_are_products_alone() -> None:
    maps = Dense(bias=None).build(12, 7)
    assert [name for name, _ in maps.named_parameters()] == ["weight"]
    x_BND = tokens(PATCHES)
    assert_rows(randomized(maps)(x_BND), [linear(rows, maps.weight, None) for rows in x_BND.tolist()])
    without = Dense(bias=None)
    module = randomized(Attention(HEADS, query=without, key=without, value=without).build(PATCHES))
    assert module.qkv.bias is None and module.out.bias is not None
    assert_attention(module, PATCHES, [0.5] * HEADS)


def test_maps_of_which_only_some_have_a_bias_stay_apart() -> None:
    module = randomized(Attention(HEADS, key=Dense(bias=None)).build(PATCHES))
    assert module.qkv.q.bias is not None and module.qkv.k.bias is None
    assert_attention(module, PATCHES, [0.5] * HEADS)


@pytest.mark.parametrize("bias", [Normal(0.5), None])
@pytest.mark.parametrize("places", ["before", "after", "both"])
def test_talking_heads_mix_scores_before_and_attention_after_the_softmax(places: str, bias: Normal | None) -> None:
    mix = (MixHeads(Normal(0.5), bias),)
    spec = Attention(HEADS, before=mix if places != "after" else (), after=mix if places != "before" else ())
    module = randomized(spec.build(PATCHES))
    before, after = (
        tuple(partial(mix_heads, weight=one.weight, bias=one.bias) for one in terms) for terms in (module.before, module.after)
    )
    assert (len(before), len(after)) == {"before": (1, 0), "after": (0, 1), "both": (1, 1)}[places]
    assert_attention(module, PATCHES, [0.5] * HEADS, before, after)


def test_talking_heads_with_lsa_hide_the_token_after_the_mixing() -> None:
    spec = Attention(HEADS, scale=LearnedScale(), before=(MixHeads(), HideSelf()), after=(MixHeads(),))
    module = randomized(spec.build(PATCHES))
    first, last = (partial(mix_heads, weight=one.weight, bias=one.bias) for one in (module.before[0], module.after[0]))
    assert_attention(module, PATCHES, module.scale.scale_H.tolist(), (first, hide_self), (last,))


@pytest.mark.parametrize("hidden", [False, True])
def test_relative_bias_adds_what_the_table_has_for_the_offset(hidden: bool) -> None:
    terms = (RelativeBias(), HideSelf()) if hidden else (RelativeBias(),)
    module = randomized(Attention(HEADS, before=terms).build(PATCHES))
    table = module.before[0].bias
    assert table.shape == (9 * 13, HEADS)
    bias = partial(relative_bias, table=table, width=7, window=(5, 7))
    assert_attention(module, PATCHES, [0.5] * HEADS, (bias, hide_self) if hidden else (bias,))


@pytest.mark.parametrize("local", [False, True])
def test_gated_positional_attention_is_its_equation(local: bool) -> None:
    scale, before = (LearnedScale(), (HideSelf(),)) if local else (Attention(1).scale, ())
    module = randomized(Attention(HEADS, scale=scale, before=before, after=(GatePosition(),)).build(PATCHES))
    gate = partial(gate_position, gate=module.after[0], width=7)
    scales = module.scale.scale_H.tolist() if local else [0.5] * HEADS
    assert_attention(module, PATCHES, scales, (hide_self,) if local else (), (gate,))


def test_gated_positional_attention_may_stand_behind_talking_heads() -> None:
    module = randomized(Attention(HEADS, after=(MixHeads(), GatePosition())).build(PATCHES))
    mix = partial(mix_heads, weight=module.after[0].weight, bias=module.after[0].bias)
    assert_attention(module, PATCHES, [0.5] * HEADS, (), (mix, partial(gate_position, gate=module.after[1], width=7)))


WINDOWS = [
    (EVEN, (2, 3), 0),
    (EVEN, (2, 3), 1),
    (EVEN, (4, 2), 0),
    (Shape(12, 6, 8), (3, 4), 2),
    (Shape(12, 4, 6), (2, 2), 1),
    (Shape(12, 6, 9), (3, 3), 1),
]


@pytest.mark.parametrize(("shape", "window", "shift"), WINDOWS)
@pytest.mark.parametrize("biased", [False, True])
def test_windows_show_a_token_its_neighbors_of_the_picture(
    shape: Shape, window: tuple[int, int], shift: int, biased: bool
) -> None:
    spec = Attention(HEADS, Windows(window, shift), before=(RelativeBias(),) if biased else ())
    module = randomized(spec.build(shape))
    before: tuple[Term, ...] = (partial(windows, width=shape.width, window=window, shift=shift),)
    if biased:
        table = module.before[0].bias
        assert len(table) == (2 * window[0] - 1) * (2 * window[1] - 1)
        before = (partial(relative_bias, table=table, width=shape.width, window=window), *before)
    assert_attention(module, shape, [0.5] * HEADS, before)


@pytest.mark.parametrize(("window", "shift"), [((3, 4), 0), ((3, 4), 2)])
@pytest.mark.parametrize("biased", [False, True])
def test_locality_self_attention_works_inside_windows(window: tuple[int, int], shift: int, biased: bool) -> None:
    shape = Shape(12, 6, 8)
    terms = (RelativeBias(), HideSelf()) if biased else (HideSelf(),)
    module = randomized(Attention(HEADS, Windows(window, shift), LearnedScale(), terms).build(shape))
    before: tuple[Term, ...] = (hide_self, partial(windows, width=8, window=window, shift=shift))
    if biased:
        before = (partial(relative_bias, table=module.before[0].bias, width=8, window=window), *before)
    assert_attention(module, shape, module.scale.scale_H.tolist(), before)


def test_talking_heads_mix_inside_shifted_windows_and_show_nothing_that_is_hidden() -> None:
    mix = (MixHeads(),)
    module = randomized(Attention(HEADS, Windows((2, 3), 1), before=mix, after=mix).build(EVEN))
    first, last = (partial(mix_heads, weight=one.weight, bias=one.bias) for one in (module.before[0], module.after[0]))
    hidden = partial(windows, width=6, window=(2, 3), shift=1)
    x_BND = tokens(EVEN)

    def visible(rows: Rows, m: int) -> Rows:
        # a mixture's bias would give weight to tokens that the window does not show
        members = [n for n in range(24) if (n // 6 - 1) // 2 == (m // 6 - 1) // 2 and (n % 6 - 1) // 3 == (m % 6 - 1) // 3]
        return [[score if n in members else 0.0 for n, score in enumerate(row)] for row in rows]

    expected = [attended(module, rows, rows, [0.5] * HEADS, (first, hidden), (last, visible)) for rows in x_BND.tolist()]
    assert_rows(module(x_BND), expected)


@pytest.mark.parametrize("summary", [("class",), SUMMARY])
@pytest.mark.parametrize("scope", [SummaryOnly(), PatchesOnly()])
def test_class_attention_asks_for_summary_tokens_only(scope: SummaryOnly | PatchesOnly, summary: tuple[str, ...]) -> None:
    shape = Shape(12, 5, 7, summary)
    module = randomized(Attention(HEADS, scope, LearnedScale()).build(shape))
    x_BND, first = tokens(shape), 0 if scope == SummaryOnly() else len(summary)
    scales = module.scale.scale_H.tolist()
    expected = [attended(module, rows[: len(summary)], rows[first:], scales) for rows in x_BND.tolist()]
    assert_rows(module(x_BND), expected)
    found, attention_BHSN = module.explained(x_BND)
    assert_rows(found, expected)
    assert attention_BHSN.shape == (2, HEADS, len(summary), shape.length - first)


def test_the_second_skip_adds_the_normalized_tokens_to_their_attention() -> None:
    module, _ = Block(SkipAttention(Attention(HEADS)), Mlp(2.0), LayerNorm(1e-5)).build(PATCHES)
    module = randomized(module)
    x_BND = tokens(PATCHES)
    expected = []
    for rows in x_BND.tolist():
        z = normed(rows, module.norm1, 1e-5)
        rows = added(added(rows, z), attended(module.attention.inner, z, z, [0.5] * HEADS))
        expected.append(added(rows, fed_forward(normed(rows, module.norm2, 1e-5), module.mlp)))
    assert_rows(module(x_BND), expected)
    found, attention_BHNN = module.explained(x_BND)
    assert_rows(found, expected)
    assert attention_BHNN.shape == (2, HEADS, 35, 35)


@pytest.mark.parametrize("summary", [("class",), SUMMARY])
def test_a_summary_block_changes_summary_tokens_alone(summary: tuple[str, ...]) -> None:
    shape = Shape(12, 5, 7, summary)
    module, left = SummaryBlock(Attention(HEADS, SummaryOnly()), Mlp(2.0), residual=LayerScale(0.1)).build(shape)
    assert left == shape
    module = randomized(module)
    x_BND, count = tokens(shape), len(summary)
    expected = []
    for rows in x_BND.tolist():
        z, s = normed(rows, module.norm1, 1e-6), rows[:count]
        s = added(s, attended(module.attention, z[:count], z, [0.5] * HEADS), module.sum1.gamma.tolist())
        s = added(s, fed_forward(normed(s, module.norm2, 1e-6), module.mlp), module.sum2.gamma.tolist())
        expected.append([*s, *rows[count:]])
    found = module(x_BND)
    assert_rows(found, expected)
    assert torch.equal(found[:, count:], x_BND[:, count:])


def test_the_class_block_of_the_scaled_down_cait_sees_patches_as_they_are_and_not_itself() -> None:
    shape = Shape(12, 5, 7, ("class",))
    mix = (MixHeads(bias=None),)
    attention = Attention(HEADS, PatchesOnly(), LearnedScale(), mix, mix, head_dim=5)
    module, _ = SummaryBlock(attention, Mlp(2.0), SummaryNorm(LayerNorm(1e-5)), LayerScale(0.1)).build(shape)
    module = randomized(module)
    first, last = (
        partial(mix_heads, weight=one.weight, bias=None) for one in (module.attention.before[0], module.attention.after[0])
    )
    x_BND, scales = tokens(shape), module.attention.scale.scale_H.tolist()
    expected = []
    for rows in x_BND.tolist():
        z = normed(rows[:1], module.norm1.norm, 1e-5)
        s = added(rows[:1], attended(module.attention, z, rows[1:], scales, (first,), (last,)), module.sum1.gamma.tolist())
        s = added(s, fed_forward(normed(s, module.norm2.norm, 1e-5), module.mlp), module.sum2.gamma.tolist())
        expected.append([*s, *rows[1:]])
    assert_rows(module(x_BND), expected)


def test_summary_blocks_drop_a_branch_of_a_sample_too() -> None:
    shape = Shape(12, 5, 7, ("class",))
    module, _ = SummaryBlock(Attention(HEADS, SummaryOnly()), residual=LayerScale(0.1, drop=0.5)).build(shape)
    module = randomized(module)
    assert module.draws == 2
    x_BND = tokens(shape)
    found = module(x_BND, torch.tensor([[0.9, 0.1], [0.9, 0.9]], dtype=torch.float64))
    assert torch.equal(found[0], x_BND[0])
    rows = x_BND[1].tolist()
    z = normed(rows, module.norm1, 1e-6)
    branch = attended(module.attention, z[:1], z, [0.5] * HEADS)
    assert_rows(found[1:], [[*added(rows[:1], branch, [2 * g for g in module.sum1.gamma.tolist()]), *rows[1:]]])


# ------------------------------------------------------------------------------------------------ grids


def test_merging_puts_the_upper_left_lower_left_upper_right_and_lower_right_token_side_by_side() -> None:
    module, left = MergePatches(LayerNorm(1e-3)).build(EVEN)
    assert left == Shape(24, 2, 3)
    module = randomized(module)
    assert module.linear.bias is None
    x_BND = 0.05 * tokens(EVEN)
    expected = []
    for rows in x_BND.tolist():
        merged = []
        for y in range(2):
            for x in range(3):
                corner = 2 * y * 6 + 2 * x
                merged.append(rows[corner] + rows[corner + 6] + rows[corner + 1] + rows[corner + 7])
        expected.append(linear(normed(merged, module.norm, 1e-3), module.linear.weight, None))
    assert_rows(module(x_BND), expected)


def pooled(rows: Rows, shape: Shape, convolution: nn.Conv2d) -> Rows:
    """Channel o of a new token: its 3 x 3 kernel on channel o // 2 around every second token, zeros outside."""
    weight, bias = convolution.weight.tolist(), convolution.bias.tolist()
    out = []
    for y in range(0, shape.height, 2):
        for x in range(0, shape.width, 2):
            token = []
            for o in range(2 * shape.dim):
                total = bias[o]
                for dy in (-1, 0, 1):
                    for dx in (-1, 0, 1):
                        if 0 <= y + dy < shape.height and 0 <= x + dx < shape.width:
                            total += weight[o][0][dy + 1][dx + 1] * rows[(y + dy) * shape.width + x + dx][o // 2]
                token.append(total)
            out.append(token)
    return out


@pytest.mark.parametrize("shape", [EVEN, PATCHES])
@pytest.mark.parametrize("summary", [(), SUMMARY])
@pytest.mark.parametrize("spec", [PoolTokens(), SeparablePool()])
def test_pooling_convolves_the_patches_and_widens_summary_tokens(
    spec: PoolTokens | SeparablePool, summary: tuple[str, ...], shape: Shape
) -> None:
    module, left = spec.build(Shape(12, shape.height, shape.width, summary))
    assert left == Shape(24, (shape.height + 1) // 2, (shape.width + 1) // 2, summary)
    module = randomized(module)
    x_BND, count = tokens(Shape(12, shape.height, shape.width, summary)), len(summary)
    expected = []
    for rows in x_BND.tolist():
        patches = pooled(rows[count:], shape, module.convolution)
        patches = through(patches, module.full) if isinstance(spec, SeparablePool) else patches
        expected.append((through(rows[:count], module.summary) if summary else []) + patches)
    assert_rows(module(x_BND), expected)
    assert (module.full is None) == isinstance(spec, PoolTokens)


# where each copy of SPT looks from a place: at itself, up left, up right, down left, down right
LOOKS = ((0, 0), (-1, -1), (-1, 1), (1, -1), (1, 1))


def shifted_squares(pixel: Callable[[int, int, int], float], size: tuple[int, int, int], side: int, shift: int) -> Rows:
    """Squares of the image and its four shifted copies, flattened rows first, then columns, then (copy, channel)."""
    channels, height, width = size

    def seen(c: int, y: int, x: int) -> float:
        return pixel(c, y, x) if 0 <= y < height and 0 <= x < width else 0.0

    out = []
    for top in range(0, height, side):
        for left in range(0, width, side):
            token = []
            for y in range(top, top + side):
                for x in range(left, left + side):
                    token += [seen(c, y + dy * shift, x + dx * shift) for dy, dx in LOOKS for c in range(channels)]
            out.append(token)
    return out


@pytest.mark.parametrize("summary", [(), SUMMARY])
def test_shifted_merging_joins_squares_of_the_grid_and_its_four_shifted_copies(summary: tuple[str, ...]) -> None:
    shape = Shape(12, 4, 6, summary)
    module, left = ShiftedMerge(LayerNorm(1e-3)).build(shape)
    assert left == Shape(24, 2, 3, summary)
    module = randomized(module)
    x_BND, count = 0.05 * tokens(shape), len(summary)
    expected = []
    for rows in x_BND.tolist():
        patches = rows[count:]
        merged = shifted_squares(lambda c, y, x, patches=patches: patches[y * 6 + x][c], (12, 4, 6), 2, 1)
        merged = through(normed(merged, module.norm, 1e-3), module.linear)
        expected.append((through(rows[:count], module.summary) if summary else []) + merged)
    assert_rows(module(x_BND), expected)


@pytest.mark.parametrize(("patch", "size"), [(2, (3, 4, 6)), (4, (2, 8, 12)), (3, (2, 6, 9))])
def test_shifted_patches_join_the_image_and_four_copies_shifted_by_half_a_patch(patch: int, size: tuple[int, int, int]) -> None:
    channels, height, width = size
    module, shape = ShiftedPatches(patch, 7, LayerNorm(1e-3)).build(Image(height, width, channels))
    assert shape == Shape(7, height // patch, width // patch)
    module = randomized(module)
    image = torch.randn(2, *size, dtype=torch.float64)
    expected = []
    for picture in image.tolist():
        flat = shifted_squares(lambda c, y, x, picture=picture: picture[c][y][x], size, patch, patch // 2)
        expected.append(through(normed(flat, module.norm, 1e-3), module.linear))
    assert_rows(module(image), expected)


def test_the_first_shifted_copy_shows_a_place_what_lies_up_and_left_of_it() -> None:
    """The content of lu moves down and right by half a patch: the fact sheet's lu(y, x) = x(y − s, x − s)."""
    from frugalvit.nn.pooling import shifted

    image = torch.zeros(1, 1, 6, 8)
    image[0, 0, 2, 3] = 1.0
    copies = shifted(image, 2)[0]
    assert [tuple(copy.nonzero()[0].tolist()) for copy in copies] == [(2, 3), (4, 5), (4, 1), (0, 5), (0, 1)]


@pytest.mark.parametrize(("patch", "stride", "grid"), [((5, 4), (2, 3), (3, 4)), (4, 2, (3, 5))])
def test_overlapping_patches_begin_every_stride(patch: object, stride: object, grid: tuple[int, int]) -> None:
    module, shape = OverlappingPatches(patch, stride, 7).build(Image(9, 13, 2))  # type: ignore[arg-type]
    assert shape == Shape(7, *grid)
    module = randomized(module)
    image = torch.randn(2, 2, 9, 13, dtype=torch.float64)
    (high, wide), (down, right) = ((one, one) if isinstance(one, int) else one for one in (patch, stride))
    expected = []
    for picture in image.tolist():
        flat = []
        for y in range(0, 9 - high + 1, down):
            for x in range(0, 13 - wide + 1, right):
                flat.append([picture[c][y + i][x + j] for c in range(2) for i in range(high) for j in range(wide)])
        expected.append(linear(flat, module.weight.flatten(1), module.bias))
    assert_rows(module(image), expected)


def split(pixel: Callable[[int, int, int], float], size: tuple[int, int, int]) -> Rows:
    """Squares of 3 x 3 around every second place, zeros outside; inside channels first, then rows, then columns."""
    channels, height, width = size
    out = []
    for top in range(-1, height - 1, 2):
        for left in range(-1, width - 1, 2):
            token = []
            for c in range(channels):
                for y in range(top, top + 3):
                    for x in range(left, left + 3):
                        token.append(pixel(c, y, x) if 0 <= y < height and 0 <= x < width else 0.0)
            out.append(token)
    return out


@pytest.mark.parametrize(
    ("splits", "shifts", "local"), [(2, None, False), (3, None, False), (2, Shifts(1), False), (2, Shifts(2), True)]
)
def test_tokens_to_tokens_splits_attends_and_splits_again(splits: int, shifts: Shifts | None, local: bool) -> None:
    channels, height, width = 2, 12, 18
    scale, before = (LearnedScale(), (HideSelf(),)) if local else (Attention(1).scale, ())
    spec = TokensToTokens(7, 5, splits, shifts, scale, before)
    module, shape = spec.build(Image(height, width, channels))
    module = randomized(module)
    image = torch.randn(2, channels, height, width, dtype=torch.float64)
    expected = []
    for picture in image.tolist():
        looks = ((0, 0), *((shifts.pixels * dy, shifts.pixels * dx) for dy, dx in LOOKS[1:])) if shifts else ((0, 0),)
        size = (channels * len(looks), height, width)

        def pixel(c: int, y: int, x: int, picture: list = picture, looks: tuple = looks) -> float:
            y, x = y + looks[c // channels][0], x + looks[c // channels][1]
            return picture[c % channels][y][x] if 0 <= y < height and 0 <= x < width else 0.0

        rows = split(pixel, size)
        for transformer in module.transformers:
            size = (5, (size[1] + 1) // 2, (size[2] + 1) // 2)
            z = normed(rows, transformer.norm1, 1e-5)
            q, k, v = (linear(z, one.weight, None) for one in (transformer.q, transformer.k, transformer.v))
            factor = transformer.scale.scale_H.item() if local else len(rows[0]) ** -0.5  # of the width that comes in
            context = []
            for m in range(len(z)):
                scores = [[factor * sum(a * b for a, b in zip(q[m], k[n], strict=True)) for n in range(len(z))]]
                weights = softmax((hide_self(scores, m) if local else scores)[0])
                context.append([sum(weights[n] * v[n][i] for n in range(len(z))) for i in range(5)])
            x = added(v, through(context, transformer.out))
            x = added(x, fed_forward(normed(x, transformer.norm2, 1e-5), transformer.mlp))
            rows = split(lambda c, i, j, x=x, wide=size[2]: x[i * wide + j][c], size)
        expected.append(through(rows, module.project))
    assert shape == Shape(7, -(-height // 2**splits), -(-width // 2**splits))
    assert_rows(module(image), expected)


def test_sinusoids_count_tokens_and_alternate_between_sine_and_cosine() -> None:
    shape = Shape(12, 5, 7, ("class",))
    module, left = AddSinusoid().build(shape)
    assert left == shape and not list(module.parameters()) and not module.state_dict()
    x_BND = torch.randn(2, 36, 12)
    expected_ND = [[(math.cos if c % 2 else math.sin)(n / 10000 ** (2 * (c // 2) / 12)) for c in range(12)] for n in range(36)]
    torch.testing.assert_close(module.positions_1ND[0], torch.tensor(expected_ND), atol=1e-7, rtol=0)
    assert torch.equal(module(x_BND), x_BND + module.positions_1ND)


# ------------------------------------------------------------------------------------------------ readout


@pytest.mark.parametrize("summary", [(), SUMMARY])
def test_the_mean_readout_averages_normalized_patches(summary: tuple[str, ...]) -> None:
    shape = Shape(12, 5, 7, summary)
    module = randomized(Mean(("class",), LayerNorm(1e-3)).build(shape, 9))
    x_BND = 0.05 * tokens(shape)
    means = []
    for rows in x_BND.tolist():
        z = normed(rows[len(summary) :], module.norm, 1e-3)
        means.append([sum(column) / 35 for column in zip(*z, strict=True)])
    assert_rows(module.features(x_BND)["class"], means)  # type: ignore[arg-type]
    assert_rows(module(x_BND)["class"], through(means, module.heads["class"]))  # type: ignore[arg-type]
    assert list(module(x_BND)) == ["class"]
