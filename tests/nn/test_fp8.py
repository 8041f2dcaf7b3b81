"""Linear maps in 8-bit floats against a loop that rounds by hand, in value and gradient; and models made of them."""

from __future__ import annotations

import copy
import functools
import json
import math
import pickle
from collections.abc import Callable

import pytest
import timm
import torch
from sklearn.datasets import load_digits
from tests.test_matrix import CHANGES
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from frugalvit.assign import override
from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn import fp8
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block
from frugalvit.nn.fp8 import E4M3, E5M2, LEAST, fp8_linear, multiplied, product, rounded, rounded_linear
from frugalvit.nn.init import Normal
from frugalvit.nn.linear import Dense, DenseLinear, Fp8, Fp8Linear, stackable
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.projection import Apart, Together
from frugalvit.nn.score import GatePosition
from frugalvit.nn.shape import Shape
from frugalvit.recipes import digits as digits_recipes
from frugalvit.spec import decode, encode
from frugalvit.weights.load import export_weights, load_weights
from frugalvit.zoo.cait import cait
from frugalvit.zoo.change import with_classes, with_fp8_linears
from frugalvit.zoo.convit import convit
from frugalvit.zoo.deit import deit
from frugalvit.zoo.find import changes, model
from frugalvit.zoo.hybrid import hybrid
from frugalvit.zoo.pit import pit
from frugalvit.zoo.small import small_t2t
from frugalvit.zoo.swin import swin
from frugalvit.zoo.vit import vit

FORMATS = {"e4m3": (E4M3, 3, -6, 448.0), "e5m2": (E5M2, 2, -14, 57344.0)}  # bits behind the point, least exponent, largest
WIDE = Fp8(Normal(0.5), Normal(0.5))
SMALL = dict(image=32, classes=5, drop_path=0.1)
FAMILIES = {  # as in test_matrix.py, of widths that are multiples of 16
    "ViT": vit(dim=48, heads=4, depth=4, patch=4, **SMALL),
    "DeiT": deit(dim=48, heads=4, depth=4, patch=4, **SMALL),
    "CaiT": cait(dim=48, heads=4, depth=4, patch=4, layer_scale=0.1, **SMALL),
    "ConViT": convit(dim=48, heads=4, depth=4, local=2, patch=4, **SMALL),
    "PiT": pit(dim=32, heads=(2, 4), depths=(2, 2), patch=4, stride=4, **SMALL),
    "Swin": swin(dim=32, heads=(2, 4), depths=(2, 2), patch=4, window=4, **SMALL),
    "T2T": small_t2t(dim=48, width=6, heads=4, depth=4, **SMALL),
    "hybrid": hybrid(dim=48, heads=4, depth=4, depths=(), patch=2, image=64, classes=5, drop_path=0.1),
}
has_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def naive_rounded(matrix: list[list[float]], name: str) -> list[list[float]]:
    """s · fp8(a / s): by hand, since Python rounds halves to even as the formats do."""
    _, bits, least, largest = FORMATS[name]
    top = max(abs(v) for row in matrix for v in row)
    scale = 2.0**-99
    while top / scale <= largest / 2:
        scale /= 2
    while top / scale > largest:
        scale *= 2

    def one(v: float) -> float:
        exponent = max(math.frexp(v / scale)[1] - 1, least)
        step = 2.0 ** (exponent - bits)
        return scale * step * round(v / scale / step)

    return [[one(v) for v in row] for row in matrix]


def naive_product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def turned(matrix: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*matrix, strict=True)]


def operands(count: int = 10, fan_in: int = 48, fan_out: int = 32, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x, W, b and the gradient of y; the sizes of entries go over many powers of two."""
    x_NI = torch.randn(count, fan_in) * torch.randn(count, fan_in).exp() * 3
    weight_OI = torch.randn(fan_out, fan_in) * 0.02
    grad_NO = torch.randn(count, fan_out) * torch.randn(count, fan_out).exp() * 1e-4
    return [one.to(dtype) for one in (x_NI, weight_OI, torch.randn(fan_out), grad_NO)]


def values_and_gradients(run: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> list[Tensor]:
    """y, dx, dW, db."""
    x, weight, bias = (one.clone().requires_grad_() for one in (x, weight, bias))
    y = run(x, weight, bias)
    return [y.detach(), *torch.autograd.grad(y, (x, weight, bias), grad.to(y.dtype))]


cores_on_cpu = functools.partial(multiplied, cores=True)  # torch computes the same product on the CPU, slowly


# ------------------------------------------------------------------------------------------------ the definition


def test_values_and_gradients_are_what_a_loop_with_rounding_by_hand_gives() -> None:
    x_NI, weight_OI, bias, grad_NO = operands(5, 7, 3, torch.float64)
    found = values_and_gradients(rounded_linear, x_NI, weight_OI, bias, grad_NO)
    x, weight = naive_rounded(x_NI.tolist(), "e4m3"), naive_rounded(weight_OI.tolist(), "e4m3")
    grad = naive_rounded(grad_NO.tolist(), "e5m2")
    y = [[v + b for v, b in zip(row, bias.tolist(), strict=True)] for row in naive_product(x, turned(weight))]
    wanted = [y, naive_product(grad, weight), naive_product(turned(grad), x), [sum(c) for c in turned(grad_NO.tolist())]]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.tolist(), other, atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [1e-20, 3e-5, 1.0, 7.0, 448.0, 1e25])
def test_rounding_is_to_the_nearest_of_the_format(name: str, size: float) -> None:
    kind, _, _, largest = FORMATS[name]
    x_MK = torch.randn(40, 30) * torch.randn(40, 30).mul(3).exp()
    x_MK = x_MK / x_MK.abs().max() * size
    values, scale = rounded(x_MK, kind)
    assert values.dtype == kind and scale.dtype == torch.float32 and scale.shape == ()
    assert largest / 2 < values.double().abs().max() <= largest
    wanted = torch.tensor(naive_rounded(x_MK.double().tolist(), name), dtype=torch.float64)
    assert torch.equal(values.double() * scale.double(), wanted)
    assert torch.equal(values.double() * scale.double(), values.bfloat16().double() * scale.bfloat16().double())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("power", [-60, -1, 0, 5, 100])
def test_the_scale_is_the_least_power_of_two_with_which_the_largest_entry_fits(name: str, power: int) -> None:
    kind, _, _, largest = FORMATS[name]
    for factor, expected in ((1.0, 1.0), (0.5, 0.5), (1 + 2.0**-23, 2.0), (0.99, 1.0), (0.51, 1.0)):
        x_MK = torch.tensor([[factor * largest * 2.0**power, 0.0]])
        values, scale = rounded(-x_MK, kind)
        assert scale.item() == expected * 2.0**power
        torch.testing.assert_close(values.float() * scale, -x_MK, rtol=0.13, atol=0)


def test_the_gradient_is_that_of_rounded_matrices_with_rounding_as_the_identity() -> None:
    def straight(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        def through(one: Tensor) -> Tensor:
            values, scale = rounded(one.detach(), E4M3)
            return one + (values.double() * scale - one).detach()

        y = nn.functional.linear(through(x), through(weight))
        y.register_hook(lambda grad: rounded(grad, E5M2).values.double() * rounded(grad, E5M2).scale)
        return y + bias

    given = operands(dtype=torch.float64)
    wanted = values_and_gradients(straight, *given)
    for one, other in zip(values_and_gradients(rounded_linear, *given), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-14, rtol=1e-12)


def test_it_is_near_the_exact_product_and_not_equal_to_it() -> None:
    given = operands(300)
    exact = values_and_gradients(nn.functional.linear, *given)
    found = values_and_gradients(rounded_linear, *given)
    far = [((one - other).norm() / other.norm()).item() for one, other in zip(found, exact, strict=True)]
    assert all(0.01 < one < 0.08 for one in far[:3]) and far[3] < 1e-6, far


def test_a_second_derivative_is_refused() -> None:
    x_NI, weight_OI, bias, grad_NO = operands()
    y_NO = rounded_linear(x_NI.requires_grad_(), weight_OI, bias)
    (dx_NI,) = torch.autograd.grad(y_NO, x_NI, grad_NO.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx_NI.sum().backward()


def test_neighbors_change_nothing_but_entries_far_below_the_largest() -> None:
    x_NI, weight_OI, bias, _ = operands(2, dtype=torch.float64)
    x_NI[0] = x_NI[0].sign() * x_NI[0].abs().clamp(0.5, 4.0)
    alone_O = rounded_linear(x_NI[:1], weight_OI, bias)[0]
    for size in (0.0, 1.0, 30.0):  # 30 / 448 · 2^-6, below which steps are equal, is far below 0.5
        x_NI[1] = torch.linspace(-size, size, 48)
        torch.testing.assert_close(rounded_linear(x_NI, weight_OI, bias)[0], alone_O, atol=1e-14, rtol=1e-12)


# ------------------------------------------------------------------------------------------------ odd numbers


@pytest.mark.parametrize("run", [rounded_linear, cores_on_cpu], ids=["defined", "cores"])
def test_zeros_give_zeros(run: Callable[..., Tensor]) -> None:
    for place in (0, 1, 3):
        given = operands()
        given[place] = torch.zeros_like(given[place])
        y_NO, dx_NI, dweight_OI, _ = values_and_gradients(run, *given)
        zero = {0: (y_NO - given[2], dweight_OI), 1: (y_NO - given[2], dx_NI), 3: (dx_NI, dweight_OI)}[place]
        assert all(not one.any() for one in zero)
        assert all(one.isfinite().all() for one in (y_NO, dx_NI, dweight_OI))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("run", [rounded_linear, cores_on_cpu], ids=["defined", "cores"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_not_clipped(bad: float, run: Callable[..., Tensor], kind: torch.dtype) -> None:
    for place in (0, 1, 3):
        given = operands()
        given[0] = given[0].to(kind)
        given[place][3, 5] = bad
        y_NO, dx_NI, dweight_OI, _ = values_and_gradients(run, *given)
        lost = {0: (y_NO, dweight_OI), 1: (y_NO, dx_NI), 3: (dx_NI, dweight_OI)}[place]
        assert all(one.isnan().all() for one in lost)


def test_a_picture_that_is_no_number_shows_in_the_loss() -> None:
    module = with_fp8_linears(FAMILIES["DeiT"]).build(seed=0).eval()
    image_BCHW = torch.randn(2, 3, 32, 32)
    image_BCHW[0, 0, 3, 3] = math.inf
    assert not module(image_BCHW)["class"].square().mean().isfinite()


@pytest.mark.parametrize("run", [rounded_linear, cores_on_cpu], ids=["defined", "cores"])
def test_very_large_and_very_small_numbers_are_scaled(run: Callable[..., Tensor]) -> None:
    given = operands()
    wanted = values_and_gradients(run, given[0], given[1], torch.zeros(32), given[3])
    for a, b, c in ((60, -60, 30), (-60, 60, -30), (50, 50, -50), (-40, -40, 50), (0, 0, -70)):
        x_NI, weight_OI, grad_NO = given[0] * 2.0**a, given[1] * 2.0**b, given[3] * 2.0**c
        y_NO, dx_NI, dweight_OI, _ = values_and_gradients(run, x_NI, weight_OI, torch.zeros(32), grad_NO)
        assert torch.equal(y_NO, wanted[0] * 2.0 ** (a + b))
        assert torch.equal(dx_NI, wanted[1] * 2.0 ** (c + b))
        assert torch.equal(dweight_OI, wanted[2] * 2.0 ** (a + c))


def test_the_ends_of_fp32_have_scales_too() -> None:
    for kind in (E4M3, E5M2):
        for top in (0.9 * torch.finfo(torch.float32).max, LEAST, LEAST / 2, torch.finfo(torch.float32).tiny, 1e-45):
            values, scale = rounded(torch.tensor([[top, -top, 0.0]]), kind)
            assert scale.isfinite() and scale > torch.finfo(torch.float32).tiny and values.float().isfinite().all()
            if top >= LEAST:
                torch.testing.assert_close(values.float() * scale, torch.tensor([[top, -top, 0.0]]), rtol=0.13, atol=0)


# ------------------------------------------------------------------------------------------------ precisions and shapes


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [10, 32])
def test_the_tensor_cores_way_is_the_definition(kind: torch.dtype, count: int) -> None:
    given = operands(count)
    given[0] = given[0].to(kind)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[kind]
    found, wanted = (values_and_gradients(run, *given) for run in (cores_on_cpu, rounded_linear))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, atol=tolerance * other.abs().max().item(), rtol=0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_in_low_precision_the_same_rounded_numbers_are_multiplied(kind: torch.dtype) -> None:
    x_NI, weight_OI, bias, grad_NO = operands()
    x_NI = x_NI.to(kind)
    with torch.autocast("cpu", kind):
        low = values_and_gradients(rounded_linear, x_NI, weight_OI, bias, grad_NO.to(kind))
    exact = values_and_gradients(rounded_linear, x_NI.double(), weight_OI, bias, grad_NO.to(kind))
    for one, other in zip(low, exact, strict=True):
        assert (one - other).norm() / other.norm() < 2 * torch.finfo(kind).eps


def test_the_output_is_of_the_kind_of_other_products_here_and_gradients_of_their_parameters() -> None:
    x_NI, weight_OI, bias, grad_NO = operands()
    for given in (torch.float32, torch.bfloat16):
        assert rounded_linear(x_NI.to(given), weight_OI, bias).dtype == given
        with torch.autocast("cpu", torch.bfloat16):
            found = values_and_gradients(rounded_linear, x_NI.to(given), weight_OI, bias, grad_NO)
        assert [one.dtype for one in found] == [torch.bfloat16, given, torch.float32, torch.float32]


def test_layouts_are_those_that_cuda_takes() -> None:
    with FakeTensorMode():
        for count in (7, 64, 197):
            for kind in (torch.float32, torch.bfloat16, torch.float16):
                x_NI, weight_OI = torch.empty(48, count, device="cuda", dtype=kind).t(), torch.empty(32, 48, device="cuda")
                x, weight, grad = (rounded(one, E4M3) for one in (x_NI, weight_OI, torch.empty(count, 32, device="cuda")))
                assert product(x, weight, kind, True, torch.empty(32, device="cuda")).shape == (count, 32)
                assert product(grad, weight.turned(), kind, True).shape == (count, 48)
                assert product(grad.turned(), x.turned(), kind, True).shape == (32, 48)
                assert fp8_linear(x_NI, weight_OI, None).dtype == kind
                assert fp8_linear(x_NI[:, :7], weight_OI[:9, :7], None).shape == (count, 9)


def test_any_number_of_axes_fits_and_none_of_them_may_be_empty_of_meaning() -> None:
    module = WIDE.build(7, 3)
    x_BHWI = torch.randn(2, 4, 5, 7)
    y_BHWO = module(x_BHWI)
    assert y_BHWO.shape == (2, 4, 5, 3) and torch.equal(module(x_BHWI.flatten(0, 2)), y_BHWO.flatten(0, 2))
    assert module(x_BHWI[0, 0, 0]).shape == (3,)
    empty = module(x_BHWI[:0])
    assert empty.shape == (0, 4, 5, 3)
    empty.sum().backward()
    assert not module.weight.grad.any()
    turned_IB = torch.randn(7, 4).t()
    assert torch.equal(module(turned_IB), module(turned_IB.contiguous()))


def test_only_what_learns_gets_a_gradient() -> None:
    x_NI, weight_OI, bias, grad_NO = operands()
    for learning in ((0,), (1,), (2,), (0, 2)):
        given = [one.clone().requires_grad_(place in learning) for place, one in enumerate((x_NI, weight_OI, bias))]
        rounded_linear(*given).backward(grad_NO)
        assert [one.grad is not None for one in given] == [place in learning for place in range(3)]
    unbiased = Fp8(bias=None).build(48, 32)
    assert unbiased.bias is None and unbiased(x_NI).shape == (10, 32)


# ------------------------------------------------------------------------------------------------ parts


def test_q_k_and_v_are_one_product(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*given: object) -> Tensor:
        calls.append(given[1].shape)
        return multiplied(*given)

    monkeypatch.setattr(fp8, "multiplied", counted)
    module, _ = Block(Attention(3, linear=WIDE), Mlp(2.5, linear=WIDE)).build(shape)
    assert isinstance(module.attention.qkv, Together)
    module(torch.randn(2, shape.length, shape.dim))
    assert calls == [(36, 12), (12, 12), (30, 12), (12, 30)]
    mixed = Attention(3, linear=WIDE, query=Dense()).build(shape)
    assert isinstance(mixed.qkv, Apart)  # one product for both kinds there is not
    assert not stackable((Fp8().build(4, 4), Fp8(bias=None).build(4, 4)))


def test_stacked_maps_are_the_map_of_the_stacked_weights(shape: Shape) -> None:
    module = Attention(3, linear=WIDE).build(shape)
    whole = WIDE.build(12, 36)
    with torch.no_grad():
        whole.weight.copy_(module.qkv.weight)
        whole.bias.copy_(module.qkv.bias)
    x_BND = torch.randn(2, shape.length, shape.dim)
    assert torch.equal(module.qkv.joined(x_BND), whole(x_BND))


def test_a_gates_factor_of_the_values_does_not_change_what_is_rounded() -> None:
    shape = Shape(12, 5, 7)
    module = Attention(3, linear=WIDE, after=(GatePosition(),)).build(shape).double()
    assert module.fused
    x_BND = torch.randn(2, shape.length, shape.dim, dtype=torch.float64)
    torch.testing.assert_close(module(x_BND), module.explained(x_BND)[0], atol=1e-12, rtol=1e-10)


def test_initial_values_and_names_are_those_of_dense() -> None:
    for spec in (Dense(), Dense(Normal(0.5), Normal(0.3)), Dense(bias=None)):
        torch.manual_seed(3)
        dense = spec.build(5, 7)
        torch.manual_seed(3)
        ours = Fp8(spec.weight, spec.bias).build(5, 7)
        assert isinstance(ours, Fp8Linear) and list(ours.state_dict()) == list(dense.state_dict())
        assert all(torch.equal(one, dense.state_dict()[name]) for name, one in ours.state_dict().items())
    again = pickle.loads(pickle.dumps(copy.deepcopy(ours)))
    assert torch.equal(again(torch.ones(5)), ours(torch.ones(5)))


def test_it_is_read_from_text_and_json(toy: Model) -> None:
    spec = override(toy, "layers[2].mlp.linear=Fp8", "layers[3].attention.linear=Fp8(Normal(0.1), None)")
    assert spec.layers[2].mlp.linear == Fp8() and spec.layers[3].attention.linear == Fp8(Normal(0.1), None)
    assert decode(json.loads(json.dumps(encode(spec))), Model) == spec


# ------------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize("family", FAMILIES)
def test_the_maps_of_blocks_change_and_nothing_else(family: str) -> None:
    spec = FAMILIES[family]
    changed = with_fp8_linears(spec)
    assert changed != spec and with_fp8_linears(changed) == changed
    assert (changed.tokenizer, changed.readout) == (spec.tokenizer, spec.readout)
    assert decode(json.loads(json.dumps(encode(changed))), Model) == changed
    plain, module = spec.build(seed=3), changed.build(seed=3)
    ours, theirs = module.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name, part in module.named_modules():
        inside = name.startswith("layers.") and (".attention." in name or ".mlp." in name)
        rounds = getattr(part, "product", None) in (fp8_linear, rounded_linear)
        if isinstance(part, (DenseLinear, Together)):
            assert rounds == inside, name
    module.load_state_dict(spec.build(seed=4).state_dict())
    plain.load_state_dict(module.state_dict())
    image_BCHW = torch.randn(2, 3, spec.image.height, spec.image.width)
    with torch.no_grad():
        logits, expected = module.eval()(image_BCHW)["class"], plain.eval()(image_BCHW)["class"]
    if expected.any():  # a ViT's head starts at zero
        assert 1e-4 < (logits - expected).norm() / expected.norm() < 0.2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_training_has_gradients_near_those_of_the_plain_model(family: str) -> None:
    spec = override(FAMILIES[family], "readout.linear.weight=Normal(0.2)")
    plain, module = spec.build(seed=0).train(), with_fp8_linears(spec).build(seed=0).train()
    image_BCHW, draws = torch.randn(4, 3, spec.image.height, spec.image.width), plain.random_draws(4)
    for one in (plain, module):
        nn.functional.cross_entropy(one(image_BCHW, draws)["class"], torch.arange(4)).backward()
    ours, theirs = (torch.cat([one.grad.flatten() for one in each.parameters()]) for each in (module, plain))
    assert ours.isfinite().all() and nn.functional.cosine_similarity(ours, theirs, 0) > 0.97


@pytest.mark.parametrize("name", CHANGES)
def test_it_combines_with_every_change_in_either_order(name: str) -> None:
    for family, spec in FAMILIES.items():
        try:
            wanted = CHANGES[name](spec)
        except SpecError:
            continue
        behind = with_fp8_linears(wanted)
        assert CHANGES[name](with_fp8_linears(spec)) == behind, family
        module = behind.build(seed=0).train()
        outputs = module(torch.randn(2, 3, spec.image.height, spec.image.width), module.random_draws(2))
        sum(logits_BC.square().sum() for logits_BC in outputs.values()).backward()
        assert all(parameter.grad.isfinite().all() for parameter in module.parameters()), family


@pytest.mark.parametrize("family", ["ViT", "DeiT", "CaiT", "ConViT", "PiT", "Swin"])
def test_foreign_weights_fit_the_changed_model_too(family: str) -> None:
    spec = FAMILIES[family]
    plain, module = spec.build(seed=1), with_fp8_linears(spec).build(seed=2)
    written = export_weights(plain)
    load_weights(module, written)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(value, written[name]) for name, value in export_weights(module).items())


def test_timms_weights_give_nearly_timms_logits() -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=7, weight_init="skip").eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, 0.0, 0.1)
    ours = model("deit_tiny_patch16_224+fp8_linears", image=32, classes=7).build().eval()
    load_weights(ours, theirs.state_dict())
    image_BCHW = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted_BC, found_BC = theirs(image_BCHW), ours(image_BCHW)["class"]
    assert 1e-4 < (found_BC - wanted_BC).norm() / wanted_BC.norm() < 0.15


def test_costs_are_those_of_the_plain_model_with_less_to_keep() -> None:
    spec = FAMILIES["DeiT"]
    plain, changed = cost(spec), cost(with_fp8_linears(spec))
    assert (changed.parameters, changed.macs) == (plain.parameters, plain.macs)
    assert changed.activations < plain.activations


def test_a_name_can_end_in_it_and_widths_that_do_not_tile_are_refused() -> None:
    assert changes()["fp8_linears"] is with_fp8_linears
    spec = model("deit_base_patch16_224+fp8_linears")
    assert spec == with_fp8_linears(model("deit_base_patch16_224")) and spec.layers[2].mlp.linear == Fp8()
    with pytest.raises(SpecError, match=r"^model\.layers\[2\]: attention\.qkv maps 24 features to 72, and .* multiples of 16"):
        with_fp8_linears(deit(dim=24, heads=4, depth=2, patch=4, image=16))
    with pytest.raises(SpecError, match=r"^model\.layers\[3\]: mlp\.up maps 48 features to 72, and"):
        with_fp8_linears(override(FAMILIES["DeiT"], "layers[3].mlp.ratio=1.5"))
    with pytest.raises(SpecError, match=r"^model\.layers\[4\]: attention\.qkv maps 48 features to 60, and"):
        with_fp8_linears(override(FAMILIES["DeiT"], "layers[4].attention.head_dim=5"))
    with pytest.raises(SpecError, match="this is ConvNet"):
        model("resnet50+fp8_linears")


def test_it_learns_digits_as_the_plain_model_does() -> None:
    spec = with_classes(digits_recipes.deit(depth=2).model, 10)
    digits = load_digits()
    image_BCHW = torch.tensor(digits.images[:256, None] / 16, dtype=torch.float32)
    label_B = torch.tensor(digits.target[:256])
    last = []
    for changed in (spec, with_fp8_linears(spec)):
        module = changed.build(seed=0).train()
        optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
        losses = []
        for step in range(24):
            batch = slice(step * 64 % 256, step * 64 % 256 + 64)
            loss = nn.functional.cross_entropy(module(image_BCHW[batch])["class"], label_B[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        last.append(sum(losses[-4:]) / 4)
    assert last[1] < 1.8 < 2.2 < losses[0] and abs(last[0] - last[1]) < 0.2, last


# ------------------------------------------------------------------------------------------------ compilers and GPUs


@pytest.mark.slow
@pytest.mark.parametrize("run", [rounded_linear, cores_on_cpu], ids=["defined", "cores"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_it_compiles_in_one_piece(dynamic: bool | None, run: Callable[..., Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: run(*given), fullgraph=True, dynamic=dynamic)
    for count in (10, 32, 7):
        for bad in (None, math.inf, math.nan):
            given = operands(count)
            if bad is not None:
                given[0][2, 3] = bad
            for one, other in zip(*(values_and_gradients(each, *given) for each in (compiled, run)), strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.slow
def test_a_whole_model_compiles_in_one_piece() -> None:
    torch._dynamo.reset()
    module = with_fp8_linears(deit(dim=48, heads=4, depth=1, patch=4, image=16, classes=5)).build(seed=0).train()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")  # the same kernels: a fused one rounds elsewhere
    image_BCHW = torch.randn(4, 3, 16, 16)
    for rounds in (False, True):
        results = []
        for run in (compiled, module):
            with torch.autocast("cpu", torch.bfloat16, enabled=rounds):
                logits_BC = run(image_BCHW)["class"]
            assert logits_BC.dtype == (torch.bfloat16 if rounds else torch.float32)
            results.append([logits_BC.detach(), *torch.autograd.grad(logits_BC.square().sum(), [*module.parameters()])])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)


def on_cuda(given: list[Tensor], kind: torch.dtype) -> list[Tensor]:
    x_NI, weight_OI, bias, grad_NO = (one.cuda() for one in given)
    return [x_NI.to(kind), weight_OI, bias, grad_NO.to(kind)]


def assert_near(found: list[Tensor], wanted: list[Tensor], far: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and (one - other).double().norm() < far * other.double().norm()


@pytest.mark.gpu
@has_cuda
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("count", [256, 1000, 3 * 197])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_the_tensor_cores_give_the_definition_on_cuda(kind: torch.dtype, count: int, compiled: bool) -> None:
    assert fp8.product_here() is fp8_linear, "the GPU multiplies no 8-bit floats"
    torch._dynamo.reset()
    given = on_cuda(operands(count, 384, 192), kind)
    run = torch.compile(fp8_linear, fullgraph=True) if compiled else fp8_linear
    wanted = values_and_gradients(rounded_linear, *(one.double() for one in given))
    wanted = [one.to(other.dtype) for one, other in zip(wanted, [given[0], *given[:3]], strict=True)]
    assert_near(values_and_gradients(run, *given), wanted, 0.005)


@pytest.mark.gpu
@has_cuda
@pytest.mark.parametrize("compiled", [False, True])
def test_odd_numbers_on_cuda(compiled: bool) -> None:
    torch._dynamo.reset()
    run = torch.compile(fp8_linear, fullgraph=True) if compiled else fp8_linear
    for kind in (torch.bfloat16, torch.float32):
        for bad in (math.inf, -math.inf, math.nan, 0.0):
            for place in (0, 1, 3):
                given = on_cuda(operands(64), kind)
                given[place] = torch.zeros_like(given[place])
                given[place][3, 5] = bad
                y_NO, dx_NI, dweight_OI, _ = values_and_gradients(run, *given)
                y_NO = y_NO - given[2].to(kind)
                concerned = {0: (y_NO, dweight_OI), 1: (y_NO, dx_NI), 3: (dx_NI, dweight_OI)}[place]
                assert all(not one.any() if bad == 0 else one.isnan().all() for one in concerned)


@pytest.mark.gpu
@has_cuda
def test_scales_and_rounded_values_are_the_same_bits_on_every_device() -> None:
    compiled = torch.compile(lambda x_MK: tuple(rounded(x_MK, E4M3)), fullgraph=True)
    for size in (1e-30, 1e-3, 1.75, 448.0, 1e30):
        x_MK = torch.randn(64, 96)
        x_MK = x_MK / x_MK.abs().max() * size
        values, scale = rounded(x_MK, E4M3)
        for run in (lambda one: rounded(one, E4M3), compiled):
            there, scale_there = run(x_MK.cuda())
            assert scale_there.item() == scale.item() and torch.equal(there.cpu().view(torch.uint8), values.view(torch.uint8))


@pytest.mark.gpu
@has_cuda
@pytest.mark.parametrize("compiled", [False, True])
def test_a_cuda_graph_holds_a_model_and_the_host_never_waits(compiled: bool) -> None:
    torch._dynamo.reset()
    module = with_fp8_linears(deit(dim=192, heads=3, depth=2, patch=4, image=32, classes=10)).build(seed=0).cuda().train()
    run = torch.compile(module, fullgraph=True) if compiled else module
    image_BCHW = torch.randn(32, 3, 32, 32, device="cuda")

    def step(run: Callable[..., dict[str, Tensor]]) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(image_BCHW)["class"].square().sum()
        return [loss.detach(), *torch.autograd.grad(loss, [*module.parameters()])]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(run)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(run)
    for _ in range(2):
        image_BCHW.copy_(torch.randn(32, 3, 32, 32))
        graph.replay()
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode("error")
            wanted = step(run)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for one, other in zip(results, wanted, strict=True):
            assert (one - other).norm() < 0.02 * other.norm() + 1e-4


@pytest.mark.gpu
@has_cuda
def test_a_model_on_the_tensor_cores_trains_as_on_the_definition() -> None:
    spec = with_fp8_linears(deit(dim=192, heads=3, depth=3, patch=4, image=32, classes=10))
    losses = []
    for definition in (False, True):
        module = spec.build(seed=0).cuda().train()
        for part in module.modules():
            if definition and getattr(part, "product", None) is fp8_linear:
                part.product = rounded_linear
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        torch.manual_seed(2)
        image_BCHW, label_B = torch.randn(32, 3, 32, 32, device="cuda"), torch.arange(32, device="cuda") % 10
        for _ in range(30):
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(module(image_BCHW)["class"], label_B)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 1.0 and abs(losses[0] - losses[1]) < 0.3, losses
