"""What only CUDA takes: talking heads in one pass, attention over few tokens, gradients of q, k and v, GELU with its bias,
convolutions in groups.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch

from frugalvit.data.preprocess import Preprocess
from frugalvit.nn import attention_paths, mlp, projection, trunk
from frugalvit.nn.attention import Attention, MultiHead
from frugalvit.nn.conv import SqueezeExcite
from frugalvit.nn.conv_blocks import Bottleneck, Stem
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.fold import GroupedConvolution
from frugalvit.nn.init import Normal, Zeros
from frugalvit.nn.linear import Dense
from frugalvit.nn.map_norm import BatchNormalized
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.score import HideSelf, LearnedScale, MixHeads
from frugalvit.nn.shape import Image, Shape
from frugalvit.training.devices import Place
from frugalvit.training.quick_teacher import forms, quicken
from frugalvit.training.teacher import Teacher
from frugalvit.zoo.cait import cait
from frugalvit.zoo.change import with_fixed_count_depth
from frugalvit.zoo.deit import deit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

MIX = (MixHeads(),)
SPECS = {
    "eight heads": (Attention(8, before=MIX, after=MIX), Shape(64, 14, 14)),
    "four heads of 64 tokens": (Attention(4, before=MIX, after=MIX), Shape(32, 8, 8)),
    "six heads, no square": (Attention(6, before=MIX, after=MIX), Shape(48, 5, 7)),
    "sixteen heads": (Attention(16, before=MIX, after=MIX), Shape(128, 10, 10)),
    "no bias": (Attention(4, before=(MixHeads(bias=None),), after=(MixHeads(bias=None),)), Shape(32, 8, 8)),
    "hidden diagonal": (Attention(4, scale=LearnedScale(), before=(*MIX, HideSelf()), after=MIX), Shape(32, 8, 8)),
}


def talking(name: str) -> tuple[MultiHead, Shape]:
    spec, shape = SPECS[name]
    torch.manual_seed(0)
    module = spec.build(shape)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    assert module.talks
    return module.cuda(), shape


def gradients(module: MultiHead, x_BND: torch.Tensor, y_BND: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    y_BND.backward(torch.randn(y_BND.shape, device="cuda").to(y_BND.dtype))
    found = {name: parameter.grad.double() for name, parameter in module.named_parameters() if parameter.grad is not None}
    assert x_BND.grad is not None
    return found | {"x": x_BND.grad.double()}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_one_pass_equals_the_definition_within_the_rounding_of_bf16(name: str, compiled: bool) -> None:
    module, shape = talking(name)
    exact = copy.deepcopy(module).double()
    x_BND = torch.randn(3, shape.length, shape.dim, device="cuda", requires_grad=True)
    twin_BND = x_BND.detach().double().requires_grad_()
    wanted_BND = exact.explained(twin_BND)[0]
    rounded = copy.deepcopy(module)
    third_BND = x_BND.detach().requires_grad_()
    run = torch.compile(module) if compiled else module
    with torch.autocast("cuda", torch.bfloat16):
        y_BND, z_BND = run(x_BND), rounded.explained(third_BND)[0]
    assert relative(y_BND.double(), wanted_BND) < 0.02
    ours, theirs = gradients(module, x_BND, y_BND), gradients(exact, twin_BND, wanted_BND)
    definition = gradients(rounded, third_BND, z_BND)
    for key in theirs:
        if key != "before.0.bias":  # cancels in the softmax: its gradient is rounding alone
            far, allowed = relative(ours[key], theirs[key]), relative(definition[key], theirs[key])
            assert far < 0.04 and far < 1.5 * allowed + 0.002, (key, far, allowed)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).norm() / theirs.norm()).item()


def test_in_fp32_and_beyond_256_keys_the_definition_is_taken() -> None:
    module, shape = talking("eight heads")
    x_BND = torch.randn(2, shape.length, shape.dim, device="cuda")
    torch.testing.assert_close(module(x_BND), module.explained(x_BND)[0])
    longer = SPECS["eight heads"][0].build(Shape(64, 17, 16)).cuda()
    x_BND = torch.randn(2, 272, 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(longer(x_BND), longer.explained(x_BND)[0])


def test_a_whole_cait_trains_on_the_kernel_as_on_the_definition() -> None:
    spec = cait(dim=48, heads=4, depth=3, layer_scale=0.1, patch=4, image=32, classes=10)
    losses = []
    for definition in (False, True):
        module = spec.build(seed=0).cuda()
        for part in module.modules():
            if isinstance(part, MultiHead) and definition:
                part.talks = False
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        torch.manual_seed(2)
        image_BCHW, label_B = torch.randn(16, 3, 32, 32, device="cuda"), torch.arange(16, device="cuda") % 10
        for _ in range(30):
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(module(image_BCHW)["class"], label_B)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 1.5 and abs(losses[0] - losses[1]) < 0.2


# ------------------------------------------------------------------------------------------------ few tokens

SHORT = {
    "sixty-five tokens, narrow heads": (Attention(12), Shape(192, 8, 8, ("class",))),
    "LSA": (Attention(4, scale=LearnedScale(), before=(HideSelf(),)), Shape(64, 8, 8, ("class",))),
    "sixteen tokens": (Attention(3), Shape(96, 4, 4)),
    "wide heads": (Attention(2), Shape(128, 7, 11)),
    "two tokens": (Attention(2, before=(HideSelf(),)), Shape(48, 1, 2)),
    "LSA over 256 tokens": (Attention(2, scale=LearnedScale(), before=(HideSelf(),)), Shape(112, 16, 16)),
    "LSA over 225 tokens": (Attention(3, scale=LearnedScale(), before=(HideSelf(),)), Shape(96, 15, 15)),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SHORT)
def test_attention_over_few_tokens_equals_the_definition_within_the_rounding_of_bf16(name: str, compiled: bool) -> None:
    spec, shape = SHORT[name]
    torch.manual_seed(0)
    module = spec.build(shape)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    module = module.cuda()
    assert module.short
    compare(module, shape, compiled)


@pytest.mark.parametrize(
    ("tokens", "heads", "width", "hides"), [(256, 4, 28, True), (256, 2, 64, True), (256, 2, 56, False), (257, 3, 32, True)]
)
def test_attention_over_256_tokens_equals_the_definition_too(tokens: int, heads: int, width: int, hides: bool) -> None:
    from frugalvit.nn.short_attention import ShortAttention

    torch.manual_seed(0)
    qkv_BNE = torch.randn(5, tokens, 3 * heads * width, device="cuda").bfloat16().requires_grad_()
    scale_H = (torch.linspace(0.5, 1.5, heads, device="cuda") * width**-0.5).requires_grad_()
    grad_BND = torch.randn(5, tokens, heads * width, device="cuda").bfloat16()
    exact_BNE, exact_H = qkv_BNE.detach().double().requires_grad_(), scale_H.detach().double().requires_grad_()
    q_BHNK, k_BHNK, v_BHNK = (one.unflatten(-1, (heads, width)).transpose(1, 2) for one in exact_BNE.chunk(3, -1))
    hidden = torch.eye(tokens, dtype=torch.bool, device="cuda") & hides
    scores_BHMN = (exact_H[:, None, None] * q_BHNK @ k_BHNK.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
    wanted_BND = (scores_BHMN.softmax(-1) @ v_BHNK).transpose(1, 2).flatten(2)
    y_BND = ShortAttention.apply(qkv_BNE, scale_H, hides)
    y_BND.backward(grad_BND)
    wanted_BND.backward(grad_BND.double())
    assert relative(y_BND.double(), wanted_BND) < 0.01
    assert relative(qkv_BNE.grad.double(), exact_BNE.grad) < 0.015
    terms_BNE = (exact_BNE * exact_BNE.grad)[..., : heads * width]  # their sum is scale's gradient times scale: it may cancel
    assert ((scale_H.grad - exact_H.grad) * exact_H).norm() < 0.03 * terms_BNE.norm()


@pytest.mark.parametrize(("tokens", "hides"), [(17, False), (65, False), (65, True), (200, True), (257, False)])
def test_scores_far_below_zero_give_finite_gradients(tokens: int, hides: bool) -> None:
    from frugalvit.nn.short_attention import ShortAttention

    torch.manual_seed(0)
    q_BNK, k_BNK = -10 + 0.1 * torch.randn(4, tokens, 16), 1 + 0.1 * torch.randn(4, tokens, 16)
    qkv_BNE = torch.cat([q_BNK, k_BNK, torch.randn(4, tokens, 16)], -1).cuda().bfloat16().requires_grad_()
    ShortAttention.apply(qkv_BNE, torch.ones(1, device="cuda"), hides).float().square().sum().backward()
    exact_BNE = qkv_BNE.detach().double().requires_grad_()
    q_BNK, k_BNK, v_BNK = exact_BNE.chunk(3, -1)
    hidden = torch.eye(tokens, dtype=torch.bool, device="cuda") & hides
    scores_BMN = (q_BNK @ k_BNK.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
    (scores_BMN.softmax(-1) @ v_BNK).square().sum().backward()
    assert scores_BMN.detach().masked_fill(hidden, -200).max() < -128 * math.log(2)  # 2 to the negative of it overflows
    assert relative(qkv_BNE.grad.double(), exact_BNE.grad) < 0.05


def compare(module: MultiHead, shape: Shape, compiled: bool) -> None:
    """The fast path is no farther from float64 than the definition in the same precision, about."""
    exact, rounded = copy.deepcopy(module).double(), copy.deepcopy(module)
    queries: list[torch.Tensor] = []

    def keep(part: torch.nn.Module, given: object, qkv: tuple[torch.Tensor, ...]) -> None:
        qkv[0].retain_grad()
        queries.append(qkv[0])

    exact.qkv.register_forward_hook(keep)
    x_BND = torch.randn(3, shape.length, shape.dim, device="cuda", requires_grad=True)
    twin_BND, third_BND = x_BND.detach().double().requires_grad_(), x_BND.detach().requires_grad_()
    wanted_BND = exact.explained(twin_BND)[0]
    run = torch.compile(module) if compiled else module
    with torch.autocast("cuda", torch.bfloat16):
        y_BND, z_BND = run(x_BND), rounded.explained(third_BND)[0]
    assert relative(y_BND.double(), wanted_BND) < 1.5 * relative(z_BND.double(), wanted_BND) + 0.002
    ours, theirs = gradients(module, x_BND, y_BND), gradients(exact, twin_BND, wanted_BND)
    definition = gradients(rounded, third_BND, z_BND)
    for key in theirs:
        if key == "scale.scale_H":  # a sum of terms of both signs, which may cancel: what is rounded is each of them
            terms_BND = queries[0] * queries[0].grad
            far = (((ours[key] - theirs[key]) * exact.scale.scale_H).norm() / terms_BND.norm()).item()
            assert far < 0.03, (key, far)
            continue
        far, allowed = relative(ours[key], theirs[key]), relative(definition[key], theirs[key])
        assert far < 0.04 and far < 1.5 * allowed + 0.002, (key, far, allowed)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bias", [Zeros(), None], ids=["bias", "no bias"])
def test_joined_gradients_of_many_tokens_are_those_of_the_definition(
    bias: Zeros | None, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "LEAST", 0)
    torch.manual_seed(0)
    module = Attention(3, linear=Dense(Normal(0.1), bias)).build(Shape(192, 14, 14, ("class",))).cuda()
    assert not module.short and module.qkv.summed == (bias is not None)
    compare(module, Shape(192, 14, 14, ("class",)), compiled)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bias", [Zeros(), None], ids=["bias", "no bias"])
def test_the_way_back_through_attention_in_one_pass_equals_the_definition(
    bias: Zeros | None, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("made for Hopper")
    monkeypatch.setattr(attention_paths, "LEAST", 0)
    torch.manual_seed(0)
    module = Attention(3, linear=Dense(Normal(0.1), bias)).build(Shape(192, 14, 14, ("class",))).cuda()
    assert module.whole
    compare(module, Shape(192, 14, 14, ("class",)), compiled)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_fused_gelu_equals_the_definition_within_the_rounding_of_bf16(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlp, "LEAST", 0)
    torch.manual_seed(0)
    module = Mlp(linear=Dense(weight=Normal(0.1), bias=Normal(0.5))).build(Shape(72, 5, 5)).cuda()
    exact = copy.deepcopy(module).double()
    assert module.fused
    x_BND = torch.randn(7, 25, 72, device="cuda", requires_grad=True)
    twin_BND = x_BND.detach().double().requires_grad_()
    run = torch.compile(module) if compiled else module
    with torch.autocast("cuda", torch.bfloat16):
        y_BND = run(x_BND)
    wanted_BND = exact(twin_BND)
    assert relative(y_BND.double(), wanted_BND) < 0.01
    ours, theirs = gradients(module, x_BND, y_BND), gradients(exact, twin_BND, wanted_BND)
    for key in theirs:
        assert relative(ours[key], theirs[key]) < 0.01, key


# ------------------------------------------------------------------------------------------------ sums and norms


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("stream", [None, torch.bfloat16], ids=["fp32 stream", "bf16 stream"])
def test_blocks_taken_together_train_as_blocks_in_a_row(
    stream: torch.dtype | None, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunk, "LEAST", 0)
    spec = deit(dim=192, heads=3, depth=4, patch=8, image=64, classes=10, drop_path=0.5)
    module = with_fixed_count_depth(spec).build(seed=0).cuda().train()
    assert module.trunks
    exact = copy.deepcopy(module).double()
    exact.trunks, module.stream = {}, stream
    rounded = copy.deepcopy(module)
    rounded.trunks = {}
    image_BCHW, draws = torch.randn(9, 3, 64, 64, device="cuda"), module.random_draws(9)
    wanted = exact(image_BCHW.double(), draws)["class"]
    run = torch.compile(module) if compiled else module
    with torch.autocast("cuda", torch.bfloat16):
        found, defined = run(image_BCHW, draws)["class"], rounded(image_BCHW, draws)["class"]
    assert relative(found.double(), wanted) < 1.5 * relative(defined.double(), wanted) + 0.002
    weight = torch.randn_like(wanted)
    for logits in (found, defined, wanted):
        (logits.double() * weight).sum().backward()
    for (name, one), other, third in zip(module.named_parameters(), rounded.parameters(), exact.parameters(), strict=True):
        far, allowed = relative(one.grad.double(), third.grad), relative(other.grad.double(), third.grad)
        assert far < 1.5 * allowed + 0.005, (name, far, allowed)


# ------------------------------------------------------------------------------------------------ teachers with groups


def grouped_network() -> torch.nn.Module:
    blocks = [Bottleneck(96, 96, stride, groups=6, excite=SqueezeExcite()) for stride in (2, 1)]
    blocks += [Bottleneck(224, 224, stride, groups=2) for stride in (2, 1)]
    network = ConvNet(Stem(32, stride=2), tuple(blocks), MeanMaps(), 9, Image(48, 40)).build(seed=1).cuda().eval()
    for one in network.modules():
        if isinstance(one, BatchNormalized):
            assert one.running_mean is not None and one.running_var is not None
            one.running_mean.normal_(0, 0.4)
            one.running_var.uniform_(0.3, 2)
    return network


@pytest.mark.parametrize("compiled", [False, True])
def test_every_form_of_a_teacher_with_groups_answers_as_exactly_as_autocast(compiled: bool) -> None:
    torch.manual_seed(0)
    network, image_BCHW = grouped_network(), torch.randn(7, 3, 48, 40, device="cuda")
    found = forms(network, torch.bfloat16)
    assert [sum(isinstance(one, GroupedConvolution) for one in form.modules()) for form in found] == [0, 0, 4]
    with torch.no_grad():
        wanted_BC = copy.deepcopy(network).double()(image_BCHW.double())["class"]
        with torch.autocast("cuda", torch.bfloat16):
            plain, *quicker = (
                (torch.compile(form) if compiled else form)(image_BCHW)["class"].double() for form in (network, *found)
            )
    allowed = 1.5 * (plain - wanted_BC).norm()
    assert 0 < allowed < 0.1 * wanted_BC.norm()
    assert all((one - wanted_BC).norm() < allowed for one in quicker)


def test_a_quickened_teacher_with_groups_has_one_form_and_keeps_it() -> None:
    pictures = Preprocess(48, 40, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    place, classes = Place(torch.device("cuda"), "bf16"), tuple(map(str, range(9)))
    teacher = Teacher(grouped_network(), pictures, pictures, classes, place, name="groups", knows=9)
    image_BCHW = torch.randn(5, 3, 48, 40, device="cuda")
    before = teacher(image_BCHW)["logits"]
    quicken(teacher, 5)
    kept = teacher.network
    quicken(teacher, 5)
    assert teacher.network is kept and not any(isinstance(one, BatchNormalized) for one in kept.modules())
    torch.testing.assert_close(teacher(image_BCHW)["logits"], before, rtol=0.1, atol=0.05)
