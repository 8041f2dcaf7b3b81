"""Compares `fvit trace`, by every kernel of this CPU, with the numpy twin: bit for bit in float32, every step alone in float64.

python agree.py FVIT TEST_PICTURE MODEL [SEED]; the model is a name of packed.MODELS.
Leaves with an error where something differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from packed import MODELS
from twin import Twin

TOLERANCE = 1e-5  # of a step's largest number
FLIPS = 1e-3  # share of rows in which a hidden sign or an attended key may differ, where float64 rounds the other way
DECIDES_INSIDE = ("mlp", "attention")
Trace = list[tuple[int, np.ndarray]]


def traced(fvit: str, packed: bytes, image_HWC: np.ndarray, kernels: str) -> Trace:
    """The number and the rows of every step."""
    with tempfile.TemporaryDirectory() as folder:
        model, picture = Path(folder) / "model.fvit", Path(folder) / "picture.ppm"
        model.write_bytes(packed)
        picture.write_bytes(b"P6 %d %d 255\n" % (image_HWC.shape[1], image_HWC.shape[0]) + image_HWC.tobytes())
        environment = {**os.environ, "FRUGALVIT_KERNEL": kernels}
        output = subprocess.run([fvit, "trace", model, picture], env=environment, check=True, stdout=subprocess.PIPE).stdout
    at, steps = 0, []
    while at < len(output):
        number, rows, columns = np.frombuffer(output, "<i4", 3, at)
        values = np.frombuffer(output, "<f4", rows * columns, at + 12).reshape(rows, columns)
        steps.append((int(number), values))
        at += 12 + 4 * int(rows) * int(columns)
    return steps


def refuse_other_bits(name: str, kernels: str, steps: Trace, others: Trace) -> None:
    assert [number for number, _ in others] == [number for number, _ in steps]
    for (number, values), (_, found) in zip(steps, others, strict=True):
        unequal = int((values.view(np.uint32) != found.view(np.uint32)).sum())
        assert unequal == 0, f"{name}, steps[{number}]: {unequal} of {values.size} numbers differ, reference and {kernels}"


def main(fvit: str, test_picture: str, name: str, seed: int) -> None:
    writer = MODELS[name](seed)
    program = writer.program()
    image_HWC = np.random.default_rng(seed + 1).integers(0, 256, (writer.image, writer.image, 3), dtype=np.uint8)
    same, plain = Twin(program, writer.tensors, np.float32), Twin(program, writer.tensors, np.float64)
    twin, seen = same.empty(), {key: value.astype(np.float64) for key, value in same.empty().items()}
    worst, flipped = 0.0, 0
    listed = subprocess.run([test_picture, "kernels"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    packed, steps = writer.encode(), []
    for kernels in listed:
        found = traced(fvit, packed, image_HWC, kernels)
        steps = steps or found  # the reference comes first
        refuse_other_bits(name, kernels, steps, found)
    assert [number for number, _ in steps] == list(range(len(program["steps"])))
    for number, values in steps:
        step = program["steps"][number]
        where = f"{name}, steps[{number}] ({step['kind']})"
        twin[step["to"]] = same.run(step, twin, image_HWC)
        unequal = int((twin[step["to"]] != values).sum())
        assert unequal == 0, f"{where}: {unequal} of {values.size} numbers differ from the float32 twin"
        expected = plain.run(step, seen, image_HWC)
        error_N = np.abs(expected - values).max(axis=1) / max(1.0, np.abs(expected).max())
        off = error_N > TOLERANCE
        if step["kind"] in DECIDES_INSIDE:
            assert off.mean() <= FLIPS, f"{where}: {off.sum()} of {len(off)} rows differ from float64"
            flipped += int(off.sum())
        else:
            assert not off.any(), f"{where}: off by {error_N.max():.1e} from float64"
        worst = max(worst, float(error_N[~off].max(initial=0)))
        seen[step["to"]] = values.astype(np.float64)
    print(f"{name}: {len(steps)} steps equal bit for bit ({', '.join(listed)})")
    print(f"from float64 at most {worst:.1e}, {flipped} rows with a flipped sign")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
