"""A teacher's logits for pictures that look the same every time, computed once and kept in a file.

A live teacher costs its forward pass in every step; a file costs one pass over the pictures, and an index. The price: a file
knows one view of a picture, so nothing may be drawn: no crops, flips, colors, erasing or mixing. On little data these are worth
more than the time they take, and DeiT's own training has them all.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from frugalvit.data.augment import Flip, PadCrop, Resize
from frugalvit.data.batches import readable, stacked
from frugalvit.data.finish import normalize
from frugalvit.data.mix import NoMix
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.source import Source
from frugalvit.errors import DataError, SpecError
from frugalvit.spec import encode
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import Teacher
from frugalvit.weights.files import read_file, read_metadata, write_safetensors

BATCH = 256
MARK = "frugalvit_answers"
ENDING = ".safetensors"
TRIED = 8  # pictures, for which a teacher answers again before a file is trusted
ALIKE = 0.05  # how far answers may differ, as a share of their spread: bf16 against fp32 is under a fifth of that


class FiledAnswers(nn.Module):
    """The logits_NC of every training picture, by its place in the source."""

    logits_NC: Tensor

    def __init__(self, logits_NC: Tensor):
        super().__init__()
        self.register_buffer("logits_NC", logits_NC, persistent=False)

    def forward(self, index_B: Tensor) -> dict[str, Tensor]:
        return {"logits": self.logits_NC[index_B]}


def filed_answers(teacher: Teacher, recipe: Recipe, source: Source, preprocess: Preprocess, path: Path) -> FiledAnswers:
    """The answers in the file at `path`, which is written if it is missing; one of something else is refused."""
    refuse_draws(recipe)
    if path.suffix != ENDING:
        raise SpecError(f"'{path}' is no name for answers. Choose one that ends in {ENDING}.", path="recipe.teaching.file")
    mark = fingerprint(teacher, recipe, source, preprocess)
    if path.exists():
        if MARK not in read_metadata(path):
            raise DataError("is no file of a teacher's answers. Name another one, which is written.", path=str(path))
        if read_metadata(path)[MARK] != mark:
            raise DataError(
                "holds the answers of another teacher, of other pictures, or to other views of them. Delete it, or name "
                "another file.",
                path=str(path),
            )
        logits_NC = read_file(path)["logits"]
        refuse_other_answers(logits_NC, teacher, recipe, source, preprocess, path)
        return FiledAnswers(logits_NC)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        logits_NC = answers(teacher, recipe, source, preprocess, np.arange(len(source)))
        write_safetensors(path, {"logits": logits_NC}, {MARK: mark})
    except OSError as error:
        raise DataError(f"the teacher's answers cannot be written there ({error.strerror}).", path=str(path)) from error
    return FiledAnswers(logits_NC)


def refuse_draws(recipe: Recipe) -> None:
    """A file has one view of a picture."""
    data = recipe.data
    still = all(
        isinstance(one, Resize) or one == Flip(0.0) or (isinstance(one, PadCrop) and one.pad == 0) for one in data.augment.steps
    )
    if not still or data.erase is not None or not isinstance(data.mix, NoMix):
        raise SpecError(
            "answers in a file are for pictures that look the same every time, and this recipe draws crops, flips, colors, "
            "erasing or mixing. Let the teacher answer live (file=''), or leave these out: "
            """data.augment.steps='[{"part": "Resize"}]' data.erase=none data.mix=NoMix""",
            path="recipe.teaching.file",
        )
    if recipe.objective.teacher_taps:
        problem = "a file holds logits, and a term reads more of the teacher. Let it answer live."
        raise SpecError(problem, path="recipe.teaching.file")


def fingerprint(teacher: Teacher, recipe: Recipe, source: Source, preprocess: Preprocess) -> str:
    """Of the teacher, the pictures and their view."""
    views = [encode(recipe.data.augment), encode(preprocess), recipe.data.unreadable]
    text = json.dumps([teacher.fingerprint(), source.fingerprint(), *views], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def refuse_other_answers(
    logits_NC: Tensor, teacher: Teacher, recipe: Recipe, source: Source, preprocess: Preprocess, path: Path
) -> None:
    """The teacher answers for a few pictures again: no fingerprint knows what code of the user's computes."""
    some = np.unique(np.linspace(0, len(source) - 1, TRIED).astype(int))
    now_PC, then_PC = answers(teacher, recipe, source, preprocess, some), logits_NC[some]
    apart = (now_PC - then_PC - (now_PC - then_PC).mean(1, keepdim=True)).norm()  # one number for all classes says nothing
    spread = (then_PC - then_PC.mean(1, keepdim=True)).norm()
    if not apart <= ALIKE * spread + 1e-6:
        raise DataError(
            f"holds other answers than the teacher, {teacher.name}, gives now: for {len(some)} pictures they differ by "
            f"{apart / spread:.0%} of their spread. Delete it, or name another file.",
            path=str(path),
        )


@torch.no_grad()
def answers(teacher: Teacher, recipe: Recipe, source: Source, preprocess: Preprocess, every: np.ndarray) -> Tensor:
    """logits_NC of the pictures at those places, as the student sees them."""
    device, draw, found = teacher.seen.mean_s.device, np.random.default_rng(0), []
    for start in range(0, len(every), BATCH):
        indices = every[start : start + BATCH]
        pictures = [readable(source, int(index), len(source))[0].convert(preprocess.mode) for index in indices]
        framed = [recipe.data.augment.apply(one, preprocess.height, preprocess.width, draw) for one in pictures]
        image_BCHW = stacked(framed, source.labels[indices], indices, ()).image_BCHW.to(device)
        found.append(teacher(normalize(image_BCHW, preprocess.mean, preprocess.std))["logits"].cpu())
    return torch.cat(found)
