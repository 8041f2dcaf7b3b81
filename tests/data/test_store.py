from __future__ import annotations

import errno
import fcntl
import itertools
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.data.trees import class_folders, number_of, picture

from frugalvit.data import arrays, files, store_build
from frugalvit.data.ahead import Reading, advice, ahead
from frugalvit.data.arrays import Arrays
from frugalvit.data.augment import Augment, Flip, ResizedCrop, deit_augment
from frugalvit.data.backing import afresh
from frugalvit.data.batch import Batch
from frugalvit.data.batches import EvaluationBatches, TrainingBatches, read
from frugalvit.data.files import Files, pictures_in
from frugalvit.data.folder import ImageFolder
from frugalvit.data.gpu_jpeg import GpuJpeg, decoder_for, plain_jpeg
from frugalvit.data.order import Shuffled
from frugalvit.data.preprocess import MODES, Preprocess
from frugalvit.data.source import Source
from frugalvit.data.split import Picked
from frugalvit.data.store import Store, as_stored, default_place, open_store, opened_for
from frugalvit.data.store_build import Chunks, Decoder, OneByOne, built, open_or_build
from frugalvit.data.store_device import ManySizes, group_memory, to_device
from frugalvit.data.store_files import FORMAT, StaleStore, alone, checksum
from frugalvit.errors import DataError, SpecError


def quiet(done: int, total: int) -> None:
    pass


def refused(done: int, total: int) -> None:
    raise AssertionError("it is built again")


def odd_pictures(root: Path) -> Files:
    """One of every kind; the last three cannot be read. Class "b" has one picture, and class "c" none."""
    folder = root / "a"
    folder.mkdir(parents=True)
    exif = Pillow.Exif()
    exif[0x0112] = 6
    picture(1, 47, 31).save(folder / "00.jpg", exif=exif)
    for number, mode in enumerate(("CMYK", "L"), 1):
        picture(number, 17, 11).convert(mode).save(folder / f"{number:02d}.jpg")
    for number, mode in enumerate(("P", "RGBA", "LA", "1", "RGB"), 3):
        picture(number, 19, 13).convert(mode).save(folder / f"{number:02d}.png")
    picture(8, 9, 9).convert("P").save(folder / "08.png", transparency=3)
    Pillow.fromarray(np.arange(187, dtype=np.uint16).reshape(11, 17) * 300).save(folder / "09.tif")
    picture(10, 1, 70).save(folder / "10.bmp")
    picture(11, 170, 110).save(folder / "11.jpg")
    whole = (folder / "11.jpg").read_bytes()
    (folder / "12.jpg").write_bytes(whole[:900])
    (folder / "13.jpg").write_text("not a picture")
    (folder / "14.png").write_bytes(b"")
    names = [f"a/{name}" for name in pictures_in(folder)]
    return Files(root, names, [0] * 11 + [1] + [0] * 3, ("a", "b", "c"))


def toy_arrays(count: int = 23, channels: int = 3) -> Arrays:
    shape = (count, 5, 7, 3) if channels == 3 else (count, 5, 7)
    image = np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8)
    return Arrays(image, np.arange(count) % 4, ("a", "b", "c", "d"), "toy")


def stored(
    source: Source,
    path: Path,
    mode: str = "RGB",
    limit: int | None = None,
    workers: int = 0,
    progress: Callable[[int, int], None] = quiet,
    decoder: Decoder = OneByOne(),
) -> Store:
    """Built anew, also where there is one that could be opened."""
    with alone(path):
        return built(Chunks(source, mode, limit, decoder), source.fingerprint(), path, workers, progress)


def reopened(source: Source, path: Path, progress: Callable[[int, int], None] = refused) -> Store:
    return open_or_build(source, path, mode="RGB", limit=None, workers=0, progress=progress)


def fresh(source: Source, path: Path, mode: str = "RGB", limit: int | None = None, decoder: str = "pillow") -> Store:
    return opened_for(source, afresh(source).fingerprint(), path, mode=mode, limit=limit, decoder=decoder)


def files_of(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if not one.name.endswith(".lock"))


def augment_for(mode: str) -> Augment:
    return deit_augment() if mode == "RGB" else Augment((ResizedCrop(), Flip()))


def assert_equal_batches(one: Batch, two: Batch) -> None:
    assert torch.equal(one.image_BCHW, two.image_BCHW)
    assert torch.equal(one.label_B, two.label_B)
    assert torch.equal(one.index_B, two.index_B)
    assert one.bad == two.bad


# ------------------------------------------------------------------------------------------------ what is stored


@pytest.mark.parametrize("mode", list(MODES.values()))
@pytest.mark.parametrize("workers", [0, 2])
def test_every_picture_is_stored_as_the_source_shows_it(tmp_path: Path, mode: str, workers: int) -> None:
    source = odd_pictures(tmp_path / "pictures")
    store = stored(source, tmp_path / "store.json", mode, workers=workers)
    assert (store.classes, store.fingerprint(), store.shrunk) == (source.classes, source.fingerprint(), 0)
    assert store.labels.tolist() == source.labels.tolist()
    assert [store.name(index) for index in range(15)] == [source.name(index) for index in range(15)]
    assert store.picture(0).size == (31, 47)
    for index in range(12):
        found = store.picture(index)
        assert found.mode == mode
        np.testing.assert_array_equal(np.asarray(found), np.asarray(source.picture(index).convert(mode)))
    assert sorted(store.unreadable) == [12, 13, 14]
    with pytest.raises(DataError, match=r"13\.jpg: could not be read when it was stored \(not a picture that can be read"):
        store.picture(13)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_batches_of_a_store_are_those_of_its_source_bit_for_bit(tmp_path: Path, mode: str) -> None:
    source = odd_pictures(tmp_path / "pictures")
    stored(source, tmp_path / "store.json", mode)
    channels = len(mode)
    preprocess = Preprocess(12, 10, (0.5,) * channels, (0.5,) * channels)
    both = (source, open_store(tmp_path / "store.json"))
    first, second = (TrainingBatches(one, augment_for(mode), Shuffled(), 3, 6, preprocess) for one in both)
    assert any(first[step].bad for step in range(6))
    for step in range(6):
        assert_equal_batches(first[step], second[step])
    first, second = (EvaluationBatches(one, 4, preprocess) for one in both)
    for one, two in zip(read(first, range(4), 0), read(second, range(4), 2), strict=True):
        assert_equal_batches(one, two)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_one_size_are_an_array(tmp_path: Path, channels: int) -> None:
    source = toy_arrays(channels=channels)
    store = stored(source, tmp_path / "store.json", "RGB" if channels == 3 else "L")
    assert store.same_size() == (5, 7)
    assert isinstance(store.array(), np.memmap)
    np.testing.assert_array_equal(store.array(), source.images.reshape(23, 5, 7, channels))
    assert store.bytes == 23 * 5 * 7 * channels


def test_a_broken_picture_among_equal_ones_is_black_and_leaves_an_array(tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", {"a": 40})
    (tmp_path / "pictures" / "a" / "007.jpg").write_text("broken")
    source = ImageFolder(holdout=0).open("train", tmp_path / "pictures")
    store = stored(source, tmp_path / "store.json")
    assert store.same_size() == (5, 7)
    assert not store.array()[7].any()
    assert [number_of(store.picture(index)) for index in (6, 8)] == [6, 8]
    assert list(store.unreadable) == [7]
    assert json.loads((tmp_path / "store.json").read_text())["unreadable"][0][:2] == [7, source.name(7)]


def test_pictures_of_several_sizes_are_no_array(tmp_path: Path) -> None:
    store = stored(odd_pictures(tmp_path / "pictures"), tmp_path / "store.json")
    assert store.same_size() is None
    with pytest.raises(DataError, match="several sizes"):
        store.array()


def test_the_file_is_the_same_however_many_processes_decode(tmp_path: Path) -> None:
    source = toy_arrays(3000)
    found = [stored(source, tmp_path / f"{workers}.json", workers=workers) for workers in (0, 1, 2)]
    assert len({one.file.read_bytes() for one in found}) == 1
    np.testing.assert_array_equal(found[0].array(), source.images)


def test_large_pictures_are_shrunk_to_the_limit_and_small_ones_kept(tmp_path: Path) -> None:
    source = odd_pictures(tmp_path / "pictures")
    store = stored(source, tmp_path / "store.json", limit=12)
    sizes = [source.picture(index).size for index in range(12)]
    assert [min(store.picture(index).size) for index in range(12)] == [min(12, *size) for size in sizes]
    assert store.picture(11).size == (19, 12)  # 170 x 110
    assert store.picture(10).size == (1, 70)
    assert store.shrunk == sum(min(size) > 12 for size in sizes)
    assert store.fingerprint() != source.fingerprint() == store.origin
    assert store.fingerprint() != stored(source, tmp_path / "other.json", limit=11).fingerprint()
    assert stored(source, tmp_path / "wide.json", limit=500).fingerprint() == source.fingerprint()
    assert len(store.fingerprint()) == 16


def test_shrinking_averages_rather_than_picks() -> None:
    stripes_HW = np.tile(np.array([0, 255], dtype=np.uint8), (64, 32))
    found = np.asarray(as_stored(Pillow.fromarray(stripes_HW), "L", 8))
    assert found.shape == (8, 8)
    assert abs(found.astype(int) - 127).max() < 16


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_stores_of_one_picture_and_of_none_can_be_read(tmp_path: Path, count: int, workers: int) -> None:
    source = Picked(toy_arrays(), np.arange(count))
    store = stored(source, tmp_path / "store.json", workers=workers)
    assert len(store) == count
    assert store.classes == source.classes
    assert len(reopened(source, tmp_path / "store.json")) == count
    assert len(pickle.loads(pickle.dumps(store))) == count


def test_a_picture_whose_colors_cannot_be_converted_counts_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    picture(1).save(tmp_path / "a" / "0.tif")
    Pillow.new("LAB", (7, 5)).save(tmp_path / "a" / "1.tif")
    source = ImageFolder(holdout=0).open("train", tmp_path)
    store = stored(source, tmp_path / "store.json", "L")
    assert list(store.unreadable) == [1]
    assert store.unreadable[1].startswith("LAB does not become L")
    assert fresh(source, tmp_path / "store.json", "L").same_size() == (5, 7)


def test_a_picture_whose_colors_cannot_be_converted_gives_the_same_batches_from_files_and_from_a_store(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(4):
        picture(number).save(tmp_path / "a" / f"{number}.tif")
    Pillow.new("LAB", (7, 5)).save(tmp_path / "a" / "1.tif")
    source = ImageFolder(holdout=0).open("train", tmp_path)
    both = source, stored(source, tmp_path / "store.json", "L")
    preprocess = Preprocess(5, 7, (0.5,), (0.5,))
    plain, kept = (TrainingBatches(one, augment_for("L"), Shuffled(), 3, 4, preprocess)[0] for one in both)
    assert plain.bad == (source.name(1),)
    assert_equal_batches(plain, kept)
    assert_equal_batches(*(EvaluationBatches(one, 4, preprocess)[0] for one in both))


def test_where_nothing_can_be_read_nothing_is_stored(tmp_path: Path) -> None:
    source = Picked(odd_pictures(tmp_path / "pictures"), np.array([12, 13, 14]))
    with pytest.raises(DataError, match=r"12\.jpg: not one of the 3 pictures can be read, the first because: not a picture"):
        stored(source, tmp_path / "stores" / "store.json")
    assert files_of(tmp_path / "stores") == []


def test_progress_is_told_from_nothing_to_all(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    source = toy_arrays(2500)
    stored(source, tmp_path / "s", workers=2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 2500), (1024, 2500), (2048, 2500), (2500, 2500)]


@pytest.mark.parametrize(("mode", "limit", "workers"), [("RBG", None, 0), ("RGB", 0, 0), ("RGB", None, -1)])
def test_impossible_stores_are_refused(tmp_path: Path, mode: str, limit: int | None, workers: int) -> None:
    with pytest.raises(SpecError, match=r"mode: there is no mode 'RBG'. Did you mean|is too small. Use"):
        open_or_build(toy_arrays(), tmp_path / "s", mode=mode, limit=limit, workers=workers, progress=quiet)


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "a")
    os.mkdir(folder)  # noqa: PTH102 -- bytes, which no Path can hold
    picture(5).save(tmp_path / "plain.png")
    os.rename(tmp_path / "plain.png", folder + b"/\xe9\xff \xc3\xa4.png")  # noqa: PTH104
    source = ImageFolder(holdout=0).open("train", tmp_path)
    stored(source, tmp_path / "store.json")
    store = reopened(source, tmp_path / "store.json")
    assert store.name(0) == source.name(0)
    assert number_of(store.picture(0)) == 5


# ------------------------------------------------------------------------------------------------ stale stores


def test_a_store_is_used_again_and_a_stale_one_says_why(tmp_path: Path) -> None:
    source, path = toy_arrays(), tmp_path / "store.json"
    with pytest.raises(StaleStore, match=r"store\.json: there is no store here"):
        open_store(path)
    stored(source, path)
    reopened(source, path)
    with pytest.raises(StaleStore, match=r"is of another data set, or of one that has changed since \(fingerprint"):
        fresh(toy_arrays(24), path)
    for change, message in (
        ({"mode": "L"}, "has mode RGB, not L. Build it again"),
        ({"limit": 3}, "has limit None, not 3"),
        ({"decoder": "nvjpeg"}, "has decoder pillow, not nvjpeg"),
    ):
        with pytest.raises(StaleStore, match=message):
            fresh(source, path, **change)


def test_a_stale_store_is_built_again_and_its_pixels_removed(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    old = stored(toy_arrays(), path)
    new = reopened(toy_arrays(24), path, quiet)
    assert len(new) == 24
    assert files_of(tmp_path) == sorted(["store.json", new.file.name])
    np.testing.assert_array_equal(old.array(), toy_arrays().images)  # whoever has it mapped keeps it


def test_other_pixels_under_the_same_names_and_lengths_are_noticed(tmp_path: Path) -> None:
    folder, path = tmp_path / "pictures" / "a", tmp_path / "store.json"
    folder.mkdir(parents=True)
    for number in range(3):
        picture(number).save(folder / f"{number}.bmp")
    source = ImageFolder(holdout=0).open("train", folder.parent)
    stored(source, path)
    picture(9).save(folder / "1.bmp")
    assert (folder / "1.bmp").stat().st_size == (folder / "2.bmp").stat().st_size
    with pytest.raises(StaleStore, match=r"is of another data set, or of one that has changed since"):
        fresh(source, path)
    assert number_of(reopened(source, path, quiet).picture(1)) == 9


def test_other_pixels_that_no_fingerprint_and_no_time_tells_are_noticed_in_some_places(tmp_path: Path) -> None:
    source = Careless(toy_arrays())
    stored(source, tmp_path / "s")
    source.source.images[22] //= 2
    with pytest.raises(StaleStore, match=r"holds another picture than toy\[22\] is now"):
        fresh(source, tmp_path / "s")
    np.testing.assert_array_equal(reopened(source, tmp_path / "s", quiet).array(), source.source.images)


class Careless(Picked):
    """A source whose fingerprint says nothing about its pictures, as one of a user's may be."""

    source: Arrays

    def __init__(self, source: Arrays):
        super().__init__(source, np.arange(len(source)))

    def fingerprint(self) -> str:
        return "0" * 16


def test_files_that_are_written_anew_are_stored_anew_though_none_of_them_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SAMPLED", 2)  # as if there were many: the first and the last
    folder, path = tmp_path / "pictures" / "a", tmp_path / "store.json"
    folder.mkdir(parents=True)
    for number in range(30):
        picture(number).save(folder / f"{number:02d}.bmp")
    source = ImageFolder(holdout=0).open("train", folder.parent)
    before = source.fingerprint()
    stored(source, path)
    picture(77).save(folder / "02.bmp")  # spots are 0, 4, 8, ...
    assert afresh(source).fingerprint() == before
    with pytest.raises(StaleStore, match=r"store\.json: is of files that have been written since\. Build it again"):
        fresh(source, path)
    done: list[int] = []
    assert number_of(reopened(source, path, lambda now, total: done.append(now)).picture(2)) == 77
    assert done == [0, 30]
    reopened(source, path)


def test_a_mapped_array_that_is_saved_anew_is_stored_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "WHOLE", 100)  # as if it were large: only some pictures enter the fingerprint
    monkeypatch.setattr(arrays, "SAMPLED", 8)
    images, path = toy_arrays(1000).images, tmp_path / "store.json"
    kept = np.linspace(0, 999, 8).astype(int)
    np.save(tmp_path / "images.npy", images)

    def opened() -> Source:
        mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
        return Picked(Arrays(mapped, np.zeros(1000), ["a"], "mapped"), np.arange(1000))

    before = opened().fingerprint()
    stored(opened(), path)
    reopened(opened(), path)
    changed = np.zeros_like(images)
    changed[kept] = images[kept]
    np.save(tmp_path / "images.npy", changed)
    assert opened().fingerprint() == before
    np.testing.assert_array_equal(reopened(opened(), path, quiet).array(), changed)


def test_only_the_files_of_the_own_pictures_make_a_store_stale(tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", {"a": 4, "b": 3})
    source = ImageFolder(holdout=0).open("train", tmp_path / "pictures")
    part = Picked(source, np.array([0, 5]))
    stored(part, tmp_path / "store.json")
    os.utime(source.path(1), ns=(1, 1))
    reopened(part, tmp_path / "store.json")
    os.utime(source.path(5), ns=(1, 1))
    with pytest.raises(StaleStore, match="is of files that have been written since"):
        fresh(part, tmp_path / "store.json")


def test_a_store_of_an_older_format_is_built_again_and_its_pixels_removed(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    old = stored(toy_arrays(), path)
    found = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("checksum", "written")}
    rest = json.dumps(found | {"format": 1}, separators=(",", ":")).encode()
    path.write_bytes(b'{"checksum":"%s",' % checksum(rest).encode() + rest[1:])
    with pytest.raises(StaleStore, match=f"has format 1, and this version reads {FORMAT}"):
        open_store(path)
    new = reopened(toy_arrays(), path, quiet)
    assert files_of(tmp_path) == sorted(["store.json", new.file.name]) and new.file != old.file


def test_a_picture_that_can_be_read_again_is_stored_again(tmp_path: Path) -> None:
    source = Flaky(toy_arrays(), broken=11)
    stored(source, tmp_path / "s")
    reopened(source, tmp_path / "s")
    assert not reopened(toy_arrays(), tmp_path / "s", quiet).unreadable


class Flaky(Picked):
    """A source of which one picture cannot be read, in a way that no decoder announces."""

    def __init__(self, source: Arrays, broken: int):
        super().__init__(source, np.arange(len(source)))
        self.broken = broken

    def picture(self, index: int) -> Pillow.Image:
        if index == self.broken:
            raise IndexError("a decoder's own mistake")
        return super().picture(index)

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def test_pictures_that_change_while_they_are_stored_are_not_stored(tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", {"a": 3})
    source = ImageFolder(holdout=0).open("train", tmp_path / "pictures")

    def meddle(done: int, total: int) -> None:
        picture(1, 90, 80).save(tmp_path / "pictures" / "a" / "000.jpg")

    with pytest.raises(DataError, match="changed while they were being stored"):
        stored(source, tmp_path / "store.json", progress=meddle)
    assert "store.json" not in files_of(tmp_path)


def test_a_picture_that_changes_while_it_is_stored_and_keeps_its_length_and_time_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "pictures" / "a" / "0.bmp"
    file.parent.mkdir(parents=True)
    picture(0).save(file)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    source = Picked(ImageFolder(holdout=0).open("train", tmp_path / "pictures"), np.array([0]))

    def meddle(done: int, total: int) -> None:
        picture(1).save(file)
        os.utime(file, ns=times)

    with pytest.raises(DataError, match="changed while they were being stored"):
        stored(source, tmp_path / "store.json", progress=meddle)


def test_a_mapped_array_that_is_saved_anew_while_it_is_stored_is_not_stored(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", toy_arrays().images)
    source = Arrays(np.load(tmp_path / "images.npy", mmap_mode="r"), np.zeros(23), ["a"], "mapped")

    def meddle(done: int, total: int) -> None:
        np.save(tmp_path / "images.npy", toy_arrays().images // 2)

    with pytest.raises(DataError, match="changed while they were being stored"):
        stored(source, tmp_path / "store.json", progress=meddle)
    assert "store.json" not in files_of(tmp_path)


def test_a_moved_data_set_keeps_its_store_under_its_new_names(tmp_path: Path) -> None:
    class_folders(tmp_path / "here", {"a": 3, "b": 2})
    stored(ImageFolder(holdout=0).open("train", tmp_path / "here"), tmp_path / "store.json")
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = ImageFolder(holdout=0).open("train", tmp_path / "there")
    assert reopened(moved, tmp_path / "store.json").name(3) == moved.name(3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-30], "is not the header of a store, or damaged"),
        (lambda text: "[1, 2]", "is not the header of a store"),
        (lambda text: text.replace('"shrunk":0', '"shrunk":1'), "does not have the checksum that it states"),
        (lambda text: text.replace(f'"format":{FORMAT}', '"format":99'), f"has format 99, and this version reads {FORMAT}"),
    ],
)
def test_a_damaged_header_is_refused_and_built_again(tmp_path: Path, damage: Callable[[str], str], message: str) -> None:
    path = tmp_path / "store.json"
    stored(toy_arrays(), path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(StaleStore, match=message):
        open_store(path)
    np.testing.assert_array_equal(reopened(toy_arrays(), path, quiet).array(), toy_arrays().images)


def test_pixels_that_are_short_or_gone_are_refused_and_built_again(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    store = stored(toy_arrays(), path)
    os.truncate(store.file, 100)
    with pytest.raises(StaleStore, match=r"has 100 bytes instead of 2,415"):
        open_store(path)
    store = reopened(toy_arrays(), path, quiet)
    store.file.unlink()
    with pytest.raises(StaleStore, match=r"the pixels of a store are gone"):
        open_store(path)
    reopened(toy_arrays(), path, quiet)


def test_a_header_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "store.json"
    store = stored(toy_arrays(), path)
    (tmp_path / "elsewhere").write_bytes(store.file.read_bytes())
    rest = b"{" + path.read_bytes().partition(b",")[2].replace(store.file.name.encode(), b"../elsewhere")
    path.write_bytes(b'{"checksum":"%s",' % checksum(rest).encode() + rest[1:])
    with pytest.raises(StaleStore, match=r"inner/elsewhere: the pixels of a store are gone"):
        open_store(path)


# ------------------------------------------------------------------------------------------------ killed, crowded, full

FORK = multiprocessing.get_context("fork")


class Slow(Arrays):
    """Takes its time over each picture."""

    def picture(self, index: int) -> Pillow.Image:
        time.sleep(0.002)
        return super().picture(index)


def slow_arrays() -> Slow:
    toy = toy_arrays()
    return Slow(toy.images, toy.labels, toy.classes, toy.place)


def started(task: Callable[[], None]) -> BaseProcess:
    process = FORK.Process(target=task)
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    process.join()  # without a timeout, which would wait for the workers of a killed process too
    return process.exitcode


def said_by(task: Callable[[], object]) -> str:
    """What the error says that a task in another process ends with."""
    said = FORK.SimpleQueue()

    def told() -> None:
        try:
            task()
        except DataError as error:
            said.put(str(error))
        else:
            said.put("")

    process = started(told)
    text = said.get()
    assert ended(process) == 0
    return str(text)


def assert_no_half_store(folder: Path) -> None:
    """Either there is no store, or it is whole; and the next build works and clears up."""
    try:
        found = open_store(folder / "store.json").array()
    except StaleStore:
        found = toy_arrays().images
    np.testing.assert_array_equal(found, toy_arrays().images)
    store = reopened(toy_arrays(), folder / "store.json", quiet)
    np.testing.assert_array_equal(store.array(), toy_arrays().images)
    with alone(folder / "store.json"):
        assert files_of(folder) == sorted(["store.json", store.file.name])


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_build, "MOST", 5)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("small_chunks")
def test_a_build_that_is_killed_at_any_time_leaves_nothing_that_looks_whole(tmp_path: Path, workers: int) -> None:
    draw = random.Random(workers)
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        begun = FORK.Event()

        def build(folder: Path = folder, begun: Event = begun) -> None:
            stored(slow_arrays(), folder / "store.json", workers=workers, progress=lambda done, total: begun.set())

        process = started(build)
        assert begun.wait(60)
        time.sleep(draw.uniform(0, 0.2))
        process.kill()
        ended(process)
        assert_no_half_store(folder)


# Killed just before the n-th of: pixels to the disk, renamed, their folder, header to the disk, renamed, their folder.
@pytest.mark.parametrize("call", range(1, 7))
def test_a_build_that_is_killed_between_its_last_steps_leaves_nothing_that_looks_whole(tmp_path: Path, call: int) -> None:
    calls = itertools.count(1)

    def fatal(real: Callable[..., object]) -> Callable[..., object]:
        def one(*arguments: object) -> object:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return one

    def build() -> None:
        os.fsync, Path.replace = fatal(os.fsync), fatal(Path.replace)  # type: ignore[assignment,method-assign]
        stored(toy_arrays(), tmp_path / "store.json")

    assert ended(started(build)) == -signal.SIGKILL
    assert_no_half_store(tmp_path)


def test_builders_of_one_store_wait_for_the_first(tmp_path: Path) -> None:
    builds = FORK.Value("i", 0)

    def count(done: int, total: int) -> None:
        if done == total:
            with builds.get_lock():
                builds.value += 1

    processes = [started(lambda: reopened(slow_arrays(), tmp_path / "store.json", count)) for _ in range(4)]
    assert [ended(one) for one in processes] == [0] * 4
    assert builds.value == 1
    assert_no_half_store(tmp_path)


@pytest.mark.usefixtures("small_chunks")
def test_builders_without_locks_do_each_other_no_harm(tmp_path: Path) -> None:
    def unable(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    def build() -> None:
        fcntl.flock = unable
        for _ in range(3):
            store = stored(slow_arrays(), tmp_path / "store.json")
            assert np.array_equal(store.array(), toy_arrays().images)
            assert np.array_equal(open_store(tmp_path / "store.json").array(), toy_arrays().images)

    assert [ended(one) for one in [started(build) for _ in range(3)]] == [0] * 3
    assert_no_half_store(tmp_path)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"store\.json: the pictures need about 0\.2 MB, and 0\.0 MB are free here\. Free some"):
        stored(toy_arrays(2000), tmp_path / "store.json")
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("limit", [30, 1000, 2430])  # within the pixels, within them, and within the header
def test_a_disk_that_fills_up_leaves_the_old_store(tmp_path: Path, limit: int) -> None:
    source = toy_arrays()
    source.classes += ("long" * 900,)
    old = stored(toy_arrays(5), tmp_path / "store.json")

    def build() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        reopened(source, tmp_path / "store.json", quiet)

    assert "store.json: no space is left (disk, quota or file size limit). Free some, set FRUGALVIT_CACHE" in said_by(build)
    assert files_of(tmp_path) == sorted(["store.json", old.file.name])
    np.testing.assert_array_equal(open_store(tmp_path / "store.json").array(), toy_arrays(5).images)


def test_a_folder_that_cannot_be_written_is_named_with_its_cure(tmp_path: Path) -> None:
    def build() -> None:
        os.chdir(tmp_path)
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        reopened(toy_arrays(), Path("store.json"), quiet)

    tmp_path.chmod(0o555)
    text = said_by(build)
    tmp_path.chmod(0o755)
    assert text.startswith("store.json: cannot be written (Permission denied). Change that, or set FRUGALVIT_CACHE to another")


class Deadly(Slow):
    """Ends the worker that reads its tenth picture, as a system that runs out of memory does."""

    main = os.getpid()

    def picture(self, index: int) -> Pillow.Image:
        if index == 9 and os.getpid() != self.main:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().picture(index)


@pytest.mark.usefixtures("small_chunks")
def test_a_worker_that_dies_ends_the_build_with_a_cure(tmp_path: Path) -> None:
    toy = toy_arrays()
    with pytest.raises(DataError, match=r"a process that decodes pictures was ended .*If memory is short, use fewer --workers"):
        stored(Deadly(toy.images, toy.labels, toy.classes, toy.place), tmp_path / "store.json", workers=2)
    assert_no_half_store(tmp_path)


# ------------------------------------------------------------------------------------------------ where, and how it travels


def test_stores_live_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRUGALVIT_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for given, expected in (("", "/home/me/.cache"), ("relative", "/home/me/.cache"), ("/big", "/big")):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert default_place("0123", "RGB", None) == Path(expected) / "frugalvit" / "stores" / "0123-RGB-full.json"
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path))
    assert default_place("0123", "L", 256) == tmp_path / "stores" / "0123-L-256.json"
    assert default_place("0123", "L", 256, "nvjpeg") == tmp_path / "stores" / "0123-L-256-nvjpeg.json"


def test_a_store_travels_without_its_pixels(tmp_path: Path) -> None:
    source = toy_arrays(400)
    store = stored(source, tmp_path / "store.json")
    data = pickle.dumps(store)
    assert len(data) < store.bytes / 2
    copy = pickle.loads(data)
    assert isinstance(copy.pixels, np.memmap)
    np.testing.assert_array_equal(np.asarray(copy.picture(300)), source.images[300])
    assert copy.fingerprint() == source.fingerprint()


# ------------------------------------------------------------------------------------------------ in memory


def test_a_store_of_one_size_fits_into_memory_as_one_tensor(tmp_path: Path) -> None:
    source = toy_arrays()
    kept, words = to_device(stored(source, tmp_path / "s"), torch.device("cpu"), free=2 * 2415)
    assert kept is not None
    assert kept.image_NCHW.shape == (23, 3, 5, 7)
    np.testing.assert_array_equal(kept.image_NCHW.permute(0, 2, 3, 1).numpy(), source.images)
    assert kept.image_NCHW.is_contiguous()
    assert words == "all 0.0 MB of pictures are kept on cpu."


def test_a_store_of_several_sizes_is_kept_picture_behind_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.data.store_device.PIECE", 101)  # pieces that end anywhere
    store = stored(odd_pictures(tmp_path / "pictures"), tmp_path / "s")
    kept, _ = to_device(store, torch.device("cpu"))
    assert isinstance(kept, ManySizes)
    assert kept.largest == (store.heights.max(), store.widths.max())
    index_B = torch.arange(len(store)).flip(0)
    canvas_BCHW = kept.canvas_BCHW(index_B)
    assert canvas_BCHW.shape == (len(store), store.channels, *kept.largest)
    for index, canvas_CHW in zip(index_B.tolist(), canvas_BCHW, strict=True):
        image_CHW = torch.from_numpy(np.array(store.image_HWC(index))).permute(2, 0, 1)
        assert torch.equal(canvas_CHW[:, : image_CHW.shape[1], : image_CHW.shape[2]], image_CHW)
    with pytest.raises(DataError, match="its pictures have several sizes, so they are no array"):
        store.array()


def test_a_store_that_does_not_fit_stays_on_disk_and_says_why(tmp_path: Path) -> None:
    kept, reason = to_device(stored(toy_arrays(), tmp_path / "s"), torch.device("cpu"), free=2 * 2415 - 1)
    assert kept is None
    assert reason == "0.0 MB of pictures are more than 50% of the 0.0 MB that are free on cpu, so they stay on disk."


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    for name, text in (("memory.max", "5000\n"), ("memory.current", "3000\n"), ("memory.stat", "anon 2500\nfile 500\n")):
        (tmp_path / name).write_text(text)
    assert group_memory(tmp_path) == 2500
    (tmp_path / "memory.max").write_text("max\n")
    assert group_memory(tmp_path) > 1 << 60


# ------------------------------------------------------------------------------------------------ read ahead


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_ahead_gives_the_batches_of_a_plain_reader(tmp_path: Path, workers: int) -> None:
    preprocess = Preprocess(12, 10, (0.5,) * 3, (0.5,) * 3)
    store = stored(odd_pictures(tmp_path / "pictures"), tmp_path / "s")
    batches = TrainingBatches(store, deit_augment(), Shuffled(), 3, 6, preprocess)
    reader = ahead(batches, range(2, 7), workers, torch.device("cpu"))
    for one, two in zip(read(batches, range(2, 7), 0), reader, strict=True):
        assert_equal_batches(one, two)


@pytest.mark.gpu
def test_reading_ahead_on_a_device_gives_the_batches_of_a_plain_reader(tmp_path: Path) -> None:
    preprocess = Preprocess(12, 10, (0.5,) * 3, (0.5,) * 3)
    batches = TrainingBatches(toy_arrays(), deit_augment(), Shuffled(), 3, 6, preprocess)
    reader = ahead(batches, range(40), 2, torch.device("cuda"))
    for one, two in zip(read(batches, range(40), 0), reader, strict=True):
        assert two.image_BCHW.is_cuda
        assert torch.equal(one.image_BCHW, two.image_BCHW.cpu())


@pytest.mark.parametrize(
    ("share", "facts", "words"),
    [
        (0.1, Reading("encoded", 0, 8, 500, 224), ""),
        (
            0.5,
            Reading("encoded", 2, 8, 500, 224),
            "use --workers 8, or decode the pictures once, with 'data.store=Stored.448.'",
        ),
        (0.5, Reading("encoded", 8, 8, 300, 224), "50% of the time is spent waiting for data: decode the pictures once"),
        (0.5, Reading("files", 8, 8, 300, 224), "decode the pictures once, with 'data.store=Stored.448.' path=auto.$"),
        (0.2, Reading("encoded", 2, 8, 8, 8), "waiting for data: use --workers 8.$"),
        (0.3, Reading("stored", 2, 8, 500, 224), "Stored.448.. instead of a shorter side of 500"),
        (0.3, Reading("stored", 2, 8, 256, 224), "use --workers 8"),
        (0.3, Reading("stored", 8, 8, 256, 224), "use fewer augmentations"),
        (0.3, Reading("on the device", 0, 8, 32, 32), "in memory already"),
    ],
)
def test_advice_is_one_sentence_for_those_who_wait(share: float, facts: Reading, words: str) -> None:
    found = advice(share, facts)
    assert bool(found) == bool(words)
    assert re.search(words, found)
    assert found.count(". ") == 0


# ------------------------------------------------------------------------------------------------ JPEG on a device


def test_only_whole_upright_color_and_gray_jpegs_go_to_a_device(tmp_path: Path) -> None:
    source = odd_pictures(tmp_path / "pictures")
    assert [index for index in range(15) if plain_jpeg(source, index) is not None] == [2, 11]
    assert plain_jpeg(Picked(source, np.array([11])), 0) is not None
    assert plain_jpeg(toy_arrays(), 0) is None


def test_without_a_cuda_device_pillow_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cpu", "cuda"):
        with pytest.warns(UserWarning, match=f"no JPEG can be decoded by {device} here, .*; the CPU does"):
            assert decoder_for(torch.device(device)) == OneByOne()
    source = odd_pictures(tmp_path / "pictures")
    with pytest.warns(UserWarning, match=r"nowhere could not decode 2 pictures .*; the CPU does"):
        found = list(GpuJpeg("nowhere").decode(source, range(15)))
    np.testing.assert_array_equal(np.asarray(found[11]), np.asarray(source.picture(11)))


def test_a_cuda_device_decodes_though_nobody_has_imported_torchvision() -> None:
    code = "import torch; torch.cuda.is_available = lambda: True; from frugalvit.data.gpu_jpeg import GpuJpeg, decoder_for; "
    code += "found = decoder_for(torch.device('cuda')); import torchvision.io; "
    code += "assert (found == GpuJpeg('cuda')) == hasattr(torch.ops.image, 'decode_jpegs_cuda')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_device_decodes_is_stored_under_another_fingerprint(tmp_path: Path) -> None:
    source = odd_pictures(tmp_path / "pictures")
    decoder = GpuJpeg("cpu")  # torchvision's own decoder on the CPU has the same face
    store = stored(source, tmp_path / "s", workers=2, decoder=decoder)
    assert store.decoder == "nvjpeg"
    assert store.fingerprint() != source.fingerprint() == store.origin
    for index in range(12):
        one, two = (np.asarray(one.picture(index).convert("RGB")).astype(int) for one in (source, store))
        assert one.shape == two.shape
        assert abs(one - two).mean() < 2


@pytest.mark.parametrize(("shape", "mode", "limit"), [((9, 7, 3), "RGB", None), ((9, 7), "L", None), ((9, 7), "RGB", None)])
@pytest.mark.parametrize("part", ["whole", "picked"])
def test_arrays_are_stored_without_a_detour_and_as_picture_by_picture(
    tmp_path: Path, shape: tuple[int, ...], mode: str, limit: int | None, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, *shape), dtype=np.uint8)
    source: Source = Arrays(images, np.arange(20) % 4, list("abcd"), "noise")
    if part == "picked":
        source = Picked(source, np.array([7, 3, 19, 0, 4]))
    direct = stored(source, tmp_path / "direct", mode, limit)
    monkeypatch.setattr(store_build, "stacked", lambda *_: None)
    detour = stored(source, tmp_path / "detour", mode, limit)
    assert direct.same_size() == detour.same_size() == (9, 7)
    assert np.array_equal(direct.array(), detour.array()) and len(direct) == len(source)


def test_arrays_that_must_shrink_go_picture_by_picture(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 12, 16, 3), dtype=np.uint8)
    store = stored(Arrays(images, np.zeros(5), ["a"], "noise"), tmp_path / "small", limit=6)
    assert store.same_size() == (6, 8)
