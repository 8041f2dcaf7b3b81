"""What a resumed training needs, and nothing else: one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frugalvit.errors import WeightsError, at
from frugalvit.migrate import FORMAT
from frugalvit.nn.network import Network
from frugalvit.training.average import Average
from frugalvit.weights.files import read_file, read_metadata, write_safetensors
from frugalvit.weights.translate import misfit


class State:
    """The moving parts of a training. `counters` are plain numbers and names: the best so far, what went wrong."""

    def __init__(
        self,
        module: Network,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
        scaler: torch.amp.GradScaler | None,
    ):
        self.step = 0
        self.module = module
        self.objective = objective
        self.optimizer = optimizer
        self.average = average
        self.scaler = scaler
        self.best: dict[str, Tensor] = {}  # the module at its best validation, where early stopping may go back to it
        self.counters: dict[str, Any] = {"best": None, "best_step": 0, "nonfinite": 0, "in_a_row": 0, "bad_pictures": []}

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name: `model.`, `objective.`, `average.` and `optimizer.` with the parameter's name."""
        found = {f"model.{name}": value for name, value in self.module.state_dict().items()}
        found |= {f"objective.{name}": value for name, value in self.objective.state_dict().items()}
        if self.average is not None:
            found |= {f"average.{name}": value for name, value in self.average.tensors.items()}
        found |= {f"best.{name}": value for name, value in self.best.items()}
        for name, parameter in named_parameters(self.optimizer):
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{name}.{key}"] = value
        return found

    def save(self, path: Path) -> None:
        header = {"format": FORMAT, "step": self.step, "counters": self.counters}
        if self.scaler is not None:
            header["scaler"] = self.scaler.state_dict()
        write_safetensors(path, self.tensors(), {"frugalvit_state": json.dumps(header)})

    def load(self, path: Path) -> None:
        """Continue from a file that `save` wrote."""
        text = read_metadata(path).get("frugalvit_state")
        if text is None:
            raise WeightsError("this is no saved training state.", path=str(path))
        header, tensors = json.loads(text), read_file(path)
        with at(str(path)):
            self.fill(tensors)
        self.step, self.counters = header["step"], header["counters"]
        if self.scaler is not None and "scaler" in header:  # else it was trained in another precision, and scales anew
            self.scaler.load_state_dict(header["scaler"])

    def fill(self, tensors: dict[str, Tensor]) -> None:
        parts = {"model": self.module.state_dict(), "objective": self.objective.state_dict()}
        parts |= {"average": self.average.tensors} if self.average is not None else {}
        for part, own in parts.items():
            given = below(tensors, part)
            unused, empty = [name for name in given if name not in own], [name for name in own if name not in given]
            if unused or empty:
                raise WeightsError(misfit(unused, empty), path=part)
            for name, value in given.items():
                if (value.shape, value.dtype) != (own[name].shape, own[name].dtype):
                    there, here = (f"{tuple(one.shape)} {one.dtype}" for one in (value, own[name]))
                    raise WeightsError(f"is {there} in the file and {here} here.", path=f"{part}.{name}")
        self.module.load_state_dict(below(tensors, "model"))
        self.objective.load_state_dict(below(tensors, "objective"))
        if self.average is not None:
            self.average.load(below(tensors, "average"))
        self.best = below(tensors, "best")
        for name, parameter in named_parameters(self.optimizer):
            moments = {key: value for key, value in below(tensors, f"optimizer.{name}").items() if "." not in key}
            self.optimizer.state[parameter] = {key: laid_out(value, parameter) for key, value in moments.items()}


def named_parameters(optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    return [pair for group in optimizer.param_groups for pair in zip(group["names"], group["params"], strict=True)]


def laid_out(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A moment where its parameter is, and in memory as it: fused updates of channels-last kernels want both alike."""
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def below(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run; a half-written one has another name and does not count."""
    found = sorted(folder.glob("step-*.safetensors"))
    return found[-1] if found else None


def refuse_damaged(saved: Path) -> None:
    """Raise where a checkpoint cannot be read, and say what is left."""
    try:
        read_metadata(saved)
    except WeightsError as error:
        older = [one.name for one in sorted(saved.parent.glob("step-*.safetensors")) if one < saved]
        rest = f"--resume then goes on from {older[-1]}" if older else "there is no other, so --resume then begins anew"
        what = error.problem.replace(" Download or copy it again.", "")
        raise WeightsError(f"{what} Remove it: {rest}.", path=str(saved)) from error


def checkpoint(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest checkpoints, once the newest is whole."""
    for old in sorted(folder.glob("step-*.safetensors"))[:-keep]:
        old.unlink()
