"""What the weights of a binary model may be: of one bit, damped, real, or part of a twin in full precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import batch_norm, linear

from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_linear import Binary, CenteredSigns, FullPrecision, RealWeights, Signs
from frugalvit.nn.binary_merge import BinaryMerge
from frugalvit.nn.quantize import OneBit
from frugalvit.nn.shape import Shape
from frugalvit.spec import decode, encode, swap
from frugalvit.zoo.binarize import with_damping, with_full_precision, with_real_weights
from frugalvit.zoo.binaryvit import binary_deit, binaryvit
from frugalvit.zoo.deit import deit
from frugalvit.zoo.reactnet import reactnet

SIZES = dict(image=16, classes=5)
PYRAMID = binaryvit(dim=16, heads=(2, 4), depths=(1, 2), ratios=(4, 2), reductions=(2, 1), patch=2, **SIZES)
FLAT = binary_deit(dim=24, heads=3, depth=2, patch=4, **SIZES)
CONVNET = reactnet(widths=(32, 64), **SIZES)
EVEN = Shape(12, 4, 6)


def weights(spec: Architecture) -> set[object]:
    found: set[object] = set()
    swap(spec, (CenteredSigns, Signs, RealWeights, FullPrecision), lambda one: found.add(one) or one)
    return found


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        tensor.data.normal_(0.0, 0.5)
        if name.endswith("running_var"):
            tensor.data.abs_().add_(0.01)
    return module.double().eval()


def normed(x_BND: torch.Tensor, norm: torch.nn.Module) -> torch.Tensor:
    flat = batch_norm(x_BND.flatten(0, 1), norm.running_mean, norm.running_var, norm.weight, norm.bias)
    return flat.view_as(x_BND)


def mapped(x_BND: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    """RPReLU(norm(W (x + shift)) + x), nothing rounded."""
    y_BND = normed(linear(x_BND + module.shift, module.product.weight), module.norm) + x_BND - module.act.before
    return torch.where(y_BND > 0, y_BND, module.act.slope * y_BND) + module.act.after


def test_a_map_in_full_precision_is_its_equation_without_signs() -> None:
    module = randomized(Binary(FullPrecision()).build(12, 12))
    x_BND = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(module(x_BND), mapped(x_BND, module))


def test_attention_in_full_precision_gathers_by_its_softmax() -> None:
    module = randomized(BinaryAttention(3, linear=Binary(FullPrecision())).build(EVEN))
    x_BND = torch.randn(2, EVEN.length, 12, dtype=torch.float64)
    q, k, v = (mapped(x_BND, part) for part in (module.query, module.key, module.value))
    heads = [(one + shift).unflatten(-1, (3, 4)).transpose(1, 2) for one, shift in zip((q, k, v), shifts(module), strict=True)]
    gathered_BHNK = torch.nn.functional.scaled_dot_product_attention(*heads)
    context_BND = normed(gathered_BHNK.transpose(1, 2).flatten(2), module.norm) + q + k + v - module.act.before
    context_BND = torch.where(context_BND > 0, context_BND, module.act.slope * context_BND) + module.act.after
    y_BND, attention_BHNN = module.explained(x_BND)
    torch.testing.assert_close(y_BND, mapped(context_BND, module.out))
    torch.testing.assert_close(attention_BHNN.sum(-1), torch.ones_like(attention_BHNN.sum(-1)))


def shifts(module: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    return module.shift_q, module.shift_k, module.shift_v


def test_merging_in_full_precision_sees_the_size_of_what_it_merges() -> None:
    real, _ = BinaryMerge(FullPrecision()).build(EVEN)
    signed, _ = BinaryMerge().build(EVEN)
    signed.load_state_dict(real.state_dict())
    x_BND = torch.randn(2, EVEN.length, 12)
    grown_BND = x_BND.abs().sqrt() * x_BND.sign()  # the same signs, other sizes
    for module, same in ((real.eval(), False), (signed.eval(), True)):
        rows = [module.rows(module.bits(module.norm1(one))) for one in (x_BND, grown_BND)]
        assert torch.equal(*map(module.product, rows)) == same


@pytest.mark.parametrize("spec", [PYRAMID, FLAT], ids=["pyramid", "flat"])
def test_the_twin_has_the_names_and_sizes_of_its_binary_model_and_no_bit(spec: Architecture) -> None:
    twin = with_full_precision(spec)
    assert weights(twin) == {FullPrecision()} and decode(encode(twin), type(spec)) == twin
    ours, theirs = twin.build(seed=0), spec.build(seed=0)
    assert {n: v.shape for n, v in ours.state_dict().items()} == {n: v.shape for n, v in theirs.state_dict().items()}
    assert not any(isinstance(one, OneBit) for one in ours.modules())
    counted, binary = cost(twin), cost(spec)
    assert (counted.bits, counted.bops, counted.macs) == (0, 0, binary.macs) and binary.bops > 0
    outputs = ours.train()(torch.randn(3, 3, 16, 16))["class"]
    outputs.square().mean().backward()
    idle = {name.rpartition(".")[2] for name, one in ours.named_parameters() if one.grad is None}
    assert idle == {"step"}


@pytest.mark.parametrize("spec", [PYRAMID, FLAT, CONVNET], ids=["pyramid", "flat", "reactnet"])
def test_real_weights_and_damping_reach_every_product(spec: Architecture) -> None:
    assert weights(with_real_weights(spec)) == {RealWeights()}
    assert {one.damping for one in weights(with_damping(spec, 0.25))} == {0.25}
    assert with_damping(spec, 0.0) == spec
    staged = with_real_weights(spec)
    assert with_damping(staged, 0.25) == staged == with_real_weights(staged)


def test_models_without_a_bit_are_refused() -> None:
    plain = deit(dim=24, heads=3, depth=1, patch=4, **SIZES)
    for change in (with_real_weights, with_full_precision, lambda one: with_damping(one, 0.1)):
        with pytest.raises(SpecError, match=r"^model: nothing in it has one bit"):
            change(plain)
    with pytest.raises(SpecError, match=r"^model: it is for transformers \(Model\), and this is ConvNet"):
        with_full_precision(CONVNET)  # type: ignore[type-var]
    assert weights(with_real_weights(replace(CONVNET, classes=None))) == {RealWeights()}
