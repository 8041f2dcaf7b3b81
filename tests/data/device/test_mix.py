from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import beta as scipys
from timm.data import mixup as timms
from torch import Tensor

from frugalvit.data.batch import Batch
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.mix import Beta, mix, rows_of
from frugalvit.data.mix import CutMix, Mix, MixEach, Mixup, NoMix, RolledMixup, SwitchMix
from frugalvit.data.randomness import Stream
from frugalvit.slots import choices

CLASSES, SMOOTHING = 5, 0.1
LABEL_B = torch.tensor([0, 3, 1, 4, 2, 3, 0])


def image() -> Tensor:
    return torch.rand((7, 3, 20, 28), generator=torch.Generator().manual_seed(0))


def draws(count: int, rows: int, step: int = 0) -> Tensor:
    return uniform(torch.tensor([3, step]), Stream.MIX, (rows, count))


@dataclass
class Lent:
    """A generator that hands out what it was given."""

    randoms: list[float] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    places: list[float] = field(default_factory=list)

    def random(self) -> float:
        return self.randoms.pop(0)

    def beta(self, first: float, second: float) -> float:
        assert first == second
        return self.betas.pop(0)

    def integers(self, count: int) -> int:
        return int(self.places.pop(0) * count)


def lent(spec: Mix, draw: list[float]) -> Lent:
    """The decisions of a row of draws, for the CPU's way."""
    share = {name: float(Beta(alpha)(torch.tensor([value]))) for name, alpha, value in betas(spec, draw)}
    match spec:
        case Mixup() | RolledMixup():
            return Lent(betas=[share["mixup"]])
        case CutMix():
            return Lent(betas=[share["cutmix"]], places=draw[1:])
        case SwitchMix():
            way = "cutmix" if draw[1] < spec.switch else "mixup"
            return Lent(draw[:2], [share[way]], draw[3:])
    return Lent()


def betas(spec: Mix, draw: list[float]) -> list[tuple[str, float, float]]:
    match spec:
        case Mixup() | RolledMixup():
            return [("mixup", spec.alpha, draw[0])]
        case CutMix():
            return [("cutmix", spec.alpha, draw[0])]
        case SwitchMix():
            return [("mixup", spec.mixup_alpha, draw[2]), ("cutmix", spec.cutmix_alpha, draw[2])]
    return []


SPECS = [NoMix(), Mixup(0.8), RolledMixup(0.2), CutMix(1.0), SwitchMix(0.8, 1.0, 0.6, 0.4)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_batch_is_mixed_as_on_the_cpu_at_equal_decisions(spec: Mix) -> None:
    mixing, batch = mix(spec, CLASSES, SMOOTHING), Batch(image(), LABEL_B, LABEL_B)
    for step in range(40):
        draws_1K = draws(mixing.draws, 1, step)
        found, target_BC = mixing(image(), LABEL_B, draws_1K)
        expected = spec.mix(batch, CLASSES, SMOOTHING, lent(spec, draws_1K[0].tolist()))
        assert torch.equal(found, expected.image_BCHW)
        assert torch.equal(target_BC, expected.target_BC)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_row_of_draws_for_each_picture_decides_for_each(spec: Mix) -> None:
    mixing = mix(spec, CLASSES, SMOOTHING)
    draws_BK = draws(mixing.draws, 7)
    found, target_BC = mixing(image(), LABEL_B, draws_BK)
    for place in range(7):
        whole, target = mixing(image(), LABEL_B, draws_BK[place : place + 1])
        assert torch.equal(found[place], whole[place])
        assert torch.equal(target_BC[place], target[place])


@pytest.mark.parametrize("spec", SPECS[1:], ids=lambda spec: type(spec).__name__)
def test_pictures_that_are_mixed_each_are_mixed_as_on_the_cpu_at_equal_decisions(spec: Mix) -> None:
    mixing = mix(MixEach(spec), CLASSES, SMOOTHING)
    draws_BK = draws(mixing.draws, rows_of(mixing, 7))
    found, target_BC = mixing(image(), LABEL_B, draws_BK)
    decisions = Lent()
    for row in draws_BK.tolist():
        one = lent(spec, row)
        whether = not isinstance(spec, SwitchMix) or row[0] < spec.probability
        cut = isinstance(spec, CutMix) or (isinstance(spec, SwitchMix) and row[1] < spec.switch)
        decisions.randoms += one.randoms if whether else one.randoms[:1]
        decisions.betas += one.betas if whether else []
        decisions.places += one.places if whether and cut else []
    expected = MixEach(spec).mix(Batch(image(), LABEL_B, LABEL_B), CLASSES, SMOOTHING, decisions)
    assert torch.equal(found, expected.image_BCHW)
    assert torch.equal(target_BC, expected.target_BC)
    assert not (decisions.randoms or decisions.betas or decisions.places)
    assert len({tuple(row) for row in draws_BK.tolist()}) == 7


def test_pictures_that_are_mixed_each_are_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SwitchMix(0.3, 0.7, probability=0.6, switch=0.4)
    mixing, image_BCHW, label_B = mix(MixEach(spec), CLASSES, SMOOTHING), image()[:6], LABEL_B[:6]
    peer = timms.Mixup(0.3, 0.7, prob=0.6, switch_prob=0.4, mode="elem", label_smoothing=SMOOTHING, num_classes=CLASSES)
    for step in range(20):
        draws_BK = draws(mixing.draws, 6, step)
        whether, way, share = draws_BK.double().numpy().T[:3]
        mixed_cut = [row for row in draws_BK.tolist() if row[0] < 0.6 and row[1] < 0.4]
        places = iter([one for row in mixed_cut for one in row[3:]])
        rands, alphas = iter([way, whether]), {0.3: mixing.way.mixup_beta, 0.7: mixing.way.cutmix_beta}
        random = SimpleNamespace(
            rand=lambda size, rands=rands: next(rands),
            beta=lambda first, second, size, share=share, alphas=alphas: alphas[first](torch.from_numpy(share)).numpy(),
            randint=lambda low, high, size, places=places: int(next(places) * high),
        )
        names = {name: getattr(np, name) for name in ("sqrt", "clip", "ones", "zeros", "where", "float32")}
        monkeypatch.setattr(timms, "np", SimpleNamespace(random=random, **names))
        expected, target_BC = peer(image_BCHW.clone(), label_B)
        found = mixing(image_BCHW, label_B, draws_BK)
        torch.testing.assert_close(found, (expected, target_BC))


def test_soft_targets_are_mixed_as_they_are() -> None:
    mixing, draws_1K = mix(Mixup(1.0), CLASSES, SMOOTHING), draws(1, 1)
    soft_BC = torch.rand((7, CLASSES)).softmax(1)
    share = float(draws_1K[0, 0])
    assert torch.allclose(mixing(image(), soft_BC, draws_1K)[1], soft_BC * share + soft_BC.flip(0) * (1 - share))


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 2.0, 30.0])
def test_the_table_is_the_betas_quantile_function(alpha: float) -> None:
    draw = torch.linspace(0, 1 - 2**-24, 20_001, dtype=torch.float64).float()
    share = Beta(alpha)(draw)
    exact = torch.from_numpy(scipys.ppf(draw.double().numpy(), alpha, alpha))
    assert (share.diff() >= 0).all() and share[0] == 0 and share[-1] <= 1
    inner = (draw > 1 / 4096) & (draw < 4095 / 4096)  # in between, where tails end
    assert (share - exact)[inner].abs().max() < 1e-3
    assert (share - exact).abs().mean() < 1e-4
    if alpha == 1.0:
        assert (share - draw.double()).abs().max() < 1e-12


@pytest.mark.parametrize("alpha", [0.2, 0.8, 30.0])
def test_shares_have_the_betas_moments(alpha: float) -> None:
    share, count = Beta(alpha)(draws(1, 50_000)[:, 0]), 50_000
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(share.mean() - 0.5) < 4 * math.sqrt(variance / count)
    kurtosis = float(((share - share.mean()) ** 4).mean()) - variance**2
    assert abs(share.var() - variance) < 4 * math.sqrt(kurtosis / count)
    drawn = np.sort(share.numpy())
    distance = abs(scipys.cdf(drawn, alpha, alpha) - np.arange(1, count + 1) / count).max()
    assert distance < 1.63 / math.sqrt(count)  # Kolmogorov-Smirnov, 1 %


def test_batches_are_mixed_and_switched_as_often_as_they_say() -> None:
    mixing, count = mix(SwitchMix(1.0, 1.0, 0.5, 0.3), CLASSES, 0.0), 4000
    image_BCHW = torch.arange(count, dtype=torch.float32)[:, None, None, None].expand(-1, 1, 8, 8).contiguous()
    found, target_BC = mixing(image_BCHW, torch.zeros(count, dtype=torch.int64), draws(5, count))
    assert torch.allclose(target_BC.sum(1), torch.ones(count))
    unchanged = (found == image_BCHW).flatten(1).all(1)
    blended = ((found != image_BCHW) & (found != image_BCHW.flip(0))).flatten(1).any(1)
    empty = 0.15 * 0.03  # boxes without a pixel
    assert abs(unchanged.double().mean() - 0.5) < 4 * math.sqrt(0.25 / count) + empty
    assert abs(blended.double().mean() - 0.35) < 4 * math.sqrt(0.35 * 0.65 / count)


def test_every_way_of_mixing_has_a_version_for_the_device() -> None:
    for kind in choices(Mix).values():
        mixing = mix(kind(), CLASSES, SMOOTHING)
        found, target_BC = mixing(image(), LABEL_B, draws(mixing.draws, 1))
        assert (found.shape, target_BC.shape) == ((7, 3, 20, 28), (7, CLASSES))
