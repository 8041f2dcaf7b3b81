"""Batches decoded by worker processes and copied to the device ahead of their use, and advice for those who wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from frugalvit.data.batch import Batch
from frugalvit.data.batches import read

DEPTH = 2  # batches on their way to the device
WAITING = 0.1  # the share of the time above which advice is due


Read = TypeVar("Read")


class Ahead(Generic[Read]):
    """An iterator over batches on a device, the next ones of which are on their way; `bring` puts one there."""

    def __init__(self, reader: Iterator[Read], device: torch.device, bring: Callable[[Read], Batch]):
        self.reader, self.device, self.bring = reader, device, bring
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.coming: deque[tuple[Batch, torch.cuda.Event | None]] = deque()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        depth = DEPTH if self.side is not None else 1  # without a stream there is nothing to overlap
        while len(self.coming) < depth and (given := next(self.reader, None)) is not None:
            self.coming.append(self.sent(given))
        if not self.coming:
            raise StopIteration
        batch, arrived = self.coming.popleft()
        if arrived is not None:
            here = torch.cuda.current_stream(self.device)
            here.wait_event(arrived)
            for tensor in tensors(batch):
                tensor.record_stream(here)  # else its memory is used again while `here` still reads it
        return batch

    def sent(self, given: Read) -> tuple[Batch, torch.cuda.Event | None]:
        if self.side is None:
            return self.bring(given), None
        with torch.cuda.stream(self.side):
            return self.bring(given), self.side.record_event()


def ahead(batches: Dataset[Batch], numbers: range, workers: int, device: torch.device) -> Ahead[Batch]:
    """Those batches in order on `device`, the same ones as `read` gives, decoded by `workers` processes."""

    def there(tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    return Ahead(read(batches, numbers, workers), device, lambda batch: mapped(batch, there))


def tensors(batch: Batch) -> list[Tensor]:
    return [one for one in (batch.image_BCHW, batch.label_B, batch.index_B, batch.target_BC) if one is not None]


def mapped(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    return replace(
        batch,
        image_BCHW=change(batch.image_BCHW),
        label_B=change(batch.label_B),
        index_B=change(batch.index_B),
        target_BC=None if batch.target_BC is None else change(batch.target_BC),
    )


# ------------------------------------------------------------------------------------------------ advice


@dataclass(frozen=True)
class Reading:
    """How a training reads its pictures."""

    kept: Literal["encoded", "files", "stored", "on the device"]  # files: decoded on the device, on their way
    workers: int
    cores: int
    side: int  # of the pictures, the shorter one, in pixels
    image: int  # the model's, in pixels


def advice(share: float, facts: Reading) -> str:
    """One sentence on what to do where that share of the time is spent waiting for data; empty where it is small."""
    if not share > WAITING:
        return ""
    spent = f"{share:.0%} of the time is spent waiting for data:"
    if facts.kept == "on the device":
        return f"{spent} the pictures are in memory already, so use a larger batch or fewer augmentations."
    if facts.kept in ("encoded", "files") and facts.side > facts.image:  # smaller ones are decoded in no time
        more = more_workers(facts)
        other = " path=auto" * (facts.kept == "files")
        once = f"decode the pictures once, with 'data.store=Stored({2 * facts.image})'{other}"
        return f"{spent} {f'use {more}, or ' if more else ''}{once}."
    if facts.side > 2 * facts.image:
        smaller = f"with 'data.store=Stored({2 * facts.image})' instead of a shorter side of {facts.side}"
        return f"{spent} store the pictures smaller, {smaller}."
    more = more_workers(facts)
    return f"{spent} use {more or 'fewer augmentations or a machine with more cores'}."


def more_workers(facts: Reading) -> str:
    """`--workers 8`, where cores are idle."""
    return f"--workers {facts.cores}" if facts.workers < facts.cores else ""
