"""What can stand inside a teacher beside our own models: other teachers, modules and functions of the user's, ONNX files."""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from frugalvit.errors import SpecError, WeightsError, brief, suggestion
from frugalvit.nn.foreign import imported
from frugalvit.training.devices import Place
from frugalvit.training.teacher import Gives, Teacher, digest_of


class Members(nn.Module):
    """The teachers of an ensemble, each as a head of its own."""

    def __init__(self, members: Sequence[Teacher]):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.captured = all(one.captured for one in members)

    def forward(self, image_BCHW: Tensor) -> dict[str, Tensor]:
        return {f"member_{place}": one(image_BCHW)["logits"] for place, one in enumerate(self.members)}


class Answering(nn.Module):
    """A module or a function of the user's that returns logits, or an object or a dict that holds them."""

    def __init__(self, answer: nn.Module | Callable[[Tensor], Any], gives: Gives = "logits"):
        super().__init__()
        self.answer = answer
        self.gives = gives
        self.captured = isinstance(answer, nn.Module)  # nobody knows what a function does

    @property
    def known(self) -> tuple[str, ...]:
        """What its fingerprint has beside its weights."""
        return self.gives, layers_of(self.answer) if isinstance(self.answer, nn.Module) else code_of(self.answer)

    def forward(self, image_BCHW: Tensor) -> dict[str, Tensor]:
        said = self.answer(image_BCHW.clone())  # the student's own, which code of the user's may work on in place
        said = getattr(said, "logits", said)  # as HF transformers and torchvision's Inception have it
        heads = said if isinstance(said, Mapping) else {"class": said}
        if not heads or not all(isinstance(value, Tensor) for value in heads.values()):
            raise SpecError(f"it answers with {type(said).__name__}. Return a tensor of logits, or a dict of them.")
        return {name: as_logits(value.to(image_BCHW.device), self.gives) for name, value in heads.items()}


def copied(module: nn.Module, name: str) -> nn.Module:
    """A copy, so that the user's own is neither frozen nor moved."""
    try:
        with torch.no_grad():  # so that parameters of scripted modules stay parameters
            return copy.deepcopy(module)
    except Exception as error:  # a module of the user's may hold anything
        cure = "Give a function that calls it, in evaluation mode: teacher=lambda image_BCHW: module(image_BCHW)."
        raise SpecError(f"it cannot be copied ({brief(error)}). {cure}", path=name) from error


def layers_of(module: nn.Module) -> str:
    """A module's class, its layers and the buffers that are not saved: what its weights do not tell."""
    saved = module.state_dict()
    beside = {name: value for name, value in module.named_buffers() if name not in saved}
    words = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module))  # addresses change from process to process
    return f"{type(module).__qualname__} {words} {digest_of(beside)}"


def code_of(function: Callable[..., Any]) -> str:
    """A function's name and a digest of its code. What it reads elsewhere, nobody knows."""
    inner = inspect.unwrap(function)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    code = getattr(inner, "__code__", getattr(type(inner).__call__, "__code__", None))
    return f"{name} {hashlib.blake2b(repr(instructions(code)).encode(), digest_size=8).hexdigest() if code else ''}"


def instructions(code: CodeType) -> list[Any]:
    """Without file, line and variable names, nor sets, which Python writes in any order."""
    constants = [one for one in code.co_consts if not isinstance(one, frozenset)]
    return [code.co_code, code.co_names, *(instructions(one) if isinstance(one, CodeType) else one for one in constants)]


def as_logits(value_BC: Tensor, gives: Gives) -> Tensor:
    """Logarithms of probabilities are logits; those of zero are kept finite."""
    return value_BC if gives == "logits" else value_BC.float().clamp(min=1e-12).log()


class OnnxNetwork(nn.Module):
    """A file that onnxruntime computes. Where it is for a fixed number of pictures, it runs as often as it must."""

    captured = False

    def __init__(self, path: Path, place: Place, output: str = "", gives: Gives = "logits"):
        super().__init__()
        self.gives = gives
        self.session = session(path, place)
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        names = [one.name for one in outputs]
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            taken = ", ".join(f"{one.name} {one.shape}" for one in inputs)
            raise SpecError(f"the file takes {taken}. One image_BCHW is expected.", path="path")
        if output not in ("", *names) or (not output and len(names) > 1):
            raise SpecError(f"the file gives {', '.join(names)}. {suggestion(output, names)}", path="output")
        chosen = outputs[names.index(output) if output else 0]
        self.input, self.output = inputs[0].name, chosen.name
        self.kind = torch.float16 if inputs[0].type == "tensor(float16)" else torch.float32
        self.batch, *sizes = (one if isinstance(one, int) else None for one in inputs[0].shape)  # None: any
        self.channels, self.height, self.width = sizes
        digests = [hashlib.blake2b(one.read_bytes(), digest_size=8).hexdigest() for one in with_weights(path)]
        self.known = (self.gives, self.output, *digests)
        self.classes = chosen.shape[-1] if chosen.shape and isinstance(chosen.shape[-1], int) else None

    def forward(self, image_BCHW: Tensor) -> dict[str, Tensor]:
        count, batch = len(image_BCHW), self.batch or len(image_BCHW)
        image_BCHW = pad(image_BCHW.float(), (0, 0, 0, 0, 0, 0, 0, -count % batch))
        parts = image_BCHW.to("cpu", self.kind).contiguous().split(batch)
        said = [self.session.run([self.output], {self.input: part.numpy()})[0] for part in parts]
        logits_BC = torch.cat([torch.from_numpy(one).float() for one in said])[:count]
        return {"class": as_logits(logits_BC.to(image_BCHW.device), self.gives)}


def with_weights(path: Path) -> list[Path]:
    """An ONNX file, and the one beside it where exporters put weights."""
    beside = (path.with_name(f"{path.name}{ending}") for ending in (".data", "_data"))
    return [path, *(one for one in beside if one.is_file())]


def session(path: Path, place: Place) -> Any:
    """onnxruntime's own, on CUDA where it can, else on the CPU."""
    runtime = imported("onnxruntime")
    if not path.is_file():
        raise WeightsError("there is no such file.", path=str(path))
    wanted = ("CUDAExecutionProvider",) if place.device.type == "cuda" else ()
    providers = [one for one in (*wanted, "CPUExecutionProvider") if one in runtime.get_available_providers()]
    try:
        return runtime.InferenceSession(str(path), providers=providers)
    except Exception as error:  # its errors have no common class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise WeightsError(f"onnxruntime cannot open it ({reason}).", path=str(path)) from error
