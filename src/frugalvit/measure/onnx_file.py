"""Modules as ONNX files, and such files run by onnxruntime on the CPU, where these packages are installed."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from frugalvit.errors import SpecError, interruptible

Predict = Callable[[np.ndarray], np.ndarray]  # image_BCHW in float32 to logits_BC
Batch = Literal["given", "any"]  # how many pictures a file takes at a time: as many as the example has, or any number


class Missing(SpecError):
    """A package is not installed: a row without numbers."""


def package(name: str, extra: str = "bench") -> ModuleType:
    """An optional package, or what to install."""
    try:
        with interruptible():
            return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not installed: pip install 'frugalvit[{extra}]'") from error


def refuse_without_exporter() -> None:
    """Raise unless what PyTorch writes ONNX files with is installed."""
    for name in ("onnx", "onnxscript"):
        package(name, "onnx")


class OneAnswer(nn.Module):
    """A network whose answer is one tensor, and whose tensors have numbers for names: Python's words break the exporter."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.inner = (module,)  # in a tuple, so that its parameters are not registered under their own names
        self.names = list(module.state_dict())
        for index, value in enumerate(module.state_dict().values()):
            self.register_buffer(f"t{index}", value)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        state = {name: self.get_buffer(f"t{index}") for index, name in enumerate(self.names)}
        return answer(functional_call(self.inner[0], state, (image_BCHW,)))


def answer(outputs: Tensor | dict[str, Tensor]) -> Tensor:
    """The logits_BC of a module: the mean of all heads where it has several."""
    return torch.stack(list(outputs.values())).mean(0) if isinstance(outputs, dict) else outputs


def write_onnx(
    module: nn.Module, image_BCHW: Tensor, file: Path, batch: Batch = "given", metadata: Mapping[str, str] | None = None
) -> None:
    """An ONNX file from `image` to `logits`, for pictures of the example's size; `metadata` is text that it carries."""
    refuse_without_exporter()
    with warnings.catch_warnings(), quiet("torch.onnx"), torch.no_grad(), interruptible():
        warnings.simplefilter("ignore")  # the exporter's own, on what it deprecates in itself
        program = torch.onnx.export(
            OneAnswer(module.eval()).eval(),
            (image_BCHW,),
            dynamo=True,
            verbose=False,
            input_names=["image"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},) if batch == "any" else None,
            custom_translation_table={torch.ops.aten._prelu_kernel.default: leaky},
        )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # where in this machine's files each came from
        program.model.metadata_props.update(metadata or {})
        program.save(file, external_data=False)


def leaky(x: Any, slope: Any) -> Any:
    """PReLU whose slopes have their places already. The exporter's own moves them to the second axis."""
    return package("onnxscript", "onnx").opset18.PRelu(x, slope)


def onnx_runtime(file: Path, threads: int) -> Predict:
    ort = package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda image_BCHW: session.run(None, {"image": image_BCHW})[0]


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
