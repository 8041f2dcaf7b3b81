"""The small package that runs packed models: the same answers as the program, clear refusals."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

runtime = pytest.importorskip("frugalvit_runtime", reason="pip install ./runtime")
TESTS = Path(__file__).parents[1] / "runtime" / "tests"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny.fvit, and one picture as picture.png, gray.png and picture.ppm."""
    folder = tmp_path_factory.mktemp("packed")
    subprocess.run([sys.executable, TESTS / "packed.py", folder, "tiny"], check=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (31, 43, 3), dtype=np.uint8))
    picture.save(folder / "picture.png")
    picture.save(folder / "picture.ppm")
    picture.convert("L").save(folder / "gray.png")
    return folder


def test_a_file_and_its_pixels_get_the_same_classes_with_probabilities_that_sum_to_one(files: Path) -> None:
    model = runtime.Model(files / "tiny.fvit", threads=1)
    picture_HWC = runtime.read_picture(str(files / "picture.png"))
    assert np.array_equal(picture_HWC, np.asarray(Image.open(files / "picture.png")))
    found = model.classify(files / "picture.png")
    assert found == model.classify(picture_HWC) == model.classify(str(files / "picture.ppm"))
    assert sum(probability for _, probability in found) == pytest.approx(1)  # of all five classes
    assert [probability for _, probability in found] == sorted((p for _, p in found), reverse=True)
    assert model.classify(picture_HWC, top=2) == found[:2]
    assert model.classify(files / "gray.png") == model.classify(np.asarray(Image.open(files / "gray.png")))


def test_logits_of_a_batch_are_those_of_its_images_on_any_number_of_threads(files: Path) -> None:
    one, three = runtime.Model(files / "tiny.fvit", threads=1), runtime.Model(files / "tiny.fvit", threads=3)
    assert one.image == (16, 16, 3) and one.name == "tiny" and one.labels == ()
    image_BHWC = np.random.default_rng(1).integers(0, 256, (5, *one.image), dtype=np.uint8)
    logits_BC = one.logits(image_BHWC)
    assert logits_BC.shape == (5, 5) and len(np.unique(logits_BC)) == 25
    assert np.array_equal(three.logits(image_BHWC), logits_BC)
    assert np.array_equal(one.logits(image_BHWC[::-1]), logits_BC[::-1])  # not contiguous
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(found, logits_BC) for found in pool.map(three.logits, [image_BHWC] * 20))


def test_what_it_cannot_use_it_refuses_and_says_why(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = runtime.Model(files / "tiny.fvit")
    with pytest.raises(ValueError, match=r"float64\. Give uint8 values, images x 16 x 16 x 3"):
        model.logits(np.zeros((1, 16, 16, 3)))
    with pytest.raises(ValueError, match=r"shape \(4, 4, 2\).*Give uint8 values, height x width x 3"):
        model.classify(np.zeros((4, 4, 2), np.uint8))
    with pytest.raises(ValueError, match="top: 0"):
        model.classify(files / "picture.png", top=0)
    for wrong in (0, "2", 1.0):
        with pytest.raises(ValueError, match=rf"threads: {wrong!r}\. Use a whole number, 1 to 256"):
            runtime.Model(files / "tiny.fvit", threads=wrong)
    monkeypatch.setenv("FRUGALVIT_THREADS", "many")
    with pytest.raises(ValueError, match="FRUGALVIT_THREADS: 'many'"):
        runtime.Model(files / "tiny.fvit")
    monkeypatch.delenv("FRUGALVIT_THREADS")
    Image.fromarray(np.full((4, 4), 9, np.uint16)).save(files / "deep.png")
    with pytest.raises(runtime.FileError, match=r"16 bits a channel\. Save it with 8"):
        runtime.read_picture(str(files / "deep.png"))
    with pytest.raises(runtime.FileError, match=r"^.*picture\.png: .*not a packed model"):
        runtime.Model(files / "picture.png")
    with pytest.raises(runtime.FileError, match=r"missing\.png"):
        model.classify("missing.png")
    (files / "cut.fvit").write_bytes((files / "tiny.fvit").read_bytes()[:-1])
    with pytest.raises(runtime.FileError):
        runtime.Model(files / "cut.fvit")


def test_the_command_prints_the_classes_and_fails_in_one_line(files: Path) -> None:
    command = [sys.executable, "-m", "frugalvit_runtime", str(files / "tiny.fvit")]
    good = subprocess.run([*command, str(files / "picture.png"), "--top", "1"], capture_output=True, text=True)
    ((label, probability),) = runtime.Model(files / "tiny.fvit").classify(files / "picture.png", top=1)
    assert good.stdout == f"{files / 'picture.png'}\n  {100 * probability:5.1f} %  {label}\n" and good.returncode == 0
    bad = subprocess.run([*command, "missing.png"], capture_output=True, text=True)
    assert bad.returncode == 1 and bad.stderr.startswith("frugalvit_runtime: missing.png") and bad.stderr.count("\n") == 1


def test_a_reader_who_stops_early_is_no_error(files: Path) -> None:
    command = f"{sys.executable} -m frugalvit_runtime {files / 'tiny.fvit'} {' '.join([str(files / 'picture.png')] * 2000)}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", f"{command} | head -n 1"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == f"{files / 'picture.png'}\n"
