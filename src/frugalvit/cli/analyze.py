"""Verbs that look into trained models: analyze agreement, analyze tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from frugalvit.cli.bench import ENDINGS, environment_of
from frugalvit.cli.console import (
    AsJson,
    DataPath,
    DatasetName,
    Device,
    Split,
    With,
    Workers,
    app,
    console,
    own_parts,
    refuse_existing,
    stderr,
)
from frugalvit.cli.pictures import fingerprint_of, same_classes, split_of, tell_learned
from frugalvit.cli.teachers import TEACHER, refuse_recipes, saved_paths, teachers_of
from frugalvit.errors import SpecError, WeightsError, at

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from frugalvit.deploy.classifier import Classifier
    from frugalvit.training.devices import Place
    from frugalvit.training.evaluate import Framed

TRUTH = "ground truth"

analyze_app = typer.Typer(help="Look into trained models: which agree, and what their tokens hold.", no_args_is_help=True)
app.add_typer(analyze_app, name="analyze")

Out = Annotated[Path | None, typer.Option("--out", help="A file to write: .json or .md.")]
Beside = Annotated[
    list[str] | None,
    typer.Option(
        "--teacher",
        help="A teacher as well. own: who taught these runs; or as in `distill`, trained already: a run folder, an exported "
        ".onnx file, or a model: regnety_160, timm:resnet50. Several together: once for each.",
    ),
]


@analyze_app.command()
def agreement(
    runs: Annotated[list[Path], typer.Argument(metavar="CLASSIFIER...", help="Run folders, or what `load` takes.")],
    teacher: Beside = None,
    data: DataPath = None,
    split: Split = "val",
    dataset: DatasetName = "",
    device: Device = "auto",
    workers: Workers = 0,
    out: Out = None,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Count how often classifiers, their heads and the ground truth differ over the pictures of a split (DeiT's table)."""
    from frugalvit.deploy.classifier import load
    from frugalvit.explain.agreement import disagreement
    from frugalvit.spec import encode
    from frugalvit.studies.disagreement import teacher_and_labels
    from frugalvit.training.devices import place_for
    from frugalvit.training.evaluate import Framed

    refuse_other_files(out)
    refuse_no_classifiers(runs)
    refuse_recipes(teacher or [])
    parts, place = own_parts(with_ or []), place_for(device, "fp32")
    named = dict(zip(short_names(runs, (TRUTH, TEACHER) if teacher else (TRUTH,)), runs, strict=True))
    classifiers = {name: load(run, parts=parts) for name, run in named.items()}
    told = next((run for run in runs if (run / "recipe.json").exists()), runs[0])
    pictures = split_of(told, data, split, dataset, parts)
    for run in runs:
        tell_learned(run, data, split, dataset, parts)
    places = {name: class_places(one.classes, pictures.classes, name) for name, one in classifiers.items()}
    teachers = teachers_of(teacher or [], named, classifiers, place, parts)
    for run in (*runs, *(Path(path) for one in teachers.values() for path in saved_paths(one.spec))):
        warn_of_another_split(run, told, split)
    framed: dict[Any, Framed] = {}  # by preprocessing: classifiers that agree in it share the pictures
    guesses: dict[str, Tensor | np.ndarray] = {}
    for name, one in teachers.items():
        for note in one.teacher.notes:
            stderr.print(f"{name}: {note}", markup=False)
        frame = framed.setdefault(one.frames, Framed(pictures, one.frames, place))
        guess_N, labels_N = teacher_and_labels(one.teacher, frame, workers)
        guesses |= {TRUTH: labels_N, name: places[one.student][guess_N]}
    for name, classifier in classifiers.items():
        frame = framed.setdefault(classifier.preprocess, Framed(pictures, classifier.preprocess, place))
        found, labels_N = heads_and_labels(classifier, frame, workers)
        guesses |= {TRUTH: labels_N} | {
            f"{name} {head}".strip(): places[name][guess_N.numpy()] for head, guess_N in found.items()
        }
    told_of: dict[str, Any] = {"classifiers": {name: str(run) for name, run in named.items()}}
    told_of |= {"teachers": {name: encode(one.spec) for name, one in teachers.items()}, "split": split}
    tell(disagreement(guesses), told_of, place, out, as_json)


@analyze_app.command()
def tokens(
    run: Annotated[Path, typer.Argument(metavar="CLASSIFIER", help="A run folder, or what `load` takes.")],
    data: DataPath = None,
    split: Split = "val",
    dataset: DatasetName = "",
    device: Device = "auto",
    workers: Workers = 0,
    out: Out = None,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Measure how alike class and distillation token are: as learned, behind every block, and in front of the heads."""
    from frugalvit.deploy.classifier import load
    from frugalvit.explain.tokens import token_cosines, token_taps
    from frugalvit.training.devices import place_for
    from frugalvit.training.evaluate import Framed

    refuse_other_files(out)
    parts, place = own_parts(with_ or []), place_for(device, "fp32")
    classifier = load(run, parts=parts)
    with at(str(run)):
        tapped = classifier.spec.model.build(taps=token_taps(classifier.module), seed=0)
    tapped.load_state_dict(classifier.module.state_dict())
    framed = Framed(split_of(run, data, split, dataset, parts), classifier.preprocess, place)
    tell_learned(run, data, split, dataset, parts)
    found = token_cosines(tapped.to(place.device), normalized(framed, workers))
    tell(found, {"classifier": str(run), "split": split}, place, out, as_json)


# ------------------------------------------------------------------------------------------------ what is looked at


def refuse_no_classifiers(runs: list[Path]) -> None:
    """What only a teacher may be: a model by its name, or an exported file."""
    for run in runs:
        if run.suffix == ".onnx" and run.is_file():
            raise WeightsError(f"is a computation for onnxruntime, which can be a teacher: --teacher {run}.", path=str(run))
        if run.name == str(run) and not run.exists():
            raise WeightsError(
                f"there is no such file or folder. If it is a model by its name, say --teacher {run}.", path=str(run)
            )


def short_names(runs: list[Path], taken: tuple[str, ...]) -> list[str]:
    """The ends of the paths, as long as it takes to tell them apart, and from names that are taken."""
    parts = [run.resolve().parts for run in runs]
    if len(set(parts)) < len(parts):
        raise SpecError("a classifier is given twice. Give each once.", path=str(runs[-1]))
    lengths = range(1, max(map(len, parts)) + 1)
    shortened = (["/".join(one[-n:]) for one in parts] for n in lengths)
    return next(names for names in shortened if len({*names, *taken}) == len(names) + len(taken))


def class_places(model: tuple[str, ...], data: tuple[str, ...], name: str) -> np.ndarray:
    """Where each class of the model stands among the data's: by its name, else by its place as `evaluate` has it."""
    import numpy as np

    from frugalvit.explain.agreement import places_of

    if set(model) != set(data) and same_classes(data, model):
        return np.arange(len(model))
    with at(name):
        return places_of(model, data)


def warn_of_another_split(run: Path, told: Path, split: str) -> None:
    """Where a run held out other pictures than the one that the split is of, it may have learned from these."""
    if all((one / "recipe.json").exists() for one in (run, told)):
        held = [fingerprint_of(one, split) for one in (run, told)]
        if held[0] != held[1]:
            stderr.print(
                f"caution: {run} had another {split} split than {told}; it may have learned from these pictures.", markup=False
            )


def heads_and_labels(classifier: Classifier, framed: Framed, workers: int) -> tuple[dict[str, Tensor], Tensor]:
    """The best class_N of each head and of all together, or of the only one under no name; and labels_N, −1 for unreadable."""
    import torch

    from frugalvit.data.finish import normalize
    from frugalvit.explain.agreement import together
    from frugalvit.nn.readout import fuse

    preprocess, module = classifier.preprocess, classifier.module.to(framed.place.device).eval()
    found: dict[str, list[Tensor]] = {}
    labels = []
    with torch.inference_mode():
        for image_BCHW, label_B in framed.batches(workers):
            outputs = module(normalize(image_BCHW, preprocess.mean, preprocess.std))
            fused_BC = fuse(outputs, classifier.spec.fusion)
            for name, logits_BC in ({**outputs, together(outputs): fused_BC} if len(outputs) > 1 else {"": fused_BC}).items():
                found.setdefault(name, []).append(logits_BC[: len(label_B)].argmax(-1).cpu())
            labels.append(label_B)
    return {name: torch.cat(parts) for name, parts in found.items()}, torch.cat(labels)


def normalized(framed: Framed, workers: int) -> Iterator[Tensor]:
    """Batches of the readable pictures, as the model takes them."""
    from frugalvit.data.finish import normalize

    for image_BCHW, label_B in framed.batches(workers):
        readable_BCHW = image_BCHW[: len(label_B)][(label_B >= 0).to(image_BCHW.device)]
        if len(readable_BCHW):
            yield normalize(readable_BCHW, framed.preprocess.mean, framed.preprocess.std)


# ------------------------------------------------------------------------------------------------ how it is told


class Finding(Protocol):
    """What an analysis gives: a table, a sentence under it, and the numbers in full."""

    def rows(self) -> list[dict[str, str]]: ...

    def note(self) -> str: ...

    def plain(self) -> dict[str, Any]: ...


def refuse_other_files(out: Path | None) -> None:
    if out is not None:
        if out.suffix not in ENDINGS:
            raise SpecError(f"'{out.suffix}' is no ending of a report. Use {' or '.join(ENDINGS)}.", path=f"--out {out}")
        refuse_existing(out)


def tell(found: Finding, about: dict[str, Any], place: Place, out: Path | None, as_json: bool) -> None:
    """As text or JSON, and into a file where one is asked for."""
    from frugalvit.report.files import plain, write_json, write_whole
    from frugalvit.report.table import as_markdown

    where = environment_of(place)
    data = {**about, **found.plain(), "environment": where}
    if out is not None and out.suffix == ".json":
        write_json(out, data)
    elif out is not None:
        commit = where["commit"] or "unknown"
        made = f"{where['device_name']}, {where['precision']}, commit {commit}"
        head = f"`{' '.join(where['command'])}`: split {about['split']}; {made}."
        write_whole(out, f"{head}\n\n{as_markdown(found.rows())}\n{found.note()}\n".encode())
    if as_json:
        print(json.dumps(plain(data)))
        return
    for line in aligned(found.rows()):
        console.print(line, markup=False)
    console.print(found.note(), markup=False)


def aligned(rows: list[dict[str, str]]) -> Iterator[str]:
    """Columns for the eye, names to the left and numbers to the right, never cut to the width of a window."""
    lines = [list(rows[0]), *([*row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        yield "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
