"""What the README and docs/measured.md say is so."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

import frugalvit
import summary
from frugalvit.cli import app
from frugalvit.cli.demo import FIVE
from frugalvit.cli.show import is_recipe
from frugalvit.errors import DataError
from frugalvit.recipes.find import recipe
from frugalvit.weights.published import published

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURED = (ROOT / "docs/measured.md").read_text(encoding="utf-8")
COSTS = (ROOT / "docs/results/model_costs.md").read_text(encoding="utf-8")


PAPERS = ("vit", "deit", "cait", "convit", "spt_lsa", "augreg")


def blocks(language: str) -> list[str]:
    return [part.split("```")[0] for part in README.split(f"```{language}\n")[1:]]


def test_its_python_runs_and_gives_the_shapes_it_names() -> None:
    for code in blocks("python"):
        names: dict = {}
        exec(code, names)
        if "outputs" in names:
            assert {name: tuple(one.shape) for name, one in names["outputs"].items()} == {"class": (2, 10), "distill": (2, 10)}
            assert names["logits"].shape == (2, 10)


def refuse_wrong(words: list[str]) -> None:
    """Raise for a command that could not be run: its verb, its options and arguments, and what it names of ours."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        verb, *words = words
        command = command.commands[verb]
    found = command.make_context(verb, words).params  # read, and not run
    settings = found.get("overrides") or []
    if verb == "distill":
        recipe(found["student"], *settings)
        for name in found["teacher"]:
            recipe(name)
    elif verb in ("train", "show", "bench", "import"):
        (recipe if is_recipe(found["name"]) or verb == "train" else frugalvit.model)(found["name"], *settings)
    if verb == "train" and found["init"]:
        published(found["init"])


COMMANDS = [line.removeprefix("$ frugalvit ") for block in blocks("console") for line in block.splitlines() if "$ fr" in line]


@pytest.mark.parametrize("text", COMMANDS)
def test_its_commands_can_be_run(text: str) -> None:
    refuse_wrong(shlex.split(text, comments=True))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("trian small.cifar10 --out runs/sl", "trian"),
        ("data chek PICTURES", "chek"),
        ("train small.cifar10 --sedes 0,1 --out runs/sl", "--sedes"),
        ("train small.cifar10 model=vit --seeds", "--seeds"),
        ("train --out runs/sl", "(?i)missing"),
        ("advise --data PICTURES --hours two", "valid"),
        ("pack runs/binary runs/more", "runs/more"),
        ("train small.cifar11 --out runs/sl", "small.cifar11"),
        ("train small.cifar10 modle=vit --out runs/sl", "modle"),
        ("show small.cifar10 modle=vit", "modle"),
        ("train transfer.folder --init deit_tiny --out runs/mine", "deit_tiny"),
        ("import deit_tiny_patch16_224 imagee=384 --out models/tiny", "imagee"),
        ("bench deit_small_patch16_225", "deit_small_patch16_225"),
        ("distill --teacher digits.resnett --student vit.digits --out runs/taught", "digits.resnett"),
    ],
)
def test_a_command_that_cannot_be_run_is_noticed(text: str, problem: str) -> None:
    with pytest.raises(Exception, match=problem):  # an error of click or of ours; of a dictionary, for a verb
        refuse_wrong(shlex.split(text))


def test_a_model_is_shown_at_a_size_of_one_s_own() -> None:
    from tests.test_cli import run

    assert run("show", "deit_tiny_distilled_patch16_224", "image=64x96", "classes=10").returncode == 0


def measured(name: str) -> str:
    return (ROOT / f"docs/results/{name}.md").read_text(encoding="utf-8")


def epyc() -> str:
    """What was measured on an AMD EPYC with AVX-512; one without it has a heading of its own."""
    return measured("packed_latency").split("## AMD EPYC, avx512\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    "name",
    [
        "headline",
        "small_table",
        "distill_table",
        "train_throughput",
        "distill_throughput",
        "peer_loops",
        "packed_latency",
        "binary_ladder",
    ],
)
def test_the_rows_of_the_page_of_measurements_are_measured_ones(name: str) -> None:
    page = epyc() if name == "packed_latency" else measured(name)
    rows = MEASURED.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0].splitlines()
    assert len(rows) >= 3
    assert set(rows) <= set(page.splitlines())


def test_what_the_page_s_sentences_say_of_rows_that_it_leaves_out_is_so() -> None:
    said = MEASURED.replace("\n", " ")
    ones = [row for row in measured("small_table").splitlines() if row.count("n = 1)") == 2 and ", changed" not in row]
    cells = [row.split(" | ") for row in ones]
    behind = [float(paper) - float(best.split()[0]) for _, passes, _, best, paper, *_ in cells if passes == "100"]
    assert len(behind) == 8
    assert f"{min(behind) + 1e-9:.1f} to {max(behind):.1f} points lower" in said
    rows = [row.split(" | ") for row in measured("train_throughput").splitlines() if "| plain |" in row and " to " in row]
    plain = [float(ratio.split()[0]) for *_, ratio in rows]
    assert f"the ratios are {min(plain):.2f} to {max(plain):.2f}" in said
    rungs = [row.split(" | ")[:2] for row in measured("binary_ladder").splitlines() if "(n = 1)" in row]
    twins = {name: top1.split()[0] for name, top1 in rungs}
    assert f"full precision reaches {twins['| flat twin']}, that of the pyramid {twins['| pyramid twin']}" in said
    intel = measured("packed_latency").split("## Intel(R) Xeon(R) Processor @ 2.80GHz, avx512\n")[1].splitlines()
    row = next(row for row in intel if row.startswith("| BinaryViT-S | picture | 2 | 1 |"))
    assert f"On an Intel Xeon of 2.8 GHz it takes {float(row.split(' | ')[4]):.1f} ms" in said
    narrow = epyc().split("2 threads, batch 1:")[1].split("| BinaryViT-S, avx2, picture | ")[1].split(" | ")[0]
    assert "AMD EPYC with AVX-512" in said and f"By the AVX2 kernels it takes {float(narrow):.1f} ms there" in said


def test_its_table_is_the_one_that_is_made_of_the_results() -> None:
    assert summary.placed(README, summary.table(ROOT / "docs/results")) == README


def test_it_tells_where_the_package_falls_short() -> None:
    said = README.replace("\n", " ")
    short = MEASURED.replace("\n", " ").split(" points lower than theirs")[0].rsplit(" end ", 1)[1]
    assert f"end {short} points below theirs" in said
    pyramid = next(row.split(" | ") for row in measured("binary_ladder").splitlines() if "pyramid: BinaryViT |" in row)
    assert f"loses {-float(pyramid[2].split()[0]):.1f} points on CIFAR-10 where the paper gains {float(pyramid[4]):.1f}" in said
    rows = [row.split(" | ") for row in measured("train_throughput").splitlines() if row.startswith("| deit") and " to " in row]
    plain = [float(ratio.split()[0]) for _, way, *_, ratio in rows if way == "plain"]
    assert f"{min(plain):.2f} to {max(plain):.2f} times as fast" in said and len(plain) == 3


def test_a_single_seed_and_seeds_of_which_one_took_too_long_stand_in_no_table() -> None:
    row = {"student": "s", "passes": 1, "teacher": "t", "teacher_passes": 2, "within": True}
    rows = [row | {"way": way, "seed": seed} for way in ("hard", "none") for seed in (0, 1)]
    assert [[one["way"] for one in same] for same in summary.headlines(rows)] == [["none"] * 2, ["hard"] * 2]
    assert [[one["way"] for one in same] for same in summary.headlines(rows[:3])] == [["hard"] * 2]
    rows[1]["within"] = False
    assert [[one["way"] for one in same] for same in summary.headlines(rows)] == [["none"] * 2]


def test_a_readme_without_its_marks_and_results_without_a_row_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no <!-- summary -->"):
        summary.placed("# FrugalViT", "")
    (tmp_path / "headline.json").write_text('{"rows": []}')
    with pytest.raises(DataError, match=r"no row has .*'test'.*Run benchmarks/headline\.py"):
        summary.table(tmp_path)


def test_what_the_demo_says_of_five_seeds_is_so() -> None:
    rows = {row.split(" | ")[0]: row.split(" | ")[-1] for row in measured("distilled_digits").splitlines()}
    for who, words in (("| ViT alone: `few_digits.vit`", "alone reaches"), ("| ViT distilled, read from both", "distilled")):
        assert f"{words} {rows[who].removesuffix(' (n = 5) |')}" in FIVE


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", *(f"docs/papers/{name}.md" for name in PAPERS)])
def test_links_and_files_that_are_named_exist(page: str) -> None:
    import re

    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert target.startswith("http") or (folder / target).exists(), target


QUICK = ("deit_tiny_patch16_224", "cait_xxs24_224", "convit_small", "pit_s_224", "vit_small_r26_s32_224", "resnet50")


@pytest.mark.parametrize("name", QUICK)
def test_the_costs_in_the_docs_are_the_counted_ones(name: str) -> None:
    cost = frugalvit.cost(frugalvit.model(name))
    assert f"| {name} | {cost.parameters:,} | {cost.macs / 1e9:.2f} |" in COSTS


@pytest.mark.slow
def test_all_costs_in_the_docs_are_the_counted_ones(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    subprocess.run([sys.executable, "benchmarks/model_costs.py", "--docs", str(tmp_path / "docs")], check=True, cwd=ROOT)
    for page in ("results/model_costs.md", "papers/cait.md", "papers/convit.md", "papers/augreg.md", "papers/spt_lsa.md"):
        assert (tmp_path / "docs" / page).read_text(encoding="utf-8") == (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_every_named_size_has_its_costs_in_the_docs() -> None:
    assert not [name for name in frugalvit.models() if f"| {name} |" not in COSTS]
