"""The demo's one-bit model, packed: its file and its speed beside those of the model in full precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from frugalvit.cli.console import console

if TYPE_CHECKING:
    from frugalvit.data.source import Source
    from frugalvit.run import Run


@dataclass(frozen=True)
class Beside:
    """A model in full precision and its packed twin of one bit."""

    file: str
    kernels: str  # who ran it: an instruction set, or simulated
    bytes_full: int
    bytes_packed: int
    seconds_full: float  # a picture, one at a time, on one thread
    seconds_packed: float
    top1_full: float  # in percent
    top1_packed: float
    agreement: float  # of the packed file with the twin as it was trained: the share of equal answers


def packed_twin(full: Run, binary: Run, held_out: Source) -> Beside:
    """Pack the binary run, and compare it with the full one, which PyTorch runs as it is."""
    import numpy as np
    import torch

    from frugalvit.cli.answering import told
    from frugalvit.deploy.native import load_packed
    from frugalvit.deploy.packed_file import ENDING
    from frugalvit.deploy.verify import answers, pack
    from frugalvit.measure.turns import in_turns

    assert full.classifier is not None and binary.classifier is not None
    preprocess, classifier = full.classifier.preprocess, full.classifier.cpu().eval()
    size = preprocess.height, preprocess.width, len(preprocess.mean)
    image_NHWC = np.stack([np.array(preprocess.framed(held_out.picture(i))).reshape(size) for i in range(len(held_out))])
    file = binary.path / f"model{ENDING}"
    with told():
        written = pack(binary.classifier, file, image_BHWC=image_NHWC, name="digits")
        packed = load_packed(file, threads=1)
    one_1HWC = image_NHWC[:1]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ways = {"full": lambda: answers(classifier, one_1HWC), "packed": lambda: packed.logits(one_1HWC)}
        *_, (_, times) = in_turns(ways, rounds=3)
    finally:
        torch.set_num_threads(threads)
    guessed = answers(classifier, image_NHWC, batch=500).argmax(1), packed.logits(image_NHWC).argmax(1)
    top1_full, top1_packed = (100 * float((guess_N == held_out.labels).mean()) for guess_N in guessed)
    return Beside(
        str(file),
        packed.kernels,
        (full.path / "model.safetensors").stat().st_size,
        written.bytes,
        times["full"].seconds,
        times["packed"].seconds,
        top1_full,
        top1_packed,
        written.agreement,
    )


def tell_packed(found: Beside) -> None:
    from rich.table import Table

    table = Table(title="The distilled ViT and its one-bit twin, one picture at a time on one thread", title_justify="left")
    table.add_column("model")
    for heading in ("file", "a picture", "accuracy"):
        table.add_column(heading, justify="right")
    rows = (
        ("float32, PyTorch", found.bytes_full, found.seconds_full, found.top1_full),
        (f"one bit, packed ({found.kernels})", found.bytes_packed, found.seconds_packed, found.top1_packed),
    )
    for name, size, seconds, top1 in rows:
        table.add_row(name, f"{size / 1000:,.0f} kB", f"{1e6 * seconds:,.0f} µs", f"{top1:.1f} %")
    console.print(table)
    smaller, faster = found.bytes_full / found.bytes_packed, found.seconds_full / found.seconds_packed
    points = found.top1_packed - found.top1_full
    change = f"{-points:.1f} points less accurate" if points < 0 else f"{points:.1f} points more accurate"
    console.print(
        f"{smaller:.1f} times smaller and {faster:.1f} times as fast as PyTorch with one picture at a time, {change}. "
        f"The packed file answers as the model it was made of on {found.agreement:.1%} of the digits.",
        markup=False,
    )
