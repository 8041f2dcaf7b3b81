"""The table of README: one line of each page in docs/results, taken from the rows that the other scripts kept.

python benchmarks/summary.py            # prints it
python benchmarks/summary.py --write    # puts it into README.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frugalvit.errors import DataError
from frugalvit.report.files import read_json, write_whole
from frugalvit.report.statistics import summarize
from frugalvit.report.table import as_markdown
from script import started
from small_table import PAPER

ROOT = Path(__file__).parents[1]
BEGINS, ENDS = "<!-- summary -->\n", "<!-- end -->"

Row = dict[str, Any]


class Results:
    """What is kept in a folder like docs/results."""

    def __init__(self, folder: Path):
        self.folder = folder

    def rows(self, page: str, wanted: Row, kind: str = "rows") -> list[Row]:
        """The rows that have these values."""
        path = self.folder / f"{page}.json"
        found = [row for row in read_json(path)[kind] if wanted.items() <= row.items()]
        if not found:
            raise DataError(f"no row has {wanted}. Run benchmarks/{page}.py.", path=str(path))
        return found

    def only(self, page: str, wanted: Row, kind: str = "rows") -> Row:
        (row,) = self.rows(page, wanted, kind)
        return row

    def seeds(self, page: str, training: str, result: str) -> str:
        """Mean ± sd (n) of a study's trainings."""
        return summarize([row["results"][result] for row in self.rows(page, {"name": training}, "entries")]).text(2)


def link(name: str) -> str:
    return f"[{name}](docs/results/{name}.md)"


def lines(kept: Results) -> Iterator[Row]:
    for same in headlines(kept.rows("headline", {"split": "test"})):
        yield headline(same)
    for item, name in (("vit:none", "ViT"), ("vit:spt+lsa", "ViT with SPT and LSA")):
        row = kept.only("small_table", {"item": item, "passes": 300})
        yield {
            "what": f"Lee et al.'s small {name} by their protocol, CIFAR-10, best epoch",
            "FrugalViT": summarize(row["best"]).text(2),
            "beside it": f"{PAPER[item]:.2f} in the paper",
            "details": link("small_table"),
        }
    alone = kept.seeds("distill_table", "none", "test_top1")
    yield {
        "what": "a small DeiT, 100 passes over CIFAR-10, taught by a convnet through its token, both heads",
        "FrugalViT": kept.seeds("distill_table", "token", "test_top1"),
        "beside it": f"{alone} without a teacher",
        "details": link("distill_table"),
    }
    row, peer = kept.only("peer_loops", {"model": "vit:none"}), "torchvision, compiled"
    ours, theirs = (row["loops"][name]["images_per_second"] for name in ("frugalvit", peer))
    ratio = row["ratios"][peer]["ratio"]
    yield speed(
        "training a small ViT at 32 pixels, batch 128", ours, theirs, ratio, "a compiled torchvision loop", "peer_loops"
    )
    for model, what in (("deit_tiny", "DeiT-Ti"), ("deit_small", "DeiT-S"), ("deit_base", "DeiT-B")):
        row = kept.only("train_throughput", {"model": f"{model}_patch16_224", "way": "stream"})
        what = f"training {what} at 224 pixels, batch {row['batch']}"
        yield speed(what, row["frugalvit"], row["timm"], row["ratio"], "timm", "train_throughput")
    row = kept.only("distill_throughput", {"teacher": "resnet50", "way": "stream"})
    what = f"distilling a DeiT-S from a live ResNet-50, batch {row['batch']}"
    yield speed(what, row["frugalvit"], row["timm"], row["ratio"], "timm", "distill_throughput")
    machine = kept.only("packed_latency", {"cpu": "AMD EPYC", "kernels": "avx512"}, "machines")
    (file,) = (one for one in machine["files"] if one["model"] == "BinaryViT-S")
    for peer, name in (("DeiT-S, ONNX Runtime fp32", "ONNX Runtime"), ("DeiT-S, OpenVINO int8", "OpenVINO in int8")):
        wanted = {"threads": 2, "batch": 1, "model": "BinaryViT-S", "in": "picture", "peer": peer}
        (row,) = (one for one in machine["requirements"] if wanted.items() <= one.items())
        yield {
            "what": f"a picture by BinaryViT-S, a file of {file['single_bytes'] / 1e6:.1f} MB, on two cores of an AMD EPYC",
            "FrugalViT": f"{row['ms']:.2f} ms",
            "beside it": f"{row['peer_ms']:.1f} ms, DeiT-S in {name}: × {row['ratio']:.1f}",
            "details": link("packed_latency"),
        }


def headlines(rows: list[Row]) -> list[list[Row]]:
    """The seeds of each training that was measured with several, those without a teacher first; none that took too long."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["way"] != "none"):
        alike.setdefault(tuple(row[name] for name in ("student", "passes", "way", "teacher", "teacher_passes")), []).append(row)
    return [same for same in alike.values() if len(same) > 1 and all(row["within"] for row in same)]


def headline(same: list[Row]) -> Row:
    """A transformer in one process, over its seeds."""
    alone = same[0]["way"] == "none"
    said = "without a teacher" if alone else f"and its teacher, of {sum(row['teacher_top1'] for row in same) / len(same):.1f}"
    name, size = same[0]["student"].split()[0], same[0]["parameters"] / 1e6
    return {
        "what": f"`{name}`, a transformer of {size:.1f} M parameters from scratch, {said}",
        "FrugalViT": summarize([row["results"]["test_top1"] for row in same]).text(2),
        "beside it": f"in {max(row['total'] for row in same):.0f} seconds of one process, compiling included",
        "details": link("headline"),
    }


def speed(what: str, ours: float, theirs: float, ratio: float, peer: str, name: str) -> Row:
    """Images/s of both; the ratio is the median of rounds."""
    return {
        "what": what,
        "FrugalViT": f"{ours:,.0f} images/s",
        "beside it": f"{theirs:,.0f}, {peer}: × {ratio:.2f}",
        "details": link(name),
    }


def table(folder: Path) -> str:
    return as_markdown(list(lines(Results(folder))))


def placed(text: str, made: str) -> str:
    """The table between its marks."""
    before, mark, rest = text.partition(BEGINS)
    _, end, behind = rest.partition(ENDS)
    if not mark or not end:
        raise DataError(f"has no {BEGINS.strip()} with {ENDS} behind it.", path="README.md")
    return f"{before}{mark}{made}{end}{behind}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--write", action="store_true", help="into README.md")
    arguments = parser.parse_args()
    made = table(arguments.results)
    print(made)
    if arguments.write:
        write_whole(arguments.readme, placed(arguments.readme.read_text("utf-8"), made).encode())


if __name__ == "__main__":
    started(main)
