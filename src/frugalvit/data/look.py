"""A look at one picture: its size, how it is stored, and whether it can be read."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from frugalvit.data.files import Files
from frugalvit.data.preprocess import MODES, ORIENTATION, Preprocess, in_mode, opened
from frugalvit.data.source import Source
from frugalvit.data.split import Picked
from frugalvit.errors import DataError

KINDS = {"RGB": "color", "L": "gray", "P": "palette", "PA": "palette", "1": "black and white", "LA": "alpha", "La": "alpha"}
KINDS |= {"RGBA": "alpha", "RGBa": "alpha"}
DEEP, DEEP_AND_DARK = "16-bit", "16-bit of which at most 12 are used"
DARK = 16  # of 255, up to which 12 bits of 16 come out
USUAL = Preprocess(224, 224, (0.5,) * 3, (0.5,) * 3)  # a check knows no model, and most take pictures of this size


@dataclass(frozen=True)
class Look:
    """What one picture is like, as it is shown (upright), or the problem with it."""

    width: int
    height: int
    kind: str  # color, gray, alpha, palette, 16-bit, CMYK, ...
    rotated: bool  # by its EXIF
    frames: int
    digest: str  # of its bytes
    problem: str = ""  # "missing", "empty", "not a picture", "broken", "huge", "colors" or "thin"


def look(source: Source, index: int) -> Look:
    """At a picture of a source. Whatever is wrong with it is in the answer; nothing is raised."""
    while isinstance(source, Picked):
        index = int(source.indices[index])
        source = source.source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about EXIF and sizes
        if isinstance(source, Files):
            return at_file(source.path(index))
        picture = source.picture(index)
        digest = hashlib.blake2b(picture.tobytes(), digest_size=16).hexdigest()
        problem = unfit(picture)
        return unreadable(problem, digest) if problem else Look(*picture.size, kind_of(picture.mode), False, 1, digest)


def at_file(path: Path) -> Look:
    digest = ""
    try:
        data = path.read_bytes()
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if not data:
            return unreadable("empty", digest)
        with Pillow.open(path) as file:
            kind, frames = kind_of(file.mode), getattr(file, "n_frames", 1)
            rotated = file.getexif().get(ORIENTATION, 1) in range(2, 9)
        picture = opened(path)
        problem = unfit(picture)
        if kind == DEEP and np.asarray(picture).max() <= DARK:
            kind = DEEP_AND_DARK
        return unreadable(problem, digest) if problem else Look(*picture.size, kind, rotated, frames, digest)
    except FileNotFoundError:
        return unreadable("missing", digest)
    except UnidentifiedImageError:
        return unreadable("not a picture", digest)
    except Pillow.DecompressionBombError:
        return unreadable("huge", digest)
    except Exception:  # decoders fail in many ways, and one picture must not end the check
        return unreadable("broken", digest)


def unfit(picture: Pillow.Image) -> str:
    """Why models cannot be shown a picture that opens; empty where they can."""
    try:
        for mode in MODES.values():
            in_mode(Pillow.new(picture.mode, (1, 1)), mode)
    except DataError:
        return "colors"
    try:
        USUAL.covering(*picture.size)
    except DataError:
        return "thin"
    return ""


def unreadable(problem: str, digest: str) -> Look:
    return Look(0, 0, "", False, 0, digest, problem)


def kind_of(mode: str) -> str:
    return DEEP if mode.startswith(("I", "F")) else KINDS.get(mode, mode)
