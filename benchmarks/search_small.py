"""How `small.best_cifar10` was chosen: candidates on 45,000 training pictures, measured on the 5,000 held out, never on test.

    python benchmarks/search_small.py --data CIFAR --passes 60 [NAME ...] [--together 4] [--out docs/results]

A candidate is the recipe with some overrides (CANDIDATES, or `--candidate name=a=1,b=2`). `--together` of them train at the
same time, each in a process of its own. Rows of earlier calls stay.
"""

from __future__ import annotations

from pathlib import Path

from candidates import Search, search_by_hand

PYRAMID = ("early=2", "depth=6", "late=4", "dim=192", "heads=4", "mlp_ratio=2.0")
CANDIDATES = {
    "start": (),
    "adamw": ("optimizer=adamw", "lr=1e-3"),
    "lr 1e-3": ("lr=1e-3",),
    "lr 4e-3": ("lr=4e-3",),
    "batch 128": ("batch=128",),
    "batch 512": ("batch=512", "lr=3e-3"),
    "trivialaugment": ("augment=trivialaugment",),
    "randaugment": ("augment=randaugment",),
    "mixed 0.8": ("mixed=0.8",),
    "mixed 0.2": ("mixed=0.2",),
    "no SPT, no LSA": ("add=none",),
    "SPT alone": ("add=spt",),
    "GPSA in 6": ("local=6", "heads=9", "dim=252"),
    "wide": ("dim=384", "heads=12", "depth=6"),
    "deep": ("dim=192", "heads=6", "depth=16"),
    "early 3": ("early=3", "depth=7"),
    "early 3, GPSA in 3": ("early=3", "depth=7", "local=3", "heads=8", "dim=256"),
    "early 4, SPT alone": ("early=4", "depth=6", "add=spt"),
    "pyramid 2-6-4": PYRAMID,
    "pyramid 3-6-2": ("early=3", "depth=6", "late=2", "dim=224", "heads=4"),
    "pyramid 2-8-2": ("early=2", "depth=8", "late=2", "dim=224", "heads=4", "mlp_ratio=2.0"),
    "pyramid 4-8-2": ("early=4", "depth=8", "late=2", "dim=192", "heads=4", "mlp_ratio=2.0"),
    "pyramid 4-8-2 of 224": ("early=4", "depth=8", "late=2", "dim=224", "heads=4", "mlp_ratio=2.0"),
    "pyramid 2-6-4, batch 512": (*PYRAMID, "batch=512", "lr=3e-3"),
    "pyramid 2-6-4, batch 512, lr 6e-3": (*PYRAMID, "batch=512", "lr=6e-3"),
    "pyramid 2-6-4, trivialaugment": (*PYRAMID, "augment=trivialaugment"),
    "pyramid 2-6-4, mixed 0.8": (*PYRAMID, "mixed=0.8"),
    "pyramid 2-6-4, adamw": (*PYRAMID, "optimizer=adamw", "lr=1e-3"),
    "drop 0": ("drop_path=0.0",),
    "drop 0.2": ("drop_path=0.2",),
}


def main() -> None:
    search_by_hand(
        Search("small.best_cifar10", CANDIDATES, "best_cifar10_search", passes=60, together=4, script=Path(__file__)), __doc__
    )


if __name__ == "__main__":
    main()
