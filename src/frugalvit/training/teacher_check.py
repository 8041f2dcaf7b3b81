"""Whether a teacher is worth learning from, before the first step: its accuracy on the student's validation pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frugalvit.data.finish import normalize
from frugalvit.errors import SpecError
from frugalvit.training.evaluate import Framed, measures
from frugalvit.training.teacher import Teacher
from frugalvit.training.teacher_networks import Members

NEAR_CHANCE = 2.0  # standard errors above it
ROUNDED = 0.05  # how far below 0 probabilities may be, and their sum from 1: files of 8 bits round


class WeakTeacher(SpecError):
    """A teacher that is refused: `found` says what it gets right, `learned` whether that is enough if framed for it."""

    def __init__(self, found: str, cure: str, *, top1: float, learned: bool):
        super().__init__(f"{found} {cure}", path="least")
        self.found, self.top1, self.learned = found, top1, learned


@dataclass(frozen=True)
class Checked:
    """What a teacher reaches on the student's validation pictures, in percent."""

    top1: float
    pictures: int
    note: str


def check_teacher(teacher: Teacher, framed: Framed, least: float | None = None, workers: int = 0) -> Checked:
    """Measure a teacher on a split framed for the student; refuse it below `least` percent, or near chance.

    A refusal says what it reaches on pictures framed by its own preprocessing, where that is another: whether the teacher or
    what it is shown is at fault. Those who answer together are measured one by one as well; `least` is for all of them.
    """
    assert framed.preprocess == teacher.student
    each = ""
    if isinstance(teacher.network, Members):
        members = [one for one in teacher.network.members if isinstance(one, Teacher)]
        alone = [(one, check_teacher(one, framed, None if least is None else 0.0, workers)) for one in members]
        each = f" ({', '.join(f'{one.name} {checked.top1:.1f} %' for one, checked in alone)})"
    logits_NC, labels_N = answers_and_labels(teacher, framed, workers)
    refuse_no_logits(logits_NC)
    found = dict(measures(logits_NC, labels_N))
    top1, pictures, chance = found["top1"], round(found["pictures"]), 1 / len(teacher.classes)
    said, luck = f"{top1:.1f} % of {pictures} validation pictures right", lucky(chance, pictures)
    if least is None and top1 <= luck < 100:
        own, words = own_words(teacher, framed, workers)
        raise WeakTeacher(
            f"the teacher, {teacher.name}, gets {said}; luck may get {luck:.1f} % of so many, and chance is "
            f"{100 * chance:.1f} %.{words}",
            "Are its classes in the order of the data's, and mean and std those it was trained with? --least 0 (train: "
            "teaching.least=0; Python: Teaching(..., least=0)) lets it teach nevertheless.",
            top1=top1,
            learned=own > luck,
        )
    labels_M, said_M = labels_N[labels_N >= 0], logits_NC.argmax(1)[labels_N >= 0]
    if least is None and luck < 100 and len(said_M.unique()) < 2 <= len(labels_M.unique()):
        raise WeakTeacher(
            f"the teacher, {teacher.name}, says {teacher.classes[said_M[0]]} to each of {pictures} validation pictures, which "
            f"is right for {top1:.1f} %.",
            "Are its mean and std those it was trained with? --least 0 (train: teaching.least=0; Python: Teaching(..., "
            "least=0)) lets it teach nevertheless.",
            top1=top1,
            learned=False,
        )
    if least is not None and top1 < least:
        own, words = own_words(teacher, framed, workers)
        raise WeakTeacher(
            f"the teacher, {teacher.name}, gets {said}; asked for are {least:g} %.{words}",
            "Use a better teacher, or a lower --least (train: teaching.least; Python: Teaching(..., least=...)).",
            top1=top1,
            learned=own >= least,
        )
    share = 100 * labels_M.bincount().max().item() / max(len(labels_M), 1) if len(labels_M) else 0.0
    no_better = f"; to say the most frequent class to all would be right for {share:.1f} %" if top1 <= share < 100 else ""
    return Checked(top1, pictures, f"the teacher, {teacher.name}, gets {said}{each}{no_better}")


def lucky(chance: float, pictures: int) -> float:
    """Percent that guesses of that chance may well get right: √(p (1 − p) / n) is the standard error of a share of n."""
    return 100 * (chance + NEAR_CHANCE * math.sqrt(chance * (1 - chance) / pictures))


def own_top1(teacher: Teacher, framed: Framed, workers: int = 0) -> float:
    """Its accuracy in percent on the pictures of the split framed by its own preprocessing."""
    own = Framed(framed.source, teacher.own, framed.place, framed.batch)
    return dict(measures(*answers_and_labels(teacher.answers, own, workers)))["top1"]


def own_words(teacher: Teacher, framed: Framed, workers: int) -> tuple[float, str]:
    """Its accuracy on pictures framed for it, and a sentence on that; 0 and nothing where all are framed so already."""
    if teacher.own == framed.preprocess:
        return 0.0, ""
    size, own = f"{teacher.own.height} x {teacher.own.width}", own_top1(teacher, framed, workers)
    return own, f" Of pictures framed for it, at {size} pixels, it gets {own:.1f} % right."


@torch.no_grad()
def answers_and_labels(answers: Callable[[Tensor], dict[str, Tensor]], framed: Framed, workers: int) -> tuple[Tensor, Tensor]:
    """The logits_NC in the student's order and labels_N, −1 for unreadable pictures."""
    logits, labels = [], []
    for image_BCHW, label_B in framed.batches(workers):
        said = answers(normalize(image_BCHW, framed.preprocess.mean, framed.preprocess.std))
        logits.append(said["logits"][: len(label_B)])
        labels.append(label_B)
    return torch.cat(logits).cpu(), torch.cat(labels)


def refuse_no_logits(logits_NC: Tensor) -> None:
    if not torch.isfinite(logits_NC).all():
        raise SpecError("some of the teacher's logits are no numbers. Are its weights whole?", path="teacher")
    if logits_NC.min() >= 0 and torch.allclose(logits_NC.sum(1), torch.ones(()), atol=1e-3):
        raise SpecError(
            "the teacher answers with probabilities. Say gives=probabilities: ReadyTeacher(module, gives='probabilities'), and "
            "teaching.teacher.gives=probabilities for an ONNX file.",
            path="teacher",
        )


def refuse_no_probabilities(teacher: Teacher) -> None:
    """Raise where what is said to be probabilities cannot be: by the answer to a blank picture, which needs no data."""
    for said_BC in teacher.probabilities(teacher.blank()):
        smallest, total = said_BC.min().item(), said_BC.float().sum(1).mean().item()
        if smallest < -ROUNDED or abs(total - 1) > ROUNDED:
            found = f"one is {smallest:.3g}" if smallest < -ROUNDED else f"they add up to {total:.3g}"
            raise SpecError(
                f"the teacher, {teacher.name}, is said to give probabilities, but for a blank picture {found}. If they are "
                "logits, say gives=logits: ReadyTeacher(module, gives='logits'), and teaching.teacher.gives=logits for an ONNX "
                "file. Else make them add up to 1.",
                path="gives",
            )
