"""Linear maps as products of 8-bit floats, forward and backward, with one scale for each matrix, found anew every time.

    round(a) = s · fp8(a / s), s the least power of two with max |a| / s in the range of fp8

    y  = round(x) round(W)ᵀ + b        x and W in e4m3: 3 bits behind the point, up to 448
    dx = round(g) round(W)             the gradient g of y in e5m2: 2 bits, up to 57344
    dW = round(g)ᵀ round(x)
    db = Σ g                           of g itself

These are the formats and the products of torchao's tensorwise recipe: rounding counts as the identity in the backward pass, and
the tensor cores add with fewer bits forward alone (`use_fast_accum`). Deviation: its scale is max |a| / 448. A power of two
scales without rounding. So a rounded matrix is the same numbers in bf16, and the definition, which multiplies those, differs
from the tensor cores, which multiply 8 bits and scale the sum, by how sums are taken alone; and of a sample only entries far
below the largest of its batch depend on its neighbors.

Where a matrix has an entry that is no finite number, its scale is NaN, and so is all that comes of it: a cast to e4m3 would
turn ∞ into 448, and the step would not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from frugalvit.nn.kernels import ROUNDED, products_dtype

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TOP = {E4M3: 8, E5M2: 15}  # both formats end at 1.75 · 2^TOP
LEAST = 2.0**-100  # a largest entry below it counts as this: scales and their inverses stay in fp32's normal range
TILE = 16  # the tensor cores' features come in multiples of it

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (x_..I, weight_OI, bias) -> y_..O


def fp8_linear(x: Tensor, weight_OI: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b by the tensor cores, where x is on the GPU and both widths are multiples of 16; else as defined."""
    fits = weight_OI.shape[0] % TILE == 0 and weight_OI.shape[1] % TILE == 0
    return multiplied(x, weight_OI, bias, fits and x.is_cuda and products_dtype(x) in (*ROUNDED, torch.float32))


def rounded_linear(x: Tensor, weight_OI: Tensor, bias: Tensor | None) -> Tensor:
    """The definition: x and W are rounded, then multiplied in the precision of the other products here."""
    return multiplied(x, weight_OI, bias, False)


def product_here() -> Product:
    """`fp8_linear` on a machine whose GPU multiplies 8-bit floats (Ada, Hopper and later), else the definition."""
    has = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 9)
    return fp8_linear if has else rounded_linear


PRODUCTS: tuple[Product, ...] = (fp8_linear, rounded_linear)


def multiplied(x: Tensor, weight_OI: Tensor, bias: Tensor | None, cores: bool) -> Tensor:
    kind = products_dtype(x)
    if x.numel() == 0:  # has no largest entry
        return nn.functional.linear(x.to(kind), weight_OI.to(kind), None if bias is None else bias.to(kind))
    y_NO = Fp8Product.apply(x.reshape(-1, x.shape[-1]), weight_OI, bias, kind, cores)
    return y_NO.reshape(*x.shape[:-1], len(weight_OI))


class Rounded(NamedTuple):
    """A matrix: `values` in 8 bits, times `scale`."""

    values: Tensor
    scale: Tensor

    def turned(self) -> Rounded:
        return Rounded(self.values.t().contiguous(), self.scale)


def rounded(x_MK: Tensor, kind: torch.dtype) -> Rounded:
    """x with the precision and the range of an 8-bit format. All on the device: the host waits for nothing."""
    largest = x_MK.abs().amax().float()
    # the exponent of its bits, one higher where more than 1.75 stands before it; logarithms are not exact on every device
    bits = largest.clamp(min=LEAST).view(torch.int32)
    bits = ((bits + 0x1FFFFF) & 0x7F800000) - (TOP[kind] << 23)
    scale, inverse = bits.view(torch.float32), (0x7F000000 - bits).view(torch.float32)
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    return Rounded((x_MK.float() * inverse).to(kind).contiguous(), scale)


class Fp8Product(torch.autograd.Function):
    """y_NO of x_NI, the weight and the bias in `kind`, by the tensor cores or as defined. Of x its 8 bits are kept."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias: Tensor | None, kind: torch.dtype, cores: bool) -> Tensor:
        x, weight = rounded(x_NI, E4M3), rounded(weight_OI, E4M3)
        ctx.save_for_backward(*x, weight_OI)
        ctx.kinds = x_NI.dtype, weight_OI.dtype, None if bias is None else bias.dtype
        ctx.cores = cores
        return product(x, weight, kind, cores, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        *x, weight_OI = ctx.saved_tensors
        grad = rounded(grad_NO, E5M2)
        x_kind, weight_kind, bias_kind = ctx.kinds
        dx_NI = dweight_OI = dbias = None
        if ctx.needs_input_grad[0]:
            dx_NI = product(grad, rounded(weight_OI, E4M3).turned(), grad_NO.dtype, ctx.cores).to(x_kind)
        if ctx.needs_input_grad[1]:
            dweight_OI = product(grad.turned(), Rounded(*x).turned(), grad_NO.dtype, ctx.cores).to(weight_kind)
        if ctx.needs_input_grad[2]:
            dbias = grad_NO.sum(0, dtype=bias_kind)
        return dx_NI, dweight_OI, dbias, None, None


def product(a_MK: Rounded, b_NK: Rounded, kind: torch.dtype, cores: bool, bias: Tensor | None = None) -> Tensor:
    """a bᵀ + bias, in `kind`."""
    bias = None if bias is None else bias.to(kind)
    if not cores:
        a, b = ((one.values.float() * one.scale).to(kind) for one in (a_MK, b_NK))
        return nn.functional.linear(a, b, bias)
    a, b = tiled(a_MK.values), tiled(b_NK.values)
    within = None if kind == torch.float32 else bias  # torch adds no fp32 in that kernel
    y_MN = torch._scaled_mm(
        a,
        b.t(),
        scale_a=a_MK.scale,
        scale_b=b_NK.scale,
        bias=within,
        out_dtype=kind,
        use_fast_accum=a.dtype == E4M3,
    )
    return y_MN if bias is None or within is not None else y_MN + bias


def tiled(values_MK: Tensor) -> Tensor:
    """The matrix with columns of zeros up to a multiple of 16: of tokens, in dW, where they add nothing."""
    missing = -values_MK.shape[1] % TILE
    if not missing:
        return values_MK
    return nn.functional.pad(values_MK.view(torch.uint8), (0, missing)).view(values_MK.dtype)  # bits of 0 are a zero
