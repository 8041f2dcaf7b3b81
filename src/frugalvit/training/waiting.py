"""What to do where much of the time is spent waiting for data."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from frugalvit.data.ahead import WAITING, Reading, advice
from frugalvit.data.batches import TrainingBatches, readable
from frugalvit.data.encoded import EncodedBatches
from frugalvit.data.store import Store
from frugalvit.measure.processor import usable_cores
from frugalvit.training.loop import Record
from frugalvit.training.prepare import Training


class Waiting:
    """Advice for one training. How it reads is found out when that is first asked for: a picture must be decoded."""

    def __init__(self, training: Training, workers: int):
        self.training, self.workers = training, workers

    def advice(self, record: Record) -> str:
        """A sentence; empty where little time was spent waiting."""
        share = record.values.get("time_waiting", 0.0)
        return advice(share, self.reading) if share > WAITING else ""

    @cached_property
    def reading(self) -> Reading:
        batches, preprocess = self.training.batches, self.training.preprocess
        source = batches.source if isinstance(batches, (TrainingBatches, EncodedBatches)) else None
        kept: Literal["encoded", "files", "stored", "on the device"] = "encoded" if source is not None else "on the device"
        side = 0
        if source is not None and not isinstance(source, Store):
            side = min(readable(source, 0, len(source))[0].size)
        if isinstance(batches, EncodedBatches):
            kept = "files"
        if isinstance(source, Store):
            sides_N = np.minimum(source.heights, source.widths)
            kept, side = "stored", int(np.median(sides_N[sides_N > 0])) if sides_N.any() else 0  # 0: unreadable
        return Reading(kept, self.workers, usable_cores(), side, min(preprocess.height, preprocess.width))
