from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import timm
import torch
from tests.weights.test_files import Evil
from tests.weights.test_timm import TOLERANCE, difference, lively

import frugalvit
from frugalvit.cli import main
from frugalvit.deploy.classifier import Classifier
from frugalvit.recipes import few_digits
from frugalvit.report.progress import Display
from frugalvit.run import Run
from frugalvit.spec import encode
from frugalvit.training.recipe import Recipe
from frugalvit.weights.files import write_safetensors

TINY = "deit_tiny_patch16_224"


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Done:
    """The command in this process: as the shell sees it, but without loading torch anew each time."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd or Path.cwd()),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["frugalvit", *words])
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


def good(*words: str, cwd: Path | None = None) -> str:
    done = run(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = run(*words, cwd=cwd, env=env)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the DeiT authors release them, with random weights."""
    file = tmp_path_factory.mktemp("released") / "deit_tiny.pth"
    torch.save({"model": lively(timm.create_model(TINY)).state_dict()}, file)
    return file


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    out = tmp_path_factory.mktemp("imported") / "tiny"
    good("import", TINY, "--init", str(checkpoint), "--origin", "official", "--out", str(out))
    return out


def test_show_prints_the_tree_and_the_costs() -> None:
    text = good("show", TINY)
    assert "layers[2..13]: 12 × Block" in text
    assert "5,717,416" in text
    assert "1,253.7 M" in text


def test_show_as_json_has_the_figures_and_the_spec() -> None:
    data = json.loads(good("show", TINY, "image=64x96", "classes=10", "channels=1", "--json"))
    spec = frugalvit.model(TINY, image=(64, 96), classes=10, channels=1)
    assert (data["image"], data["classes"], data["channels"]) == ([64, 96], 10, 1)
    assert data["parameters"] == frugalvit.cost(spec).parameters
    assert data["macs"] == frugalvit.cost(spec).macs
    assert data["activation_bytes"] > 0
    assert frugalvit.decode(data["model"], frugalvit.Model) == spec


def test_show_of_a_recipe_says_what_it_takes_and_what_it_makes() -> None:
    text = good("show", "binaryvit.digits", "rung=affine")
    for words in (
        "  rung = 'pyramid'  deit | mean | pool | affine | pyramid | star",
        "  epochs = 20  int",
        "optimizer: AdamW(",
    ):
        assert words in text
    data = json.loads(good("show", "vit.digits", "epochs=7", "--json"))
    assert data["words"]["epochs"] == {"type": "int", "default": 60}
    assert data["recipe"]["duration"]["count"] == 7
    assert "no parameter 'nonsense'" in bad("show", "vit.digits", "nonsense=3")
    assert "SpecError: model.tokenizer: patches of 2 x 2 do not tile" in bad("show", "vit.digits", "model.image=9")
    assert "no recipe is called 'vit.digit'. Did you mean 'vit.digits'?" in bad("show", "vit.digit")
    assert "no model is called 'nowhere.safetensors'" in bad("show", "nowhere.safetensors")
    assert "no recipe is called" not in bad("show", "timm:augreg.imagenet21k")


def test_show_of_a_recipe_counts_what_its_model_costs() -> None:
    spec = frugalvit.recipe("small.cifar100").model
    costs = frugalvit.cost(spec)
    text = good("show", "small.cifar100")
    assert f"\nThe model for 100 classes: {costs.parameters:,} parameters, {costs.macs / 1e6:,.1f} M MACs a picture\n" in text
    text = good("show", "binaryvit.digits")
    assert "\nThe model for 10 classes (an example: the data decide): 82,828 parameters, 1.7 M MACs a picture; OPs 0" in text
    data = json.loads(good("show", "binaryvit.digits", "model.classes=7", "--json"))["costs"]
    assert data["classes"] == 7 and data["parameters"] < 82_828 and data["bops"] > 0 and data["ops"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("image=54", "data.dataset=ArrayFolder"), "ArrayFolder: pictures of 54 x 54 pixels are resized to 48 x 48"),
        (("image=54",), "Cifar10: pictures of 32 x 32 pixels are resized to 48 x 48"),
        (("image=48", "data.dataset=ArrayFolder"), ""),
        ((), ""),
    ],
)
def test_show_says_where_pictures_are_resized(words: tuple[str, ...], said: str) -> None:
    text = good("show", "small.best_cifar10", "depth=1", "early=1", "late=1", *words)
    assert said in text and ("are resized to" in text) == bool(said)


def test_show_of_a_path_says_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "vit").mkdir()
    assert "runs: the folder holds no model.safetensors" in bad("show", "runs")
    assert "runs/none: there is no such folder or file" in bad("show", "runs/none")
    assert good("show", "vit", "dim=64", "heads=2", "depth=1", "patch=16").startswith("vit\n")


def test_show_of_a_run_that_is_not_finished_and_of_a_folder_of_runs(tmp_path: Path) -> None:
    for name in ("student", "teacher"):
        (tmp_path / "one" / name).mkdir(parents=True)
        (tmp_path / "one" / name / "recipe.json").write_text("{}")
    assert "student: is a run that is not finished" in bad("show", str(tmp_path / "one" / "student"))
    assert "one: holds several runs: student, teacher. Give one of these folders." in bad("show", "one", cwd=tmp_path)


def test_show_of_a_recipe_file_is_that_of_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(encode(frugalvit.recipe("binaryvit.digits", "epochs=7"))))
    text, named = (good("show", *words).replace(".0)", ")") for words in ((str(file),), ("binaryvit.digits", "epochs=7")))
    assert text.startswith(f"{file}\n") and text.partition("\n")[2] in named
    assert "\nThe model for 10 classes (an example: the data decide): 82,828 parameters" in text
    assert "optimizer: AdamW(lr=0.5)\n" in good("show", str(file), "optimizer=AdamW(lr=0.5)")
    found = json.loads(good("show", str(file), "--json"))
    assert (found["words"], found["recipe"]["duration"]["count"]) == ({}, 7)
    file.write_text('{"part": "ClassifierSpec"}')
    assert "mine.json.recipe: the format is None" in bad("show", str(file))


def test_show_all_tells_defaults_of_recipes_and_models() -> None:
    words = ("show", "vit.digits", "optimizer=Muon(lr=0.002)", "average=EmaOver")
    text = good(*words)
    assert "optimizer: Muon(lr=0.002)\n" in text and "average: EmaOver()\n" in text
    assert "\nand any field of (--all shows those at their defaults too):\n" in text
    text = good(*words, "--all")
    for told in ("momentum=0.95", "average: EmaOver(share=0.05)", "seed=0", "\nand any field of:\n"):
        assert told in text
    assert "eps=1e-06" not in good("show", TINY) and "norm: LayerNorm(eps=1e-06)" in good("show", TINY, "--all")
    assert json.loads(good(*words, "--json"))["recipe"]["average"] == {"part": "EmaOver", "share": 0.05}


def test_show_tells_recipes_of_the_users_from_models_of_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "from frugalvit.recipes.vit import digits\ndef night(*, long: int = 3, free=0): return digits(epochs=long)\n"
    (tmp_path / "own_nights.py").write_text(source)
    assert "  long = 3  int\n  free = 0  Any\n" in good("show", "own_nights:night")
    assert json.loads(good("show", "own_nights:night", "long=5", "--json"))["recipe"]["duration"]["count"] == 5
    assert "own_nights:night.free: the function does not say of which type it is" in bad("show", "own_nights:night", "free=1")
    pytest.importorskip("timm")
    assert "11,689,512" in good("show", "timm:resnet18")


@pytest.mark.parametrize("kind", ["models", "changes", "parts", "recipes", "datasets", "origins", "weights"])
def test_list_prints_names_and_json(kind: str) -> None:
    rows = json.loads(good("list", kind, "--json"))
    assert good("list", kind).count("\n") == len(rows)
    if kind == "models":
        assert list(rows) == frugalvit.models()
    if kind == "origins":
        assert list(rows) == ["timm", "official", "torchvision", "hf", "hf-module", "frugalvit", "augreg"]


def test_import_makes_a_classifier_that_agrees_with_timm(imported: Path, checkpoint: Path) -> None:
    theirs = timm.create_model(TINY)
    theirs.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    ours = frugalvit.load(imported)
    assert difference(ours.module, theirs.eval(), (224, 224)) <= TOLERANCE
    assert ours.classes[1] == "goldfish"
    assert (ours.preprocess.mean, ours.preprocess.crop) == ((0.485, 0.456, 0.406), 0.875)
    assert json.loads((imported / "config.json").read_text())["format"] == 1


def test_import_at_another_size_and_class_count_says_what_it_did(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    words = [
        "import",
        TINY,
        "image=256x224",
        "classes=2",
        "preprocess.crop=1.0",
        "fusion=SumSoftmax",
        "--init",
        str(checkpoint),
    ]
    done = run(*words, "--origin", "official", "--classes", str(tmp_path / "names.txt"), "--out", str(tmp_path / "two"))
    assert done.returncode == 0
    assert "positions resampled from 14 x 14 to 16 x 14 (Bicubic)" in done.stderr
    assert "head 'class' is fresh: the file has 1000 classes, the model 2" in done.stderr
    ours = frugalvit.load(tmp_path / "two")
    assert ours.classes == ("cat", "dog")
    assert (ours.preprocess.height, ours.preprocess.width, ours.preprocess.crop) == (256, 224, 1.0)
    shown = json.loads(good("show", str(tmp_path / "two"), "--json"))
    assert shown["image"] == [256, 224]


def test_class_names_that_an_exported_file_cannot_hold_are_told_of(tmp_path: Path, imported: Path) -> None:
    classifier = frugalvit.load(imported)
    named = replace(classifier.spec, classes=tuple(f"kind {number}" for number in range(len(classifier.classes))))
    Classifier(named, classifier.module).save(tmp_path / "named")
    done = run("export", str(tmp_path / "named"), "--origin", "timm", "--out", str(tmp_path / "named.safetensors"))
    assert "note: class names are not part of such files. `import --classes FILE` takes them" in done.stderr


@pytest.mark.parametrize(("origin", "ending"), [("timm", ".safetensors"), ("hf", ".safetensors"), ("augreg", ".npz")])
def test_export_writes_what_import_reads(tmp_path: Path, imported: Path, origin: str, ending: str) -> None:
    file = tmp_path / f"out{ending}"
    told = json.loads(good("export", str(imported), "--origin", origin, "--out", str(file), "--json"))
    assert not any("class names" in note for note in told["notes"])  # ImageNet's are known
    done = json.loads(good("import", TINY, "--init", str(file), "--origin", origin, "--out", str(tmp_path / "again"), "--json"))
    (note,) = done["notes"]
    assert note.startswith("it is not known how pictures were shown to the model; from here on: preprocess.mean=0.485,0.456")
    one, two = frugalvit.load(imported), frugalvit.load(tmp_path / "again")
    torch.testing.assert_close(one.state_dict(), two.state_dict(), atol=0, rtol=0)
    if origin == "timm":
        theirs = timm.create_model(TINY, checkpoint_path=str(file)).eval()
        assert difference(one.module, theirs, (224, 224)) <= TOLERANCE


def test_how_pictures_are_shown_comes_back_by_the_words_that_export_says(tmp_path: Path) -> None:
    own = tmp_path / "own"
    shown = ("preprocess.mean=0.5,0.4,0.3", "preprocess.std=0.1,0.25,0.3", "preprocess.crop=1.0")
    weights = tmp_path / "weights.safetensors"
    good("import", TINY, "depth=1", *shown, "--init", str(one_block(weights)), "--origin", "timm", "--out", str(own))
    file = tmp_path / "out.safetensors"
    (note,) = json.loads(good("export", str(own), "--out", str(file), "--json"))["notes"]
    words = note.split("`import ... ")[1].split("`")[0].split()
    assert words == list(shown)
    again = ("import", TINY, "depth=1", "--init", str(file), "--origin", "timm", "--json")
    assert json.loads(good(*again, *words, "--out", str(tmp_path / "same")))["notes"] == []
    (told,) = json.loads(good(*again, "--out", str(tmp_path / "other")))["notes"]
    assert told == json.loads(good(*again, "fusion=SumSoftmax", "--out", str(tmp_path / "fused")))["notes"][0]
    same, other = (frugalvit.load(tmp_path / name).preprocess for name in ("same", "other"))
    assert same == frugalvit.load(own).preprocess != other and f"crop={other.crop}" in told


def one_block(file: Path) -> Path:
    write_safetensors(file, frugalvit.export_weights(frugalvit.model(TINY, "depth=1").build(seed=0)))
    return file


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "deit_tny"], "SpecError: no model is called 'deit_tny'."),
        (["show", TINY, "clases=3"], f"SpecError: {TINY}: there is no parameter 'clases'. Did you mean 'classes'?"),
        (["show", TINY, "classes=three"], f"SpecError: {TINY}.classes: 'three' does not fit here. Expected a whole number"),
        (["show", TINY, "image=225"], "SpecError: model.tokenizer: patches of 16 x 16 do not tile an image of 225 x 225"),
        (["show", TINY, "layers[2].atention.heads=4"], "Block has no field 'atention'. Did you mean 'attention'?"),
        (["list", "model"], "SpecError: list: 'model' cannot be listed. Did you mean 'models'?"),
        (["export", "nowhere", "--out", "x.safetensors"], "WeightsError: nowhere: there is no such file or folder"),
        (
            ["export", "nowhere", "--out", "x.pth"],
            "SpecError: --out: x.pth has another ending. Say --out FILE.safetensors; no pickle",
        ),
        (["export", "nowhere", "--origin", "tim", "--out", "x.safetensors"], "Did you mean 'timm'?"),
        (["import", TINY], "SpecError: --out: where to? Say --out FOLDER"),
        (
            ["import", TINY, "--init", "gone.pth", "--origin", "timm", "--out", "y"],
            "WeightsError: gone.pth: there is no such file",
        ),
        (["import", TINY, "--init", "gone.pth", "--out", "y"], "WeightsError: gone.pth: there is no such file"),
        (["import", TINY, "--init", "gon", "--out", "y"], "no released weights are called 'gon'"),
        (["import", TINY, "--resample", "Cubic", "--out", "y"], "SpecError: --resample: 'Cubic' does not fit here"),
        (["import", TINY, "--grid", "14", "--out", "y"], "SpecError: --grid: '14' does not fit here"),
        (["import", TINY, "--init", "hf-hub:a/b", "--out", "y"], "WeightsError: hf-hub:a/b: cannot be downloaded"),
        (["show", TINY, "--with", "no_such_module"], "SpecError: --with no_such_module: cannot be imported"),
        (["show"], "Missing argument"),
        (["shwo"], "No such command"),
    ],
)
def test_mistakes_end_in_a_message_that_names_place_and_cure(tmp_path: Path, words: list[str], message: str) -> None:
    assert message in " ".join(bad(*words, cwd=tmp_path).split())
    assert list(tmp_path.iterdir()) == []


def test_offline_the_released_file_to_place_is_named(tmp_path: Path) -> None:
    env = {"TORCH_HOME": str(tmp_path / "torch"), "https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    text = bad("import", TINY, "--out", str(tmp_path / "out"), env=env)
    assert "https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth" in text
    assert str(tmp_path / "torch" / "hub" / "checkpoints" / "deit_tiny_patch16_224-a1311bcf.pth") in text
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_another_architecture_a_malicious_and_a_truncated_one(tmp_path: Path, checkpoint: Path) -> None:
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "resnet.pth")
    torch.save({"model": Evil(tmp_path / "run")}, tmp_path / "evil.pth")
    (tmp_path / "cut.pth").write_bytes(checkpoint.read_bytes()[:100_000])
    expected = {
        "resnet.pth": "nothing in the model maps to 'conv1.weight'",
        "evil.pth": "refused: the pickle asks for 'posix.system'",
        "cut.pth": "it is truncated, or of another kind",
    }
    for name, message in expected.items():
        text = bad("import", TINY, "--init", str(tmp_path / name), "--origin", "official", "--out", str(tmp_path / "out"))
        assert message in text
        assert name in text
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(imported: Path, checkpoint: Path) -> None:
    before = (imported / "model.safetensors").read_bytes()
    text = bad("import", TINY, "--init", str(checkpoint), "--origin", "official", "--out", str(imported))
    assert "exists already, and nothing is overwritten" in text
    assert (imported / "model.safetensors").read_bytes() == before


def test_parts_of_ones_own_are_named_by_the_user(tmp_path: Path, toy: frugalvit.Model) -> None:
    from tests.test_own_part import Averaging

    from frugalvit.data.preprocess import Preprocess
    from frugalvit.deploy.classifier import ClassifierSpec
    from frugalvit.nn.attention import Attention

    source = Path(__file__).with_name("test_own_part.py").read_text()
    (tmp_path / "mylab.py").write_text(source)
    model = frugalvit.swap(toy, Attention, lambda _: Averaging())
    spec = ClassifierSpec(model, Preprocess(20, 28, (0.5,) * 3, (0.5,) * 3), tuple("abcdefghi"))
    Classifier(spec, model.build()).save(tmp_path / "mine")
    assert "Averaging" in good("show", "mine", "--with", "mylab", cwd=tmp_path)
    assert "no part is called 'Averaging' here" in bad("show", "mine", cwd=tmp_path)


def test_the_shell_sees_the_same_message_and_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "frugalvit", "show", TINY, "image=225"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("SpecError: model.tokenizer: patches of 16 x 16 do not tile an image of 225 x 225")
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    code = f"{sys.executable} -m frugalvit list weights | head -1"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("cait_m36_384.fb_dist_in1k")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["--version", "--help", "list datasets --json"])
def test_output_that_cannot_be_written_is_one_line(words: str) -> None:
    code = f"{sys.executable} -m frugalvit {words} > /dev/full"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "OSError: [Errno 28] No space left on device\n")


def test_a_pipe_that_is_closed_early_ends_quietly_whatever_is_written() -> None:
    for printing in ("print", "console.print"):
        code = "import sys; from frugalvit.cli import app, console, main\n@app.command()\ndef many():\n"
        code += f"    for number in range(20_000): {printing}(f'line {{number}}')\nsys.argv[1:] = ['many']; main()"
        words, env = ["bash", "-c", f'{sys.executable} -c "$CODE" | head -1'], {**os.environ, "CODE": code}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("line 0\n", "")


def test_a_closed_stream_is_no_error() -> None:
    code = f"{sys.executable} -m frugalvit --version >&-"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_and_version() -> None:
    assert "import" in good("--help")
    assert "--origin" in good("import", "--help")
    for verb in ("train", "distill", "import"):
        assert "the folder of a run, finished or not" in " ".join(good(verb, "--help").replace("│", "").split())
    assert "with data.dataset=LabelTable, a CSV" in " ".join(good("train", "--help").replace("│", "").split())
    assert good("--version").strip() == f"frugalvit {frugalvit.__version__}"


def test_a_hub_model_brings_its_class_names(tmp_path: Path, imported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "hub" / "models--me--mine" / "snapshots" / "placed"
    place.mkdir(parents=True)
    good("export", str(imported), "--origin", "hf", "--out", str(place / "model.safetensors"))
    labels = {str(index): f"class {index}" for index in range(1000)}
    (place / "config.json").write_text(json.dumps({"model_type": "vit", "id2label": labels}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    good("import", TINY, "--init", "hf-hub:me/mine", "--out", str(tmp_path / "out"))
    assert frugalvit.load(tmp_path / "out").classes[999] == "class 999"


# ------------------------------------------------------------------------------------------------ the demo


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("resnet", "vit", "distilled", "binary"):
        monkeypatch.setitem(getattr(few_digits, name).__kwdefaults__, "epochs", 1)


@pytest.mark.usefixtures("short_demo")
def test_the_demo_compares_a_teacher_a_vit_the_same_vit_distilled_and_its_packed_twin(tmp_path: Path) -> None:
    out = tmp_path / "first"
    found = json.loads(good("demo", "--out", str(out), "--json", "--quiet"))
    rows = {row["model"]: row for row in found["table"]}
    readings = {"class": "val_top1_class", "distill": "val_top1_distill", "both": "val_top1"}
    heads = {f"ViT distilled, read from {reading}": found["distilled"][name] for reading, name in readings.items()}
    top1 = {"teacher, a convnet": found["teacher"]["val_top1"], "ViT alone": found["alone"]["val_top1"]} | heads
    top1 |= {"one-bit twin": found["binary"]["val_top1"]}
    assert {name: row["top1"] for name, row in rows.items()} == pytest.approx(top1)
    assert rows["teacher, a convnet"]["agreement"] == 100 > rows["ViT alone"]["agreement"]
    assert [truth for truth, _ in found["predictions"]] and len(found["predictions"]) == 5
    for folder in ("teacher", "alone", "distilled", "binary"):
        assert frugalvit.load(out / folder).classes == tuple("0123456789")
    both = json.loads(good("evaluate", str(out / "distilled"), "--json"))
    assert both["top1"] == pytest.approx(found["distilled"]["val_top1"])
    packed = found["packed"]
    assert packed["top1_full"] == pytest.approx(both["top1"]) and packed["agreement"] > 0.99
    assert json.loads(good("evaluate", packed["file"], "--json"))["top1"] == pytest.approx(packed["top1_packed"])
    assert packed["bytes_packed"] == Path(packed["file"]).stat().st_size < packed["bytes_full"] / 5
    assert packed["kernels"] == "simulated" or packed["seconds_packed"] < packed["seconds_full"]


def test_the_demo_gives_no_advice_that_its_flags_cannot_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(recipe: Recipe, *, out: Path, device: str, display: Display) -> Run:
        display.start(40, 0)
        display.show({"step": 20, "time_waiting": 0.5, "advice": "50% of the time is spent waiting for data: use --workers 2."})
        raise KeyboardInterrupt

    monkeypatch.setattr("frugalvit.run.train", waiting)
    said = run("demo", cwd=tmp_path).stderr
    assert "step 20/40  50% waiting" in said and "already" not in said
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    assert (
        "there is a runs/demo already, which stays as it is; this demo writes to runs/demo-2"
        in run("demo", cwd=tmp_path).stderr
    )
    assert "waiting for data" not in said and "--workers" not in said


@pytest.mark.usefixtures("short_demo")
def test_an_interrupted_demo_does_not_stop_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from frugalvit.run import train

    def interrupted(recipe: Recipe, *, out: Path, device: str, display: Display) -> Run:
        if out.name == "alone":
            raise KeyboardInterrupt
        return train(recipe, out=out, device=device, display=display)

    with monkeypatch.context() as patch:
        patch.setattr("frugalvit.run.train", interrupted)
        stopped = run("demo", "--out", "mine", "--quiet", cwd=tmp_path)
    assert stopped.returncode and "stopped; the demo begins anew next time, in another folder than mine" in stopped.stderr
    left = set((tmp_path / "mine").rglob("*"))
    said = good("demo", "--out", "mine", cwd=tmp_path)
    assert set((tmp_path / "mine").rglob("*")) == left
    assert (tmp_path / "mine-2" / "distilled" / "model.safetensors").exists()
    assert "ViT distilled, read from both" in said and "300 to learn from, one seed" in said
    assert "docs/results/distilled_digits.md" in said and said.count(" was read as ") == 5
    assert f"frugalvit evaluate {Path('mine-2') / 'distilled'} " in said
    assert "one bit, packed" in said and "times as fast" in said
