"""What each published model costs, beside the numbers of the papers' own tables.

    python benchmarks/model_costs.py [--out docs/results]

Counted from shapes; needs no GPU. The published MACs are timm's column, the published parameters those of the DeiT
paper's models; our counts must equal the latter and lie within 1 % of the former (tests/measure, tests/zoo).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import frugalvit

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    out = parser.parse_args().out
    lines = [
        "# What the models cost",
        "",
        f"`python benchmarks/model_costs.py`, version {frugalvit.__version__}: counted from shapes, so no device, "
        "no seeds, n = 1. "
        "GMACs are of convolutions, linear maps and attention products for one picture; activations are the bytes kept for the "
        "backward pass of one picture in fp32, fused attention taken.",
        "",
        "| model | parameters | GMACs | timm's GMACs | activations, MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, theirs in PUBLISHED_GMACS.items():
        cost = frugalvit.cost(frugalvit.model(name))
        lines.append(
            f"| {name} | {cost.parameters:,} | {cost.macs / 1e9:.2f} | {theirs:.2f} | {cost.activations / 2**20:.1f} |"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "model_costs.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
