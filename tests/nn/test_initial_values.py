"""The first values of ConViT, CaiT, Swin, PiT and the scaled-down models are those of the papers and their code."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.init import FanInUniform, Filled, Identity, XavierNormal
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.model import VisionTransformer
from frugalvit.nn.residual import LayerScale
from frugalvit.nn.score import GatePosition, MixHeads, PositionGate, centers
from frugalvit.nn.shape import Shape
from frugalvit.spec import decode, encode
from frugalvit.zoo import cait as cait_file
from frugalvit.zoo.cait import cait
from frugalvit.zoo.change import with_lsa, with_spt
from frugalvit.zoo.convit import convit, convit_tiny
from frugalvit.zoo.find import model
from frugalvit.zoo.pit import pit
from frugalvit.zoo.small import small_cait, small_pit, small_swin, small_t2t, small_vit
from frugalvit.zoo.swin import swin


def assert_normal(tensor: Tensor, std: float) -> None:
    values, n = tensor.detach().flatten().double(), tensor.numel()
    assert abs(values.mean()) < 5 * std / math.sqrt(n)
    assert abs(values.std() / std - 1) < 5 / math.sqrt(2 * n)
    assert n < 500 or values.abs().max() > 2 * std  # neither cut nor uniform


def assert_uniform(tensor: Tensor, bound: float) -> None:
    values, n = tensor.detach().flatten().double(), tensor.numel()
    assert values.abs().max() <= bound
    assert abs(values.std() / (bound / math.sqrt(3)) - 1) < 5 / math.sqrt(n)


# ------------------------------------------------------------------------------------------------ ConViT

GRID = Shape(64, 14, 14)
INTERIOR = 7 * 14 + 7


def gate(heads: int, strength: float = 1.0) -> PositionGate:
    return GatePosition(strength).build(heads, GRID, GRID)


def distances(query: int) -> Tensor:
    """From one patch of the grid to each of the others, in patches."""
    return torch.tensor([math.hypot(n // 14 - query // 14, n % 14 - query % 14) for n in range(196)])


@pytest.mark.parametrize(("heads", "peak"), [(9, 0.318), (4, 0.193), (16, 0.193)])
def test_each_head_looks_at_its_own_place_as_sharply_as_documented(heads: int, peak: float) -> None:
    attention_HN = gate(heads).positional()[:, INTERIOR]
    assert attention_HN.max(1).values.tolist() == pytest.approx([peak] * heads, abs=5e-4)
    torch.testing.assert_close(attention_HN.sum(1), torch.ones(heads))


def test_nine_heads_look_at_the_nine_patches_around_their_query() -> None:
    found = gate(9).positional()[:, INTERIOR].argmax(1)
    # head h1 + 3 h2 looks h2 − 1 to the right and h1 − 1 down
    assert found.tolist() == [INTERIOR + 14 * (h % 3 - 1) + h // 3 - 1 for h in range(9)]


def test_mean_distances_are_those_of_center_edge_and_corner_heads() -> None:
    far = gate(9).positional()[:, INTERIOR] @ distances(INTERIOR)
    corner, edge, center = 1.60, 1.25, 0.80
    assert far.tolist() == pytest.approx([corner, edge, corner, edge, center, edge, corner, edge, corner], abs=5e-3)
    assert (gate(4).positional()[:, INTERIOR] @ distances(INTERIOR)).tolist() == pytest.approx([1.05] * 4, abs=5e-3)


def test_attention_without_strength_is_uniform_and_its_nonlocality_is_known() -> None:
    attention_HNN = gate(4, 0.0).positional()
    torch.testing.assert_close(attention_HNN, torch.full((4, 196, 196), 1 / 196))
    every_NN = torch.stack([distances(query) for query in range(196)])
    assert (attention_HNN * every_NN).sum((1, 2)).div(196).tolist() == pytest.approx([7.281] * 4, abs=5e-4)


@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize(
    ("heads", "offsets"), [(1, [0]), (4, [-0.5, 0.5]), (9, [-1, 0, 1]), (16, [-1.5, -0.5, 0.5, 1.5])], ids=str
)
def test_centers_lie_on_a_square_and_strength_is_one_over_the_span(heads: int, offsets: list[float], strength: float) -> None:
    weight_H3 = gate(heads, strength).weight
    centers = (-weight_H3[:, :2] / (2 * weight_H3[:, 2:])).tolist()  # (right, down)
    assert centers == [[right, down] for right in offsets for down in offsets]
    assert (-1 / weight_H3[:, 2]).tolist() == [1 / strength] * heads


@pytest.mark.parametrize(("heads", "placed"), [(3, 1), (5, 4), (12, 9)])
def test_heads_beyond_a_square_number_start_almost_blind(heads: int, placed: int) -> None:
    torch.manual_seed(1)
    one = gate(heads)
    torch.manual_seed(1)
    half = gate(heads, 0.5)
    rest_R3 = one.weight[placed:]
    assert one.weight[:placed, 2].tolist() == [-1.0] * placed
    assert 0 < rest_R3.abs().max() < 5 * 0.02 and rest_R3.abs().min() > 0
    torch.testing.assert_close(half.weight, one.weight / 2)


def test_the_rows_beyond_a_square_number_are_normal() -> None:
    rest = torch.cat([centers(3)[1:] for _ in range(200)])
    assert_normal(rest, 0.02)


def test_the_gate_opens_at_sigma_of_one() -> None:
    one = gate(9)
    assert one.gate_H.tolist() == [1.0] * 9
    assert one.share().flatten().tolist() == pytest.approx([0.7311] * 9, abs=5e-5)
    assert not one.bias.any()
    assert GatePosition(gate=0.0).build(4, GRID, GRID).share().flatten().tolist() == [0.5] * 4


@pytest.fixture(scope="module")
def convit_toy() -> VisionTransformer:
    return convit(dim=108, heads=9, image=64, classes=10, drop_path=0.1).build(seed=0)


def test_the_local_blocks_of_convit_start_with_values_that_are_the_tokens(convit_toy: VisionTransformer) -> None:
    blocks = [layer for layer in convit_toy.layers if hasattr(layer, "attention")]
    assert len(blocks) == 12
    for index, block in enumerate(blocks):
        q, k, v = block.attention.qkv.weight.chunk(3)
        assert block.attention.qkv.bias is None
        assert_normal(torch.cat([q, k]), 0.02)
        assert_normal(block.attention.out.weight, 0.02)
        assert not block.attention.out.bias.any()
        if index < 10:
            assert torch.equal(v, torch.eye(108))
            assert isinstance(block.attention.after[0], PositionGate)
        else:
            assert_normal(v, 0.02)
            assert not block.attention.after


def test_the_class_token_of_convit_joins_behind_ten_blocks_and_has_no_position() -> None:
    layers = convit_tiny(drop_path=0.1).layers
    assert isinstance(layers[0], AddPositions)
    assert [index for index, layer in enumerate(layers) if isinstance(layer, Join)] == [11]
    rates = [layer.residual.drop for layer in layers if isinstance(layer, Block)]
    assert rates == pytest.approx([0.1 * i / 11 for i in range(12)])
    assert [layer.attention.after for layer in layers[1:11]] == [(GatePosition(1.0),)] * 10
    assert convit_tiny(strength=0.5).layers[1].attention.after == (GatePosition(0.5),)


def test_the_rest_of_convit_starts_as_deit(convit_toy: VisionTransformer) -> None:
    assert_normal(convit_toy.layers[0].positions, 0.02)
    assert_normal(convit_toy.layers[11].tokens["class"], 0.02)
    assert_normal(convit_toy.layers[1].mlp.up.weight, 0.02)
    assert_uniform(convit_toy.tokenizer.weight, 1 / math.sqrt(768))


# ------------------------------------------------------------------------------------------------ CaiT

FIRST_GAMMA = {  # the paper's table of models
    "XXS24": 1e-5,
    "XXS36": 1e-6,
    "XS24": 1e-5,
    "XS36": 1e-6,
    "S24": 1e-5,
    "S36": 1e-6,
    "S48": 1e-6,
    "M24": 1e-5,
    "M36": 1e-6,
    "M48": 1e-6,
}


@pytest.mark.parametrize("size", FIRST_GAMMA)
def test_layer_scale_starts_as_in_the_papers_table_and_class_blocks_drop_nothing(size: str) -> None:
    layers = getattr(cait_file, size)(drop_path=0.3).layers
    patch_blocks = [layer for layer in layers if isinstance(layer, Block)]
    class_blocks = [layer for layer in layers if isinstance(layer, SummaryBlock)]
    assert len(patch_blocks) == int(size[-2:]) and len(class_blocks) == 2
    assert {block.residual for block in patch_blocks} == {LayerScale(FIRST_GAMMA[size], 0.3)}
    assert {block.residual for block in class_blocks} == {LayerScale(FIRST_GAMMA[size], 0.0)}
    assert {block.attention.before + block.attention.after for block in patch_blocks} == {(MixHeads(), MixHeads())}
    assert {block.attention.before + block.attention.after for block in class_blocks} == {()}


@pytest.fixture(scope="module")
def cait_toy() -> VisionTransformer:
    return cait(dim=96, heads=8, depth=12, layer_scale=1e-5, image=64, classes=10).build(seed=0)


def test_every_matrix_of_cait_is_a_normal_of_two_hundredths_and_every_gamma_its_first_value(
    cait_toy: VisionTransformer,
) -> None:
    mixtures = []
    for name, parameter in cait_toy.named_parameters():
        if name.startswith("tokenizer"):
            assert_uniform(parameter, 1 / math.sqrt(768))
        elif "gamma" in name:
            assert torch.equal(parameter, torch.full((96,), 1e-5))
        elif ".before." in name or ".after." in name:
            mixtures.append(parameter.detach()) if parameter.ndim == 2 else None
            assert parameter.ndim == 2 or not parameter.any()
        elif parameter.ndim >= 2:
            assert_normal(parameter, 0.02)
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("weight")))), name
    assert [mixture.shape for mixture in mixtures] == [(8, 8)] * 24
    assert_normal(torch.cat(mixtures), 0.02)


# ------------------------------------------------------------------------------------------------ Swin, PiT


def test_swin_starts_with_normals_of_two_hundredths() -> None:
    module = swin(dim=24, heads=(2, 4), depths=(2, 2), image=56, classes=10).build(seed=0)
    for name, parameter in module.named_parameters():
        if name.startswith("tokenizer"):
            assert_uniform(parameter, 1 / math.sqrt(48))
        elif parameter.ndim == 2:
            assert_normal(parameter, 0.02)
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("weight")))), name
    assert module.layers[1].attention.before[0].bias.shape == (13 * 13, 2)


def test_pit_pools_with_pytorchs_default_convolution() -> None:
    module = pit(dim=48, heads=(2, 4), depths=(1, 1), image=64, classes=10).build(seed=0)
    pool = next(layer for layer in module.layers if hasattr(layer, "convolution"))
    assert_uniform(pool.convolution.weight, 1 / 3)  # nine inputs a channel
    assert_uniform(pool.convolution.bias, 1 / 3)
    assert_uniform(module.tokenizer.weight, 1 / math.sqrt(768))
    assert_normal(module.layers[0].positions, 0.02)
    assert_normal(module.layers[1].tokens["class"], 0.02)


# ------------------------------------------------------------------------------------------------ scaled-down models


@pytest.mark.parametrize("times", [1, 2, 3, 9])
def test_xavier_normal_counts_fan_out_as_often_as_told(times: int) -> None:
    weight = torch.empty(300, 200)
    XavierNormal(times).fill(weight, 200, 300)
    assert_normal(weight, math.sqrt(2 / (200 + times * 300)))
    joined = torch.empty(300 * times, 200)
    torch.nn.init.xavier_normal_(joined)
    assert abs(weight.std() / joined.std() - 1) < 0.02


def check_xavier_block(block: torch.nn.Module, dim: int, inner: int, hidden: int) -> None:
    assert_normal(block.attention.out.weight, math.sqrt(2 / (dim + inner)))
    assert_normal(block.mlp.up.weight, math.sqrt(2 / (dim + hidden)))
    assert_normal(block.mlp.down.weight, math.sqrt(2 / (dim + hidden)))
    assert not any(bias.any() for name, bias in block.named_parameters() if name.endswith("bias"))


def test_the_scaled_down_vit_starts_with_xavier_and_unit_normals() -> None:
    module = small_vit(depth=2).build(seed=0)
    assert_normal(module.tokenizer.weight, math.sqrt(2 / (48 + 192)))
    assert not module.tokenizer.bias.any()
    assert_normal(module.layers[0].tokens["class"], 1.0)
    assert_normal(module.layers[1].positions, 1.0)
    block = module.layers[2]
    assert block.attention.qkv.bias is None
    assert_normal(block.attention.qkv.weight, math.sqrt(2 / (192 + 3 * 192)))  # q, k and v were one matrix
    check_xavier_block(block, 192, 192, 384)
    assert_normal(module.readout.heads["class"].weight, math.sqrt(2 / (192 + 10)))
    assert not module.readout.heads["class"].bias.any()


def test_the_scaled_down_cait_starts_with_xavier_unit_normals_and_unit_mixtures() -> None:
    module = small_cait(depth=3).build(seed=0)
    assert_normal(module.layers[0].positions, 1.0)
    assert_normal(module.layers[4].tokens["class"], 1.0)
    mixtures = []
    for block in (*module.layers[1:4], *module.layers[5:]):
        qkv = block.attention.qkv
        weights = qkv.weight.chunk(3) if hasattr(qkv, "weight") else (qkv.q.weight, qkv.k.weight, qkv.v.weight)
        assert [weight.shape for weight in weights] == [(256, 192)] * 3
        assert_normal(weights[0], math.sqrt(2 / (192 + 256)))
        assert_normal(torch.cat(weights[1:]), math.sqrt(2 / (192 + 512)))  # k and v were one matrix
        check_xavier_block(block, 192, 256, 384)
        for term in (*block.attention.before, *block.attention.after):
            assert term.bias is None
            mixtures.append(term.weight)
    assert_normal(torch.stack(mixtures), 1.0)
    assert len(mixtures) == 10


def test_the_scaled_down_cait_scales_its_branches_by_block_number() -> None:
    layers = small_cait(drop_path=0.1).layers
    below = [layer.residual for layer in layers if isinstance(layer, Block)]
    above = [layer.residual for layer in layers if isinstance(layer, SummaryBlock)]
    assert below == [LayerScale(0.1, 0.1)] * 18 + [LayerScale(1e-5, 0.1)] * 6
    assert above == [LayerScale(0.1, 0.1)] * 2
    gammas = small_cait(depth=19).build(seed=0).layers
    assert torch.equal(gammas[18].sum1.gamma, torch.full((192,), 0.1))
    assert torch.equal(gammas[19].sum2.gamma, torch.full((192,), 1e-5))


def test_the_scaled_down_pit_counts_pixels_in_its_convolutions() -> None:
    module = small_pit(depths=(1, 1, 1)).build(seed=0)
    weights = {"tokenizer": module.tokenizer.weight, "pool": module.layers[3].convolution.weight}
    assert_normal(weights["tokenizer"], math.sqrt(2 / (12 + 4 * 96)))
    assert_normal(weights["pool"], math.sqrt(2 / (9 + 9 * 192)))
    for weight in weights.values():  # as torch counts the fans of a convolution
        again = torch.nn.init.xavier_normal_(torch.empty_like(weight))
        assert abs(weight.std() / again.std() - 1) < 0.1
    assert_normal(module.layers[3].full.weight, math.sqrt(2 / (192 + 192)))
    assert_normal(module.layers[3].summary.weight, math.sqrt(2 / (96 + 192)))
    assert not module.layers[3].convolution.bias.any() and not module.layers[3].full.bias.any()
    assert_normal(module.layers[0].tokens["class"], 1.0)
    assert_normal(module.layers[1].positions, 1.0)
    check_xavier_block(module.layers[2], 96, 96, 192)
    assert {layer.residual.drop for layer in small_pit(drop_path=0.1).layers if isinstance(layer, Block)} == {0.1}


def test_the_scaled_down_swin_starts_at_pytorchs_defaults() -> None:
    module = small_swin(depths=(2, 2), heads=(3, 6)).build(seed=0)
    assert_normal(module.layers[1].positions, 0.02)
    block = module.layers[2]
    assert_normal(block.attention.before[0].bias, 0.02)
    for one, width in ((block.attention.qkv, 96), (block.attention.out, 96), (block.mlp.up, 96), (block.mlp.down, 192)):
        assert_uniform(one.weight, 1 / math.sqrt(width))
        assert_uniform(one.bias, 1 / math.sqrt(width))
    assert_uniform(module.layers[4].linear.weight, 1 / math.sqrt(384))
    assert module.layers[4].linear.bias is None
    rates = [layer.residual.drop for layer in small_swin(drop_path=0.1).layers if isinstance(layer, Block)]
    assert rates == pytest.approx([0.1 * i / 11 for i in range(12)])


def test_only_the_first_stages_of_the_scaled_down_swin_shift() -> None:
    scopes = [layer.attention.scope for layer in small_swin().layers if isinstance(layer, Block)]
    assert [scope.shift for scope in scopes] == [0, 2] + [0, 2] * 3 + [0] * 4
    assert {scope.side for scope in scopes} == {4}


def test_the_scaled_down_t2t_starts_with_normals_of_two_hundredths() -> None:
    module = small_t2t(depth=2).build(seed=0)
    for name, parameter in module.named_parameters():
        if parameter.ndim >= 2:
            assert_normal(parameter, 0.02)
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("weight")))), name
    assert module.layers[2].attention.inner.qkv.bias is None


@pytest.mark.parametrize(
    ("name", "width"), [("small_vit_32", 16), ("small_cait_32", 64), ("small_pit_32", 48), ("small_swin_32", 32)]
)
def test_learned_temperatures_start_at_one_over_the_root_of_the_head_width(name: str, width: int) -> None:
    module = with_lsa(model(name)).build(seed=0)
    scales = [parameter for key, parameter in module.named_parameters() if key.endswith("scale_H")]
    assert len(scales) == len([layer for layer in module.layers if hasattr(layer, "attention")])
    assert {value for scale in scales for value in scale.tolist()} == {torch.tensor(width**-0.5).item()}


def test_the_token_transformers_temperature_starts_at_the_width_that_comes_in() -> None:
    module = with_lsa(with_spt(small_t2t(image=64, depth=1))).build(seed=0)
    scales = [one.scale.scale_H.item() for one in module.tokenizer.transformers]
    assert scales == pytest.approx([(9 * 15) ** -0.5, (9 * 64) ** -0.5])


def test_shifted_layers_start_as_the_layers_they_replace() -> None:
    vit = with_spt(small_vit(depth=1)).build(seed=0).tokenizer.linear
    assert_normal(vit.weight, math.sqrt(2 / (5 * 48 + 192)))
    assert not vit.bias.any()
    pit_pool = with_spt(small_pit(depths=(1, 1), heads=(2, 4))).build(seed=0).layers[3]
    assert_normal(pit_pool.linear.weight, math.sqrt(2 / (20 * 96 + 192)))
    assert_normal(pit_pool.summary.weight, math.sqrt(2 / (96 + 192)))
    assert not pit_pool.linear.bias.any()
    swin_merge = with_spt(small_swin(depths=(1, 1), heads=(3, 6))).build(seed=0).layers[2]
    assert_uniform(swin_merge.linear.weight, 1 / math.sqrt(20 * 96))
    assert_uniform(swin_merge.linear.bias, 1 / math.sqrt(20 * 96))
    assert with_spt(small_swin()).layers[0] == AddPositions()


def test_filled_fills_with_its_value() -> None:
    bias = torch.empty(5)
    Filled(-6.9).fill(bias, 3, 5)
    assert torch.equal(bias, torch.full((5,), -6.9))
    assert decode(json.loads(json.dumps(encode(Filled(-6.9)))), Filled) == Filled(-6.9)


def test_identity_and_fan_in_are_what_their_names_say() -> None:
    square, wide = torch.empty(7, 7), torch.empty(40, 90)
    Identity().fill(square, 7, 7)
    FanInUniform().fill(wide, 90, 40)
    assert torch.equal(square, torch.eye(7))
    assert_uniform(wide, 1 / math.sqrt(90))


def test_a_seed_settles_the_heads_beyond_a_square_too() -> None:
    spec = convit(dim=60, heads=5, depth=2, local=1, image=32, classes=3)
    one, two = spec.build(seed=1).state_dict(), spec.build(seed=1).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
