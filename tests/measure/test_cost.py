from __future__ import annotations

import pytest
import torch
from benchmarks.model_costs import PUBLISHED_GMACS

from frugalvit.assign import override
from frugalvit.measure.cost import cost
from frugalvit.nn.model import Model
from frugalvit.zoo.change import with_lsa
from frugalvit.zoo.find import model


@pytest.mark.parametrize("name", PUBLISHED_GMACS)
def test_macs_are_timms_within_a_percent(name: str) -> None:
    assert cost(model(name)).macs / 1e9 == pytest.approx(PUBLISHED_GMACS[name], rel=0.01)


def test_macs_and_parameters_are_those_counted_by_hand(toy: Model) -> None:
    n, d, classes = 37, 12, 9
    block = n * d * 3 * d + n * d * d + 2 * n * d * 4 * d + 2 * n * n * d
    found = cost(toy)
    assert found.macs == 35 * 3 * 4 * 4 * d + 2 * block + 2 * d * classes
    assert [place.macs for place in found.places] == [35 * 48 * d, 0, 0, block, block, 2 * d * classes]
    assert found.parameters == sum(parameter.numel() for parameter in toy.build().parameters())
    assert [place.path for place in found.places] == ["tokenizer", *(f"layers[{i}]" for i in range(4)), "readout"]


def test_the_plain_attention_path_counts_the_same_products(toy: Model) -> None:
    assert cost(with_lsa(toy)).macs == cost(toy).macs


def kept_by_a_real_run(spec: Model) -> int:
    module = spec.build()
    owned = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    draws = module.random_draws(1) if module.draws else None
    image = torch.randn(1, spec.image.channels, spec.image.height, spec.image.width)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = module(image, draws)
    assert outputs
    return sum(kept.values())


@pytest.mark.parametrize("change", [(), ("layers[2].residual.drop=0.5",), ("layers[3].attention.scale=LearnedScale",)])
def test_activation_memory_is_what_a_real_step_keeps(toy: Model, change: tuple[str, ...]) -> None:
    spec = override(toy, *change)
    assert cost(spec).activations == kept_by_a_real_run(spec)


def test_counting_computes_nothing_and_leaves_the_generator_alone(toy: Model) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    cost(toy)
    assert torch.equal(torch.rand(2), expected)


def test_a_model_is_counted_once_and_one_without_a_hash_each_time(toy: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cost(toy) is cost(toy)
    monkeypatch.setattr(Model, "__hash__", None)
    assert cost(toy) == cost(toy) and cost(toy) is not cost(toy)
