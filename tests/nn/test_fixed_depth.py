"""Stochastic depth of a fixed count against a loop from its definition, against all under a mask, and what is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from tests.nn.test_dropout import masked, plus
from tests.nn.test_mechanisms import WIDE, naive_attention, naive_gelu, naive_linear, naive_norm, randomized, tokens
from tests.test_matrix import CHANGES, FAMILIES
from torch import Tensor, nn

from frugalvit.assign import override
from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn.attention import Attention, SkipAttention
from frugalvit.nn.block import Block, PreNorm, SummaryBlock, deepening, dropping, even
from frugalvit.nn.dropout import dropped
from frugalvit.nn.fixed_depth import Kept, kept_of
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.residual import FixedCountDepth, FixedCountSum, LayerScale, Plain
from frugalvit.nn.scope import SummaryOnly, Windows
from frugalvit.nn.score import MixHeads
from frugalvit.nn.shape import Shape
from frugalvit.spec import decode, encode
from frugalvit.weights.load import export_weights, load_weights
from frugalvit.zoo.change import with_fixed_count_depth, with_layer_scale
from frugalvit.zoo.find import changes, model

BATCH = 5
ATTENTION = Attention(3, linear=WIDE)
LOOKS = Attention(3, SummaryOnly(), linear=WIDE)
MLP = Mlp(2.5, linear=WIDE)
BLOCKS: dict[str, Block | SummaryBlock] = {
    "plain": Block(ATTENTION, MLP, residual=FixedCountDepth(Plain(0.4))),
    "around the end": Block(ATTENTION, MLP, residual=FixedCountDepth(Plain(0.4), 0.7), dropout=0.3),
    "one sample": Block(ATTENTION, MLP, residual=FixedCountDepth(Plain(0.95))),
    "layer scale": Block(ATTENTION, MLP, residual=FixedCountDepth(LayerScale(0.7, 0.4))),
    "dropout": Block(ATTENTION, MLP, residual=FixedCountDepth(Plain(0.4)), dropout=0.3),
    "talking heads": Block(replace(ATTENTION, before=(MixHeads(),)), MLP, residual=FixedCountDepth(Plain(0.4))),
    "skip": Block(SkipAttention(ATTENTION), MLP, residual=FixedCountDepth(Plain(0.4))),
    "class attention": SummaryBlock(LOOKS, MLP, residual=FixedCountDepth(Plain(0.4))),
    "class attention, all": SummaryBlock(LOOKS, MLP, residual=FixedCountDepth(LayerScale(0.7, 0.4)), dropout=0.3),
}


def defined(module: PreNorm, x_BND: Tensor, draws_RB: Tensor) -> Tensor:
    """A block whose branches are computed for all samples, and then multiplied by 0 or B / K."""
    changed = getattr(module, "summary", x_BND.shape[1])
    first_B, second_B, attended_B, hidden_B, fed_B = module.decisions(draws_RB)
    branch_BND = dropped(module.attention(module.norm1(x_BND)), attended_B, module.dropout)
    y_BND = module.sum1(x_BND[:, :changed], branch_BND, first_B)
    branch_BND = dropped(module.mlp(module.norm2(y_BND), hidden_B), fed_B, module.dropout)
    return torch.cat([module.sum2(y_BND, branch_BND, second_B), x_BND[:, changed:]], dim=1)


def explained(module: PreNorm, x_BND: Tensor, draws_RB: Tensor) -> Tensor:
    return module.explained(x_BND, draws_RB)[0]


def values_and_gradients(run: Callable[..., Tensor], module: nn.Module, x_BND: Tensor, draws_RB: Tensor) -> list[Tensor]:
    x_BND = x_BND.clone().requires_grad_()
    module.zero_grad()
    y_BND = run(x_BND, draws_RB)
    (y_BND * torch.arange(y_BND.numel()).view_as(y_BND).cos()).sum().backward()
    gradients = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    assert x_BND.grad is not None and len(gradients) == len(list(module.parameters()))
    return [y_BND.detach(), x_BND.grad, *gradients]


# ------------------------------------------------------------------------------------------------ the definition


def test_the_count_is_the_rounded_share_of_a_batch_and_at_least_one() -> None:
    assert [kept and kept.count for kept in (kept_of(batch, 0.3, 0.0) for batch in (1, 2, 3, 5, 7, 64))] == [
        None,
        1,
        2,
        4,
        5,
        45,
    ]
    assert [kept and kept.count for kept in (kept_of(64, drop, 0.5) for drop in (0.0, 0.007, 0.1, 0.99))] == [None, None, 58, 1]


@pytest.mark.parametrize(
    ("first", "samples"), [(0.0, [0, 1, 2]), (0.39, [1, 2, 3]), (0.4, [2, 3, 4]), (0.6, [3, 4, 0]), (0.99, [4, 0, 1])]
)
def test_samples_are_kept_in_a_row_from_a_share_of_the_batch_on(first: float, samples: list[int]) -> None:
    kept = kept_of(5, 0.4, first)
    assert kept == Kept(samples[0], 3, 5)
    x_BN = torch.arange(10.0).view(5, 2)
    assert kept.some(x_BN).tolist() == x_BN[samples].tolist()
    assert kept.mask_B(x_BN).nonzero().flatten().tolist() == sorted(samples)
    back_BN = kept.back(-kept.some(x_BN), x_BN)
    assert back_BN.tolist() == (x_BN * (1 - 2 * kept.mask_B(x_BN))[:, None]).tolist()


def test_every_place_of_a_batch_keeps_its_branch_on_average_over_where_blocks_begin() -> None:
    x_BND = torch.zeros(5, 1, 1, dtype=torch.float64)
    every = [FixedCountDepth(Plain(0.4), start / 5).build(Shape(1, 1, 1)) for start in range(5)]
    sums = torch.stack([module(x_BND, torch.ones_like(x_BND), torch.rand(5)) for module in every])
    torch.testing.assert_close(sums.mean(0), torch.ones_like(x_BND))
    assert {tuple(sorted(one.flatten().tolist())) for one in sums} == {(0, 0, 5 / 3, 5 / 3, 5 / 3)}


def test_blocks_of_a_model_skip_different_samples() -> None:
    spec = with_fixed_count_depth(model("deit_small_patch16_224", drop_path=0.4))
    places = [block.residual.first for block in spec.layers[2:]]
    assert places[:4] == pytest.approx([0, 0.618, 0.2361, 0.8541], abs=1e-4)
    skipped = torch.stack([1 - kept_of(100, 0.4, first).mask_B(torch.zeros(1)) for first in places]).sum(0)  # of 12 blocks
    assert skipped.mean().item() == pytest.approx(4.8) and skipped.min() >= 3 and skipped.max() <= 7
    with pytest.raises(SpecError, match=r"first: 1\.5 is no share of a batch"):
        FixedCountDepth(Plain(0.1), 1.5)


@pytest.mark.parametrize("inner", [Plain(0.4), LayerScale(0.7, 0.4)], ids=["plain", "layer scale"])
def test_a_block_is_its_definition_sample_by_sample(shape: Shape, inner: Plain | LayerScale) -> None:
    module = randomized(Block(ATTENTION, MLP, residual=FixedCountDepth(inner, 0.7), dropout=0.3).build(shape)[0])
    assert isinstance(module, PreNorm) and module.draws == 5
    depth = [[0.8, 0.3, 0.9, 0.1, 0.4]] * 2
    units = [[0.15, 0.5, 0.2, 0.6, 0.9], [0.25, 0.6, 0.1, 0.3, 0.8], [0.35, 0.7, 0.9, 0.2, 0.4]]
    kept = [3, 4, 0]  # three, round(5 · 0.6), from floor(5 · 0.7) on
    x_BND = tokens(shape, BATCH)
    found = module(x_BND, torch.tensor([*depth, *units]))
    ones = torch.ones(shape.dim)
    gamma1, gamma2 = (getattr(total, "gamma", ones).tolist() for total in (module.sum1, module.sum2))
    for b in range(BATCH):
        factor = (b in kept) * 5 / 3
        attended_draw, hidden_draw, fed_draw = (torch.tensor(row[b]).item() for row in units)
        rows = x_BND[b].tolist()
        normed = [naive_norm(x, module.norm1.weight, module.norm1.bias, 1e-6) for x in rows]
        attended = masked(naive_attention(module.attention, normed, [4**-0.5] * 3, hide=False), attended_draw, 0.3)
        rows = plus(rows, [[v * g for v, g in zip(row, gamma1, strict=True)] for row in attended], factor)
        normed = [naive_norm(x, module.norm2.weight, module.norm2.bias, 1e-6) for x in rows]
        up, down = module.mlp.up, module.mlp.down
        hidden = [[naive_gelu(v) for v in naive_linear(x, up.weight, up.bias)] for x in normed]
        fed = masked([naive_linear(h, down.weight, down.bias) for h in masked(hidden, hidden_draw, 0.3)], fed_draw, 0.3)
        expected = plus(rows, [[v * g for v, g in zip(row, gamma2, strict=True)] for row in fed], factor)
        torch.testing.assert_close(found[b].tolist(), expected, atol=1e-10, rtol=1e-10)


# ------------------------------------------------------------------------------------------------ few for all


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("way", [defined, explained])
def test_few_samples_give_what_all_give_under_a_mask_in_value_and_gradient(
    shape: Shape, name: str, way: Callable[..., Tensor]
) -> None:
    module = randomized(BLOCKS[name].build(shape)[0])
    assert isinstance(module, PreNorm)
    x_BND, draws_RB = tokens(shape, BATCH), torch.rand(module.draws, BATCH)
    found = values_and_gradients(module, module, x_BND, draws_RB)
    wanted = values_and_gradients(lambda *inputs: way(module, *inputs), module, x_BND, draws_RB)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)


def test_windows_of_few_samples_are_theirs() -> None:
    shape = Shape(12, 6, 8)
    block = Block(Attention(3, Windows((3, 4), 2), linear=WIDE), MLP, residual=FixedCountDepth(Plain(0.4)))
    module = randomized(block.build(shape)[0])
    x_BND, draws_RB = tokens(shape, BATCH), torch.rand(2, BATCH)
    torch.testing.assert_close(module(x_BND, draws_RB), defined(module, x_BND, draws_RB), atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_computed_for_the_kept_samples_alone(shape: Shape, name: str) -> None:
    module, _ = BLOCKS[name].build(shape)
    seen = []
    for part in (module.norm1, module.attention, module.norm2, module.mlp):
        part.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    count = 1 if name == "one sample" else 3
    module(tokens(shape, BATCH).float(), torch.rand(module.draws, BATCH))
    assert seen == [count] * 4
    seen.clear()
    module(tokens(shape, BATCH).float())
    assert seen == [BATCH] * 4


def test_where_all_are_kept_nothing_is_moved(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(ATTENTION, MLP, residual=FixedCountDepth(Plain(0.05)))  # round(5 · 0.95) = 5
    module, _ = block.build(shape)
    monkeypatch.setattr(torch, "cat", None)
    x_BND = tokens(shape, BATCH).float()
    assert module.draws == 2
    assert torch.equal(module(x_BND, torch.rand(2, BATCH)), module(x_BND))
    assert torch.equal(module(x_BND[:1], torch.rand(2, 1)), module(x_BND[:1]))
    assert module(x_BND[:0], torch.rand(2, 0)).shape == (0, 36, 12)


def test_low_precision_is_kept_or_raised_as_in_a_plain_sum(shape: Shape) -> None:
    for inner in (Plain(0.4), LayerScale(0.1, 0.4)):
        kinds = []
        for residual in (inner, FixedCountDepth(inner)):
            module, _ = Block(ATTENTION, MLP, residual=residual).build(shape)
            x_BND = tokens(shape, BATCH).float()
            with torch.autocast("cpu", torch.bfloat16):
                kinds.append((module(x_BND, torch.rand(2, BATCH)).dtype, module(x_BND.bfloat16(), torch.rand(2, BATCH)).dtype))
        assert kinds[0] == kinds[1]


@dataclass(frozen=True)
class Halved:
    """A user's residual, which reads the branch of every sample."""

    def build(self, shape: Shape) -> nn.Module:
        return HalfSum()


class HalfSum(nn.Module):
    draws = 1

    def forward(self, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        return x_BND + 0.5 * branch_BND


def test_a_users_residual_need_not_choose(toy: Model) -> None:
    own = replace(toy.layers[2], residual=Halved())
    module = replace(toy, layers=(*toy.layers[:2], own)).build(seed=0).train()
    image_BCHW = torch.randn(2, 3, 20, 28)
    given, plain = module(image_BCHW, module.random_draws(2)), module.eval()(image_BCHW)
    assert torch.equal(given["class"], plain["class"])
    with pytest.raises(SpecError, match="Halved has no drop rate to set"):
        dropping(own, 0.1)


# ------------------------------------------------------------------------------------------------ specs


def test_rates_are_those_of_what_is_inside() -> None:
    for inner in (Plain(), LayerScale(0.1)):
        block = Block(Attention(3), residual=FixedCountDepth(inner))
        assert [one.residual for one in even(block, 2, 0.3)] == [FixedCountDepth(replace(inner, drop=0.3))] * 2
        assert [one.residual.drop for one in deepening(block, 3, 0.2)] == [0.0, 0.1, 0.2]
    with pytest.raises(SpecError, match=r"drop: a drop rate of 1\.5"):
        FixedCountDepth(Plain(1.5))


def test_it_is_read_from_text_and_json(toy: Model) -> None:
    spec = override(toy, "layers[2].residual=FixedCountDepth(Plain(0.2))", "layers[3].residual=FixedCountDepth")
    spec = override(spec, "layers[3].residual.inner=LayerScale(0.1, drop=0.3)")
    assert [block.residual for block in spec.layers[2:]] == [
        FixedCountDepth(Plain(0.2)),
        FixedCountDepth(LayerScale(0.1, 0.3)),
    ]
    assert decode(json.loads(json.dumps(encode(spec))), Model) == spec
    nested = replace(toy.layers[2], residual=FixedCountDepth(FixedCountDepth()))
    with pytest.raises(SpecError, match=r"layers\[2\]\.residual\.inner: .* Expected Plain or LayerScale"):
        replace(toy, layers=(*toy.layers[:2], nested)).build()


# ------------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_changes_and_keeps_weights_draws_costs_and_evaluation(family: str) -> None:
    spec = FAMILIES[family]
    changed = with_fixed_count_depth(spec)
    assert changed != spec and with_fixed_count_depth(changed) == changed
    assert decode(json.loads(json.dumps(encode(changed))), Model) == changed
    plain, module = spec.build(seed=3), changed.build(seed=3)
    assert any(isinstance(part, FixedCountSum) for part in module.modules())
    assert module.rows == plain.rows
    ours, theirs = module.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    one, other = cost(changed), cost(spec)
    assert (one.parameters, one.macs) == (other.parameters, other.macs)
    image_BCHW = torch.randn(2, 3, changed.image.height, changed.image.width)
    with torch.no_grad():
        logits, expected = module.eval()(image_BCHW), plain.eval()(image_BCHW)
    assert all(torch.equal(logits[head], expected[head]) for head in expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_trains_on_few_samples_as_on_all_under_a_mask(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = override(with_fixed_count_depth(FAMILIES[family]), "layers[*].residual.inner.drop=0.5")
    module = changed.build(seed=0).double().train()
    image_BCHW = torch.randn(BATCH, 3, changed.image.height, changed.image.width, dtype=torch.float64)
    draws = module.random_draws(BATCH)

    def logits(x_BCHW: Tensor, draws_RB: Tensor) -> Tensor:
        return torch.stack([*module(x_BCHW, draws_RB).values()], dim=1)

    found = values_and_gradients(logits, module, image_BCHW, draws)
    monkeypatch.setattr("frugalvit.nn.block.kept_by", lambda total, batch: None)
    for one, other in zip(found, values_and_gradients(logits, module, image_BCHW, draws), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", CHANGES)
def test_it_combines_with_every_change_in_either_order(name: str) -> None:
    for family, spec in FAMILIES.items():
        try:
            wanted = CHANGES[name](spec)
        except SpecError:
            continue
        behind = with_fixed_count_depth(wanted)
        assert CHANGES[name](with_fixed_count_depth(spec)) == behind, family
        assert all(isinstance(one.residual, FixedCountDepth) for one in behind.layers if isinstance(one, (Block, SummaryBlock)))


@pytest.mark.parametrize("family", ["ViT", "DeiT", "CaiT", "ConViT", "PiT", "Swin"])
def test_foreign_weights_fit_the_changed_model_too(family: str) -> None:
    spec = FAMILIES[family]
    plain, module = spec.build(seed=1), with_fixed_count_depth(spec).build(seed=2)
    written = export_weights(plain)
    load_weights(module, written)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(value, written[name]) for name, value in export_weights(module).items())


def test_a_name_can_end_in_it_and_a_model_that_drops_nothing_is_refused() -> None:
    assert changes()["fixed_count_depth"] is with_fixed_count_depth
    spec = model("deit_small_patch16_224+fixed_count_depth", drop_path=0.1)
    assert spec == with_fixed_count_depth(model("deit_small_patch16_224", drop_path=0.1))
    assert [block.residual.drop for block in spec.layers[2:]] == pytest.approx([0.1 * i / 11 for i in range(12)])
    with pytest.raises(SpecError, match=r"model\.layers: no block drops a branch, so there is nothing to skip\. Set drop_path"):
        model("deit_small_patch16_224+fixed_count_depth")
    with pytest.raises(SpecError, match="this is ConvNet"):
        model("resnet50+fixed_count_depth")
    with pytest.raises(SpecError, match="LayerScale already"):
        with_layer_scale(with_fixed_count_depth(FAMILIES["CaiT"]), 0.5)


def test_a_tapped_map_is_of_all_samples(toy: Model) -> None:
    spec = override(toy, "layers[*].residual=FixedCountDepth(Plain(0.5))")
    module = spec.build(seed=0, taps=("attention[0]", "attention[1]", "tokens[1]")).double().train()
    image_BCHW, draws = torch.randn(BATCH, 3, 20, 28, dtype=torch.float64), module.random_draws(BATCH)
    outputs = module(image_BCHW, draws)
    untapped = spec.build(seed=0).double().train()(image_BCHW, draws)
    assert outputs["attention[1]"].shape == (BATCH, 3, 37, 37) and outputs["tokens[1]"].shape == (BATCH, 37, 12)
    torch.testing.assert_close(outputs["attention[0]"].sum(-1), torch.ones(BATCH, 3, 37, dtype=torch.float64))
    torch.testing.assert_close(outputs["class"], untapped["class"], atol=1e-12, rtol=1e-12)


# ------------------------------------------------------------------------------------------------ compilers


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_it_compiles_in_one_piece(toy: Model, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    module = override(toy, "layers[*].residual=FixedCountDepth(Plain(0.5))").build(seed=0).double().train()
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic)
    for batch in (BATCH, 7):
        image_BCHW, draws = torch.randn(batch, 3, 20, 28, dtype=torch.float64), module.random_draws(batch)
        results = [
            values_and_gradients(lambda *inputs, run=run: run(*inputs)["class"], module.layers, image_BCHW, draws)
            for run in (compiled, module)
        ]
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_cuda_graph_holds_it(toy: Model) -> None:
    module = override(toy, "layers[*].residual=FixedCountDepth(Plain(0.5))").build(seed=0).cuda().train()
    compiled = torch.compile(module, fullgraph=True)
    image_BCHW, draws = torch.randn(64, 3, 20, 28, device="cuda"), module.random_draws(64)

    def step(run: nn.Module) -> list[Tensor]:
        loss = torch.stack([*run(image_BCHW, draws).values()]).square().sum()
        return [loss.detach(), *torch.autograd.grad(loss, [*module.parameters()])]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(compiled)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(compiled)
    for _ in range(2):
        draws.copy_(module.random_draws(64))
        graph.replay()
        for one, other in zip(results, step(module), strict=True):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
