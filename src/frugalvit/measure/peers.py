"""The same classifier in other runtimes on a CPU, where they are installed: PyTorch, ONNX Runtime, OpenVINO."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from frugalvit.measure.onnx_file import Missing, OneAnswer, Predict, answer, onnx_runtime, package, quiet, write_onnx

__all__ = ["RUNTIMES", "Missing", "OneAnswer", "Peer", "PeerFiles", "Predict", "answer", "package", "pytorch", "refuses_tiles"]

FP32 = {"INFERENCE_PRECISION_HINT": "f32"}  # OpenVINO would take bf16 where the CPU has it
CPU, LIMIT, WITHOUT_TILES = Path("/proc/cpuinfo"), "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
PRODUCT = "import torch; one = torch.ones(64, 64, dtype=torch.bfloat16); one @ one"


def refuses_tiles() -> bool:
    """Whether a product in bf16 would be killed: some virtual machines announce the CPU's matrix tiles and refuse them."""
    return LIMIT not in os.environ and dies_of_tiles()


@cache
def dies_of_tiles() -> bool:
    if not CPU.exists() or "amx_tile" not in CPU.read_text():
        return False
    return subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, check=False).returncode == -signal.SIGILL


def limited() -> dict[str, str]:
    """What the user forbids oneDNN, which PyTorch and OpenVINO compute by: as telling of a speed as their versions."""
    return {LIMIT: os.environ[LIMIT]} if LIMIT in os.environ else {}


def refuse_killers(who: str) -> None:
    if refuses_tiles():
        raise Missing(
            f"this machine announces matrix tiles (AMX) and kills whoever uses them, as {who}; "
            f"{LIMIT}={WITHOUT_TILES} in front of the command measures without tiles"
        )


def pytorch(module: nn.Module, precision: torch.dtype) -> Predict:
    """Weights and pictures in one precision, in inference mode; the threads are those of the process."""
    if precision is torch.bfloat16:
        refuse_killers("PyTorch does in bf16")
    module = module.eval().to(precision)

    def predict(image_BCHW: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return answer(module(torch.from_numpy(image_BCHW).to(precision))).float().numpy()

    return predict


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
    refuse_killers("OpenVINO does in int8")
    both = files.int8, files.int8.with_suffix(".bin")
    return Peer(openvino(files.int8, threads, {}), sum(one.stat().st_size for one in both))


RUNTIMES: dict[str, Callable[[PeerFiles, int], Peer]] = {
    "ONNX Runtime fp32": in_onnx_runtime,
    "OpenVINO fp32": in_openvino,
    "OpenVINO int8": in_openvino_int8,
}
