"""Teachers: what they may be, and a frozen classifier that answers for its student's pictures in its student's classes."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from frugalvit.data.preprocess import Preprocess
from frugalvit.errors import SpecError
from frugalvit.nn.network import Network
from frugalvit.nn.readout import Fusion, MeanLogits, SumSoftmax, fuse, is_tap
from frugalvit.nn.shape import Size
from frugalvit.spec import shown
from frugalvit.training.adapt import Known, Seen, listed, other_logits
from frugalvit.training.devices import Place

Gives = Literal["logits", "probabilities"]
GIVE_IT = "Leave it out of the recipe, taught(recipe), and give it to the training: train(..., teacher=module)."


@dataclass(frozen=True)
class RunTeacher:
    """A classifier that this package saved: a run's folder, or whatever else `frugalvit.load` takes."""

    path: str
    size: Size | None = None  # of its pictures, positions being resampled; none: as it was trained
    classes: tuple[str, ...] = ()  # other names for its own, in the order of its logits; empty: those that it knows


@dataclass(frozen=True)
class ZooTeacher:
    """A model by name (`regnety_160`, `timm:resnet26d`, `torchvision:resnet18`) with a file of weights, or released ones.

    Without `weights`, the model's own released or pretrained ones are used, and downloaded if they must be.
    """

    model: str
    weights: str = ""  # a file, a released name, or hf-hub:owner/name
    origin: str = ""  # whose names a file has
    classes: tuple[str, ...] = ()  # names in the order of the logits; empty: those that are known
    mean: tuple[float, ...] | None = None  # none: what is known of the weights, else ImageNet's
    std: tuple[float, ...] | None = None
    size: Size | None = None
    interpolation: Literal["bicubic", "bilinear"] | None = None  # none: what is known of the weights, else bicubic


@dataclass(frozen=True)
class OnnxTeacher:
    """A classifier in an ONNX file, run by onnxruntime. Few such files say how their pictures are normalized; ours do that."""

    path: str
    mean: tuple[float, ...] | None = None  # none, as of `std`: the file says, and normalizes them itself
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] = ()  # names in the order of the logits
    size: Size | None = None  # none: the file's
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    output: str = ""  # its name, where the file has several
    gives: Gives = "logits"


OneTeacher = RunTeacher | ZooTeacher | OnnxTeacher


@dataclass(frozen=True)
class Ensemble:
    """Several teachers that answer together: the mean of their logits, or of their probabilities."""

    members: tuple[OneTeacher, ...]
    rule: Literal["mean_logits", "mean_probabilities"] = "mean_logits"

    def __post_init__(self) -> None:
        if not self.members:
            raise SpecError("nobody is in it. Name at least one teacher.", path="members")

    @property
    def fusion(self) -> Fusion:
        return MeanLogits() if self.rule == "mean_logits" else SumSoftmax()


@dataclass(frozen=True)
class GivenTeacher:
    """Whoever is given to the training: `train(recipe, teacher=module)`. A run knows that one by its fingerprint."""


TeacherSpec = RunTeacher | ZooTeacher | OnnxTeacher | Ensemble | GivenTeacher  # what may stand in `Teaching.teacher`


@dataclass(frozen=True)
class Teaching:
    """Who teaches, and what a teacher must be worth on the validation pictures."""

    teacher: TeacherSpec = GivenTeacher()
    least: float | None = None  # top-1 in percent, below which a teacher is refused; none: what chance may reach
    classes: Known = "same"  # included: the teacher may know others than the student's too, which are left out
    file: str = ""  # where its answers are kept, for pictures that look the same every time; empty: it answers live

    def __post_init__(self) -> None:
        if isinstance(self.teacher, ReadyTeacher) or callable(self.teacher):
            raise SpecError(f"a module or function is no part of a recipe, which is written as JSON. {GIVE_IT}", path="teacher")
        if isinstance(self.least, (int, float)) and not 0 <= self.least <= 100:
            raise SpecError(f"{self.least} %. Use a share between 0 and 100.", path="least")


@dataclass(frozen=True)
class ReadyTeacher:
    """A module or a function of one's own: images_BCHW, normalized by `preprocess`, to logits_BC. No part of a recipe.

    Without `preprocess` it takes the student's pictures as they are; without `classes`, theirs in the same order.
    """

    answer: nn.Module | Callable[[Tensor], Any]
    preprocess: Preprocess | None = None
    classes: tuple[str, ...] = ()
    gives: Gives = "logits"

    def __post_init__(self) -> None:
        if self.gives not in get_args(Gives):
            raise SpecError(f"{shown(self.gives)} is nothing that a teacher gives. Use logits or probabilities.", path="gives")
        if not isinstance(self.classes, (tuple, list)) or not all(isinstance(name, str) for name in self.classes):
            raise SpecError(
                f"{shown(self.classes)} is no tuple of names. Write them in the order of the logits: classes=('ant', 'bee').",
                path="classes",
            )
        if repeated := [name for name, count in Counter(self.classes).items() if count > 1]:
            raise SpecError(f"several are called {listed(repeated)}. Give each a name of its own.", path="classes")


class Teacher(nn.Module):
    """A frozen classifier, opened: from a student's pictures, augmented and mixed, to answers in the student's classes.

    `network` maps its own input to a dict of heads and taps. It stays in evaluation mode whatever is asked of it, and no
    gradient reaches it. On CUDA it computes in the training's precision, elsewhere in fp32.
    """

    order_C: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        own: Preprocess,
        student: Preprocess,
        classes: tuple[str, ...],
        place: Place,
        *,
        name: str,
        knows: int,
        order: tuple[int, ...] | None = None,
        fusion: Fusion = MeanLogits(),
        notes: Sequence[str] = (),
    ):
        super().__init__()
        self.network = network
        self.seen = Seen(student, own)
        self.own, self.student = own, student
        self.classes = classes  # the student's, which the answers are in the order of
        self.knows = knows  # classes of its own
        self.order = order  # where the student's lie among them; none: in their places
        self.fusion = fusion
        self.name = name
        self.notes = tuple(notes)  # what is worth a word before it teaches
        self.captured = bool(getattr(network, "captured", True))  # whether a CUDA graph may hold it
        self.kind = place.device.type
        rounded = self.kind == "cuda" and place.precision != "fp32"
        self.precision = (torch.float16 if place.precision == "fp16" else torch.bfloat16) if rounded else None
        self.register_buffer("order_C", None if order is None else torch.tensor(order), persistent=False)
        self.requires_grad_(requires_grad=False)
        self.to(place.device).eval()

    def train(self, mode: bool = True) -> Self:
        """Nothing but evaluation mode, so that a student's `train()` cannot reach its norms and dropout."""
        return super().train(mode=False)

    def forward(self, image_BCHW: Tensor) -> dict[str, Tensor]:
        """The "logits" in fp32 and the taps, by their names, of pictures as the student gets them."""
        with torch.no_grad(), torch.autocast(self.kind, enabled=False):
            seen_BCHW = self.seen(image_BCHW)
        return self.answers(seen_BCHW)

    def answers(self, own_BCHW: Tensor) -> dict[str, Tensor]:
        """The same of pictures that are of its own size and normalized its own way."""
        with torch.no_grad():
            with torch.autocast(self.kind, self.precision, enabled=self.precision is not None):
                outputs = self.network(own_BCHW)
            taps = {name: value for name, value in outputs.items() if is_tap(name)}
            logits_BC = fuse({name: value.float() for name, value in outputs.items() if name not in taps}, self.fusion)
            if logits_BC.shape != (len(own_BCHW), self.knows):
                raise SpecError(other_logits(tuple(logits_BC.shape), len(own_BCHW), self.knows), path=self.name)
            return {"logits": logits_BC if self.order_C is None else logits_BC.index_select(1, self.order_C)} | taps

    def blank(self) -> Tensor:
        """A picture of zeros, as the student gets its own."""
        size = (len(self.student.mean), self.student.height, self.student.width)
        return torch.zeros(1, *size, device=self.seen.mean_s.device)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all answers, without the batch's axis, from one blank picture."""
        return {name: tuple(value.shape[1:]) for name, value in self(self.blank()).items()}

    @torch.no_grad()
    def probabilities(self, image_BCHW: Tensor) -> list[Tensor]:
        """What is said to be probabilities, each head_BC before its logarithm is taken; nothing where it gives logits."""
        if getattr(self.network, "gives", "logits") == "logits":
            return []
        raw: Any = copy.copy(self.network)
        raw.gives = "logits"  # these are left as they are
        with torch.autocast(self.kind, self.precision, enabled=self.precision is not None):
            return list(raw(self.seen(image_BCHW)).values())

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with its weights, its model, pictures or classes, on every machine the same.

        What code of the user's computes shows in its answers alone.
        """
        every = [one for one in self.modules() if isinstance(one, Teacher)]
        said = [(one.own, one.student, one.classes, one.order, one.fusion, known(one.network)) for one in every]
        return digest_of(self.state_dict(), repr(told(tuple(said))))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of its own pictures."""
        return self.own.height, self.own.width

    @property
    def mean(self) -> tuple[float, ...]:
        return self.own.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.own.std

    @property
    def interpolation(self) -> str:
        return self.own.interpolation


def known(network: nn.Module) -> Any:
    """What tells a network from others with the same weights."""
    return told(network.spec) if isinstance(network, Network) else getattr(network, "known", type(network).__qualname__)


def told(value: Any) -> Any:
    """A spec without what is as by default: fields that come with later versions then change nothing."""
    if isinstance(value, tuple):
        return [told(one) for one in value]
    if not dataclasses.is_dataclass(value):
        return value
    defaults = {one.name: one.default for one in dataclasses.fields(value)}
    given = {name: getattr(value, name) for name in defaults}
    return [type(value).__name__, {name: told(one) for name, one in given.items() if one != defaults[name]}]


def digest_of(tensors: Mapping[str, Tensor], more: str = "") -> str:
    """Sixteen hexadecimal digits of names, values and a text."""
    digest = hashlib.blake2b(more.encode(), digest_size=8)
    for name, value in tensors.items():
        digest.update(name.encode() + value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
