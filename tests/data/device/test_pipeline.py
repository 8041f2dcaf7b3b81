from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.data.device.pictures import batch
from torch import Tensor

from frugalvit.data.augment import Augment, ColorJitter, Flip, PadCrop, Resize, ResizedCrop, Step, deit_augment, small_augment
from frugalvit.data.autoaugment import AutoAugment
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.pipeline import pipeline
from frugalvit.data.device.size import MapSize
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.randomness import Stream
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.data.trivialaugment import TrivialAugment
from frugalvit.errors import SpecError
from frugalvit.slots import choices

COUNT = 12
PUBLISHED = Augment((Flip(0.5), PadCrop(4), AutoAugment("cifar10")))  # Lee et al. (2021)
AUGMENTS = {
    "published": PUBLISHED,
    "small": small_augment(),
    "deit": deit_augment(),
    "augreg": Augment((ResizedCrop((0.05, 1.0)), Flip(), TfRandAugment(2, 10.0))),
    "jitter": Augment((ColorJitter(), Resize("bilinear"), RandAugment(3), TrivialAugment())),
}


def some(channels: int, height: int, width: int) -> Tensor:
    image_BCHW = batch(channels, height, width)
    return torch.stack([image_BCHW[place % 3].roll(place, -1) for place in range(COUNT)])


def draws(count: int, step: int = 0) -> Tensor:
    return uniform(torch.tensor([3, step]), Stream.AUGMENT, (COUNT, count))


@pytest.mark.parametrize("augment", AUGMENTS.values(), ids=AUGMENTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_its_pictures_one_by_one(channels: int, augment: Augment) -> None:
    image_BCHW = some(channels, 33, 41)
    steps = pipeline(augment, MapSize(33, 41, channels), (20, 28))
    draws_BK, before = draws(steps.draws), image_BCHW.clone()
    found = steps(image_BCHW, draws_BK)
    assert (found.shape, found.dtype) == ((COUNT, channels, 20, 28), torch.uint8)
    rows = zip(image_BCHW.split(1), draws_BK.split(1), strict=True)
    assert torch.equal(found, torch.cat([steps(image, draw) for image, draw in rows]))
    assert torch.equal(image_BCHW, before)
    other = draws_BK.clone()
    other[5] = draws(steps.draws, 1)[5]
    changed = (steps(image_BCHW, other) != found).flatten(1).any(1)
    assert not changed[torch.arange(COUNT) != 5].any()


@pytest.mark.parametrize("augment", AUGMENTS.values(), ids=AUGMENTS)
def test_draws_are_used_in_order_and_all_of_them(augment: Augment) -> None:
    size, target = MapSize(33, 41, 3), (20, 28)
    steps = pipeline(augment, size, target)
    assert steps.draws == sum(steps.counts)
    image_BCHW = some(3, 33, 41)
    step_by_step = image_BCHW
    for step, own in zip(steps.steps, draws(steps.draws).split(steps.counts, 1), strict=True):
        step_by_step = step(step_by_step, own)
    assert torch.equal(steps(image_BCHW, draws(steps.draws)), step_by_step)
    with pytest.raises(RuntimeError, match="split"):
        steps(image_BCHW, draws(steps.draws + 1))


@pytest.mark.parametrize(
    "spec",
    [Flip(), PadCrop(), AutoAugment("svhn"), TrivialAugment(), TfRandAugment(2, 2.0), RandAugment(), ColorJitter()],
    ids=lambda spec: type(spec).__name__,
)
def test_every_draw_of_a_step_can_change_a_picture(spec) -> None:
    steps = pipeline(Augment((Resize(), spec)), MapSize(33, 41, 3), (33, 41))
    image_BCHW, seen = some(3, 33, 41), set()
    for step in range(20):
        draws_BK = draws(steps.draws, step)
        found = steps(image_BCHW, draws_BK)
        for place in set(range(steps.draws)) - seen:
            other = draws_BK.clone()
            other[:, place] = (other[:, place] + 0.5) % 1
            if not torch.equal(steps(image_BCHW, other), found):
                seen.add(place)
    assert seen == set(range(steps.draws))


@pytest.mark.parametrize("kind", choices(Step).values(), ids=lambda kind: kind.__name__)
def test_every_step_has_a_version_for_the_device(kind: type) -> None:
    steps = pipeline(Augment((Resize(), kind())), MapSize(33, 41, 3), (20, 28))
    assert steps(some(3, 33, 41), draws(steps.draws)).shape == (COUNT, 3, 20, 28)


@dataclass(frozen=True)
class Mine:
    """A step of a user's."""

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        return picture


def test_a_step_of_a_users_own_and_pictures_with_alpha_are_refused_with_a_way_out() -> None:
    with pytest.raises(SpecError, match=r"steps\[1\]: Mine has no version for the device\. Augment on the CPU"):
        pipeline(Augment((Resize(), Mine())), MapSize(33, 41, 3), (20, 28))
    with pytest.raises(SpecError, match=r"4 channels\. On the device pictures are gray or RGB"):
        MapSize(33, 41, 4)
    with pytest.raises(SpecError, match=r"pictures of 0 x 41\. Use sides of 1"):
        MapSize(0, 41)


def test_shapes_stay_static_without_data() -> None:
    """On the meta device there are no values to branch on or to wait for."""
    for augment in AUGMENTS.values():
        steps = pipeline(augment, MapSize(33, 41, 3), (20, 28)).to("meta")
        image_BCHW = torch.empty((5, 3, 33, 41), dtype=torch.uint8, device="meta")
        assert steps(image_BCHW, torch.empty((5, steps.draws), device="meta")).shape == (5, 3, 20, 28)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_the_small_data_pipeline_compiles_whole_with_its_draws_and_keeps_its_bytes() -> None:
    steps = pipeline(PUBLISHED, MapSize(16, 16, 3), (16, 16))

    def augmented(image_BCHW: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        draws_BK = uniform(key, Stream.AUGMENT, (len(image_BCHW), steps.draws))
        return steps(image_BCHW, draws_BK), draws_BK

    compiled, image_BCHW = torch.compile(augmented, fullgraph=True, dynamic=False), some(3, 16, 16)
    for step in (0, 7, 2**40):
        key = torch.tensor([-3, step])
        for found, expected in zip(compiled(image_BCHW, key), augmented(image_BCHW, key), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.gpu
def test_cuda_gives_the_cpus_bytes_compiled_and_captured() -> None:
    for augment in AUGMENTS.values():
        image_BCHW, key = some(3, 32, 32), torch.tensor([3, 7])
        steps = pipeline(augment, MapSize(32, 32, 3), (32, 32))
        expected = steps(image_BCHW, draws(steps.draws, 7))
        moved, image, keyed = steps.to("cuda"), image_BCHW.cuda(), key.cuda()
        compiled = torch.compile(
            lambda image, keyed, steps=moved: steps(image, uniform(keyed, Stream.AUGMENT, (COUNT, steps.draws))), fullgraph=True
        )
        assert torch.equal(compiled(image, keyed).cpu(), expected)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = compiled(image, keyed)
        keyed.copy_(torch.tensor([3, 8]))
        graph.replay()
        later = pipeline(augment, MapSize(32, 32, 3), (32, 32))(image_BCHW, draws(steps.draws, 8))
        assert torch.equal(out.cpu(), later)
