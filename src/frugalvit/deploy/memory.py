"""What a packed model adds to the memory of a process: `python -m frugalvit.deploy.memory FILE THREADS` does nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np

STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # Linux alone has them
PICTURE = (375, 500)  # height and width of a decoded photograph


def packed_memory(file: Path, threads: int) -> int | None:
    """Bytes at the most, in a process started for this; None where nobody counts."""
    words = [sys.executable, "-m", "frugalvit.deploy.memory", str(file.resolve()), str(threads)]
    found = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return int(found) if found else None


def added(file: Path, threads: int) -> int | None:
    """The most that this process held while loading and predicting, less what it held before."""
    runtime = importlib.import_module("frugalvit.deploy._native")
    try:
        PEAK.write_text("5")  # from now on
        before = status("VmRSS")
    except OSError:
        return None
    model = runtime.PackedModel(str(file), threads)
    picture_HWC = np.zeros((*PICTURE, model.image[2]), dtype=np.uint8)
    for _ in range(3):
        model.picture_logits(picture_HWC)
    return status("VmHWM") - before


def status(name: str) -> int:
    """VmRSS, what the process holds, or VmHWM, the most that it held, in bytes."""
    return next(int(line.split()[1]) * 1024 for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))


if __name__ == "__main__":
    bytes_added = added(Path(sys.argv[1]), int(sys.argv[2]))
    print("" if bytes_added is None else bytes_added)
