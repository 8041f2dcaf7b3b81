"""Throughput of a distillation step beside timm's `TokenDistillationTask`, on one GPU, alternating in one run.

    python benchmarks/distill_throughput.py [TEACHER:BATCH:COMPILED ...] [--ways graph stream] [--teachers own timm]
        [--forms quick given] [--warm timm|ours] [--rounds 5] [--steps 20] [--out docs/results]

Both sides: the same student with drop_path 0.1, a frozen teacher of the same architecture with random weights, one synthetic
batch on the device, ½ soft-target cross-entropy of the class head and ½ cross-entropy of the distillation head with the
teacher's labels, torch.compile in its default mode, autocast to bf16 over fp32 parameters, fused AdamW, cudnn.benchmark, device
events. A round times timm, then ours in each of its ways; the ratio is the median over rounds of ours / timm's within a round.
timm's side is its task as its train.py drives it, less the `loss.item()` of every step there. `--warm` fills the compiler's
cache for one side and measures nothing.

COMPILED is how much of the teacher is: `whole`; `eager`, nothing; `layers`, those of our zoo one by one, so that equal ones are
compiled once, and nothing of timm's. The student always is, unless COMPILED is `off`.
Ways of ours: `plain`, launched kernel by kernel as timm's is; `graph`, student, teacher and update captured as one CUDA graph,
as FrugalViT trains, less what it records of a step (finite gradients, sums of losses); `stream`, a graph where what flows
between the student's blocks is bf16 too (precision=bf16_stream); `fork`, a stream whose teacher answers on a second CUDA
stream while the student computes.
Teachers of ours: `own`, the zoo's; `timm`, timm's module. Forms: `given`, as it was opened; `quick`, its batch norms folded
into bf16 convolutions with channels last (`training/quick_teacher.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.task import TokenDistillationTask
from torch import Tensor, nn

import frugalvit
from frugalvit.data.batch import Batch
from frugalvit.data.preprocess import Preprocess
from frugalvit.measure.captured import captured
from frugalvit.measure.latency import device_name, seconds
from frugalvit.objective.distill import Distilled, HardLabel
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.report.environment import short_commit
from frugalvit.training.devices import Place, place_for
from frugalvit.training.quick_teacher import quicken
from frugalvit.training.teacher import Teacher
from kept import Kept
from script import started

DEFAULT = ["resnet50:256:whole", "regnety_160:256:eager"]
STUDENT = "deit_small_distilled_patch16_224"
COMPILED = ("whole", "layers", "eager", "off")
WAYS = ("plain", "graph", "stream", "fork")
WHOSE = ("own", "timm")
FORMS = ("quick", "given")
LAYOUTS = {"contiguous": torch.preserve_format, "channels_last": torch.channels_last}
KEY = ("student", "teacher", "batch", "compiled", "layout", "whose", "form", "way")
TOKEN = Objective((Supervised("class", weight=0.5), Distilled("distill", HardLabel(), 0.5)))  # as recipes/teach.py has it
CLASSES = 1000
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Given = tuple[Tensor, Tensor]  # image_BCHW and target_BC
Loss = Callable[[Tensor, Tensor], Tensor]  # of these
Answers = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class Case:
    """Who is taught by whom, and how."""

    student: str
    teacher: str
    batch: int
    compiled: str  # how much of the teacher; "off": not the student either
    image: int
    layout: str  # of timm's pictures and student
    device: torch.device
    rounded: Literal["bf16", "fp32"] = "bf16"  # what products are rounded to; fp32 is for comparing both sides

    def place(self, streamed: Literal["bf16", "bf16_stream"] = "bf16") -> Place:
        """Ours, where bf16 may flow between blocks too."""
        return Place(self.device, streamed if self.rounded == "bf16" else self.rounded)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.compiled == "off" else torch.compile(function)


def timm_loss(case: Case, student: nn.Module, teacher: nn.Module) -> Loss:
    kind: dict[str, Any] = {"distill_type": "hard", "task_loss_weight": 0.5}
    task = TokenDistillationTask(student, teacher, SoftTargetCrossEntropy(), device=case.device, verbose=False, **kind)
    if case.compiled == "whole":
        task.compile()
    else:
        task.trainable_module = case.compile(task.trainable_module)

    def total(image_BCHW: Tensor, target_BC: Tensor) -> Tensor:
        image_BCHW = image_BCHW.to(memory_format=LAYOUTS[case.layout])
        with torch.autocast(case.device.type, torch.bfloat16, enabled=case.rounded == "bf16"):
            return task(image_BCHW, target_BC)["loss"]

    return total


def timm_student(case: Case, drop_path: float = 0.1) -> nn.Module:
    student = timm.create_model(case.student, num_classes=CLASSES, img_size=case.image, drop_path_rate=drop_path)
    return student.to(case.device).to(memory_format=LAYOUTS[case.layout]).train()


def timm_step(case: Case, given: Given) -> Callable[[], None]:
    student = timm_student(case)
    teacher = timm.create_model(case.teacher, num_classes=CLASSES).to(case.device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True)
    return training_step(timm_loss(case, student, teacher), given, optimizer)


def opened(case: Case, network: nn.Module, form: str) -> Teacher:
    """The teacher as `frugalvit distill` has it, on pictures that are its student's."""
    pictures = Preprocess(case.image, case.image, *IMAGENET)
    classes = tuple(map(str, range(CLASSES)))
    teacher = Teacher(network, pictures, pictures, classes, case.place(), name=case.teacher, knows=CLASSES)
    if form == "quick":
        quicken(teacher, case.batch)
    return teacher


def our_teacher(case: Case, whose: str, form: str) -> Answers:
    name = case.teacher if whose == "own" else f"timm:{case.teacher}"
    teacher = opened(case, frugalvit.model(name, image=case.image, classes=CLASSES).build(), form)
    if case.compiled == "layers":
        assert isinstance(teacher.network.layers, nn.ModuleList)
        for layer in teacher.network.layers:
            layer.compile()
    return torch.compile(teacher) if case.compiled == "whole" else teacher


def our_loss(case: Case, student: Any, answers: Answers, way: str) -> Loss:
    place = case.place("bf16" if way in ("plain", "graph") else "bf16_stream")
    student.stream = place.stream
    objective = TOKEN.build(student.spec.heads, torch.ones(CLASSES), answers={"logits": (CLASSES,)}).to(case.device)
    none_B = torch.zeros(case.batch, dtype=torch.int64, device=case.device)  # labels, which targets stand for, and places
    side = torch.cuda.Stream() if way == "fork" and case.device.type == "cuda" else None

    def answered(image_BCHW: Tensor, draws_RB: Tensor) -> dict[str, Tensor]:
        with place.autocast():
            return student(image_BCHW, draws_RB)

    def judged(outputs: dict[str, Tensor], target_BC: Tensor, said: dict[str, Tensor]) -> Tensor:
        with place.autocast():
            terms = objective(outputs, Batch(target_BC, none_B, none_B, target_BC, said))
        return torch.stack(list(terms.values())).sum()

    forward, total = case.compile(answered), case.compile(judged)

    def loss(image_BCHW: Tensor, target_BC: Tensor) -> Tensor:
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # type: ignore[arg-type]  # none: as it is
            said = answers(image_BCHW)
        outputs = forward(image_BCHW, student.random_draws(case.batch))
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        return total(outputs, target_BC, said)

    return loss


def our_step(case: Case, answers: Answers, way: str, given: Given) -> Callable[[], None]:
    spec = frugalvit.model(case.student, image=case.image, classes=CLASSES, drop_path=0.1)
    student = spec.build().to(case.device).train()
    captures = way != "plain" and case.device.type == "cuda"
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True, capturable=captures)
    step = training_step(our_loss(case, student, answers, way), given, optimizer)
    return captured(step) if captures else step


def training_step(loss: Loss, given: Given, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        loss(*given).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def steps_of(case: Case, arguments: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """The steps to take, by name: timm's first, and ours as whose/form/way."""
    torch._dynamo.reset()
    image_BCHW = torch.randn(case.batch, 3, case.image, case.image, device=case.device)
    given = image_BCHW, torch.randn(case.batch, CLASSES, device=case.device).softmax(1)
    found = {} if arguments.warm == "ours" else {"timm": timm_step(case, given)}
    for whose in [] if arguments.warm == "timm" else arguments.teachers:
        for form in arguments.forms:
            answers = our_teacher(case, whose, form)
            found |= {f"{whose}/{form}/{way}": our_step(case, answers, way, given) for way in arguments.ways}
    return found


def compare(case: Case, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each of our steps, all measured beside the same rounds of timm's."""
    steps = steps_of(case, arguments)
    for step in steps.values():
        seconds(step, arguments.before, case.device)
    rates: dict[str, list[float]] = {side: [] for side in steps}
    for _ in range(arguments.rounds):
        for side, step in steps.items():
            rates[side].append(case.batch / seconds(step, arguments.steps, case.device))
    for side in list(steps)[1:]:
        ratios = [ours / theirs for ours, theirs in zip(rates[side], rates["timm"], strict=True)]
        yield {name: getattr(case, name) for name in ("student", "teacher", "batch", "compiled", "layout")} | {
            **dict(zip(("whose", "form", "way"), side.split("/"), strict=True)),
            "timm": round(statistics.median(rates["timm"])),
            "frugalvit": round(statistics.median(rates[side])),
            "ratio": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
            "rounds": arguments.rounds,
        }


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; those of other runs of this script keep their own commit and versions."""
    lines = [
        "# Distillation throughput beside timm's",
        "",
        "`python benchmarks/distill_throughput.py`: images/s, median over rounds of a training step with a live teacher, both "
        "sides alternating; the ratio is ours / timm's within a round: median (lowest to highest). What is compiled, ways, "
        "teachers and forms: see the top of that file. A + behind a commit: with changes not yet committed.",
        "",
        "| student | teacher | compiled | of ours: teacher | form | way | batch | timm | FrugalViT | ratio | run |",
        "|---|---|---|---|---|---|---:|---:|---:|---:|---:|",
    ]
    runs: list[str] = []
    for row in rows:
        where = row["where"]
        run = f"{where['device']}, torch {where['torch']}, timm {where['timm']} ({row['layout']}), commit {where['commit']}, "
        run += f"{row['rounds']} rounds of {where['steps_per_round']} steps"
        runs += [run] if run not in runs else []
        spread = f"{row['ratio']:.3f} ({row['lowest']:.3f} to {row['highest']:.3f})"
        cells = [row[name] for name in ("student", "teacher", "compiled", "whose", "form", "way", "batch")]
        cells += [f"{row['timm']:,}", f"{row['frugalvit']:,}", spread, runs.index(run) + 1]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", *(f"{place}. {run}" for place, run in enumerate(runs, 1))]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=DEFAULT, metavar="TEACHER:BATCH:COMPILED")
    parser.add_argument("--student", default=STUDENT)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["graph", "stream"])
    parser.add_argument("--teachers", nargs="+", choices=WHOSE, default=["own"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["quick"])
    parser.add_argument("--layout", choices=LAYOUTS, default="contiguous", help="of timm's side, as its train.py has it")
    parser.add_argument("--warm", choices=("timm", "ours"), help="compile one side, and stop")
    for name, count in (("--before", 10), ("--rounds", 5), ("--steps", 20)):
        parser.add_argument(name, type=int, default=count)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    device = place_for(arguments.device, "bf16").device
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True  # as timm's train.py has it
    torch._dynamo.config.recompile_limit = 64  # beyond torch's own 8, a function's other variants would not be compiled
    where: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__, "timm": timm.__version__}
    where |= {"commit": arguments.commit, "steps_per_round": arguments.steps}
    cases = []
    for item in arguments.items:
        teacher, batch, compiled = (*item.split(":"), "", "")[:3]
        if not batch.isdecimal() or item.count(":") != 2:
            parser.error(f"{item}: say TEACHER:BATCH:COMPILED, as {DEFAULT[0]}.")
        if compiled not in COMPILED:
            parser.error(f"{item}: '{compiled}' is none of {', '.join(COMPILED)}.")
        cases.append(Case(arguments.student, teacher, int(batch), compiled, arguments.image, arguments.layout, device))
    if arguments.warm:
        for step in (step for case in cases for step in steps_of(case, arguments).values()):
            step()
        return
    kept = Kept(arguments.out, "distill_throughput", lambda row: tuple(row[name] for name in KEY), page)
    text = ""
    for case in cases:
        made = [row | {"where": where} for row in compare(case, arguments)]
        for row in made:
            print(json.dumps(row), flush=True)
        text = kept.add(*made)
    print(text)


if __name__ == "__main__":
    started(main)
