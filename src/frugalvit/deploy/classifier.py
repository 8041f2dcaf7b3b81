"""A trained model with all it needs to be used: weights, class names, preprocessing, and the rule that fuses heads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL.Image import Image as PillowImage
from torch import Tensor, nn

from frugalvit.data.preprocess import Picture, Preprocess, opened
from frugalvit.deploy.packed_file import ENDING
from frugalvit.errors import SpecError, WeightsError, at
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.model import Model
from frugalvit.nn.network import Network
from frugalvit.nn.readout import Fusion, MeanLogits, OneHead, Tokens, fuse, fusion_named
from frugalvit.spec import decode, encode
from frugalvit.weights.files import read_file, read_metadata, write_json, write_safetensors
from frugalvit.weights.own import refuse_own_module, refuse_several, refuse_unfinished
from frugalvit.weights.translate import misfit, refuse_other_shapes

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FOREIGN = {"architecture", "architectures", "model_type"}  # what config.json of timm and of HF names


@dataclass(frozen=True)
class ClassifierSpec:
    """What `config.json` holds: everything about a classifier but its weights."""

    model: Architecture
    preprocess: Preprocess
    classes: tuple[str, ...]
    fusion: Fusion = MeanLogits()

    def __post_init__(self) -> None:
        if not isinstance(self.model, Architecture) or not isinstance(self.preprocess, Preprocess):
            return
        if self.model.classes != len(self.classes):
            raise SpecError(f"{len(self.classes)} class names for {self.model.classes} classes.", path="classes")
        image, made = self.model.image, self.preprocess
        if (made.height, made.width, len(made.mean)) != (image.height, image.width, image.channels):
            raise SpecError(
                f"pictures of {made.height} x {made.width} with {len(made.mean)} channels for a model of {image} with "
                f"{image.channels}. Change the model's image instead.",
                path="preprocess",
            )
        if isinstance(self.fusion, OneHead):
            with at("fusion"):
                self.fusion.refuse_other(self.model.heads)


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one picture, best first."""

    names: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def probability(self) -> float:
        return self.probabilities[0]


class Classifier(nn.Module):
    """A model for ordinary PyTorch code: called with image_BCHW it returns one logits_BC."""

    def __init__(self, spec: ClassifierSpec, module: Network):
        super().__init__()
        self.spec = spec
        self.module = module

    def forward(self, image_BCHW: Tensor, draws: Tensor | None = None) -> Tensor:
        """The logits_BC of all heads fused into one."""
        return fuse(self.module(image_BCHW, draws), self.spec.fusion)

    def heads(self, image_BCHW: Tensor) -> dict[str, Tensor]:
        """The logits_BC of each head by its name."""
        return self.module(image_BCHW)

    def features(self, image_BCHW: Tensor) -> Tensor:
        """The vector_BD in front of the head that answers; the mean of them where several do, as timm has it."""
        found, fusion = self.module.features(image_BCHW), self.spec.fusion
        return found[fusion.name] if isinstance(fusion, OneHead) else torch.stack(list(found.values())).mean(0)

    def reading(self, head: str) -> Classifier:
        """The same module, answering by the head of that name, or by all of them for `mean` and `softmax`."""
        made = Classifier(replace(self.spec, fusion=fusion_named(head, self.spec.model.heads)), self.module)
        made.training = self.training
        return made

    def alone(self, head: str) -> Classifier:
        """A copy with that head and no other. All tokens stay: the head's own has attended to the others."""
        made, model = self.reading(head), self.spec.model
        if model.heads == (head,):
            return made
        if not isinstance(model, Model) or not isinstance(model.readout, Tokens) or head not in model.heads:
            raise SpecError(f"'{head}' cannot stand alone. Name one head that reads a token.")
        model = replace(model, readout=replace(model.readout, names=(head,)))
        module = model.build(seed=0).to(next(self.module.parameters()))
        kept = module.state_dict()
        module.load_state_dict({name: value for name, value in self.module.state_dict().items() if name in kept})
        return Classifier(replace(made.spec, model=model), module).train(self.training)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the logits."""
        return self.spec.classes

    @property
    def preprocess(self) -> Preprocess:
        """The function from a picture to the image_CHW that the model expects."""
        return self.spec.preprocess

    def predict(self, pictures: Picture | Iterable[Picture], top: int = 5, batch: int = 32) -> list[Prediction]:
        """The `top` classes of each picture: paths, PIL images or uint8 arrays, one or many."""
        return predicted(self, pictures, top, batch)

    @torch.inference_mode()
    def predict_framed(self, pictures: Sequence[PillowImage], top: int = 5) -> list[Prediction]:
        """The same of pictures that `preprocess.framed` gave, all at once."""
        image_BCHW = torch.stack([self.preprocess.normalized(picture) for picture in pictures])
        training = self.training
        self.eval()
        try:
            return named(self(image_BCHW.to(next(self.module.parameters()))), self.classes, top)
        finally:
            self.train(training)

    def save(self, folder: str | Path) -> Path:
        """Write `model.safetensors` and `config.json`, which `load` takes. The file alone is enough as well."""
        folder = Path(folder)
        self.save_file(folder / WEIGHTS)
        write_json(folder / CONFIG, encode(self.spec))
        return folder

    def save_file(self, file: Path) -> None:
        """Write one .safetensors file that says in its header what `config.json` would."""
        write_safetensors(file, self.module.state_dict(), {"frugalvit": json.dumps(encode(self.spec))})


class Framing(Protocol):
    """Whoever names the classes of pictures that have its size."""

    @property
    def preprocess(self) -> Preprocess: ...

    def predict_framed(self, pictures: Sequence[PillowImage], top: int) -> list[Prediction]: ...


def predicted(who: Framing, pictures: Picture | Iterable[Picture], top: int, batch: int) -> list[Prediction]:
    """What `who` says of one picture or of many, `batch` of them in memory at a time."""
    if not all(isinstance(one, int) and one >= 1 for one in (top, batch)):
        raise SpecError(f"top={top}, batch={batch}. Use whole numbers, 1 and more.")
    many: Sequence[Picture] = list(pictures) if is_many(pictures) else [pictures]  # type: ignore[arg-type,list-item]
    found = []
    for start in range(0, len(many), batch):
        found += who.predict_framed([who.preprocess.framed(opened(one)) for one in many[start : start + batch]], top)
    return found


def named(logits_BC: Tensor, classes: Sequence[str], top: int) -> list[Prediction]:
    """The `top` classes of each picture by their logits."""
    if not logits_BC.isfinite().all():
        raise WeightsError("the model has no answer: not all of its logits are finite. Are its weights numbers?")
    best = logits_BC.float().softmax(-1).topk(min(top, len(classes)))
    rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [Prediction(tuple(classes[place] for place in places), tuple(values)) for values, places in rows]


def is_many(pictures: object) -> bool:
    single = (str, bytes, Path, PillowImage)
    return isinstance(pictures, Iterable) and not isinstance(pictures, single) and not hasattr(pictures, "shape")


def load(path: str | Path, *, parts: Iterable[type] = (), device: str | torch.device = "cpu") -> Classifier:
    """A classifier from a folder that `save` wrote, or from its `model.safetensors` alone, ready for evaluation.

    `parts` are the user's own spec classes that the model contains; a file cannot bring code of its own.
    """
    path = Path(path)
    spec = read_spec(path, parts)
    state = read_file(weights_file(path))
    with at(str(path)):
        module = spec.model.build(seed=0)
        kinds = {value.dtype for value in state.values() if value.is_floating_point()}
        if len(kinds) == 1 and kinds <= {torch.float16, torch.bfloat16, torch.float64}:
            module.to(kinds.pop())  # as it was saved
        fill(module, state)
    return Classifier(spec, module).to(device).eval()


def read_spec(path: Path, parts: Iterable[type] = ()) -> ClassifierSpec:
    """The description of a saved classifier, without its weights."""
    weights = weights_file(path)
    config = read_config(path, weights)
    with at(str(path)):
        return decode(config, ClassifierSpec, parts)


def weights_file(path: Path) -> Path:
    if not path.exists():
        raise WeightsError("there is no such file or folder.", path=str(path))
    weights = path / WEIGHTS if path.is_dir() else path
    if not weights.exists():
        refuse_unfinished(path)
        refuse_several(path)
        raise WeightsError(f"no {WEIGHTS} in it. Give a folder that `save`, `import` or a run has written.", path=str(path))
    if weights.suffix == ENDING:
        raise WeightsError(
            "is a packed model, not the one it was made of. Use frugalvit.load_packed, or `frugalvit predict`, `evaluate` and "
            "`bench --packed`.",
            path=str(path),
        )
    if weights.suffix == ".onnx":
        raise WeightsError(
            "is a computation for onnxruntime, not the model it was made of: give that model's folder. A file that is to teach "
            "and does not say how its pictures are normalized needs "
            '\'teaching.teacher={"part": "OnnxTeacher", "path": ..., "mean": [...], "std": [...]}\'.',
            path=str(path),
        )
    if weights.suffix != ".safetensors":
        raise WeightsError(
            f"'{weights.suffix}' files do not say which model they are of. "
            f"Import it first: frugalvit import MODEL --init {weights.name} --origin ORIGIN --out FOLDER.",
            path=str(path),
        )
    return weights


def read_config(path: Path, weights: Path) -> dict[str, Any]:
    """The folder's config.json, or the copy of it in the header of the file."""
    beside = weights.parent / CONFIG
    try:
        text = (
            beside.read_text(encoding="utf-8") if path.is_dir() and beside.exists() else read_metadata(weights).get("frugalvit")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"cannot be read ({error}).", path=str(beside)) from error
    if text is None:
        refuse_own_module(weights)
        raise WeightsError(
            "the file does not say which model it is of. If it has foreign names, import it first: "
            "frugalvit import MODEL --init FILE --origin ORIGIN --out FOLDER.",
            path=str(path),
        )
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise WeightsError(f"is not JSON: {error.msg} in line {error.lineno}.", path=str(beside)) from error
    if isinstance(found, dict) and "format" not in found and FOREIGN & found.keys():
        raise WeightsError(
            "is a model of timm or HF. Import it first: frugalvit import MODEL --init FOLDER --out ELSEWHERE (`list models`).",
            path=str(path),
        )
    return found


def fill(module: Network, state: dict[str, Tensor]) -> None:
    """Every tensor of the module from our own file, or an error that names what does not fit."""
    own = module.state_dict()
    unused, empty = [name for name in state if name not in own], [name for name in own if name not in state]
    if unused or empty:
        raise WeightsError(misfit(unused, empty))
    refuse_other_shapes(state, own)
    module.load_state_dict(state)
