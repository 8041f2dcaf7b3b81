"""Pictures that travel as files: read by worker processes, decoded and cropped by the device that trains on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from frugalvit.data.ahead import Ahead
from frugalvit.data.augment import ResizedCrop
from frugalvit.data.batch import Batch
from frugalvit.data.batches import TrainingBatches, read
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.frame import DeviceResizedCrop
from frugalvit.data.device.mixed import resized_crops
from frugalvit.data.gpu_jpeg import decoded, plain_jpeg
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
    """The pictures of a training's batches as files. What the device cannot decode comes as pixels."""

    batches: TrainingBatches

    @property
    def source(self) -> Source:
        return self.batches.source

    def __getitem__(self, step: int) -> Encoded:
        found, used, bad = [], [], []
        for index in self.batches.wanted(step):
            file, place = plain_jpeg(self.source, int(index), self.batches.preprocess.mode), int(index)
            if file is None:
                file, place, missed = self.pixels(place)
                bad += missed
            found.append(file)
            used.append(place)
        shape_B3 = torch.tensor([one.shape if one.ndim == 3 else (0, 0, 0) for one in found])
        end_B = torch.tensor([one.numel() for one in found]).cumsum(0)
        index_B = torch.tensor(used)
        byte_N = torch.cat([one.flatten() for one in found])
        return Encoded(step, byte_N, end_B, shape_B3, self.labels(index_B), index_B, tuple(bad))

    def pixels(self, index: int) -> tuple[Tensor, int, list[str]]:
        """image_CHW by the host, of that picture or the next readable one; its place; the names of those that are not."""
        picture, place, missed = self.batches.read(index)
        image_HWC = torch.from_numpy(np.atleast_3d(np.array(picture)))
        return image_HWC.permute(2, 0, 1).contiguous(), place, missed

    def labels(self, index_B: Tensor) -> Tensor:
        return torch.from_numpy(self.source.labels[index_B.numpy()].astype(np.int64))


@dataclass(frozen=True)
class Decoding:
    """From files to a batch of the model's size on the device: decoded, and cropped by the draws of its number."""

    files: EncodedBatches
    draws: int  # of all steps of the augmentation; the crop is the first
    device: torch.device
    decode: Callable[[Sequence[Tensor], str, torch.device], list[Tensor]] = decoded

    def __call__(self, given: Encoded) -> Batch:
        images, label_B, index_B, bad = list(given.files()), given.label_B, given.index_B, given.bad
        places = [place for place, one in enumerate(images) if one.ndim == 1]
        of = self.files.batches
        try:
            found = self.decode([images[place] for place in places], of.preprocess.mode, self.device)
        except RuntimeError as error:
            warnings.warn(f"{self.device} could not decode a batch ({error}); the CPU does.", stacklevel=2)
            found, index_B, missed = self.by_host(index_B, places)
            label_B, bad = self.files.labels(index_B), (*bad, *missed)
        for place, one in zip(places, found, strict=True):
            images[place] = one
        crop = of.augment.steps[0]
        assert isinstance(crop, ResizedCrop)
        key = torch.tensor([of.seed, given.number], device=self.device)
        draws_BK = uniform(key, Stream.AUGMENT, (len(images), self.draws))[:, : DeviceResizedCrop.draws]
        size = of.preprocess.height, of.preprocess.width
        image_BCHW = resized_crops(crop, [one.to(self.device) for one in images], draws_BK, size)
        return Batch(image_BCHW, label_B.to(self.device), index_B.to(self.device), bad=bad)

    def by_host(self, index_B: Tensor, places: list[int]) -> tuple[list[Tensor], Tensor, list[str]]:
        """Those pictures of a batch by the host; the numbers of all, where others stand for what cannot be read."""
        index_B, found, bad = index_B.clone(), [], []
        for place in places:
            image_CHW, index_B[place], missed = self.files.pixels(int(index_B[place]))
            found.append(image_CHW)
            bad += missed
        return found, index_B, bad


def files_ahead(files: EncodedBatches, numbers: range, workers: int, draws: int, device: torch.device) -> Ahead[Encoded]:
    """Those batches in order on `device`, read by `workers` processes; it decodes and crops them ahead of their use."""
    return Ahead(read(files, numbers, workers), device, Decoding(files, draws, device))
