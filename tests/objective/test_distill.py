"""Terms that learn from a teacher, against loops in float64 and against DeiT's released formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import frugalvit
from frugalvit.assign import override
from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError
from frugalvit.nn.model import Model
from frugalvit.objective.distill import Distilled, HardLabel, How, LogitCrossEntropy, SoftKl
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.match import MatchedAttention, MatchedTokens
from frugalvit.objective.objective import Objective, Supervised, Taught, TermSum
from frugalvit.outline import describe
from frugalvit.spec import check, decode, encode
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher, Teaching
from frugalvit.zoo.convit import convit
from frugalvit.zoo.deit import deit
from frugalvit.zoo.resnet import resnet50

COUNTS = torch.tensor([10, 30, 60])
HEADS = ("class", "distill")
STUDENT = [[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]]
TEACHER = [[0.5, -1.0, 2.5], [1.0, 4.0, 0.0]]  # its classes: 2 and 1
WAYS: list[How] = [HardLabel(), SoftKl(3.0, "batchmean"), SoftKl(3.0, "released"), LogitCrossEntropy()]
FULL = Objective(
    (
        Supervised("class", CrossEntropy(0.1), 0.5),
        Distilled("distill", SoftKl(3.0, "released"), 0.5),
        MatchedTokens("tokens[1]", "tokens[2]", 0.3, student_grid=(5, 7)),
        MatchedAttention("attention[0]", "attention[1]", 2.0),
    )
)


def batch(answers: Mapping[str, Tensor] | None, labels: tuple[int, ...] = (1, 0)) -> Batch:
    return Batch(torch.zeros(2, 3, 4, 5), torch.tensor(labels), torch.arange(2), answers=answers)


def sizes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape[1:]) for name, value in tensors.items()}


def built(term: Taught, outputs: Mapping[str, Tensor], answers: Mapping[str, Tensor]) -> TermSum:
    return Objective((term,)).build(HEADS, COUNTS, sizes(outputs), sizes(answers))


def value(term: Taught, outputs: Mapping[str, Tensor], answers: Mapping[str, Tensor]) -> Tensor:
    return built(term, outputs, answers)(outputs, batch(answers))[term.name]


def learned(how: How, student: list[list[float]] = STUDENT) -> float:
    return value(Distilled("distill", how, 1.0), {"distill": torch.tensor(student)}, {"logits": torch.tensor(TEACHER)}).item()


def log_softmax(row: list[float], temperature: float = 1.0) -> list[float]:
    total = math.log(sum(math.exp(v / temperature) for v in row))
    return [v / temperature - total for v in row]


# ------------------------------------------------------------------------------------------------ heads


def test_a_hard_label_is_the_teachers_best_class() -> None:
    expected = -(log_softmax(STUDENT[0])[2] + log_softmax(STUDENT[1])[1]) / 2
    assert learned(HardLabel()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("reduction", "count"), [("batchmean", 2), ("released", 6)])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_labels_are_a_divergence_from_the_teacher_times_the_squared_temperature(
    reduction: str, count: int, temperature: float
) -> None:
    expected = 0.0
    for student, teacher in zip(STUDENT, TEACHER, strict=True):
        p, q = log_softmax(teacher, temperature), log_softmax(student, temperature)
        expected += temperature**2 * sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True)) / count
    assert learned(SoftKl(temperature, reduction)) == pytest.approx(expected, abs=1e-6)  # type: ignore[arg-type]


def test_the_cross_entropy_of_logits_is_its_equation() -> None:
    expected = 0.0
    for student, teacher in zip(STUDENT, TEACHER, strict=True):
        p, q = log_softmax(teacher), log_softmax(student)
        expected -= sum(math.exp(a) * b for a, b in zip(p, q, strict=True)) / 2
    assert learned(LogitCrossEntropy()) == pytest.approx(expected, abs=1e-6)


def test_a_student_that_says_the_same_has_no_divergence_and_the_teachers_entropy() -> None:
    assert learned(SoftKl(3.0, "batchmean"), TEACHER) == pytest.approx(0.0, abs=1e-7)
    entropy = -sum(math.exp(v) * v for row in TEACHER for v in log_softmax(row)) / 2
    assert learned(LogitCrossEntropy(), TEACHER) == pytest.approx(entropy, abs=1e-6)


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize(("alpha", "tau"), [(0.5, 1.0), (0.1, 3.0)])
def test_the_sum_is_the_loss_of_deits_released_code(kind: str, alpha: float, tau: float) -> None:
    """deit.md §4, restated: the loss, and its gradient in both heads."""
    generator = torch.Generator().manual_seed(3)
    logits = [torch.randn(4, 7, generator=generator) for _ in range(3)]
    label_B = torch.tensor([1, 6, 0, 3])
    target_BC = 0.7 * F.one_hot(label_B, 7) + 0.3 * F.one_hot(label_B.flip(0), 7)  # mixed
    class_BC, distill_BC, teacher_BC = (one.clone().requires_grad_() for one in logits)
    smooth_BC = 0.9 * target_BC + 0.1 / 7
    base = torch.sum(-smooth_BC * F.log_softmax(class_BC, dim=-1), dim=-1).mean()
    if kind == "soft":
        log_q, log_p = F.log_softmax(distill_BC / tau, dim=1), F.log_softmax(teacher_BC.detach() / tau, dim=1)
        taught = F.kl_div(log_q, log_p, reduction="sum", log_target=True) * (tau * tau) / distill_BC.numel()
    else:
        taught = F.cross_entropy(distill_BC, teacher_BC.detach().argmax(dim=1))
    expected = base * (1 - alpha) + taught * alpha
    wanted = torch.autograd.grad(expected, [class_BC, distill_BC])

    how: How = SoftKl(tau, "released") if kind == "soft" else HardLabel()
    objective = Objective((Supervised("class", CrossEntropy(0.1), 1 - alpha), Distilled("distill", how, alpha)))
    terms = objective.build(HEADS, torch.ones(7), answers={"logits": (7,)})
    given = Batch(torch.zeros(4, 3, 2, 2), label_B, torch.arange(4), target_BC, {"logits": teacher_BC})
    found = torch.stack(list(terms({"class": class_BC, "distill": distill_BC}, given).values())).sum()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, [class_BC, distill_BC]), wanted)


def test_smoothing_and_mixing_are_for_true_labels_only() -> None:
    outputs = {"class": torch.tensor(STUDENT), "distill": torch.tensor(STUDENT)}
    answers = {"logits": torch.tensor(TEACHER)}
    mixed = Batch(torch.zeros(2, 3, 4, 5), torch.tensor([1, 0]), torch.arange(2), torch.full((2, 3), 1 / 3), answers)
    found = []
    for smoothing, given in [(0.0, batch(answers)), (0.3, batch(answers)), (0.3, mixed)]:
        objective = Objective((Supervised("class", CrossEntropy(smoothing)), Distilled("distill", HardLabel())))
        found.append(objective.build(HEADS, COUNTS, answers=sizes(answers))(outputs, given))
    assert found[0]["distilled_distill"] == found[1]["distilled_distill"] == found[2]["distilled_distill"]
    assert len({one["supervised_class"].item() for one in found}) == 3
    assert found[0]["distilled_distill"].item() == pytest.approx(0.5 * learned(HardLabel()), abs=1e-7)


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_the_weight_is_a_factor_and_any_head_can_learn(how: How) -> None:
    """CaiT and ConViT (SM B) have one head: it learns the labels and from the teacher."""
    outputs, answers = {"class": torch.tensor(STUDENT)}, {"logits": torch.tensor(TEACHER)}
    objective = Objective((Supervised(weight=0.5), Distilled("class", how, 0.25)))
    found = objective.build(("class",), COUNTS, answers=sizes(answers))(outputs, batch(answers))
    assert list(found) == ["supervised_class", "distilled_class"]
    assert found["distilled_class"].item() == pytest.approx(0.25 * learned(how), abs=1e-7)


def test_a_head_can_learn_in_several_ways_at_once() -> None:
    outputs = {"class": torch.tensor(STUDENT), "distill": torch.tensor(STUDENT)}
    answers = {"logits": torch.tensor(TEACHER)}
    ways = (HardLabel(), SoftKl(3.0, "batchmean"), LogitCrossEntropy())
    objective = Objective(
        (Supervised(), *(Distilled("distill", how, 0.25) for how in ways), Distilled("class", HardLabel(), 0.5))
    )
    found = objective.build(HEADS, COUNTS, answers=sizes(answers))(outputs, batch(answers))
    assert tuple(found) == objective.names
    assert list(found) == [
        "supervised_class",
        "distilled_distill_hard_label",
        "distilled_distill_soft_kl",
        "distilled_distill_logit_cross_entropy",
        "distilled_class",  # alone on its head
    ]
    for name, how in zip(objective.names[1:4], ways, strict=True):
        assert found[name].item() == pytest.approx(0.25 * learned(how), abs=1e-7)
    assert objective.heads == ("class", "distill")


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_a_term_that_nobody_shares_its_head_with_keeps_its_short_name(how: How) -> None:
    """Logs and saved states carry it."""
    assert Objective((Supervised("distill"), Distilled("distill", how))).names == ("supervised_distill", "distilled_distill")
    assert Objective((Distilled("class", how), Distilled("distill", how))).names == ("distilled_class", "distilled_distill")


@pytest.mark.parametrize(
    "terms",
    [
        (Distilled(), Distilled("distill", HardLabel(), 0.1)),
        (Distilled("distill", SoftKl(1.0, "released")), Distilled("distill", SoftKl(3.0, "batchmean"))),
        (Distilled(), Distilled("distill", LogitCrossEntropy()), Distilled()),
        (Distilled("a"), Distilled("a", LogitCrossEntropy()), Distilled("a_hard_label")),
    ],
)
def test_terms_of_one_kind_on_one_head_are_refused(terms: tuple[Distilled, ...]) -> None:
    with pytest.raises(SpecError, match=r"^objective\.terms: terms \[.*\]\. Give at least one, each of another kind or head"):
        Objective(terms).build(("distill", "a", "a_hard_label"), COUNTS, answers={"logits": (3,)})


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_logits_are_computed_with_in_full_precision(how: How, dtype: torch.dtype) -> None:
    student, teacher = torch.tensor(STUDENT).mul(37).to(dtype), torch.tensor(TEACHER).mul(31).to(dtype)
    term = Distilled("distill", how)
    found = value(term, {"distill": student}, {"logits": teacher})
    assert found.dtype == torch.float32
    assert torch.equal(found, value(term, {"distill": student.float()}, {"logits": teacher.float()}))


# ------------------------------------------------------------------------------------------------ tokens


def smooth_l1(project: torch.nn.Linear, x: list[list[float]], y: list[list[float]]) -> float:
    """One picture, token by token; β = 2."""
    weight, bias = project.weight.double().tolist(), project.bias.double().tolist()
    total, count = 0.0, 0
    for ours, theirs in zip(x, y, strict=True):
        mean = sum(theirs) / len(theirs)
        variance = sum((v - mean) ** 2 for v in theirs) / len(theirs)
        for out, v in enumerate(theirs):
            way = abs(
                sum(w * a for w, a in zip(weight[out], ours, strict=True)) + bias[out] - (v - mean) / math.sqrt(variance + 1e-5)
            )
            total += 0.5 * way**2 / 2 if way < 2 else way - 1
            count += 1
    return total / count


def shrunk(grid: list[list[list[float]]], height: int, width: int) -> list[list[float]]:
    """A triangle as wide as a pixel of the smaller grid, or of the larger one where it grows; row by row."""

    def shares(old: int, new: int) -> list[list[float]]:
        found = []
        for i in range(new):
            center, reach = (i + 0.5) * old / new, max(old / new, 1.0)
            raw = [max(0.0, 1 - abs(j + 0.5 - center) / reach) for j in range(old)]
            found.append([one / sum(raw) for one in raw])
        return found

    down, across = shares(len(grid), height), shares(len(grid[0]), width)
    dim = len(grid[0][0])
    return [
        [
            sum(down[i][a] * across[j][b] * grid[a][b][d] for a in range(len(grid)) for b in range(len(grid[0])))
            for d in range(dim)
        ]
        for i in range(height)
        for j in range(width)
    ]


def reshaped(rows: list[list[float]], height: int, width: int) -> list[list[list[float]]]:
    assert len(rows) == height * width
    return [rows[i * width : (i + 1) * width] for i in range(height)]


def projection(terms: TermSum) -> torch.nn.Linear:
    """Large, so that both sides of β are met."""
    [found] = [one for one in terms.modules() if isinstance(one, torch.nn.Linear)]
    torch.nn.init.normal_(found.weight)
    torch.nn.init.normal_(found.bias)
    return found


def token_loss(term: MatchedTokens, ours: Tensor, theirs: Tensor) -> tuple[float, torch.nn.Linear]:
    outputs, answers = {term.student: ours}, {term.teacher: theirs}
    terms = built(term, outputs, answers)
    linear = projection(terms)
    return terms(outputs, batch(answers))[term.name].item(), linear


def test_equally_many_tokens_are_matched_one_by_one_however_they_lie() -> None:
    ours, theirs = torch.randn(2, 11, 4), torch.randn(2, 11, 6)
    found, linear = token_loss(MatchedTokens("tokens[1]", "tokens[-1]", 0.5), ours, theirs)
    x, y = ours.double().tolist(), theirs.double().tolist()
    assert found == pytest.approx(0.5 * sum(smooth_l1(linear, x[b], y[b]) for b in range(2)) / 2, abs=1e-5)


@pytest.mark.parametrize(("small", "large"), [(3, 5), (5, 3)])
def test_grids_are_resized_to_the_students_and_shared_summary_tokens_matched(small: int, large: int) -> None:
    """A distilled student (class, distill, patches) and a teacher without a distillation token."""
    ours, theirs = torch.randn(2, 2 + small**2, 4), torch.randn(2, 1 + large**2, 6)
    found, linear = token_loss(MatchedTokens("tokens[1]", "tokens[2]"), ours, theirs)
    expected = 0.0
    for x, y in zip(ours.double().tolist(), theirs.double().tolist(), strict=True):
        expected += smooth_l1(linear, [x[0], *x[2:]], [y[0], *shrunk(reshaped(y[1:], large, large), small, small)]) / 2
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_maps_of_a_convolutional_teacher_are_matched_by_patches_alone() -> None:
    ours, theirs = torch.randn(2, 1 + 3 * 3, 4), torch.randn(2, 6, 4, 5)  # B C H W
    found, linear = token_loss(MatchedTokens("tokens[1]", "maps[2]"), ours, theirs)
    expected = 0.0
    for x, y in zip(ours.double().tolist(), theirs.permute(0, 2, 3, 1).double().tolist(), strict=True):
        expected += smooth_l1(linear, x[1:], shrunk(y, 3, 3)) / 2
    assert found == pytest.approx(expected, abs=1e-5)


def test_tokens_beside_maps_of_the_same_grid_are_read_as_that_grid() -> None:
    ours, theirs = torch.randn(2, 1 + 5 * 7, 4), torch.randn(2, 6, 5, 7)  # 36 tokens, which could be 6 x 6
    found, linear = token_loss(MatchedTokens("tokens[1]", "maps[2]"), ours, theirs)
    x, y = ours[:, 1:].double().tolist(), theirs.flatten(2).transpose(1, 2).double().tolist()
    assert found == pytest.approx(sum(smooth_l1(linear, x[b], y[b]) for b in range(2)) / 2, abs=1e-5)


def test_a_student_of_maps_can_learn_from_tokens() -> None:
    ours, theirs = torch.randn(2, 4, 3, 3), torch.randn(2, 1 + 3 * 3, 6)
    found, linear = token_loss(MatchedTokens("maps[1]", "tokens[2]"), ours, theirs)
    x, y = ours.flatten(2).transpose(1, 2).double().tolist(), theirs[:, 1:].double().tolist()
    assert found == pytest.approx(sum(smooth_l1(linear, x[b], y[b]) for b in range(2)) / 2, abs=1e-5)


def test_grids_that_are_not_square_and_more_summary_tokens_can_be_said() -> None:
    ours, theirs = torch.randn(2, 2 + 2 * 3, 4), torch.randn(2, 5 + 3 * 4, 6)  # class and four registers
    with pytest.raises(SpecError, match=r"objective\.terms\[0\]\.student_grid: 8 tokens are no square behind at most two"):
        token_loss(MatchedTokens("tokens[1]", "tokens[2]"), ours, theirs)
    with pytest.raises(SpecError, match=r"teacher_grid: 21 tokens are no square .* Say their grid"):
        token_loss(MatchedTokens("tokens[1]", "tokens[2]"), torch.randn(2, 10, 4), torch.randn(2, 5 + 4 * 4, 6))
    found, linear = token_loss(MatchedTokens("tokens[1]", "tokens[2]", 1.0, (2, 3), (3, 4)), ours, theirs)
    expected = 0.0
    for x, y in zip(ours.double().tolist(), theirs.double().tolist(), strict=True):
        expected += smooth_l1(linear, x, [*y[:2], *shrunk(reshaped(y[5:], 3, 4), 2, 3)]) / 2
    assert found == pytest.approx(expected, abs=1e-5)


# ------------------------------------------------------------------------------------------------ attention


@pytest.mark.parametrize("queries", [7, 1])
def test_attention_is_matched_by_the_direction_of_its_mean_over_heads(queries: int) -> None:
    ours, theirs = torch.randn(2, 3, queries, 7).softmax(-1), torch.randn(2, 5, queries, 7).softmax(-1)
    found = value(MatchedAttention("attention[0]", "attention[1]", 0.5), {"attention[0]": ours}, {"attention[1]": theirs})
    expected = 0.0
    for sample in range(2):
        for query in range(queries):
            a, b = (
                [sum(head[query][n] for head in one[sample]) / len(one[sample]) for n in range(7)]
                for one in (ours.double().tolist(), theirs.double().tolist())
            )
            long_a, long_b = math.sqrt(sum(v * v for v in a)), math.sqrt(sum(v * v for v in b))
            expected += 0.5 * sum((v / long_a - w / long_b) ** 2 for v, w in zip(a, b, strict=True)) / (2 * queries)
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_attention_that_hides_tokens_or_mixes_below_zero_gives_finite_gradients() -> None:
    hidden = torch.randn(2, 3, 7, 7).masked_fill(torch.eye(7, dtype=torch.bool), -torch.inf).softmax(-1).requires_grad_()
    mixed = torch.randn(2, 5, 7, 7)
    value(MatchedAttention("attention[0]", "attention[1]"), {"attention[0]": hidden}, {"attention[1]": mixed}).backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


MATCHED = MatchedAttention("attention[0]", "attention[1]", 0.5)


def kept_row(heads: list[list[list[float]]], query: int, keys: list[int]) -> list[float]:
    """The mean over heads of a query's row, of the keys in `keys` alone, made to sum up to 1 again."""
    row = [sum(head[query][n] for head in heads) / len(heads) for n in keys]
    return [v / sum(row) for v in row]


def shared_loss(ours: Tensor, theirs: Tensor, queries: list[tuple[int, int]], keys: list[tuple[int, int]]) -> float:
    """`queries` and `keys` are pairs of what is the same token in both networks."""
    total = 0.0
    for x, y in zip(ours.double().tolist(), theirs.double().tolist(), strict=True):
        for m, other in queries:
            a, b = kept_row(x, m, [n for n, _ in keys]), kept_row(y, other, [n for _, n in keys])
            long_a, long_b = math.sqrt(sum(v * v for v in a)), math.sqrt(sum(v * v for v in b))
            total += sum((v / long_a - w / long_b) ** 2 for v, w in zip(a, b, strict=True)) / (len(queries) * len(ours))
    return total


def tokens(ours: int, theirs: int, patches: int) -> list[tuple[int, int]]:
    """Where the summary tokens that both have, and the patches, stand in either network."""
    return [(i, i) for i in range(min(ours, theirs))] + [(ours + i, theirs + i) for i in range(patches)]


@pytest.mark.parametrize(
    ("ours", "theirs", "grid"),
    [(2, 1, (3, 3)), (1, 2, (3, 3)), (2, 0, (3, 3)), (2, 1, (2, 4)), (0, 1, (3, 3)), (1, 5, (2, 4)), (2, 2, (2, 4))],
)
def test_attention_is_matched_by_the_tokens_that_both_networks_have(ours: int, theirs: int, grid: tuple[int, int]) -> None:
    """A distilled student (class, distill, patches) and a teacher without a distillation token, and others."""
    patches = math.prod(grid)
    a_BHMN, b_BHMN = (torch.randn(2, h, s + patches, s + patches).softmax(-1) for h, s in ((3, ours), (5, theirs)))
    found = value(replace(MATCHED, grid=grid), {"attention[0]": a_BHMN}, {"attention[1]": b_BHMN})
    both = tokens(ours, theirs, patches)
    assert found.item() == pytest.approx(0.5 * shared_loss(a_BHMN, b_BHMN, both, both), abs=1e-6)
    if grid == (3, 3) and (ours, theirs) != (0, 1):  # found without a word
        assert torch.equal(value(MATCHED, {"attention[0]": a_BHMN}, {"attention[1]": b_BHMN}), found)


@pytest.mark.parametrize(("seen_ours", "seen_theirs"), [(2, 1), (0, 0), (2, 0)])
def test_class_attention_is_matched_by_the_summary_tokens_that_both_have(seen_ours: int, seen_theirs: int) -> None:
    """Their rows are summary tokens alone; `PatchesOnly` shows them none."""
    ours, theirs = torch.randn(2, 3, 2, seen_ours + 16).softmax(-1), torch.randn(2, 5, 1, seen_theirs + 16).softmax(-1)
    found = value(MATCHED, {"attention[0]": ours}, {"attention[1]": theirs})
    assert found.item() == pytest.approx(
        0.5 * shared_loss(ours, theirs, [(0, 0)], tokens(seen_ours, seen_theirs, 16)), abs=1e-6
    )


def test_maps_that_are_equal_where_they_are_shared_have_no_distance() -> None:
    theirs = torch.randn(2, 3, 17, 17).softmax(-1)
    ours = torch.zeros(2, 3, 18, 18)
    rest = torch.tensor([0, *range(2, 18)])
    seen = torch.rand(2, 1, 17, 1)  # what a query leaves for the tokens that the teacher has as well
    ours[:, :, rest[:, None], rest] = seen * theirs
    ours[:, :, rest, 1] = 1 - seen[..., 0]
    ours[:, :, 1] = torch.randn(2, 3, 18).softmax(-1)
    torch.testing.assert_close(ours.sum(-1), torch.ones(2, 3, 18))
    assert value(MATCHED, {"attention[0]": ours}, {"attention[1]": theirs}).item() == pytest.approx(0.0, abs=1e-10)
    assert value(MATCHED, {"attention[0]": theirs}, {"attention[1]": theirs}).item() == 0.0


def test_gradients_reach_shared_attention_and_nothing_else() -> None:
    scores = torch.randn(2, 3, 18, 18, requires_grad=True)
    ours = scores.softmax(-1)
    ours.retain_grad()
    theirs = torch.randn(2, 5, 17, 17).softmax(-1).requires_grad_()
    value(MATCHED, {"attention[0]": ours}, {"attention[1]": theirs}).backward()
    assert theirs.grad is None and ours.grad is not None and scores.grad is not None
    assert not ours.grad[:, :, 1].any() and not ours.grad[..., 1].any()
    rest = torch.tensor([0, *range(2, 18)])
    assert ours.grad[:, :, rest[:, None], rest].all() and scores.grad.isfinite().all()


def test_a_row_that_sees_only_what_the_teacher_lacks_gives_finite_gradients() -> None:
    ours = torch.zeros(2, 3, 18, 18)
    ours[..., 1] = 1.0
    ours.requires_grad_()
    value(MATCHED, {"attention[0]": ours}, {"attention[1]": torch.rand(2, 5, 17, 17)}).backward()
    assert ours.grad is not None and ours.grad.isfinite().all()


@pytest.mark.parametrize(
    ("ours", "theirs", "grid", "message"),
    [
        ((17, 17), (26, 26), None, r"teacher: maps of 26 x 26 for 17 x 17\. A map says .* the same patches"),
        ((18, 18), (26, 26), None, r"teacher: maps of 26 x 26 for 18 x 18\."),
        ((36, 36), (29, 29), None, r"teacher: maps of 29 x 29 for 36 x 36\."),  # 5 x 7 and 4 x 7
        ((40, 40), (39, 39), None, r"teacher: maps of 39 x 39 for 40 x 40\. .* grid=\(height, width\)"),
        ((3, 3), (5, 5), None, r"teacher: maps of 5 x 5 for 3 x 3\."),  # one patch, and four
        ((1, 17), (17, 17), None, r"teacher: maps of 17 x 17 for 1 x 17\."),  # class attention
        ((2, 18), (17, 17), None, r"teacher: maps of 17 x 17 for 2 x 18\."),
        ((64, 16), (65, 17), None, r"teacher: maps of 65 x 17 for 64 x 16\."),
        ((16, 18), (16, 17), (4, 5), r"grid: a grid of 4 x 5 where there are 18 tokens"),
        (
            (37, 37),
            (36, 36),
            None,
            r"grid: 37 and 36 tokens may be 6 x 6 patches .* or 5 x 7 .* Say which: \(6, 6\) or \(5, 7\)",
        ),
        ((36, 36), (37, 37), None, r"grid: 36 and 37 tokens may be 6 x 6 patches"),
    ],
)
def test_maps_of_other_grids_are_refused(
    ours: tuple[int, int], theirs: tuple[int, int], grid: tuple[int, int] | None, message: str
) -> None:
    with pytest.raises(SpecError, match=r"^objective\.terms\[0\]\." + message):
        Objective((replace(MATCHED, grid=grid),)).build(
            HEADS, COUNTS, {"attention[0]": (3, *ours)}, {"attention[1]": (5, *theirs)}
        )


def test_a_student_with_a_distillation_token_learns_the_attention_of_a_teacher_without_one(tmp_path: Path) -> None:
    sizes = ("dim=16", "depth=2", "batch=64", "schedule.warmup=Steps(4)", "log_every=1", "epochs=1")
    frugalvit.train(frugalvit.recipe("vit.digits", *sizes), out=tmp_path / "teacher")
    made = frugalvit.recipe("deit.digits", *sizes)
    two_ways = (Distilled(weight=0.3), Distilled("distill", SoftKl(3.0, "batchmean"), 0.2))
    terms = (Supervised("class", weight=0.5), *two_ways, MatchedAttention("attention[0]", "attention[1]"))
    made = replace(made, objective=Objective(terms), teaching=Teaching(RunTeacher(str(tmp_path / "teacher")), least=0))
    assert decode(json.loads(json.dumps(encode(made))), Recipe) == made
    records = list(frugalvit.fit(made))
    total = sum(records[0].values[name] for name in made.objective.names)
    assert records[0].values["loss"] == pytest.approx(total, rel=1e-6)
    losses = [record.values["matched_attention_0_attention_1"] for record in records]
    assert all(math.isfinite(one) for one in losses) and losses[-1] < losses[0]


# ------------------------------------------------------------------------------------------------ all terms


def network(spec: Model, taps: tuple[str, ...]) -> torch.nn.Module:
    return spec.build(taps=taps, seed=1).eval()


def test_only_the_student_and_the_terms_own_parameters_learn(toy: Model) -> None:
    student = network(toy, FULL.student_taps)
    teacher = network(deit(dim=20, heads=5, depth=3, patch=4, image=(20, 28), classes=9, summary=HEADS), FULL.teacher_taps)
    image = torch.randn(2, 3, 20, 28)
    outputs, said = student(image), teacher(image)
    answers = {"logits": said["class"], **{tap: said[tap] for tap in FULL.teacher_taps}}
    terms = FULL.build(HEADS, torch.ones(9), sizes(outputs), sizes(answers))
    found = terms(outputs, batch(answers))
    assert list(found) == [
        "supervised_class",
        "distilled_distill",
        "matched_tokens_1_tokens_2",
        "matched_attention_0_attention_1",
    ]
    assert all(one.shape == () and one > 0 for one in found.values())
    torch.stack(list(found.values())).sum().backward()
    assert all(one.grad is None for one in teacher.parameters())
    assert all(one.grad is not None and one.grad.any() for one in terms.parameters())
    assert student.get_parameter("layers.3.attention.qkv.weight").grad.any()  # type: ignore[union-attr]
    own = {"terms.matched_tokens_1_tokens_2.project.weight": (20, 12), "terms.matched_tokens_1_tokens_2.project.bias": (20,)}
    assert {name: tuple(one.shape) for name, one in terms.named_parameters()} == own
    assert {name: tuple(one.shape) for name, one in terms.state_dict().items()} == own


@pytest.mark.parametrize("term", FULL.taught, ids=lambda term: term.name)
def test_every_term_alone_can_be_learned(toy: Model, term: Taught) -> None:
    student = network(toy, term.student_taps)
    teacher = network(deit(dim=20, heads=5, depth=3, patch=4, image=(20, 28), classes=9, summary=HEADS), term.teacher_taps)
    image = torch.randn(2, 3, 20, 28)
    with torch.no_grad():
        said = teacher(image)
    answers = {"logits": 20 * said["class"], **{tap: said[tap] for tap in term.teacher_taps}}
    terms = Objective((term,)).build(HEADS, torch.ones(9), sizes(student(image)), sizes(answers))
    optimizer = torch.optim.AdamW([*student.parameters(), *terms.parameters()], lr=1e-2)
    losses = []
    for _ in range(25):
        [loss] = terms(student(image), batch(answers)).values()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], (losses[0], losses[-1])


def test_a_convolutional_teacher_of_ours_fits() -> None:
    term = MatchedTokens("tokens[0]", "maps[-1]")
    student = network(convit(dim=12, heads=4, depth=2, local=1, patch=8, image=32, classes=9), term.student_taps)
    teacher = resnet50(image=32, classes=9).build(taps=term.teacher_taps).eval()
    image = torch.randn(2, 3, 32, 32)
    outputs, answers = student(image), teacher(image)
    assert value(term, {"tokens[0]": outputs["tokens[0]"]}, {"maps[-1]": answers["maps[-1]"]}).isfinite()


def test_terms_can_be_captured_whole(toy: Model) -> None:
    shapes = {"class": (9,), "distill": (9,), "tokens[1]": (37, 12), "attention[0]": (3, 37, 37)}
    said = {"logits": (9,), "tokens[2]": (1 + 4 * 6, 20), "attention[1]": (5, 36, 36)}
    spec = override(FULL, "terms[2].teacher_grid=4x6", "terms[3].grid=5x7")
    terms = spec.build(HEADS, torch.ones(9), shapes, said)
    outputs = {name: torch.rand(2, *size) for name, size in shapes.items()}
    answers = {name: torch.rand(2, *size) for name, size in said.items()}

    def step(outputs: dict[str, Tensor], answers: dict[str, Tensor], label_B: Tensor) -> dict[str, Tensor]:
        return terms(outputs, Batch(torch.zeros(2, 3, 4, 5), label_B, label_B, answers=answers))

    found = torch.compile(step, backend="eager", fullgraph=True)(outputs, answers, torch.tensor([1, 0]))
    torch.testing.assert_close(found, terms(outputs, batch(answers)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_taps_are_matched_in_full_precision(dtype: torch.dtype) -> None:
    cases: list[tuple[MatchedTokens | MatchedAttention, Tensor, Tensor]] = [
        (MatchedTokens("tokens[1]", "tokens[2]"), torch.randn(2, 10, 4), torch.randn(2, 17, 6)),
        (MatchedAttention("attention[0]", "attention[1]"), torch.rand(2, 3, 7, 7), torch.rand(2, 5, 7, 7)),
    ]
    for term, ours, theirs in cases:
        outputs, answers = {term.student: ours.to(dtype)}, {term.teacher: theirs.to(dtype)}
        terms = built(term, outputs, answers)
        [found] = terms(outputs, batch(answers)).values()
        wide = [{name: one.float() for name, one in both.items()} for both in (outputs, answers)]
        [expected] = terms(wide[0], batch(wide[1])).values()
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)
        with torch.autocast("cpu", torch.bfloat16):  # rounds the projection, and nothing behind it
            [found] = terms(outputs, batch(answers)).values()
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.0)


# ------------------------------------------------------------------------------------------------ specs


def test_an_objective_says_what_it_reads() -> None:
    assert FULL.needs_teacher
    assert FULL.student_taps == ("tokens[1]", "attention[0]")
    assert FULL.teacher_taps == ("tokens[2]", "attention[1]")
    assert Objective((Supervised(), Distilled())).needs_teacher
    assert Objective((Distilled(),)).student_taps == Objective((Distilled(),)).teacher_taps == ()
    plain = Objective((Supervised(),))
    assert not plain.needs_teacher
    assert plain.student_taps == plain.teacher_taps == ()
    twice = Objective((MatchedTokens("tokens[1]", "tokens[2]"), MatchedTokens("tokens[1]", "tokens[5]")))
    assert twice.student_taps == ("tokens[1]",)
    assert len({term.name for term in twice.terms}) == 2


def test_terms_survive_json_can_be_edited_and_are_described() -> None:
    check(FULL, Objective)
    for how in WAYS:
        spec = Objective((*FULL.terms, Distilled("class", how)))
        assert decode(json.loads(json.dumps(encode(spec))), Objective) == spec
    edited = override(FULL, "terms[1].how=SoftKl(2.0, batchmean)", "terms[3].weight=0.5", "terms[2].student=tokens[0]")
    assert edited.terms[1] == Distilled("distill", SoftKl(2.0, "batchmean"), 0.5)
    assert override(FULL, "terms[1].how=HardLabel").terms[1] == Distilled()
    text = describe(Objective((Supervised(), *FULL.taught)))
    assert "terms[1]: Distilled(how=SoftKl(temperature=3.0, reduction='released'))" in text
    assert "terms[3]: MatchedAttention(student='attention[0]', teacher='attention[1]', weight=2.0)" in text


def test_without_a_teacher_a_term_says_how_to_get_one() -> None:
    with pytest.raises(
        SpecError, match=r"objective\.terms\[1\]: Distilled learns from a teacher, and there is none\. Name one"
    ):
        Objective((Supervised(), Distilled())).build(HEADS, COUNTS)
    terms = Objective((Distilled(),)).build(HEADS, COUNTS, answers={"logits": (3,)})
    with pytest.raises(SpecError, match=r"batch\.answers: the batch holds no 'logits' of a teacher"):
        terms({"distill": torch.tensor(STUDENT)}, batch(None))


SHAPES = {"class": (3,), "distill": (3,), "tokens[1]": (17, 4), "attention[0]": (2, 17, 17)}
ANSWERS = {"logits": (3,), "tokens[2]": (26, 6), "attention[1]": (3, 26, 26), "maps[0]": (5, 3, 3)}


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (Distilled("distil"), r"head: the model has no head 'distil'. Did you mean 'distill'\? with_distillation"),
        (MatchedTokens("tokens[7]", "tokens[2]"), r"student: the student shows no 'tokens\[7\]'. Did you mean 'tokens\[1\]'"),
        (MatchedTokens("tokens[1]", "maps[4]"), r"teacher: the teacher shows no 'maps\[4\]'. Did you mean 'maps\[0\]'"),
        (MatchedAttention("attention[9]", "attention[1]"), r"student: the student shows no 'attention\[9\]'"),
        (
            MatchedAttention("attention[0]", "attention[1]"),
            r"teacher: maps of 26 x 26 for 17 x 17. A map says which token sees which",
        ),
        (MatchedTokens("tokens[1]", "tokens[2]", student_grid=(4, 5)), r"student_grid: a grid of 4 x 5 where there are 17"),
        (MatchedTokens("tokens[1]", "maps[0]", teacher_grid=(9, 1)), r"teacher_grid: \(9, 1\), but maps have a grid"),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_what_does_not_fit_is_refused_with_its_place(term: Taught, message: str) -> None:
    with pytest.raises(SpecError, match=r"^objective\.terms\[0\]\." + message):
        Objective((term,)).build(HEADS, COUNTS, SHAPES, ANSWERS)


def test_other_classes_are_refused() -> None:
    with pytest.raises(SpecError, match=r"terms\[0\]\.head: it tells 3 classes apart, and the teacher 1000"):
        Objective((Distilled(),)).build(HEADS, COUNTS, answers={"logits": (1000,)})
    with pytest.raises(SpecError, match="the teacher shows no 'logits'"):
        Objective((Distilled(),)).build(HEADS, COUNTS, answers={})


def test_maps_of_windows_are_refused_beside_maps_of_pictures() -> None:
    terms = Objective((MatchedAttention(),)).build(HEADS, COUNTS, {"attention[3]": (2, 4, 4)}, {"attention[3]": (3, 4, 4)})
    answers = {"attention[3]": torch.rand(2, 3, 4, 4)}
    with pytest.raises(SpecError, match="maps of 2 x 4 x 4 for 18 x 4 x 4"):
        terms({"attention[3]": torch.rand(18, 2, 4, 4)}, batch(answers))


def test_impossible_numbers_and_taps_are_refused_when_written() -> None:
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(SpecError, match="temperature: a temperature of"):
            SoftKl(temperature, "batchmean")
    for kind in (Distilled, MatchedTokens, MatchedAttention):
        for weight in (0.0, -0.5):
            with pytest.raises(SpecError, match=r"weight: a weight of .* leave the term out"):
                kind(weight=weight)
    with pytest.raises(SpecError, match=r"student: 'attention\[3\]' does not fit here. Use tokens\[i\] or maps\[i\]"):
        MatchedTokens("attention[3]")
    with pytest.raises(SpecError, match=r"teacher: 'tokens\[3\]' does not fit here. Use attention\[i\]"):
        MatchedAttention("attention[3]", "tokens[3]")
    with pytest.raises(SpecError, match=r"'mean' does not fit here. Expected 'batchmean' or 'released'"):
        override(FULL, "terms[1].how.reduction=mean")
    with pytest.raises(SpecError, match="Give at least one, each of another kind or head"):
        Objective((Distilled("class"), Distilled("class", weight=0.1))).build(HEADS, COUNTS, answers={"logits": (3,)})
