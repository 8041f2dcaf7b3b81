"""How a teacher with convolutions answers sooner on CUDA."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from frugalvit.nn.fold import FoldedConvolution, GroupedConvolution, folded, put
from frugalvit.training.teacher import Teacher
from frugalvit.training.teacher_networks import Answering, Members

TRIED = 6  # answers of each form; the later half of them is timed


def quicken(teacher: Teacher, pictures: int = 64) -> None:
    """Fold the batch norms of a teacher into its convolutions, and keep these as CUDA reads them: rounded, channels last.

    Convolutions in groups may be slow that way: on CUDA their networks answer for a batch of pictures in each form, and the
    soonest is kept, unless torch is told to be deterministic. Answers change by rounding alone. Functions, ONNX files and
    networks without batch norms stay as they are, and so does all when it is asked for again: a CUDA graph may hold it. Its
    fingerprint becomes another, so ask for that before.
    """
    for one in [each for each in teacher.modules() if isinstance(each, Teacher)]:
        if isinstance(one.network, Members) or not one.captured:
            continue
        if isinstance(one.network, Answering):
            assert isinstance(one.network.answer, nn.Module)
            given = forms(one.network.answer, one.precision)
            one.network.answer = soonest(given, one, partial(setattr, one.network, "answer"), pictures)
        else:
            given = forms(one.network, one.precision)
            one.network = soonest(given, one, partial(setattr, one, "network"), pictures)


def forms(network: nn.Module, precision: torch.dtype | None) -> list[nn.Module]:
    """The folded network in every form that may be the soonest."""
    last = quick(network, precision)
    grouped = [one for one in last.modules() if isinstance(one, FoldedConvolution) and one.groups > 1]
    if has_folded(network) or not any(one.weight.is_cuda for one in grouped):
        return [last]
    ours = [own_groups(last)] if any(map(GroupedConvolution.fits, grouped)) else []
    return [last, channels_first(last), *ours]


def channels_first(network: nn.Module) -> nn.Module:
    """A copy of a folded network whose convolutions are cuDNN's, as it likes them best by itself."""
    network = copy.deepcopy(network)
    for one in network.modules():
        if isinstance(one, FoldedConvolution):
            one.to(memory_format=torch.contiguous_format)
            one.single = False
    return network


def own_groups(network: nn.Module) -> nn.Module:
    """A copy of a folded network with our kernel for its convolutions in groups."""
    network = copy.deepcopy(network)
    for path, one in list(network.named_modules()):
        if isinstance(one, FoldedConvolution) and GroupedConvolution.fits(one):
            put(network, path, GroupedConvolution(one))
    return network


def soonest(given: list[nn.Module], teacher: Teacher, use: Callable[[nn.Module], None], pictures: int) -> nn.Module:
    """The one of them with which the teacher answers for so many pictures in the least time."""
    if len(given) == 1 or torch.are_deterministic_algorithms_enabled():
        return given[0]
    blank_1CHW = teacher.blank()
    generator = torch.Generator(blank_1CHW.device).manual_seed(0)
    image_BCHW = torch.randn(pictures, *blank_1CHW.shape[1:], device=blank_1CHW.device, generator=generator)

    def milliseconds(network: nn.Module) -> float:
        use(network)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for call in range(TRIED):
            if call == TRIED // 2:  # before, cuDNN chose its kernels
                start.record()
            teacher(image_BCHW)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    return min(given, key=milliseconds)


def quick(network: nn.Module, precision: torch.dtype | None) -> nn.Module:
    """A copy with folded norms, in that precision or that of its weights. Where there is nothing to fold, the same network."""
    if has_folded(network):
        return network
    after = folded(network)
    for one in after.modules():
        if isinstance(one, FoldedConvolution):  # autocast would round in every step
            one.to(precision or one.weight.dtype).to(memory_format=torch.channels_last)
    return after if has_folded(after) else network


def has_folded(network: nn.Module) -> bool:
    return any(isinstance(one, FoldedConvolution) for one in network.modules())
