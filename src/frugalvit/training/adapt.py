"""Between a student and its teacher: the student's pictures as the teacher takes them, and where its classes lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from frugalvit.data.preprocess import Preprocess
from frugalvit.errors import SpecError

Known = Literal["same", "included"]  # which classes a teacher may know: the student's, or the student's among others

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, the gray of Pillow
LISTED = 3  # names in an error message


class Seen(nn.Module):
    """The student's normalized pictures as the teacher's input: (resized(x · std_s + mean_s) − mean_t) / std_t.

    Resizing is antialiased, with Pillow's filters. Nothing is clamped to [0, 1]: erasing leaves noise there and cubic filters
    overshoot, and the released DeiT code too hands its teacher what the student sees. Where size and statistics are the
    student's, the pictures are left as they are, to the bit.
    """

    mean_s: Tensor
    std_s: Tensor
    mean_t: Tensor
    std_t: Tensor
    luma: Tensor

    def __init__(self, student: Preprocess, teacher: Preprocess):
        super().__init__()
        self.size = teacher.height, teacher.width
        self.resizes = self.size != (student.height, student.width)
        self.same = not self.resizes and (student.mean, student.std) == (teacher.mean, teacher.std)
        self.interpolation = teacher.interpolation
        self.channels = len(student.mean), len(teacher.mean)
        if self.channels not in {(1, 3), (3, 1)} and self.channels[0] != self.channels[1]:
            raise SpecError(
                f"the student's pictures have {self.channels[0]} channels, the teacher's {self.channels[1]}. Only gray (1) and "
                "RGB (3) are made of each other.",
                path="mean",
            )
        constants = {"mean_s": student.mean, "std_s": student.std, "mean_t": teacher.mean, "std_t": teacher.std, "luma": LUMA}
        for name, values in constants.items():
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        if self.same:
            return image_BCHW
        image_BCHW = image_BCHW.float() * self.std_s + self.mean_s
        match self.channels:
            case (1, 3):
                image_BCHW = image_BCHW.expand(-1, 3, -1, -1)
            case (3, 1):
                image_BCHW = (image_BCHW * self.luma).sum(1, keepdim=True)
        if self.resizes:
            image_BCHW = interpolate(image_BCHW, self.size, mode=self.interpolation, antialias=True)
        return (image_BCHW - self.mean_t) / self.std_t


def class_order(theirs: tuple[str, ...], ours: tuple[str, ...], known: Known = "same") -> tuple[tuple[int, ...] | None, str]:
    """Where each of the student's classes lies among the teacher's, None if all are in place, and what is worth a word.

    The logits of some of a teacher's classes alone are those of p(class | one of them), so `included` is exact for labels
    that the student tells apart.
    """
    if theirs == ours:
        return None, ""
    if len(theirs) == len(ours) and set(theirs) != set(ours) and (numbered(theirs) or numbered(ours)):
        whose, other = ("teacher", "student") if numbered(theirs) else ("student", "teacher")
        return None, f"the {whose}'s classes are numbers only; they are taken to be the {other}'s, in the same order"
    refuse_other_names(theirs, ours)
    counts = Counter(theirs), Counter(ours)
    if doubled := [name for name in counts[1] if counts[0][name] > 1 or counts[1][name] > 1]:
        raise SpecError(f"several classes are called {listed(doubled)}, so the teacher's cannot be put into order by name.")
    numbers = numbered(theirs) or numbered(ours)
    if len(theirs) > len(ours) and known == "same":
        among = ", if a number means the same to both" if numbers else ""
        raise SpecError(
            f"the teacher knows {len(theirs)} classes, the student's {len(ours)} among them{among}. Say "
            "teaching.classes=included (Python: Teaching(..., classes='included')) to read these alone, or use a teacher of "
            "the same classes."
        )
    places = {name: place for place, name in enumerate(theirs)}
    note = (
        "the teacher has the student's classes in another order; its logits are put into the student's"
        if len(theirs) == len(ours)
        else f"of the teacher's {len(theirs)} classes the student's {len(ours)} are read{', by number' if numbers else ''}"
    )
    return tuple(places[name] for name in ours), note


def numbered(names: tuple[str, ...]) -> bool:
    """Whether names are only places: 0, 1, 2 and so on."""
    return names == tuple(map(str, range(len(names))))


def refuse_other_names(theirs: tuple[str, ...], ours: tuple[str, ...]) -> None:
    """Raise unless every class of the student has a name that the teacher knows."""
    names = set(theirs), set(ours)
    missing, extra = [name for name in ours if name not in names[0]], [name for name in theirs if name not in names[1]]
    if missing:
        raise SpecError(
            f"the teacher has {len(theirs)} classes, the student {len(ours)}, and they are not the same. "
            f"Of the student alone: {listed(missing)}; of the teacher alone: {listed(extra)}. "
            "Use a teacher of the same classes, or name the teacher's as the data does, in the order of its logits: "
            "teaching.teacher.classes=ant,bee (Python: RunTeacher(..., classes=('ant', 'bee')))."
        )


def other_logits(shape: tuple[int, ...], pictures: int, knows: int) -> str:
    """What to say of logits that are not a row for each picture, or not as many as the classes."""
    said = f"logits of shape {shape} for {knows} classes."
    if len(shape) != 2 or shape[0] != pictures:
        return f"{said[:-1]} and {pictures} picture{'s' * (pictures > 1)}. Return one row of {knows} for each picture."
    if shape[1] < knows:
        return f"{said} Use a teacher of {knows} classes."
    return (
        f"{said} Use a teacher of {knows} classes, or name all {shape[1]} that it knows: ReadyTeacher(module, classes=(...)) "
        "with Teaching(classes='included')."
    )


def listed(names: Iterable[str]) -> str:
    found = list(names)
    return (", ".join(found[:LISTED]) + (", ..." if len(found) > LISTED else "")) or "none"
