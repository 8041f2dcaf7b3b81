"""Verbs about models and weights: list, import, export."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frugalvit.cli.console import WEIGHTS, AsJson, Overrides, With, app, console, own_parts, refuse_existing, stderr
from frugalvit.cli.evaluating import Head, loaded
from frugalvit.errors import SpecError, WeightsNotice, at, suggestion

if TYPE_CHECKING:
    from frugalvit.deploy.classifier import Classifier

ONNX = "onnx"  # what `export` can write besides the origins of weights
KINDS = ("models", "changes", "parts", "recipes", "datasets", "origins", "weights")


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to list.")],
    as_json: AsJson = False,
) -> None:
    """List what there is, by name."""
    if kind not in KINDS:
        raise SpecError(f"'{kind}' cannot be listed. {suggestion(kind, KINDS)}", path="list")
    rows = LISTS[kind]()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        stderr.print(f"This version has no {kind}.")
    for name, about in rows.items():
        console.print(f"{name}  [dim]{about}[/dim]" if about else name)


def list_models() -> dict[str, str]:
    from frugalvit.zoo.find import sized

    found = {}
    for name, function in sorted(sized().items()):
        sizes = function.keywords  # type: ignore[attr-defined]
        found[name] = ", ".join(f"{key} {shown(value)}" for key, value in sizes.items())
    return found


def shown(value: object) -> str:
    from frugalvit.outline import short

    return " + ".join(map(short, value)) or "none" if isinstance(value, tuple) else short(value)


def list_parts() -> dict[str, str]:
    from frugalvit.deploy.classifier import ClassifierSpec
    from frugalvit.slots import parts_of

    found = {}
    for slot, (names, protocol) in sorted(parts_of(ClassifierSpec).items()):
        own = f" or your own {protocol}" if protocol else ""
        found[slot] = ", ".join(names) + own
    return found


def list_changes() -> dict[str, str]:
    from frugalvit.zoo.find import changes

    return {f"+{name}": (function.__doc__ or "").strip().splitlines()[0] for name, function in changes().items()}


def list_weights() -> dict[str, str]:
    from frugalvit.weights.published import released

    return {name: file.url for name, file in sorted(released().items())}


def list_origins() -> dict[str, str]:
    from frugalvit.weights.load import ORIGINS

    return {name: origin.about for name, origin in ORIGINS.items()}


def list_recipes() -> dict[str, str]:
    from frugalvit.recipes.find import functions

    return {name: (function.__doc__ or "").strip().splitlines()[0] for name, function in sorted(functions().items())}


def list_datasets() -> dict[str, str]:
    from frugalvit.data.dataset import Dataset
    from frugalvit.slots import choices

    return {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in sorted(choices(Dataset).items())}


LISTS = {
    "models": list_models,
    "changes": list_changes,
    "parts": list_parts,
    "recipes": list_recipes,
    "datasets": list_datasets,
    "origins": list_origins,
    "weights": list_weights,
}


@app.command("import")
def import_(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model that the weights are for.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write.")] = None,
    init: Annotated[str, typer.Option("--init", metavar="WEIGHTS", help=f"{WEIGHTS} Default: MODEL's.")] = "",
    origin: Annotated[str, typer.Option("--origin", help="Whose names a file has: see `list origins`.")] = "",
    classes: Annotated[Path | None, typer.Option("--classes", help="A file of class names.")] = None,
    resample: Annotated[
        str, typer.Option("--resample", help="For another grid: Bicubic, BicubicAntialias, Bilinear.")
    ] = "Bicubic",
    grid: Annotated[str, typer.Option("--grid", help="The file's grid of patches where it is not square: 14x20.")] = "",
    head: Head = "",
    as_json: AsJson = False,
) -> None:
    """Make foreign weights a classifier: a folder with model.safetensors and config.json, which `load` takes.

    preprocess.mean=..., preprocess.std=..., preprocess.crop=... and fusion=... say what a file of weights does not.
    """
    from frugalvit.assign import parse
    from frugalvit.deploy.adopt import adopt, framing
    from frugalvit.weights.fetch import fetch, fetch_released
    from frugalvit.weights.published import released
    from frugalvit.weights.resample import Resample
    from frugalvit.zoo.find import model

    if origin == ONNX or Path(init).suffix == f".{ONNX}":
        raise SpecError(
            "an ONNX file is a computation whose weights have no names to import by. Import the weights it was made of. "
            "To learn from the file itself, see `As an ONNX file` in docs/distillation.md.",
            path="--origin" if origin == ONNX else "--init",
        )
    if out is None:
        raise SpecError("where to? Say --out FOLDER.", path="--out")
    refuse_existing(out)
    if "." in name and name in released():
        name, init = name.partition(".")[0], init or name
    changes = [text for text in overrides or [] if text.startswith(("preprocess.", "fusion"))]
    sizes = [text for text in overrides or [] if text not in changes]
    if head and any(text.startswith("fusion") for text in changes):
        raise SpecError("fusion=... and --head say the same thing. Leave one out.", path="--head")
    spec = model(name, *sizes)
    with at("--resample"):
        rule = parse(resample, Resample)
    with at("--grid"):
        patches = parse(grid, tuple[int, int]) if grid else None
    fetched = fetch(init) if init else fetch_released(name)
    given = any(text.startswith("classes=") for text in sizes)
    if fetched.classes and not given:
        spec = model(name, *sizes, classes=fetched.classes)
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always", WeightsNotice)
        classifier = adopt(
            spec,
            fetched,
            origin=origin,
            like=name,
            changes=changes,
            classes=classes,
            resample=rule,
            grid=patches,
            heads="fresh" if given else "kept",
        )
    if head:
        with at("--head"):
            classifier = classifier.reading(head)
    classifier.save(out)
    notes = [str(notice.message) for notice in notices if issubclass(notice.category, WeightsNotice)]
    if fetched.released is None and not any(text.startswith("preprocess.") for text in changes):
        taken = " ".join(f"{key}={word}" for key, word in framing(classifier.spec.preprocess).items())
        notes.append(f"it is not known how pictures were shown to the model; from here on: {taken}")
    if as_json:
        print(json.dumps({"out": str(out), "notes": notes}))
        return
    for note in notes:
        stderr.print(f"note: {note}", markup=False)
    console.print(f"{out}: model.safetensors, config.json. In Python: frugalvit.load({str(out)!r})", markup=False)


@app.command("export")
def export(
    source: Annotated[Path, typer.Argument(metavar="CLASSIFIER", help="A folder or file that `load` takes.")],
    origin: Annotated[str, typer.Option("--origin", help="Whose names to write: see `list origins`; or onnx.")] = "timm",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="FILE.safetensors; for augreg .npz, for onnx .onnx; for frugalvit a folder too."),
    ] = None,
    head: Head = "",
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Write a classifier's weights under the names of timm, HF or AugReg, or all of it, with --origin frugalvit or onnx.

    --head chooses who answers. Ours keep all heads and say which; others hold one head, or the mean of two, where they can.

    An ONNX file computes that answer, from pixels / 255 to logits, and is compared with PyTorch where onnxruntime is installed.
    """
    if origin == ONNX:
        export_graph(source, out, head, as_json, own_parts(with_ or []))
        return
    from frugalvit.deploy.adopt import class_names
    from frugalvit.weights.files import KNOWN, write_npz, write_safetensors
    from frugalvit.weights.load import ORIGINS, export_weights, origin_named

    if origin not in ORIGINS:
        raise SpecError(f"nothing is written for '{origin}'. {suggestion(origin, (*ORIGINS, ONNX))}", path="--origin")
    ending, ours = origin_named(origin).ending, origin == "frugalvit"
    if out is None or not (out.suffix == ending or (ours and out.suffix not in KNOWN)):
        where = f"FILE{ending}{' or FOLDER' if ours else ''}"
        what = "where to?" if out is None else f"{out} has another ending."
        raise SpecError(f"{what} Say --out {where}; no pickle is written.", path="--out")
    refuse_existing(out)
    classifier = loaded(source, head, own_parts(with_ or []))
    notes: list[str] = []
    if ours:
        state = classifier.module.state_dict()
        (classifier.save_file if out.suffix == ending else classifier.save)(out)
    else:
        classifier, notes = held(classifier, origin, head)
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always", WeightsNotice)
            state = export_weights(classifier.module, origin)
        notes += [str(notice.message) for notice in notices]
        if classifier.classes != class_names(classifier.spec.model, None):
            notes.append("class names are not part of such files. `import --classes FILE` takes them from a text, one a line.")
        notes += forgotten(classifier)
        (write_npz if ending == ".npz" else write_safetensors)(out, state)
    if as_json:
        print(json.dumps({"out": str(out), "tensors": len(state), "notes": notes}))
        return
    for note in notes:
        stderr.print(f"note: {note}", markup=False)
    console.print(f"{out}: {len(state)} tensors under the names of {origin}.", markup=False)


def forgotten(classifier: Classifier) -> list[str]:
    """A word on what `import` would not know of how this classifier is shown its pictures."""
    from frugalvit.deploy.adopt import framing, preprocess_of

    usual = framing(preprocess_of(classifier.spec.model, None))
    given = " ".join(f"{name}={word}" for name, word in framing(classifier.spec.preprocess).items() if word != usual[name])
    return [f"such files do not say how pictures are shown to the model. `import ... {given}` does."] if given else []


def export_graph(source: Path, out: Path | None, head: str, as_json: bool, parts: list[type]) -> None:
    """An ONNX file of the whole classifier."""
    from frugalvit.deploy.export import ENDING, export_onnx, refuse_name
    from frugalvit.measure.onnx_file import refuse_without_exporter

    if out is None:
        raise SpecError(f"where to? Say --out FILE{ENDING}.", path="--out")
    refuse_name(out)
    refuse_without_exporter()
    found = export_onnx(loaded(source, head, parts), out)
    if as_json:
        said = {"out": found.file, "bytes": found.bytes, "head": found.head, "largest_difference": found.difference}
        print(json.dumps({**said, "notes": found.notes}))
        return
    for note in found.notes:
        stderr.print(f"note: {note}", markup=False)
    console.print(f"{out}: {found.bytes / 1e6:.1f} MB, from pixels / 255 to logits; head: {found.head}.", markup=False)
    if found.difference is not None:
        console.print(f"Largest difference from PyTorch's logits, in onnxruntime: {found.difference:.1e}.", markup=False)


def held(classifier: Classifier, origin: str, head: str) -> tuple[Classifier, list[str]]:
    """What other libraries can hold of a classifier with several heads, and a word where that is not how it answers.

    They have the mean of the logits of both heads. HF's DeiT without a teacher has both tokens and a head on the class token
    alone; nobody else has one head behind two tokens. A reading that was asked for is held or refused.
    """
    from frugalvit.nn.readout import MeanLogits, OneHead, word_for

    heads, fusion = classifier.spec.model.heads, classifier.spec.fusion
    if len(heads) == 1 or fusion == MeanLogits():
        return classifier, []
    if fusion == OneHead("class") and origin in ("hf", "hf-module"):
        left = ", ".join(name for name in heads if name != "class")
        return classifier.alone("class"), [f"the head {left} is left out: the class head answers. Its token stays"]
    reason = f"{origin} has no model with the heads {', '.join(heads)} that answers by '{word_for(fusion)}', only by their mean"
    if not head:
        return classifier, [f"{reason}. All heads are written; --origin frugalvit keeps the reading."]
    cures = ["--head mean", "--origin frugalvit, which holds every reading"]
    if fusion == OneHead("class"):
        cures.append("--origin hf, whose DeiT has both tokens and the class head alone")
    raise SpecError(f"{reason}. Use {', or '.join(cures)}.", path="--head")
