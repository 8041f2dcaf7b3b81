"""The same classifier in other runtimes on a CPU, where they are installed: PyTorch, ONNX Runtime, OpenVINO."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from frugalvit.errors import SpecError

Predict = Callable[[np.ndarray], np.ndarray]  # image_BCHW in float32 to logits_BC
FP32 = {"INFERENCE_PRECISION_HINT": "f32"}  # OpenVINO would take bf16 where the CPU has it


class Missing(SpecError):
    """A package is not installed: a row without numbers."""


def package(name: str) -> ModuleType:
    """An optional package, or what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not installed: pip install 'frugalvit[bench]'") from error


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


def pytorch(module: nn.Module, precision: torch.dtype) -> Predict:
    """Weights and pictures in one precision, in inference mode; the threads are those of the process."""
    module = module.eval().to(precision)

    def predict(image_BCHW: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return answer(module(torch.from_numpy(image_BCHW).to(precision))).float().numpy()

    return predict


def write_onnx(module: nn.Module, image_BCHW: Tensor, file: Path) -> None:
    """An ONNX file for batches of the shape given."""
    for name in ("onnx", "onnxscript"):
        package(name)
    with warnings.catch_warnings(), quiet("torch.onnx"), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's own, on what it deprecates in itself
        torch.onnx.export(
            OneAnswer(module.eval()).eval(),
            (image_BCHW,),
            file,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=["image"],
            output_names=["logits"],
        )


def onnx_runtime(file: Path, threads: int) -> Predict:
    ort = package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda image_BCHW: session.run(None, {"image": image_BCHW})[0]


def openvino(file: Path, threads: int, settings: Mapping[str, str]) -> Predict:
    """One stream, for latency."""
    ov = package("openvino")
    latency = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(str(file), "CPU", latency | dict(settings)).create_infer_request()

    def predict(image_BCHW: np.ndarray) -> np.ndarray:
        return request.infer({0: image_BCHW})[0]

    return predict


def write_int8(onnx_file: Path, pictures: Sequence[np.ndarray], file: Path) -> None:
    """OpenVINO's files (.xml and .bin) of the model in int8, with ranges from `pictures`, image_BCHW of the batch exported."""
    ov, nncf = package("openvino"), package("nncf")
    # NNCF draws its progress to standard output, and asks torch about compilers for CUDA, who complain
    with contextlib.redirect_stdout(io.StringIO()), quiet("nncf"), quiet("torch.utils.cpp_extension"):
        small = nncf.quantize(
            ov.Core().read_model(str(onnx_file)),
            nncf.Dataset(list(pictures)),
            subset_size=len(pictures),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
        )
    ov.save_model(small, str(file), compress_to_fp16=False)


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


class PeerFiles:
    """A module as the files that other runtimes read, each written into `folder` when it is first asked for.

    `pictures` are arrays image_BCHW of one shape, the files' own; int8 takes its ranges from them.
    """

    def __init__(self, module: nn.Module, pictures: Sequence[np.ndarray], folder: Path):
        self.module, self.pictures, self.folder = module, pictures, folder

    @cached_property
    def onnx(self) -> Path:
        file = self.folder / "model.onnx"
        write_onnx(self.module, torch.from_numpy(self.pictures[0]), file)
        return file

    @cached_property
    def int8(self) -> Path:
        package("nncf")
        file = self.folder / "int8.xml"
        write_int8(self.onnx, self.pictures, file)
        return file


@dataclass(frozen=True)
class Peer:
    """A classifier in another runtime, and the bytes of its files."""

    predict: Predict
    bytes: int


def in_onnx_runtime(files: PeerFiles, threads: int) -> Peer:
    package("onnxruntime")
    return Peer(onnx_runtime(files.onnx, threads), files.onnx.stat().st_size)


def in_openvino(files: PeerFiles, threads: int) -> Peer:
    package("openvino")
    return Peer(openvino(files.onnx, threads, FP32), files.onnx.stat().st_size)


def in_openvino_int8(files: PeerFiles, threads: int) -> Peer:
    """What is left in real numbers is computed as OpenVINO likes."""
    package("openvino")
    both = files.int8, files.int8.with_suffix(".bin")
    return Peer(openvino(files.int8, threads, {}), sum(one.stat().st_size for one in both))


RUNTIMES: dict[str, Callable[[PeerFiles, int], Peer]] = {
    "ONNX Runtime fp32": in_onnx_runtime,
    "OpenVINO fp32": in_openvino,
    "OpenVINO int8": in_openvino_int8,
}
