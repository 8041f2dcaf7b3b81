"""The small package that runs packed models: the same answers as the program, clear refusals."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What writes tiny.fvit, to be changed before it does."""
    monkeypatch.setattr(sys, "path", [str(TESTS), *sys.path])
    import packed

    return packed.tiny(0)


def test_an_answer_that_is_not_finite_is_refused_and_the_next_picture_tried(files: Path, writer: Any) -> None:
    head = writer.tensors[writer.steps[-1]["weight"]]
    head[:] = 3e38 * np.sign(head)
    path = files / "endless.fvit"
    path.write_bytes(writer.encode())
    model = runtime.Model(path, threads=1)
    assert not np.isfinite(model.picture_logits(files / "picture.png")).all()  # what was computed
    with pytest.raises(runtime.FileError, match="no answer: not all logits are finite"):
        model.classify(files / "picture.png")
    pictures = [str(files / "picture.png"), str(files / "gray.png")]
    done = subprocess.run([sys.executable, "-m", "frugalvit_runtime", str(path), *pictures], capture_output=True, text=True)
    said = done.stderr.splitlines()
    assert done.returncode == 1 and done.stdout == "" and len(said) == 2
    for line, picture in zip(said, pictures, strict=True):
        assert line.startswith(f"frugalvit_runtime: {picture}: the model has no answer")


def test_names_in_a_file_are_text_or_the_file_is_refused(files: Path, writer: Any) -> None:
    writer.name = "tin\N{LATIN SMALL LETTER E WITH ACUTE}"
    path, whole = files / "named.fvit", writer.encode()
    path.write_bytes(whole)
    assert runtime.Model(path, threads=1).name == writer.name

    def renamed(seven: bytes) -> Path:
        assert whole.count(rb"\\u00e9") == 1
        place = whole.index(b'"checksum":"') + len(b'"checksum":"')
        other = (whole[:place] + b"0" * 8 + whole[place + 8 :]).replace(rb"\\u00e9", seven)
        path.write_bytes(other[:place] + b"%08x" % zlib.crc32(other) + other[place + 8 :])
        return path

    assert runtime.Model(renamed(b"-----\xc3\xa9"), threads=1).name == "tin-----" + writer.name[-1]
    with pytest.raises(runtime.FileError, match=r"named\.fvit: JSON: bytes that are not UTF-8"):
        runtime.Model(renamed(b"------\xe9"), threads=1)  # Latin-1


def test_the_command_prints_the_classes_and_fails_in_one_line(files: Path) -> None:
    command = [sys.executable, "-m", "frugalvit_runtime", str(files / "tiny.fvit")]
    good = subprocess.run([*command, str(files / "picture.png"), "--top", "1"], capture_output=True, text=True)
    ((label, probability),) = runtime.Model(files / "tiny.fvit").classify(files / "picture.png", top=1)
    assert good.stdout == f"{files / 'picture.png'}\n  {100 * probability:5.1f} %  {label}\n" and good.returncode == 0
    bad = subprocess.run([*command, "missing.png"], capture_output=True, text=True)
    assert bad.returncode == 1 and bad.stderr.startswith("frugalvit_runtime: missing.png") and bad.stderr.count("\n") == 1
    some = subprocess.run([*command, "missing.png", str(files / "picture.png"), "--top", "1"], capture_output=True, text=True)
    assert (some.returncode, some.stdout, some.stderr) == (1, good.stdout, bad.stderr)


def test_a_reader_who_stops_early_is_no_error(files: Path) -> None:
    command = f"{sys.executable} -m frugalvit_runtime {files / 'tiny.fvit'} {' '.join([str(files / 'picture.png')] * 2000)}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", f"{command} | head -n 1"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == f"{files / 'picture.png'}\n"


def test_an_output_that_cannot_be_written_is_an_error_of_one_line(files: Path) -> None:
    for words in ([str(files / "tiny.fvit"), str(files / "picture.png")], ["--help"]):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "frugalvit_runtime", *words]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        problem = "frugalvit_runtime: standard output: cannot be written (No space left on device)\n"
        assert (done.returncode, done.stderr) == (1, problem)


def run_script(script: str, *words: object, before: Callable[[], object] | None = None) -> str:
    """What a script prints that must end soon."""
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=before)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
import os, signal, sys, threading
import numpy as np
from {package} import {opened}
model = {opened}(sys.argv[1], threads=2)
image_BHWC = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), dtype=np.uint8)
expected = model.logits(image_BHWC)
stop = False
def keep_busy():
    while not stop:
        model.logits(image_BHWC)
busy = threading.Thread(target=keep_busy)  # a child is then mostly made while the model is at work
busy.start()
children = []
for number in range(20):
    child = os.fork()
    if not child:
        signal.alarm(40)
        os._exit(0 if all(np.array_equal(model.logits(image_BHWC), expected) for _ in range(3)) else 1)
    children.append(child)
ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop = True
busy.join()
assert np.array_equal(model.logits(image_BHWC), expected)
child = os.fork()
if not child:
    signal.alarm(40)
    sys.exit()  # gives the model back, without having used it
ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(ended == [0] * 21)
"""
POOL = """
import multiprocessing, signal, sys
import numpy as np
from {package} import {opened}
model = {opened}(sys.argv[1], threads=2)
def best(seed):
    return model.logits(np.random.default_rng(seed).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)).tolist()
if __name__ == "__main__":
    expected = [best(seed) for seed in range(8)]
    with multiprocessing.get_context("fork").Pool(2, signal.alarm, (40,)) as pool:
        print(pool.map(best, range(8)) == expected)
"""
SENT = """
import multiprocessing, sys
import numpy as np
from {package} import {opened}
if __name__ == "__main__":
    model = {opened}(sys.argv[1], threads=2)
    images = [np.random.default_rng(seed).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8) for seed in range(4)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(all(np.array_equal(*pair) for pair in zip(pool.map(model.logits, images), map(model.logits, images))))
"""
PACKAGES = [("frugalvit_runtime", "Model"), ("frugalvit", "load_packed")]


@pytest.mark.parametrize(("package", "opened"), PACKAGES)
@pytest.mark.parametrize("script", [FORK, POOL, SENT], ids=["fork", "pool", "sent"])
def test_a_model_works_in_children_of_its_process(files: Path, script: str, package: str, opened: str) -> None:
    assert run_script(script.format(package=package, opened=opened), files / "tiny.fvit") == "True\n"


def test_threads_that_cannot_be_started_are_an_error(files: Path) -> None:
    script = """
import resource, sys
from frugalvit_runtime import Model
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
try:
    Model(sys.argv[1], threads=256)
except ValueError as error:
    print(error)
print(len(Model(sys.argv[1], threads=2).classify(sys.argv[2])))
"""

    def small_stacks() -> None:  # 8 MiB a thread, whatever the shell has
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    said, classes = run_script(script, files / "tiny.fvit", files / "picture.png", before=small_stacks).splitlines()
    assert said.startswith("cannot start 256 threads (") and said.endswith("; set FRUGALVIT_THREADS to fewer")
    assert classes == "5"


def test_names_of_files_need_not_be_text(files: Path) -> None:
    model, picture, missing = (files / os.fsdecode(b"\xe9" + ending) for ending in (b".fvit", b".png", b".nix"))
    model.write_bytes((files / "tiny.fvit").read_bytes())
    picture.write_bytes((files / "picture.png").read_bytes())
    expected = runtime.Model(files / "tiny.fvit").classify(files / "picture.png")
    for kind in (Path, str, os.fsencode):
        assert runtime.Model(kind(model)).classify(kind(picture)) == expected
        with pytest.raises(runtime.FileError) as refused:
            runtime.Model(kind(missing))
        assert str(refused.value) == f"{missing}: cannot be opened"
    command = [sys.executable, "-m", "frugalvit_runtime", os.fsencode(model), os.fsencode(picture)]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0 and done.stdout.startswith(os.fsencode(picture) + b"\n")


def test_pipes_are_read_as_files_are(files: Path) -> None:
    script = "import sys; from frugalvit_runtime import Model; print(Model(sys.argv[1], 1).classify(sys.argv[2]))"
    expected = run_script(script, files / "tiny.fvit", files / "picture.png")
    for piped, words in (
        ("picture.png", [str(files / "tiny.fvit"), "/dev/stdin"]),
        ("tiny.fvit", ["/dev/stdin", str(files / "picture.png")]),
    ):
        command = [sys.executable, "-c", script, *words]
        done = subprocess.run(command, input=(files / piped).read_bytes(), capture_output=True)
        assert done.stdout.decode() == expected


def test_steps_are_not_timed_any_more_after_an_error(files: Path) -> None:
    script = """
import sys
import numpy as np
from frugalvit_runtime import Model
model = Model(sys.argv[1], threads=1)
expected = model.classify(sys.argv[2])
try:
    model._native.step_seconds(np.zeros((1, 1 << 17, 3), np.uint8))
except ValueError as error:
    print(error)
print(all(model.classify(sys.argv[2]) == expected for _ in range(200)))
"""
    assert run_script(script, files / "tiny.fvit", files / "picture.png").splitlines() == [
        "a picture too thin to be resized. Cut it first",
        "True",
    ]
