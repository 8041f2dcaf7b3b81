"""Blocks that learn from a teacher's blocks: its tokens, or its attention. Both are read through taps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, layer_norm, normalize, smooth_l1_loss

from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError, at
from frugalvit.nn.linear import Dense
from frugalvit.objective.distill import Sizes, answer, refuse_weight, size_of

Grid = tuple[int, int]
USUAL_SUMMARIES = range(3)  # none; class; class and distill. Squares lie further apart, so none is taken for another


@dataclass(frozen=True)
class MatchedTokens:
    """Smooth L1 (β = 2) between g(tokens of a student's block) and LN(tokens of a teacher's), mean (Wei et al. 2022).

    g is linear and learned, LN has no parameters. Equally many tokens are matched one by one. Else the first summary tokens
    that both have, and the patches, the teacher's grid resized to the student's. A grid is what `maps[i]` of a convolutional
    network say, or what is given here (height, width), or a square behind at most two summary tokens.
    """

    student: str = "tokens[11]"
    teacher: str = "tokens[11]"
    weight: float = 1.0
    student_grid: Grid | None = None
    teacher_grid: Grid | None = None

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_taps(self.student, self.teacher, ("tokens", "maps"))

    @property
    def name(self) -> str:
        return f"matched_{flat(self.student)}_{flat(self.teacher)}"

    @property
    def student_taps(self) -> tuple[str, ...]:
        return (self.student,)

    @property
    def teacher_taps(self) -> tuple[str, ...]:
        return (self.teacher,)

    def build(self, heads: tuple[str, ...], counts_C: Tensor, shapes: Sizes, answers: Sizes) -> TokenDistance:
        with at("student"):
            ours = size_of("student", self.student, shapes)
        with at("teacher"):
            theirs = size_of("teacher", self.teacher, answers)
        with at("student_grid"):
            student_grid = known_grid(ours, self.student_grid)
        with at("teacher_grid"):
            teacher_grid = known_grid(theirs, self.teacher_grid)
        if student_grid is None and teacher_grid is None and ours[0] == theirs[0]:
            student_grid = teacher_grid = (ours[0], 1)
        with at("student_grid"):
            student = laid_out(ours, student_grid, teacher_grid)
        with at("teacher_grid"):
            teacher = laid_out(theirs, teacher_grid, student_grid)
        return TokenDistance(self, student, teacher, width_of(ours), width_of(theirs))


class TokenDistance(nn.Module):
    def __init__(self, spec: MatchedTokens, student: Layout, teacher: Layout, fan_in: int, fan_out: int):
        super().__init__()
        self.spec = spec
        self.student = student
        self.teacher = teacher
        self.project = Dense().build(fan_in, fan_out)

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        x_BND = in_rows(outputs[self.spec.student]).float()
        y_BND = in_rows(answer(batch, self.spec.teacher)).float()
        both = min(self.student.summary, self.teacher.summary)
        patches_BND = resized(y_BND[:, self.teacher.summary :], self.teacher, self.student)
        x_BND = torch.cat([x_BND[:, :both], x_BND[:, self.student.summary :]], dim=1)
        y_BND = torch.cat([y_BND[:, :both], patches_BND], dim=1)
        found = smooth_l1_loss(self.project(x_BND).float(), layer_norm(y_BND, y_BND.shape[-1:]), beta=2.0)
        return self.spec.weight * found


@dataclass(frozen=True)
class Layout:
    """Where tokens lie: summary tokens, then the rows of a grid."""

    summary: int
    height: int
    width: int


def known_grid(size: tuple[int, ...], given: Grid | None) -> Grid | None:
    if len(size) == 3 and given not in (None, size[1:]):
        raise SpecError(f"{given}, but maps have a grid of their own: {size[1]} x {size[2]}. Leave it out.")
    return (size[1], size[2]) if len(size) == 3 else given


def laid_out(size: tuple[int, ...], grid: Grid | None, other: Grid | None) -> Layout:
    """How the tokens of one network lie; `other` is the grid of those that they are laid beside, if known."""
    length = math.prod(size) // width_of(size)
    if grid is None:
        square = (math.isqrt(length), math.isqrt(length))
        fitting = [one for one in (other, square) if one is not None and length - math.prod(one) in USUAL_SUMMARIES]
        if not fitting:
            raise SpecError(
                f"{length} tokens are no square behind at most two summary tokens. Say their grid: (height, width)."
            )
        grid = fitting[0]
    if min(grid) < 1 or math.prod(grid) > length:
        raise SpecError(f"a grid of {grid[0]} x {grid[1]} where there are {length} tokens. Count patches, not pixels.")
    return Layout(length - math.prod(grid), *grid)


def resized(x_BND: Tensor, old: Layout, new: Layout) -> Tensor:
    """The patches of a grid on another one. The teacher's are: no gradient needs to pass, and a student owes no detail."""
    if (old.height, old.width) == (new.height, new.width):
        return x_BND
    x_BDHW = x_BND.transpose(1, 2).unflatten(2, (old.height, old.width))
    x_BDHW = interpolate(x_BDHW, (new.height, new.width), mode="bilinear", align_corners=False, antialias=True)
    return in_rows(x_BDHW)


def in_rows(x: Tensor) -> Tensor:
    """Tokens as they are, maps_BCHW row by row."""
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x


def width_of(size: tuple[int, ...]) -> int:
    return size[1] if len(size) == 2 else size[0]


@dataclass(frozen=True)
class MatchedAttention:
    """Σ_n (a_n / |a| − b_n / |b|)², mean over queries, of the maps a and b that the heads' maps have as means.

    Attention transfer (Zagoruyko and Komodakis 2017, eq. 2, squared as in their code), a map for each query in place of one
    for each picture. Heads have no order to match them by, and may differ in number. A divergence would need probabilities:
    LSA hides a token from itself, where the teacher sees something, and talking heads may mix below zero.

    Maps of equal size are matched whole. Else by their rows and columns of the first summary tokens that both networks have,
    and of the patches; of these both need the same grid: a square behind at most two summary tokens, or what is given here
    (height, width). Dividing what is left of a row by |a| undoes what the columns left out took of it: the loss is that of
    rows made to sum up to 1 again.
    """

    student: str = "attention[3]"
    teacher: str = "attention[3]"
    weight: float = 1.0
    grid: Grid | None = None

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_taps(self.student, self.teacher, ("attention",))

    @property
    def name(self) -> str:
        return f"matched_{flat(self.student)}_{flat(self.teacher)}"

    @property
    def student_taps(self) -> tuple[str, ...]:
        return (self.student,)

    @property
    def teacher_taps(self) -> tuple[str, ...]:
        return (self.teacher,)

    def build(self, heads: tuple[str, ...], counts_C: Tensor, shapes: Sizes, answers: Sizes) -> AttentionDistance:
        with at("student"):
            ours = size_of("student", self.student, shapes)
        with at("teacher"):
            theirs = size_of("teacher", self.teacher, answers)
            grid = self.grid or common_grid(ours[2], theirs[2])
            if grid is None or not queries_fit(ours[1:], theirs[1:]):
                raise other_tokens(ours[1:], theirs[1:])
        with at("grid"):
            if self.grid is None:
                refuse_doubt(ours[2], theirs[2])
            keys = [laid_out((size[2], 1), grid, None).summary for size in (ours, theirs)]
        queries = keys if all(size[1] == size[2] for size in (ours, theirs)) else [ours[1], theirs[1]]
        student, teacher = (Summaries(*both) for both in zip(queries, keys, strict=True))
        return AttentionDistance(self, Summaries(min(queries), min(keys)), student, teacher)


class AttentionDistance(nn.Module):
    def __init__(self, spec: MatchedAttention, shared: Summaries, student: Summaries, teacher: Summaries):
        super().__init__()
        self.spec = spec
        self.shared = shared
        self.student = student
        self.teacher = teacher

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        a_BMN = cut(outputs[self.spec.student].float().mean(1), self.student, self.shared)
        b_BMN = cut(answer(batch, self.spec.teacher).float().mean(1), self.teacher, self.shared)
        if a_BMN.shape != b_BMN.shape:  # windows stand in the batch axis
            raise other_tokens(tuple(a_BMN.shape), tuple(b_BMN.shape))
        return self.spec.weight * (normalize(a_BMN, dim=-1) - normalize(b_BMN, dim=-1)).square().sum(-1).mean()


@dataclass(frozen=True)
class Summaries:
    """How many of a map's first rows and columns are those of summary tokens. Where both maps have as many, it may say 0."""

    queries: int
    keys: int


def cut(x_BMN: Tensor, own: Summaries, shared: Summaries) -> Tensor:
    """A map without the rows and columns of summary tokens that only one network has."""
    if own.queries > shared.queries:
        x_BMN = torch.cat([x_BMN[:, : shared.queries], x_BMN[:, own.queries :]], dim=1)
    if own.keys > shared.keys:
        x_BMN = torch.cat([x_BMN[:, :, : shared.keys], x_BMN[:, :, own.keys :]], dim=2)
    return x_BMN


def common_grid(ours: int, theirs: int) -> Grid | None:
    """As many tokens are taken one by one; others are a square behind summary tokens, or it is not known how they lie."""
    if ours == theirs:
        return (ours, 1)
    side = math.isqrt(min(ours, theirs))
    return (side, side) if max(ours, theirs) - side**2 in USUAL_SUMMARIES else None


def queries_fit(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """Whether rows can be told apart: equally many, those of the columns, or summary tokens alone (class attention)."""
    (m, n), (other_m, other_n) = ours, theirs
    return m == other_m or (m == n and other_m == other_n) or (m in USUAL_SUMMARIES and other_m in USUAL_SUMMARIES)


def refuse_doubt(ours: int, theirs: int) -> None:
    """k² and k² + 1 tokens: a square, or (k − 1)(k + 1) patches and a summary token more in each."""
    side = math.isqrt(min(ours, theirs))
    if min(ours, theirs) == side**2 > 1 and abs(ours - theirs) == 1:
        near = (side - 1, side + 1)
        raise SpecError(
            f"{ours} and {theirs} tokens may be {side} x {side} patches behind one summary token and none, or {near[0]} x "
            f"{near[1]} behind two and one. Say which: {(side, side)} or {near}."
        )


def other_tokens(ours: tuple[int, ...], theirs: tuple[int, ...]) -> SpecError:
    sizes = " for ".join(" x ".join(map(str, size)) for size in (theirs, ours))
    return SpecError(
        f"maps of {sizes}. A map says which token sees which, so both networks need the same patches and windows; only "
        "summary tokens may differ. Where the patches are the same, but no square behind at most two summary tokens, say "
        "grid=(height, width). MatchedTokens can match networks of different grids."
    )


def refuse_taps(student: str, teacher: str, kinds: tuple[str, ...]) -> None:
    """Other taps than a term can read: attention_HMN and maps_CHW cannot be told apart by their sizes."""
    for whose, tap in (("student", student), ("teacher", teacher)):
        if isinstance(tap, str) and not (tap.endswith("]") and tap.partition("[")[0] in kinds):
            known = " or ".join(f"{kind}[i]" for kind in kinds)
            raise SpecError(f"'{tap}' does not fit here. Use {known}, i counting blocks from 0.", path=whose)


def flat(tap: str) -> str:
    """`tokens[11]` as a name for parameters and records: `tokens_11`."""
    return tap.replace("[", "_").removesuffix("]")
