"""How good a model is on a split: yields (name, value)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from frugalvit.data.batches import EvaluationBatches, read
from frugalvit.data.finish import normalize
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.source import Source
from frugalvit.data.store_device import free_memory
from frugalvit.errors import DataError
from frugalvit.nn.network import Network
from frugalvit.nn.readout import MeanLogits, fuse, fusion_named, is_tap
from frugalvit.training.devices import Place

SMALL = 64 * 64  # pixels up to which launching kernels takes longer than what they do for few pictures
KEPT = 0.05  # of the free memory, at most, for the pictures of a split


class Framed:
    """The pictures of a split as evaluation sees them, in batches on the device; kept there after the first time if few."""

    def __init__(self, source: Source, preprocess: Preprocess, place: Place, batch: int | None = None):
        self.source, self.preprocess, self.place = source, preprocess, place
        small = place.device.type == "cuda" and preprocess.height * preprocess.width <= SMALL
        self.batch = min(batch or (1024 if small else 256), max(len(source), 1))
        self.kept: list[tuple[Tensor, Tensor]] = []

    def batches(self, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(image_BCHW on the device, the last one padded, so that shapes are static; label_B on the host)"""
        if self.kept:
            yield from self.kept
            return
        reader = EvaluationBatches(self.source, self.batch, self.preprocess)
        size = len(reader) * self.batch * len(self.preprocess.mean) * self.preprocess.height * self.preprocess.width
        keep, found = size <= KEPT * free_memory(self.place.device), []
        for one in read(reader, range(len(reader)), workers):
            pair = padded(one.image_BCHW, self.batch).to(self.place.device), one.label_B
            if keep:
                found.append(pair)
            yield pair
        self.kept = found


@torch.inference_mode()
def heads_and_labels(module: Network, framed: Framed, workers: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """The logits_NC of every head in fp32, by name, and labels_N, −1 for unreadable pictures."""
    training = module.training
    module.eval()
    preprocess = framed.preprocess
    logits: dict[str, list[Tensor]] = {}
    labels = []
    try:
        for image_BCHW, label_B in framed.batches(workers):
            with framed.place.autocast():
                outputs = module(normalize(image_BCHW, preprocess.mean, preprocess.std))
            for name, value in outputs.items():
                if not is_tap(name):
                    logits.setdefault(name, []).append(value[: len(label_B)].float())
            labels.append(label_B)
    finally:
        module.train(training)
    return {name: torch.cat(parts).cpu() for name, parts in logits.items()}, torch.cat(labels)


def real_accuracy(logits_NC: Tensor, labels_N: Tensor, real: tuple[tuple[int, ...], ...]) -> float:
    """The share of readable pictures whose best class is among the reassessed labels (Beyer et al. 2020), in percent."""
    readable = [index for index in range(len(labels_N)) if labels_N[index] >= 0]
    guesses = logits_NC.argmax(-1).tolist()
    return 100 * sum(guesses[index] in real[index] for index in readable) / max(len(readable), 1)


def padded(image_BCHW: Tensor, batch: int) -> Tensor:
    missing = batch - len(image_BCHW)
    return torch.cat([image_BCHW, image_BCHW[:1].expand(missing, -1, -1, -1)]) if missing else image_BCHW


def measures(logits_NC: Tensor, labels_N: Tensor) -> Iterator[tuple[str, float]]:
    """Top-1 and top-5 in percent, mean cross-entropy, and expected calibration error over 15 bins, in percent."""
    logits_NC, labels_N = logits_NC[labels_N >= 0], labels_N[labels_N >= 0]
    if not len(labels_N):
        raise DataError("there is no readable picture to evaluate on.")
    ranks_NK = logits_NC.topk(min(5, logits_NC.shape[1])).indices
    hits_NK = ranks_NK == labels_N[:, None]
    yield "top1", 100 * hits_NK[:, 0].double().mean().item()
    yield "top5", 100 * hits_NK.any(1).double().mean().item()
    yield "loss", cross_entropy(logits_NC.double(), labels_N).item()
    yield "calibration_error", 100 * calibration_error(logits_NC, labels_N)
    yield "pictures", len(labels_N)


def calibration_error(logits_NC: Tensor, labels_N: Tensor, bins: int = 15) -> float:
    """Σ_b (n_b / n) |accuracy_b − confidence_b| over equal bins of confidence (Guo et al. 2017, eq. 3)."""
    confidence_N, guess_N = logits_NC.double().softmax(-1).max(-1)
    right_N = (guess_N == labels_N).double()
    bin_N = (confidence_N * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64).index_add(0, bin_N, right_N - confidence_N)
    return (gaps.abs().sum() / len(labels_N)).item()


def per_class(logits_NC: Tensor, labels_N: Tensor, classes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Recall, precision and the number of pictures of each class."""
    guess_N = logits_NC.argmax(-1).where(labels_N >= 0, -1)
    found = {}
    for index, name in enumerate(classes):
        mine, guessed = labels_N == index, guess_N == index
        hits = (mine & guessed).sum().item()
        found[name] = {
            "recall": 100 * hits / max(mine.sum().item(), 1),
            "precision": 100 * hits / max(guessed.sum().item(), 1),
            "pictures": mine.sum().item(),
        }
    return found


def evaluate(module: Network, framed: Framed, workers: int, answering: Sequence[str] = ()) -> dict[str, float]:
    """The measures of a module on a split, by name; of several heads together, and the accuracy of each by itself.

    The heads are those that are `answering`, or all.
    """
    heads, labels_N = heads_and_labels(module, framed, workers)
    heads = {name: heads[name] for name in answering or heads}
    found = dict(measures(fuse(heads, MeanLogits()), labels_N))
    return found | accuracies(heads, labels_N, tuple(heads)) if len(heads) > 1 else found


def accuracies(heads: Mapping[str, Tensor], labels_N: Tensor, words: Iterable[str]) -> dict[str, float]:
    """Top-1 in percent by each of several readings, `top1_class`, `top1_softmax`: a head's name, or a word for all of them."""
    fused = {word: fuse(heads, fusion_named(word, tuple(heads))) for word in words}
    return {f"top1_{word}": dict(measures(logits_NC, labels_N))["top1"] for word, logits_NC in fused.items()}


def in_full_precision(place: Place) -> Place:
    """The same device without autocast: for comparisons between devices."""
    return replace(place, precision="fp32")
