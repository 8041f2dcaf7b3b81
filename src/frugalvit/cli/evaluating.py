"""Verbs about trained classifiers: evaluate, predict."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    plain,
    stderr,
)
from frugalvit.cli.pictures import same_classes, some_of, split_of, tell_learned, unlike
from frugalvit.errors import DataError, WeightsError, at

if TYPE_CHECKING:
    from frugalvit.deploy.classifier import Classifier, Prediction
    from frugalvit.deploy.exported import ExportedClassifier
    from frugalvit.deploy.native import PackedClassifier

BATCH = 32  # pictures that are predicted together, and held in memory

ANSWERING = "A run folder, a folder or file that `load` takes, a packed file, or an exported .onnx."

Head = Annotated[
    str, typer.Option("--head", help="Who answers: class, distill; all heads by mean or softmax. Default: as saved.")
]

Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Of a packed file. Default: FRUGALVIT_THREADS, or all cores.")
]


@app.command()
def evaluate(
    source: Annotated[Path, typer.Argument(metavar="CLASSIFIER", help=ANSWERING)],
    data: DataPath = None,
    split: Split = "val",
    dataset: DatasetName = "",
    head: Head = "",
    device: Device = "auto",
    workers: Workers = 0,
    threads: Threads = None,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Measure a classifier on a split: top-1, top-5, loss, calibration error, and each class.

    Of several heads, top-1 by each of them and by both rules of fusing them is shown as well.
    """
    from frugalvit.cli.answering import answering, fusion_of, heads_of, run_of
    from frugalvit.data.split import Renumbered
    from frugalvit.nn.readout import RULES, fuse, word_for
    from frugalvit.training.evaluate import Framed, accuracies, measures, per_class, real_accuracy

    parts = own_parts(with_ or [])
    classifier, place = answering(source, head, parts, device, threads)
    pictures = split_of(run_of(source), data, split, dataset, parts)
    tell_learned(run_of(source), data, split, dataset, parts)
    if some_of(pictures.classes, classifier.classes):
        known = f"{len(pictures.classes)} of the model's {len(classifier.classes)} classes"
        stderr.print(f"note: the data has {known}; the model still chooses among all", markup=False)
        pictures = Renumbered(pictures, classifier.classes)
    elif not same_classes(pictures.classes, classifier.classes):
        raise DataError(unlike(pictures.classes, classifier.classes), path=str(data or source))
    heads, labels_N = heads_of(classifier, Framed(pictures, classifier.preprocess, place), workers)
    fusion = fusion_of(classifier)
    found = fuse(heads, fusion), labels_N
    values, classes = dict(measures(*found)), per_class(*found, classifier.classes)
    values["unreadable"] = len(pictures) - values["pictures"]
    if values["unreadable"]:
        stderr.print("note: `frugalvit data check` names the pictures that cannot be read", markup=False)
    if hasattr(pictures, "real"):
        values["real_top1"] = real_accuracy(*found, pictures.real)
    read = word_for(fusion) if len(heads) > 1 else ""
    if read:
        values |= accuracies(heads, labels_N, (*heads, *RULES))
    if as_json:
        print(json.dumps({"split": split, **({"head": read} if read else {}), **plain(values), "classes": classes}))
        refuse_nonsense(values)
        return
    skipped = f", and {values['unreadable']} that cannot be read" if values["unreadable"] else ""
    console.print(f"{split}: {values['pictures']} pictures{skipped}{f'; head: {read}' if read else ''}")
    for name in (name for name in values if name not in ("pictures", "unreadable")):
        console.print(f"  {name:18s}{values[name]:8.3f}")
    refuse_nonsense(values)
    classes = {name: row for name, row in classes.items() if row["pictures"]}
    for name, row in sorted(classes.items(), key=lambda pair: pair[1]["recall"])[:20]:
        line = f"  {name:18s}recall {row['recall']:6.2f}  precision {row['precision']:6.2f}  n = {row['pictures']}"
        console.print(line, markup=False)
    if len(classes) > 20:
        console.print(f"  (the 20 classes of {len(classes)} with the lowest recall; --json has all)")


def refuse_nonsense(values: dict[str, float]) -> None:
    """A model that answers with no numbers has no accuracy."""
    if math.isnan(values["loss"]):
        stderr.print("the model answers with no numbers", markup=False)
        raise typer.Exit(1)


def loaded(source: Path, head: str, parts: list[type]) -> Classifier:
    """The classifier, reading the head that was named."""
    from frugalvit.deploy.classifier import load

    refuse_names(source)
    classifier = load(source, parts=parts)
    with at("--head"):
        return classifier.reading(head) if head else classifier


def refuse_names(source: Path) -> None:
    """A model's name where weights are wanted."""
    if source.exists() or source.name != str(source):
        return
    from frugalvit.zoo.find import functions

    if source.name in functions():
        raise WeightsError(
            "is a model without weights, and there is no file or folder of that name. Give a run: frugalvit train writes one, "
            "and frugalvit import a folder of released weights.",
            path=str(source),
        )


@app.command()
def predict(
    source: Annotated[Path, typer.Argument(metavar="CLASSIFIER", help=ANSWERING)],
    pictures: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.")],
    top: Annotated[int, typer.Option("--top", min=1, help="Classes to name for each picture.")] = 3,
    head: Head = "",
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Name the most probable classes of pictures, a line each as they come; with --json all at the end, by their names."""
    from frugalvit.cli.answering import answering
    from frugalvit.report.progress import display_for

    classifier, _ = answering(source, head, own_parts(with_ or []), device, threads)
    paths = files(pictures)
    display = display_for(sys.stderr, "auto" if as_json and len(paths) > BATCH else "quiet")
    rows: dict[str, list[dict[str, Any]]] = {}
    bad: dict[str, str] = {}
    for start in range(0, len(paths), BATCH):
        for path, found in predicted(classifier, paths[start : start + BATCH], top):
            if isinstance(found, str):
                bad[str(path)] = found
                if not as_json:
                    stderr.print(f"{path}: {found}", markup=False)
                continue
            guesses = list(zip(found.names, found.probabilities, strict=True))
            if as_json:
                rows[str(path)] = [{"name": name, "probability": share} for name, share in guesses]
            else:
                text = ", ".join(f"{name} {100 * share:.1f} %" for name, share in guesses)
                console.print(f"{path}: {text}", markup=False)
        display.count("pictures", min(start + BATCH, len(paths)), len(paths))
    if as_json:
        print(json.dumps({"predictions": rows, "unreadable": bad}))
    if bad:
        raise typer.Exit(1)


def predicted(
    classifier: Classifier | PackedClassifier | ExportedClassifier, paths: list[Path], top: int
) -> Iterator[tuple[Path, Prediction | str]]:
    """For each picture what it shows, or why it cannot be read. Each is decoded once, and kept at the model's size."""
    from frugalvit.data.files import ENDINGS
    from frugalvit.data.preprocess import opened

    framed, problems = [], []
    for path in paths:
        try:
            if path.is_dir():
                raise DataError(f"no picture is below this folder ({', '.join(ENDINGS)}).")
            framed.append(classifier.preprocess.framed(opened(path)))
            problems.append("")
        except DataError as error:
            problems.append(error.problem)
    answers = iter(classifier.predict_framed(framed, top) if framed else ())
    for path, problem in zip(paths, problems, strict=True):
        yield path, problem or next(answers)


def files(paths: list[Path]) -> list[Path]:
    """The pictures among paths and below folders, in order; a folder without any stands for itself."""
    from frugalvit.data.files import ENDINGS

    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.suffix.lower() in ENDINGS and not one.name.startswith("."))
            found += inside or [path]
        else:
            found.append(path)
    return found
