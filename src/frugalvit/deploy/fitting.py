"""A packed program is held against docs/format.md before PyTorch runs it, whoever wrote it."""

from __future__ import annotations

import numpy as np

from frugalvit.data.preprocess import FILTERS
from frugalvit.deploy.fields import Fields
from frugalvit.deploy.packed_file import Packed
from frugalvit.deploy.program import LANES, MOST_NUMBERS
from frugalvit.deploy.steps import MOST_COLUMNS, MOST_ROWS, Buffer, StepRules
from frugalvit.errors import WeightsError

MOST_STEPS = 10_000
MOST_PIXELS, MOST_COVERED = 4096, 8192  # a side


def refuse_misfit(packed: Packed) -> None:
    """A WeightsError that names the first place where a program is not as the format says."""
    top = Fields(packed.program, "")
    top.text("name")
    image, buffers = image_of(top.inner("image")), buffers_of(top.inner("buffers"))
    rules = StepRules(buffers, packed.tensors, image)
    steps = top.items("steps")
    if not 1 <= len(steps) <= MOST_STEPS:
        top.refuse(f"{len(steps)} steps. Use 1 to {MOST_STEPS}.", "steps")
    for number, step in enumerate(steps):
        rules.check(Fields(step, f"steps[{number}]"))
    logits = rules.buffer(top, "logits")
    if logits.rows != 1:
        top.refuse(f"{logits} has {logits.rows} rows. Use a buffer of one.", "logits")
    if "labels" in top.value:
        refuse_labels(top, logits.columns)
    top.done()
    for name in packed.tensors:
        if name not in rules.used:
            raise WeightsError("no step uses this tensor. Leave it out.", path=name)


def refuse_labels(top: Fields, classes: int) -> None:
    labels = top.items("labels")
    if len(labels) != classes:
        top.refuse(f"{len(labels)} labels for {classes} classes. Give one a class, or leave them out.", "labels")
    for number, label in enumerate(labels):
        top.text_of(label, f"labels[{number}]")


def image_of(image: Fields) -> tuple[int, int, int]:
    """Height, width and channels."""
    height, width = (image.whole(name, 1, MOST_PIXELS) for name in ("height", "width"))
    cover = image.items("cover")
    if len(cover) != 2:
        image.refuse(f"{len(cover)} numbers. Use [height, width].", "cover")
    for place, least in enumerate((height, width)):
        image.whole_of(cover[place], f"cover[{place}]", least, MOST_COVERED)
    if (filter_ := image.text("filter")) not in FILTERS:
        image.refuse(f"the filter '{filter_}' is unknown. Use {' or '.join(FILTERS)}.", "filter")
    mean, std = (
        [image.number_of(one, f"{name}[{place}]") for place, one in enumerate(image.items(name))] for name in ("mean", "std")
    )
    if len(mean) not in (1, 3) or len(std) != len(mean):
        image.refuse(f"{len(mean)} means and {len(std)} deviations. Use 1 or 3 of each.")
    with np.errstate(all="ignore"):
        pixels_PC = (np.arange(256, dtype="f4")[:, None] / np.float32(255) - np.array(mean, "f4")) / np.array(std, "f4")
    if min(std) <= 0 or not np.isfinite(pixels_PC).all():
        image.refuse("deviations that are not above 0, or numbers that make no finite pixels. Use other ones.", "std")
    image.done()
    return height, width, len(mean)


def buffers_of(fields: Fields) -> dict[str, Buffer]:
    found, total = {}, 0
    for name in fields.value:
        shape = fields.items(name)
        if len(shape) != 2:
            fields.refuse(f"{len(shape)} numbers. Use [rows, columns].", name)
        rows, columns = fields.whole_of(shape[0], name, 1, MOST_ROWS), fields.whole_of(shape[1], name, 1, MOST_COLUMNS)
        found[name] = Buffer(name, rows, columns)
        total += rows * -(-columns // LANES) * LANES
        if total > MOST_NUMBERS:
            fields.refuse(f"more than {MOST_NUMBERS} numbers in all. Use smaller buffers.", name)
    return found
