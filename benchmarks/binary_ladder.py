"""BinaryViT's ladder on CIFAR-10: from a binary DeiT to BinaryViT and BinaryViT*, what each rung gains, and the paper's beside.

    python benchmarks/binary_ladder.py --data CIFAR [--only deit mean --seeds 0,1,2] [--passes 60] [--out docs/results]
    python benchmarks/binary_ladder.py --data CIFAR --teacher convnet.cifar10    # its probabilities are all that is learned

CIFAR is a folder of arrays (train_images.npy, test_images.npy, ...). The pieces, each of which can be asked for by itself:

    deit, mean, pool, affine, pyramid, star      the rungs, with every seed
    flat twin, pyramid twin                      `affine` and `pyramid` in full precision, with the first seed
    ReActNet-A, ReActNet-18                      convolutional networks of one bit, with the first seed

`--teacher` is a run folder, or a recipe that is trained first, once. Seeds train at the same time. All training pictures
are learned from, and the test pictures measure the finished models; with `--val`, nine in ten and those held out. Nothing that
has been measured is trained again, rows of earlier calls stay, and a training that was killed goes on from its checkpoint: so
the whole can be made in calls of any length, and after `--seconds` none begins a further piece.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import frugalvit
from frugalvit.assign import override
from frugalvit.beginning import opened
from frugalvit.recipes.find import functions
from frugalvit.report.environment import short_commit
from frugalvit.report.progress import Lines
from frugalvit.studies.account import time_page, write_logs
from frugalvit.studies.binary import ROWS, ladder
from frugalvit.studies.distillation import chosen
from frugalvit.studies.study import Study
from frugalvit.studies.teacher_runs import teach
from frugalvit.studies.trainings import Setup, unmeasured
from frugalvit.training.recipe import Recipe
from script import started

OTHERS = {  # beside the ladder: a recipe and what it is told
    "flat twin": ("binaryvit.cifar10", "rung=affine", "bits=none"),
    "pyramid twin": ("binaryvit.cifar10", "rung=pyramid", "bits=none"),
    "ReActNet-A": ("binaryvit.cifar10_reactnet", "model=reactnet_a_32"),
    "ReActNet-18": ("binaryvit.cifar10_reactnet", "model=react_resnet18_32"),
}
PIECES = (*ROWS, *OTHERS)
KEPT = ("step", "epoch", "loss", "lr", "gradient_norm", "nonfinite", "val_top1", "val_loss")
TWINS = (
    "Twins are the same models in full precision, trained in the same way but for rounding: on a GPU they train under bf16 "
    "autocast, where binary models compute all but products of signs in fp32."
)
KEPT += ("time_images_per_second", "time_waiting")


def recipe_of(words: tuple[str, ...], arguments: argparse.Namespace) -> Recipe:
    name, *told = words
    told += [f"passes={arguments.passes}", *([f"teacher={teacher_of(arguments)}"] if arguments.teacher else [])]
    told += arguments.reactnet_override if name.endswith("reactnet") else arguments.override
    made = frugalvit.recipe(name, *told)
    return made if arguments.val else override(made, "data.dataset.holdout=0.0")


def teacher_of(arguments: argparse.Namespace) -> str:
    """The folder of the run that teaches, which a name alone could not tell from a model's."""
    own = arguments.runs / name_of(arguments) / "teacher" / "seed-0"
    folder = own if arguments.teacher in functions() else Path(arguments.teacher)
    return str(folder) if "/" in str(folder) else f"./{folder}"


def provide(pupils: dict[str, Recipe], arguments: argparse.Namespace, setup: Setup) -> None:
    """The teacher, where it is a recipe and one of these learns from it."""
    if arguments.teacher in functions():
        recipe = frugalvit.recipe(arguments.teacher, *arguments.teacher_override)
        teach("teacher", recipe if arguments.val else override(recipe, "data.dataset.holdout=0.0"), pupils, setup)
    elif arguments.teacher_override:
        raise SystemExit(f"--teacher-override is for a recipe, which '{arguments.teacher}' is not.")


def study(arguments: argparse.Namespace, setup: Setup) -> Study:
    """The pieces that were asked for are measured, one after the other while there is time; what there is is shown."""
    began = time.perf_counter()
    rungs = {rung: recipe_of(("binaryvit.cifar10", f"rung={rung}"), arguments) for rung in ROWS}
    others = {name: recipe_of(words, arguments) for name, words in OTHERS.items()}
    once = replace(setup, seeds=setup.seeds[:1])
    missing = unmeasured({name: one for name, one in others.items() if name in arguments.only}, once)
    asked = {name: one for name, one in rungs.items() if name in arguments.only} | {name: others[name] for name in missing}
    provide(asked, arguments, setup)
    for piece in arguments.only:
        if time.perf_counter() - began > arguments.seconds:
            print(f"{piece} is left for another call", flush=True)
            continue
        ladder(rungs, others, replace(setup, only=(piece,)))
        write(arguments, ladder(rungs, others, replace(setup, only=())), setup)
        print(f"{piece}: done, {time.perf_counter() - began:.0f} s in this call", flush=True)
    return ladder(rungs, others, replace(setup, only=()))


def name_of(arguments: argparse.Namespace) -> str:
    return "binary_ladder" + ("_taught" if arguments.teacher else "") + ("_val" if arguments.val else "")


def page(found: Study, arguments: argparse.Namespace, setup: Setup) -> str:
    rung = recipe_of(("binaryvit.cifar10",), arguments)
    pictures = f"{len(opened(rung, arguments.data)['train']):,} training pictures"
    teacher = " ".join([arguments.teacher, *arguments.teacher_override])
    target = f"the probabilities of `{teacher}` as the only target" if arguments.teacher else "labels as the target"
    words = " ".join([*arguments.override, *arguments.reactnet_override]) or "none"
    head = (
        f"`python benchmarks/binary_ladder.py`: `binaryvit.cifar10`, {arguments.passes} passes over {pictures}, {target}; "
        f"overrides: {words}. {TWINS} {chosen(setup)} A verdict is of the mean difference over seeds, by "
        "Student's t at 95 %; that the pictures are a sample too is not in it."
    )
    parts = [
        "# BinaryViT's ladder on CIFAR-10\n",
        f"{head}\n",
        found.markdown(),
        time_page(setup.ledger),
    ]
    return "\n".join(parts)


def write(arguments: argparse.Namespace, found: Study, setup: Setup) -> None:
    write_logs(setup.ledger, arguments.out / f"{name_of(arguments)}_logs", KEPT)
    (arguments.out / f"{name_of(arguments)}.md").write_text(page(found, arguments, setup))


def seeds(text: str) -> tuple[int, ...]:
    return tuple(int(seed) for seed in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PIECES, default=list(PIECES), metavar="PIECE", help=", ".join(PIECES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teacher", default="", metavar="RUN|RECIPE", help="whose probabilities are learned; none: labels")
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--seeds", type=seeds, default="0,1,2")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further piece begins")
    parser.add_argument("--val", action="store_true", help="on held-out training pictures")
    parser.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="of rungs and twins; is shown")
    parser.add_argument("--reactnet-override", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--teacher-override", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/binary_ladder"), help="run folders; what is there is resumed")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    for folder in (arguments.out, arguments.runs):
        folder.mkdir(parents=True, exist_ok=True)
    with (arguments.runs / "progress.txt").open("a", encoding="utf-8") as progress:
        setup = Setup(
            seeds=arguments.seeds,
            out=arguments.runs / name_of(arguments),
            data=arguments.data,
            split="val" if arguments.val else "test",
            device=arguments.device,
            file=arguments.out / f"{name_of(arguments)}.json",
            commit=arguments.commit,
            display=Lines(progress),
        )
        found = study(arguments, setup)
    write(arguments, found, setup)
    print(page(found, arguments, setup))


if __name__ == "__main__":
    started(main)
