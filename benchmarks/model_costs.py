"""What each published model costs, beside the numbers of the papers' own tables.

    python benchmarks/model_costs.py [--docs docs]

Counted from shapes; needs no GPU. Writes docs/results/model_costs.md and the tables in docs/papers. Parameter counts are
tested to the last digit against the papers' or timm's, MACs against the published columns (tests/measure, tests/zoo).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import frugalvit
from frugalvit.deploy.packed_size import packed_size
from frugalvit.zoo.change import with_lsa, with_spt
from script import started

PUBLISHED_GMACS = {
    "deit_tiny_patch16_224": 1.26,
    "deit_small_patch16_224": 4.61,
    "deit_base_patch16_224": 17.58,
    "deit_base_patch16_384": 55.54,
    "deit_tiny_distilled_patch16_224": 1.27,
    "deit_small_distilled_patch16_224": 4.63,
    "deit_base_distilled_patch16_224": 17.68,
    "deit_base_distilled_patch16_384": 55.65,
    "vit_tiny_patch16_224": 1.26,
    "vit_tiny_patch16_384": 4.70,
    "vit_small_patch32_224": 1.15,
    "vit_small_patch32_384": 3.45,
    "vit_small_patch16_224": 4.61,
    "vit_small_patch16_384": 15.52,
    "vit_base_patch32_224": 4.41,
    "vit_base_patch32_384": 13.06,
    "vit_base_patch16_224": 17.58,
    "vit_base_patch16_384": 55.54,
    "vit_base_patch8_224": 78.22,
    "vit_large_patch16_224": 61.60,
    "vit_large_patch16_384": 191.21,
}


# timm's columns; where timm lacks the size, the paper's table
CAIT = {
    "cait_xxs24_224": 2.53,
    "cait_xxs24_384": 9.63,
    "cait_xxs36_224": 3.77,
    "cait_xxs36_384": 14.35,
    "cait_xs24_224": 5.4,
    "cait_xs24_384": 19.28,
    "cait_xs36_224": 8.1,
    "cait_xs36_384": 28.8,
    "cait_s24_224": 9.35,
    "cait_s24_384": 32.17,
    "cait_s36_224": 13.9,
    "cait_s36_384": 47.99,
    "cait_s48_224": 18.6,
    "cait_s48_384": 63.8,
    "cait_m24_224": 36.0,
    "cait_m24_384": 116.1,
    "cait_m36_224": 53.7,
    "cait_m36_384": 173.11,
    "cait_m48_448": 329.41,
}
CONVIT = {
    "convit_tiny": 1.26,
    "convit_tiny_plus": 2.0,
    "convit_small": 5.76,
    "convit_small_plus": 10.0,
    "convit_base": 17.52,
    "convit_base_plus": 30.0,
}
PYRAMIDS = {
    "pit_ti_224": 0.71,
    "pit_xs_224": 1.40,
    "pit_s_224": 2.88,
    "pit_b_224": 12.42,
    "pit_ti_distilled_224": 0.71,
    "pit_xs_distilled_224": 1.41,
    "pit_s_distilled_224": 2.90,
    "pit_b_distilled_224": 12.5,
    "swin_tiny_patch4_window7_224": 4.51,
    "swin_small_patch4_window7_224": 8.77,
    "swin_base_patch4_window7_224": 15.47,
}
HYBRIDS = {
    "vit_tiny_r_s16_p8_224": 0.44,
    "vit_tiny_r_s16_p8_384": 1.34,
    "vit_small_r26_s32_224": 3.56,
    "vit_small_r26_s32_384": 10.43,
    "vit_large_r50_s32_224": 19.58,
    "vit_large_r50_s32_384": 57.43,
}
CONVNETS = {
    "resnet18": 1.82,
    "resnet34": 3.67,
    "resnet50": 4.11,
    "resnet56_cifar": None,
    "resnet110_cifar": None,
    "regnety_040": 4.00,
    "regnety_080": 8.00,
    "regnety_120": 12.14,
    "regnety_160": 15.96,
    "efficientnet_b0": 0.40,
}
# models of one bit, and the OPs of BinaryViT's and ReActNet's tables, in M
BINARY = {
    "binary_deit_small_patch16_224": None,
    "binary_deit_small_patch16_224_mean": None,
    "binary_deit_small_patch16_224_pool": None,
    "binary_deit_small_patch16_224_affine": None,
    "binaryvit_small_patch4_224": 79,
    "binaryvit_small_patch4_224_star": None,
    "binary_deit_tiny_patch4_32": None,
    "binary_deit_tiny_patch4_32_mean": None,
    "binary_deit_tiny_patch4_32_pool": None,
    "binary_deit_tiny_patch4_32_affine": None,
    "binaryvit_tiny_patch2_32": None,
    "binaryvit_tiny_patch2_32_star": None,
    "binaryvit_tiny_patch4_64": None,
    "binaryvit_tiny_patch4_96": None,
    "reactnet_a_224": 87,
    "reactnet_a_32": None,
    "bireal_resnet18": 163,
    "bireal_resnet34": None,
    "react_resnet18": 163,
    "react_resnet34": 193,
    "react_resnet18_32": None,
}
# Lee et al.'s models with and without SPT + LSA: the counts of their code, in M multiply-accumulates
SMALL = {
    "small_vit_32": (187.7, 190.1),
    "small_vit_64": (189.5, 199.0),
    "small_cait_32": (595.7, 598.1),
    "small_cait_64": (597.5, 606.9),
    "small_pit_32": (274.4, 317.9),
    "small_pit_64": (275.3, 322.4),
    "small_swin_32": (240.9, 279.9),
    "small_swin_64": (241.9, 284.4),
    "small_t2t_32": (457.2, 462.5),
    "small_t2t_64": (636.3, 657.6),
}


def table(published: dict[str, float | None]) -> list[str]:
    lines = ["| model | parameters | GMACs | published | activations, MiB |", "|---|---:|---:|---:|---:|"]
    for name, theirs in published.items():
        cost = frugalvit.cost(frugalvit.model(name))
        known = f"{theirs:g}" if theirs else ""
        lines.append(f"| {name} | {cost.parameters:,} | {cost.macs / 1e9:.2f} | {known} | {cost.activations / 2**20:.1f} |")
    return lines


def binary_table() -> list[str]:
    """OPs = BOPs / 64 + FLOPs (`measure/bits.py`), and the bytes of the packed file where there is one."""
    lines = ["| model | parameters | of 1 bit | BOPs, M | FLOPs, M | OPs, M | published | packed, MB |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, theirs in BINARY.items():
        model = frugalvit.model(name)
        cost, packed = frugalvit.cost(model), packed_size(model)
        counts = [f"{count / 1e6:.1f}" for count in (cost.bops, cost.flops, cost.ops)]
        cells = [f"{cost.parameters:,}", f"{cost.bits:,}", *counts, f"{theirs or ''}", f"{packed / 1e6:.2f}" if packed else ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def small_table() -> list[str]:
    lines = ["| model | parameters | M MACs (their code) | with SPT + LSA | M MACs (their code) |", "|---|---:|---:|---:|---:|"]
    for name, theirs in SMALL.items():
        model = frugalvit.model(name)
        base, local = frugalvit.cost(model), frugalvit.cost(with_lsa(with_spt(model)))
        cells = [
            f"{one.parameters:,} | {one.macs / 1e6:.1f} ({known})" for one, known in zip((base, local), theirs, strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def filled(page: Path, lines: list[str]) -> None:
    """Put a table between the markers of a page."""
    before, rest = page.read_text(encoding="utf-8").split("<!-- models -->\n")
    after = rest.split("<!-- end -->", 1)[1]
    page.write_text(before + "<!-- models -->\n" + "\n".join(lines) + "\n<!-- end -->" + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    docs = parser.parse_args().docs
    groups = {"ViT and DeiT": dict(PUBLISHED_GMACS), "CaiT": CAIT, "ConViT": CONVIT, "PiT and Swin": PYRAMIDS}
    groups |= {"AugReg's hybrids": HYBRIDS, "Convolutional networks": CONVNETS}
    tables = {title: table(names) for title, names in groups.items()}
    small, binary = small_table(), binary_table()
    lines = [
        "# What the models cost",
        "",
        f"`python benchmarks/model_costs.py`, version {frugalvit.__version__}: counted from shapes, no device, no seeds. "
        "GMACs are of convolutions, linear maps and attention products for one picture; activations are the bytes kept for the "
        "backward pass of one picture in fp32, fused attention taken. Published: timm's column, else the paper's; it counts "
        "norms too, which shows in the hybrids.",
        "",
    ]
    for title, rows in tables.items():
        lines += [f"## {title}", "", *rows, ""]
    lines += ["## Lee et al.'s scaled-down models", "", *small, ""]
    lines += [
        "## Models of one bit",
        "",
        "OPs = BOPs / 64 + FLOPs, as BinaryViT's tables count. Packed: the file of those that pack.",
        "",
        *binary,
        "",
    ]
    (docs / "results").mkdir(parents=True, exist_ok=True)
    (docs / "results" / "model_costs.md").write_text("\n".join(lines))
    for page, rows in {"cait": tables["CaiT"], "convit": tables["ConViT"], "augreg": tables["AugReg's hybrids"]}.items():
        filled(docs / "papers" / f"{page}.md", rows)
    filled(docs / "papers" / "spt_lsa.md", [*small, "", *tables["PiT and Swin"]])
    filled(docs / "papers" / "binaryvit.md", binary)
    print("\n".join(lines))


if __name__ == "__main__":
    started(main)
