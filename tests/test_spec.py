from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from frugalvit.assign import override
from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block
from frugalvit.nn.model import Model
from frugalvit.nn.score import HideSelf, LearnedScale
from frugalvit.nn.shape import Image
from frugalvit.outline import describe, every, flatten
from frugalvit.recipes.find import recipe
from frugalvit.slots import parts_of
from frugalvit.spec import decode, encode, swap
from frugalvit.zoo.change import with_lsa
from frugalvit.zoo.deit import deit


def test_a_model_survives_json(toy: Model) -> None:
    for model in (toy, with_lsa(toy), replace(toy, classes=None)):
        text = json.dumps(encode(model), allow_nan=False)
        assert decode(json.loads(text), Model) == model


def test_missing_fields_take_their_defaults(toy: Model) -> None:
    data = encode(toy)
    del data["layers"][2]["mlp"]
    assert decode(data, Model) == toy


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(format=2), "newer FrugalViT"),
        (lambda d: d.pop("format"), "format is None"),
        (lambda d: d.update(format=True), "format is True"),
        (lambda d: d.update(colour=1), "model: Model has no field 'colour'"),
        (lambda d: d.pop("image"), "model: Model needs a value for 'image'"),
        (lambda d: d["layers"][2]["attention"].update(heads="3"), "model.layers[2].attention.heads: '3' does not fit"),
        (lambda d: d["layers"][2]["attention"].update(heads=True), "model.layers[2].attention.heads: True does not fit"),
        (lambda d: d["layers"][2]["attention"].update(heads=3.5), "Expected a whole number"),
        (lambda d: d["layers"][2]["residual"].update(drop=float("nan")), "model.layers[2].residual.drop: nan does not fit"),
        (lambda d: d["layers"][2]["residual"].update(drop=1.5), "model.layers[2].residual.drop: a drop rate of 1.5"),
        (
            lambda d: d["layers"][2].update(attention={"part": "Mlp"}),
            "no part is called 'Mlp' here. There are: Attention, SkipAttention.",
        ),
        (lambda d: d["layers"][2].update(attention={"part": "os.system"}), "no part is called 'os.system'"),
        (lambda d: d["layers"][0].update(names="class"), "model.layers[0].names: 'class' does not fit"),
        (lambda d: d.update(classes={"part": "Model"}), "a part cannot stand here"),
        (lambda d: d["tokenizer"].update(patch=[4, 4, 4]), "3 entries where 2 belong"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_path(toy: Model, damage, message: str) -> None:
    data = json.loads(json.dumps(encode(toy)))
    damage(data)
    with pytest.raises(SpecError) as error:
        decode(data, Model)
    assert message in str(error.value)


def test_a_spec_holds_numbers_strings_tuples_and_specs_only(toy: Model) -> None:
    with pytest.raises(SpecError, match=r"layers: \[\] cannot be part of a spec"):
        encode(replace(toy, layers=[]))
    with pytest.raises(SpecError, match=r"classes: inf cannot be part"):
        encode(replace(toy, classes=float("inf")))


def test_a_spec_made_wrongly_in_python_fails_at_build_by_its_path(toy: Model) -> None:
    with pytest.raises(
        SpecError, match=r"model\.layers\[0\]\.attention\.heads: '3' does not fit here. Expected a whole number"
    ):
        replace(toy, layers=(Block(Attention("3")),)).build()
    with pytest.raises(
        SpecError, match=r"model\.layers\[0\]: LearnedScale\(\) does not fit here. Expected Join, AddPositions, AddSinusoid, "
    ):
        replace(toy, layers=(LearnedScale(),)).build()
    with pytest.raises(SpecError, match=r"model\.layers: .* does not fit here. Expected a list of Join"):
        replace(toy, layers=[]).build()


def test_swap_replaces_every_node_of_a_type_and_shares_the_rest(toy: Model) -> None:
    changed = swap(toy, Attention, lambda attention: replace(attention, heads=4))
    assert [layer.attention.heads for layer in changed.layers[2:]] == [4, 4]
    assert changed.layers[0] is toy.layers[0]
    assert swap(toy, LearnedScale, lambda part: part) is toy


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("layers[2].attention.before[+]=HideSelf", "layers[2].attention.before[0]", "HideSelf"),
        ("layers[2].attention.heads=4", "layers[2].attention.heads", 4),
        ("layers.2.attention.heads=4", "layers[2].attention.heads", 4),
        ("layers[-1].mlp.ratio=2", "layers[3].mlp.ratio", 2.0),
        ("layers[2].attention.scale=LearnedScale", "layers[2].attention.scale", "LearnedScale"),
        ('layers[2].attention.before=[{"part": "HideSelf"}]', "layers[2].attention.before[0]", "HideSelf"),
        ('layers[0].init={"part": "Normal", "std": 0.5}', "layers[0].init.std", 0.5),
        ("image=32x40", "image.width", 40),
        ("image=32", "image.height", 32),
        ("tokenizer.patch=2x4", "tokenizer.patch[1]", 4),
        ("tokenizer.patch=5", "tokenizer.patch", 5),
        ("classes=none", "classes", None),
        ("layers[0].names=class,distill", "layers[0].names[1]", "distill"),
        ("layers[0].names=[class, distill]", "layers[0].names[1]", "distill"),
        ('layers[0].names=["class", "distill"]', "layers[0].names[1]", "distill"),
        ("layers[2].attention.before=HideSelf", "layers[2].attention.before[0]", "HideSelf"),
        ("layers[2].attention.before=HideSelf,MixHeads", "layers[2].attention.before[1]", "MixHeads"),
        ("layers[2].attention.before=[HideSelf, MixHeads]", "layers[2].attention.before[1]", "MixHeads"),
        ('layers[2].attention.before=["HideSelf", "MixHeads"]', "layers[2].attention.before[1]", "MixHeads"),
        ("layers[2].attention.before=[MixHeads(bias=Normal(0.5)), HideSelf]", "layers[2].attention.before[0].bias.std", 0.5),
        ("layers[2].attention=Attention(3, before=[HideSelf, MixHeads])", "layers[2].attention.before[1]", "MixHeads"),
    ],
)
def test_override_sets_a_value_by_its_path(toy: Model, text: str, path: str, value: object) -> None:
    assert flatten(override(toy, text))[path] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers[2].attention.headz=4", "layers[2].attention: Attention has no field 'headz'. Did you mean 'heads'?"),
        ("layers[2].attention.heads=four", "layers[2].attention.heads: 'four' does not fit here. Expected a whole number"),
        ("layers[2].attention.heads=4.0", "layers[2].attention.heads: '4.0' does not fit here"),
        ("layers[2].residual.drop=nan", "layers[2].residual.drop: 'nan' does not fit here"),
        ("layers[9].mlp.ratio=2", "layers: there is no entry [9]; the list has 4 (0 to 3)"),
        ("classes[0]=3", "classes: 9 is not a list"),
        ("classes[+]=3", "classes: [+] adds a whole entry to a list of any length"),
        ("layers[+].mlp.ratio=2", "layers: [+] adds a whole entry"),
        ("layers[+]=Blok", "layers[4]: 'Blok' does not fit here"),
        ("classes.x=3", "classes: 9 has no fields"),
        ("layers[2].attention.scale=LearnedScal", "Did you mean 'LearnedScale'?"),
        ("layers[2].attention.linear=Dens(init=Xavier)", "Did you mean 'Dense'?"),
        ("layers[2].attention.linear=Dense(init=Xavier", "the parenthesis behind Dense is not closed"),
        ("layers[2].attention.before=[{]", "is not JSON"),
        ("layers[2].attention.before=[HideSelf", 'Write HideSelf,MixHeads or, as JSON, ["HideSelf", "MixHeads"].'),
        ("layers[2].attention.before=HideSelf]", 'Write HideSelf,MixHeads or, as JSON, ["HideSelf", "MixHeads"].'),
        ("layers[2].attention.before=['HideSelf']", 'Write HideSelf,MixHeads or, as JSON, ["HideSelf", "MixHeads"].'),
        ("layers[2].attention.before=HideSelf,,MixHeads", 'Write HideSelf,MixHeads or, as JSON, ["HideSelf", "MixHeads"].'),
        ("layers[2].attention.before=[HideSelf,MixHead]", "layers[2].attention.before[1]: 'MixHead' does not fit here"),
        ("layers[2].attention.before=HideSelf,MixHead", "Did you mean 'MixHeads'?"),
        ("layers[0].names=[class,distill", "layers[0].names: '[class,distill' is not JSON"),
        ("layers[0].names=class,distill]", 'Write one,two or, as JSON, ["one", "two"].'),
        ("layers[0].names=class,", 'Write one,two or, as JSON, ["one", "two"].'),
        ("tokenizer.patch=2,4,4", "Write 1,2 or, as JSON, [1, 2]."),
        ("tokenizer.patch=[2,4,4]", "tokenizer.patch: 3 entries where 2 belong."),
        ("layers[x].mlp=3", "'layers[x].mlp' is not a path"),
        ("image=30x", "image: '30x' is not a size"),
        ("heads", "'heads' is not of the form path=value"),
        ("=3", "an assignment starts with a path"),
        ("image.channels=5", "image: 5 channels"),
    ],
)
def test_override_refuses_with_place_and_cure(toy: Model, text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        override(toy, text)
    assert message in str(error.value)


@dataclass(frozen=True)
class Misfit:
    def build(self, something: int) -> None: ...


def test_parts_of_the_user_are_admitted_only_when_passed_and_only_where_they_fit(toy: Model) -> None:
    data = encode(replace(toy, layers=(*toy.layers, Misfit())))
    with pytest.raises(SpecError, match=r"model\.layers\[4\]: no part is called 'Misfit' here.*parts=\[\.\.\.\]"):
        decode(data, Model)
    with pytest.raises(SpecError, match=r"model\.layers\[4\]: 'Misfit' does not fit here. Expected LayerPart\.build"):
        decode(data, Model, parts=[Misfit])
    with pytest.raises(SpecError, match="is not a dataclass"):
        decode(encode(toy), Model, parts=[int])


def test_describe_folds_equal_blocks_and_leaves_defaults_out() -> None:
    text = describe(deit(dim=12, heads=3, depth=5, drop_path=0.1))
    assert "layers[2..6]: 5 × [residual.drop 0 → 0.1] Block" in text
    assert text.count("Attention(heads=3)") == 1
    assert "eps" not in text


def test_describe_keeps_different_blocks_apart(toy: Model) -> None:
    text = describe(override(toy, "layers[3].attention.heads=4"))
    assert "layers[2]: Block(attention=Attention(heads=3))" in text
    assert "layers[3]: Block(attention=Attention(heads=4))" in text


def test_describe_can_tell_every_field_and_breaks_long_lines() -> None:
    made = override(recipe("vit.digits"), "average=EmaOver", "optimizer=Muon(lr=0.5)")
    short, text = describe(made), describe(made, fields=every)
    assert "average: EmaOver()" in short and "optimizer: Muon(lr=0.5)" in short
    assert "average: EmaOver(share=0.05)" in text and "momentum=0.95" in text and "seed=0" in text
    for path in flatten(made):
        name = path.rpartition(".")[2].partition("[")[0]
        assert f"{name}=" in text or f"{name}:" in text or f"{name}[" in text, path
    assert " × Block(dropout=0.0)" in text
    assert max(map(len, text.splitlines())) <= 100 < len("".join(text.splitlines()[:2]))


def test_flatten_names_every_leaf(toy: Model) -> None:
    flat = flatten(with_lsa(toy))
    assert flat["layers[2].attention.before[0]"] == type(HideSelf()).__name__
    assert flat["image.height"] == 20
    assert flatten(Image(3, 4), "x") == {"x": "Image", "x.height": 3, "x.width": 4, "x.channels": 3}


def test_every_slot_lists_its_parts() -> None:
    slots = parts_of(Model)
    assert slots["Attention.scale"] == (["FixedScale", "LearnedScale"], "ScalePart")
    assert slots["Model.layers"][0][:4] == ["Join", "AddPositions", "AddSinusoid", "Normalize"]
