"""Which of our kernels an attention may take on CUDA. Each computes what `MultiHead.explained` says, of some attentions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.backends.cuda import cudnn_sdp_enabled
from torch.nn.functional import linear

from frugalvit.nn.kernels import ROUNDED, has_kernel, products_dtype
from frugalvit.nn.projection import Together
from frugalvit.nn.score import FixedTemperature, HeadMixture, HiddenDiagonal, LearnedTemperature

if TYPE_CHECKING:
    from frugalvit.nn.attention import MultiHead

LONGEST, WIDEST = 128, 64  # tokens and the width of a head up to which `short_attention` is the fastest
LONGEST_LSA = 256  # with LSA's mask or scale, for which the libraries' kernels take more than twice as long there
LEAST = 1 << 24  # numbers in q, k and v of a batch from which `attention_gradient` pays


def can_talk(attention: MultiHead) -> bool:
    """Whether this is talking heads, perhaps with LSA's mask, and nothing else; and Triton, which the kernel needs, is here."""
    before, after = attention.before, attention.after
    mixed = len(after) == 1 and isinstance(after[0], HeadMixture) and len(before) > 0 and isinstance(before[0], HeadMixture)
    only = mixed and (len(before) == 1 or (len(before) == 2 and isinstance(before[1], HiddenDiagonal)))
    if not only or attention.heads > 16 or getattr(attention.scope, "seen_WMN", None) is not None:
        return False
    return has_kernel("talking_heads")


def can_be_short(attention: MultiHead) -> bool:
    """Whether this is plain attention over few tokens, perhaps with LSA's scale and mask, and Triton is here."""
    before = attention.before
    plain = not len(attention.after) and all(isinstance(term, HiddenDiagonal) for term in before) and len(before) <= 1
    scaled = isinstance(attention.scale, (FixedTemperature, LearnedTemperature))
    if not (plain and scaled and is_joined(attention)):
        return False
    longest = LONGEST_LSA if len(before) or isinstance(attention.scale, LearnedTemperature) else LONGEST
    return attention.tokens <= longest and width_of(attention) <= WIDEST and has_kernel("short_attention")


def can_be_whole(attention: MultiHead) -> bool:
    """Whether this is plain attention over more tokens than that, as one kernel holds, and the GPU is one it was made for."""
    plain = not len(attention.before) and not len(attention.after) and isinstance(attention.scale, FixedTemperature)
    if not (plain and is_joined(attention) and getattr(attention.qkv, "product", None) is linear):
        return False
    fits = LONGEST < attention.tokens <= 256 and width_of(attention) == 64 and cudnn_sdp_enabled()
    return fits and has_kernel("attention_gradient") and torch.cuda.get_device_capability() >= (9, 0)


def is_joined(attention: MultiHead) -> bool:
    """Whether q, k and v come of the same tokens side by side, and every key is seen."""
    return isinstance(attention.qkv, Together) and getattr(attention.scope, "seen_WMN", None) is None


def width_of(attention: MultiHead) -> int:
    """Of a head, where q, k and v are joined."""
    qkv: Any = attention.qkv
    return len(qkv.weight) // 3 // attention.heads


def pays(x_BND: Tensor) -> bool:
    """Whether a batch has gradients and is large enough for them to come in one pass."""
    many = x_BND.is_cuda and 3 * x_BND.numel() >= LEAST and torch.is_grad_enabled()
    return many and products_dtype(x_BND) in ROUNDED
