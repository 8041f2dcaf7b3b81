"""Our Triton kernels compute what their definitions say, in Triton's interpreter: no GPU is needed for that."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.interpreting import printed_by

SCRIPT = Path(__file__).parent / "interpreted.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_equal_their_definitions_to_the_rounding_of_float32() -> None:
    found = printed_by(SCRIPT)
    assert len(found) == 113
    looser = {"gelu": 1e-4, "attention of low scores": 1e-3}  # its distribution is a polynomial; what cancels is large
    allowed = {key: next((most for start, most in looser.items() if key.startswith(start)), 2e-5) for key in found}
    assert all(value < allowed[key] for key, value in found.items()), found
