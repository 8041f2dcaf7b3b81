"""How `convnet.cifar10` was chosen: candidates on 45,000 training pictures, measured on the 5,000 held out, never on test.

    python benchmarks/search_teacher.py --data CIFAR --passes 40 [NAME ...] [--together 2] [--out docs/results]

A candidate is the recipe with some overrides (CANDIDATES, or `--candidate name=a=1,b=2`). `--together` of them train at the
same time; one alone shows how long it takes. Rows of earlier calls stay.
"""

from __future__ import annotations

from pathlib import Path

from candidates import Search, search_by_hand
from script import started

CANDIDATES = {
    "start": (),
    "muon": ("optimizer=muon",),
    "muon, lr 4e-3": ("optimizer=muon", "lr=4e-3"),
    "lr 0.2": ("lr=0.2",),
    "lr 0.8": ("lr=0.8",),
    "decay 1e-3": ("weight_decay=1e-3",),
    "batch 256": ("batch=256",),
    "batch 1024": ("batch=1024",),
    "crops and flips": ("augment=none",),
    "trivialaugment": ("augment=trivialaugment",),
    "randaugment": ("augment=randaugment",),
    "no cutout": ("cutout=0.0",),
    "mixed 0.5": ("mixed=0.5", "cutout=0.0"),
    "no smoothing": ("smoothing=0.0",),
    "no average": ("average=none",),
    "width 96": ("width=96",),
    "width 128": ("width=128",),
    "three wide stages": ("stages=3", "width=128"),
    "deep": ("depth=3",),
}


def main() -> None:
    search_by_hand(
        Search("convnet.cifar10", CANDIDATES, "convnet_search", passes=40, together=1, script=Path(__file__)), __doc__
    )


if __name__ == "__main__":
    started(main)
