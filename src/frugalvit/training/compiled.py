"""What of a captured step is compiled, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from frugalvit.nn.network import Network
from frugalvit.training.teacher import Teacher

FROM = 3000  # steps of a training; compiling takes the better part of a minute, and must be earned
WHOLE = 50_000_000  # parameters of a teacher up to which it is compiled in one piece; a RegNetY-16GF would take minutes
Options = dict[str, Any]  # of torch.compile
# small kernels that do not wait for each other become one; where Triton cannot compile one of those, each by itself
OPTIONS: tuple[Options, ...] = ({"combo_kernels": True}, {})
VARIANTS = 64  # of one function: a search trains dozens of recipes in a process, and torch would stop at eight


def compiled(function: Callable[..., Any], options: Options, *, whole: bool) -> Callable[..., Any]:
    """The function for inputs of one shape; in one graph where it must be whole."""
    return torch.compile(function, dynamic=False, fullgraph=whole, options=options)


def compiled_teacher(teacher: Teacher, options: Options) -> Callable[[Tensor], dict[str, Tensor]]:
    """A large one layer by layer, so that equal layers are compiled once: 7 times for the 18 of RegNetY-16GF."""
    if sum(one.numel() for one in teacher.parameters()) <= WHOLE:
        return compiled(teacher, options, whole=False)
    compile_layers(teacher, options)
    return teacher


def compile_layers(module: nn.Module, options: Options) -> None:
    """Each by itself; equal ones are compiled once."""
    for layer in layers_of(module):
        layer.compile(dynamic=False, options=options)


def uncompile_layers(module: nn.Module) -> None:
    for layer in layers_of(module):
        layer._compiled_call_impl = None


def failed_by(error: Exception) -> bool:
    """Whether it is the compiler's own."""
    from torch._dynamo.exc import TorchDynamoException  # with all of the compiler, which takes seconds to load

    return isinstance(error, TorchDynamoException)


def forget(teacher: Teacher | None) -> None:
    """Undo what was compiled, after a failure."""
    if teacher is not None:
        uncompile_layers(teacher)
    torch._dynamo.reset()


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Those of our own networks inside."""
    return [layer for one in module.modules() if isinstance(one, Network) for layer in one.layers]
