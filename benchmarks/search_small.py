"""How `small.best_cifar10` was chosen: candidates on 45,000 training pictures, measured on the 5,000 held out, never on test.

    python benchmarks/search_small.py --data CIFAR --passes 60 [NAME ...] [--together 4] [--out docs/results]

A candidate is the recipe with some overrides (CANDIDATES, or `--candidate name=a=1,b=2`). `--together` of them train at the
same time, each in a process of its own. Rows of earlier calls stay.
"""

from __future__ import annotations

from pathlib import Path

from candidates import Search, search_by_hand
from script import started

FIRST = ("batch=256", "lr=2e-3", "weight_decay=0.05")  # what the search began with
FLAT = (*FIRST, "early=0", "depth=9", "late=0", "dim=256", "heads=8")
PYRAMID = (*FIRST, "early=2", "depth=6", "late=4", "dim=192", "heads=4", "mlp_ratio=2.0")
SHORT = (*FIRST, "early=3", "depth=6", "late=2", "dim=224", "heads=4")
CANDIDATES = {
    "flat": FLAT,
    "flat, adamw": (*FLAT, "optimizer=adamw", "lr=1e-3"),
    "flat, no SPT, no LSA": (*FLAT, "add=none"),
    "flat, GPSA in 6": (*FIRST, "early=0", "depth=9", "late=0", "local=6", "heads=9", "dim=252"),
    "flat, wide": (*FIRST, "early=0", "depth=6", "late=0", "dim=384", "heads=12"),
    "flat, deep": (*FIRST, "early=0", "depth=16", "late=0", "dim=192", "heads=6"),
    "early 3, GPSA in 3": (*FIRST, "early=3", "depth=7", "late=0", "local=3", "heads=8", "dim=256"),
    "pyramid 2-6-4": PYRAMID,
    "pyramid 2-6-4, batch 512": (*PYRAMID, "batch=512", "lr=3e-3"),
    "pyramid 2-6-4, trivialaugment": (*PYRAMID, "augment=trivialaugment"),
    "pyramid 2-6-4, mixed 0.8": (*PYRAMID, "mixed=0.8"),
    "pyramid 2-6-4, adamw": (*PYRAMID, "optimizer=adamw", "lr=1e-3"),
    "pyramid 2-8-2": (*FIRST, "early=2", "depth=8", "late=2", "dim=224", "heads=4", "mlp_ratio=2.0"),
    "pyramid 4-8-2": (*FIRST, "early=4", "depth=8", "late=2", "dim=192", "heads=4", "mlp_ratio=2.0"),
    "pyramid 4-8-2 of 224": (*FIRST, "early=4", "depth=8", "late=2", "dim=224", "heads=4", "mlp_ratio=2.0"),
    "pyramid 3-6-2": SHORT,
    "pyramid 3-6-2, batch 512": (*SHORT, "batch=512", "lr=3e-3"),
    "pyramid 3-6-2, batch 512, mixed 0.8": (*SHORT, "batch=512", "lr=3e-3", "mixed=0.8"),
    "pyramid 3-6-2, batch 512, trivialaugment, mixed 0.8": (
        *(*SHORT, "batch=512", "lr=3e-3"),
        *("augment=trivialaugment", "mixed=0.8"),
    ),
    "pyramid 3-6-2, batch 512, lr 5e-3": (*SHORT, "batch=512", "lr=5e-3"),
    "pyramid 3-6-2, batch 512, decay 0.1": (*SHORT, "batch=512", "lr=3e-3", "weight_decay=0.1"),
    "pyramid 3-6-2, batch 512, mixed 0.8, decay 0.1": (*SHORT, "batch=512", "lr=3e-3", "mixed=0.8", "weight_decay=0.1"),
    "pyramid 3-6-2, drop 0.2": (*SHORT, "drop_path=0.2"),
    "pyramid 3-6-2, LSA alone": (*SHORT, "add=lsa"),
    "pyramid 3-6-2 of 256, LSA alone": (
        *FIRST,
        "early=3",
        "depth=6",
        "late=2",
        "dim=256",
        "heads=4",
        "mlp_ratio=2.0",
        "add=lsa",
    ),
}


def main() -> None:
    search_by_hand(
        Search("small.best_cifar10", CANDIDATES, "best_cifar10_search", passes=60, together=4, script=Path(__file__)), __doc__
    )


if __name__ == "__main__":
    started(main)
