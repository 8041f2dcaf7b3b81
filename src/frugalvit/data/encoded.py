"""Pictures that travel as files: read by worker processes, decoded and cropped by the device that trains on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from frugalvit.data.ahead import Ahead
from frugalvit.data.augment import Augment, ResizedCrop
from frugalvit.data.batch import Batch
from frugalvit.data.batches import read, readable
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.frame import DeviceResizedCrop
from frugalvit.data.device.mixed import resized_crops
from frugalvit.data.gpu_jpeg import decoded, plain_jpeg
from frugalvit.data.order import LastEpoch, Order, epoch_batches, steps_per_epoch
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randomness import Stream
from frugalvit.data.source import Source


@dataclass(frozen=True)
class Encoded:
    """Batch `number` before anything is decoded. One tensor holds all of it: workers pass each by a descriptor of its own."""

    number: int
    byte_N: Tensor  # the pictures, one behind the other
    end_B: Tensor  # where each ends
    shape_B3: Tensor  # channels, height and width of those that are pixels already; zeros for JPEG files
    label_B: Tensor
    index_B: Tensor
    bad: tuple[str, ...] = ()

    def files(self) -> Iterator[Tensor]:
        """The bytes of a JPEG, or image_CHW."""
        start = 0
        for end, shape in zip(self.end_B.tolist(), self.shape_B3.tolist(), strict=True):
            one = self.byte_N[start:end]
            yield one.view(shape) if shape[0] else one
            start = end


@dataclass(frozen=True)
class EncodedBatches(Dataset[Encoded]):
    """Batch `step` of a training: which pictures, as files. What the device cannot decode comes as pixels."""

    source: Source
    order: Order
    seed: int
    batch: int
    preprocess: Preprocess
    unreadable: Literal["replaced", "refused"] = "replaced"
    last: LastEpoch[np.ndarray] = field(default_factory=LastEpoch, init=False, repr=False, compare=False)

    def __getitem__(self, step: int) -> Encoded:
        number, row = divmod(step, steps_per_epoch(self.order, self.source.labels, self.batch))
        found, used, bad = [], [], []
        for index in self.last.rows(number, self.epoch)[row]:
            file, place = plain_jpeg(self.source, int(index), self.preprocess.mode), int(index)
            if file is None:
                file, place, missed = self.pixels(place)
                bad += missed
            found.append(file)
            used.append(place)
        shape_B3 = torch.tensor([one.shape if one.ndim == 3 else (0, 0, 0) for one in found])
        end_B = torch.tensor([one.numel() for one in found]).cumsum(0)
        indices = np.array(used)
        label_B, index_B = (torch.from_numpy(one.astype(np.int64)) for one in (self.source.labels[indices], indices))
        return Encoded(step, torch.cat([one.flatten() for one in found]), end_B, shape_B3, label_B, index_B, tuple(bad))

    def pixels(self, index: int) -> tuple[Tensor, int, list[str]]:
        """image_CHW by the host, of that picture or the next readable one; its place; the names of those that are not."""
        tries = 1 if self.unreadable == "refused" else len(self.source)
        picture, place, missed = readable(self.source, index, tries, self.preprocess.mode)
        image_HWC = torch.from_numpy(np.atleast_3d(np.array(picture)))
        return image_HWC.permute(2, 0, 1).contiguous(), place, missed

    def epoch(self, number: int) -> np.ndarray:
        """indices_SB, a row a batch."""
        return epoch_batches(self.order, self.source.labels, self.seed, number, self.batch)


@dataclass(frozen=True)
class Decoding:
    """From files to a batch of the model's size on the device: decoded, and cropped by the draws of its number."""

    batches: EncodedBatches
    crop: ResizedCrop
    draws: int  # of all steps of the augmentation; the crop is the first
    device: torch.device
    decode: Callable[[Sequence[Tensor], str, torch.device], list[Tensor]] = decoded

    def __call__(self, given: Encoded) -> Batch:
        files, label_B, index_B, bad = list(given.files()), given.label_B, given.index_B, given.bad
        places = [place for place, one in enumerate(files) if one.ndim == 1]
        try:
            found = self.decode([files[place] for place in places], self.batches.preprocess.mode, self.device)
        except RuntimeError as error:
            warnings.warn(f"{self.device} could not decode a batch ({error}); the CPU does.", stacklevel=2)
            found, label_B, index_B, missed = self.by_host(given, places)
            bad = (*bad, *missed)
        for place, one in zip(places, found, strict=True):
            files[place] = one
        key = torch.tensor([self.batches.seed, given.number], device=self.device)
        draws_BK = uniform(key, Stream.AUGMENT, (len(files), self.draws))[:, : DeviceResizedCrop.draws]
        size = self.batches.preprocess.height, self.batches.preprocess.width
        image_BCHW = resized_crops(self.crop, [one.to(self.device) for one in files], draws_BK, size)
        return Batch(image_BCHW, label_B.to(self.device), index_B.to(self.device), bad=bad)

    def by_host(self, given: Encoded, places: list[int]) -> tuple[list[Tensor], Tensor, Tensor, list[str]]:
        """Those pictures of a batch by the host; labels and numbers of all, where others stand for what cannot be read."""
        index_B, found, bad = given.index_B.clone(), [], []
        for place in places:
            image_CHW, used, missed = self.batches.pixels(int(index_B[place]))
            index_B[place] = used
            found.append(image_CHW)
            bad += missed
        label_B = torch.from_numpy(self.batches.source.labels[index_B.numpy()].astype(np.int64))
        return found, label_B, index_B, bad


def files_ahead(
    batches: EncodedBatches, numbers: range, workers: int, augment: Augment, draws: int, device: torch.device
) -> Ahead[Encoded]:
    """Those batches in order on `device`, read by `workers` processes; it decodes and crops them ahead of their use."""
    crop = augment.steps[0]
    assert isinstance(crop, ResizedCrop)
    return Ahead(read(batches, numbers, workers), device, Decoding(batches, crop, draws, device))
