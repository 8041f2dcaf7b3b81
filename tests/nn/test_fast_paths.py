"""Each fast path agrees with the definition it stands for, in value and in gradient, and is really taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from frugalvit.nn import attention, t2t
from frugalvit.nn.attention import Attention
from frugalvit.nn.init import Normal
from frugalvit.nn.linear import Dense
from frugalvit.nn.scope import PatchesOnly, SummaryOnly, Windows
from frugalvit.nn.score import FixedScale, GatePosition, HideSelf, LearnedScale, MixHeads, RelativeBias, Scale, ScoreTerm
from frugalvit.nn.shape import Image, Shape
from frugalvit.nn.t2t import TokensToTokens, TokenTransformer

GRID = Shape(12, 6, 8)
WITH_TOKENS = Shape(12, 5, 7, ("class", "distill"))
SHIFTED = Windows((3, 4), 2)

LSA = dict(scale=LearnedScale(), before=(HideSelf(),))
BIAS = dict(before=(RelativeBias(),))
BIAS_HIDDEN = dict(before=(RelativeBias(), HideSelf()))
BIAS_LSA = dict(scale=LearnedScale(), before=(RelativeBias(), HideSelf()))
GATE = dict(after=(GatePosition(),))

FUSED: dict[str, tuple[Attention, Shape]] = {
    "plain": (Attention(3), GRID),
    "plain with summary tokens": (Attention(3), WITH_TOKENS),
    "wide heads": (Attention(3, head_dim=5), GRID),
    "learned scale": (Attention(3, scale=LearnedScale()), GRID),
    "lsa": (Attention(3, **LSA), GRID),
    "lsa with summary tokens": (Attention(3, **LSA), WITH_TOKENS),
    "bias": (Attention(3, **BIAS), GRID),
    "two biases": (Attention(3, before=(RelativeBias(), RelativeBias())), GRID),
    "bias, hidden": (Attention(3, **BIAS_HIDDEN), GRID),
    "bias, lsa": (Attention(3, **BIAS_LSA), GRID),
    "windows": (Attention(3, Windows((3, 4))), GRID),
    "windows, lsa": (Attention(3, Windows((3, 4)), **LSA), GRID),
    "windows, bias": (Attention(3, Windows((3, 4)), **BIAS), GRID),
    "windows, bias, lsa": (Attention(3, Windows((3, 4)), **BIAS_LSA), GRID),
    "windows, gate": (Attention(3, Windows((3, 4)), **GATE), GRID),
    "shifted": (Attention(3, SHIFTED), GRID),
    "shifted, lsa": (Attention(3, SHIFTED, **LSA), GRID),
    "shifted, bias": (Attention(3, SHIFTED, **BIAS), GRID),
    "shifted, bias, hidden": (Attention(3, SHIFTED, **BIAS_HIDDEN), GRID),
    "shifted, bias, lsa": (Attention(3, SHIFTED, **BIAS_LSA), GRID),
    "gate": (Attention(3, **GATE), GRID),
    "gate, lsa": (Attention(3, **LSA, **GATE), GRID),
    "gate, bias": (Attention(3, **BIAS, **GATE), GRID),
    "class attention": (Attention(3, SummaryOnly()), WITH_TOKENS),
    "class attention, learned scale": (Attention(3, SummaryOnly(), LearnedScale()), WITH_TOKENS),
    "class attention on patches": (Attention(3, PatchesOnly()), WITH_TOKENS),
}
REFUSED: dict[str, Attention] = {
    "mixed before": Attention(3, before=(MixHeads(),)),
    "mixed after": Attention(3, after=(MixHeads(),)),
    "mixed, then hidden": Attention(3, before=(MixHeads(), HideSelf())),
    "mixed behind a bias": Attention(3, before=(RelativeBias(), MixHeads())),
    "gated, then mixed": Attention(3, after=(GatePosition(), MixHeads())),
    "mixed, then gated": Attention(3, after=(MixHeads(), GatePosition())),
    "gated twice": Attention(3, after=(GatePosition(), GatePosition())),
    "mixed in shifted windows": Attention(3, SHIFTED, before=(MixHeads(),)),
}


@dataclass
class Kernel:
    """torch's fused attention, which counts how often it is called."""

    calls: int = 0

    def __call__(self, *args: object, **keywords: object) -> Tensor:
        self.calls += 1
        return nn.functional.scaled_dot_product_attention(*args, **keywords)  # type: ignore[arg-type]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    counting = Kernel()
    for module in (attention, t2t):
        monkeypatch.setattr(module, "scaled_dot_product_attention", counting)
    return counting


def randomized(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.to(dtype)


def value_and_gradients(run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    module.zero_grad()
    y = run(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).cos()
    (y * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    return {"output": y.detach(), "input": x.grad, **{name: one.clone() for name, one in gradients.items()}}


def assert_alike(fast: dict[str, Tensor], plain: dict[str, Tensor], tolerance: float) -> None:
    assert fast.keys() == plain.keys()
    for name, expected in plain.items():
        # sums over tokens cancel: measure against the largest entry. That of a key's bias, which moves all scores of a query
        # alike, is nothing but rounding: measure against 1
        size = max(expected.abs().max().item(), 1.0)
        torch.testing.assert_close(
            fast[name], expected, atol=tolerance * size, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("name", FUSED)
def test_the_fused_kernel_is_the_definition(name: str, dtype: torch.dtype, tolerance: float, kernel: Kernel) -> None:
    spec, shape = FUSED[name]
    module = randomized(spec.build(shape), dtype)
    assert module.fused
    x_BND = torch.randn(2, shape.length, shape.dim, dtype=dtype)
    fast = value_and_gradients(module, module, x_BND)
    assert kernel.calls == 1
    plain = value_and_gradients(lambda x: module.explained(x)[0], module, x_BND)
    assert kernel.calls == 1
    assert_alike(fast, plain, tolerance)


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_scores_is_not_fused(name: str, kernel: Kernel) -> None:
    module = randomized(REFUSED[name].build(GRID), torch.float64)
    assert not module.fused
    x_BND = torch.randn(2, GRID.length, GRID.dim, dtype=torch.float64)
    assert torch.equal(module(x_BND), module.explained(x_BND)[0])
    assert kernel.calls == 0


class Doubled(nn.Module):
    def forward(self, scores_GHMN: Tensor) -> Tensor:
        return 2 * scores_GHMN


@dataclass(frozen=True)
class Double:
    """A user's own term, of which the kernel knows nothing."""

    def build(self, heads: int, queries: Shape, keys: Shape) -> nn.Module:
        return Doubled()


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_users_own_term_is_not_fused(place: str, kernel: Kernel) -> None:
    module = randomized(Attention(3, **{place: (Double(),)}).build(GRID), torch.float64)
    x_BND = torch.randn(2, GRID.length, GRID.dim, dtype=torch.float64)
    assert torch.equal(module(x_BND), module.explained(x_BND)[0])
    assert kernel.calls == 0


def test_the_windows_of_every_sample_have_their_own_mask() -> None:
    """A sample's result does not depend on what stands beside it in the batch."""
    spec, shape = FUSED["shifted, bias, lsa"]
    module = randomized(spec.build(shape), torch.float64)
    x_BND = torch.randn(3, shape.length, shape.dim, dtype=torch.float64)
    torch.testing.assert_close(module(x_BND)[2:], module(x_BND[2:]), atol=1e-13, rtol=0)


def transformer(scale: Scale, before: tuple[ScoreTerm, ...], dtype: torch.dtype) -> TokenTransformer:
    wide = Dense(Normal(0.4), None)
    module, _ = TokensToTokens(7, 5, scale=scale, before=before, maps=wide).build(Image(10, 14, 2))
    (one,) = module.transformers
    return randomized(one, dtype)  # type: ignore[return-value]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("scale", [FixedScale(), LearnedScale()])
@pytest.mark.parametrize("before", [(), (HideSelf(),)])
def test_the_fused_token_transformer_is_the_definition(
    before: tuple[ScoreTerm, ...], scale: Scale, dtype: torch.dtype, tolerance: float, kernel: Kernel
) -> None:
    module = transformer(scale, before, dtype)
    assert module.fused
    x_BNI = torch.randn(2, 35, 18, dtype=dtype)
    fast = value_and_gradients(module, module, x_BNI)
    assert kernel.calls == 1
    module.fused = False
    plain = value_and_gradients(module, module, x_BNI)
    assert kernel.calls == 1
    assert_alike(fast, plain, tolerance)


@pytest.mark.parametrize("before", [(MixHeads(Normal(0.5)),), (RelativeBias(Normal(0.5)), HideSelf())])
def test_other_terms_leave_the_token_transformer_unfused(before: tuple[ScoreTerm, ...], kernel: Kernel) -> None:
    module = transformer(FixedScale(), before, torch.float64)
    assert not module.fused
    assert module(torch.randn(2, 35, 18, dtype=torch.float64)).shape == (2, 35, 5)
    assert kernel.calls == 0


@pytest.mark.parametrize("gate", [-20.0, 1.0, 6.0, 12.0, 17.0, 40.0, 95.0])
def test_a_wide_open_gate_keeps_its_precision_on_the_fast_path(gate: float) -> None:
    torch.manual_seed(0)
    module = Attention(4, after=(GatePosition(gate=gate),)).build(Shape(16, 3, 4))
    x_BND = torch.randn(2, 12, 16)
    wanted_BND = module.explained(x_BND)[0]
    torch.testing.assert_close(module(x_BND), wanted_BND, rtol=1e-5, atol=1e-6)
    half = module.to(torch.bfloat16)
    y_BND = half(x_BND.to(torch.bfloat16)).float()
    assert (y_BND - wanted_BND).norm() / wanted_BND.norm() < 0.03


def test_what_a_shifted_window_hides_stays_hidden_behind_a_mixture() -> None:
    torch.manual_seed(0)
    module = Attention(2, scope=Windows(2, 1), after=(MixHeads(),)).build(Shape(8, 4, 4))
    torch.nn.init.ones_(module.after[0].bias)
    attention_GHMN = module.explained(torch.randn(1, 16, 8))[1]
    assert (attention_GHMN[~module.scope.seen_WMN[:, None].expand(-1, 2, -1, -1)] == 0).all()
