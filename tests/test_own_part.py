"""A user's own attention part: written outside the package, it builds, trains a step, saves and loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import frugalvit
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.nn.attention import Attention
from frugalvit.nn.model import Model
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class Averaging:
    """Every token receives the weighted mean of all, by learned weights per place."""

    temperature: float = 1.0

    def build(self, shape: Shape) -> nn.Module:
        return WeightedMean(shape, self.temperature)


class WeightedMean(nn.Module):
    def __init__(self, shape: Shape, temperature: float):
        super().__init__()
        self.scores_NN = nn.Parameter(torch.zeros(shape.length, shape.length))
        self.value = nn.Linear(shape.dim, shape.dim)
        self.temperature = temperature

    def forward(self, x_BND: Tensor) -> Tensor:
        return (self.scores_NN / self.temperature).softmax(-1) @ self.value(x_BND)


def test_a_part_of_ones_own_builds_trains_saves_and_loads(tmp_path: Path, toy: Model) -> None:
    model = frugalvit.swap(toy, Attention, lambda _: Averaging(temperature=2.0))
    module = model.build(seed=0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    image, label = torch.randn(2, 3, 20, 28), torch.tensor([3, 7])
    loss = nn.functional.cross_entropy(frugalvit.fuse(module(image)), label)
    loss.backward()
    optimizer.step()
    assert module.layers[2].attention.scores_NN.abs().sum() > 0
    assert nn.functional.cross_entropy(frugalvit.fuse(module(image)), label) < loss

    preprocess = Preprocess(20, 28, (0.5,) * 3, (0.5,) * 3)
    spec = ClassifierSpec(model, preprocess, tuple("abcdefghi"))
    folder = Classifier(spec, module).save(tmp_path / "mine")
    again = frugalvit.load(folder, parts=[Averaging])
    assert again.spec == spec
    torch.testing.assert_close(again(image), frugalvit.fuse(module(image)), atol=0, rtol=0)

    with pytest.raises(frugalvit.SpecError, match=r"layers\[2\]\.attention: no part is called 'Averaging' here"):
        frugalvit.load(folder)


def test_it_is_counted_described_and_cannot_be_tapped_or_exported_unless_it_says_how(toy: Model) -> None:
    model = frugalvit.swap(toy, Attention, lambda _: Averaging())
    n, d = 37, 12
    assert frugalvit.cost(model).places[3].macs == n * d * d + n * n * d + 2 * n * d * 4 * d
    assert "Averaging()" in frugalvit.describe(model)
    with pytest.raises(frugalvit.SpecError, match=r"attention\[0\]': WeightedMean shows no map"):
        model.build(taps=("attention[0]",))
    with pytest.raises(frugalvit.WeightsError, match=r"layers\[2\]: timm has no name for Averaging"):
        frugalvit.export_weights(model.build())
