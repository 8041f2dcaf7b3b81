"""The mechanisms of BinaryViT, each against a loop over tokens in float64, written from its equation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.binary_attention import BinaryAttention, OneBitHeads
from frugalvit.nn.binary_block import BinaryBlock, PoolBranch
from frugalvit.nn.binary_channels import Affine, ChannelAffine, RPReLU, TokenBatchNorm, TokenBatchNormalized
from frugalvit.nn.binary_linear import Binary, BinaryLinear, BinaryMlp, RealWeights
from frugalvit.nn.binary_merge import BinaryMerge, RealMerge
from frugalvit.nn.quantize import FLOOR
from frugalvit.nn.readout import Tokens
from frugalvit.nn.residual import Plain
from frugalvit.nn.shape import Shape
from frugalvit.nn.trunk import is_plain

Vector = list[float]
Rows = list[Vector]  # a vector for each token of each picture, one picture behind the other

EVEN = Shape(12, 4, 6)
CLASS = Shape(12, 5, 7, ("class",))
CROSS = (PoolBranch(3, 1), PoolBranch(1, 5))


def randomized(module: nn.Module) -> nn.Module:
    """Every parameter and statistic at random, so that a forgotten one shows; no step below zero."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        tensor.data.normal_(0.0, 0.5)
        if name.endswith(("running_var", "step")):
            tensor.data.abs_().add_(0.01)
    return module.double()


def pictures(shape: Shape, batch: int = 2) -> Tensor:
    return torch.randn(batch, shape.length, shape.dim, dtype=torch.float64)


def flat(x_BND: Tensor) -> Rows:
    return x_BND.flatten(0, -2).tolist()


def assert_rows(found_BND: Tensor, expected: Rows) -> None:
    torch.testing.assert_close(flat(found_BND), expected, atol=1e-10, rtol=1e-10)


def sign(value: float) -> float:
    return 1.0 if value >= 0 else -1.0


def plus(*many: Rows) -> Rows:
    return [[sum(values) for values in zip(*vectors, strict=True)] for vectors in zip(*many, strict=True)]


def normed(rows: Rows, norm: TokenBatchNormalized) -> Rows:
    """By the batch's own statistics in training, else by those remembered."""
    columns = list(zip(*rows, strict=True))
    means, variances = norm.running_mean.tolist(), norm.running_var.tolist()
    if norm.training:
        means = [sum(column) / len(column) for column in columns]
        variances = [sum((v - m) ** 2 for v in column) / len(column) for column, m in zip(columns, means, strict=True)]
    weight, bias = norm.weight.tolist(), norm.bias.tolist()
    return [
        [(v - m) / math.sqrt(s + 1e-5) * w + b for v, m, s, w, b in zip(x, means, variances, weight, bias, strict=True)]
        for x in rows
    ]


def activated(rows: Rows, act: RPReLU) -> Rows:
    before, slope, after = act.before.tolist(), act.slope.tolist(), act.after.tolist()
    out = []
    for x in rows:
        moved = [v - b for v, b in zip(x, before, strict=True)]
        out.append([(v if v > 0 else s * v) + a for v, s, a in zip(moved, slope, after, strict=True)])
    return out


def affine(rows: Rows, module: ChannelAffine) -> Rows:
    factor, offset = module.factor.tolist(), module.offset.tolist()
    return [[v * f + o for v, f, o in zip(x, factor, offset, strict=True)] for x in rows]


def one_bit(rows: Rows, shift: Tensor, weight: Tensor, center: float) -> Rows:
    """W sign(x + shift), W = mean |w| · sign(w − center · mean w), row by row."""
    shifts, matrix = shift.tolist(), weight.flatten(1).tolist()
    lines = []
    for line in matrix:
        mean, scale = center * sum(line) / len(line), sum(map(abs, line)) / len(line)
        lines.append([scale * sign(w - mean) for w in line])
    bits = [[sign(v + s) for v, s in zip(x, shifts, strict=True)] for x in rows]
    return [[sum(w * b for w, b in zip(line, x, strict=True)) for line in lines] for x in bits]


def projected(rows: Rows, module: BinaryLinear) -> Rows:
    """RPReLU(norm(W sign(x + shift)) + shortcut)."""
    into, out = len(rows[0]), len(module.act.slope)
    y = normed(one_bit(rows, module.shift, module.product.weight, 1.0), module.norm)
    if out >= into:
        shortcut = [x * (out // into) for x in rows]
    else:
        side = into // out
        shortcut = [[sum(x[side * c : side * c + side]) / side for c in range(out)] for x in rows]
    return activated(plus(y, shortcut), module.act)


def square_means(rows: Rows, shape: Shape, side: int) -> Rows:
    out = []
    for start in range(0, len(rows), shape.length):
        for i in range(0, shape.height, side):
            for j in range(0, shape.width, side):
                inside = [rows[start + (i + a) * shape.width + j + b] for a in range(side) for b in range(side)]
                out.append([sum(values) / side**2 for values in zip(*inside, strict=True)])
    return out


def nearest(rows: Rows, shape: Shape, side: int) -> Rows:
    wide, few = shape.width // side, shape.length // side**2
    pictures = len(rows) // few
    return [
        rows[picture * few + (i // side) * wide + j // side]
        for picture in range(pictures)
        for i in range(shape.height)
        for j in range(shape.width)
    ]


def gathered(module: OneBitHeads, q: Rows, k: Rows, v: Rows, batch: int) -> Rows:
    """c [softmax(sign q sign k / sqrt K) > c/2] sign v, picture by picture, head by head."""
    dim, heads, step = len(q[0]), module.heads, module.step.item()
    width = dim // heads
    shifts = [shift.tolist() for shift in (module.shift_q, module.shift_k, module.shift_v)]
    q, k, v = (
        [[sign(a + s) for a, s in zip(x, shift, strict=True)] for x in rows]
        for rows, shift in zip((q, k, v), shifts, strict=True)
    )
    queries, keys = len(q) // batch, len(k) // batch
    out = []
    for m in range(len(q)):
        seen = range(m // queries * keys, m // queries * keys + keys)
        joined: Vector = []
        for head in range(heads):
            at = range(head * width, (head + 1) * width)
            powers = [math.exp(sum(q[m][i] * k[n][i] for i in at) / math.sqrt(width)) for n in seen]
            bits = [step if power / sum(powers) > step / 2 else 0.0 for power in powers]
            joined += [sum(bit * v[n][i] for bit, n in zip(bits, seen, strict=True)) for i in at]
        out.append(joined)
    return out


def attended(rows: Rows, module: OneBitHeads, shape: Shape, side: int, batch: int) -> Rows:
    q = projected(rows, module.query)
    seen = rows if side == 1 else projected(square_means(rows, shape, side), module.reduce)
    k, v = projected(seen, module.key), projected(seen, module.value)
    context = normed(gathered(module, q, k, v, batch), module.norm)
    if side > 1:
        k, v = nearest(k, shape, side), nearest(v, shape, side)
    return projected(activated(plus(context, q, k, v), module.act), module.out)


def window_means(rows: Rows, shape: Shape, branch: PoolBranch) -> Rows:
    """The mean over a window around each token, with zeros beyond the edge."""
    high, wide = branch.height // 2, branch.width // 2
    out = []
    for start in range(0, len(rows), shape.length):
        for i in range(shape.height):
            for j in range(shape.width):
                total = [0.0] * shape.dim
                for a in range(max(i - high, 0), min(i + high + 1, shape.height)):
                    for b in range(max(j - wide, 0), min(j + wide + 1, shape.width)):
                        total = [t + v for t, v in zip(total, rows[start + a * shape.width + b], strict=True)]
                out.append([t / (branch.height * branch.width) for t in total])
    return out


# ------------------------------------------------------------------------------------------------ channels


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_batch_norm_over_tokens_is_its_equation(mode: str) -> None:
    module = randomized(TokenBatchNorm().build(CLASS)).train(mode == "training")
    x_BND = pictures(CLASS) * 3 + 1
    expected = normed(flat(x_BND), module)
    assert_rows(module(x_BND), expected)


def test_batch_norm_over_tokens_moves_its_statistics_a_tenth_of_the_way() -> None:
    module = randomized(TokenBatchNorm().build(CLASS)).train()
    x_BND = pictures(CLASS) + 2
    before = module.running_mean.tolist(), module.running_var.tolist()
    module(x_BND)
    for channel, column in enumerate(zip(*flat(x_BND), strict=True)):
        mean = sum(column) / len(column)
        variance = sum((v - mean) ** 2 for v in column) / (len(column) - 1)
        assert module.running_mean[channel].item() == pytest.approx(0.9 * before[0][channel] + 0.1 * mean)
        assert module.running_var[channel].item() == pytest.approx(0.9 * before[1][channel] + 0.1 * variance)
    module.eval()
    kept = module.running_mean.clone()
    module(x_BND)
    assert torch.equal(module.running_mean, kept)


def test_rprelu_is_its_equation_and_starts_as_a_leaky_rectifier() -> None:
    assert RPReLU(2)(torch.tensor([[2.0, -2.0]])).tolist() == [[2.0, -0.5]]
    module = randomized(RPReLU(12))
    x_BND = pictures(CLASS)
    assert_rows(module(x_BND), activated(flat(x_BND), module))


def test_rprelu_keeps_its_precision_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert RPReLU(12)(torch.randn(2, 12)).dtype == torch.float32


def test_an_affine_sum_scales_and_shifts_its_branch_and_drops_both() -> None:
    module = Affine(0.1, Plain(0.25)).build(EVEN).double()
    x_BND, branch_BND = pictures(EVEN), pictures(EVEN)
    torch.testing.assert_close(module(x_BND, branch_BND), x_BND + 0.1 * branch_BND)
    module = randomized(module)
    draw_B = torch.tensor([0.1, 0.9], dtype=torch.float64)
    found = module(x_BND, branch_BND, draw_B)
    expected = x_BND[0] + (branch_BND[0] * module.affine.factor + module.affine.offset) / 0.75
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[1], x_BND[1])


# ------------------------------------------------------------------------------------------------ maps, attention, blocks


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("out", [12, 36, 4])
def test_a_binary_map_is_its_equation_whatever_its_width(out: int, mode: str) -> None:
    module = randomized(Binary().build(12, out)).train(mode == "training")
    x_BND = pictures(CLASS)
    assert_rows(module(x_BND), projected(flat(x_BND), module))


def test_a_binary_mlp_is_two_maps_and_its_shortcut_takes_neighbors_of_copies() -> None:
    module = randomized(BinaryMlp(3).build(EVEN)).train()
    x_BND = pictures(EVEN)
    assert_rows(module(x_BND), projected(projected(flat(x_BND), module.up), module.down))


def test_real_weights_have_the_names_and_shapes_of_binary_ones() -> None:
    """So that the second stage of a training begins with the weights of the first."""
    real, binary = Binary(RealWeights()).build(12, 36), Binary().build(12, 36)
    sizes = [{name: value.shape for name, value in one.state_dict().items()} for one in (real, binary)]
    assert sizes[0] == sizes[1]
    binary.load_state_dict(real.state_dict())


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize(("shape", "side"), [(EVEN, 2), (EVEN, 1), (CLASS, 1)])
def test_binary_attention_is_its_equation(shape: Shape, side: int, mode: str) -> None:
    module = randomized(BinaryAttention(3, side).build(shape)).train(mode == "training")
    module.step.data.fill_(1.7 / (shape.length // side**2))  # about half of the probabilities are above half a step
    x_BND = pictures(shape)
    expected = attended(flat(x_BND), module, shape, side, 2)
    y_BND, attention_BHMN = module.explained(x_BND)
    assert_rows(y_BND, expected)
    assert attention_BHMN.shape == (2, 3, shape.length, shape.length // side**2)
    assert set(attention_BHMN.unique().tolist()) == {0.0, module.step.item()}


def test_a_step_below_zero_does_not_turn_attention_around() -> None:
    module = BinaryAttention(3).build(EVEN).double().train()
    x_BND = pictures(EVEN)
    results = []
    for step in (-0.1, FLOOR):
        module.step.data.fill_(step)
        results.append(module.explained(x_BND))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_binary_attention_starts_with_the_papers_step() -> None:
    assert BinaryAttention(3).build(EVEN).step.item() == pytest.approx(0.005)


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_a_binary_block_is_its_equation_with_pools_of_the_normalized_tokens(mode: str) -> None:
    spec = BinaryBlock(BinaryAttention(3, 2, step=0.3), BinaryMlp(2), branches=CROSS)
    module, shape = spec.build(EVEN)
    assert shape == EVEN
    module = randomized(module).train(mode == "training")
    x_BND = pictures(EVEN)
    rows = flat(x_BND)
    y = attended(normed(rows, module.norm1), module.attention, EVEN, 2, 2)
    rows = plus(rows, affine(y, module.sum1.affine))
    z = normed(rows, module.norm2)
    fed = projected(projected(z, module.mlp.up), module.mlp.down)
    pools = [affine(window_means(z, EVEN, one), pool.affine) for one, pool in zip(CROSS, module.pools, strict=True)]
    assert_rows(module(x_BND), plus(rows, affine(fed, module.sum2.affine), *pools))


def test_pools_start_at_nothing_and_are_never_dropped() -> None:
    spec = BinaryBlock(BinaryAttention(3), residual=Affine(0.1, Plain(0.5)), branches=CROSS)
    module, _ = spec.build(EVEN)
    module.double()
    assert module.draws == 2 and [pool.affine.factor.abs().sum().item() for pool in module.pools] == [0.0, 0.0]
    for pool in module.pools:
        pool.affine.factor.data.fill_(1.0)
    module.eval()
    x_BND = pictures(EVEN)
    all_dropped = module(x_BND, torch.full((2, 2), 0.9, dtype=torch.float64))
    z_BND = module.norm2(x_BND)
    torch.testing.assert_close(all_dropped, x_BND + sum(pool(z_BND) for pool in module.pools))


def test_no_fast_path_takes_a_binary_block_for_a_plain_one() -> None:
    assert not is_plain(BinaryBlock(BinaryAttention(3), residual=Plain()).build(EVEN)[0])


# ------------------------------------------------------------------------------------------------ merging, readout


def squares_as_kernels(rows: Rows, shape: Shape) -> Rows:
    out = []
    for start in range(0, len(rows), shape.length):
        for i in range(0, shape.height, 2):
            for j in range(0, shape.width, 2):
                inside = [[rows[start + (i + a) * shape.width + j + b] for b in range(2)] for a in range(2)]
                out.append([inside[a][b][c] for c in range(shape.dim) for a in range(2) for b in range(2)])
    return out


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_binary_merging_is_its_equation(mode: str) -> None:
    module, shape = BinaryMerge().build(EVEN)
    assert shape == Shape(24, 2, 3)
    module = randomized(module).train(mode == "training")
    x_BND = pictures(EVEN)
    n = normed(flat(x_BND), module.norm1)
    shift = module.shift.repeat_interleave(4)  # channels first, as in a kernel
    y = normed(one_bit(squares_as_kernels(n, EVEN), shift, module.product.weight, 0.0), module.norm2)
    assert_rows(module(x_BND), activated(plus(y, [x * 2 for x in square_means(n, EVEN, 2)]), module.act))


def test_real_merging_is_a_convolution_between_two_norms() -> None:
    module, shape = RealMerge().build(EVEN)
    assert shape == Shape(24, 2, 3) and module.weight.shape == (24, 12, 2, 2)
    module = randomized(module).train()
    x_BND = pictures(EVEN)
    n_BND = module.norm1(x_BND)
    map_BDHW = n_BND.transpose(1, 2).unflatten(2, (4, 6))
    y_BND = nn.functional.conv2d(map_BDHW, module.weight, stride=2).flatten(2).transpose(1, 2)
    torch.testing.assert_close(module(x_BND), module.norm2(y_BND))


def test_a_class_token_is_read_behind_a_norm_over_all_tokens() -> None:
    module = randomized(Tokens(("class",), TokenBatchNorm()).build(CLASS, 9)).train()
    x_BND = pictures(CLASS)
    expected = normed(flat(x_BND), module.norm)
    torch.testing.assert_close(module.features(x_BND)["class"].tolist(), [expected[0], expected[CLASS.length]])


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (BinaryAttention(5), EVEN, r"heads: 5 heads do not divide a width of 12"),
        (BinaryAttention(3, 4), EVEN, r"reduction: squares of 4 x 4 do not tile a grid of 4 x 6. Use one of \[1, 2\]"),
        (BinaryAttention(3, 2), CLASS, r"reduction: squares tile patches, and class belong to none"),
        (BinaryMlp(0), EVEN, r"ratio: 0 times a width of 12"),
        (BinaryMerge(), CLASS, r"squares tile patches, and class belong to none"),
        (RealMerge(), replace(EVEN, height=3), r"a grid of 3 x 6 cannot be halved"),
        (PoolBranch(3, 1), CLASS, r"class have no neighbors"),
        (PoolBranch(2, 1), EVEN, r"a window of 2 x 1 has no middle"),
        (BinaryBlock(BinaryAttention(3), branches=(PoolBranch(1, 4),)), EVEN, r"branches\[0\]: a window of 1 x 4"),
    ],
)
def test_impossible_binary_parts_are_refused_at_build(spec: BinaryBlock, shape: Shape, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec.build(shape)


def test_widths_without_a_shortcut_are_refused() -> None:
    with pytest.raises(SpecError, match=r"a binary map from 12 to 30 features has no shortcut"):
        Binary().build(12, 30)


@pytest.mark.parametrize("step", [0.0, 0, -1, math.nan])
def test_a_step_that_is_not_above_zero_is_refused(step: float) -> None:
    with pytest.raises(SpecError, match=f"step: a step of {step} "):
        BinaryAttention(3, step=step)
