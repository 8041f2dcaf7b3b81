"""An ONNX file that `export` wrote, answering as the classifier it was made of: so that the file itself can be measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL.Image import Image as PillowImage
from torch import Tensor

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Picture, Prediction, named, predicted
from frugalvit.deploy.export import package, read_description
from frugalvit.errors import WeightsError


class ExportedClassifier:
    """By onnxruntime on the CPU. The head or the rule that it answers by was chosen when it was exported."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise WeightsError("there is no such file.", path=str(path))
        told = read_description(path)
        if told is None:
            problem = "does not say how its pictures are made, and files of `frugalvit export` alone predict and are measured."
            cure = "It can teach: distill --teacher FILE teaching.teacher.mean=... teaching.teacher.std=..."
            raise WeightsError(f"{problem} {cure}", path=str(path))
        made = told["preprocess"]
        self.preprocess = Preprocess(**made | {name: tuple(made[name]) for name in ("mean", "std")})
        self.classes: tuple[str, ...] = tuple(told["classes"])
        self.head: str = told["head"]
        self.session = package("onnxruntime", "onnx").InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def logits(self, image_BCHW: np.ndarray) -> np.ndarray:
        """The logits_BC of uint8 pictures that have the model's size; normalization is part of the file."""
        (logits_BC,) = self.session.run(None, {"image": image_BCHW.astype(np.float32) / 255})
        return logits_BC

    def predict(self, pictures: Picture | Iterable[Picture], top: int = 5, batch: int = 32) -> list[Prediction]:
        """The `top` classes of each picture: paths, PIL images or uint8 arrays, one or many."""
        return predicted(self, pictures, top, batch)

    def predict_framed(self, pictures: Sequence[PillowImage], top: int = 5) -> list[Prediction]:
        """The same of pictures that `preprocess.framed` gave, all at once."""
        shape = self.preprocess.height, self.preprocess.width, len(self.preprocess.mean)
        image_BHWC = np.stack([np.array(picture).reshape(shape) for picture in pictures])
        return named(torch.from_numpy(self.logits(image_BHWC.transpose(0, 3, 1, 2))), self.classes, top)

    def answers(self, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
        """({"class": logits_NC}, labels_N) of a split's uint8 (image_BCHW, label_B), whose last batch may be padded."""
        logits, labels = [], []
        for image_BCHW, label_B in batches:
            logits.append(torch.from_numpy(self.logits(image_BCHW[: len(label_B)].cpu().numpy())))
            labels.append(label_B)
        return {"class": torch.cat(logits)}, torch.cat(labels)
