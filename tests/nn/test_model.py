from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from frugalvit.assign import override
from frugalvit.errors import SpecError
from frugalvit.nn.layers import Join
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.zoo.change import with_lsa
from frugalvit.zoo.deit import deit

IMAGE = (2, 3, 20, 28)


def dropping(toy: Model) -> Model:
    return override(toy, "layers[2].residual.drop=0.4", "layers[3].residual.drop=0.6")


def test_outputs_are_the_same_dict_of_heads_in_training_and_in_evaluation(toy: Model) -> None:
    module = toy.build()
    for mode in (True, False):
        outputs = module.train(mode)(torch.randn(IMAGE))
        assert {name: tuple(logits.shape) for name, logits in outputs.items()} == {"class": (2, 9), "distill": (2, 9)}


def test_a_seed_settles_the_weights_and_leaves_the_global_generator_alone(toy: Model) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = toy.build(seed=1).state_dict(), toy.build(seed=1).state_dict(), toy.build(seed=2).state_dict()
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["tokenizer.weight"], other["tokenizer.weight"])


def test_without_a_seed_the_global_generator_decides(toy: Model) -> None:
    torch.manual_seed(7)
    one = toy.build()
    torch.manual_seed(7)
    assert torch.equal(one.tokenizer.weight, toy.build().tokenizer.weight)
    assert not torch.equal(one.tokenizer.weight, toy.build().tokenizer.weight)


def test_training_is_a_function_of_the_draws(toy: Model) -> None:
    module = dropping(toy).build(seed=0)
    assert module.draws == 4
    image, draws = torch.randn(IMAGE), module.random_draws(2, torch.Generator().manual_seed(3))
    assert draws.shape == (4, 2)
    torch.testing.assert_close(module(image, draws), module(image, draws), atol=0, rtol=0)
    assert not torch.equal(module(image, draws)["class"], module(image, 1 - draws)["class"])


def test_rows_of_draws_reach_their_own_block(toy: Model) -> None:
    module = dropping(toy).build(seed=0, taps=("tokens[0]", "tokens[1]"))
    image, keep = torch.randn(IMAGE), torch.zeros(4, 2)
    later = keep.clone()
    later[2:] = 1  # the second block drops both branches
    kept, dropped = module(image, keep), module(image, later)
    assert torch.equal(kept["tokens[0]"], dropped["tokens[0]"])
    assert torch.equal(dropped["tokens[1]"], dropped["tokens[0]"])


def test_evaluation_ignores_draws(toy: Model) -> None:
    module = dropping(toy).build(seed=0).eval()
    image = torch.randn(IMAGE)
    torch.testing.assert_close(module(image), module(image, module.random_draws(2)), atol=0, rtol=0)


def test_training_without_draws_is_an_error_and_not_silently_undropped(toy: Model) -> None:
    module = dropping(toy).build()
    with pytest.raises(SpecError, match=r"draws: .*module\.random_draws\(len\(image\)\)"):
        module(torch.randn(IMAGE))
    with pytest.raises(SpecError, match=r"draws: shape \(4, 3\). Expected \(4, 2\)"):
        module(torch.randn(IMAGE), module.random_draws(3))


@pytest.mark.parametrize("size", [(2, 3, 20, 27), (2, 1, 20, 28), (3, 20, 28), (2, 3, 28, 20)])
def test_a_batch_of_another_size_is_refused_with_both_sizes(toy: Model, size: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match=r"image: a batch of shape .* for a model of images B x 3 x 20 x 28"):
        toy.build()(torch.randn(size))


def test_taps_add_tokens_and_attention_without_changing_the_logits(toy: Model) -> None:
    for model in (toy, with_lsa(toy)):
        plain, tapped = model.build(seed=1).eval(), model.build(seed=1, taps=("tokens[1]", "attention[0]", "tokens[-2]")).eval()
        image = torch.randn(IMAGE)
        outputs = tapped(image)
        assert outputs["tokens[1]"].shape == outputs["tokens[-2]"].shape == (2, 37, 12)
        assert outputs["attention[0]"].shape == (2, 3, 37, 37)
        torch.testing.assert_close(outputs["attention[0]"].sum(-1), torch.ones(2, 3, 37))
        torch.testing.assert_close(outputs["class"], plain(image)["class"])
        x_BND = tapped.layers[1](tapped.layers[0](tapped.tokenizer(image)))
        torch.testing.assert_close(outputs["tokens[-2]"], tapped.layers[2](x_BND))


@pytest.mark.parametrize("tap", ["tokens", "tokens[2]", "tokens[-3]", "tokns[0]", "attention[x]", "tokens[0"])
def test_a_tap_that_is_not_there_is_refused(toy: Model, tap: str) -> None:
    with pytest.raises(SpecError, match="taps"):
        toy.build(taps=(tap,))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("image", "patch"), [((20, 28), 4), ((20, 28), (5, 7)), (16, 8), ((8, 24), (4, 3))])
def test_any_size_patch_and_channel_count_builds_and_runs(channels: int, image: int | tuple[int, int], patch: object) -> None:
    model = deit(dim=12, heads=3, depth=1, patch=patch, image=image, channels=channels, classes=5)
    height, width = image if isinstance(image, tuple) else (image, image)
    assert model.build()(torch.randn(2, channels, height, width))["class"].shape == (2, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(image=(20, 30)), r"model\.tokenizer: patches of 4 x 4 do not tile an image of 20 x 30.* 20 x 28 or 24 x 32"),
        (dict(image=3), r"patches of 4 x 4 do not tile an image of 3 x 3. Use images of 4 x 4,"),
        (dict(image=0), "an image of 0 x 0 pixels is empty"),
        (dict(channels=5), "5 channels. Use 1"),
        (dict(heads=5), r"model\.layers\[2\]\.attention\.heads: 5 heads"),
        (dict(classes=None), r"model\.classes: None classes"),
        (dict(classes=0), r"model\.classes: 0 classes"),
        (dict(depth=0), "depth: a depth of 0"),
        (dict(drop_path=1.0), r"drop_path\.drop: a drop rate of 1.0"),
        (dict(patch=0), r"model\.tokenizer: patches of 0 x 0"),
    ],
)
def test_impossible_sizes_are_refused_with_the_nearest_cure(change: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        deit(**{"dim": 12, "heads": 3, "depth": 1, "patch": 4, "image": 20, **change}).build()


def test_heads_and_tokens_must_meet(toy: Model) -> None:
    with pytest.raises(SpecError, match=r"model\.readout: no summary token is called 'distil' here. Did you mean 'distill'"):
        replace(toy, readout=Tokens(("distil",))).build()
    with pytest.raises(SpecError, match=r"model\.readout: .* There is none"):
        replace(toy, layers=toy.layers[2:]).build()
    with pytest.raises(SpecError, match=r"model\.layers\[1\]: summary tokens \('class',\) join"):
        replace(toy, layers=(toy.layers[0], Join(("class",)))).build()


def test_gradients_reach_every_parameter(toy: Model) -> None:
    for model in (toy, with_lsa(toy)):
        module = model.build()
        sum(logits.square().sum() for logits in module(torch.randn(IMAGE)).values()).backward()
        assert [name for name, parameter in module.named_parameters() if parameter.grad is None] == []


def test_the_model_compiles_whole_and_agrees(toy: Model) -> None:
    module = dropping(toy).build(seed=0)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    image, draws = torch.randn(IMAGE), module.random_draws(2)
    torch.testing.assert_close(compiled(image, draws), module(image, draws))


def test_a_model_overfits_one_batch(toy: Model) -> None:
    module = toy.build(seed=0)
    image, label = torch.randn(IMAGE), torch.tensor([3, 8])
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(40):
        outputs = module(image)
        loss = sum(torch.nn.functional.cross_entropy(logits, label) for logits in outputs.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
