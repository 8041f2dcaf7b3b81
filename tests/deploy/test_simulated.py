"""The simulation gives the runtime's bits: its arithmetic against the C library, and whole models against the runtime."""

from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np
import pytest
import torch
from tests.deploy.packing import MODELS, classifier_of, native_only

from frugalvit.deploy.multiply_add import fma
from frugalvit.deploy.native import load_packed
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import encoded
from frugalvit.deploy.simulated import Simulation
from frugalvit.deploy.verify import noise_for
from frugalvit.errors import WeightsError


def c_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fmaf.restype, library.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    return np.array([library.fmaf(*map(float, row)) for row in zip(a, b, c, strict=True)], dtype=np.float32)


def near_ties(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a · b + c a hair beside the middle between two floats: float64 rounds it into the middle."""
    spread = (2.0 ** -draw.integers(14, 20, count)).astype(np.float32)
    sign = draw.choice([-1, 1], count)
    a, b = 2.0**-12 * (1 + spread), 2.0**-12 * (1 - spread)  # the product is 2^-24 (1 - spread²)
    c = 1 + 2.0**-23 * draw.integers(0, 8, count)
    return (sign * a).astype(np.float32), b.astype(np.float32), (sign * c).astype(np.float32)


def test_multiply_add_rounds_once_also_where_float64_makes_a_tie() -> None:
    draw = np.random.default_rng(0)
    plain = [(draw.normal(size=3000) * 2.0 ** draw.integers(-20, 20, 3000)).astype(np.float32) for _ in range(3)]
    tiny = [(draw.normal(size=500) * scale).astype(np.float32) for scale in (1e-20, 1e-19, 1e-39)]
    for a, b, c in (plain, near_ties(draw, 500), tiny):
        found = fma(*(torch.from_numpy(one)[None] for one in (a, b, c)))[0].numpy()
        assert np.array_equal(found, c_fma(a, b, c))
    a, b, c = near_ties(draw, 500)
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (twice != c_fma(a, b, c)).sum() > 100  # so that the test above could fail


@native_only
@pytest.mark.parametrize("name", MODELS)
def test_the_runtime_and_its_simulation_give_the_same_bits(name: str, tmp_path) -> None:
    classifier = classifier_of(MODELS[name], seed=1)
    image_BHWC = noise_for(classifier, 20)
    for precision in ("single", "half"):
        made = packed_model(classifier, name, precision)
        file = tmp_path / f"{precision}.fvit"
        file.write_bytes(encoded(made.packed))
        runtime = load_packed(file, threads=2)
        assert not runtime.simulated
        logits_BC = runtime.logits(image_BHWC)
        assert np.array_equal(logits_BC, Simulation(made.packed).logits(image_BHWC))
        assert logits_BC.std() > 0.01


def test_it_takes_any_number_of_pictures_and_as_many_at_a_time_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = classifier_of(MODELS["pyramid"])
    twin, image_BHWC = Simulation(packed_model(classifier, "a").packed), noise_for(classifier, 5)
    at_once_BC = twin.logits(image_BHWC)
    assert twin.logits(image_BHWC[:0]).shape == (0, 7)
    monkeypatch.setattr("frugalvit.deploy.simulated.AT_ONCE", 8000)
    assert twin.batch() == 2
    assert np.array_equal(twin.logits(image_BHWC), at_once_BC)


def test_an_unknown_kind_of_step_is_named() -> None:
    classifier = classifier_of(MODELS["class"])
    packed = packed_model(classifier, "a").packed
    packed.steps[4]["kind"] = "fourier"
    with pytest.raises(WeightsError, match=r"steps\[4\]: a step of the kind 'fourier'"):
        Simulation(packed).logits(noise_for(classifier, 1))
