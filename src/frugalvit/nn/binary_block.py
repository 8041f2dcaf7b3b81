"""BinaryViT's block: binary attention and MLP, batch norms over tokens, and average pools beside the MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from frugalvit.errors import SpecError, at
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_channels import Affine, ChannelAffine, TokenBatchNorm
from frugalvit.nn.binary_linear import BinaryMlp
from frugalvit.nn.block import PreNorm, added
from frugalvit.nn.residual import LayerScale, Plain
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class PoolBranch:
    """α ⊙ mean(z) + β, the mean over a window of `height` x `width` patches around each; α and β are 0 at first.

    Beyond the edge of the grid are zeros, which count in the mean.
    """

    height: int
    width: int

    def build(self, shape: Shape) -> PooledBranch:
        if shape.summary:
            named = " and ".join(shape.summary)
            raise SpecError(f"windows are of patches, and {named} have no neighbors. Read the mean of the patches instead.")
        if min(self.height, self.width) < 1 or self.height % 2 == 0 or self.width % 2 == 0:
            raise SpecError(f"a window of {self.height} x {self.width} has no middle. Use odd numbers.")
        return PooledBranch(shape, (self.height, self.width))


class PooledBranch(nn.Module):
    def __init__(self, shape: Shape, window: tuple[int, int]):
        super().__init__()
        self.grid = (shape.height, shape.width)
        self.window = window
        self.affine = ChannelAffine(shape.dim, 0.0)

    def forward(self, z_BND: Tensor) -> Tensor:
        high, wide = self.window
        map_BDHW = z_BND.transpose(1, 2).unflatten(2, self.grid)
        pooled_BDHW = avg_pool2d(map_BDHW, self.window, stride=1, padding=(high // 2, wide // 2))
        return self.affine(pooled_BDHW.flatten(2).transpose(1, 2))


Joining = Affine | Plain | LayerScale  # how branches may join in a binary block


@dataclass(frozen=True)
class BinaryBlock:
    """x += attention(norm(x)); z = norm(x); x += mlp(z) + Σ branch(z) (Le & Li 2023, §3).

    `residual` joins attention and MLP; the branches are added as they are and never dropped. Deviation: the paper's figure
    draws the branches from x, its code feeds them z.
    """

    attention: BinaryAttention
    mlp: BinaryMlp = BinaryMlp()
    norm: TokenBatchNorm = TokenBatchNorm()
    residual: Joining = Affine()
    branches: tuple[PoolBranch, ...] = ()

    def build(self, shape: Shape) -> tuple[PoolingPreNorm, Shape]:
        norms = self.norm.build(shape), self.norm.build(shape)
        with at("attention"):
            attention = self.attention.build(shape)
        with at("mlp"):
            mlp = self.mlp.build(shape)
        sums = self.residual.build(shape), self.residual.build(shape)
        branches = nn.ModuleList()
        for index, branch in enumerate(self.branches):
            with at(f"branches[{index}]"):
                branches.append(branch.build(shape))
        return PoolingPreNorm(norms, attention, mlp, sums, branches), shape


class PoolingPreNorm(PreNorm):
    def __init__(
        self,
        norms: tuple[nn.Module, nn.Module],
        attention: nn.Module,
        mlp: nn.Module,
        sums: tuple[nn.Module, nn.Module],
        branches: nn.ModuleList,
    ):
        super().__init__(norms, attention, mlp, sums, 0.0)
        self.pools = branches

    def joined(self, x_BND: Tensor, y_BND: Tensor, draws_RB: Tensor | None, factor: float | None = None) -> Tensor:
        first_B, second_B, *_ = self.decisions(draws_RB)
        x_BND = added(self.sum1, x_BND, y_BND, first_B, factor)
        z_BND = self.norm2(x_BND)
        x_BND = added(self.sum2, x_BND, self.mlp(z_BND), second_B, factor)
        for branch in self.pools:
            x_BND = x_BND + branch(z_BND)
        return x_BND
