"""How fast something runs on a device: rounds of several calls, their median and spread, memory, and the products' peak."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from frugalvit.errors import SpecError
from frugalvit.nn.network import Network

ROUNDS = 5
ROUND = 0.5  # seconds that a round is to last
MOST = 200  # calls in a round
WARM = 2  # calls after the first, in which libraries choose their kernels
SIDE = {"cpu": 2048, "mps": 4096, "cuda": 8192}  # of the matrices whose product is the peak
FORWARD, TRAINING = 1, 3  # passes: the gradients of inputs and of weights cost a forward pass each


@dataclass(frozen=True)
class Speed:
    """What the rounds until now gave. The first call, which compiles, is apart."""

    what: str
    batch: int  # pictures a call
    calls: int  # in a round
    first: float | None  # seconds
    rounds: tuple[float, ...]  # seconds a call, one number a round
    waiting: tuple[float, ...] = ()  # the share of a round's time spent waiting for data
    memory: int | None = None  # bytes at the most

    @property
    def seconds(self) -> float:
        """The median."""
        return self.quantile(0.5)

    @property
    def images_per_second(self) -> float:
        return self.batch / self.seconds

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.rounds, share))


def speeds(
    what: str,
    call: Callable[[], object],
    batch: int,
    device: torch.device,
    *,
    rounds: int = ROUNDS,
    calls: int | None = None,
) -> Iterator[Speed]:
    """A Speed after each round, the last one being the result. `calls` is chosen by the time one takes, unless given."""
    forget_peak(device)
    first = seconds(call, 1, device)
    once = seconds(call, WARM, device)
    calls = calls or calls_in_a_round(once)
    found: tuple[float, ...] = ()
    for _ in range(rounds):
        found += (seconds(call, calls, device),)
        yield Speed(what, batch, calls, first, found, memory=peak_memory(device))


def calls_in_a_round(once: float) -> int:
    return min(max(round(ROUND / max(once, 1e-9)), 1), MOST)


def seconds(call: Callable[[], object], count: int, device: torch.device) -> float:
    """Of one call, the mean over `count` in a row, from the first one's beginning to the device's end of the last one."""
    wait(device)
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(device)
        start.record(stream)
        for _ in range(count):
            call()
        end.record(stream)
        wait(device)
        return start.elapsed_time(end) / count / 1e3
    began = time.perf_counter()
    for _ in range(count):
        call()
    wait(device)
    return (time.perf_counter() - began) / count


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


# ------------------------------------------------------------------------------------------------ what is measured


def inference_speeds(
    module: Network, batch: int, device: torch.device, precision: torch.dtype, *, calls: int | None = None
) -> Iterator[Speed]:
    """Prediction on one batch of noise. A call ends when its result is there, so with one picture it is the latency."""
    module = module.to(device).eval()
    forward = compiled(module, device)
    image = module.spec.image
    generator = torch.Generator(device).manual_seed(0)
    image_BCHW = torch.randn(batch, image.channels, image.height, image.width, generator=generator, device=device)

    def call() -> None:
        with torch.inference_mode(), torch.autocast(device.type, precision, enabled=precision != torch.float32):
            forward(image_BCHW)
        wait(device)

    yield from speeds("inference", call, batch, device, calls=calls)


def compiled(module: nn.Module, device: torch.device) -> Callable[..., dict[str, torch.Tensor]]:
    """As one would run it: compiled on CUDA, as it is elsewhere, where compiling takes longer than it saves."""
    return torch.compile(module, dynamic=False) if device.type == "cuda" else module


def matrix_peak(device: torch.device, precision: torch.dtype) -> float:
    """FLOP/s of a large matrix product in this precision on this device, now: the fastest of some rounds."""
    side = SIDE[device.type]
    generator = torch.Generator(device).manual_seed(0)
    a_NN, b_NN = (torch.randn(side, side, generator=generator, device=device).to(precision) for _ in range(2))
    *_, found = speeds("product", lambda: a_NN @ b_NN, 1, device)
    return 2 * side**3 / min(found.rounds)


def share_of_peak(speed: Speed, macs: int, passes: int, peak: float) -> float:
    """images/s × MACs × passes × 2 FLOP / peak: what model and loop leave of the device's products."""
    return speed.images_per_second * macs * passes * 2 / peak


# ------------------------------------------------------------------------------------------------ memory and devices


def forget_peak(device: torch.device) -> None:
    """Let `peak_memory` count from what is held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        try:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the process's peak is what it is now
        except OSError:
            return


def peak_memory(device: torch.device) -> int | None:
    """Bytes at the most: of tensors on a GPU, of the whole process on a CPU; None where nobody counts."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "cpu":
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)
    return None


@contextmanager
def memory_for(batch: int, device: torch.device) -> Iterator[None]:
    """Memory that runs out inside is an error which says what batch to try."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, (torch.OutOfMemoryError, MemoryError)) and "allocate memory" not in str(error):
            raise
        cure = f"Try --batch {batch // 2}." if batch > 1 else "Use a smaller model, or smaller pictures (image=...)."
        raise SpecError(f"a batch of {batch} does not fit into the memory of {device}. {cure}", path="--batch") from error


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        except (OSError, StopIteration):
            return platform.processor() or platform.machine()
    return f"{platform.machine()} {device.type}"
