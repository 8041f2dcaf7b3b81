"""Batch norms as part of the convolutions before them, for networks that only answer.

In evaluation a batch norm is a factor and a shift a channel, and a convolution takes both in (Jacob et al. 2018, §3.2):
γ (W x + b − μ) / √(σ² + ε) + β = s W x + s (b − μ) + β, s = γ / √(σ² + ε).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import conv2d, linear, pad

from frugalvit.errors import SpecError
from frugalvit.nn.conv import Kernel, Pads, StandardizedKernel
from frugalvit.nn.foreign import ForeignNetwork
from frugalvit.nn.kernels import ROUNDED, has_kernel
from frugalvit.nn.map_norm import BatchNormalized
from frugalvit.nn.network import Network

ACTIVE_NORM = "BatchNormAct2d"  # timm's batch norm with an activation inside


def folded(network: nn.Module) -> nn.Module:
    """A copy whose convolutions have taken in the batch norms behind them. What is called by other ways stays as it is.

    Ours are found in plain sequences; those of other libraries, which call their modules by hand, in a symbolic trace.
    """
    if network.training:
        raise SpecError("statistics that move cannot be folded. Call eval() first.", path="training")
    network = copy.deepcopy(network)
    times = Counter(id(one) for _, one in network.named_modules(remove_duplicate=False))
    for conv_path, norm_path in [*in_sequences(network), *in_trace(network)]:
        conv, norm = network.get_submodule(conv_path), network.get_submodule(norm_path)
        if foldable(conv, norm) and times[id(conv)] == times[id(norm)] == 1:
            put(network, conv_path, both(conv, norm))
            put(network, norm_path, rest(norm))
    rectify(network)
    return network


class FoldedConvolution(nn.Module):
    """A convolution with a bias, in the precision of its weights; negative sums become zeros where it `rectifies`.

    One that sees single pixels is a matrix product, which adds its bias on the way. To what other convolutions leave, PyTorch
    adds the bias in a pass of its own on CUDA.
    """

    def __init__(
        self,
        weight_OIHW: Tensor,
        bias_O: Tensor,
        stride: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
        pads: Pads,
    ):
        super().__init__()
        self.weight = nn.Parameter(weight_OIHW, requires_grad=False)
        self.bias = nn.Parameter(bias_O, requires_grad=False)
        self.stride = stride
        self.dilation = dilation
        self.groups = groups
        self.pads = pads
        self.rectifies = False
        single = weight_OIHW.shape[2:] == (1, 1) and stride == (1, 1) and not any(pads)
        self.single = single and groups == 1

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = x_BCHW.to(self.weight.dtype)
        if self.single:
            x_BHWC = x_BCHW.permute(0, 2, 3, 1)
            y_RO = self.product(x_BHWC.reshape(-1, x_BHWC.shape[3]))  # rows: of others torch adds the bias in a pass of its own
            return y_RO.unflatten(0, x_BHWC.shape[:3]).permute(0, 3, 1, 2)
        left, right, top, bottom = self.pads
        padding = (top, left)
        if left != right or top != bottom:
            x_BCHW, padding = pad(x_BCHW, self.pads), (0, 0)
        y_BCHW = conv2d(x_BCHW, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        return y_BCHW.relu() if self.rectifies else y_BCHW

    def product(self, x_RI: Tensor) -> Tensor:
        weight_OI = self.weight.flatten(1)
        if self.rectifies and not torch.compiler.is_compiling():
            return torch._addmm_activation(self.bias, x_RI, weight_OI.t())  # CUDA rectifies on the way, too
        y_RO = linear(x_RI, weight_OI, self.bias)
        return y_RO.relu() if self.rectifies else y_RO


class GroupedConvolution(nn.Module):
    """A `FoldedConvolution` in groups, by a kernel of ours on CUDA: channels last, 16 bits."""

    weight_GWIO: Tensor

    def __init__(self, given: FoldedConvolution):
        super().__init__()
        self.stride, self.pads, self.rectifies = given.stride[0], list(given.pads), given.rectifies
        weight_GOIW = given.weight.detach().unflatten(0, (given.groups, -1)).flatten(3)
        self.register_buffer("weight_GWIO", weight_GOIW.permute(0, 3, 2, 1).contiguous())
        self.bias = given.bias

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BHWC = x_BCHW.to(self.weight_GWIO.dtype).permute(0, 2, 3, 1)
        given = x_BHWC, self.weight_GWIO, self.bias, self.stride, self.pads, self.rectifies
        return torch.ops.frugalvit.grouped_convolution(*given).permute(0, 3, 1, 2)

    @staticmethod
    def fits(given: FoldedConvolution) -> bool:
        """Whether it pays: groups as wide as what tensor cores multiply, and square windows."""
        weight_OIHW, groups = given.weight, given.groups
        square = weight_OIHW.shape[2] == weight_OIHW.shape[3] and given.stride[0] == given.stride[1]
        widths = weight_OIHW.shape[1], len(weight_OIHW) // groups
        fine = all(width % 16 == 0 and width <= 128 for width in widths)
        rounded = weight_OIHW.is_cuda and weight_OIHW.dtype in ROUNDED
        return groups > 1 and square and given.dilation == (1, 1) and fine and rounded and has_kernel("grouped_convolution")


# ------------------------------------------------------------------------------------------------ who stands behind whom


def in_sequences(network: nn.Module) -> Iterator[tuple[str, str]]:
    """The paths of our kernels and norms that follow each other."""
    for path, parent in network.named_modules():
        if type(parent) is nn.Sequential:
            for (first, conv), (second, norm) in pairwise(parent._modules.items()):
                if isinstance(conv, Kernel) and isinstance(norm, BatchNormalized):
                    yield f"{path}.{first}".lstrip("."), f"{path}.{second}".lstrip(".")


def rectify(network: nn.Module) -> None:
    """Rectifiers that follow a folded convolution in a plain sequence become a part of it."""
    for parent in [one for one in network.modules() if type(one) is nn.Sequential]:
        items = list(parent._modules.items())
        for (_, conv), (_, norm), (name, activation) in zip(items, items[1:], items[2:], strict=False):
            gone = type(norm) is nn.Identity and type(activation) is nn.ReLU and not hooked(activation)
            if isinstance(conv, FoldedConvolution) and gone:
                conv.rectifies = True
                setattr(parent, name, nn.Identity().eval())


def in_trace(network: nn.Module) -> Iterator[tuple[str, str]]:
    """The paths of torch's convolutions whose only reader is a batch norm. A module that cannot be traced has none."""
    if isinstance(network, Network) and not isinstance(network, ForeignNetwork):
        return
    path, root = ("network.", network.network) if isinstance(network, ForeignNetwork) else ("", network)
    try:
        graph = Leaves().trace(root)
    except Exception:  # a module of others can branch on values, and fail in any way when given none
        return
    times = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        if times[node.target] == times[before.target] == 1:
            yield f"{path}{before.target}", f"{path}{node.target}"


class Leaves(fx.Tracer):
    """Convolutions and norms are not looked into, whoever has refined them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (nn.Conv2d, nn.BatchNorm2d)) or super().is_leaf_module(m, module_qualified_name)


# ------------------------------------------------------------------------------------------------ two modules become one


def foldable(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether both compute what their kinds do and nothing else: a subclass or a hook may compute anything."""
    if norm.training or hooked(conv) or hooked(norm):
        return False
    if type(norm) is BatchNormalized:
        return type(conv) in (Kernel, StandardizedKernel)
    plain = type(norm) is nn.BatchNorm2d or (isinstance(norm, nn.BatchNorm2d) and type(norm).__name__ == ACTIVE_NORM)
    if not plain or norm.running_mean is None or type(conv) is not nn.Conv2d:
        return False
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@torch.no_grad()
def both(conv: nn.Module, norm: nn.Module) -> FoldedConvolution:
    assert isinstance(norm, (BatchNormalized, nn.BatchNorm2d)) and norm.running_mean is not None
    assert norm.running_var is not None
    scale_O = (norm.running_var.double() + norm.eps).rsqrt()
    scale_O = scale_O if norm.weight is None else scale_O * norm.weight
    shift_O = -norm.running_mean * scale_O
    shift_O = shift_O if norm.bias is None else shift_O + norm.bias
    if isinstance(conv, Kernel):
        kernel_OIHW, stride, dilation, pads = conv.kernel_OIHW(), (conv.stride, conv.stride), (1, 1), conv.pads
    else:
        assert isinstance(conv, nn.Conv2d) and not isinstance(conv.padding, str)
        kernel_OIHW, (high, wide) = conv.weight, conv.padding
        stride, dilation, pads = pair(conv.stride), pair(conv.dilation), (wide, wide, high, high)
        shift_O = shift_O if conv.bias is None else shift_O + scale_O * conv.bias
    weight_OIHW = (scale_O[:, None, None, None] * kernel_OIHW).to(kernel_OIHW.dtype)
    return FoldedConvolution(weight_OIHW, shift_O.to(kernel_OIHW.dtype), stride, dilation, conv.groups, pads).eval()


def pair(sides: tuple[int, ...]) -> tuple[int, int]:
    high, wide = sides
    return high, wide


def rest(norm: nn.Module) -> nn.Module:
    """What a norm does beside normalizing."""
    if type(norm).__name__ != ACTIVE_NORM:
        return nn.Identity().eval()
    assert isinstance(norm.drop, nn.Module) and isinstance(norm.act, nn.Module)
    return nn.Sequential(norm.drop, norm.act).eval()


def put(network: nn.Module, path: str, module: nn.Module) -> None:
    """In place of what stands at the path."""
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, module)
