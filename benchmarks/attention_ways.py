"""The attentions of short_attention.py, the ways to compute them, and how far each is from float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from frugalvit.nn.kernels import has_kernel

ATTENTIONS = {  # tokens, heads, the width of a head, and whether it is LSA, of a model or a recipe that has such an attention
    "small_pit_32": (17, 8, 48, False),
    "small_pit_32+lsa": (17, 8, 48, True),
    "small_vit_32": (65, 12, 16, False),
    "small_vit_32+lsa": (65, 12, 16, True),
    "small_t2t_32": (65, 4, 64, False),
    "small_t2t_32+lsa": (65, 4, 64, True),
    "small_vit_32+distillation": (66, 12, 16, False),
    "small_vit_32+lsa+distillation": (66, 12, 16, True),
    "vit_tiny_r_s16_p8_384+lsa": (145, 3, 64, True),
    "deit_tiny_patch16_224+lsa": (197, 3, 64, True),
    "small.best_cifar10": (256, 2, 56, True),
}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
WAYS = ("ours", *BACKENDS, "compiled")

Way = Callable[[], Tensor]


class Given:
    """What an attention reads, and what it should give: y_BND and the gradients of q, k, v and the scale in float32."""

    def __init__(self, attention: str, batch: int, device: torch.device):
        self.tokens, self.heads, self.width, self.lsa = ATTENTIONS[attention]
        inner = self.heads * self.width
        generator = torch.Generator(device).manual_seed(0)
        drawn_BNE = torch.randn(batch, self.tokens, 4 * inner, generator=generator, device=device).bfloat16()
        self.qkv_BNE = drawn_BNE[..., : 3 * inner].contiguous().requires_grad_()
        self.grad_BND = drawn_BNE[..., 3 * inner :].contiguous()
        apart = 0.2 if self.lsa else 0.0
        around_H = torch.linspace(1 - apart, 1 + apart, self.heads, device=device)
        self.scale_H = (around_H * self.width**-0.5).requires_grad_(self.lsa)
        self.hidden_NN = torch.eye(self.tokens, dtype=torch.bool, device=device) if self.lsa else None
        self.learned = [self.qkv_BNE, *([self.scale_H] if self.lsa else [])]

    def wanted(self) -> list[Tensor]:
        exact_BNE = self.qkv_BNE.detach().float().requires_grad_()
        y_BND = written_out(exact_BNE, self.scale_H, self.hidden_NN)
        return [y_BND.detach(), *torch.autograd.grad(y_BND, [exact_BNE, *self.learned[1:]], self.grad_BND.float())]

    def found(self, way: Way) -> list[Tensor]:
        y_BND = way()
        return [y_BND.detach(), *torch.autograd.grad(y_BND, self.learned, self.grad_BND)]

    def both(self, way: Way) -> Callable[[], object]:
        return lambda: torch.autograd.grad(way(), self.learned, self.grad_BND)


# ------------------------------------------------------------------------------------------------ ways to compute it


def split(qkv_BNE: Tensor, heads: int) -> tuple[Tensor, ...]:
    return tuple(one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in qkv_BNE.chunk(3, -1))  # B H N K


def written_out(qkv_BNE: Tensor, scale_H: Tensor, hidden_NN: Tensor | None) -> Tensor:
    """The definition, in the precision of qkv, with a softmax in float32."""
    q_BHNK, k_BHNK, v_BHNK = split(qkv_BNE, len(scale_H))
    scores_BHNN = (q_BHNK * scale_H[:, None, None]).to(q_BHNK.dtype) @ k_BHNK.transpose(-1, -2)
    if hidden_NN is not None:
        scores_BHNN = scores_BHNN.masked_fill(hidden_NN, float("-inf"))
    attention_BHNN = scores_BHNN.float().softmax(-1).to(v_BHNK.dtype)
    return (attention_BHNN @ v_BHNK).transpose(1, 2).flatten(2)


def mask_for(backend: SDPBackend, hidden_NN: Tensor | None) -> Tensor | None:
    """What is added to scores, in bf16; `efficient` would copy one whose rows do not begin at multiples of 8 at every call."""
    if hidden_NN is None:
        return None
    tokens = len(hidden_NN)
    wide = tokens + (-tokens % 8 if backend == SDPBackend.EFFICIENT_ATTENTION else 0)
    mask_NN = torch.zeros(tokens, wide, dtype=torch.bfloat16, device=hidden_NN.device)[:, :tokens]
    return mask_NN.masked_fill_(hidden_NN, float("-inf"))


def by_library(given: Given, backend: SDPBackend, mask_NN: Tensor | None) -> Tensor:
    q_BHNK, k_BHNK, v_BHNK = split(given.qkv_BNE, given.heads)
    factor = given.width**-0.5
    if given.lsa:
        q_BHNK, factor = q_BHNK * given.scale_H.to(q_BHNK.dtype)[:, None, None], 1.0
    with sdpa_kernel(backend):
        y_BHNK = scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=mask_NN, scale=factor)
    return y_BHNK.transpose(1, 2).flatten(2)


def ways(given: Given) -> dict[str, Way]:
    """Those of WAYS that the device can be asked for, each giving y_BND."""
    found: dict[str, Way] = {}
    if given.qkv_BNE.is_cuda and has_kernel("short_attention"):
        from frugalvit.nn.short_attention import ShortAttention

        torch._dynamo.reset()  # which would stop compiling after some shapes
        fused = torch.compile(written_out, dynamic=False)
        found["ours"] = lambda: ShortAttention.apply(given.qkv_BNE, given.scale_H, given.lsa)
        found["compiled"] = lambda: fused(given.qkv_BNE, given.scale_H, given.hidden_NN)
    for name, backend in BACKENDS.items():
        found[name] = partial(by_library, given, backend, mask_for(backend, given.hidden_NN))
    return found


# ------------------------------------------------------------------------------------------------ are they right


def distances(given: Given, found: list[Tensor], wanted: list[Tensor]) -> dict[str, float]:
    """Of y and the gradients of q, k and v: that of the token that is farthest off, in its lengths or those of most tokens.

    A scale's gradient is a sum that may cancel: its distance is in lengths of what is summed.
    """
    pairs = {"y": (found[0], wanted[0])}
    pairs |= zip("qkv", zip(found[1].chunk(3, -1), wanted[1].chunk(3, -1), strict=True), strict=True)
    off = {}
    for name, (ours, exact) in pairs.items():
        length_BN = exact.norm(dim=-1)
        usual = length_BN.square().mean().sqrt().item()
        off[name] = ((ours.float() - exact).norm(dim=-1) / length_BN.clamp(min=usual)).max().item()
    if given.lsa:
        terms_BND = (given.qkv_BNE.detach().float() * wanted[1])[..., : given.heads * given.width]
        off["scale"] = (((found[2] - wanted[2]) * given.scale_H.detach()).norm() / terms_BND.norm()).item()
    return off
