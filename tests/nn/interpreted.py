"""Runs our Triton kernels in Triton's interpreter, in float32 on the CPU, and prints how far they are from float64.

By itself, since the interpreter must be chosen before Triton is imported: TRITON_INTERPRET=1 python interpreted.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch

from frugalvit.nn import add_norm, attention_gradient, biased_gelu, grouped_convolution, joined_thirds, short_attention
from frugalvit.nn.fixed_depth import Kept
from frugalvit.nn.fold import FoldedConvolution, GroupedConvolution

SHAPES = (  # samples, tokens, heads, width of a head, whether no token sees itself
    (2, 65, 3, 16, False),
    (2, 17, 2, 24, True),
    (1, 16, 4, 8, True),
    (2, 64, 1, 64, False),
    (1, 2, 1, 5, True),
    (1, 128, 1, 32, False),
    (1, 33, 2, 16, True),
    (1, 100, 1, 48, False),
    *((1, 256, 1, width, hides) for width in (28, 32, 56, 64) for hides in (False, True)),
    (1, 257, 2, 28, True),
    (1, 197, 1, 64, True),
    (1, 145, 1, 32, True),
)


def far(ours: torch.Tensor, theirs: torch.Tensor | None) -> float:
    assert theirs is not None
    return ((ours - theirs).norm() / theirs.norm().clamp(min=1e-6)).item()


def attentions() -> Iterator[tuple[str, float]]:
    short_attention.wrap_triton = lambda kernel: kernel  # there is nothing to trace here
    for samples, tokens, heads, width, hides in SHAPES:
        qkv, scale = torch.randn(samples, tokens, 3 * heads * width), torch.rand(heads) + 0.1
        name = f"attention {tokens} {heads} {width} {hides}"
        yield from one_attention(name, qkv, scale, hides)
    low = (17, 16, False), (65, 16, True), (200, 16, True)  # every score is so low that 2 to its negative overflows
    for tokens, width, hides in low:
        qkv = torch.randn(1, tokens, 3 * width)
        qkv[..., :width] = -10 + 0.1 * qkv[..., :width]
        qkv[..., width : 2 * width] = 1 + 0.1 * qkv[..., width : 2 * width]
        yield from one_attention(f"attention of low scores {tokens} {hides}", qkv, torch.ones(1), hides)


def one_attention(name: str, qkv: torch.Tensor, scale: torch.Tensor, hides: bool) -> Iterator[tuple[str, float]]:
    heads, (samples, tokens, all_widths) = len(scale), qkv.shape
    width = all_widths // 3 // heads
    grad = torch.randn(samples, tokens, heads * width)
    out, levels = short_attention.short_attention._init_fn(qkv, scale, hides)
    known = qkv, scale, out, levels, grad, hides
    grad_qkv, grad_scale = short_attention.short_attention_backward._init_fn(*known, True)
    again, _ = short_attention.short_attention_backward._init_fn(*known, False)
    assert torch.equal(again, grad_qkv)
    exact, factor = qkv.double().requires_grad_(), scale.double().requires_grad_()
    q, k, v = (one.unflatten(-1, (heads, width)).transpose(1, 2) for one in exact.chunk(3, -1))
    scores = (q * factor[:, None, None]) @ k.transpose(-1, -2)
    if hides:
        scores = scores.masked_fill(torch.eye(tokens, dtype=torch.bool), float("-inf"))
    wanted = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    wanted.backward(grad.double())
    yield f"{name} forward", far(out, wanted)
    yield f"{name} qkv", far(grad_qkv, exact.grad)
    if tokens > 2:  # one key that is seen has the weight 1 whatever the scale
        assert exact.grad is not None and factor.grad is not None
        terms = (exact * exact.grad)[..., : heads * width]  # their sum is scale's gradient times scale: it may cancel
        yield f"{name} scale", ((grad_scale.sum(0) - factor.grad) * scale).norm().item() / terms.norm().item()


def gradients_of_attention() -> Iterator[tuple[str, float]]:
    attention_gradient.wrap_triton = lambda kernel: kernel
    for samples, tokens, heads, width in ((1, 197, 2, 64), (1, 145, 1, 64), (2, 128, 1, 16), (1, 70, 3, 16), (1, 40, 1, 16)):
        qkv, grad = torch.randn(samples, tokens, 3 * heads * width), torch.randn(samples, tokens, heads * width)
        exact, factor = qkv.double().requires_grad_(), width**-0.5
        q, k, v = (one.unflatten(-1, (heads, width)).transpose(1, 2) for one in exact.chunk(3, -1))
        scores = factor * q @ k.transpose(-1, -2)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        y.backward(grad.double())
        levels = scores.logsumexp(-1).detach().float()
        found, sums = attention_gradient.attention_gradient._init_fn(qkv, y.detach().float(), levels, grad, heads, factor)
        name = f"attention's gradient {tokens} {heads} {width}"
        yield name, far(found, exact.grad)
        assert exact.grad is not None
        yield f"{name} sums", far(sums.sum(0), exact.grad.sum((0, 1)))


def gelus() -> Iterator[tuple[str, float]]:
    for count, width in ((200, 300), (7, 256), (1, 3)):
        h, bias, grad = 3 * torch.randn(count, width), torch.randn(width), torch.randn(count, width)
        out, grad_h = torch.zeros_like(h), torch.zeros_like(h)
        sizes, (ahead, _), (back, _) = (count, width, 4, 256), biased_gelu.FORWARD, biased_gelu.BACKWARD
        sums = torch.zeros(biased_gelu.grid(count, width, back)[0], width)
        biased_gelu.forward_kernel[biased_gelu.grid(count, width, ahead)](h, bias, out, *sizes, ahead)
        biased_gelu.backward_kernel[biased_gelu.grid(count, width, back)](h, bias, grad, grad_h, sums, *sizes, back)
        exact, exact_bias = h.double().requires_grad_(), bias.double().requires_grad_()
        wanted = torch.nn.functional.gelu(exact + exact_bias)
        wanted.backward(grad.double())
        name = f"gelu {count} {width}"
        yield f"{name} forward", far(out, wanted)
        yield f"{name} h", far(grad_h, exact.grad)
        yield f"{name} bias", far(sums.sum(0), exact_bias.grad)


def thirds() -> Iterator[tuple[str, float]]:
    for count, width in ((200, 300), (7, 64)):
        parts = [torch.randn(count, width) for _ in range(3)]
        out, sums = torch.zeros(count, 3 * width), torch.zeros(joined_thirds.grid(count, width)[0], 3 * width)
        sizes = (count, width, joined_thirds.ROWS, joined_thirds.COLUMNS, joined_thirds.STEPS)
        joined_thirds.kernel[joined_thirds.grid(count, width)](*parts, out, sums, *sizes)
        wanted = torch.cat(parts, 1).double()
        yield f"thirds {count} {width}", far(out, wanted)
        yield f"thirds {count} {width} sums", far(sums.sum(0), wanted.sum(0))


def norms() -> Iterator[tuple[str, float]]:
    for batch, tokens, width, come, go in (
        (5, 7, 24, Kept(0, 5, 5), Kept(0, 5, 5)),
        (5, 7, 40, Kept(1, 3, 5), Kept(4, 3, 5)),
        (3, 70, 16, Kept(2, 2, 3), Kept(1, 1, 3)),
    ):
        x, branch = torch.randn(batch, tokens, width), torch.randn(come.count, tokens, width)
        bias, weight, shift, factor = torch.randn(width), torch.randn(width), torch.randn(width), torch.rand(batch)
        new, y = torch.zeros_like(x), torch.zeros(go.count, tokens, width)
        mean, rstd = torch.zeros(go.count * tokens), torch.zeros(go.count * tokens)
        count, blocks = batch * tokens, add_norm.programs(batch * tokens)
        sizes = (tokens, width, *add_norm.tile(width), add_norm.STEPS)
        places = (count, batch, come.first, come.count, go.first, go.count)
        add_norm.forward_kernel[(blocks,)](x, branch, bias, factor, weight, shift, new, y, mean, rstd, *places, 1e-6, *sizes)
        grad_new, grad_y = torch.randn_like(new), torch.randn_like(y)
        grad_x, grad_branch, sums = torch.zeros_like(x), torch.zeros_like(branch), torch.zeros(blocks, 3, width)
        add_norm.backward_kernel[(blocks,)](
            grad_new, grad_y, new, mean, rstd, factor, weight, grad_x, grad_branch, sums, *places, *sizes
        )
        exact = [one.double().requires_grad_() for one in (x, branch, bias, weight, shift)]
        x64, branch64, bias64, weight64, shift64 = exact
        some = come.some(x64) + come.some(factor.double())[:, None, None] * (branch64 + bias64)
        wanted = come.back(some, x64)
        normed = torch.nn.functional.layer_norm(go.some(wanted), (width,), weight64, shift64, 1e-6)
        torch.autograd.backward([wanted, normed], [grad_new.double(), grad_y.double()])
        name = f"norm {batch} {tokens} {width}"
        yield f"{name} sum", far(new, wanted.detach())
        yield f"{name} normed", far(y, normed.detach())
        found = (grad_x, grad_branch, sums.sum(0)[2], sums.sum(0)[0], sums.sum(0)[1])
        for what, one, other in zip(("x", "branch", "bias", "weight", "shift"), found, exact, strict=True):
            yield f"{name} {what}", far(one, other.grad)


def convolutions() -> Iterator[tuple[str, float]]:
    grouped_convolution.wrap_triton = lambda kernel: kernel
    for groups, into, leaving, side, stride, pads, rectifies in (
        (2, 112, 112, 3, 1, (1, 1, 1, 1), True),
        (3, 16, 32, 3, 2, (1, 1, 1, 1), False),
        (2, 16, 16, 5, 2, (1, 2, 2, 1), True),
        (4, 80, 48, 1, 1, (0, 0, 0, 0), False),
    ):
        x, bias = torch.randn(2, groups * into, 9, 11), torch.randn(groups * leaving)
        weight = torch.randn(groups * leaving, into, side, side) / (into**0.5 * side)
        given = FoldedConvolution(weight, bias, (stride, stride), (1, 1), groups, pads)
        given.rectifies = rectifies
        ours = GroupedConvolution(given)
        told = ours.weight_GWIO, bias, ours.stride, ours.pads, rectifies
        found = grouped_convolution.grouped_convolution._init_fn(x.permute(0, 2, 3, 1), *told)
        wanted = given.double()(x.double())
        assert found.permute(0, 3, 1, 2).shape == wanted.shape
        yield f"convolution {groups} {into} {leaving} {side}", far(found.permute(0, 3, 1, 2), wanted)


if __name__ == "__main__":
    found: dict[str, float] = {}
    for kernels in (attentions, gradients_of_attention, gelus, thirds, norms, convolutions):
        torch.manual_seed(0)  # so that a shape more of one changes nothing of the others
        found |= dict(kernels())
    print(json.dumps(found))
