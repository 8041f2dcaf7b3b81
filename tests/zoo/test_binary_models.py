"""BinaryViT and its ladder have the sizes and costs of the paper's tables; every model can be made binary, or says why not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from frugalvit.deploy.packed_size import packed_size
from frugalvit.errors import SpecError
from frugalvit.measure.cost import Cost, ModelCost, cost
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_block import BinaryBlock
from frugalvit.nn.binary_channels import Affine, TokenBatchNorm
from frugalvit.nn.binary_linear import Binary, BinaryMlp, CenteredSigns, RealWeights
from frugalvit.nn.binary_merge import BinaryMerge, RealMerge
from frugalvit.nn.layers import AddPositions, Join, Layer, Normalize
from frugalvit.nn.map_norm import BatchNormalized
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Mean, Tokens
from frugalvit.nn.residual import LayerScale, Plain
from frugalvit.spec import decode, encode, swap
from frugalvit.zoo.binaryvit import CROSS, binary_deit, binaryvit
from frugalvit.zoo.cait import cait
from frugalvit.zoo.change import binarized, with_binary_linears, with_distillation, with_layer_scale, with_lsa, with_spt
from frugalvit.zoo.convit import convit
from frugalvit.zoo.deit import deit
from frugalvit.zoo.find import model, models
from frugalvit.zoo.resnet import resnet18
from frugalvit.zoo.swin import swin
from frugalvit.zoo.vit import vit

SIZES = dict(image=16, classes=5)
PYRAMID = binaryvit(dim=16, heads=(2, 4), depths=(1, 2), ratios=(4, 2), reductions=(2, 1), patch=2, **SIZES)
FLAT = binary_deit(dim=24, heads=3, depth=2, patch=4, **SIZES)
LADDER = {
    "class": FLAT,
    "mean": binary_deit(dim=24, heads=3, depth=2, patch=4, summary=(), **SIZES),
    "pool": binary_deit(dim=24, heads=3, depth=2, patch=4, summary=(), branches=CROSS, **SIZES),
    "affine": binary_deit(dim=24, heads=3, depth=2, patch=4, summary=(), branches=CROSS, residual=Affine(), **SIZES),
    "pyramid": PYRAMID,
    "star": replace(PYRAMID, layers=swap(PYRAMID.layers, BinaryMerge, lambda _: RealMerge())),
}


@cache
def costs(name: str) -> ModelCost:
    """Of the model with each kind of block once a stage, then counted as often as it stands there: deep models take long."""
    spec = model(name)
    kept: list[Layer] = []
    times: list[int] = []
    start = 0
    for layer in spec.layers:
        if isinstance(layer, BinaryBlock) and layer in kept[start:]:
            times[kept.index(layer, start)] += 1
            continue
        start = start if isinstance(layer, BinaryBlock) else len(kept) + 1
        kept.append(layer)
        times.append(1)
    places: list[Cost] = []
    for place, count in zip(cost(replace(spec, layers=tuple(kept))).places, (1, *times, 1), strict=True):
        places += [place] * count
    return ModelCost(tuple(places))


# BOPs e9, FLOPs e8, OPs e8: published to two digits where a row says so, else counted by the authors' rule
TABLE = {
    "binary_deit_small_patch16_224": ("4.541", "0.582", "1.291"),
    "binary_deit_small_patch16_224_mean": ("4.516", "0.582", "1.287"),
    "binary_deit_small_patch16_224_pool": ("4.516", "0.618", "1.324"),
    "binary_deit_small_patch16_224_affine": ("4.516", "0.636", "1.342"),
    "binaryvit_small_patch4_224": ("3.822", "0.192", "0.789"),  # published: 0.19, 0.79
    "binaryvit_small_patch4_224_star": ("3.745", "0.963", "1.548"),
}


@pytest.mark.parametrize("name", TABLE)
def test_operations_are_those_of_the_papers_table(name: str) -> None:
    bops, flops, ops = (float(text) for text in TABLE[name])
    found = costs(name)
    assert found.bops / 1e9 == pytest.approx(bops, abs=6e-4)
    assert found.flops / 1e8 == pytest.approx(flops, abs=6e-4)
    assert found.ops / 1e8 == pytest.approx(ops, abs=6e-4)


def test_binaryvit_has_the_papers_parameters_to_the_last_digit() -> None:
    found = costs("binaryvit_small_patch4_224")
    assert (found.bits, found.parameters - found.bits) == (21_196_800, 1_294_971)
    with torch.device("meta"):
        module = model("binaryvit_small_patch4_224").build()
    assert sum(one.numel() for one in module.parameters()) == 22_491_771
    assert round((22_491_771 + sum(one.numel() for one in module.buffers())) / 1e6, 1) == 22.6  # as printed, with statistics


def test_a_packed_binaryvit_is_an_eleventh_of_its_floats() -> None:
    found, packed = costs("binaryvit_small_patch4_224"), packed_size(model("binaryvit_small_patch4_224"))
    assert packed is not None and 21_196_800 // 8 < packed < 8e6 < 4 * found.parameters / 11


def test_the_papers_page_has_the_counted_costs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "papers" / "binaryvit.md").read_text(encoding="utf-8")
    for name in TABLE:
        found = costs(name)
        counts = " | ".join(f"{count / 1e6:.1f}" for count in (found.bops, found.flops, found.ops))
        assert f"| {name} | {found.parameters:,} | {found.bits:,} | {counts} |" in page
        packed = packed_size(model(name))
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert row.endswith(f"| {packed / 1e6:.2f} |" if packed else "|  |")
    assert not [name for name in models() if name.startswith(("binary", "react", "bireal")) and f"| {name} |" not in page]


def test_tokens_positions_and_merging_enter_where_the_papers_code_has_them() -> None:
    blocks = [[BinaryBlock] * depth for depth in (3, 4, 8, 4)]
    for name, merge in (("", BinaryMerge), ("_star", RealMerge)):
        spec = model(f"binaryvit_small_patch4_224{name}")
        kinds = [Normalize, AddPositions, *blocks[0]]
        for stage in blocks[1:]:
            kinds += [merge, AddPositions, *stage]
        assert [type(layer) for layer in spec.layers] == kinds
    found = [layer for layer in spec.layers if isinstance(layer, BinaryBlock)]
    assert [(one.attention.heads, one.attention.reduction, one.mlp.ratio) for one in found] == [
        *[(1, 8, 8)] * 3,
        *[(2, 4, 8)] * 4,
        *[(4, 1, 4)] * 8,
        *[(8, 1, 4)] * 4,
    ]
    assert {(one.branches, one.residual) for one in found} == {(CROSS, Affine(0.1))}
    assert spec.readout.norm == TokenBatchNorm(1e-5, 0.1)


def test_each_rung_of_the_ladder_adds_one_thing() -> None:
    rungs = [model(f"binary_deit_small_patch16_224{end}") for end in ("", "_mean", "_pool", "_affine")]
    blocks = [{layer for layer in rung.layers if isinstance(layer, BinaryBlock)} for rung in rungs]
    assert [len(some) for some in blocks] == [1] * 4
    one, two, three, four = (some.pop() for some in blocks)
    assert one == two == BinaryBlock(BinaryAttention(6), BinaryMlp(4), residual=Plain())
    assert three == replace(two, branches=CROSS)
    assert four == replace(three, residual=Affine())
    assert isinstance(rungs[0].layers[0], Join) and isinstance(rungs[0].readout, Tokens)
    assert all(not isinstance(rung.layers[0], Join) and isinstance(rung.readout, Mean) for rung in rungs[1:])


def test_first_values_are_those_of_the_release() -> None:
    module = LADDER["class"].build(seed=0)
    values = dict(module.named_parameters())
    assert values["layers.0.tokens.class"].abs().max() < 1e-5
    weight_OI = values["layers.2.attention.query.product.weight"]
    assert weight_OI.abs().max() <= 24**-0.5 and weight_OI.std().item() == pytest.approx((24 * 3) ** -0.5, rel=0.1)
    zeros = [key for key in values if key.endswith(("shift", "before", "after", "shift_q", "shift_k", "shift_v"))]
    assert len(zeros) == 2 * (3 + 6 * 3 + 2) and all(values[key].abs().sum() == 0 for key in zeros)
    pools = [value for key, value in LADDER["affine"].build().named_parameters() if ".pools." in key]
    assert len(pools) == 2 * 4 * 2 and all(value.abs().sum() == 0 for value in pools)


@pytest.mark.parametrize("name", LADDER)
def test_binary_models_survive_json_and_every_parameter_hears_of_the_loss(name: str) -> None:
    spec = LADDER[name]
    assert decode(json.loads(json.dumps(encode(spec))), Model) == spec
    module = spec.build(seed=0).train()
    for part in module.modules():  # pools that start at zero send nothing back
        if hasattr(part, "factor"):
            nn.init.normal_(part.factor)
    outputs = module(torch.randn(4, 3, 16, 16))
    nn.functional.cross_entropy(outputs["class"], torch.arange(4)).backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0 or key.endswith(("offset", "product.weight", "step")), key
    silent = [key for key, one in module.named_parameters() if one.grad.abs().sum() == 0]
    assert len(silent) < 3, silent


def test_models_for_small_pictures_have_grids_that_divide() -> None:
    for name in models():
        if not re.match(r"binary.*_tiny_", name):
            continue
        with torch.device("meta"):
            last = model(name).build().shapes[-1]
        assert (last.dim, last.height) in {(256, 8), (256, 4), (256, 6)}, name


def test_stochastic_depth_grows_through_all_stages() -> None:
    spec = binaryvit(dim=16, heads=(2, 4), depths=(1, 2), ratios=(4, 2), reductions=(2, 1), drop_path=0.2, **SIZES)
    rates = [layer.residual.inner.drop for layer in spec.layers if isinstance(layer, BinaryBlock)]
    assert rates == pytest.approx([0.0, 0.1, 0.2])
    module = spec.build().train()
    module(torch.randn(2, 3, 16, 16), module.random_draws(2))


def test_attention_of_a_binary_block_can_be_tapped() -> None:
    module = PYRAMID.build(taps=("attention[0]", "tokens[2]"), seed=0).eval()
    outputs = module(torch.randn(2, 3, 16, 16))
    assert outputs["attention[0]"].shape == (2, 2, 64, 16)
    assert outputs["tokens[2]"].shape == (2, 16, 32)


@pytest.mark.slow
def test_a_compiler_takes_binary_parts_in_one_graph_with_their_gradients_and_statistics() -> None:
    results = []
    for compiled in (False, True):
        module = nn.Sequential(*PYRAMID.build(seed=0).layers[2:4]).double().train()  # a block, and merging
        run = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
        torch.manual_seed(2)
        run(torch.randn(2, 64, 16, dtype=torch.float64)).square().sum().backward()
        statistics = [one.clone() for one in module.buffers()]
        results.append([*statistics, *(one.grad for one in module.parameters())])
    assert any(isinstance(one, BatchNormalized) for one in module.modules())
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain, atol=1e-9, rtol=1e-9)


# ------------------------------------------------------------------------------------------------ changes

DEIT = deit(dim=24, heads=3, depth=2, patch=4, **SIZES)


def test_binarized_deit_is_the_first_rung_but_for_its_first_values() -> None:
    spec = binarized(DEIT)
    assert spec.layers[2:] == FLAT.layers[2:]
    assert spec.readout.norm == FLAT.readout.norm
    assert [type(layer) for layer in spec.layers] == [type(layer) for layer in FLAT.layers]
    assert binarized(spec) == spec and binarized(PYRAMID) == PYRAMID


def test_binarized_keeps_how_branches_join() -> None:
    spec = binarized(with_layer_scale(DEIT, 0.3))
    assert [layer.residual for layer in spec.layers[2:]] == [LayerScale(0.3)] * 2
    assert len(binarized(with_distillation(DEIT)).heads) == 2


def test_binary_linears_change_the_maps_of_blocks_and_nothing_else() -> None:
    spec = with_binary_linears(DEIT)
    expected = swap(DEIT.layers[2:], type(DEIT.layers[2].mlp.linear), lambda _: Binary())
    assert spec == replace(DEIT, layers=(*DEIT.layers[:2], *expected))
    assert with_binary_linears(spec) == spec
    found = cost(spec)
    maps = 17 * 12 * 24**2
    assert found.bops == 2 * maps and found.macs == cost(DEIT).macs


def test_binary_linears_of_a_gated_model_are_counted_too() -> None:
    spec = convit(dim=24, heads=4, depth=3, local=2, patch=4, **SIZES)
    found = cost(with_binary_linears(spec))
    assert found.macs == cost(spec).macs
    assert found.bops == (2 * 16 + 17) * 12 * 24**2


def test_the_first_of_two_stages_trains_real_weights_under_the_same_names() -> None:
    first = swap(PYRAMID, CenteredSigns, lambda _: RealWeights())
    assert decode(json.loads(json.dumps(encode(first))), Model) == first
    PYRAMID.build().load_state_dict(first.build(seed=1).state_dict())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (with_lsa(DEIT), r"model.layers[2].attention: BinaryAttention has no place for HideSelf"),
        (cait(dim=24, heads=3, depth=1, patch=4, layer_scale=0.1, **SIZES), r"BinaryAttention has no place for MixHeads"),
        (swin(dim=24, heads=(3,), depths=(2,), patch=4, window=4, **SIZES), r"BinaryAttention has no place for RelativeBias"),
        (deit(dim=24, heads=3, depth=1, patch=4, mlp_ratio=2.5, **SIZES), r"model.layers[2].mlp.ratio: 2.5 times the width"),
        (vit(dim=24, heads=3, depth=1, patch=4, dropout=0.1, **SIZES), r"dropout: dropout has no place"),
        (resnet18(), "binarized changes the description of a transformer"),
    ],
)
def test_what_has_no_one_bit_form_is_refused(spec: Model, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        binarized(spec)


def test_widths_that_leave_no_shortcut_are_refused_when_the_change_is_made() -> None:
    with pytest.raises(SpecError, match=r"model\.layers\[2\]\.mlp: a binary map from 24 to 60 features"):
        with_binary_linears(deit(dim=24, heads=3, depth=1, patch=4, mlp_ratio=2.5, **SIZES))


def test_changes_of_attention_are_refused_by_binary_blocks_and_others_work() -> None:
    with pytest.raises(SpecError, match=r"model.layers: the blocks of this model are binary"):
        with_lsa(PYRAMID)
    module = with_distillation(with_spt(FLAT)).build(seed=0).train()
    assert set(module(torch.randn(2, 3, 16, 16))) == {"class", "distill"}


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (dict(ratios=(4,)), r"ratios: (4,) for depths (1, 2)"),
        (dict(reductions=(2, 1, 1)), r"reductions: (2, 1, 1) for depths (1, 2)"),
        (dict(heads=(2,)), r"heads: heads (2,) for depths (1, 2)"),
        (dict(drop_path=1.5), r"drop_path.drop: a drop rate of 1.5"),
    ],
)
def test_stages_that_do_not_match_are_refused(keywords: dict[str, object], message: str) -> None:
    sizes = dict(dim=16, heads=(2, 4), depths=(1, 2), ratios=(4, 2), reductions=(2, 1)) | keywords
    with pytest.raises(SpecError, match=re.escape(message)):
        binaryvit(**sizes, **SIZES)


@pytest.mark.slow
def test_a_tiny_pyramid_of_one_bit_learns_to_read_digits() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(digits.target), generator=generator)
    image_BCHW, label_B = torch.tensor(digits.images)[order, None].float() / 8 - 1, torch.tensor(digits.target)[order]
    sizes = dict(dim=32, heads=(1, 2), depths=(1, 1), ratios=(4, 4), reductions=(2, 1), patch=2, image=8)
    module = binaryvit(**sizes, channels=1, classes=10).build(seed=0).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.0)
    steps = 150
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / steps)
        some_B = torch.randint(0, 1400, (64,), generator=generator)
        loss = nn.functional.cross_entropy(module(image_BCHW[some_B])["class"], label_B[some_B])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right_B = module.eval()(image_BCHW[1400:])["class"].argmax(1) == label_B[1400:]
    assert right_B.float().mean() > 0.88  # 0.935 when this was written
