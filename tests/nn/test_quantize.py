"""Numbers of one bit, and their stand-in gradients, against the formulas of the paper's code written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from frugalvit.errors import SpecError
from frugalvit.nn.binary_linear import CenteredSigns, RealWeights, Signs
from frugalvit.nn.init import Normal
from frugalvit.nn.quantize import FLOOR, floored, sign, signs, thresholded

EDGES = [-3.0, -1.0, -0.999, -0.5, -1e-30, -0.0, 0.0, 1e-30, 0.25, 1.0, 1.001, 7.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_zero_counts_as_positive_and_nothing_but_two_values_comes_out(dtype: torch.dtype) -> None:
    x = torch.tensor(EDGES, dtype=dtype)
    expected = [-1.0] * 5 + [1.0] * 7
    for function in (sign, signs):
        assert function(x).tolist() == expected and function(x).dtype == dtype


def test_the_gradient_of_sign_is_the_bi_real_triangle() -> None:
    x = torch.tensor(EDGES, dtype=torch.float64, requires_grad=True)
    weight = torch.arange(1.0, 13.0, dtype=torch.float64)
    (sign(x) * weight).sum().backward()
    expected = []
    for value, w in zip(EDGES, weight.tolist(), strict=True):
        slope = 2 + 2 * value if -1 <= value < 0 else 2 - 2 * value if 0 <= value <= 1 else 0.0
        expected.append(slope * w)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.tolist(), expected, atol=1e-15, rtol=0)


def published(weight_OI: Tensor, center: bool) -> Tensor:
    """The straight-through formula of the released code, with torch's own gradients."""
    scale_O1 = weight_OI.abs().mean(1, keepdim=True).detach()
    real_OI = weight_OI - weight_OI.mean(1, keepdim=True) if center else weight_OI
    clipped_OI = real_OI.clamp(-1, 1)
    return (scale_O1 * real_OI.sign()).detach() - clipped_OI.detach() + clipped_OI


@pytest.mark.parametrize(("spec", "center"), [(CenteredSigns(), True), (Signs(), False)])
def test_a_signed_product_and_its_gradients_are_those_of_the_published_formula(
    spec: CenteredSigns | Signs, center: bool
) -> None:
    module = spec.build((5, 12), Normal(0.8)).double()  # some weights lie beyond ±1
    assert (module.weight.abs() > 1).any() and (module.weight.abs() < 1).any()
    results = []
    for own in (True, False):
        torch.manual_seed(1)
        x_BNI = signs(torch.randn(2, 7, 12, dtype=torch.float64)).requires_grad_()
        module.zero_grad()
        y_BNO = module(x_BNI) if own else x_BNI @ published(module.weight, center).T
        (y_BNO * torch.randn_like(y_BNO)).sum().backward()
        results.append((y_BNO, x_BNI.grad, module.weight.grad.clone()))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_centered_rows_are_signs_of_the_centered_weight_times_the_mean_of_the_uncentered() -> None:
    module = CenteredSigns().build((3, 4), Normal(1.0)).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 6.0], [-1.0, -1.0, -1.0, -1.0], [0.5, -0.5, 0.25, 0.0]]))
    signs_OI, scale_O = module.rows()
    assert signs_OI.tolist() == [[-1, -1, 1, 1], [1, 1, 1, 1], [1, -1, 1, -1]]
    assert scale_O.tolist() == [3.0, 1.0, 0.3125]


def test_a_kernel_has_one_scale_for_all_that_an_output_sees() -> None:
    module = Signs().build((4, 3, 2, 2), Normal(1.0)).double()
    signs_OI, scale_O = module.rows()
    assert signs_OI.shape == (4, 12)
    for o in range(4):
        values = module.weight[o].flatten().tolist()
        assert signs_OI[o].tolist() == [1.0 if value >= 0 else -1.0 for value in values]
        assert scale_O[o].item() == pytest.approx(sum(map(abs, values)) / 12, abs=1e-12)


def test_a_row_of_zeros_gives_zeros_and_finite_gradients() -> None:
    module = CenteredSigns().build((2, 4), Normal(1.0))
    with torch.no_grad():
        module.weight[0].zero_()
    y_O = module(torch.ones(4))
    y_O.sum().backward()
    assert y_O[0] == 0 and module.weight.grad.isfinite().all()


def test_products_of_signs_are_exact_where_scaled_weights_would_be_rounded() -> None:
    """The sum is a whole number in bf16 as well; the scale comes behind it, in the weights' own precision."""
    module = Signs().build((6, 200), Normal(1.0))
    x_BI = signs(torch.randn(3, 200))
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x_BI)
    signs_OI, scale_O = module.rows()
    whole_BO = x_BI @ signs_OI.T
    assert torch.equal(whole_BO, whole_BO.round()) and whole_BO.abs().max() < 256
    assert found.dtype == torch.float32 and torch.equal(found, whole_BO * scale_O)


def test_damping_adds_the_pull_towards_the_scale_to_the_gradient() -> None:
    plain, damped = (CenteredSigns(damping).build((3, 5), Normal(0.5)).double() for damping in (0.0, 0.125))
    damped.load_state_dict(plain.state_dict())
    x_NI = signs(torch.randn(4, 5, dtype=torch.float64))
    for module in (plain, damped):
        module(x_NI).square().sum().backward()
    weight_OI = plain.weight.detach()
    latent_OI = weight_OI - weight_OI.mean(1, keepdim=True)
    pull_OI = latent_OI - weight_OI.abs().mean(1, keepdim=True) * latent_OI.sign()
    expected = plain.weight.grad + 0.125 * (pull_OI - pull_OI.mean(1, keepdim=True))  # through the centering too
    torch.testing.assert_close(damped.weight.grad, expected, atol=1e-12, rtol=0)
    assert torch.equal(plain(x_NI), damped(x_NI))


def flips(damping: float) -> int:
    """How often weights change their sign in 60 steps, where the loss would have half of them smaller whatever they are."""
    torch.manual_seed(3)
    module = Signs(damping).build((1, 64), Normal(0.05))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    count, before_OI = 0, module.rows()[0].detach()
    for _ in range(60):
        optimizer.zero_grad()
        signs_OI, scale_O = module.rows()
        (0.025 * signs_OI * scale_O[:, None] * signs_OI.detach())[:, :32].sum().backward()
        optimizer.step()
        now_OI = module.rows()[0].detach()
        count += int((now_OI != before_OI).sum())
        before_OI = now_OI
    return count


def test_damping_keeps_weights_from_changing_their_sign_to_and_fro() -> None:
    assert flips(0.0) > 200
    assert flips(25.0) < 20


def test_real_weights_multiply_as_they_are() -> None:
    module = RealWeights().build((3, 5), Normal(0.5)).double()
    x_NI = signs(torch.randn(4, 5, dtype=torch.float64))
    torch.testing.assert_close(module(x_NI), x_NI @ module.weight.T)


def test_a_probability_becomes_a_step_where_it_is_above_half_of_one_with_the_published_gradients() -> None:
    step = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    values = [0.0, 0.05, 0.0999, 0.1, 0.1001, 0.15, 0.2, 0.2001, 0.9]
    p_N = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    weight_N = torch.arange(1.0, 10.0, dtype=torch.float64)
    y_N = thresholded(p_N, step) * step
    assert y_N.tolist() == [0.0] * 4 + [0.2] * 5
    (y_N * weight_N).sum().backward()
    slope_p, slope_step = [], 0.0
    for value, w in zip(values, weight_N.tolist(), strict=True):
        ratio = value / 0.2
        slope_p.append(w if 0 <= ratio <= 1 else 0.0)
        slope_step += w * (float(ratio > 0.5) - ratio if ratio <= 1 else 1.0)
    assert p_N.grad is not None and step.grad is not None
    torch.testing.assert_close(p_N.grad.tolist(), slope_p, atol=1e-12, rtol=0)
    assert step.grad.item() == pytest.approx(slope_step, abs=1e-12)


@pytest.mark.parametrize(("value", "expected"), [(0.005, 0.005), (2 * FLOOR, 2 * FLOOR), (0.0, FLOOR), (-3.0, FLOOR)])
def test_a_step_stays_above_its_floor_and_can_come_back_from_below(value: float, expected: float) -> None:
    step = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    found = floored(step)
    assert found.item() == pytest.approx(expected, rel=1e-9)
    (3 * found).backward()
    assert step.grad is not None and step.grad.item() == 3.0


@pytest.mark.parametrize("kind", [Signs(), CenteredSigns(), CenteredSigns(damping=0.1)], ids=["signs", "centered", "damped"])
def test_compiled_gradients_are_those_of_the_definition(kind: Signs | CenteredSigns) -> None:
    """A compiler has taken them for zeros where a function returned what it had changed in place."""
    torch.manual_seed(0)
    product, x_BI = kind.build((7, 12), Normal(0.5)), torch.randn(5, 12)

    def loss(x_BI: Tensor) -> Tensor:
        return (product(sign(x_BI)) ** 2).sum()

    found = []
    for function in (loss, torch.compile(loss, backend="aot_eager")):
        given_BI = x_BI.clone().requires_grad_()
        found.append(torch.autograd.grad(function(given_BI), [given_BI, *product.parameters()]))
    for plain, compiled in zip(*found, strict=True):
        assert plain.any()
        torch.testing.assert_close(compiled, plain)


@pytest.mark.parametrize("kind", [CenteredSigns, Signs])
def test_a_negative_damping_is_refused(kind: type) -> None:
    with pytest.raises(SpecError, match=r"damping: a damping of -1.0 would push weights to zero"):
        kind(damping=-1.0)
