from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from frugalvit.errors import DataError, SpecError
from frugalvit.explain.tokens import summary_pair, token_cosines, token_taps
from frugalvit.nn.model import Model
from frugalvit.nn.network import Network
from frugalvit.nn.readout import Mean
from frugalvit.zoo.cait import cait
from frugalvit.zoo.change import with_distillation
from frugalvit.zoo.pit import pit
from frugalvit.zoo.resnet import resnet18


def built(model: Model) -> Network:
    """With all taps, and weights that do something."""
    module = model.build(taps=token_taps(model.build(seed=0)), seed=0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    return module


def batches(module: Network, *sizes: int) -> list[Tensor]:
    image = module.spec.image
    return [torch.randn(size, image.channels, image.height, image.width) for size in sizes]


def cosine(first: Tensor, second: Tensor) -> float:
    """a · b / (|a| |b|)"""
    a, b = first.flatten().tolist(), second.flatten().tolist()
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_cosines_equal_those_of_a_loop_over_pictures_and_layers(toy: Model) -> None:
    module = built(toy).eval()
    images = batches(module, 2, 3)
    found = token_cosines(module, iter(images))
    expected: dict[str, list[float]] = {}
    for image_CHW in torch.cat(images):
        x_BND = module.tokenizer(image_CHW[None])
        for index, layer in enumerate(module.layers):
            x_BND = layer(x_BND)
            if index >= 2:  # behind Join and AddPositions
                expected.setdefault(f"tokens[{index - 2}]", []).append(cosine(x_BND[0, 0], x_BND[0, 1]))
        normed_BND = module.readout.norm(x_BND)
        expected.setdefault("readout", []).append(cosine(normed_BND[0, 0], normed_BND[0, 1]))
    learned, *rest = found.places
    assert (found.tokens, found.pictures) == (("class", "distill"), 5)
    assert [one.place for one in rest] == ["tokens[0]", "tokens[1]", "readout"]
    for one in rest:
        assert one.mean == pytest.approx(statistics.mean(expected[one.place]), abs=1e-5)
        assert one.sd == pytest.approx(statistics.stdev(expected[one.place]), abs=1e-5)
    join = module.layers[0].tokens
    assert learned.mean == pytest.approx(cosine(join["class"], join["distill"]), abs=1e-6)
    assert learned.sd is None


def test_the_learned_vectors_are_compared_without_positions(toy: Model) -> None:
    module = built(toy)
    with torch.no_grad():
        for name, values in (("class", (1.0, 0.0)), ("distill", (3.0, 4.0))):
            module.layers[0].tokens[name].zero_()[0, 0, :2] = torch.tensor(values)
    found = token_cosines(module, batches(module, 1))
    assert found.places[0].text() == "0.600"
    assert found.places[1].sd is None  # one picture has no deviation


def test_tokens_that_are_twins_stay_alike(toy: Model) -> None:
    module = built(toy)
    with torch.no_grad():
        module.layers[0].tokens["distill"].copy_(module.layers[0].tokens["class"])
        module.layers[1].positions[:, 1] = module.layers[1].positions[:, 0]
    assert [one.mean for one in token_cosines(module, batches(module, 2)).places] == pytest.approx([1.0] * 4, abs=1e-6)


def test_tokens_that_join_late_or_grow_are_followed_where_they_are() -> None:
    late = with_distillation(cait(dim=12, heads=3, depth=3, layer_scale=0.1, patch=4, image=(20, 28), classes=9))
    module = built(late)
    assert token_taps(module) == ("tokens[3]", "tokens[4]")
    places = [one.place for one in token_cosines(module, batches(module, 2)).places]
    assert places == ["learned", "tokens[3]", "tokens[4]", "readout"]
    wide = with_distillation(pit(dim=12, heads=(3, 6), depths=(1, 2), patch=4, stride=4, image=(16, 24), classes=9))
    module = built(wide)
    places = [one.place for one in token_cosines(module, batches(module, 2)).places]
    assert places == ["learned", "tokens[0]", "tokens[1]", "tokens[2]", "readout"]


def test_a_readout_that_reads_no_tokens_is_left_out(toy: Model) -> None:
    module = built(replace(toy, readout=Mean()))
    assert [one.place for one in token_cosines(module, batches(module, 2)).places] == ["learned", "tokens[0]", "tokens[1]"]


def test_a_module_in_training_is_looked_at_as_it_predicts_and_goes_on(toy: Model) -> None:
    module = built(toy).train()
    images = batches(module, 2)
    assert token_cosines(module, images) == token_cosines(module.eval(), images)
    module.train()
    token_cosines(module, images)
    assert module.training


def test_models_without_a_pair_are_refused_with_the_reason(toy_vit: Model, toy: Model) -> None:
    with pytest.raises(SpecError, match=r"^model: its summary tokens are class, and a cosine takes two\..*with_distillation"):
        summary_pair(toy_vit.build(seed=0))
    with pytest.raises(SpecError, match="a ConvNet has no summary tokens"):
        token_taps(resnet18(image=32, classes=3).build(seed=0))
    with pytest.raises(SpecError, match=r"^taps: no block shows its tokens\. Build the model with taps=token_taps"):
        token_cosines(toy.build(seed=0), [])
    with pytest.raises(DataError, match="no picture"):
        token_cosines(built(toy), [])


def test_it_is_told_as_rows_and_as_json(toy: Model) -> None:
    module = built(toy)
    found = token_cosines(module, batches(module, 3))
    assert found.rows()[1] == {"place": "tokens[0]", "cos(class, distill)": found.places[1].text()}
    assert found.note() == "Mean ± standard deviation over n = 3 pictures."
    assert found.plain()["places"][0] == {"place": "learned", "mean": found.places[0].mean, "sd": None}
