"""Optimizers, and which parameters they decay, slow down or leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, get_args

import torch
from torch import nn

from frugalvit.errors import SpecError, suggestion
from frugalvit.nn.binary_channels import TokenBatchNormalized
from frugalvit.nn.layers import FixedPositions, LearnedPositions, SummaryTokens
from frugalvit.nn.network import Network
from frugalvit.nn.projection import Together
from frugalvit.training.muon import MuonAndAdamW, Units
from frugalvit.training.tune import Tune

BETWEEN = (SummaryTokens, LearnedPositions, FixedPositions, TokenBatchNormalized)  # layers that are neither block nor merge
SPARED = ("class_token", "*.pos_embedding", "*.relative_position_bias_table")  # torchvision's, which has no list of them


def refuse_rates(lr: float, weight_decay: float, layer_decay: float, momenta: dict[str, float], eps: float = 1e-8) -> None:
    """What all optimizers refuse; `momenta` are shares that are kept of what was, by their paths."""
    if isinstance(lr, (int, float)) and not lr > 0:
        raise SpecError(f"a learning rate of {lr}. Use a number above 0.", path="lr")
    if isinstance(weight_decay, (int, float)) and not weight_decay >= 0:
        raise SpecError(f"a decay of {weight_decay}. Use 0 and more.", path="weight_decay")
    if isinstance(layer_decay, (int, float)) and not 0 < layer_decay <= 1:
        raise SpecError(f"a factor of {layer_decay} a block. Use a number above 0, up to 1.", path="layer_decay")
    for path, share in momenta.items():
        if isinstance(share, (int, float)) and not 0 <= share < 1:
            raise SpecError(f"a share of {share}. Use 0 and more, below 1.", path=path)
    if isinstance(eps, (int, float)) and not eps >= 0:
        raise SpecError(f"{eps}. Use 0 and more; 1e-8 is usual.", path="eps")


def by_path(betas: tuple[float, float]) -> dict[str, float]:
    return {f"betas[{index}]": beta for index, beta in enumerate(betas)}


@dataclass(frozen=True)
class Matrices:
    """Matrices decay; biases, norms, positions and summary tokens do not, as in DeiT, timm and big_vision.

    In models of other libraries, what their `no_weight_decay` lists does not either.
    Deviation: the DeiT release decays its distillation token, by an oversight of the timm version it pins.
    """

    def covers(self, name: str, parameter: nn.Parameter, spared: Sequence[str] = ()) -> bool:
        """`spared` are the names, or patterns of them, that the module itself wants left alone."""
        matrix = parameter.ndim > 1 and not name.endswith((".bias", ".positions")) and ".tokens." not in name
        return matrix and not any(fnmatchcase(name, pattern) for pattern in spared)


@dataclass(frozen=True)
class AllParameters:
    """Everything decays, biases, norms and temperatures too, as in the release of Lee et al. (2021)."""

    def covers(self, name: str, parameter: nn.Parameter, spared: Sequence[str] = ()) -> bool:
        return True


Decays = Matrices | AllParameters  # what may stand in `decays`


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    lr: float
    per: int = 0  # pictures a step that `lr` is meant for; it grows in proportion. 0: `lr` as it is
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    layer_decay: float = 1.0  # each block learns this much slower than the one above it
    decays: Decays = Matrices()

    def __post_init__(self) -> None:
        refuse_rates(self.lr, self.weight_decay, self.layer_decay, by_path(self.betas), self.eps)

    def build(self, groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay, fused=True)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum, Nesterov's or the plain one; weight decay is added to the gradient."""

    lr: float
    per: int = 0
    weight_decay: float = 0.0
    momentum: float = 0.9
    nesterov: bool = False
    layer_decay: float = 1.0
    decays: Decays = Matrices()

    def __post_init__(self) -> None:
        refuse_rates(self.lr, self.weight_decay, self.layer_decay, {"momentum": self.momentum})
        if self.nesterov and not self.momentum > 0:
            raise SpecError(f"Nesterov's momentum is above 0, not {self.momentum:g}. Use 0.9.", path="momentum")

    def build(self, groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(
            groups, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov, fused=True
        )
        if self.momentum:  # torch leaves it as it finds it in memory where the first step is skipped
            for group in optimizer.param_groups:
                for one in group["params"]:
                    optimizer.state[one]["momentum_buffer"] = torch.zeros_like(one, requires_grad=False)
        return optimizer


@dataclass(frozen=True)
class Muon:
    """Hidden matrices learn by momentum that is orthogonalized (Jordan et al. 2024), all else by AdamW.

    Hidden are the matrices and the kernels of layers, but for what mixes or gates scores and what sees one channel alone.
    q, k and v stacked in one matrix are orthogonalized one by one, which works better (Jordan et al., "Empirical
    considerations"); so are the groups of a convolution. `units` says what `lr` measures (`training/muon.py: factor`): in
    AdamW's, learning rate and decay of an AdamW recipe carry over (Liu et al. 2025, §2.2); spectral rates are larger, say 0.02.
    """

    lr: float
    per: int = 0
    weight_decay: float = 0.05
    momentum: float = 0.95
    iterations: int = 5  # of Newton-Schulz
    units: Units = "adamw"
    adamw_lr: float | None = None  # of all else, in step with `lr`. None: `lr`; with spectral 0.015 `lr`, Jordan's 3e-4 to 0.02
    betas: tuple[float, float] = (0.9, 0.999)  # this and eps of AdamW
    eps: float = 1e-8
    layer_decay: float = 1.0
    decays: Decays = Matrices()

    def __post_init__(self) -> None:
        shares = {"momentum": self.momentum} | by_path(self.betas)
        refuse_rates(self.lr, self.weight_decay, self.layer_decay, shares, self.eps)
        if isinstance(self.adamw_lr, float) and self.adamw_lr <= 0:
            raise SpecError(f"a learning rate of {self.adamw_lr}. Use a number above 0, or none.", path="adamw_lr")
        if isinstance(self.iterations, int) and self.iterations < 1:
            raise SpecError(f"{self.iterations} iterations. Use 1 and more; 5 is usual.", path="iterations")
        if self.units not in get_args(Units):
            raise SpecError(f"{self.units!r} are no units. {suggestion(str(self.units), get_args(Units))}", path="units")

    @property
    def adamw_share(self) -> float:
        """The learning rate of AdamW's parameters, as a share of `lr`."""
        usual = 1.0 if self.units == "adamw" else 3e-4 / 0.02
        return usual if self.adamw_lr is None else self.adamw_lr / self.lr

    def build(self, groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
        share = {"muon": 1.0, "adamw": self.adamw_share}
        scaled = [group | {"scale": group["scale"] * share[group.get("kind", "adamw")]} for group in groups]
        return MuonAndAdamW(scaled, lr, self.weight_decay, self.momentum, self.iterations, self.units, self.betas, self.eps)


Optimizer = AdamW | Sgd | Muon


def peak_lr(optimizer: Optimizer, pictures: int) -> float:
    """The highest learning rate with so many pictures a step."""
    return optimizer.lr * pictures / optimizer.per if optimizer.per else optimizer.lr


def heights(module: Network) -> list[int]:
    """How many blocks and merges there are up to each layer and with it; tokens, positions and norms are none."""
    return list(accumulate(int(not isinstance(layer, BETWEEN)) for layer in module.layers))


def lr_scale(name: str, heights: Sequence[int], decay: float) -> float:
    """decay^(steps below the readout): 1 for the last block, one more for each below it and for the tokenizer.

    As timm's, but for the last norm, which belongs to the readout here and to the last block there.
    """
    if name.startswith("readout."):
        return 1.0
    height = heights[int(name.split(".")[1])] if name.startswith("layers.") else 0
    return decay ** (max(heights, default=0) + 1 - height)


def hidden_matrices(module: Network) -> dict[str, int]:
    """The parameters of layers that are matrices, and how many each is: q, k and v, or the groups of a convolution."""
    found = {}
    for name, parameter in module.named_parameters():
        path, _, last = name.rpartition(".")
        scores = ".before." in name or ".after." in name
        if not name.startswith("layers.") or last != "weight" or scores or parameter.ndim < 2:
            continue
        owner = module.get_submodule(path)
        parts = 3 if isinstance(owner, Together) else int(getattr(owner, "groups", 1))
        if len(parameter) > parts and parameter.shape[1] > 1:
            found[name] = parts
    return found


def spared_names(module: Network) -> list[str]:
    """What a model of another library wants not to be decayed: names, or patterns of them, as in timm."""
    found = []
    for inside, part in module.named_children() if not len(module.layers) else ():
        listed = getattr(part, "no_weight_decay", None)
        found += [f"{inside}.{name}" for name in (listed() if callable(listed) else SPARED)]
    return found


def parameter_groups(module: Network, optimizer: Optimizer, tune: Tune) -> list[dict[str, Any]]:
    """Parameters that learn, grouped by decay and by speed; each group knows its `scale` and its parameters' names.

    What is frozen already stays so. All else that does not learn is frozen here.
    Muon's matrices have groups of their own, of the `kind` "muon", with the `parts` of each.
    """
    groups: dict[tuple[bool, bool, float], dict[str, Any]] = {}
    matrices = hidden_matrices(module) if isinstance(optimizer, Muon) else {}
    above, spared, learning = heights(module), spared_names(module), tune.starts(module)
    if not above and optimizer.layer_decay != 1:
        raise SpecError("models of other libraries do not tell their blocks. Use 1.0.", path="recipe.optimizer.layer_decay")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise SpecError("all of its parameters are frozen. Unfreeze what shall learn: requires_grad_(True).", path="model")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name.startswith(learning))
        if not parameter.requires_grad:
            continue
        decayed = optimizer.decays.covers(name, parameter, spared)
        scale = lr_scale(name, above, optimizer.layer_decay)
        group = groups.setdefault((name in matrices, decayed, scale), {"params": [], "names": [], "scale": scale})
        group["params"].append(parameter)
        group["names"].append(name)
        if name in matrices:
            group["kind"] = "muon"
            group.setdefault("parts", []).append(matrices[name])
        if not decayed:
            group["weight_decay"] = 0.0
    if not groups:
        cure = "Unfreeze it (requires_grad_(True)), or say Everything."
        raise SpecError(f"what {type(tune).__name__} would let learn is frozen. {cure}", path="recipe.tune")
    if isinstance(optimizer, Muon) and not any(orthogonalized for orthogonalized, _, _ in groups):
        raise SpecError(
            "Muon finds no hidden matrix that learns: heads are none, and models of other libraries do not tell. Use AdamW.",
            path="recipe.optimizer",
        )
    return list(groups.values())
