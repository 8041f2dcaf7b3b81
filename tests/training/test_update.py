"""Our AdamW computes torch's, in Triton's interpreter: no GPU is needed for that."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from tests.interpreting import printed_by

from frugalvit.training.update import fits

SCRIPT = Path(__file__).parent / "interpreted_update.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_update_in_one_kernel_is_torchs_with_clipping_skipped_steps_and_the_average() -> None:
    found = printed_by(SCRIPT)
    assert found.pop("moved") > 1e-3 and found.pop("step") == 0
    assert all(value < 2e-5 for value in found.values()), found


def test_what_is_not_adamw_on_cuda_keeps_its_own_update() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    assert not fits(torch.optim.AdamW([weight]))
    assert not fits(torch.optim.SGD([weight], lr=0.1))
