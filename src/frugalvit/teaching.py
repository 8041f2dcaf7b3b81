"""Opening teachers: from a description, or from something ready-made, to a frozen module that answers for a student."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.adopt import imagenet_names, preprocess_of
from frugalvit.deploy.adopt import known as known_release
from frugalvit.deploy.classifier import Classifier, ClassifierSpec, read_spec, weights_file
from frugalvit.deploy.export import read_description
from frugalvit.errors import NOTICING, FrugalError, SpecError, WeightsNotice, at
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.network import Network
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.readout import Fusion, MeanLogits
from frugalvit.nn.shape import pair
from frugalvit.spec import check, shown, swap
from frugalvit.training.adapt import Known, class_order
from frugalvit.training.devices import Place
from frugalvit.training.teacher import (
    Ensemble,
    GivenTeacher,
    OneTeacher,
    OnnxTeacher,
    ReadyTeacher,
    RunTeacher,
    Teacher,
    TeacherSpec,
    ZooTeacher,
)
from frugalvit.training.teacher_check import refuse_no_probabilities
from frugalvit.training.teacher_networks import Answering, Members, OnnxNetwork, copied
from frugalvit.weights.fetch import Fetched, fetch, fetch_released
from frugalvit.weights.load import ORIGINS, load_weights
from frugalvit.weights.pretrained import Pretrained, pretrained
from frugalvit.zoo.change import resized
from frugalvit.zoo.find import model as zoo_model

NAMELESS = "its classes have no names; they are taken to be the student's, in the same order"

Openable = OneTeacher | Ensemble | ReadyTeacher | Classifier
Given = TeacherSpec | ReadyTeacher | Classifier | nn.Module | Callable[[Tensor], Any]  # what a user may give


@dataclass(frozen=True, eq=False)
class Found:
    """A teacher as its source has it, before it meets a student."""

    network: nn.Module
    preprocess: Preprocess
    classes: tuple[str, ...]  # empty: as many as the student's, and nobody knows their names
    name: str
    fusion: Fusion = MeanLogits()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Student:
    """Whom to teach, where, and what a teacher may be made of."""

    preprocess: Preprocess
    classes: tuple[str, ...]
    place: Place
    known: Known
    parts: tuple[type, ...]


def open_teacher(
    teacher: Given,
    student: Preprocess,
    classes: tuple[str, ...],
    place: Place,
    *,
    taps: tuple[str, ...] = (),
    known: Known = "same",
    parts: Iterable[type] = (),
) -> Teacher:
    """The teacher on its device, for a student of those pictures and classes. It has answered for a blank picture.

    `taps` add tensors of our own models to the answers; `known="included"` lets it know more classes than the student;
    `parts` are the user's own spec classes that a saved classifier contains.
    """
    with at("teacher"):
        return opened(recognized(teacher), Student(student, classes, place, known, tuple(parts)), taps)


def recognized(teacher: Given) -> Openable:
    """A bare module or function as one that takes the student's pictures and knows its classes."""
    if isinstance(teacher, (ReadyTeacher, Classifier)):
        return teacher
    if callable(teacher) and not isinstance(teacher, type):
        return ReadyTeacher(teacher)
    if isinstance(teacher, GivenTeacher):
        raise SpecError(
            "the recipe leaves its teacher to the training, and none is given. Say train(recipe, teacher=module), or name "
            "one in the recipe: Teaching(RunTeacher('runs/teacher')), teaching.teacher=RunTeacher(runs/teacher)."
        )
    if not isinstance(teacher, TeacherSpec):
        raise SpecError(
            f"{shown(teacher)} is no teacher. Give a module or a function (images_BCHW to logits_BC), ReadyTeacher(module, "
            "preprocess, classes), a classifier (frugalvit.load('runs/teacher')), RunTeacher, ZooTeacher, OnnxTeacher or "
            "Ensemble."
        )
    check(teacher, TeacherSpec)
    return teacher


def opened(teacher: Openable, student: Student, taps: tuple[str, ...]) -> Teacher:
    if not isinstance(teacher, Ensemble):
        return answering(look_up(teacher, student, taps), student)
    refuse_taps(taps, "an ensemble")
    members = []
    for index, one in enumerate(teacher.members):
        with at(f"members[{index}]"):
            members.append(opened(one, student, ()))
    notes = tuple(f"{one.name}: {note}" for one in members for note in one.notes)
    name = f"an ensemble of {len(members)}"
    return answering(Found(Members(members), student.preprocess, student.classes, name, teacher.fusion, notes), student)


def look_up(teacher: OneTeacher | ReadyTeacher | Classifier, student: Student, taps: tuple[str, ...]) -> Found:
    match teacher:
        case RunTeacher():
            return saved(teacher, taps, student.parts)
        case ZooTeacher():
            return named(teacher, len(student.classes), taps)
        case OnnxTeacher():
            refuse_taps(taps, "an ONNX file")
            return exported(teacher, len(student.classes), student.place)
        case Classifier():
            module, notes = filled(teacher.spec.model, teacher.module.state_dict(), "frugalvit", taps)
            return Found(module, teacher.preprocess, teacher.classes, "a classifier", teacher.spec.fusion, notes)
        case _:
            refuse_taps(taps, "a module or function of your own")
            return ready(teacher, student.preprocess)


def answering(found: Found, student: Student) -> Teacher:
    """The teacher that a found one becomes for a student."""
    theirs, words = in_words_of(found.classes, student.classes) if found.classes else (student.classes, NAMELESS)
    with at("classes"):
        order, note = class_order(theirs, student.classes, student.known)
    teacher = Teacher(
        found.network,
        found.preprocess,
        student.preprocess,
        student.classes,
        student.place,
        name=found.name,
        knows=len(theirs),
        order=order,
        fusion=found.fusion,
        notes=[one for one in (*found.notes, words, note) if one],
    )
    try:
        teacher.shapes()
        refuse_no_probabilities(teacher)
    except FrugalError:
        raise
    except Exception as error:  # a module of the user's can fail in any way
        size = f"{len(found.preprocess.mean)} x {found.preprocess.height} x {found.preprocess.width}"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise SpecError(f"it fails on a blank picture of {size} ({reason}).", path=found.name) from error
    return teacher


def refuse_taps(taps: tuple[str, ...], what: str) -> None:
    if taps:
        raise SpecError(f"{what} has no places to tap: {', '.join(taps)}. Use a teacher of ours.", path="taps")


def in_words_of(theirs: tuple[str, ...], ours: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """ImageNet's words under its WordNet ids, which all published weights are sorted by, where the student has these."""
    ids = len(ours) == 1000 and ours == tuple(sorted(ours)) and all(name[:1] == "n" and name[1:].isdigit() for name in ours)
    if ids and theirs == imagenet_names():
        return ours, "ImageNet's classes: the teacher's words are taken to be in the order of the data's WordNet ids"
    return theirs, ""


# ------------------------------------------------------------------------------------------------ where they come from


def filled(
    model: Architecture, weights: Path | Mapping[str, Tensor], origin: str, taps: tuple[str, ...]
) -> tuple[Network, tuple[str, ...]]:
    """The module with all its weights, and a word on those that were resampled. A fresh head teaches nothing."""
    module = model.build(taps=taps, seed=0)
    with NOTICING, warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightsNotice)  # it is returned
        done = load_weights(module, dict(weights) if isinstance(weights, Mapping) else weights, origin)
    if done.fresh:
        raise SpecError(f"{' '.join(done.fresh)} Name the teacher's classes, all that its weights know.", path="classes")
    return module, (str(done),) if str(done) else ()


def refuse_other_count(names: tuple[str, ...], count: int, classes: int) -> None:
    """Names for all that the weights know, or as many classes as the student has."""
    if names and len(names) != count:
        raise SpecError(f"{len(names)} names for a teacher of {count} classes.", path="classes")
    if not names and count != classes:
        cure = "Name them." if count > classes else "Use one that knows all of the student's."
        raise SpecError(f"the teacher has {count} classes without names, the student {classes}. {cure}", path="classes")


def saved(teacher: RunTeacher, taps: tuple[str, ...], parts: Iterable[type]) -> Found:
    """A classifier of ours, at another size where one is given."""
    path = Path(teacher.path)
    spec = read_spec(path, parts)
    if teacher.size is not None:
        height, width = pair(teacher.size)
        pictures = replace(spec.preprocess, height=height, width=width)
        spec = ClassifierSpec(resized(spec.model, teacher.size), pictures, spec.classes, spec.fusion)
    if len(teacher.classes) not in (0, len(spec.classes)):
        raise SpecError(f"{len(teacher.classes)} names for a teacher of {len(spec.classes)} classes.", path="classes")
    module, notes = filled(spec.model, weights_file(path), "frugalvit", taps)
    return Found(module, spec.preprocess, teacher.classes or spec.classes, teacher.path, spec.fusion, notes)


def named(teacher: ZooTeacher, classes: int, taps: tuple[str, ...]) -> Found:
    """A model of the zoo, of timm or of torchvision. Where nobody says how many classes its weights know: the student's."""
    library, _, inner = teacher.model.partition(":")
    told = pretrained(library, inner) if inner else None
    fetched = weights_of(teacher, told)
    origin = teacher.origin or fetched.origin or (library if inner else "")
    if not origin:
        raise SpecError(f"whose names has {fetched.path}? One of: {', '.join(ORIGINS)}.", path="origin")
    count = len(teacher.classes) or fetched.classes or classes
    names = teacher.classes or (fetched.names if len(fetched.names) == count else ())
    if not names and count == len(imagenet_names()):
        names = imagenet_names()
    refuse_other_count(names, count, classes)
    size = teacher.size or (told.size if told and not teacher.weights else None)
    with at("model"):
        name = teacher.model if inner else teacher.model.partition(".")[0]
        model = zoo_model(name, image=size, channels=len(teacher.mean) if teacher.mean else None, classes=count)
    if fetched.eps is not None:
        norm = LayerNorm(fetched.eps)
        model = swap(model, LayerNorm, lambda _: norm)
    module, notes = filled(model, fetched.path, origin, taps)
    pictures = preprocess_of(model, fetched.released or known_release(name))
    pictures = replace(pictures, mean=teacher.mean or pictures.mean, std=teacher.std or pictures.std)
    interpolation = teacher.interpolation or (told.interpolation if told else pictures.interpolation)
    pictures = replace(pictures, interpolation=interpolation)
    return Found(module, pictures, names, teacher.model, notes=notes)


def weights_of(teacher: ZooTeacher, told: Pretrained | None) -> Fetched:
    """The file that is named, else what the model's authors or its library have released."""
    if teacher.weights:
        fetched = fetch(teacher.weights)
        return replace(fetched, released=fetched.released or (told.released if told else None))
    return told.fetch() if told else fetch_released(teacher.model)


def described(teacher: OnnxTeacher) -> OnnxTeacher:
    """With what a file that we wrote says of its pictures and classes."""
    if teacher.mean is not None and teacher.std is not None:
        return teacher
    told = read_description(Path(teacher.path))
    if told is None:
        cure = "Say mean and std, as in teaching.teacher.mean=0.5,0.5,0.5 teaching.teacher.std=0.5,0.5,0.5"
        raise SpecError(f"{teacher.path} does not say how its pictures are normalized. {cure}.", path="mean")
    channels, interpolation = len(told["preprocess"]["mean"]), told["preprocess"]["interpolation"]
    classes = teacher.classes or tuple(told["classes"])
    return replace(teacher, mean=(0.0,) * channels, std=(1.0,) * channels, classes=classes, interpolation=interpolation)


def exported(given: OnnxTeacher, classes: int, place: Place) -> Found:
    teacher = described(given)
    assert teacher.mean is not None and teacher.std is not None
    network = OnnxNetwork(Path(teacher.path), place, teacher.output, teacher.gives)
    fixed = (network.height, network.width)
    wanted = pair(teacher.size) if teacher.size else fixed
    height, width = (given or own for given, own in zip(wanted, fixed, strict=True))
    if height is None or width is None:
        raise SpecError("the file takes pictures of any size. Say which, as in size=224.", path="size")
    if any(own not in (None, side) for own, side in zip(fixed, (height, width), strict=True)):
        raise SpecError(f"{height} x {width} for a file that takes {fixed[0]} x {fixed[1]}. Leave it out.", path="size")
    if network.channels not in (None, len(teacher.mean)):
        raise SpecError(f"{len(teacher.mean)} means for a file of {network.channels} channels.", path="mean")
    refuse_other_count(teacher.classes, network.classes or len(teacher.classes) or classes, classes)
    pictures = Preprocess(height, width, teacher.mean, teacher.std, interpolation=teacher.interpolation)
    return Found(network, pictures, teacher.classes, teacher.path)


def ready(teacher: ReadyTeacher, student: Preprocess) -> Found:
    """A copy of the user's module, so that theirs is neither frozen nor moved; a function as it is."""
    answer: nn.Module | Callable[[Tensor], object] = teacher.answer
    name = type(answer).__name__ if isinstance(answer, nn.Module) else getattr(answer, "__name__", type(answer).__name__)
    network = Answering(copied(answer, name) if isinstance(answer, nn.Module) else answer, teacher.gives)
    return Found(network, teacher.preprocess or student, tuple(teacher.classes), name)
