"""Where a distilled student stands between its teacher and a student without one (Touvron et al. 2021, table 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from frugalvit.beginning import opened, opened_teacher
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.source import Source
from frugalvit.deploy.classifier import load
from frugalvit.deploy.export import read_description
from frugalvit.errors import DataError, WeightsError, at
from frugalvit.explain.agreement import disagreement, places_of
from frugalvit.nn.readout import fuse
from frugalvit.recipes.teach import taught
from frugalvit.studies.distillation import refuse_distilled
from frugalvit.studies.ledger import Entry, key_of
from frugalvit.studies.study import Claim, Spot, Study
from frugalvit.studies.trainings import Setup, trained
from frugalvit.training.devices import Place, place_for
from frugalvit.training.evaluate import Framed, heads_and_labels
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import OnnxTeacher, Teacher, TeacherSpec, Teaching
from frugalvit.training.teacher_check import answers_and_labels, refuse_no_logits

NAMES = TRUTH, TEACHER, ALONE, CLASS, DISTILL, BOTH = (
    "ground truth",
    "teacher",
    "no distillation",
    "class",
    "distill",
    "both",
)
TABLE_4 = (  # of the paper, in this order: on ImageNet, RegNetY-16GF and DeiT-B
    (0.000, 0.171, 0.182, 0.170, 0.169, 0.166),
    (0.171, 0.000, 0.133, 0.112, 0.100, 0.102),
    (0.182, 0.133, 0.000, 0.109, 0.110, 0.107),
    (0.170, 0.112, 0.109, 0.000, 0.050, 0.033),
    (0.169, 0.100, 0.110, 0.050, 0.000, 0.019),
    (0.166, 0.102, 0.107, 0.033, 0.019, 0.000),
)
CLAIMS = (
    Claim("class differs more from the teacher than distill", (TEACHER, CLASS), (TEACHER, DISTILL), "+0.012"),
    Claim("without distillation a student differs more from the teacher", (TEACHER, ALONE), (TEACHER, BOTH), "+0.031"),
    Claim("distill differs more from a student without distillation than class", (ALONE, DISTILL), (ALONE, CLASS), "+0.001"),
)
MATRIX = "disagreement"


def disagreements(student: Recipe, teacher: TeacherSpec, setup: Setup) -> Study:
    """Table 4: the share of pictures on which teacher, plain student and the heads of a distilled one differ, pair by pair.

    It is of the trainings none and token of the ablation, seed by seed where both have been measured; it trains nothing. With
    `setup.only`, unless that names `disagreement`, nothing is compared either that has not been.
    """
    refuse_distilled(student)
    distilled = taught(student, Teaching(teacher), "token")
    entries = trained({"none": student, "token": distilled}, replace(setup, only=()))
    ledger, sources, place = setup.ledger, opened(student, setup.data), place_for(setup.device, "fp32")
    pictures = sources[setup.split]
    heard: tuple[Teacher, np.ndarray] | None = None  # once for all seeds
    values: dict[Spot, dict[int, float]] = {(row, column): {} for row in NAMES for column in NAMES}
    for seed, alone in entries["none"].items():
        if seed not in entries["token"]:
            continue
        token = entries["token"][seed]
        key = key_of(MATRIX, setup.split, alone.key, token.key)
        found = ledger.find(key, seed)
        if found is None and setup.only is not None and MATRIX not in setup.only:
            continue
        if found is None:
            heard = heard or teacher_of(distilled, sources, pictures, place)
            refuse_another(heard[0], token.teacher, token.folder)
            runs = {ALONE: Path(alone.folder), BOTH: Path(token.folder)}
            results = shares(heard[1], runs, pictures, place)
            found = Entry(MATRIX, key, seed, results, teacher=token.teacher, where=setup.where)
            ledger.add([found])
        for (row, column), cell in values.items():
            cell[seed] = found.results[f"{row} / {column}"]
    return Study(
        title="Who differs from whom (DeiT, table 4)",
        about=f"The share of {len(pictures)} pictures ({setup.split}) on which two choose different classes, in fp32: mean ± "
        "sample deviation over n seeds of the students; the teacher is one.",
        rows=NAMES,
        columns=NAMES,
        values=values,
        claims=CLAIMS,
        paper=tuple(
            {"ImageNet": name} | {other: f"{share:.3f}" for other, share in zip(NAMES, row, strict=True)}
            for name, row in zip(NAMES, TABLE_4, strict=True)
        ),
        digits=3,
    )


def teacher_of(distilled: Recipe, sources: Mapping[str, Source], pictures: Source, place: Place) -> tuple[Teacher, np.ndarray]:
    """The teacher of a training, opened as that opens it, and its guess_N."""
    teacher = opened_teacher(distilled, sources, place)
    assert teacher is not None and distilled.teaching is not None
    framed = Framed(pictures, own_frames(distilled.teaching.teacher, teacher), place)
    return teacher, teacher_and_labels(teacher, framed)[0]


def refuse_another(teacher: Teacher, was: str, student: str) -> None:
    """Raise where the teacher that taught had another fingerprint: what lies at its path, or has its name, may change."""
    if was and was != (now := teacher.fingerprint()):
        raise WeightsError(
            f"is another network than the one that taught {student}: teacher_fingerprint was {was}, now {now}. Put that one "
            "back.",
            path=teacher.name,
        )


def own_frames(spec: TeacherSpec, teacher: Teacher) -> Preprocess:
    """The teacher's own preprocessing, by which it is at its best; an ensemble sees what its student does.

    `OnnxTeacher` has no crop: it is the one that the file tells, else the student's.
    """
    if not isinstance(spec, OnnxTeacher):
        return teacher.own
    told = read_description(Path(spec.path))
    return replace(teacher.own, crop=told["preprocess"]["crop"] if told else teacher.student.crop)


def teacher_and_labels(teacher: Teacher, framed: Framed, workers: int = 0) -> tuple[np.ndarray, Tensor]:
    """The guess_N among its student's classes for pictures framed as its own, and labels_N, −1 for unreadable pictures."""
    logits_NC, labels_N = answers_and_labels(teacher.answers, framed, workers)
    with at(teacher.name):
        refuse_no_logits(logits_NC)
    return logits_NC.argmax(-1).numpy(), labels_N


def shares(teacher_N: np.ndarray, folders: Mapping[str, Path], pictures: Source, place: Place) -> dict[str, float]:
    """The disagreement of each pair, by both their names."""
    found = {name: guesses(folder, pictures, place) for name, folder in folders.items()}
    everyone = {TEACHER: teacher_N, ALONE: found[ALONE][BOTH]} | found[BOTH]
    matrix = disagreement({name: everyone[name] for name in NAMES})
    return {f"{row} / {column}": matrix.between(row, column) for row in NAMES for column in NAMES}


def guesses(folder: Path, pictures: Source, place: Place) -> dict[str, np.ndarray]:
    """The class_N that each head of a run chooses, that all of them choose together, and the true one; −1 for unreadable."""
    if not folder.exists():
        raise DataError("the run is gone, and its predictions with it. Copy it back, or train it again.", path=str(folder))
    classifier = load(folder, device=place.device)
    with at(str(folder)):
        places_C = places_of(classifier.classes, pictures.classes)
    heads, labels_N = heads_and_labels(classifier.module, Framed(pictures, classifier.preprocess, place))
    heads |= {BOTH: fuse(heads, classifier.spec.fusion)}
    return {TRUTH: labels_N.numpy()} | {name: places_C[logits_NC.argmax(-1).numpy()] for name, logits_NC in heads.items()}
