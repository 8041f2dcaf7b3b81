"""A step as one CUDA graph, for measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Captured:
    """A graph does not keep what it reads (model, pictures, kernels), but the step does."""

    graph: torch.cuda.CUDAGraph
    step: Callable[[], object]

    def __call__(self) -> None:
        self.graph.replay()


def captured(step: Callable[[], object]) -> Captured:
    """The step, after three that compile and warm up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return Captured(graph, step)
