"""CaiT, ConViT, PiT, Swin and the scaled-down models have the sizes and the costs of the papers' tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from frugalvit.measure.cost import cost
from frugalvit.nn.attention import Attention, SkipAttention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.layers import AddPositions, AddSinusoid, Join, Layer, Normalize
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm, SummaryNorm
from frugalvit.nn.pooling import MergePatches, PoolTokens, SeparablePool, ShiftedMerge
from frugalvit.nn.scope import PatchesOnly
from frugalvit.nn.score import HideSelf, LearnedScale, MixHeads
from frugalvit.nn.tokenizer import ShiftedPatches
from frugalvit.zoo.change import with_distillation, with_lsa, with_spt
from frugalvit.zoo.find import model


@cache
def parameters(spec: Model) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in spec.build().parameters())


@cache
def macs(spec: Model) -> int:
    """By our count of the same model with every block once a stage, times how often it stands there: deep models take long."""
    kept: list[Layer] = []
    times: list[int] = []
    start = 0
    for layer in spec.layers:
        if isinstance(layer, (Block, SummaryBlock)) and layer in kept[start:]:
            times[kept.index(layer, start)] += 1
            continue
        start = start if isinstance(layer, (Block, SummaryBlock)) else len(kept) + 1
        kept.append(layer)
        times.append(1)
    places = cost(replace(spec, layers=tuple(kept))).places
    return sum(place.macs * count for place, count in zip(places, (1, *times, 1), strict=True))


@pytest.mark.parametrize(
    ("name", "depth"), [("cait_xxs24_224", "depth=3"), ("small_swin_32", "depths=[2, 4, 3]"), ("convit_tiny", "local=9")]
)
def test_blocks_of_one_kind_cost_the_same_wherever_they_stand(name: str, depth: str) -> None:
    assert macs(model(name, depth)) == cost(model(name, depth)).macs


def assert_printed(found: float, printed: str) -> None:
    """Within 1 % of one of the numbers that a table would print so."""
    half_a_digit = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    assert abs(found - float(printed)) <= half_a_digit + 0.01 * float(printed)


def sl(spec: Model) -> Model:
    return with_lsa(with_spt(spec))


# ------------------------------------------------------------------------------------------------ CaiT

# width, blocks, heads, millions of parameters at 224 (M-48: 448), GMACs at 224 and 384 (M-48: 448), as published
CAIT = {
    "xxs24": (192, 24, 4, "11.96", {224: "2.5", 384: "9.6"}),
    "xxs36": (192, 36, 4, "17.30", {224: "3.8", 384: "14.3"}),
    "xs24": (288, 24, 6, "26.56", {224: "5.4", 384: "19.3"}),
    "xs36": (288, 36, 6, "38.56", {224: "8.1", 384: "28.8"}),
    "s24": (384, 24, 8, "46.92", {224: "9.4", 384: "32.2"}),
    "s36": (384, 36, 8, "68.22", {224: "13.9", 384: "48.0"}),
    "s48": (384, 48, 8, "89.53", {224: "18.6", 384: "63.8"}),
    "m24": (768, 24, 16, "185.9", {224: "36.0", 384: "116.1"}),
    "m36": (768, 36, 16, "270.9", {224: "53.7", 384: "173.3"}),
    "m48": (768, 48, 16, "356.5", {448: "329.6"}),
}
CAIT_SIZES = [(size, image) for size, row in CAIT.items() for image in row[4]]
TIMM_CAIT = {
    "cait_xxs24_224": ("2.53", "11.96"),
    "cait_xxs24_384": ("9.63", "12.03"),
    "cait_xxs36_224": ("3.77", "17.30"),
    "cait_xxs36_384": ("14.35", "17.37"),
    "cait_xs24_384": ("19.28", "26.67"),
    "cait_s24_224": ("9.35", "46.92"),
    "cait_s24_384": ("32.17", "47.06"),
    "cait_s36_384": ("47.99", "68.37"),
    "cait_m36_384": ("173.11", "271.22"),
    "cait_m48_448": ("329.41", "356.46"),
}


def millions(count: int, printed: str) -> str:
    return f"{count / 1e6:.{len(printed.partition('.')[2])}f}"


@pytest.mark.parametrize(("size", "image"), CAIT_SIZES)
def test_cait_has_the_parameters_of_its_formula_and_of_the_table(size: str, image: int) -> None:
    d, blocks, h, printed, _ = CAIT[size]
    n = (image // 16) ** 2
    count = parameters(model(f"cait_{size}_{image}"))
    branch = 12 * d**2 + 15 * d
    assert count == 769 * d + d + n * d + blocks * (branch + 2 * h**2 + 2 * h) + 2 * branch + 2 * d + 1000 * d + 1000
    assert image == 384 or millions(count, printed) == printed


@pytest.mark.parametrize(("size", "image"), CAIT_SIZES)
def test_cait_costs_what_its_table_says(size: str, image: int) -> None:
    assert_printed(macs(model(f"cait_{size}_{image}")) / 1e9, CAIT[size][4][image])


@pytest.mark.parametrize("name", TIMM_CAIT)
def test_cait_has_the_size_and_cost_that_timm_measured(name: str) -> None:
    spec, (gmacs, size) = model(name), TIMM_CAIT[name]
    assert macs(spec) / 1e9 == pytest.approx(float(gmacs), rel=0.01)
    assert millions(parameters(spec), size) == size


# ------------------------------------------------------------------------------------------------ ConViT

CONVIT = {  # heads, width, parameters, GMACs in timm's column
    "convit_tiny": (4, 192, 5_710_512, "1.26"),
    "convit_tiny_plus": (4, 256, 9_972_912, None),
    "convit_small": (9, 432, 27_777_322, "5.76"),
    "convit_small_plus": (9, 576, 48_979_882, None),
    "convit_base": (16, 768, 86_540_040, "17.52"),
    "convit_base_plus": (16, 1024, 153_134_856, None),
}
PRINTED = {"convit_tiny": "5.711", "convit_small": "27.777", "convit_base": "86.540", "convit_base_plus": "153.135"}


@pytest.mark.parametrize("name", CONVIT)
def test_convit_has_the_papers_parameters_to_the_last_digit(name: str) -> None:
    h, d, printed, _ = CONVIT[name]
    count = parameters(model(name))
    block = 4 * d**2 + d + 8 * d**2 + 5 * d + 4 * d  # q, k, v without bias, out; MLP; two norms
    assert count == 769 * d + 196 * d + d + 12 * block + 10 * 5 * h + 2 * d + 1000 * d + 1000
    assert count == printed
    assert name not in PRINTED or millions(count, PRINTED[name]) == PRINTED[name]


@pytest.mark.parametrize("name", [name for name, row in CONVIT.items() if row[3]])
def test_convit_costs_what_timm_measured(name: str) -> None:
    assert macs(model(name)) / 1e9 == pytest.approx(float(str(CONVIT[name][3])), rel=0.01)


@pytest.mark.parametrize("name", CONVIT)
def test_gated_positional_attention_costs_five_numbers_a_head(name: str) -> None:
    h, d, _, _ = CONVIT[name]
    spec = model(name)
    (near,) = set(spec.layers[1:11])
    assert (near.attention.heads, spec.tokenizer.dim, d // h) == (h, d, 64 if name.endswith("plus") else 48)
    plain = replace(near, attention=replace(near.attention, after=()))
    assert parameters(replace(spec, layers=(spec.layers[0], *(plain,) * 10, *spec.layers[11:]))) == parameters(spec) - 50 * h


# ------------------------------------------------------------------------------------------------ PiT, Swin

TIMM_COLUMNS = {
    "pit_ti_224": "0.71",
    "pit_xs_224": "1.40",
    "pit_s_224": "2.88",
    "pit_b_224": "12.42",
    "swin_tiny_patch4_window7_224": "4.51",
    "swin_small_patch4_window7_224": "8.77",
    "swin_base_patch4_window7_224": "15.47",
}
DISTILLED = ["pit_ti_distilled_224", "pit_xs_distilled_224", "pit_s_distilled_224", "pit_b_distilled_224"]


@pytest.mark.parametrize("name", [*TIMM_COLUMNS, *DISTILLED, "convit_tiny", "cait_xxs24_224"])
def test_parameters_are_those_of_timms_own_model(name: str) -> None:
    import timm

    with torch.device("meta"):
        theirs = timm.create_model(name)
    assert parameters(model(name)) == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("name", ["pit_ti_224", "pit_s_224", "pit_b_224", "convit_tiny", "cait_xxs24_224"])
def test_heads_and_the_smallest_variance_are_those_of_timms_own_model(name: str) -> None:
    """Neither shows in a count of parameters."""
    import timm

    with torch.device("meta"):
        theirs, ours = timm.create_model(name), model(name).build()
    heads = [part.num_heads for part in theirs.modules() if hasattr(part, "num_heads")]
    assert [layer.attention.heads for layer in ours.layers if hasattr(layer, "attention")] == heads
    theirs_eps, ours_eps = (
        {part.eps for part in one.modules() if isinstance(part, torch.nn.LayerNorm)} for one in (theirs, ours)
    )
    assert ours_eps == theirs_eps


@pytest.mark.parametrize("name", TIMM_COLUMNS)
def test_costs_are_those_that_timm_measured(name: str) -> None:
    assert_printed(macs(model(name)) / 1e9, TIMM_COLUMNS[name])


@pytest.mark.parametrize("name", ["pit_ti_distilled_224", "swin_tiny_patch4_window7_224"])
def test_products_are_those_that_timms_own_model_computes(name: str) -> None:
    import timm

    counter = FlopCounterMode(display=False)
    with torch.device("meta"), counter:
        timm.create_model(name)(torch.empty(1, 3, 224, 224))
    assert 2 * macs(model(name)) == counter.get_total_flops()


def test_distilled_pit_is_pit_with_distillation() -> None:
    assert with_distillation(model("pit_s_224")) == model("pit_s_distilled_224")


# ------------------------------------------------------------------------------------------------ scaled-down models

# parameters (a number: exact; a text: as printed, in millions), MMACs, of the plain model and of the one with SPT and LSA
SCALED_DOWN: dict[str, tuple[tuple[int | str, str], tuple[int | str, str]]] = {
    "small_vit_32": ((2_692_426, "187.7"), (2_729_878, "190.1")),
    "small_vit_64": ((2_756_744, "189.5"), (2_906_228, "199.0")),
    "small_cait_32": (("9.021", "595.7"), ("9.058", "598.1")),
    "small_cait_64": (("9.085", "597.5"), ("9.234", "606.9")),
    "small_pit_32": ((6_972_586, "274.4"), (8_642_014, "317.9")),
    "small_pit_64": (("7.049", "275.3"), ("8.733", "322.4")),
    "small_swin_32": ((7_073_188, "240.9"), (8_562_166, "279.9")),
    "small_swin_64": (("7.150", "241.9"), ("8.653", "284.4")),
    "small_t2t_32": ((6_484_928, "457.2"), (6_505_929, "462.5")),
    "small_t2t_64": ((6_658_110, "636.3"), (6_679_112, "657.6")),
}


@pytest.mark.parametrize("change", ["plain", "SL"])
@pytest.mark.parametrize("name", SCALED_DOWN)
def test_scaled_down_models_have_the_published_size_and_cost(name: str, change: str) -> None:
    spec = model(name) if change == "plain" else sl(model(name))
    size, printed = SCALED_DOWN[name][change == "SL"]
    count = parameters(spec)
    assert count == size if isinstance(size, int) else millions(count, size) == size
    assert f"{macs(spec) / 1e6:.1f}" == printed


@pytest.mark.parametrize(("name", "printed"), [("small_pit_64", ("7.068", "280.1")), ("small_swin_64", ("7.169", "246.6"))])
def test_without_shifts_in_the_pooling_the_size_and_cost_are_the_published_ones_too(
    name: str, printed: tuple[str, str]
) -> None:
    spec, plain = sl(model(name)), model(name)
    layers = list(plain.layers[1:] if isinstance(plain.layers[0], Normalize) else plain.layers)
    pools = [layer for layer in layers if isinstance(layer, (MergePatches, SeparablePool))]
    merged = tuple(pools.pop(0) if isinstance(layer, ShiftedMerge) else layer for layer in spec.layers)
    unpooled = replace(spec, layers=merged)
    assert (millions(parameters(unpooled), printed[0]), f"{macs(unpooled) / 1e6:.1f}") == printed


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("small_vit_32", [Join, AddPositions, *[Block] * 9]),
        ("small_cait_32", [AddPositions, *[Block] * 24, Join, *[SummaryBlock] * 2]),
        ("small_pit_32", [Join, AddPositions, *[Block] * 2, SeparablePool, *[Block] * 6, SeparablePool, *[Block] * 4]),
        ("small_swin_32", [Normalize, AddPositions, *[Block] * 2, MergePatches, *[Block] * 6, MergePatches, *[Block] * 4]),
        ("small_t2t_32", [Join, AddSinusoid, *[Block] * 12]),
        ("pit_s_224", [AddPositions, Join, *[Block] * 2, PoolTokens, *[Block] * 6, PoolTokens, *[Block] * 4]),
        ("cait_xxs24_224", [AddPositions, *[Block] * 24, Join, *[SummaryBlock] * 2]),
        ("convit_tiny", [AddPositions, *[Block] * 10, Join, *[Block] * 2]),
    ],
)
def test_tokens_and_positions_enter_where_the_papers_code_has_them(name: str, kinds: list[type]) -> None:
    assert [type(layer) for layer in model(name).layers] == kinds


def test_lsa_in_cait_mixes_before_it_hides_and_hides_nothing_from_the_class_token() -> None:
    spec = with_lsa(model("small_cait_32"))
    below = {layer.attention for layer in spec.layers if isinstance(layer, Block)}
    above = {layer.attention for layer in spec.layers if isinstance(layer, SummaryBlock)}
    assert {type(attention) for attention in below | above} == {Attention}
    assert [[type(term) for term in attention.before] for attention in below] == [[MixHeads, HideSelf]]
    assert [[type(term) for term in attention.before] for attention in above] == [[MixHeads]]
    assert {attention.scale for attention in below | above} == {LearnedScale()}


def test_the_class_blocks_of_the_scaled_down_cait_see_raw_patches_alone() -> None:
    (block,) = {layer for layer in model("small_cait_32").layers if isinstance(layer, SummaryBlock)}
    assert block.attention.scope == PatchesOnly()
    assert block.norm == SummaryNorm(LayerNorm(1e-5))


def test_the_scaled_down_t2t_has_a_second_skip_around_each_attention() -> None:
    kinds = {type(layer.attention) for layer in model("small_t2t_32").layers if isinstance(layer, Block)}
    assert kinds == {SkipAttention}
    assert {type(layer.attention) for layer in sl(model("small_t2t_32")).layers if isinstance(layer, Block)} == kinds


def test_spt_takes_half_a_patch_in_the_tokenizer_and_one_token_in_the_pooling() -> None:
    spec = with_spt(model("small_pit_64"))
    assert isinstance(spec.tokenizer, ShiftedPatches) and spec.tokenizer.patch == 4
    assert sum(isinstance(layer, ShiftedMerge) for layer in spec.layers) == 2
    assert not any(isinstance(layer, SeparablePool) for layer in spec.layers)


@pytest.mark.parametrize("name", ["cait_xxs24_224", "convit_tiny", "pit_ti_224", "small_t2t_32", "small_swin_32"])
def test_a_shallow_narrow_cousin_learns_from_pictures_of_its_own_size(name: str) -> None:
    """All parts in their published order, forward and backward: every parameter hears of the loss."""
    keywords = {
        "cait_xxs24_224": ("dim=24", "heads=2", "depth=2", "patch=4"),
        "convit_tiny": ("dim=24", "heads=4", "depth=3", "local=2", "patch=4"),
        "pit_ti_224": ("dim=12", "heads=[2, 4]", "depths=[1, 1]", "patch=8", "stride=4"),
        "small_t2t_32": ("dim=24", "heads=2", "depth=1", "width=6"),
        "small_swin_32": ("dim=12", "heads=[2, 4]", "depths=[2, 2]"),
    }
    spec = sl(model(name, *keywords[name], image=32, classes=5))
    module = spec.build(seed=0)
    module(torch.randn(2, 3, 32, 32))["class"].square().sum().backward()
    silent = [
        key for key, parameter in module.named_parameters() if parameter.grad is None or not parameter.grad.isfinite().all()
    ]
    assert silent == []
