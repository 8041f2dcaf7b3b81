from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from timm.data import mixup

from frugalvit.data.batch import Batch
from frugalvit.data.mix import CutMix, Mix, Mixup, NoMix, RolledMixup, SwitchMix, cut_box, smoothed
from frugalvit.data.randomness import Stream, numpy_generator
from frugalvit.errors import SpecError
from frugalvit.slots import choices
from frugalvit.spec import decode, encode

CLASSES, SMOOTHING = 9, 0.1


def batch(size: int, height: int = 20, width: int = 28) -> Batch:
    draw = torch.Generator().manual_seed(1)
    image_BCHW = torch.randn((size, 3, height, width), generator=draw)
    return Batch(image_BCHW, torch.randint(CLASSES, (size,), generator=draw), torch.arange(size))


def draws(step: int) -> np.random.Generator:
    return numpy_generator(3, step, Stream.MIX)


@pytest.fixture
def timm_drawing_from(monkeypatch: pytest.MonkeyPatch):
    """timm draws from numpy's global generator, whose streams differ from a Generator's: it is lent ours instead."""

    def lend(draw: np.random.Generator) -> None:
        lent = SimpleNamespace(rand=draw.random, beta=draw.beta, randint=lambda low, high, size: draw.integers(low, high, size))
        names = {name: getattr(np, name) for name in ("sqrt", "clip")}
        monkeypatch.setattr(mixup, "np", SimpleNamespace(random=lent, **names))

    return lend


@pytest.mark.parametrize(
    ("mix", "theirs", "skipped"),
    [
        (Mixup(0.8), dict(mixup_alpha=0.8, cutmix_alpha=0.0), 1),
        (CutMix(1.0), dict(mixup_alpha=0.0, cutmix_alpha=1.0), 1),
        (SwitchMix(), dict(mixup_alpha=0.8, cutmix_alpha=1.0), 0),
        (
            SwitchMix(0.3, 0.7, probability=0.6, switch=0.4),
            dict(mixup_alpha=0.3, cutmix_alpha=0.7, prob=0.6, switch_prob=0.4),
            0,
        ),
    ],
    ids=["mixup", "cutmix", "switch", "sometimes"],
)
def test_mixing_gives_timms_bits_at_equal_draws(mix: Mix, theirs: dict, skipped: int, timm_drawing_from) -> None:
    """timm asks whether to mix at all even where it always does; our Mixup and CutMix do not, so one draw is skipped."""
    peer = mixup.Mixup(**theirs, mode="batch", label_smoothing=SMOOTHING, num_classes=CLASSES)
    given = batch(6)
    for step in range(40):
        timm_drawing_from(draws(step))
        image_BCHW, target_BC = peer(given.image_BCHW.clone(), given.label_B)
        draw = draws(step)
        draw.random(skipped)
        mixed = mix.mix(given, CLASSES, SMOOTHING, draw)
        assert torch.equal(mixed.image_BCHW, image_BCHW)
        assert torch.equal(mixed.target_BC, target_BC)
        assert torch.equal(mixed.label_B, given.label_B)
        assert torch.equal(mixed.index_B, given.index_B)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", choices(Mix).values(), ids=lambda kind: kind.__name__)
def test_any_batch_size_is_mixed_and_the_given_batch_stays(kind: type, size: int) -> None:
    given, pristine = batch(size), batch(size)
    for step in range(6):
        mixed = kind().mix(given, CLASSES, SMOOTHING, draws(step))
        assert mixed.image_BCHW.shape == given.image_BCHW.shape
        torch.testing.assert_close(mixed.target_BC.sum(1), torch.ones(size))
        if size % 2 and kind is not RolledMixup:
            middle = size // 2
            torch.testing.assert_close(mixed.image_BCHW[middle], given.image_BCHW[middle])
            torch.testing.assert_close(mixed.target_BC[middle], smoothed(given.label_B, CLASSES, SMOOTHING)[middle])
    assert torch.equal(given.image_BCHW, pristine.image_BCHW)
    assert decode(encode(kind()), kind) == kind()


def test_targets_are_smoothed_as_in_deit() -> None:
    target_BC = NoMix().mix(batch(4), CLASSES, SMOOTHING, draws(0)).target_BC
    assert target_BC is not None
    for row_C, label in zip(target_BC, batch(4).label_B, strict=True):
        for one in range(CLASSES):
            expected = 1 - 0.1 + 0.1 / 9 if one == label else 0.1 / 9
            assert row_C[one].item() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(smoothed(batch(4).label_B, CLASSES, 0.0), torch.nn.functional.one_hot(batch(4).label_B, CLASSES).float())


def test_cutmix_gives_the_target_the_share_of_pixels_each_picture_has() -> None:
    given = Batch(torch.zeros(2, 1, 20, 28), torch.tensor([4, 7]), torch.arange(2))
    given.image_BCHW[1] = 1
    for step in range(30):
        mixed = CutMix().mix(given, CLASSES, 0.0, draws(step))
        torch.testing.assert_close(mixed.target_BC[0, 7], mixed.image_BCHW[0].mean())
        torch.testing.assert_close(mixed.target_BC[0, 4], 1 - mixed.image_BCHW[0].mean())
        torch.testing.assert_close(mixed.target_BC[1, 4], 1 - mixed.image_BCHW[1].mean())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.99, 1.0])
def test_a_cut_box_has_the_wanted_sides_around_its_center(share: float) -> None:
    """Written from CutMix's equation 2: sides sqrt(1 − λ) of the picture's, a uniform center, cut at the border."""
    high, wide = int(20 * math.sqrt(1 - share)), int(28 * math.sqrt(1 - share))
    for step in range(60):
        draw = draws(step)
        y, x = int(draw.integers(20)), int(draw.integers(28))
        rows = [row for row in range(y - high // 2, y - high // 2 + high) if 0 <= row < 20]
        columns = [column for column in range(x - wide // 2, x - wide // 2 + wide) if 0 <= column < 28]
        top, bottom, left, right = cut_box(20, 28, share, draws(step))
        assert list(range(top, bottom)) == rows
        assert list(range(left, right)) == columns


def test_switching_mixes_as_often_as_it_says() -> None:
    """A batch of zeros and ones tells the ways apart: unmixed, CutMix (only zeros and ones), mixup (values between)."""
    given = Batch(torch.zeros(2, 1, 5, 7), torch.tensor([0, 1]), torch.arange(2))
    given.image_BCHW[1] = 1
    steps, mix = 4000, SwitchMix(mixup_alpha=2.0, cutmix_alpha=1.0, probability=0.8, switch=0.3)
    blended = sum(int(((one := mix.mix(given, 2, 0.0, draws(step)).image_BCHW) * (1 - one)).any()) for step in range(steps))
    expected = 0.8 * 0.7
    assert abs(blended / steps - expected) < 4 * math.sqrt(expected * (1 - expected) / steps)


def test_the_share_of_mixup_follows_its_beta_distribution() -> None:
    given = Batch(torch.tensor([1.0, 0.0]).reshape(2, 1, 1, 1), torch.tensor([0, 1]), torch.arange(2))
    shares = np.array([Mixup(0.8).mix(given, 2, 0.0, draws(step)).image_BCHW[0].item() for step in range(4000)])
    variance = 1 / (4 * (2 * 0.8 + 1))
    assert abs(shares.mean() - 0.5) < 4 * math.sqrt(variance / len(shares))
    assert abs(shares.var() - variance) < 4 * math.sqrt(((shares - 0.5) ** 2).var() / len(shares))


def test_rolled_mixup_is_its_equation() -> None:
    """AugReg: a ~ Beta(α, α), λ = max(a, 1 − a); the partner of picture i is picture i − 1, that of the first the last."""
    given = batch(5)
    for step in range(20):
        mixed = RolledMixup(0.5).mix(given, CLASSES, 0.0, draws(step))
        drawn = draws(step).beta(0.5, 0.5)
        share = max(drawn, 1 - drawn)
        for place in range(5):
            partner = (place - 1) % 5
            expected = share * given.image_BCHW[place] + (1 - share) * given.image_BCHW[partner]
            torch.testing.assert_close(mixed.image_BCHW[place], expected)
            for label in range(CLASSES):
                wanted = share * (given.label_B[place] == label) + (1 - share) * (given.label_B[partner] == label)
                assert mixed.target_BC[place, label].item() == pytest.approx(float(wanted), abs=1e-6)
    shares = [RolledMixup(0.2).mix(batch(2, 1, 1), CLASSES, 0.0, draws(step)).target_BC.max().item() for step in range(300)]
    assert min(shares) >= 0.5


def test_switching_is_the_mixing_of_lee_et_al_at_its_fields() -> None:
    """Half of the batches are mixed at all, and half of those by CutMix, by λ ~ Beta(1, 1), one for the batch.

    Their loss, λ CE(y) + (1 − λ) CE(y'), is the cross-entropy of the mixed target.
    """
    given = Batch(torch.zeros(2, 1, 20, 28), torch.tensor([0, 1]), torch.arange(2))
    given.image_BCHW[1] = 1
    steps, mix = 6000, SwitchMix(1.0, 1.0, probability=0.5, switch=0.5)
    logits_BC = torch.tensor([[0.3, -1.2], [2.0, 0.4]])
    found, shares = {"none": 0, "cutmix": 0, "mixup": 0}, []
    for step in range(steps):
        mixed = mix.mix(given, 2, 0.0, draws(step))
        share = mixed.target_BC[0, 0].item()
        between = ((mixed.image_BCHW > 0) & (mixed.image_BCHW < 1)).any().item()
        way = "mixup" if between else "none" if draws(step).random() >= 0.5 else "cutmix"
        found[way] += 1
        if way == "mixup":
            shares.append(share)
        if step < 50:
            cross = -logits_BC.log_softmax(1)
            theirs = (share * cross[[0, 1], [0, 1]] + (1 - share) * cross[[0, 1], [1, 0]]).mean()
            torch.testing.assert_close((mixed.target_BC * cross).sum(1).mean(), theirs)
    for way, expected in (("none", 0.5), ("cutmix", 0.25), ("mixup", 0.25)):
        assert abs(found[way] / steps - expected) < 4 * math.sqrt(expected * (1 - expected) / steps)
    assert abs(np.mean(shares) - 0.5) < 4 / math.sqrt(12 * len(shares))  # Beta(1, 1) is uniform
    assert abs(np.var(shares) - 1 / 12) < 4 * math.sqrt(1 / 180 / len(shares))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RolledMixup(0.0), "alpha: 0.0 is not above 0"),
        (lambda: Mixup(0.0), "alpha: 0.0 is not above 0"),
        (lambda: CutMix(-1.0), "alpha: -1.0 is not above 0"),
        (lambda: SwitchMix(cutmix_alpha=0.0), "cutmix_alpha: 0.0 is not above 0"),
        (lambda: SwitchMix(switch=2.0), "switch: 2.0 is not a probability"),
    ],
)
def test_impossible_mixing_is_refused(make, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()
