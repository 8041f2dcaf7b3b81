"""JPEG files decoded by a CUDA device where torchvision can: for a store, or on the way to a training (encoded.py)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image as Pillow
from torch import Tensor

from frugalvit.data.files import Files
from frugalvit.data.look import ORIENTATION
from frugalvit.data.source import Source
from frugalvit.data.split import Picked
from frugalvit.data.store_build import Decoder, OneByOne, one_of

AT_ONCE = 32  # pictures on the device, with all their pixels
END = b"\xff\xd9"  # of a JPEG; one that is cut short does not have it, and is left to Pillow, which notices


@dataclass(frozen=True)
class GpuJpeg:
    """nvJPEG for upright color and gray JPEGs in files.

    Deviation: its arithmetic is not libjpeg's, which Pillow uses, so pixels differ a little and such a store has a fingerprint
    of its own.
    """

    device: str = "cuda"

    @property
    def name(self) -> str:
        return "nvjpeg"

    def helpers(self, workers: int) -> int:
        """None: the device is used from this process, and it is not the one that waits."""
        return 0

    def decode(self, source: Source, indices: Sequence[int]) -> Iterator[Pillow.Image | str]:
        for start in range(0, len(indices), AT_ONCE):
            few = indices[start : start + AT_ONCE]
            able = {index: file for index in few if (file := plain_jpeg(source, index)) is not None}
            found: dict[int, Pillow.Image] = {}
            try:
                images = decoded(list(able.values()), None, torch.device(self.device))
                found |= {index: as_picture(one.permute(1, 2, 0).cpu()) for index, one in zip(able, images, strict=True)}
            except RuntimeError as error:
                warnings.warn(f"{self.device} could not decode {len(able)} pictures ({error}); the CPU does.", stacklevel=2)
            for index in few:
                yield found[index] if index in found else one_of(source, index)


def decoder_for(device: torch.device) -> Decoder:
    """The device's own decoder where there is one, else Pillow, with a warning."""
    if device.type == "cuda" and decodes_on(device):
        return GpuJpeg(str(device))
    warnings.warn(f"no JPEG can be decoded by {device} here, as decoder='device' asks; the CPU does.", stacklevel=2)
    return OneByOne()


def decodes_on(device: torch.device) -> bool:
    """Whether torchvision can; its operations are there once it is imported."""
    try:
        import torchvision.io  # noqa: F401
    except ImportError:
        return False
    if device.type == "cuda":
        return torch.cuda.is_available() and hasattr(torch.ops.image, "decode_jpegs_cuda")
    return device.type == "cpu" and hasattr(torch.ops.image, "decode_jpeg")


def plain_jpeg(source: Source, index: int, mode: str | None = None) -> Tensor | None:
    """The bytes of a picture, if it is a whole JPEG file in color or gray that is stored upright.

    `mode` asks for one that a device decodes to that mode as Pillow does: of colors it would make another gray.
    """
    while isinstance(source, Picked):
        index = int(source.indices[index])
        source = source.source
    if not isinstance(source, Files):
        return None
    path: Path = source.path(index)
    try:
        with Pillow.open(path) as file:
            if file.format != "JPEG" or file.mode not in ("RGB", "L") or file.getexif().get(ORIENTATION, 1) != 1:
                return None
            if mode not in (None, "RGB", file.mode):
                return None
        data = bytearray(path.read_bytes())
    except Exception:  # whatever is wrong with it, Pillow is to say
        return None
    return torch.frombuffer(data, dtype=torch.uint8) if data.endswith(END) else None


def decoded(files: Sequence[Tensor], mode: str | None, device: torch.device) -> list[Tensor]:
    """image_CHW of each JPEG on the device, in its own mode or the one that is given. Raises a RuntimeError."""
    from torchvision.io import ImageReadMode, decode_jpeg

    if not files:
        return []
    asked = {None: ImageReadMode.UNCHANGED, "RGB": ImageReadMode.RGB, "L": ImageReadMode.GRAY}[mode]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision 0.29 announces that TorchCodec will take this over
        found: list[Tensor] = decode_jpeg(list(files), asked, device=str(device))
    return found


def as_picture(image_HWC: Tensor) -> Pillow.Image:
    array = image_HWC.numpy()
    return Pillow.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
