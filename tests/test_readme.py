"""What the README says is so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import frugalvit

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


def test_its_commands_exist() -> None:
    from tests.test_cli import run

    for line in "".join(blocks("console")).splitlines():
        words = line.removeprefix("$ ").split("#")[0].split()
        if words[0] == "frugalvit":
            assert run(words[1], "--help").returncode == 0
    assert run("show", "deit_tiny_distilled_patch16_224", "image=64x96", "classes=10").returncode == 0


def test_its_tables_are_the_measured_ones() -> None:
    table = README.split("<!-- train_throughput -->\n")[1].split("<!-- end -->")[0]
    assert table.strip() in (ROOT / "docs/results/train_throughput.md").read_text(encoding="utf-8")
    assert table.count("\n") > 3
    table = README.split("<!-- small_table -->\n")[1].split("<!-- end -->")[0]
    assert table.strip() in (ROOT / "docs/results/small_table.md").read_text(encoding="utf-8")
    assert table.count("\n") == 12  # all ten models
    table = README.split("<!-- headline -->\n")[1].split("<!-- end -->")[0]
    assert table.strip() in (ROOT / "docs/results/headline.md").read_text(encoding="utf-8")
    assert table.count("\n") >= 3
    page = (ROOT / "docs/results/packed_latency.md").read_text(encoding="utf-8").split("## AMD EPYC")[1].split("\n## ")[0]
    rows = README.split("<!-- packed_latency -->\n")[1].split("<!-- end -->")[0].splitlines()
    assert len(rows) > 3
    assert set(rows) <= set(page.splitlines())


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
