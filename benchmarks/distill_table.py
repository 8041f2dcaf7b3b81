"""DeiT's tables on distillation, on CIFAR-10: ways of learning from a teacher, two kinds of teachers, who differs from whom.

    python benchmarks/distill_table.py --data CIFAR [--only token --seeds 0,1,2] [--passes 100] [--out docs/results]

CIFAR is a folder of arrays (train_images.npy, test_images.npy, ...). The pieces, each of which can be asked for by itself:

    convnet, transformer         train the teachers (`convnet.cifar10`, `small.best_cifar10`), unless run folders are given
    none, soft, hard, token      students of the convolutional teacher, or of none
    other                        students of the transformer, with a token
    matrix                       disagreements, from finished runs

A piece trains what it needs. Seeds train at the same time. All 50,000 training pictures are learned from, and the test pictures
measure the finished students; with `--val`, 45,000 and the 5,000 held out. Nothing that has been measured is trained again, and
rows of earlier calls stay. A teacher that is there must be of the recipe that is asked for. Losses and accuracies of every run
go into distill_table_logs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import frugalvit
from frugalvit.report.environment import short_commit
from frugalvit.report.progress import Lines
from frugalvit.studies.account import time_page, write_logs
from frugalvit.studies.disagreement import disagreements
from frugalvit.studies.distillation import Method, ablation, chosen, teachers, with_teacher
from frugalvit.studies.study import Study
from frugalvit.studies.teacher_runs import teach, teacher_folder
from frugalvit.studies.trainings import Setup, unmeasured
from frugalvit.training.duration import Epochs
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher, TeacherSpec
from script import started

TEACHERS = {"convnet": "convnet.cifar10", "transformer": "small.best_cifar10"}
TAUGHT: tuple[Method, ...] = ("soft", "hard", "token")
STUDENTS = ("none", *TAUGHT)
PIECES = (*TEACHERS, *STUDENTS, "other", "matrix")
KEPT = ("step", "epoch", "loss", "supervised_class", "distilled_class", "distilled_distill", "lr", "val_top1", "val_loss")
KEPT += ("time_images_per_second", "time_waiting")


def recipe_of(name: str, words: list[str], val: bool) -> Recipe:
    return frugalvit.recipe(name, *words, *([] if val else ["data.dataset.holdout=0.0"]))


def folder_of(kind: str, arguments: argparse.Namespace, setup: Setup, seed: int = 0) -> Path:
    """Of a teacher: the run that was given, or where it is trained."""
    return getattr(arguments, kind) or teacher_folder(f"teacher-{kind}", setup, seed)


def convnets_of(student: Recipe, arguments: argparse.Namespace, setup: Setup) -> dict[Method, TeacherSpec]:
    """Who teaches each way: for those that are asked for the teacher of `--convnet-seed`, else the first who has taught it."""
    found: dict[Method, TeacherSpec] = {}
    known = sorted({one.seed for one in setup.ledger.entries.values() if one.name == "teacher-convnet"})
    for way in TAUGHT:
        seeds = [arguments.convnet_seed] if way in arguments.only else [*known, arguments.convnet_seed]
        runs = [RunTeacher(str(folder_of("convnet", arguments, setup, seed))) for seed in seeds]
        has = [one for one in runs if not unmeasured({way: with_teacher(student, one, way)}, setup)]
        found[way] = (has or runs)[0]
    return found


def provide(kind: str, pupils: dict[str, Recipe], arguments: argparse.Namespace, setup: Setup, seed: int = 0) -> None:
    """A teacher for those of its pupils that are asked for."""
    given, words = getattr(arguments, kind), getattr(arguments, f"{kind}_override")
    if given and words:
        raise SystemExit(f"--{kind}-override is for a teacher that is trained here, not for the run {given}.")
    if not given:
        recipe = recipe_of(TEACHERS[kind], words, arguments.val)
        own = {f"teacher-{kind}": recipe} if kind in arguments.only else {}
        teach(f"teacher-{kind}", recipe, pupils | own, setup, seed)
    elif not (given / "summary.json").exists() and (kind in arguments.only or unmeasured(pupils, setup)):
        raise SystemExit(f"--{kind} {given}: no finished run, for it has no summary.json.")


def studies(arguments: argparse.Namespace, setup: Setup) -> list[Study]:
    """The pieces that were asked for are measured; what there is of the others is shown."""
    pieces = arguments.only
    student = recipe_of(arguments.student, arguments.override, arguments.val)
    student = replace(student, duration=Epochs(arguments.passes))
    transformer = RunTeacher(str(folder_of("transformer", arguments, setup)))
    convnets = convnets_of(student, arguments, setup)
    asked = {way: with_teacher(student, one, way) for way, one in convnets.items() if way in pieces}
    provide("convnet", dict(asked), arguments, setup, arguments.convnet_seed)
    other = {"other": with_teacher(student, transformer, "token")} if "other" in pieces else {}
    provide("transformer", other, arguments, setup)
    students = replace(setup, only=tuple(one for one in STUDENTS if one in pieces))
    others = replace(setup, only=("transformer",) if "other" in pieces else ())
    matrix = replace(setup, only=("disagreement",) if "matrix" in pieces else ())
    return [
        ablation(student, convnets["token"], students, convnets),
        teachers(student, {"convnet": convnets["token"]}, {"transformer": transformer}, others),
        disagreements(student, convnets["token"], matrix),
    ]


def words_of(kind: str, arguments: argparse.Namespace) -> str:
    """A teacher in words: the run that was given, or its recipe and what that was told."""
    given = getattr(arguments, kind)
    return f"the run `{given}`" if given else f"`{' '.join([TEACHERS[kind], *getattr(arguments, f'{kind}_override')])}`"


def page(found: list[Study], arguments: argparse.Namespace, setup: Setup) -> str:
    trained_on = "45,000 training pictures" if arguments.val else "all 50,000 training pictures"
    words = " ".join([arguments.student, *arguments.override])
    head = (
        f"`python benchmarks/distill_table.py --data CIFAR`: students `{words}`, {arguments.passes} passes over {trained_on}, "
        f"seeds {arguments.seeds}; teachers {words_of('convnet', arguments)} and {words_of('transformer', arguments)}. "
        f"{chosen(setup)} The paper's figures are of ImageNet. A verdict is of the mean difference over seeds, by Student's t "
        "at 95 %; that the pictures are a sample too is not in it. Pieces that were not asked for yet (`--only`) are empty. "
        "What stands in the JSON file beside is not trained again; with another `--out` and `--runs` all is. "
        "Every run's losses are in `distill_table_logs`. `convnet.cifar10` got its length and optimizer after another had "
        "been measured on the test pictures (docs/notebook.md); no student was chosen so."
    )
    parts = ["# Distillation on CIFAR-10\n", f"{head}\n", *(one.markdown() for one in found)]
    return "\n".join([*parts, time_page(setup.ledger)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PIECES, default=list(PIECES), metavar="PIECE", help=", ".join(PIECES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--student", default="deit.tiny_cifar10")
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--val", action="store_true", help="on held-out training pictures")
    parser.add_argument("--convnet-seed", type=int, default=0, help="of the teacher of what is asked for; default: 0")
    parser.add_argument("--convnet", type=Path, metavar="RUN", help="a convolutional teacher that is trained already")
    parser.add_argument("--transformer", type=Path, metavar="RUN")
    parser.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="of the student's recipe")
    parser.add_argument("--convnet-override", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--transformer-override", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/distill_table"), help="run folders; what is there is resumed")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    for folder in (arguments.out, arguments.runs):
        folder.mkdir(parents=True, exist_ok=True)
    name = "distill_table_val" if arguments.val else "distill_table"
    with (arguments.runs / "progress.txt").open("a", encoding="utf-8") as progress:
        setup = Setup(
            seeds=tuple(int(seed) for seed in arguments.seeds.split(",")),
            out=arguments.runs,
            data=arguments.data,
            split="val" if arguments.val else "test",
            device=arguments.device,
            file=arguments.out / f"{name}.json",
            commit=arguments.commit,
            display=Lines(progress),
        )
        found = studies(arguments, setup)
    write_logs(setup.ledger, arguments.out / f"{name}_logs", KEPT)
    (arguments.out / f"{name}.md").write_text(page(found, arguments, setup))
    print(page(found, arguments, setup))


if __name__ == "__main__":
    started(main)
