"""Logits of CaiT, ConViT, PiT and Swin equal timm's, weights carried over in both directions; released files are read."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_simple
from torch import Tensor, nn

from frugalvit.errors import WeightsError, WeightsNotice
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.dropout import Drop
from frugalvit.nn.model import Model, VisionTransformer
from frugalvit.nn.readout import fuse
from frugalvit.nn.scope import PatchesOnly, SummaryOnly, Windows
from frugalvit.nn.score import MixHeads
from frugalvit.spec import swap
from frugalvit.weights.load import ORIGINS, export_weights, load_weights
from frugalvit.weights.published import published, released
from frugalvit.weights.resample import Bicubic, BicubicAntialias, rebiased, window_of
from frugalvit.zoo.cait import cait
from frugalvit.zoo.change import with_distillation, with_lsa, with_mean_readout
from frugalvit.zoo.convit import convit
from frugalvit.zoo.find import model
from frugalvit.zoo.pit import DISTILLED, pit
from frugalvit.zoo.swin import swin

NAMES = [
    "cait_xxs24_224",
    "cait_xxs36_224",
    "cait_s24_224",
    "convit_tiny",
    "convit_small",
    "convit_base",
    "pit_ti_224",
    "pit_s_224",
    "pit_ti_distilled_224",
    "pit_s_distilled_224",
    "swin_tiny_patch4_window7_224",
]
SMALL = [
    cait(dim=12, heads=3, depth=2, layer_scale=0.1, patch=4, image=(20, 28), classes=9),
    convit(dim=12, heads=4, depth=3, local=2, patch=4, image=(20, 28), classes=9),
    pit(dim=6, heads=(1, 2), depths=(1, 2), patch=6, stride=4, image=(22, 30), classes=9),
    pit(dim=6, heads=(1, 2), depths=(1, 2), patch=6, stride=4, image=(22, 30), classes=9, summary=DISTILLED),
    swin(dim=6, heads=(1, 2), depths=(2, 2), window=4, patch=2, image=(16, 32), classes=9),
]
IDS = ["cait", "convit", "pit", "pit distilled", "swin"]


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every mechanism at work: weights that keep activations near one, and no parameter at an initial zero or one."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, one in module.named_parameters():
            value = torch.randn(one.shape, generator=noise)
            if "gamma" in name:
                value = 0.75 + 0.25 * value.tanh()  # 0.5 to 1
            elif name.endswith(("gating_param", "gate_H")):
                pass
            elif "pos_proj.weight" in name:
                value = value * torch.tensor([1.0, 1.0, 0.05])  # of dx, dy and dx² + dy², which reaches hundreds
            elif "norm" in name and name.endswith("weight"):
                value = 1 + 0.1 * value
            elif "proj_w.bias" in name:
                value = 0.01 * value  # each of 196 tokens is seen by so much more
            elif one.ndim == 1:
                value = 0.1 * value
            elif "bias_table" in name or name.endswith(("pos_embed", "token")):
                value = 0.5 * value
            else:
                value = value * one[0].numel() ** -0.5
            one.copy_(value)
    return module.eval()


def picture(size: tuple[int, int], seed: int = 1) -> Tensor:
    return torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def difference(ours: VisionTransformer, theirs: nn.Module, size: tuple[int, int]) -> float:
    """The largest among all logits; the heads of a distilled model also one by one."""
    image = picture(size)
    outputs, expected = ours(image), theirs(image)
    assert 0.3 < expected.std() < 3  # neither silent nor loud
    found = [(fuse(outputs) - expected).abs().max().item()]
    if "distill" in outputs:
        tokens_BSD = theirs.forward_features(image)
        for place, (name, head) in enumerate({"class": theirs.head, "distill": theirs.head_dist}.items()):
            found.append((outputs[name] - head(tokens_BSD[:, place])).abs().max().item())
    return max(found)


def tolerance(name: str) -> float:
    return 2e-5 if "36" in name else 1e-5


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_timms_in_both_directions(name: str) -> None:
    theirs, ours = drawn(timm.create_model(name)), model(name).build().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is resampled, nothing is fresh
        assert str(load_weights(ours, theirs.state_dict())) == ""
        written = export_weights(ours)
    assert difference(ours, theirs, (224, 224)) <= tolerance(name)
    assert equal(written, theirs.state_dict())

    drawn(ours, seed=5)
    fresh = timm.create_model(name).eval()
    fresh.load_state_dict(export_weights(ours), strict=True)
    assert difference(ours, fresh, (224, 224)) <= tolerance(name)


@pytest.mark.parametrize("origin", ["timm", "official"])
@pytest.mark.parametrize("spec", SMALL, ids=IDS)
def test_names_are_a_bijection_and_a_round_trip_changes_nothing(spec: Model, origin: str) -> None:
    theirs, ours = zip(*ORIGINS[origin].names(spec), strict=True)
    assert len(set(theirs)) == len(theirs)
    assert sorted(ours) == sorted(spec.build().state_dict())
    module, again = drawn(spec.build()), spec.build()
    load_weights(again, export_weights(module, origin), origin)
    assert equal(again.state_dict(), module.state_dict())


@pytest.mark.parametrize("origin", ["timm", "official"])
@pytest.mark.parametrize("spec", SMALL, ids=IDS)
def test_dropout_has_no_weights_so_files_of_both_kinds_are_the_same(spec: Model, origin: str) -> None:
    layers = swap(spec.layers, (Block, SummaryBlock), lambda block: replace(block, dropout=0.1))
    dropping = replace(spec, layers=(layers[0], Drop(0.1), *layers[1:]))
    module, again = drawn(dropping.build()), dropping.build()
    written = export_weights(module, origin)
    assert equal(written, export_weights(drawn(spec.build()), origin))
    load_weights(again, written, origin)
    assert equal(again.state_dict(), module.state_dict())


def as_released(name: str, state: dict[str, Tensor]) -> dict[str, object]:
    """timm's state as the family's own repository saves it, written from that repository's layout alone."""
    found: dict[str, object] = {}
    for key, value in state.items():
        words = key.split(".")
        if name.startswith("swin") and words[2:3] == ["downsample"]:
            words[1] = str(int(words[1]) - 1)
        if name.startswith("swin") and key.startswith("head.fc."):
            words.remove("fc")
        if name.startswith("swin") and key.endswith("relative_position_bias_table"):
            found[".".join([*words[:-1], "relative_position_index"])] = torch.zeros(49, 49, dtype=torch.long)
            if int(words[3]) % 2:
                found[".".join([*words[:4], "attn_mask"])] = torch.zeros(64, 49, 49)
        if name.startswith("pit") and words[2:3] == ["pool"]:
            words = ["pools", str(int(words[1]) - 1), *words[3:]]
        found[".".join(words)] = value
    if name.startswith("cait"):
        return {"model": {f"module.{key}": value for key, value in found.items()}}
    return {"model": found, "epoch": 299} if name.startswith("swin") else found


@pytest.mark.parametrize("name", ["cait_xxs24_224", "convit_tiny", "pit_ti_distilled_224", "swin_tiny_patch4_window7_224"])
def test_released_files_give_timms_logits_and_ours_have_their_names(tmp_path, name: str) -> None:
    theirs, ours = drawn(timm.create_model(name)), model(name).build().eval()
    released = as_released(name, theirs.state_dict())
    torch.save(released, tmp_path / "released.pth")
    load_weights(ours, tmp_path / "released.pth", "official")
    assert difference(ours, theirs, (224, 224)) <= tolerance(name)
    inner = released.get("model", released)
    expected = {key.removeprefix("module.") for key in inner if not key.endswith(("_index", "_mask"))}
    assert set(export_weights(ours, "official")) == expected


@pytest.mark.parametrize("name", ["pit_ti_224", "swin_tiny_patch4_window7_224"])
def test_timm_reads_what_we_export_as_released(name: str) -> None:
    ours, theirs = drawn(model(name).build()), timm.create_model(name).eval()
    family = timm.models.pit if name.startswith("pit") else timm.models.swin_transformer
    theirs.load_state_dict(family.checkpoint_filter_fn(export_weights(ours, "official"), theirs), strict=True)
    assert difference(ours, theirs, (224, 224)) <= tolerance(name)


@pytest.mark.parametrize(
    ("name", "size", "grid"),
    [
        ("cait_xxs24_224", (224, 320), (14, 20)),
        ("cait_xxs24_224", (160, 160), (10, 10)),
        ("convit_tiny", (256, 256), (16, 16)),  # timm's takes squares only
        ("pit_ti_224", (192, 288), (23, 35)),
        ("pit_ti_distilled_224", (160, 160), (19, 19)),
    ],
)
def test_positions_are_resampled_to_other_sizes(name: str, size: tuple[int, int], grid: tuple[int, int]) -> None:
    small, large = drawn(timm.create_model(name)), timm.create_model(name, img_size=size).eval()
    state = small.state_dict()
    positions = state["pos_embed"]
    if positions.ndim == 4:
        moved = nn.functional.interpolate(positions, size=grid, mode="bicubic", antialias=True)
    else:
        moved = resample_abs_pos_embed(positions, list(grid), num_prefix_tokens=0)
    large.load_state_dict(state | {"pos_embed": moved}, strict=True)
    ours = model(name, image=size).build().eval()
    with pytest.warns(WeightsNotice, match=rf"positions resampled from .* to {grid[0]} x {grid[1]} \(BicubicAntialias\)"):
        load_weights(ours, state, resample=BicubicAntialias())
    assert difference(ours, large, size) <= tolerance(name)


def test_positions_that_are_not_square_find_their_grid() -> None:
    for name, size in (("cait_xxs24_224", (64, 112)), ("pit_ti_224", (64, 112))):
        theirs, ours = drawn(timm.create_model(name, img_size=size)), model(name, image=size).build().eval()
        assert str(load_weights(ours, theirs.state_dict())) == ""
        assert difference(ours, theirs, size) <= tolerance(name)
        assert equal(export_weights(ours), theirs.state_dict())


def test_pits_positions_of_a_turned_grid_are_refused() -> None:
    turned = model("pit_ti_224", image=(64, 112)).build()
    with pytest.raises(WeightsError, match=r"pos_embed: a grid of 7 x 13, the model's is 13 x 7"):
        load_weights(model("pit_ti_224", image=(112, 64)).build(), export_weights(turned))


def test_swin_at_another_size_with_the_same_windows_changes_nothing() -> None:
    name, size = "swin_tiny_patch4_window7_224", (448, 448)
    small, large = drawn(timm.create_model(name)), timm.create_model(name, img_size=size).eval()
    large.load_state_dict(small.state_dict(), strict=True)
    ours = model(name, image=size).build().eval()
    assert str(load_weights(ours, small.state_dict())) == ""
    assert difference(ours, large, size) <= tolerance(name)


def test_relative_biases_are_resampled_to_other_windows() -> None:
    name, size = "swin_tiny_patch4_window7_224", (256, 256)
    small, large = drawn(timm.create_model(name)), timm.create_model(name, img_size=size, window_size=8).eval()
    state = small.state_dict()
    tables = {
        key: resize_rel_pos_bias_table_simple(value, (8, 8), (225, value.shape[1]))
        for key, value in state.items()
        if key.endswith("bias_table")
    }
    large.load_state_dict(state | tables, strict=True)
    ours = model(name, "window=8", image=size).build().eval()
    with pytest.warns(WeightsNotice, match=r"relative biases resampled from windows of 7 x 7 to 8 x 8 \(Bicubic\)\.$"):
        load_weights(ours, state)
    assert difference(ours, large, size) <= tolerance(name)


def test_a_table_of_biases_keeps_its_center_and_its_turn() -> None:
    bias_NH = torch.arange(25.0)[:, None] * torch.tensor([1.0, -1.0, 0.5])  # windows of 3 x 3, and 3 heads
    found = rebiased(bias_NH, 3, (4, 4), Bicubic())
    assert found.shape == (49, 3)
    assert torch.allclose(found[24], bias_NH[12])
    assert torch.allclose(found.flip(0) + found, 2 * bias_NH[12].expand(49, 3), atol=1e-4)
    assert [window_of(1), window_of(9), window_of(169)] == [1, 2, 7]
    for length in (0, 36, 50):
        with pytest.raises(WeightsError, match=f"{length} offsets are those of no square window"):
            window_of(length)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (with_lsa(SMALL[0]), r"layers\[1\]: timm has no name for HideSelf"),
        (with_lsa(SMALL[1]), r"layers\[1\]: timm has no name for HideSelf"),
        (with_lsa(SMALL[2]), r"layers\[2\]: timm has no name for HideSelf"),
        (with_lsa(SMALL[4]), r"layers\[1\]: timm has no name for HideSelf"),
        (with_distillation(SMALL[0]), r"layers\[3\]: timm has no name for 'distill'"),
        (with_mean_readout(SMALL[2]), r"readout: timm has no name for Mean"),
        (swap(SMALL[0], SummaryOnly, lambda _: PatchesOnly()), r"layers\[4\]: timm has no name for PatchesOnly"),
        (swap(SMALL[0], Attention, lambda one: replace(one, before=())), r"layers\[1\]: timm has no name for Attention"),
    ],
)
def test_what_timm_has_no_name_for_is_refused(spec: Model, message: str) -> None:
    module = spec.build()
    for origin in ("timm", "official"):
        with pytest.raises(WeightsError, match=message):
            export_weights(module, origin)
        with pytest.raises(WeightsError, match=message):
            load_weights(module, {}, origin)


def test_a_parameter_that_the_model_lacks_is_named() -> None:
    unbiased = swap(SMALL[0], MixHeads, lambda _: MixHeads(bias=None))
    with pytest.raises(WeightsError, match=r"nothing in the model maps to 'blocks.0.attn.proj_l.bias'"):
        load_weights(unbiased.build(), export_weights(SMALL[0].build()))


def test_windows_that_do_not_shift_are_said_when_exported() -> None:
    still = swap(SMALL[4], Windows, lambda one: replace(one, shift=0))
    with pytest.warns(WeightsNotice, match="the model has shift=0 in block 1 of a stage, which is not what timm computes"):
        export_weights(still.build())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_weights(SMALL[4].build())  # eps 1e-5 is timm's there


def test_a_distilled_file_in_a_plain_pit_is_explained() -> None:
    with pytest.raises(WeightsError, match=r"'dist_token'.*did you mean a \*_distilled_\*"):
        load_weights(SMALL[2].build(), export_weights(SMALL[3].build()))
    with pytest.raises(WeightsError, match="The file is of a model without distillation token"):
        load_weights(SMALL[3].build(), export_weights(SMALL[2].build()))


def test_a_file_that_lost_a_matrix_is_refused_by_its_name() -> None:
    state = export_weights(SMALL[1].build())
    del state["blocks.1.attn.v.weight"]
    with pytest.raises(WeightsError, match=r"the file has 'blocks.1.attn.qk.weight' but not 'blocks.1.attn.v.weight'"):
        load_weights(SMALL[1].build(), state)


def test_released_names_are_known_by_the_bare_name_of_their_model() -> None:
    assert published("cait_xxs24_224").url == "https://dl.fbaipublicfiles.com/deit/XXS24_224.pth"
    assert published("cait_m48_448").name == "cait_m48_448.fb_dist_in1k"
    with pytest.raises(WeightsError, match=r"runs/teacher: there is no such file or folder"):
        published("runs/teacher")
    assert (published("cait_s24_384").crop, published("convit_tiny").crop) == (1.0, 0.875)
    assert published("convit_small").name == "convit_small.fb_in1k"
    assert published("swin_small_patch4_window7_224").name == "swin_small_patch4_window7_224.ms_in1k"
    assert sum(name.startswith("cait") for name in released()) == 10
