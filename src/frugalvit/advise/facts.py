"""What advice rests on: the data, the machine, and a model's speed there. Values alone; no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What a data set is like, as far as advice goes. Sizes and colors are those of the pictures looked at."""

    place: str  # the path, or nothing for a data set that needs none
    dataset: str  # what reads it, as the command line writes it: ImageFolder, INaturalist(year=2018)
    known: str  # the public data set that it is, as recipes call it: digits, cifar10, imagenet, ...; else nothing
    pictures: int  # to train on
    whole: int  # to train on, were none held out
    held: int  # for validation
    classes: int
    least: int  # pictures of the smallest class in train, and of the largest
    most: int
    side: int  # the median of the shorter sides, in pixels
    shortest: int
    longest: int
    sizes: int  # different sizes
    gray: int  # pictures without color
    looked: int
    unreadable: tuple[str, ...] = ()  # names

    @property
    def uneven(self) -> float:
        """Times as many pictures in the largest class as in the smallest."""
        return self.most / max(self.least, 1)


@dataclass(frozen=True)
class Machine:
    """Where it is to be trained."""

    device: str  # cpu, cuda:0, mps
    name: str
    precision: str  # that `auto` stands for there
    threads: int
    cores: int  # for processes that read pictures
    memory: int  # bytes; 0 where it cannot be asked for

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True)
class Speed:
    """What a recipe costs on a machine: sizes of its model, and how fast it trains and is fed."""

    parameters: int
    macs: int  # multiply-accumulates of a picture's forward pass
    activations: int  # bytes kept for the backward pass of a picture, fp32
    precision: str
    images_per_second: float  # gradients and updates, on synthetic pictures
    reads_per_second: float  # pictures that one process reads and augments
    kept: bool  # whether the pictures lie on the device, so that nothing is read
    how: str  # "measured ..." or "estimated ..."
    validated: float = 0.0  # pictures that validation looks at for each one that is trained on
