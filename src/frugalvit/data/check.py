"""A check of a data set before it is trained on: what is there, what is wrong, and what to do about it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from frugalvit.data.check_folders import folder_splits
from frugalvit.data.findings import Counts, Finding, Report, Severity, several, span
from frugalvit.data.folder import ImageFolder
from frugalvit.data.look import Look, look
from frugalvit.data.own import is_table
from frugalvit.data.recognize import recognized
from frugalvit.data.source import SPLITS, DatasetPart, Source
from frugalvit.data.split import NoSplit
from frugalvit.errors import DataError

FEW = 10  # pictures of a class in train, below which it is worth a warning
UNEVEN = 10  # times as many pictures in the largest class as in the smallest
LARGE = 1024  # pixels of the median side, above which decoding is the bottleneck

UNREADABLE = {
    "missing": ("missing", "Restore {them}, or remove {them} from the list."),
    "empty": ("empty", "Copy {them} again, or delete {them}."),
    "not a picture": ("of no format that is known, whatever the ending says", "Delete {them}, or replace {them}."),
    "broken": ("broken or cut short", "Copy {them} again, or delete {them}."),
    "colors": ("in colors that do not become both gray and RGB, such as LAB", "Save {them} as RGB, or delete {them}."),
    "huge": ("larger than what Pillow opens, against files that would fill the memory", "Shrink {them}, or delete {them}."),
    "thin": ("too thin to be resized to 224 x 224 pixels", "Cut {them}, or delete {them}."),
}
STORED = {
    "CMYK": "Converted to RGB; look at {them}, since print profiles are ignored.",
    "16-bit": "Scaled to 8 bits.",
    "16-bit of which at most 12 are used": "They come out nearly black: multiply them by 16, or save them with 8 bits.",
    "palette": "Converted to RGB.",
    "alpha": "Transparency is dropped, so that what lies beneath shows; flatten {them} if that matters.",
    "black and white": "Converted to gray or RGB.",
}
NAMED = 3  # copies of a picture that are told
COPIES = (
    ("torn", "there under two labels", "Keep the one with the right label."),
    ("leak", "in more than one split", "Delete {them} from train, or the accuracy of val and test says too much."),
    ("twice", "there twice in one split", "Delete the copies, before a part is kept for validation."),
)


def check(root: Path, progress: Callable[[int, int], None] | None = None) -> Report:
    """Look at every picture at `root`. `progress` is told how many are done, of how many."""
    findings: list[Finding] = []
    dataset: DatasetPart | None = None
    sources: dict[str, Source] = {}
    try:
        dataset = recognized(root)
        sources = folder_splits(root, findings) if isinstance(dataset, ImageFolder) else splits(dataset, root, findings)
    except DataError as error:
        findings.append(Finding("error", f"{error.path}: {error.problem.rstrip('.')}", ""))
    looks = looked(sources, progress)
    findings += [*about_counts(root, sources), *about_pictures(sources, looks), *about_copies(sources, looks)]
    findings += [] if isinstance(dataset, ImageFolder) else about_gaps(sources)
    readable = [one for split in looks.values() for one in split if not one.problem]
    order = {"error": 0, "warning": 1, "note": 2}
    return Report(
        root=str(root),
        dataset=repr(dataset) if dataset is not None else "",
        counts=tuple(counted(split, source) for split, source in sources.items()),
        width=span([one.width for one in readable]),
        height=span([one.height for one in readable]),
        kinds=tuple(Counter(one.kind for one in readable).most_common()),
        findings=tuple(sorted(dict.fromkeys(findings), key=lambda finding: order[finding.severity])),  # once, not once a split
    )


def splits(dataset: DatasetPart, root: Path, findings: list[Finding]) -> dict[str, Source]:
    """What can be opened; what cannot is a finding. A test split that is the val split is left out."""
    found: dict[str, Source] = {}
    for split in SPLITS:
        try:
            found[split] = dataset.open(split, root)
        except NoSplit as error:
            findings.append(Finding("note", error.problem.rstrip("."), ""))
        except DataError as error:
            findings.append(Finding("error", f"{error.path}: {error.problem.rstrip('.')}", ""))
    if {"val", "test"} <= set(found) and found["val"].fingerprint() == found["test"].fingerprint():
        del found["test"]
    return found


def looked(sources: dict[str, Source], progress: Callable[[int, int], None] | None) -> dict[str, list[Look]]:
    total = sum(map(len, sources.values()))
    done = 0
    looks: dict[str, list[Look]] = {}
    for split, source in sources.items():
        looks[split] = []
        for index in range(len(source)):
            looks[split].append(look(source, index))
            done += 1
            if progress is not None:
                progress(done, total)
    return looks


def counted(split: str, source: Source) -> Counts:
    numbers = np.bincount(source.labels, minlength=len(source.classes)).tolist()
    return Counts(split, len(source), tuple(zip(source.classes, numbers, strict=True)))


def about_counts(root: Path, sources: dict[str, Source]) -> Iterator[Finding]:
    if "train" not in sources:
        return
    classes = [(name, count) for name, count in counted("train", sources["train"]).classes if count]
    if len(classes) < 2:
        table = next((file for file in sorted(root.glob("*.csv")) if is_table(file)), None) if root.is_dir() else None
        cure = "There must be two to tell apart." if table is None else f"There is a table of labels: give {table}."
        yield Finding("error", f"train has {several(len(classes), 'class')} with pictures", cure)
        return
    few = tuple(f"{name} {count}" for name, count in classes if count < FEW)
    if few:
        yield Finding("warning", f"classes with fewer than {FEW} pictures in train", "Add pictures, or merge classes.", few)
    alike: dict[str, list[str]] = defaultdict(list)
    for name, _ in classes:
        alike[" ".join(name.lower().split())].append(name)
    if same := tuple(" = ".join(f"'{name}'" for name in names) for names in alike.values() if len(names) > 1):
        yield Finding("warning", "classes whose names differ in capitals or spaces alone", "Merge them, if they are one.", same)
    if "val" in sources:
        seen = {name for name, count in counted("val", sources["val"]).classes if count}
        if unseen := tuple(name for name, _ in classes if name not in seen):
            cure = "What is learned of them is not measured. Add pictures of them."
            yield Finding("warning", f"{several(len(unseen), 'class')} without a picture in val", cure, unseen)
    (least, low), (most, high) = (pick(classes, key=lambda pair: pair[1]) for pick in (min, max))
    if high >= UNEVEN * low:
        problem = f"train is uneven: {high} pictures of {most}, {low} of {least}"
        yield Finding("warning", problem, "Read the accuracy of each class, not only the mean; add pictures of the rare ones.")


def about_gaps(sources: dict[str, Source]) -> Iterator[Finding]:
    """Labels that no picture has; of folders it is told which are empty."""
    if "train" in sources and (empty := tuple(name for name, count in counted("train", sources["train"]).classes if not count)):
        cure = "Number labels from 0 on, without gaps." if empty[0].isdigit() else "Add pictures, or leave the class out."
        yield Finding("warning", f"{several(len(empty), 'class')} without a picture in train", cure, empty)


def about_pictures(sources: dict[str, Source], looks: dict[str, list[Look]]) -> Iterator[Finding]:
    pairs = [(one, sources[split].name(index)) for split in looks for index, one in enumerate(looks[split])]
    for problem, (words, cure) in UNREADABLE.items():
        bad = tuple(name for one, name in pairs if one.problem == problem)
        if bad:
            yield about("error", bad, words, cure)
    for kind, cure in STORED.items():
        names = tuple(name for one, name in pairs if one.kind == kind)
        if names:
            yield about("note", names, f"stored as {kind}", cure)
    rotated = tuple(name for one, name in pairs if one.rotated)
    if rotated:
        yield about("note", rotated, "rotated by EXIF", "Turned upright.")
    moving = tuple(name for one, name in pairs if one.frames > 1)
    if moving:
        problem = f"{several(len(moving), 'file')} {'holds' if len(moving) == 1 else 'hold'} several pictures"
        yield Finding("note", problem, "The first of each is used.", moving)
    sides = [min(one.width, one.height) for one, _ in pairs if not one.problem]
    if sides and np.median(sides) > LARGE:
        problem = f"half of the pictures are larger than {LARGE} pixels"
        yield Finding("note", problem, "Shrink them once, to 512 or so: most of the time goes into decoding.")


def about_copies(sources: dict[str, Source], looks: dict[str, list[Look]]) -> Iterator[Finding]:
    """The same bytes in train and elsewhere, under two labels, or twice."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for split, ones in looks.items():
        for index, one in enumerate(ones):
            if not one.problem:
                places[one.digest].append((split, index))
    kinds: dict[str, list[str]] = {"torn": [], "leak": [], "twice": []}  # by the worst that is wrong with each
    for group in (group for group in places.values() if len(group) > 1):
        torn = len({int(sources[split].labels[index]) for split, index in group}) > 1
        kind = "torn" if torn else "leak" if len({split for split, _ in group}) > 1 else "twice"
        named, others = [sources[split].name(index) for split, index in group[:NAMED]], len(group) - NAMED
        kinds[kind].append(" = ".join(named) + (f" = {others} more" if others > 0 else ""))
    for kind, words, cure in COPIES:
        if kinds[kind]:
            yield about("warning", tuple(kinds[kind]), words, cure)


def about(severity: Severity, places: tuple[str, ...], words: str, cure: str) -> Finding:
    """A finding on pictures, one or many."""
    are, them = ("is", "it") if len(places) == 1 else ("are", "them")
    return Finding(severity, f"{several(len(places), 'picture')} {are} {words}", cure.format(them=them), places)
