"""A check of class folders: which split is where, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from frugalvit.data.files import Files, files_in, folders_in, pictures_in
from frugalvit.data.findings import Finding
from frugalvit.data.folder import ImageFolder, Layout, labeled_by, layout, without_train
from frugalvit.data.source import Source


def folder_splits(root: Path, findings: list[Finding]) -> dict[str, Source]:
    """The splits of an image folder, however incomplete: all that is wrong with its classes becomes findings."""
    there = layout(root)
    findings += about_layout(root, there)
    classes = sorted({name for folder in there.splits.values() for name in folders_in(folder)})
    found: dict[str, Source] = {}
    left_out: Counter[str] = Counter()
    for split, folder in there.splits.items():
        own = {name: pictures_in(folder / name) for name in folders_in(folder)}
        names = [f"{name}/{picture}" for name, pictures in own.items() for picture in pictures]
        labels = [classes.index(name) for name, pictures in own.items() for _ in pictures]
        found[split] = Files(folder, names, labels, classes)
        findings += about_classes(split, folder, own, classes)
        others = (file for name, pictures in own.items() for file in set(files_in(folder / name)) - set(pictures))
        left_out.update(Path(file).suffix.lower() or "none" for file in others)
    if left_out:
        endings = ", ".join(f"{ending} {count}" for ending, count in left_out.most_common())
        findings.append(
            Finding("note", f"files with other endings are left out: {endings}", "Convert those that are pictures.")
        )
    return found


def about_layout(root: Path, there: Layout) -> Iterator[Finding]:
    for split, folder in there.unlabeled.items():
        problem = f"{folder.name}: pictures in one folder have no labels"
        if split == "test":
            yield Finding("note", f"{problem} and are left out", labeled_by(folder))
        else:
            yield Finding("error", problem, labeled_by(folder))
    if "train" not in there.splits | there.unlabeled:
        problem, _, cure = without_train(there).partition(". ")
        yield Finding("error", problem, cure)
    elif there.others:
        problem = f"folders beside {' and '.join(folder.name for folder in there.splits.values())} are left out"
        yield Finding("warning", problem, "Put classes into the splits; remove what is not for training.", there.others)
    if there.alike:
        are = "is a class" if len(there.alike) == 1 else "are classes"
        problem = f"{' and '.join(there.alike)} {are} here, and no split, like the folders beside"
        yield Finding("warning", problem, "For splits, put the folders of the classes into train, val and test.", there.alike)
    for folder in dict.fromkeys((root, *there.splits.values())):
        stray = tuple(str(folder / name) for name in pictures_in(folder))
        if stray:
            problem = f"pictures of {folder.name} lie beside the folders and are left out"
            yield Finding("warning", problem, "Put them into a class folder.", stray)
    if "train" in there.splits and "val" not in there.splits | there.unlabeled:
        yield Finding("note", "there is no val folder", f"{ImageFolder()} keeps a part of train for it.")


def about_classes(split: str, folder: Path, own: dict[str, list[str]], classes: list[str]) -> Iterator[Finding]:
    """`own` has the pictures of each class folder."""
    deep = tuple(name for name, pictures in own.items() if not pictures and folders_in(folder / name))
    if deep:
        problem = f"{split}: no pictures directly in class folders"
        yield Finding("error", problem, "They must lie there, not in folders inside.", deep)
    inside = {name: below(folder / name) for name, pictures in own.items() if pictures}
    if missed := sum(inside.values()):
        problem = f"{split}: {missed} pictures in folders inside class folders are left out"
        places = tuple(name for name, count in inside.items() if count)
        yield Finding("warning", problem, "Move them up, into the class folders.", places)
    empty = tuple(name for name, pictures in own.items() if not pictures and name not in deep)
    if empty:
        yield Finding("error", f"{split}: class folders without pictures", "Fill or remove them.", empty)
    absent = tuple(name for name in classes if name not in own)
    if absent:
        problem = f"{split}: classes of other splits have no folder here"
        yield Finding("error", problem, "Give every split the same class folders.", absent)


def below(folder: Path) -> int:
    """Pictures in the folders of a folder, however deep."""
    return sum(len(pictures_in(folder / name)) + below(folder / name) for name in folders_in(folder))
