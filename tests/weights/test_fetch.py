from __future__ import annotations

import functools
import hashlib
import http.server
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import timm
import torch

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import WeightsError
from frugalvit.nn.model import Model
from frugalvit.weights.fetch import download, fetch
from frugalvit.weights.files import write_safetensors
from frugalvit.weights.load import export_weights, load_weights
from frugalvit.weights.published import Published, published, released
from frugalvit.zoo.find import model, models


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


class Broken(Quiet):
    """Announces more bytes than it sends."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"only this")


def serving(handler: type, folder: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    yield from serving(Quiet, tmp_path)


@pytest.fixture
def broken_host(tmp_path: Path) -> Iterator[str]:
    yield from serving(Broken, tmp_path)


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # for released files, of a host here; the hub's are patched below
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def entry(url: str, content: bytes) -> Published:
    return replace(published("deit_tiny_patch16_224"), url=url, sha256=hashlib.sha256(content).hexdigest()[:8])


def test_every_address_is_the_one_timm_records() -> None:
    for name, file in released().items():
        config = timm.get_pretrained_cfg(name)
        known = config.url or f"https://dl.fbaipublicfiles.com/convit/{file.model}.pth"  # timm has ConViT's on its own hub only
        assert (file.url, file.classes) == (known, config.num_classes)
        assert (file.mean, file.std) == (config.mean, config.std)
        assert file.model in models()


def test_deits_hashes_stand_in_their_file_names() -> None:
    for name, file in released().items():
        if name.startswith("deit"):
            assert file.file == f"{file.model}-{file.sha256}.pth"


def test_a_bare_name_is_the_imagenet_classifier() -> None:
    assert published("deit_tiny_patch16_224").name == "deit_tiny_patch16_224.fb_in1k"
    assert published("vit_tiny_patch16_224").name == "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    with pytest.raises(WeightsError, match=r"are called 'deit_tiny_patch16'.*Did you mean 'deit_tiny_patch16_224"):
        published("deit_tiny_patch16")


def test_a_file_is_downloaded_once_checked_and_kept_in_torchs_cache(tmp_path: Path, host: str) -> None:
    (tmp_path / "file.pth").write_bytes(b"weights")
    file = entry(f"{host}file.pth", b"weights")
    path = download(file)
    assert path == tmp_path / "torch" / "hub" / "checkpoints" / "file.pth"
    (tmp_path / "file.pth").unlink()
    assert download(file).read_bytes() == b"weights"
    assert [one.name for one in path.parent.iterdir()] == ["file.pth"]


def test_a_file_with_another_hash_is_refused(tmp_path: Path, host: str) -> None:
    (tmp_path / "file.pth").write_bytes(b"something else")
    with pytest.raises(WeightsError, match=r"deit_tiny_patch16_224.fb_in1k: .*has SHA-256 .* published is"):
        download(entry(f"{host}file.pth", b"weights"))


def test_a_connection_that_breaks_leaves_nothing_behind(tmp_path: Path, broken_host: str) -> None:
    with pytest.raises(WeightsError, match=r"cannot be downloaded \(.*\)"):
        download(entry(f"{broken_host}file.pth", b"weights"))
    assert list((tmp_path / "torch" / "hub" / "checkpoints").iterdir()) == []


def test_offline_the_error_names_the_file_and_its_place(tmp_path: Path, host: str) -> None:
    place = tmp_path / "torch" / "hub" / "checkpoints" / "gone.pth"
    with pytest.raises(WeightsError) as error:
        download(entry(f"{host}gone.pth", b"weights"))
    assert f"Fetch {host}gone.pth by other means and place it at {place}" in str(error.value)
    place.write_bytes(b"weights")
    assert download(entry(f"{host}gone.pth", b"weights")) == place


def test_where_downloads_are_forbidden_nothing_is_asked_for(tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file.pth").write_bytes(b"weights")
    file, place = entry(f"{host}file.pth", b"weights"), tmp_path / "torch" / "hub" / "checkpoints" / "file.pth"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsError, match=r"cannot be downloaded \(HF_HUB_OFFLINE is set\)\. Fetch http.* place it at"):
        download(file)
    assert not place.exists()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    download(file)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert download(file) == place


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.pth").write_bytes(b"")
    assert fetch(str(tmp_path / "mine.pth")).path == tmp_path / "mine.pth"
    assert fetch("no/such.pth").path == Path("no/such.pth")
    with pytest.raises(WeightsError, match="no released weights are called 'typo'"):
        fetch("typo")


LABELS = tuple("abcdefghi")


@pytest.mark.parametrize(
    ("config", "origin"),
    [
        ({"architecture": "vit", "num_classes": 9, "label_names": LABELS}, "timm"),
        ({"model_type": "vit", "id2label": dict(enumerate(LABELS))}, "hf"),
    ],
)
def test_files_placed_by_hand_stand_for_a_hub_name(tmp_path: Path, toy_vit: Model, config: dict, origin: str) -> None:
    place = tmp_path / "hub" / "models--me--mine" / "snapshots" / "placed"
    write_safetensors(place / "model.safetensors", export_weights(toy_vit.build(), origin))
    (place / "config.json").write_text(json.dumps(config))
    found = fetch("hf-hub:me/mine")
    assert (found.path, found.origin) == (place / "model.safetensors", origin)
    assert (found.classes, found.names) == (9, LABELS)


def test_a_folder_that_timm_saved_is_read_as_timms(tmp_path: Path) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=9)
    timm.models.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    found = fetch(str(tmp_path / "theirs"))
    assert (found.path, found.origin, found.classes) == (tmp_path / "theirs" / "model.safetensors", "timm", 9)
    module = model("vit_tiny_patch16_224", "depth=2", classes=9).build()
    load_weights(module, found.path, found.origin)
    assert torch.equal(module.state_dict()["tokenizer.weight"], theirs.state_dict()["patch_embed.proj.weight"])


def test_a_folder_with_the_older_file_of_timm_or_hf_is_read_too(tmp_path: Path, toy_vit: Model) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=9)
    timm.models.save_for_hf(theirs, tmp_path / "timm", safe_serialization=False)
    found = fetch(str(tmp_path / "timm"))
    assert (found.path, found.origin, found.classes) == (tmp_path / "timm" / "pytorch_model.bin", "timm", 9)
    module = model("vit_tiny_patch16_224", "depth=2", classes=9).build()
    load_weights(module, found.path, found.origin)
    assert torch.equal(module.state_dict()["tokenizer.weight"], theirs.state_dict()["patch_embed.proj.weight"])
    (tmp_path / "hf").mkdir()
    torch.save(export_weights(toy_vit.build(), "hf"), tmp_path / "hf" / "pytorch_model.bin")
    assert fetch(str(tmp_path / "hf")).origin == ""
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"model_type": "vit", "id2label": dict(enumerate(LABELS))}))
    found = fetch(str(tmp_path / "hf"))
    assert (found.origin, found.names) == ("hf", LABELS)
    load_weights(toy_vit.build(), found.path, found.origin)


def test_a_folder_of_several_runs_names_them(tmp_path: Path) -> None:
    for name in ("teacher", "student/seed-0", "student/seed-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"holds several runs: student/seed-0, student/seed-1, teacher\. Give one of these"):
        fetch(str(tmp_path))
    with pytest.raises(WeightsError, match=r"student: holds several runs: seed-0, seed-1\. Give one of these folders"):
        fetch(str(tmp_path / "student"))
    with pytest.raises(WeightsError, match=r"teacher: is a run that is not finished: .* with --resume .* to go on\.$"):
        fetch(str(tmp_path / "teacher"))  # nor has it a checkpoint


def test_a_folder_is_ours_only_where_it_says_so(tmp_path: Path, toy_vit: Model) -> None:
    write_safetensors(tmp_path / "theirs" / "model.safetensors", export_weights(toy_vit.build(), "timm"))
    assert fetch(str(tmp_path / "theirs")).origin == ""
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "bert"}')
    assert fetch(str(tmp_path / "theirs")).origin == ""
    ours = Classifier(ClassifierSpec(toy_vit, Preprocess(20, 28, (0.5,) * 3, (0.5,) * 3), LABELS), toy_vit.build())
    assert fetch(str(ours.save(tmp_path / "ours"))).origin == "frugalvit"
    (tmp_path / "ours" / "config.json").unlink()
    assert fetch(str(tmp_path / "ours")).origin == "frugalvit"


def test_a_folder_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no model\.safetensors in this folder, no pytorch_model\.bin, and no checkpoint"):
        fetch(str(tmp_path))


def test_a_hub_name_offline_says_what_to_place_where(tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as error:
        fetch("hf-hub:me/mine")
    assert f"place them in {tmp_path / 'hub' / 'models--me--mine' / 'snapshots' / 'placed'}" in str(error.value)


def test_a_host_without_an_address_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[bool] = []

    def downloaded(repository: str, file: str, *, revision: str | None, local_files_only: bool) -> str:
        asked.append(local_files_only)
        raise OSError("not here")

    def unknown(host: str | None, port: object) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", downloaded)
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(WeightsError, match=r"cannot be downloaded \([\w.]+: Name or service not known\)\. Fetch config\.json"):
        fetch("hf-hub:me/mine")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [])
    with pytest.raises(WeightsError, match=r"cannot be downloaded \(not here\)"):
        fetch("hf-hub:me/mine")
    assert asked == [True, False]


@pytest.mark.parametrize("text", ['{"model_type": "bert"}', "no json", "[]"])
def test_a_hub_model_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    place = tmp_path / "hub" / "models--me--mine" / "snapshots" / "placed"
    write_safetensors(place / "model.safetensors", {"a": torch.zeros(1)})
    (place / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=r"hf-hub:me/mine: .*(declares neither|is not JSON|does not hold)"):
        fetch("hf-hub:me/mine")
    with pytest.raises(WeightsError, match="is not of the form hf-hub:owner/name"):
        fetch("hf-hub:mine")
