"""A classifier as one ONNX file, from pixels to logits, for onnxruntime and whatever else reads the format."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import frugalvit
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier
from frugalvit.deploy.packable import refuse_unpackable
from frugalvit.deploy.verify import answers, noise_for
from frugalvit.errors import FrugalError, SpecError, WeightsError, first_line
from frugalvit.measure.onnx_file import Missing, Predict, onnx_runtime, package, refuse_without_exporter, write_onnx
from frugalvit.measure.processor import usable_cores
from frugalvit.nn.linear import Fp8Linear
from frugalvit.nn.quantize import OneBit
from frugalvit.nn.readout import word_for
from frugalvit.weights.files import whole

ENDING = ".onnx"
KEY = "frugalvit"  # of the JSON among the file's metadata_props
FORMAT = 1
LARGEST = 2**31 - 2**24  # bytes of weights: protobuf ends at 2 GiB, and the graph needs some
TOLERANCE = 1e-3  # of the logits' spread
FLIPPED = 3  # times what roundings do to a model of one bit is what they may do here
NEAR = 4  # times that inputs are moved, to see what roundings do
BATCHES = (1, 3)  # pictures that the file answers for at a time, when it is compared


@dataclass(frozen=True)
class Exported:
    """What came of writing an ONNX file."""

    file: str
    bytes: int
    head: str  # who answers in it
    difference: float | None  # the largest between its logits and PyTorch's; none: onnxruntime is not installed
    notes: tuple[str, ...] = ()


def export_onnx(classifier: Classifier, file: str | Path, head: str = "") -> Exported:
    """Write a classifier as an ONNX file, if onnxruntime answers by it as PyTorch does; unchecked where that is missing.

    The file maps `image`, float32 [batch, channels, height, width] of pixels / 255, to `logits` [batch, classes]: (x − mean) /
    std and the fusing of heads are inside. `head` is whose answer it gives: a head's name, mean or softmax; empty: as the
    classifier has it. An existing file is never overwritten.
    """
    file = Path(file)
    refuse_name(file)
    refuse_without_exporter()
    classifier = copy.deepcopy(classifier.reading(head) if head else classifier).cpu().float().eval()
    refuse_parts(classifier)
    found: list[tuple[float | None, str]] = []

    def write(part: Path) -> None:
        traced(classifier, part)
        found.append(compared(classifier, part, file))

    whole(file, write)
    difference, note = found[0]
    notes = tuple(one for one in (note_on_bits(classifier), note) if one)
    return Exported(str(file), file.stat().st_size, head_of(classifier), difference, notes)


def head_of(classifier: Classifier) -> str:
    """Who answers, in a word: the only head, or the rule. Of one head the mean is itself, and a softmax is not."""
    heads, word = classifier.spec.model.heads, word_for(classifier.spec.fusion)
    return heads[0] if len(heads) == 1 and word == "mean" else word


def refuse_name(file: Path) -> None:
    if file.suffix != ENDING:
        raise SpecError(f"ONNX files end in {ENDING}. Choose such a name.", path=str(file))
    if file.exists():
        raise SpecError("exists already, and nothing is overwritten. Choose another, or remove it.", path=str(file))


def refuse_parts(classifier: Classifier) -> None:
    """Raise where a part has no form in ONNX, or there is too much of them."""
    if any(isinstance(one, Fp8Linear) for one in classifier.modules()):
        raise SpecError(
            "products of 8-bit floats (+fp8_linears) have no form in ONNX. Go on training the model without them, from its "
            "weights (frugalvit train RECIPE --init FOLDER), and export that.",
            path="model",
        )
    size = sum(value.numel() * value.element_size() for value in classifier.state_dict().values())
    if size > LARGEST:
        raise SpecError(f"{size / 1e9:.1f} GB of weights. An ONNX file holds 2 GB at most.", path="model")


def note_on_bits(classifier: Classifier) -> str:
    if not is_one_bit(classifier):
        return ""
    said = "its parts of one bit are simulated in floats: the file is no smaller and no faster than others of its size"
    try:
        refuse_unpackable(classifier.spec, classifier.module.shapes)
    except SpecError:
        return f"{said}."
    return f"{said}. `frugalvit pack` writes one that is."


def is_one_bit(classifier: Classifier) -> bool:
    return any(isinstance(one, OneBit) for one in classifier.modules())


# ------------------------------------------------------------------------------------------------ writing


class FromPixels(nn.Module):
    """A classifier that normalizes its pictures itself."""

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(self, classifier: Classifier):
        super().__init__()
        self.classifier = classifier
        for name, values in (("mean_C11", classifier.preprocess.mean), ("std_C11", classifier.preprocess.std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32)[:, None, None])

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        return self.classifier((pixels_BCHW - self.mean_C11) / self.std_C11)


def traced(classifier: Classifier, part: Path) -> None:
    image = classifier.spec.model.image
    two_BCHW = torch.zeros(2, image.channels, image.height, image.width)  # one picture would be a file for one
    metadata = {KEY: json.dumps(description(classifier))}
    try:
        write_onnx(FromPixels(classifier), two_BCHW, part, "any", metadata)
    except (FrugalError, OSError):
        raise
    except Exception as error:  # the exporter's have no common class, and parts of the user's fail in any way
        raise SpecError(f"PyTorch's exporter cannot write this model as ONNX ({reason(error)}).", path="model") from error


def description(classifier: Classifier) -> dict[str, object]:
    """What the file says of itself: how to make its input of a picture, and what its output means."""
    return {
        "format": FORMAT,
        "frugalvit": frugalvit.__version__,
        "input": "pixels / 255, channels first; (x - mean) / std is part of the graph",
        "preprocess": asdict(classifier.preprocess),
        "classes": classifier.classes,
        "head": head_of(classifier),
    }


def read_description(file: Path) -> dict[str, Any] | None:
    """What a file says of itself; None where `export_onnx` did not write it. It needs onnxruntime."""
    runtime = package("onnxruntime", "onnx")
    try:
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        raise WeightsError(f"onnxruntime cannot read it ({reason(error)}).", path=str(file)) from error
    text = session.get_modelmeta().custom_metadata_map.get(KEY)
    if text is None:
        return None
    try:
        told = json.loads(text)
        Preprocess(**told["preprocess"])
        named = all(isinstance(name, str) for name in told["classes"])
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsError(f"what it says of its pictures cannot be read ({reason(error)}).", path=str(file)) from error
    if not named:
        raise WeightsError("its classes have no names.", path=str(file))
    return told


def reason(error: BaseException) -> str:
    """The first line of what was wrong at first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


# ------------------------------------------------------------------------------------------------ comparing


def compared(classifier: Classifier, part: Path, file: Path) -> tuple[float | None, str]:
    """The largest difference of logits, and a word on it; an error where it is no rounding, none without onnxruntime."""
    image_BHWC = noise_for(classifier, sum(BATCHES))
    wanted_BC = answers(classifier, image_BHWC)
    try:
        found_BC = in_batches(onnx_runtime(part, usable_cores()), image_BHWC)
    except Missing:
        return None, "the file was not checked: onnxruntime is not installed (pip install 'frugalvit[onnx]')."
    except Exception as error:  # its errors have no common class
        raise WeightsError(f"onnxruntime cannot run it ({reason(error)}). Nothing was written.", path=str(file)) from error
    difference, spread = float(np.abs(found_BC - wanted_BC).max()), float(wanted_BC.max() - wanted_BC.min())
    if difference <= TOLERANCE * spread + 1e-6:
        return difference, ""
    own = own_difference(classifier, image_BHWC, wanted_BC) if is_one_bit(classifier) else 0.0
    if difference <= FLIPPED * own:
        return difference, f"roundings turn signs around, and move the logits of the model itself by up to {own:.2g}."
    raise WeightsError(
        f"onnxruntime's logits differ from PyTorch's by up to {difference:.2g}, where they spread over {spread:.2g}. "
        "Nothing was written. Please report it, with this model.",
        path=str(file),
    )


def own_difference(classifier: Classifier, image_BHWC: np.ndarray, wanted_BC: np.ndarray) -> float:
    """How far roundings move a model's own logits by turning signs around: in float64, and by inputs about 1e-6 off."""
    found = [answers(copy.deepcopy(classifier).double(), image_BHWC)]
    for seed in range(NEAR):
        draw, near = torch.Generator().manual_seed(seed), copy.deepcopy(classifier)

        def off(_: nn.Module, inputs: tuple[Tensor, ...], draw: torch.Generator = draw) -> tuple[Tensor, ...]:
            return inputs[0] + 1e-6 * torch.randn(inputs[0].shape, generator=draw), *inputs[1:]

        near.module.register_forward_pre_hook(off)
        found.append(answers(near, image_BHWC))
    return max(float(np.abs(one - wanted_BC).max()) for one in found)


def in_batches(predict: Predict, image_BHWC: np.ndarray) -> np.ndarray:
    pixels_BCHW = np.ascontiguousarray(image_BHWC.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255)
    parts = np.split(pixels_BCHW, np.cumsum(BATCHES)[:-1])
    return np.concatenate([predict(part) for part in parts])
