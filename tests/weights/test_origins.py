"""Files of the formats that cannot be downloaded here, synthesized by their own libraries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from tests.weights.test_timm import lively
from timm.models.vision_transformer import VisionTransformer as TimmViT
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from frugalvit.errors import WeightsError, WeightsNotice
from frugalvit.nn.attention import Attention
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens, fuse
from frugalvit.nn.score import LearnedScale
from frugalvit.spec import swap
from frugalvit.weights.files import read_file, write_npz, write_safetensors
from frugalvit.weights.load import ORIGINS, export_weights, load_weights
from frugalvit.weights.resample import Bilinear
from frugalvit.zoo.change import with_lsa
from frugalvit.zoo.vit import vit

SIZES = dict(
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=48,
    image_size=(20, 28),
    patch_size=4,
    num_labels=9,
)
EPS = {"layer_norm_eps": 1e-6}
IMAGE = torch.randn(2, 3, 20, 28, generator=torch.Generator().manual_seed(1))


def timm_npz(path, module: TimmViT) -> None:
    """A released-style .npz of a timm model, written from the published layout alone."""
    arrays = {}
    state = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    heads = module.blocks[0].attn.num_heads
    dim = module.embed_dim
    arrays["embedding/kernel"] = state["patch_embed.proj.weight"].transpose(2, 3, 1, 0)
    arrays["embedding/bias"] = state["patch_embed.proj.bias"]
    arrays["cls"] = state["cls_token"]
    arrays["Transformer/posembed_input/pos_embedding"] = state["pos_embed"]
    for i in range(len(module.blocks)):
        ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
        for norm, flax in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            arrays[f"{theirs}{flax}/scale"] = state[f"{ours}{norm}.weight"]
            arrays[f"{theirs}{flax}/bias"] = state[f"{ours}{norm}.bias"]
        for j, part in enumerate(("query", "key", "value")):
            rows = slice(j * dim, (j + 1) * dim)
            place = f"{theirs}MultiHeadDotProductAttention_1/{part}/"
            arrays[place + "kernel"] = state[f"{ours}attn.qkv.weight"][rows].T.reshape(dim, heads, -1)
            arrays[place + "bias"] = state[f"{ours}attn.qkv.bias"][rows].reshape(heads, -1)
        place = f"{theirs}MultiHeadDotProductAttention_1/out/"
        arrays[place + "kernel"] = state[f"{ours}attn.proj.weight"].T.reshape(heads, -1, dim)
        arrays[place + "bias"] = state[f"{ours}attn.proj.bias"]
        for layer, flax in (("fc1", "Dense_0"), ("fc2", "Dense_1")):
            arrays[f"{theirs}MlpBlock_3/{flax}/kernel"] = state[f"{ours}mlp.{layer}.weight"].T
            arrays[f"{theirs}MlpBlock_3/{flax}/bias"] = state[f"{ours}mlp.{layer}.bias"]
    arrays["Transformer/encoder_norm/scale"], arrays["Transformer/encoder_norm/bias"] = state["norm.weight"], state["norm.bias"]
    arrays["head/kernel"], arrays["head/bias"] = state["head.weight"].T, state["head.bias"]
    np.savez(path, **arrays)


def toy_timm(image: tuple[int, int] = (20, 28)) -> TimmViT:
    return lively(TimmViT(img_size=image, patch_size=4, embed_dim=12, depth=2, num_heads=3, num_classes=9))


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_augreg_files_give_timms_logits(tmp_path, toy_vit: Model, prefix: str) -> None:
    theirs = toy_timm()
    timm_npz(tmp_path / "ti.npz", theirs)
    if prefix:
        arrays = dict(np.load(tmp_path / "ti.npz"))
        np.savez(tmp_path / "ti.npz", **{prefix + name: value for name, value in arrays.items()})
    ours = toy_vit.build().eval()
    load_weights(ours, tmp_path / "ti.npz", "augreg")
    torch.testing.assert_close(ours(IMAGE)["class"], theirs(IMAGE), atol=1e-5, rtol=0)


def test_timms_npz_loader_reads_what_we_export(tmp_path, toy_vit: Model) -> None:
    ours = lively(toy_vit.build())
    write_npz(tmp_path / "ours.npz", export_weights(ours, "augreg"))
    theirs = toy_timm()
    theirs.load_pretrained(str(tmp_path / "ours.npz"))
    torch.testing.assert_close(ours(IMAGE)["class"], theirs(IMAGE), atol=1e-5, rtol=0)


def test_big_visions_newer_names_are_read_too(toy_vit: Model) -> None:
    ours = lively(toy_vit.build())
    renamed = {}
    for name, value in export_weights(ours, "augreg").items():
        name = name.replace("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0")
        name = name.replace("MlpBlock_3", "MlpBlock_0").replace("LayerNorm_2", "LayerNorm_1")
        renamed["params/" + name.replace("Transformer/posembed_input/pos_embedding", "pos_embedding")] = value
    again = toy_vit.build()
    load_weights(again, renamed, "augreg")
    torch.testing.assert_close(again.state_dict(), ours.state_dict(), atol=0, rtol=0)


def test_augreg_files_are_resampled_as_timms_loader_does(tmp_path, toy_vit: Model) -> None:
    square = toy_timm((20, 20))
    timm_npz(tmp_path / "ti.npz", square)
    theirs = toy_timm((20, 28))
    theirs.load_pretrained(str(tmp_path / "ti.npz"))
    ours = toy_vit.build().eval()
    with pytest.warns(WeightsNotice, match=r"ti.npz as augreg: positions resampled from 5 x 5 to 5 x 7 \(Bilinear\)"):
        load_weights(ours, tmp_path / "ti.npz", "augreg", resample=Bilinear())
    torch.testing.assert_close(ours(IMAGE)["class"], theirs(IMAGE), atol=1e-5, rtol=0)


def test_the_hidden_layer_of_pretraining_is_dropped(toy_vit: Model) -> None:
    state = export_weights(toy_vit.build(), "augreg")
    state |= {"pre_logits/kernel": torch.zeros(12, 12), "pre_logits/bias": torch.zeros(12)}
    load_weights(toy_vit.build(), state, "augreg")
    state = export_weights(toy_vit.build()) | {"pre_logits.fc.weight": torch.zeros(12, 12)}
    load_weights(toy_vit.build(), state)


def test_official_deit_files_are_read(tmp_path, toy: Model) -> None:
    theirs = timm.models.deit.VisionTransformerDistilled(
        img_size=(20, 28), patch_size=4, embed_dim=12, depth=2, num_heads=3, num_classes=9
    )
    lively(theirs)
    torch.save({"model": theirs.state_dict()}, tmp_path / "deit.pth")
    ours = toy.build().eval()
    load_weights(ours, tmp_path / "deit.pth", "official")
    torch.testing.assert_close(fuse(ours(IMAGE)), theirs(IMAGE), atol=1e-5, rtol=0)
    for key in ("state_dict", "model_state_dict"):  # as trainers of one's own call it
        torch.save({key: theirs.state_dict(), "epoch": 3}, tmp_path / "own.pth")
        load_weights(toy.build(), tmp_path / "own.pth", "official")


@pytest.mark.parametrize("kind", [ViTForImageClassification, DeiTForImageClassificationWithTeacher, DeiTForImageClassification])
def test_hf_files_give_their_logits_and_ours_load_back(tmp_path, toy: Model, toy_vit: Model, kind: type) -> None:
    config = (ViTConfig if kind is ViTForImageClassification else DeiTConfig)(**SIZES, **EPS)
    theirs = lively(kind(config))
    theirs.save_pretrained(tmp_path / "theirs")
    spec = toy_vit if kind is ViTForImageClassification else toy
    if kind is DeiTForImageClassification:
        spec = replace(toy, readout=Tokens(("class",)))
    ours = spec.build().eval()
    load_weights(ours, tmp_path / "theirs" / "model.safetensors", "hf")
    torch.testing.assert_close(fuse(ours(IMAGE)), theirs(IMAGE).logits, atol=1e-5, rtol=0)

    other = lively(spec.build(seed=9))
    write_safetensors(tmp_path / "theirs" / "model.safetensors", export_weights(other, "hf"))
    again = kind.from_pretrained(tmp_path / "theirs").eval()
    torch.testing.assert_close(fuse(other(IMAGE)), again(IMAGE).logits, atol=1e-5, rtol=0)


def test_the_names_of_an_hf_module_in_memory_are_read_and_written(toy_vit: Model) -> None:
    theirs = lively(ViTForImageClassification(ViTConfig(**SIZES, **EPS)))
    ours = toy_vit.build().eval()
    load_weights(ours, theirs.state_dict(), "hf-module")
    torch.testing.assert_close(ours(IMAGE)["class"], theirs(IMAGE).logits, atol=1e-5, rtol=0)
    other = lively(toy_vit.build(seed=9))
    theirs.load_state_dict(export_weights(other, "hf-module"), strict=True)
    torch.testing.assert_close(other(IMAGE)["class"], theirs(IMAGE).logits, atol=1e-5, rtol=0)


def test_an_hf_backbone_without_head_is_refused_by_what_is_missing(tmp_path, toy_vit: Model) -> None:
    ViTModel(ViTConfig(**SIZES)).save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="nothing in the"):
        load_weights(toy_vit.build(), tmp_path / "model.safetensors", "hf")


@pytest.mark.parametrize("origin", [name for name, origin in ORIGINS.items() if Model in origin.kinds])
def test_names_are_a_bijection_and_a_round_trip_changes_nothing(toy: Model, toy_vit: Model, origin: str) -> None:
    spec = toy_vit if origin == "augreg" else toy
    pairs = list(ORIGINS[origin].names(spec))
    theirs, ours = zip(*pairs, strict=True)
    assert len(set(theirs)) == len(theirs)
    assert sorted(ours) == sorted(spec.build().state_dict())
    module, again = lively(spec.build(seed=1)), spec.build(seed=2)
    load_weights(again, export_weights(module, origin), origin)
    torch.testing.assert_close(again.state_dict(), module.state_dict(), atol=0, rtol=0)


NAMED = [name for name, origin in ORIGINS.items() if Model in origin.kinds and name != "frugalvit"]  # ours number all layers


@pytest.mark.parametrize("origin", NAMED)
def test_dropout_has_no_weights_so_files_of_both_kinds_are_the_same(toy_vit: Model, origin: str) -> None:
    dropping = vit(dim=12, heads=3, depth=2, patch=4, image=(20, 28), classes=9, dropout=0.1)
    module, plain = lively(dropping.build(seed=1)), toy_vit.build(seed=2).eval()
    load_weights(plain, export_weights(module, origin), origin)
    image = torch.randn(2, 3, 20, 28)
    torch.testing.assert_close(plain(image), module(image), atol=0, rtol=0)
    again = dropping.build(seed=3)
    load_weights(again, export_weights(plain, origin), origin)
    torch.testing.assert_close(again.state_dict(), module.state_dict(), atol=0, rtol=0)


def test_what_a_foreign_format_cannot_say_is_refused(toy: Model, toy_vit: Model) -> None:
    with pytest.raises(WeightsError, match=r"export to augreg\.layers\[0\]: augreg has no name for 'distill'"):
        export_weights(toy.build(), "augreg")
    with pytest.raises(WeightsError, match=r"no foreign name for 'layers.2.attention.scale.scale_H', 'layers.3"):
        export_weights(swap(toy, Attention, lambda one: replace(one, scale=LearnedScale())).build(), "timm")
    with pytest.raises(WeightsError, match=r"layers\[2\]: timm has no name for HideSelf"):
        export_weights(with_lsa(toy).build(), "timm")
    with pytest.raises(WeightsError, match=r"origin: no origin is called 'tim'. Did you mean 'timm'"):
        export_weights(toy.build(), "tim")


def test_a_file_of_another_architecture_names_what_does_not_meet(tmp_path, toy: Model) -> None:
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "resnet.pth")
    module = toy.build()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(WeightsError) as error:
        load_weights(module, tmp_path / "resnet.pth")
    text = str(error.value)
    assert text.startswith(
        "resnet.pth as timm: nothing in the model maps to 'conv1.weight', 'bn1.weight', 'bn1.bias' (+119 more)."
    )
    assert "nothing in the file fills 'tokenizer.weight', 'tokenizer.bias', 'layers.0.tokens.class' (+32 more)." in text
    assert "another architecture" in text
    torch.testing.assert_close(module.state_dict(), before, atol=0, rtol=0)


def test_a_distilled_file_in_a_plain_model_is_explained(toy: Model, toy_vit: Model) -> None:
    with pytest.raises(
        WeightsError, match=r"'dist_token', 'head_dist.weight', 'head_dist.bias'.*did you mean a \*_distilled_\*"
    ):
        load_weights(toy_vit.build(), export_weights(toy.build()))
    with pytest.raises(WeightsError, match="The file is of a model without distillation token"):
        load_weights(toy.build(), export_weights(toy_vit.build()))


def test_another_width_is_refused_by_name_with_both_shapes(toy_vit: Model) -> None:
    wide = replace(toy_vit, tokenizer=replace(toy_vit.tokenizer, dim=24)).build()
    with pytest.raises(
        WeightsError, match=r"state dict as timm\.tokenizer\.weight: the file has \(24, 3, 4, 4\), the model \(12, 3"
    ):
        load_weights(toy_vit.build(), export_weights(wide))


def test_another_class_count_leaves_a_fresh_head_and_says_so(toy: Model) -> None:
    source, target = lively(toy.build(seed=1)), replace(toy, classes=4).build(seed=2)
    before = target.readout.heads["class"].weight.clone()
    with pytest.warns(WeightsNotice, match="head 'class' is fresh: the file has 9 classes, the model 4"):
        done = load_weights(target, export_weights(source))
    assert len(done.fresh) == 2
    assert torch.equal(target.readout.heads["class"].weight, before)
    assert torch.equal(target.layers[2].mlp.up.weight, source.layers[2].mlp.up.weight)


def test_half_precision_files_fill_a_full_precision_model(toy: Model) -> None:
    source = lively(toy.build(seed=1))
    half = {name: value.bfloat16() for name, value in export_weights(source).items()}
    target = toy.build(seed=2)
    load_weights(target, half)
    assert target.tokenizer.weight.dtype == torch.float32
    torch.testing.assert_close(target.tokenizer.weight, source.tokenizer.weight, atol=0, rtol=0.01)


def test_reading_the_file_back_gives_the_same_bits(tmp_path, toy: Model) -> None:
    state = export_weights(toy.build())
    write_safetensors(tmp_path / "a.safetensors", state)
    torch.testing.assert_close(read_file(tmp_path / "a.safetensors"), state, atol=0, rtol=0)


@pytest.mark.parametrize(("key", "other"), [("model", "model_ema"), ("state_dict", "state_dict_ema")])
def test_of_two_sets_of_weights_in_a_file_it_is_said_which_was_taken(
    tmp_path: Path, toy_vit: Model, monkeypatch: pytest.MonkeyPatch, key: str, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = export_weights(lively(toy_vit.build()))
    average = {f"module.{name}": value + 1 for name, value in plain.items()}
    torch.save({key: plain, other: average, "optimizer": {0: torch.zeros(3)}, "epoch": 3}, "both.pth")
    module = toy_vit.build()
    with pytest.warns(WeightsNotice, match=f"both.pth as timm: '{key}' is taken, but '{other}' would fit as well") as notices:
        load_weights(module, "both.pth")
    assert torch.equal(module.state_dict()["tokenizer.bias"], plain["patch_embed.proj.bias"])
    exec(
        str(notices[0].message).partition("weights.files: ")[2].removesuffix("."),
        {"torch": torch, "Path": Path, "read_file": read_file},
    )
    load_weights(module, f"{other}.pth")
    assert torch.equal(module.state_dict()["tokenizer.bias"], plain["patch_embed.proj.bias"] + 1)
    with pytest.warns(WeightsNotice, match=f"'{other}' would fit as well. To take that instead, give it alone"):
        load_weights(module, {key: plain, other: average})
