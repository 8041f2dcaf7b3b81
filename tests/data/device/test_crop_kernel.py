"""Crops by our kernel have the bytes of their definition: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from tests.interpreting import printed_by

from frugalvit.data.augment import ResizedCrop
from frugalvit.data.device import resample
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.frame import DeviceResizedCrop
from frugalvit.data.device.mixed import CropOfMany
from frugalvit.data.device.size import MapSize
from frugalvit.data.store_device import ManySizes

SCRIPT = Path(__file__).parent / "interpreted_crops.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_no_byte_differs_from_the_definition() -> None:
    found = printed_by(SCRIPT)
    assert len(found) == 7 and not any(found.values()), found


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_the_kernel_is_taken_and_no_byte_differs_either(compiled: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(150, 600, (40, 2), generator=draw)
    sizes[3, 0] = sizes[5, 1] = 1
    height_N, width_N = sizes.unbind(1)
    pixels = height_N * width_N
    pixel_PC = torch.randint(0, 256, (int(pixels.sum()), 3), dtype=torch.uint8, generator=draw)
    largest = int(height_N.max()), int(width_N.max())
    host = ManySizes(pixel_PC, pixels.cumsum(0) - pixels, height_N, width_N, largest)
    there = ManySizes(*(one.cuda() for one in (pixel_PC, host.start_N, height_N, width_N)), largest)
    index_B, draws_BK = torch.arange(300) * 7 % 40, uniform(torch.tensor([4, 1]), 2, (300, CropOfMany.draws))
    crop = CropOfMany(ResizedCrop(), there, (224, 200))
    assert crop.fast
    found_BCHW = (torch.compile(crop) if compiled else crop)(index_B.cuda(), draws_BK.cuda())
    assert torch.equal(found_BCHW.cpu(), CropOfMany(ResizedCrop(), host, (224, 200))(index_B, draws_BK))
    image_BCHW = torch.randint(0, 256, (70, 3, 256, 341), dtype=torch.uint8, generator=draw)
    step = DeviceResizedCrop(ResizedCrop(), MapSize(256, 341, 3), (224, 224))
    alike = (torch.compile(step) if compiled else step)(image_BCHW.cuda(), draws_BK[:70].cuda())
    assert torch.equal(alike.cpu(), step(image_BCHW, draws_BK[:70]))


@pytest.mark.parametrize(("outcome", "said"), [(True, ""), (False, "gives other bytes here"), (OSError("no gcc"), "no gcc")])
def test_a_kernel_that_fails_or_disagrees_is_left_with_a_word(
    outcome: bool | OSError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(device: torch.device) -> bool:
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(resample, "kernel_agrees", tried)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        assert resample.has_kernel.__wrapped__() == (outcome is True)
    assert [said in str(one.message) for one in notices] == ([True] if said else [])
