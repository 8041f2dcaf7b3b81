"""Which parameters of a network learn, and which stay as they were."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from frugalvit.errors import SpecError
from frugalvit.nn.foreign import ForeignNetwork
from frugalvit.nn.map_norm import BatchNormalized, GroupNormalized

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm, BatchNormalized, GroupNormalized)
BESIDE = {"shortcut", "downsample"}  # of a block, here and in timm and torchvision: no norm of what the readout sees last


@dataclass(frozen=True)
class Everything:
    """All parameters learn."""

    def starts(self, module: nn.Module) -> tuple[str, ...]:
        """How the names of those begin that learn."""
        return ("",)


@dataclass(frozen=True)
class HeadsOnly:
    """Only the heads learn, on frozen features: a linear probe. Batch norms keep their statistics."""

    def starts(self, module: nn.Module) -> tuple[str, ...]:
        return (heads_of(module),)


@dataclass(frozen=True)
class HeadsAndLastNorm:
    """The heads and the norm before them, with its statistics if it has any: FixRes (Touvron et al. 2019), §4.

    For a network that shall see pictures of another size. Deviation: the released code moves the norm's statistics alone.
    """

    def starts(self, module: nn.Module) -> tuple[str, ...]:
        return (heads_of(module), last_norm(module))


Tune = Everything | HeadsOnly | HeadsAndLastNorm


def heads_of(module: nn.Module) -> str:
    """How the names of the parameters of its heads begin."""
    start = f"{module.first}.{module.classifier()}." if isinstance(module, ForeignNetwork) else "readout.heads."
    if not any(name.startswith(start) for name, _ in module.named_parameters()):
        cure = "Freeze what shall not learn (requires_grad_(False)), and say Everything."
        raise SpecError(f"{type(module).__name__} does not tell its heads. {cure}", path="recipe.tune")
    return start


def last_norm(module: nn.Module) -> str:
    """How the names of the parameters of its last norm begin; norms of shortcuts do not count."""
    found = [
        name
        for name, one in module.named_modules()
        if isinstance(one, NORMS) and BESIDE.isdisjoint(name.split(".")) and [*one.parameters()]
    ]
    if not found:
        raise SpecError("the model has no norm that could learn. Use HeadsOnly, or Everything.", path="recipe.tune")
    return f"{found[-1]}."
