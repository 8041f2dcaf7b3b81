"""A packed file is run and compared with the model it was made of before it gets its name."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frugalvit.data.finish import normalize
from frugalvit.deploy.classifier import Classifier
from frugalvit.deploy.native import PackedClassifier
from frugalvit.deploy.pack import PackedModel, packed_model
from frugalvit.deploy.packed_file import ENDING, encoded, read_packed
from frugalvit.deploy.program import Precision, SignPlace
from frugalvit.deploy.simulated import Simulation
from frugalvit.errors import DataError, SpecError, WeightsError
from frugalvit.measure.processor import usable_cores
from frugalvit.weights.files import whole

LEAST_AGREEMENT = 0.99  # of the best classes, where nobody says another share
BY_CHANCE, OF = 2, 20  # so many of few pictures may differ then, but no more than one in 20
WATCHED = 16  # pictures whose bits are compared one by one
TRIED = 100  # pictures on which a model is compared with itself in float64


@dataclass(frozen=True)
class Verification:
    """What came of comparing a packed file with its model."""

    file: str
    bytes: int
    pictures: int
    kernels: str  # who ran it: an instruction set, or simulated
    agreement: float  # share of pictures with the same best class
    logit_difference: float  # the largest
    watched: int  # pictures whose bits were compared
    signs: int  # of all one-bit activations of those
    sign_flips: int
    attended: int  # of all one-bit probabilities of those
    attended_flips: int

    @property
    def flip_rate(self) -> float:
        return self.sign_flips / max(self.signs, 1)

    @property
    def attended_rate(self) -> float:
        return self.attended_flips / max(self.attended, 1)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"sign_flip_rate": self.flip_rate, "attended_flip_rate": self.attended_rate}


def pack(
    classifier: Classifier,
    out: str | Path,
    *,
    image_BHWC: np.ndarray | None = None,
    precision: Precision = "single",
    name: str = "",
    least: float | None = None,
) -> Verification:
    """Write a binary classifier as one packed file, if that answers as the classifier does on the pictures given.

    `image_BHWC` are uint8 pictures of the model's size; without any, noise. `precision="half"` rounds positions and heads to
    16 bits. `least` is the share of pictures with the same best class below which nothing is written. Without one it is 99 %,
    and one picture may differ from 20 on, two from 40 on. An existing file is never overwritten.
    """
    out = Path(out)
    refuse_name(out)
    image_BHWC = noise_for(classifier) if image_BHWC is None else image_BHWC
    if not len(image_BHWC):
        raise DataError("no pictures to compare the answers on. Give some, or leave it out for noise.", path="image_BHWC")
    classifier = copy.deepcopy(classifier).cpu().float().eval()
    made = packed_model(classifier, name or out.stem, precision)
    found: list[Verification] = []

    def write(part: Path) -> None:
        part.write_bytes(encoded(made.packed))
        found.append(verified(part, out, made, classifier, image_BHWC, precision, least))

    whole(out, write)
    return found[0]


def refuse_name(out: Path) -> None:
    if out.suffix != ENDING:
        raise SpecError(f"packed files end in {ENDING}. Choose such a name.", path=str(out))
    if out.exists():
        raise SpecError("exists already, and nothing is overwritten. Choose another, or remove it.", path=str(out))


def noise_for(classifier: Classifier, pictures: int = 64) -> np.ndarray:
    """Pictures of colored squares of many sizes: smooth here, rough there, as pictures are."""
    image, draw = classifier.spec.model.image, np.random.default_rng(0)
    total = np.zeros((pictures, image.height, image.width, image.channels))
    side = 1
    while side <= max(image.height, image.width):
        high, wide = -(-image.height // side), -(-image.width // side)
        coarse = draw.normal(size=(pictures, high, wide, image.channels))
        total += coarse.repeat(side, 1).repeat(side, 2)[:, : image.height, : image.width]
        side *= 2
    return (128 + 40 * total).clip(0, 255).astype(np.uint8)


def verified(
    part: Path,
    out: Path,
    made: PackedModel,
    classifier: Classifier,
    image_BHWC: np.ndarray,
    precision: Precision,
    least: float | None,
) -> Verification:
    """Raise unless the file answers as the classifier does."""
    runner = PackedClassifier(part, usable_cores())
    few = image_BHWC[:WATCHED]
    reference_BC, simulated_BC, counts = compared(classifier, Simulation(read_packed(part)), made.places, few)
    packed_BC = runner.logits(image_BHWC)
    if not runner.simulated and not np.array_equal(packed_BC[: len(few)], simulated_BC):
        raise WeightsError(
            f"the runtime ({runner.kernels}) and its simulation do not give the same bits: one of them is wrong. Nothing was "
            "written. Please report it, with this model.",
            path=str(out),
        )
    reference_BC = np.concatenate([reference_BC, answers(classifier, image_BHWC[WATCHED:])])
    other = int((packed_BC.argmax(1) != reference_BC.argmax(1)).sum())
    found = Verification(
        str(out),
        part.stat().st_size,
        len(image_BHWC),
        runner.kernels,
        1 - other / len(image_BHWC),
        float(np.abs(packed_BC - reference_BC).max()),
        len(few),
        *counts,
    )
    if other > allowed(len(image_BHWC), least):
        raise WeightsError(
            f"the packed model names another class than the trained one for {other} of {len(image_BHWC)} pictures "
            f"({found.flip_rate:.2%} of its signs differ). Nothing was written. "
            f"{reason(classifier, image_BHWC, other, precision)}",
            path=str(out),
        )
    return found


def allowed(pictures: int, least: float | None) -> float:
    """How many may have another best class."""
    share = pictures * (1 - (LEAST_AGREEMENT if least is None else least)) + 1e-9  # 10 · (1 − 0.9) is below 1
    return max(min(BY_CHANCE, pictures // OF), share) if least is None else share


def reason(classifier: Classifier, image_BHWC: np.ndarray, other: int, precision: Precision) -> str:
    """Whether the model itself depends on roundings: one sign that flips early can turn many others around."""
    if other <= max(BY_CHANCE, allowed(len(image_BHWC), None)):
        return "So few can be roundings: compare on more pictures (--pictures), or accept less (--least 95)."
    few = image_BHWC[:TRIED]
    single_BC, double_BC = answers(classifier, few), answers(copy.deepcopy(classifier).double(), few)
    if precision == "half":
        whole_BC = Simulation(packed_model(classifier, "whole").packed).logits(few)
        if (whole_BC.argmax(1) != single_BC.argmax(1)).sum() <= BY_CHANCE:
            return "Without --half it would answer as trained: leave that out, train it longer, or accept less (--least 95)."
    own = int((single_BC.argmax(1) != double_BC.argmax(1)).sum())
    said = f"Computed in float64, the trained model itself changes its mind for {own} of {len(few)}"
    if own <= BY_CHANCE:
        return f"{said}, so roundings are not the reason. Please report it, with this model."
    return f"{said}: roundings decide. Train it longer, compare on real pictures (--data), or accept less (--least 95)."


# ------------------------------------------------------------------------------------------------ bit by bit


@torch.inference_mode()
def answers(classifier: Classifier, image_BHWC: np.ndarray, batch: int = 16) -> np.ndarray:
    """The trained model's logits_BC."""
    preprocess, first = classifier.preprocess, next(classifier.parameters())
    found = [np.zeros((0, len(classifier.classes)), np.float32)]
    for start in range(0, len(image_BHWC), batch):
        image_BCHW = torch.from_numpy(image_BHWC[start : start + batch]).permute(0, 3, 1, 2)
        found.append(classifier(normalize(image_BCHW, preprocess.mean, preprocess.std).to(first)).float().numpy())
    return np.concatenate(found)


def compared(
    classifier: Classifier, twin: Simulation, places: Sequence[SignPlace], image_BHWC: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int, int]]:
    """(the model's logits_BC, the program's, (signs, flipped ones, probabilities, flipped ones))."""
    counts: Counter[str] = Counter()
    trained, packed = [], []
    for picture_1HWC in np.split(image_BHWC, len(image_BHWC)):
        with bits_of(classifier.module, places) as bits:
            trained.append(answers(classifier, picture_1HWC))

        def watch(step: int, name: str, found: Tensor, bits: dict[tuple[int, str], Tensor] = bits) -> None:
            kind = name if name == "attended" else "sign"
            counts[kind] += found.numel()
            counts[f"{kind} flips"] += int((found != bits[step, name]).sum())

        packed.append(twin.logits(picture_1HWC, watch))
    found = counts["sign"], counts["sign flips"], counts["attended"], counts["attended flips"]
    return np.concatenate(trained), np.concatenate(packed), found


@contextmanager
def bits_of(module: nn.Module, places: Sequence[SignPlace]) -> Iterator[dict[tuple[int, str], Tensor]]:
    """The bits at every place of the last batch that went through the module, by step and name."""
    found: dict[tuple[int, str], Tensor] = {}

    def hook(place: SignPlace) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        shift_D = module.get_parameter(place.shift) if place.shift else None

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            x = inputs[0] if place.side == "input" else output
            found[place.step, place.name] = x > 0 if shift_D is None else x + shift_D < 0

        return keep

    hooks = [module.get_submodule(place.module).register_forward_hook(hook(place)) for place in places]
    try:
        yield found
    finally:
        for one in hooks:
            one.remove()
