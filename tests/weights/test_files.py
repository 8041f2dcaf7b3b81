from __future__ import annotations

import argparse
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from frugalvit.errors import WeightsError
from frugalvit.weights.files import read_file, whole, write_json, write_safetensors


class Evil:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("wrap", ["plain", "torch"])
def test_a_pickle_with_code_in_it_is_refused_and_never_run(tmp_path: Path, wrap: str) -> None:
    target, file = tmp_path / "run", tmp_path / "evil.pth"
    if wrap == "torch":
        torch.save({"model": Evil(target)}, file)
    else:
        file.write_bytes(pickle.dumps({"model": Evil(target)}, protocol=2))
    with pytest.raises(
        WeightsError, match=r"evil\.pth: refused: the pickle asks for '(posix|os)\.system'.*Nothing of it was run"
    ):
        read_file(file)
    assert not target.exists()


def test_objects_in_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", a=np.array([Evil(tmp_path / "run")], dtype=object))
    with pytest.raises(WeightsError, match=r"evil\.npz: the file cannot be read"):
        read_file(tmp_path / "evil.npz")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ending", [".pth", ".safetensors", ".npz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_says_so(tmp_path: Path, ending: str, share: float) -> None:
    file = tmp_path / f"weights{ending}"
    state = {"a": torch.randn(100, 100), "b": torch.randn(7)}
    if ending == ".pth":
        torch.save(state, file)
    elif ending == ".npz":
        np.savez(file, **{name: value.numpy() for name, value in state.items()})
    else:
        write_safetensors(file, state)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(WeightsError, match=rf"weights\{ending}: the file cannot be read as \{ending}: it is truncated"):
        read_file(file)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pth", None, "there is no such file"),
        ("notes.txt", b"hello", "'.txt' is not an ending of a weight file"),
        ("text.pth", b"hello, this is no checkpoint", "cannot be read as .pth"),
        ("text.npz", b"hello, this is no archive", "cannot be read as .npz"),
        ("zeros.pth", bytes(100), "cannot be read as .pth: it is truncated, or of another kind. Download or copy it again."),
        ("page.bin", b"<html>404</html>", "cannot be read as .bin"),
    ],
)
def test_what_is_no_weight_file_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError) as error:
        read_file(tmp_path / name)
    assert message in str(error.value) and "weights_only" not in str(error.value)


def test_a_folder_and_a_bare_tensor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="this is a folder"):
        read_file(tmp_path)
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(WeightsError, match="it holds Tensor, not a dict"):
        read_file(tmp_path / "tensor.pt")


def test_the_arguments_that_trainers_leave_in_checkpoints_are_let_in(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(3)}, "args": argparse.Namespace(lr=0.1)}, tmp_path / "deit.pth")
    assert read_file(tmp_path / "deit.pth")["args"].lr == 0.1


def test_the_numbers_and_paths_that_trainers_leave_in_checkpoints_are_let_in(tmp_path: Path) -> None:
    kinds = (np.float64, np.float32, np.float16, np.int64, np.int8, np.uint16, np.bool_, ">f8")
    numbers = {str(kind): np.array([1], kind)[0] for kind in kinds}
    torch.save({"model": {"a": torch.zeros(3)}, **numbers, "out": tmp_path, "kind": np.dtype("f4")}, tmp_path / "own.pth")
    before = set(torch.serialization.get_safe_globals())
    found = read_file(tmp_path / "own.pth")
    assert {name: found[name] for name in numbers} == dict.fromkeys(numbers, 1)
    assert str(found["out"]) == str(tmp_path)
    assert set(torch.serialization.get_safe_globals()) == before  # their order is any


class Scalar:
    """Pickled as a numpy scalar of a kind and with contents of one's choice."""

    def __init__(self, kind: object, data: object):
        self.made = kind, data

    def __reduce__(self):
        return np.float64(0).__reduce__()[0], self.made


@pytest.mark.parametrize("kind", ["O", "V8", "U2", "M8[s]", [("a", "O")], None])
@pytest.mark.parametrize("code", ["in it", "not in it"])
def test_a_numpy_scalar_of_another_kind_is_refused_and_nothing_of_it_run(tmp_path: Path, kind: object, code: str) -> None:
    data = Evil(tmp_path / "run") if code == "in it" else b"12345678"
    torch.save({"acc": Scalar(None if kind is None else np.dtype(kind), data)}, tmp_path / "evil.pth")
    with pytest.raises(WeightsError, match=r"evil\.pth: refused: the pickle asks for '(posix\.system|numpy\.scalar)'"):
        read_file(tmp_path / "evil.pth")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", [b"1", b"1234567890123456"])
def test_a_number_with_too_few_or_many_bytes_is_damage(tmp_path: Path, data: bytes) -> None:
    torch.save({"acc": Scalar(np.dtype("f8"), data)}, tmp_path / "odd.pth")
    with pytest.raises(WeightsError, match=r"odd\.pth: the file cannot be read as \.pth"):
        read_file(tmp_path / "odd.pth")


def test_a_refusal_says_how_to_save_a_file_of_ones_own_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {"a": torch.ones(3)}, "curve": np.zeros(2)}, "own.pth")
    with pytest.raises(WeightsError, match="If you made it yourself: ") as error:
        read_file(Path("own.pth"))
    line = str(error.value).partition("yourself: ")[2].partition(", with its own key")[0]
    exec(line, {"torch": torch})
    assert torch.equal(read_file(Path("plain.pth"))["a"], torch.ones(3))


def test_a_whole_module_is_saved_again_by_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = torch.nn.Linear(3, 2)
    torch.save(module, "own.pth")
    with pytest.raises(WeightsError, match=r"asks for 'torch\.nn\..*\.Linear'.*If you made it yourself: ") as error:
        read_file(Path("own.pth"))
    exec(str(error.value).partition("yourself: ")[2].rstrip("."), {"torch": torch})
    assert torch.equal(read_file(Path("plain.pth"))["weight"], module.weight)
    torch.save(OrderedDict(a=torch.ones(3), curve=np.zeros(2)), "odd.pth")
    with pytest.raises(WeightsError, match=r"\['model'\], 'plain\.pth'\), with its own key for 'model'"):
        read_file(Path("odd.pth"))


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_get_the_rights_that_the_umask_leaves(tmp_path: Path, mask: int) -> None:
    def anew(part: Path) -> None:
        part.unlink()
        part.touch(0o600)

    old = os.umask(mask)
    try:
        write_json(tmp_path / "a.json", {})
        write_safetensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)})
        whole(tmp_path / "a.anew", anew)
    finally:
        os.umask(old)
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o666 & ~mask}


def test_saving_never_touches_the_umask_which_all_threads_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(mask: int) -> int:
        raise AssertionError(f"the umask was set to {mask:o}")

    monkeypatch.setattr(os, "umask", touched)
    write_json(tmp_path / "a.json", {})
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)})


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    write_json(file, {"a": 1})

    def broken(part: Path) -> None:
        part.write_text("half")
        raise OSError("disk full")

    with pytest.raises(WeightsError, match=r"config\.json: cannot be written \(disk full\)"):
        whole(file, broken)
    assert file.read_text() == '{\n  "a": 1\n}\n'
    assert [one.name for one in tmp_path.iterdir()] == ["config.json"]
