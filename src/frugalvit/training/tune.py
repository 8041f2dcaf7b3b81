"""Which parameters of a network learn, and which stay as they were."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from frugalvit.errors import SpecError
from frugalvit.nn.ends import BESIDE
from frugalvit.nn.foreign import ForeignNetwork
from frugalvit.nn.map_norm import BatchNormalized, GroupNormalized

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm, BatchNormalized, GroupNormalized)


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
        return heads_of(module)


@dataclass(frozen=True)
class HeadsAndLastNorm:
    """The heads and the norm before them, with its statistics if it has any: FixRes (Touvron et al. 2019), §4.

    Where branches meet behind their last norms, all of these.
    For a network that shall see pictures of another size. Deviation: the released code moves the norm's statistics alone.
    """

    def starts(self, module: nn.Module) -> tuple[str, ...]:
        return (*heads_of(module), *last_norms(module))


Tune = Everything | HeadsOnly | HeadsAndLastNorm


def heads_of(module: nn.Module) -> tuple[str, ...]:
    """How the names of the parameters of its heads begin."""
    found = tuple(f"{name}." for name in module.ends().heads) if isinstance(module, ForeignNetwork) else ("readout.heads.",)
    if not any(name.startswith(found) for name, _ in module.named_parameters()):
        cure = "Freeze what shall not learn (requires_grad_(False)), and say Everything."
        raise SpecError(f"{type(module).__name__} does not tell its heads. {cure}", path="recipe.tune")
    return found


def last_norms(module: nn.Module) -> tuple[str, ...]:
    """How the names of the parameters of its last norm begin, or of several side by side; norms of shortcuts do not count."""
    if isinstance(module, ForeignNetwork):
        last = [*module.ends().norms]
    else:
        norms = (name for name, one in module.named_modules() if isinstance(one, NORMS) and BESIDE.isdisjoint(name.split(".")))
        last = [*norms][-1:]
    found = tuple(f"{name}." for name in last if any(True for _ in module.get_submodule(name).parameters()))
    if not found:
        problem = f"its last norm, {last[0]}, has no parameters" if last else "the model has no norm"
        raise SpecError(f"{problem} that could learn. Use HeadsOnly, or Everything.", path="recipe.tune")
    return found
