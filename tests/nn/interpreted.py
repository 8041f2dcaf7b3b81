"""Runs our Triton kernels in Triton's interpreter, in float32 on the CPU, and prints how far they are from float64.

By itself, since the interpreter must be chosen before Triton is imported: TRITON_INTERPRET=1 python interpreted.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch

from frugalvit.nn import biased_gelu, short_attention

SHAPES = (  # samples, tokens, heads, width of a head, whether no token sees itself
    (2, 65, 3, 16, False),
    (2, 17, 2, 24, True),
    (1, 16, 4, 8, True),
    (2, 64, 1, 64, False),
    (1, 2, 1, 5, True),
    (1, 130, 1, 32, False),
)


def far(ours: torch.Tensor, theirs: torch.Tensor | None) -> float:
    assert theirs is not None
    return ((ours - theirs).norm() / theirs.norm().clamp(min=1e-6)).item()


def attentions() -> Iterator[tuple[str, float]]:
    for samples, tokens, heads, width, hides in SHAPES:
        qkv, scale = torch.randn(samples, tokens, 3 * heads * width), torch.rand(heads) + 0.1
        out, grad_qkv, grad_scale = (
            torch.zeros(samples, tokens, heads * width),
            torch.zeros_like(qkv),
            torch.zeros(samples, heads),
        )
        grad = torch.randn_like(out)
        (forward, _), (backward, _) = short_attention.plan(tokens)
        keys, wide = short_attention.tile(tokens, width)
        sizes, grid = (tokens, heads, width, hides, keys), (samples * heads,)
        short_attention.forward_kernel[grid](qkv, scale, out, *sizes, forward, wide)
        short_attention.backward_kernel[grid](qkv, scale, grad, grad_qkv, grad_scale, *sizes, backward, wide)
        exact, factor = qkv.double().requires_grad_(), scale.double().requires_grad_()
        q, k, v = (one.unflatten(-1, (heads, width)).transpose(1, 2) for one in exact.chunk(3, -1))
        scores = (q * factor[:, None, None]) @ k.transpose(-1, -2)
        if hides:
            scores = scores.masked_fill(torch.eye(tokens, dtype=torch.bool), float("-inf"))
        wanted = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        wanted.backward(grad.double())
        name = f"attention {tokens} {heads} {width} {hides}"
        yield f"{name} forward", far(out, wanted)
        yield f"{name} qkv", far(grad_qkv, exact.grad)
        if tokens > 2:  # one key that is seen has the weight 1 whatever the scale
            yield f"{name} scale", far(grad_scale.sum(0), factor.grad)


def gelus() -> Iterator[tuple[str, float]]:
    for count, width in ((200, 300), (7, 256), (1, 3)):
        h, bias, grad = 3 * torch.randn(count, width), torch.randn(width), torch.randn(count, width)
        out, grad_h, grid = torch.zeros_like(h), torch.zeros_like(h), biased_gelu.grid(count, width)
        sums = torch.zeros(grid[0], width)
        sizes = (count, width, biased_gelu.ROWS, biased_gelu.COLUMNS, biased_gelu.STEPS)
        biased_gelu.forward_kernel[grid](h, bias, out, *sizes)
        biased_gelu.backward_kernel[grid](h, bias, grad, grad_h, sums, *sizes)
        exact, exact_bias = h.double().requires_grad_(), bias.double().requires_grad_()
        wanted = torch.nn.functional.gelu(exact + exact_bias)
        wanted.backward(grad.double())
        name = f"gelu {count} {width}"
        yield f"{name} forward", far(out, wanted)
        yield f"{name} h", far(grad_h, exact.grad)
        yield f"{name} bias", far(sums.sum(0), exact_bias.grad)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps(dict([*attentions(), *gelus()])))
