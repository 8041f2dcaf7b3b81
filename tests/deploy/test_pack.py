"""Packing from end to end: the file answers as the trained model, or is not written."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from sklearn.datasets import load_digits
from tests.deploy.packing import MODELS, classifier_of, model_input, native_only

import frugalvit
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy import native, verify
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.native import SimulationNotice, load_packed
from frugalvit.deploy.pack import PackedModel, image_of, packed_model
from frugalvit.deploy.packed_file import Packed, encoded, read_packed
from frugalvit.deploy.packed_frame import preprocess_of
from frugalvit.deploy.packed_size import packed_size
from frugalvit.deploy.program import Precision
from frugalvit.deploy.simulated import Simulation
from frugalvit.deploy.verify import noise_for, pack
from frugalvit.errors import DataError, SpecError, WeightsError
from frugalvit.nn.map_norm import BatchNormalized
from frugalvit.nn.model import Model
from frugalvit.nn.readout import MeanLogits, OneHead
from frugalvit.zoo.binaryvit import binary_deit, binaryvit, binaryvit_small_patch4_224

pytestmark = pytest.mark.filterwarnings("ignore::frugalvit.deploy.native.SimulationNotice")
FLAT = binary_deit(dim=24, heads=2, depth=1, patch=2, image=8, channels=1, classes=10)


@functools.cache
def trained(model: Model) -> tuple[Classifier, np.ndarray, np.ndarray]:
    """A model after a few dozen steps on digits, and the pictures and labels it has not seen."""
    digits = load_digits()
    side = model.image.height // 8
    image_BHWC = (digits.images * 15.9375).round().astype(np.uint8).repeat(side, 1).repeat(side, 2)[..., None]
    preprocess = Preprocess(model.image.height, model.image.width, (0.3,), (0.35,))
    classifier = Classifier(ClassifierSpec(model, preprocess, tuple("0123456789")), model.build(seed=0)).train()
    for norm in (module for module in classifier.modules() if isinstance(module, BatchNormalized)):
        norm.momentum = 0.3  # few steps
    image_BCHW, label_B = model_input(classifier, image_BHWC), torch.from_numpy(digits.target)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=3e-2, fused=True)
    draw = torch.Generator().manual_seed(0)
    for _ in range(40):
        some = torch.randperm(1400, generator=draw)[:64]
        loss = torch.nn.functional.cross_entropy(classifier(image_BCHW[some]), label_B[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return classifier.eval(), image_BHWC[1400:], digits.target[1400:]


@pytest.mark.parametrize(
    "model",
    [
        FLAT,
        binaryvit(
            dim=16, heads=(1, 2), depths=(1, 1), ratios=(2, 2), reductions=(2, 1), patch=2, image=16, channels=1, classes=10
        ),
    ],
    ids=["flat", "pyramid"],
)
def test_a_trained_model_names_the_same_digits_when_packed(model: Model, tmp_path: Path) -> None:
    classifier, image_BHWC, label_B = trained(model)
    found = pack(classifier, tmp_path / "digits.fvit", image_BHWC=image_BHWC)
    assert found.pictures == 397 and found.agreement >= 0.99
    assert found.flip_rate < 1e-3 and found.attended_rate < 1e-3
    assert found.signs > 10_000 and found.attended > 1000
    assert found.bytes == (tmp_path / "digits.fvit").stat().st_size
    packed = load_packed(tmp_path / "digits.fvit")
    assert (packed.logits(image_BHWC).argmax(1) == label_B).mean() > 0.2
    assert packed.classes == classifier.classes and packed.image == (model.image.height, model.image.width, 1)


@pytest.mark.parametrize("name", MODELS)
def test_random_models_answer_the_same_to_rounding_where_no_bit_flips(name: str, tmp_path: Path) -> None:
    classifier = classifier_of(MODELS[name], seed=2)
    image_BHWC = noise_for(classifier, 16)
    found = pack(classifier, tmp_path / "a.fvit", image_BHWC=image_BHWC)
    assert found.watched == found.pictures == 16
    assert found.flip_rate < 1e-3
    if not found.sign_flips and not found.attended_flips:
        assert found.logit_difference < 1e-4
    assert 0.1 < attended_share(classifier, image_BHWC) < 0.9


def attended_share(classifier: Classifier, image_BHWC: np.ndarray) -> float:
    found: list[torch.Tensor] = []
    Simulation(packed_model(classifier, "a").packed).logits(
        image_BHWC[:2], lambda _, name, bits: found.append(bits.flatten()) if name == "attended" else None
    )
    return torch.cat(found).float().mean().item()


@pytest.mark.parametrize("fusion", [OneHead("class"), OneHead("distill"), MeanLogits()])
def test_a_distilled_model_packs_every_reading_but_softmax(fusion: OneHead | MeanLogits) -> None:
    classifier = classifier_of(MODELS["distilled"], fusion)
    image_BHWC = noise_for(classifier, 4)
    packed = packed_model(classifier, "a").packed
    heads = [step for step in packed.steps if step["kind"] == "head"]
    assert len(heads) == (2 if fusion == MeanLogits() else 1)
    with torch.no_grad():
        wanted_BC = classifier(model_input(classifier, image_BHWC)).numpy()
    np.testing.assert_allclose(Simulation(packed).logits(image_BHWC), wanted_BC, atol=1e-4)


def test_half_precision_rounds_positions_and_heads_alone_before_they_are_compared(tmp_path: Path) -> None:
    classifier = classifier_of(MODELS["pyramid"])
    whole = pack(classifier, tmp_path / "whole.fvit", image_BHWC=noise_for(classifier, 16))
    half = pack(classifier, tmp_path / "half.fvit", image_BHWC=noise_for(classifier, 16), precision="half")
    packed = read_packed(tmp_path / "half.fvit")
    named = {step[field] for step in packed.steps for field in ("positions", "weight") if field in step}
    in_half = {name for name, tensor in packed.tensors.items() if tensor.dtype == np.float16}
    heads = {step["weight"] for step in packed.steps if step["kind"] == "head"}
    assert in_half == {step["positions"] for step in packed.steps if "positions" in step} | heads < named
    assert half.bytes < whole.bytes - 2 * sum(packed.tensors[name].size for name in in_half) + 64
    assert half.logit_difference > whole.logit_difference


def test_the_released_size_packs_into_eight_megabytes_and_into_six_with_half_precision() -> None:
    model = binaryvit_small_patch4_224()
    names = tuple(f"some name of a class {number}" for number in range(1000))
    classifier = Classifier(ClassifierSpec(model, Preprocess(224, 224, (0.5,) * 3, (0.5,) * 3), names), model.build(seed=0))
    sizes = [len(encoded(packed_model(classifier, "a", precision).packed)) for precision in ("single", "half")]
    assert 5e6 < sizes[0] <= 8e6
    assert packed_size(model) == pytest.approx(sizes[0], rel=0.01)
    assert 4e6 < sizes[1] <= 6e6


# ------------------------------------------------------------------------------------------------ answering


@pytest.mark.parametrize("crop", [1.0, 0.875, 0.9, 0.34])
def test_pictures_of_any_size_are_framed_as_the_classifier_frames_them(crop: float) -> None:
    draw = np.random.default_rng(0)
    preprocess = Preprocess(16, 27, (0.5,) * 3, (0.5,) * 3, crop, "bilinear")
    again = preprocess_of(image_of(preprocess), "a.fvit")
    for size in ((16, 27), (40, 33), (7, 90)):
        picture = draw.integers(0, 256, (*size, 3), dtype=np.uint8)
        torch.testing.assert_close(again(picture), preprocess(picture), atol=0, rtol=0)


def test_a_file_may_cover_another_shape_than_the_image_s(tmp_path: Path) -> None:
    packed = packed_model(classifier_of(MODELS["gray"]), "a").packed
    image = {**packed.program["image"], "cover": [16, 48]}
    (tmp_path / "a.fvit").write_bytes(encoded(Packed({**packed.program, "image": image}, packed.tensors)))
    model = load_packed(tmp_path / "a.fvit", threads=1)
    draw = np.random.default_rng(0)
    for size in ((16, 24), (40, 33), (7, 90), (61, 20)):
        picture_HW = draw.integers(0, 256, size, dtype=np.uint8)
        wide, high = (48, 48 * size[0] // size[1]) if 16 * size[1] <= 48 * size[0] else (16 * size[1] // size[0], 16)
        strip = Pillow.fromarray(picture_HW).resize((wide, size[0]), Pillow.Resampling.BICUBIC)  # rows first, by hand
        left, top = round((wide - 24) / 2), round((high - 16) / 2)
        wanted = strip.resize((wide, high), Pillow.Resampling.BICUBIC).crop((left, top, left + 24, top + 16))
        np.testing.assert_array_equal(model.framed(picture_HW)[..., 0], np.array(wanted))
        np.testing.assert_array_equal(model.picture_logits(picture_HW), model.logits(np.array(wanted)[None, ..., None])[0])
    with pytest.raises(WeightsError, match=r"a\.fvit: 15 x 48 pixels do not cover 16 x 24"):
        preprocess_of(image | {"cover": [15, 48]}, "a.fvit")


def refused_pictures(directory: Path) -> list[object]:
    """What `picture_logits` takes neither by the runtime nor by its simulation."""
    return [
        np.zeros((5, 6), np.float32),
        np.zeros((5, 6, 3)),
        np.zeros((5, 6, 4), np.uint8),
        np.zeros((1, 5, 6, 3), np.uint8),
        np.zeros((0, 6, 3), np.uint8),
        [[1, 2], [3, 4]],
        None,
        str(directory / "gone.png"),
    ]


@pytest.mark.parametrize("module", [native.MODULE, "frugalvit.deploy._not_built"], ids=["as built", "simulated"])
def test_one_picture_may_be_a_path_or_an_array_and_all_else_is_refused(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "MODULE", module)
    pack(classifier_of(MODELS["class"]), tmp_path / "a.fvit")
    packed = load_packed(tmp_path / "a.fvit", threads=1)
    colors = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    Pillow.fromarray(colors).save(tmp_path / "a.png")
    wanted_C = packed.logits(packed.framed(colors)[None])[0]
    for picture in (colors, np.asfortranarray(colors), tmp_path / "a.png", str(tmp_path / "a.png"), Pillow.fromarray(colors)):
        np.testing.assert_array_equal(packed.picture_logits(picture), wanted_C)
    gray = colors[..., 0]
    for same in (gray, gray[..., None], np.stack([gray] * 3, -1)):
        np.testing.assert_array_equal(packed.picture_logits(same), packed.picture_logits(gray))
    for wrong in refused_pictures(tmp_path):
        for ask in (packed.picture_logits, packed.step_seconds):
            with pytest.raises(DataError, match=r"Give uint8 values|no such file"):
                ask(wrong)  # type: ignore[arg-type]
    for runs in (0, 1.5, "2"):
        with pytest.raises(SpecError, match=r"runs: .* Use a whole number"):
            packed.step_seconds(colors, runs)  # type: ignore[arg-type]


@native_only
def test_steps_are_timed_with_a_picture_as_it_comes(tmp_path: Path) -> None:
    pack(classifier_of(MODELS["class"]), tmp_path / "a.fvit")
    found = load_packed(tmp_path / "a.fvit", threads=1).step_seconds(np.zeros((9, 9), np.uint8), 2)
    assert {"patches", "head", "resize"} <= {kind for kind, _, _ in found}


def test_it_predicts_as_the_classifier_from_paths_and_arrays(tmp_path: Path) -> None:
    classifier = classifier_of(MODELS["pool"])
    pack(classifier, tmp_path / "a.fvit")
    packed = frugalvit.load_packed(tmp_path / "a.fvit", threads=1)
    pictures = [np.random.default_rng(number).integers(0, 256, (30 + number, 41, 3), dtype=np.uint8) for number in range(3)]
    Pillow.fromarray(pictures[0]).save(tmp_path / "a.png")
    wanted = classifier.predict(pictures, top=3)
    found = packed.predict([tmp_path / "a.png", *pictures[1:]], top=3, batch=2)
    for one, other in zip(found, wanted, strict=True):
        assert one.names == other.names
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-4)
    assert packed.predict(pictures[0])[0].name == wanted[0].name
    np.testing.assert_array_equal(packed.picture_logits(pictures[1]), packed.logits(packed.framed(pictures[1])[None])[0])
    with pytest.raises(SpecError, match="top=0"):
        packed.predict(pictures, top=0)
    with pytest.raises(DataError, match="uint8"):
        packed.logits(np.zeros((1, 16, 24, 3), np.float32))
    with pytest.raises(DataError, match="shape"):
        packed.logits([[1, 2]])  # type: ignore[arg-type]


def test_threads_are_those_asked_for_or_of_the_environment_or_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(classifier_of(MODELS["class"]), tmp_path / "a.fvit")
    for wrong in (0, 257, 2.0, "2", True):
        with pytest.raises(SpecError, match=rf"threads: {wrong!r} threads\. Use a whole number, 1 to 256"):
            load_packed(tmp_path / "a.fvit", threads=wrong)  # type: ignore[arg-type]
    monkeypatch.delenv(native.THREADS, raising=False)
    assert native.wanted_threads() == min(native.usable_cores(), 256)
    monkeypatch.setenv(native.THREADS, "3")
    assert native.wanted_threads() == 3
    load_packed(tmp_path / "a.fvit")
    for text in ("0", "many", "-1", "1e3"):
        monkeypatch.setenv(native.THREADS, text)
        with pytest.raises(SpecError, match="FRUGALVIT_THREADS"):
            load_packed(tmp_path / "a.fvit")


@native_only
def test_without_the_compiled_module_it_is_simulated_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = classifier_of(MODELS["class"])
    pack(classifier, tmp_path / "a.fvit")
    image_BHWC = noise_for(classifier, 3)
    compiled = load_packed(tmp_path / "a.fvit")
    assert not compiled.simulated and compiled.kernels in ("reference", "avx2", "avx512", "neon")
    monkeypatch.setattr(native, "MODULE", "frugalvit.deploy._not_built")
    with pytest.warns(SimulationNotice, match="not built .*pip install"):
        simulated = load_packed(tmp_path / "a.fvit")
    assert simulated.simulated and simulated.kernels == "simulated"
    assert np.array_equal(simulated.logits(image_BHWC), compiled.logits(image_BHWC))
    with pytest.raises(SpecError, match="simulation"):
        simulated.step_seconds(image_BHWC[0])


def test_a_damaged_file_is_refused_by_whoever_runs_it(tmp_path: Path) -> None:
    pack(classifier_of(MODELS["class"]), tmp_path / "a.fvit")
    whole = (tmp_path / "a.fvit").read_bytes()
    (tmp_path / "a.fvit").write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(WeightsError, match=r"a\.fvit: .*damaged"):
        load_packed(tmp_path / "a.fvit")
    with pytest.raises(WeightsError, match="no such file"):
        load_packed(tmp_path / "b.fvit")


# ------------------------------------------------------------------------------------------------ what is not written


def tampered(classifier: Classifier, name: str, precision: Precision) -> PackedModel:
    """With the signs of one map turned around."""
    made = packed_model(classifier, name, precision)
    step = next(step for step in made.packed.steps if step["kind"] == "mlp")
    for part in ("up", "down"):
        made.packed.tensors[step[part]["gain"]] *= -3
    return made


def rounded_away(classifier: Classifier, name: str = "", precision: Precision = "single") -> PackedModel:
    return (tampered if precision == "half" else packed_model)(classifier, name, precision)


def test_where_sixteen_bits_are_to_blame_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, image_BHWC, _ = trained(FLAT)
    monkeypatch.setattr(verify, "packed_model", rounded_away)
    with pytest.raises(WeightsError, match=r"Nothing was written\. Without --half it would answer as trained: leave that out"):
        pack(classifier, tmp_path / "a.fvit", image_BHWC=image_BHWC, precision="half")
    pack(classifier, tmp_path / "a.fvit", image_BHWC=image_BHWC)


def test_a_program_that_answers_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, image_BHWC, _ = trained(FLAT)
    monkeypatch.setattr(verify, "packed_model", tampered)
    with pytest.raises(WeightsError, match=r"a\.fvit: the packed model names another class .* Nothing was written") as caught:
        pack(classifier, tmp_path / "a.fvit", image_BHWC=image_BHWC)
    assert "itself changes its mind for 0 of 100, so roundings are not the reason" in str(caught.value)
    assert not list(tmp_path.iterdir())
    found = pack(classifier, tmp_path / "a.fvit", image_BHWC=image_BHWC, least=0.0)
    assert found.agreement < 0.95 and found.flip_rate > 0.01


def test_a_share_that_is_asked_for_is_meant_exactly_and_few_pictures_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, image_BHWC, _ = trained(FLAT)
    answers_B = verify.answers(classifier, image_BHWC).argmax(1)
    other_B = Simulation(tampered(classifier, "a", "single").packed).logits(image_BHWC).argmax(1) != answers_B
    assert 0 < other_B.sum() < len(other_B)
    other, same = (np.resize(kind, (98, *kind.shape[1:])) for kind in (image_BHWC[other_B], image_BHWC[~other_B]))
    monkeypatch.setattr(verify, "packed_model", tampered)

    def packs(wrong: int, right: int, least: float | None = None) -> bool:
        out = tmp_path / "a.fvit"
        out.unlink(missing_ok=True)
        try:
            found = pack(classifier, out, image_BHWC=np.concatenate([other[:wrong], same[:right]]), least=least)
        except WeightsError as error:
            assert f"for {wrong} of {wrong + right} pictures" in str(error) and "compare on more pictures" in str(error)
            return False
        assert found.agreement == pytest.approx(right / (wrong + right))
        return True

    assert not packs(1, 0) and not packs(2, 0) and not packs(1, 18)
    assert packs(1, 19) and not packs(2, 37) and packs(2, 38)
    assert not packs(1, 97, 1.0) and packs(0, 98, 1.0)
    assert packs(1, 9, 0.9) and not packs(2, 8, 0.9) and packs(2, 0, 0.0)


@pytest.mark.parametrize(("pictures", "least", "most"), [(256, None, 2), (1000, None, 10), (1000, 0.999, 1), (3, 1.0, 0)])
def test_one_picture_in_a_hundred_may_differ_unless_another_share_is_asked_for(
    pictures: int, least: float | None, most: int
) -> None:
    assert most <= verify.allowed(pictures, least) < most + 1


def test_without_a_picture_nothing_is_compared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="image_BHWC: no pictures to compare"):
        pack(classifier_of(MODELS["gray"]), tmp_path / "a.fvit", image_BHWC=np.zeros((0, 16, 24, 1), np.uint8))


@native_only
def test_a_runtime_that_gives_other_bits_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Simulation.logits
    monkeypatch.setattr(Simulation, "logits", lambda *given: np.nextafter(honest(*given), np.float32(9)))
    with pytest.raises(WeightsError, match="do not give the same bits"):
        pack(classifier_of(MODELS["class"]), tmp_path / "a.fvit")
    assert not list(tmp_path.iterdir())


def test_whoever_is_killed_while_packing_leaves_no_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, out = classifier_of(MODELS["class"]), tmp_path / "a.fvit"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        monkeypatch.setattr(verify, "encoded", lambda packed: encoded(packed)[:1000])
        monkeypatch.setattr(verify, "verified", lambda *_: os.kill(os.getpid(), 9))
        pack(classifier, out)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 9
    assert not out.exists()
    assert [one.stat().st_size for one in tmp_path.iterdir()] == [1000]  # what it had written, under another name
    pack(classifier, out)
    assert load_packed(out).classes == classifier.classes


def test_packed_files_have_their_own_ending(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"packed files end in \.fvit"):
        pack(classifier_of(MODELS["class"]), tmp_path / "a.safetensors")
