"""The verb that packs a binary model into one file for the one-bit runtime."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frugalvit.cli.console import AsJson, DataPath, DatasetName, Split, With, app, console, own_parts, stderr
from frugalvit.cli.evaluating import Head, loaded
from frugalvit.cli.pictures import split_of
from frugalvit.errors import DataError, SpecError

if TYPE_CHECKING:
    import numpy as np

    from frugalvit.data.source import Source
    from frugalvit.deploy.classifier import Classifier
    from frugalvit.deploy.verify import Verification

LEAST = "Equal best classes in percent, below which nothing is written. Default: 99; of 20 pictures 1 may differ, of 40 2."
DOZENS = 48  # pictures that are compared at the least, unless --pictures asks for less


@app.command()
def pack(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder or file that `load` takes.")],
    out: Annotated[Path | None, typer.Option("--out", help="The file to write. Default: model.fvit in the folder.")] = None,
    half: Annotated[bool, typer.Option("--half", help="Positions and heads in 16 bits: a smaller file.")] = False,
    head: Head = "",
    data: DataPath = None,
    split: Split = "val",
    dataset: DatasetName = "",
    pictures: Annotated[int, typer.Option("--pictures", min=1, help="How many to compare the answers on.")] = 256,
    least: Annotated[float | None, typer.Option("--least", min=0, max=100, help=LEAST)] = None,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Pack a binary model into one file that runs without PyTorch, and compare its answers with the model's.

    The pictures are those of the run's --split, at --data or of --dataset. Where these are less than some dozens, training
    pictures and noise come in addition; noise alone where there are none.
    """
    from frugalvit.cli.answering import told
    from frugalvit.deploy.packable import refuse_unpackable
    from frugalvit.deploy.packed_file import ENDING
    from frugalvit.deploy.verify import pack as write
    from frugalvit.deploy.verify import refuse_name

    if source.suffix == ENDING:
        raise SpecError("is packed already. Give the run it was made of.", path=str(source))
    folder = source if source.is_dir() else source.parent
    out = out or folder / f"model{ENDING}"
    refuse_name(out)
    parts = own_parts(with_ or [])
    classifier = loaded(source, head, parts)
    refuse_unpackable(classifier.spec, classifier.module.shapes)
    image_BHWC, of = pictures_of(classifier, folder, data, split, dataset, pictures, parts)
    if not as_json:
        stderr.print(f"comparing answers on {len(image_BHWC)} pictures: {of} ...", markup=False)
    name = name_of(classifier, folder)
    with told():
        found = write(
            classifier,
            out,
            image_BHWC=image_BHWC,
            precision="half" if half else "single",
            name=name,
            least=None if least is None else least / 100,
        )
    if as_json:
        print(json.dumps({**found.plain(), "pictures_of": of}))
        return
    console.print(table(found))
    console.print(f"Written to {out}: {shlex.join(['frugalvit', 'predict', str(out), 'PICTURE'])}", markup=False)


def pictures_of(
    classifier: Classifier, folder: Path, data: Path | None, wanted: str, dataset: str, count: int, parts: list[type]
) -> tuple[np.ndarray, str]:
    """image_BHWC to compare on, and where they come from. Without a validation split, it is the test split's."""
    import numpy as np

    from frugalvit.deploy.verify import noise_for

    named = " at ".join(str(one) for one in (dataset, data) if one)
    refused: dict[str, DataError] = {}
    for split in ("val", "test") if wanted == "val" else (wanted,):
        try:
            image_BHWC = framed(split_of(folder, data, split, dataset, parts), classifier, count)
        except DataError as error:
            if wanted != "val":
                raise
            refused[split] = error
            continue
        if len(image_BHWC):
            missing = min(count, DOZENS) - len(image_BHWC)
            more = [] if missing <= 0 else more_pictures(classifier, folder, data, split, dataset, missing, parts)
            of = [f"{split} of {named or 'the data of the run'}", *(f"{len(one)} of {name}" for one, name in more if len(one))]
            return np.concatenate([image_BHWC, *(one for one, _ in more)]), ", ".join(of)
    if named and "val" in refused:  # what was asked for; nobody spoke of a test split
        raise refused["val"]
    return noise_for(classifier, count), "noise, since no data could be opened; say --data PATH or --dataset NAME for real ones"


def more_pictures(
    classifier: Classifier, folder: Path, data: Path | None, split: str, dataset: str, missing: int, parts: list[type]
) -> list[tuple[np.ndarray, str]]:
    """So many beside those of a small split, which would tell little: training pictures, and noise for the rest."""
    from frugalvit.deploy.verify import noise_for

    found = []
    with suppress(DataError):  # who only has a test set can pack as well
        if split != "train":
            found.append((framed(split_of(folder, data, "train", dataset, parts), classifier, missing), "train"))
    rest = missing - sum(len(one) for one, _ in found)
    return [*found, (noise_for(classifier, rest), "noise")] if rest else found


def framed(source: Source, classifier: Classifier, count: int) -> np.ndarray:
    """Readable pictures, spread evenly over the source."""
    from frugalvit.data.batches import evenly

    return evenly(source, classifier.preprocess, count)[0]


def name_of(classifier: Classifier, folder: Path) -> str:
    """The zoo's name for the model, whatever it drops in training; the folder's name where it has none."""
    from dataclasses import replace

    from frugalvit.nn.residual import LayerScale, Plain
    from frugalvit.spec import swap
    from frugalvit.zoo.find import model, sized

    def plain(spec: Any) -> Any:
        return swap(spec, (Plain, LayerScale), lambda one: replace(one, drop=0.0))

    own = plain(classifier.spec.model)
    for name in sized():
        if "binary" in name and plain(model(name, classes=own.classes)) == own:
            return name
    return folder.resolve().name


def table(found: Verification) -> Any:
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    shown.add_column()
    flips = f"of {found.signs:,} in {found.watched} pictures"
    rows = [
        ("size", f"{found.bytes / 1e6:.3f} MB", ""),
        ("run by", found.kernels, "" if found.kernels == "simulated" else f"same bits as simulated, {found.watched} pictures"),
        ("same best class", f"{found.agreement:.2%}", f"of {found.pictures} pictures"),
        ("largest difference of logits", f"{found.logit_difference:.2e}", ""),
        ("signs that differ", f"{found.flip_rate:.4%}", flips),
        ("attended keys that differ", f"{found.attended_rate:.4%}", f"of {found.attended:,}"),
    ]
    for row in rows:
        shown.add_row(*row)
    return shown
