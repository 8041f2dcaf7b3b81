"""What the logits of a model of others come from: the maps that give them, and the norms that stand last before these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BESIDE = {"shortcut", "downsample", "proj"}  # of a block, here, in timm and in torchvision: what its branch is added to
Nodes = Mapping[Any, str]  # autograd's, by the part that left them behind


@dataclass(frozen=True)
class Ends:
    """Paths of modules. Norms are several where the last ones stand side by side, in branches that meet behind them."""

    heads: tuple[str, ...]
    norms: tuple[str, ...]


def ends_of(module: nn.Module, image: tuple[int, int, int]) -> Ends:
    """Found by how the logits depend on the parts, in evaluation, so that auxiliary outputs have no say.

    Modules are registered in an order that need not be that of computing.
    """
    device = next(module.parameters()).device
    blank_BCHW = torch.zeros(1, *image, device=device, requires_grad=True)
    behind: dict[Any, str] = {}
    hooks = [part.register_forward_hook(noting(name, behind)) for name, part in parts(module)]
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.enable_grad():
            logits_BC = module(blank_BCHW)["class"]
    finally:
        for hook in hooks:
            hook.remove()
        for part, mode in modes.items():
            part.training = mode
    learning = {name for name, part in parts(module) if any(True for _ in part.parameters())}
    normal = {name for name, part in parts(module) if is_norm(part) and BESIDE.isdisjoint(name.split("."))}
    heads = first_behind([logits_BC.grad_fn], {node: name for node, name in behind.items() if name in learning})
    norms = {node: name for node, name in behind.items() if name in normal}
    last = first_behind([logits_BC.grad_fn], norms)
    earlier = {norms[node] for one in last for node in all_behind([one]) if node is not one and node in norms}
    return Ends(in_order(module, heads.values()), in_order(module, set(last.values()) - earlier))


def parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Those with parameters of their own and none further in, and norms without any."""
    for name, part in module.named_modules():
        inner = any(any(True for _ in one.parameters()) for one in part.children())
        if not inner and (any(True for _ in part.parameters()) or is_norm(part)):
            yield name, part


def is_norm(part: nn.Module) -> bool:
    """By its name, since libraries have norms of their own: BatchNormAct2d, RmsNorm, LayerNorm2d."""
    return "norm" in type(part).__name__.lower()


def noting(name: str, behind: dict[Any, str]) -> Callable[[nn.Module, tuple[Any, ...], object], None]:
    """A hook that remembers which node a part left behind."""

    def note(part: nn.Module, given: tuple[Any, ...], left: object) -> None:
        if isinstance(left, Tensor) and left.grad_fn is not None:
            behind[left.grad_fn] = name

    return note


def first_behind(nodes: Iterable[Any], stops: Nodes) -> dict[Any, str]:
    """The stops that are met first on all ways from the nodes back to the picture."""
    found: dict[Any, str] = {}
    waiting, seen = [*nodes], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in stops:
            found[node] = stops[node]
        else:
            waiting += [further for further, _ in node.next_functions]
    return found


def all_behind(nodes: Iterable[Any]) -> set[Any]:
    """All nodes on all ways from these back to the picture, with these."""
    waiting, seen = [*nodes], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [further for further, _ in node.next_functions]
    return seen


def in_order(module: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    wanted = set(names)
    return tuple(name for name, _ in module.named_modules() if name in wanted)
