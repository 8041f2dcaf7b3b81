"""Pictures that travel as files: what workers read, what the device decodes and crops, and trainings on that."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.data.device.pictures import natural, noisy, pillow
from tests.data.test_store import odd_pictures
from tests.training.runs import StopAt, Stopped, column, trace
from torch import Tensor

import frugalvit
from frugalvit.beginning import opened
from frugalvit.cautions import cautions
from frugalvit.data.augment import ResizedCrop, deit_augment
from frugalvit.data.batches import TrainingBatches, read
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.frame import DeviceResizedCrop
from frugalvit.data.device.mixed import AT_ONCE, CropOfMany, resized_crops
from frugalvit.data.device.size import MapSize
from frugalvit.data.encoded import Decoding, EncodedBatches
from frugalvit.data.gpu_jpeg import GpuJpeg
from frugalvit.data.order import Shuffled
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.source import Source
from frugalvit.data.store_device import ManySizes
from frugalvit.errors import DataError, SpecError
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.throughput import fed_speeds, still_speeds
from frugalvit.training.waiting import Waiting

SMALL = Preprocess(20, 28, (0.5,) * 3, (0.25,) * 3)
CPU = torch.device("cpu")
WORDS = ("model=deit_tiny_patch16_224", "image=32", "patch=16", "batch=4", "drop_path=0.1", "log_every=1", "epochs=2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))


def photographs(root: Path, sizes: Sequence[tuple[int, int]], ending: str = "jpg") -> Path:
    """A folder a class, of pictures of these widths and heights in turn."""
    for number in range(24):
        width, height = sizes[number % len(sizes)]
        image_HWC = natural(3, height, width).roll(7 * number, -1).permute(1, 2, 0).numpy()
        place = root / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(np.ascontiguousarray(image_HWC)).save(place / f"{number:02d}.{ending}")
    return root


def a_recipe(*overrides: str) -> Recipe:
    return frugalvit.recipe("transfer.folder", *WORDS, *overrides)


def prepared(made: Recipe, data: Path) -> Training:
    return prepare(made, opened(made, data), place_for("cpu", "fp32"))


def encoded(source: Source, *, batch: int = 6, preprocess: Preprocess = SMALL) -> EncodedBatches:
    return EncodedBatches(TrainingBatches(source, deit_augment(), Shuffled(), 3, batch, preprocess))


# ------------------------------------------------------------------------------------------------ crops


@pytest.mark.parametrize("spec", [ResizedCrop(), ResizedCrop((0.3, 1.0), (0.5, 3.0), "bilinear")], ids=["default", "bilinear"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_several_sizes_are_cropped_as_each_would_be_alone(channels: int, spec: ResizedCrop) -> None:
    sizes = [(5, 90), (28, 28), (47, 33), (20, 28), (64, 61), (131, 7), (1, 1)]
    images = [(noisy if number % 3 else natural)(channels, *sizes[number % 7]) for number in range(AT_ONCE + 9)]
    draws_BK = uniform(torch.tensor([4, 1]), 2, (len(images), DeviceResizedCrop.draws))
    found_BCHW = resized_crops(spec, images, draws_BK, (20, 28))
    for image_CHW, draw_K, found_CHW in zip(images, draws_BK, found_BCHW, strict=True):
        alone = DeviceResizedCrop(spec, MapSize(*image_CHW.shape[1:], channels), (20, 28))
        assert torch.equal(found_CHW, alone(image_CHW[None], draw_K[None])[0])


@pytest.mark.parametrize("pixels", [131 * 90 * AT_ONCE, 131 * 90 * 2], ids=["many at once", "few at once"])
def test_pictures_that_are_kept_are_cropped_as_those_of_a_list(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.data.device.mixed.PIXELS", pixels)
    sizes = [(5, 90), (28, 28), (47, 33), (20, 28), (64, 61), (131, 7), (1, 1)]
    images = [noisy(3, *size) for size in sizes]
    pixel_PC = torch.cat([image_CHW.permute(1, 2, 0).reshape(-1, 3) for image_CHW in images])
    height_N, width_N = torch.tensor(sizes).unbind(1)
    kept = ManySizes(pixel_PC, (height_N * width_N).cumsum(0) - height_N * width_N, height_N, width_N, (131, 90))
    index_B = torch.arange(AT_ONCE + 9) * 5 % 7
    draws_BK = uniform(torch.tensor([4, 1]), 2, (len(index_B), DeviceResizedCrop.draws))
    found_BCHW = CropOfMany(ResizedCrop(), kept, (20, 28))(index_B, draws_BK)
    assert torch.equal(found_BCHW, resized_crops(ResizedCrop(), [images[index] for index in index_B], draws_BK, (20, 28)))


def test_a_picture_many_times_the_models_size_is_cropped_as_by_pillow() -> None:
    spec, image_CHW = ResizedCrop((1.0, 1.0), (1.0, 1.0)), natural(3, 410, 410)
    draws_BK = uniform(torch.tensor([4, 1]), 2, (1, DeviceResizedCrop.draws))
    with pytest.raises(SpecError, match="410 pixels become 20"):
        DeviceResizedCrop(spec, MapSize(410, 410, 3), (20, 20))  # as part of a compiled step
    found_HWC = resized_crops(spec, [image_CHW], draws_BK, (20, 20))[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(found_HWC, np.asarray(pillow(image_CHW).resize((20, 20), Pillow.Resampling.BICUBIC)))


def test_pictures_too_large_to_be_kept_are_told_how_small_to_store_them(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", [(290, 40), (40, 30)])
    with pytest.raises(
        SpecError, match=r"a picture of 290 x 40 pixels, .* at most 256 x 256\. data\.store=Stored\(35\), which"
    ):
        prepared(a_recipe("path=kept"), root)
    assert prepared(a_recipe("path=kept", "data.store=Stored(35)"), root).recipe.path == "kept"
    wide = photographs(tmp_path / "wide", [(900, 40), (40, 30)])
    with pytest.raises(SpecError, match=r"a picture of 900 x 40 pixels, .* at most 256 x 256\. path=auto finds"):
        prepared(a_recipe("path=kept"), wide)


def test_pictures_that_are_stored_smaller_than_the_models_are_told(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", [(40, 30)])
    said = {limit: list(cautions(prepared(a_recipe(f"data.store=Stored({limit})"), root))) for limit in (16, 32)}
    told = "caution: pictures are stored with 16 pixels on their shorter side and enlarged for the model, which takes 32"
    assert told in said[16] and not any("shorter side" in line for line in said[32])


# ------------------------------------------------------------------------------------------------ files


def test_files_travel_as_they_are_and_all_else_as_pixels(tmp_path: Path) -> None:
    """The same pictures as other trainings read, unreadable ones replaced by the same others."""
    source = odd_pictures(tmp_path)
    host = TrainingBatches(source, deit_augment(), Shuffled(), 3, 15, SMALL)[1]
    batch = encoded(source, batch=15)[1]
    assert torch.equal(batch.index_B, host.index_B) and torch.equal(batch.label_B, host.label_B)
    assert sorted(batch.bad) == sorted(host.bad) and len(batch.bad) == 6  # two of each end up at the next one
    files = dict(zip(batch.index_B.tolist(), batch.files(), strict=True))
    jpegs = [index for index, one in files.items() if one.ndim == 1]
    assert sorted(jpegs) == [2, 11]  # gray, and color: not one to be turned, not CMYK
    for index, one in files.items():
        if one.ndim == 1:
            assert one.numpy().tobytes() == Path(source.name(index)).read_bytes()
        else:
            expected = np.asarray(source.picture(index).convert("RGB"))
            np.testing.assert_array_equal(one.permute(1, 2, 0).numpy(), expected)
    gray = encoded(source, batch=15, preprocess=Preprocess(20, 28, (0.5,), (0.25,)))[1]
    assert [one.shape[0] for one in gray.files() if one.ndim == 3] == [1] * 14  # what has colors, Pillow makes gray


def test_unreadable_pictures_can_be_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read, and the recipe refuses such pictures"):
        EncodedBatches(replace(encoded(odd_pictures(tmp_path), batch=15).batches, unreadable="refused"))[0]


def test_workers_read_the_same_batches(tmp_path: Path) -> None:
    batches = encoded(odd_pictures(tmp_path))
    for one, other in zip(read(batches, range(4), 0), read(batches, range(4), 2), strict=True):
        assert one.bad == other.bad and torch.equal(one.byte_N, other.byte_N) and torch.equal(one.end_B, other.end_B)


def test_what_is_decoded_is_cropped_by_the_draws_of_its_batch(tmp_path: Path) -> None:
    source = odd_pictures(tmp_path)
    batches, crop = encoded(source, batch=15), ResizedCrop()
    found = Decoding(batches, 30, CPU)(batches[2])
    draws_BK = uniform(torch.tensor([3, 2]), 2, (15, 30))[:, :22]
    pixels = [torch.from_numpy(np.array(source.picture(index).convert("RGB"))) for index in found.index_B.tolist()]
    expected = resized_crops(crop, [one.permute(2, 0, 1) for one in pixels], draws_BK, (20, 28))
    assert torch.equal(found.image_BCHW, expected)  # torchvision's decoder on the CPU is Pillow's
    assert found.label_B.tolist() == source.labels[found.index_B.numpy()].tolist()


def test_where_the_device_fails_the_host_decodes_and_what_it_cannot_read_is_replaced(tmp_path: Path) -> None:
    """A JPEG without its tables has a head that can be read, and an end."""
    root = photographs(tmp_path / "photos", [(40, 30)])
    broken = root / "a" / "00.jpg"
    data = broken.read_bytes()
    broken.write_bytes(data[: data.index(b"\xff\xdb")] + data[data.index(b"\xff\xc0") :])
    source = opened(a_recipe("data.dataset.holdout=0.0"), root)["train"]
    batches = encoded(source, batch=24)
    with pytest.warns(UserWarning, match="cpu could not decode a batch .*; the CPU does"):
        found = Decoding(batches, 22, CPU)(batches[0])
    assert found.bad == (str(broken),)
    place = batches[0].index_B.tolist().index(0)
    assert found.index_B[place] == 1 and found.label_B[place] == source.labels[1]
    assert sorted(found.index_B.tolist()) == [1, 1, *range(2, 24)]

    def failing(files: Sequence[Tensor], mode: str, device: torch.device) -> list[Tensor]:
        raise RuntimeError("no more memory")

    broken.write_bytes(data)
    with pytest.warns(UserWarning, match=r"\(no more memory\)"):
        by_host = Decoding(batches, 22, CPU, failing)(batches[0])
    assert torch.equal(by_host.image_BCHW, Decoding(batches, 22, CPU)(batches[0]).image_BCHW)


# ------------------------------------------------------------------------------------------------ trainings


@pytest.mark.parametrize("sizes", [[(40, 30)], [(40, 30), (33, 50), (64, 21)]], ids=["one size", "several"])
def test_files_that_are_decoded_on_the_way_train_as_those_decoded_before(
    sizes: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps behind the crop take the draws that they would."""
    monkeypatch.setattr("frugalvit.training.paths.decoder_for", lambda device: GpuJpeg(str(device)))
    root = photographs(tmp_path / "photos", sizes)
    augment = "data.augment.steps=[ResizedCrop, RandAugment, Flip]"
    losses = {}
    for path, words in (("decoded", ()), ("kept", ("data.store=Stored(None, decoder='device')",))):
        run = frugalvit.train(a_recipe(augment, f"path={path}", *words), data=root, out=tmp_path / path, device="cpu")
        assert run.summary["step"] == 10
        losses[path] = column(tmp_path / path, "loss")
    assert losses["decoded"] == losses["kept"] and len(set(losses["kept"])) == 10


def test_an_interrupted_training_on_files_ends_as_a_whole_one_whatever_the_workers(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", [(40, 30), (33, 50), (64, 64)])
    made = a_recipe("path=decoded", "save=Steps(3)", "evaluate=Steps(5)")
    frugalvit.train(made, data=root, out=tmp_path / "whole", device="cpu", workers=2)
    with pytest.raises(Stopped):
        frugalvit.train(made, data=root, out=tmp_path / "parts", device="cpu", display=StopAt(7))
    frugalvit.train(replace(made, path="auto"), data=root, out=tmp_path / "parts", device="cpu", resume=True)
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")


def test_its_step_and_its_loop_are_timed(tmp_path: Path) -> None:
    training = prepared(a_recipe("path=decoded"), photographs(tmp_path, [(40, 30), (33, 50)]))
    *_, still = still_speeds(training, calls=1)
    *_, fed = fed_speeds(training, 0, calls=1)
    assert Waiting(training, 0).reading.kept == "files"
    assert still.images_per_second > 0 and fed.images_per_second > 0 and fed.waiting is not None


@pytest.mark.parametrize(
    ("words", "ending", "message"),
    [
        (("data.augment.steps=[PadCrop, Flip]",), "jpg", "cropped first .ResizedCrop., and here PadCrop is first"),
        ((), "png", "none is a JPEG file that a device decodes. path=auto finds another way"),
        (("data.store=Stored(40)",), "jpg", "data.store decodes them once. Leave one of the two out"),
    ],
)
def test_what_cannot_travel_as_files_is_refused(tmp_path: Path, words: tuple[str, ...], ending: str, message: str) -> None:
    root = photographs(tmp_path, [(40, 30), (33, 50)], ending)
    with pytest.raises(SpecError, match=f"recipe.path: .*{message}"):
        prepared(a_recipe("path=decoded", *words), root)


def test_a_device_without_a_decoder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.training.paths.decodes_on", lambda device: False)
    with pytest.raises(
        SpecError, match=r"no JPEG can be decoded by cpu here: torchvision lacks what it takes\. path=auto finds another way"
    ):
        prepared(a_recipe("path=decoded"), photographs(tmp_path, [(40, 30)]))


def test_nothing_warns_on_the_way(tmp_path: Path) -> None:
    batches = encoded(opened(a_recipe(), photographs(tmp_path, [(40, 30), (33, 50)]))["train"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Decoding(batches, 22, CPU)(batches[0])


# ------------------------------------------------------------------------------------------------ on a GPU


@pytest.mark.gpu
def test_a_gpu_decodes_and_crops_as_the_host_to_a_few_levels(tmp_path: Path) -> None:
    batches = encoded(opened(a_recipe(), photographs(tmp_path, [(400, 300), (330, 500), (64, 64)]))["train"], batch=20)
    host = Decoding(batches, 22, CPU)(batches[0])
    found = Decoding(batches, 22, torch.device("cuda"))(batches[0])
    assert torch.equal(found.index_B.cpu(), host.index_B) and not found.bad
    apart = (found.image_BCHW.cpu().int() - host.image_BCHW.int()).abs()
    assert apart.float().mean() < 1 and apart.max() < 24  # chroma is not interpolated alike


@pytest.mark.gpu
@pytest.mark.parametrize("words", [("path=decoded",), ("path=kept", "data.store=Stored(150)")], ids=["decoded", "kept"])
def test_a_training_on_photographs_is_captured_and_goes_on_where_it_was(tmp_path: Path, words: tuple[str, ...]) -> None:
    root = photographs(tmp_path / "photos", [(400, 300), (330, 500), (64, 64)])
    made = a_recipe(*words, "save=Steps(3)", "deterministic=true")
    whole = prepare(made, opened(made, root), place_for("cuda", "fp32"))
    *_, _ = fed_speeds(whole, 2, calls=2)
    assert whole.step.graph is not None and not whole.step.notes  # type: ignore[attr-defined]
    frugalvit.train(made, data=root, out=tmp_path / "whole", device="cuda", workers=2)
    with pytest.raises(Stopped):
        frugalvit.train(made, data=root, out=tmp_path / "parts", device="cuda", display=StopAt(7))
    frugalvit.train(made, data=root, out=tmp_path / "parts", device="cuda", resume=True)
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")
