"""Our AdamW computes torch's, in Triton's interpreter: no GPU is needed for that."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from frugalvit.training.update import fits

SCRIPT = Path(__file__).parent / "interpreted_update.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_update_in_one_kernel_is_torchs_with_clipping_skipped_steps_and_the_average() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found.pop("moved") > 1e-3 and found.pop("step") == 0
    assert all(value < 2e-5 for value in found.values()), found


def test_what_is_not_adamw_on_cuda_keeps_its_own_update() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    assert not fits(torch.optim.AdamW([weight]))
    assert not fits(torch.optim.SGD([weight], lr=0.1))
