"""How large a packed file will be, from shapes alone: the packer itself runs, on tensors that have no data."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.pack import written_by
from frugalvit.deploy.packed_file import encoded_size
from frugalvit.deploy.program import ProgramWriter
from frugalvit.errors import SpecError
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.binary_attention import OneBitHeads
from frugalvit.nn.model import Model

WORD = 64  # one-bit numbers that lie together; a row begins with a new word


def packed_size(model: Architecture) -> int | None:
    """Bytes of the file that `frugalvit pack` writes of such a model, with numbers for class names; None where it refuses."""
    if not isinstance(model, Model):
        return None
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = model.build(seed=0)
    for part in module.modules():
        if isinstance(part, OneBitHeads):
            part.step = nn.Parameter(torch.tensor(0.005))  # a program has its value, and not in a tensor
    image = model.image
    try:
        preprocess = Preprocess(image.height, image.width, (0.485,) * image.channels, (0.229,) * image.channels)
        spec = ClassifierSpec(model, preprocess, tuple(map(str, range(model.classes or 0))))
        return encoded_size(written_by(ShapeWriter("single"), Classifier(spec, module), "model").packed)
    except SpecError:
        return None


class ShapeWriter(ProgramWriter):
    """Keeps the shapes of tensors, and one zero for all of their numbers."""

    def tensor(self, value: Tensor, path: str, real: str) -> str:
        if value.dtype != torch.bool:
            return self.keep(np.broadcast_to(np.zeros((), real), tuple(value.shape)))
        taps, rows, columns = (1, *value.shape)[-3:]
        return self.keep(np.broadcast_to(np.zeros((), "<u8"), (rows, taps * math.ceil(columns / WORD))))

    def keep(self, array: np.ndarray) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = array
        return name
