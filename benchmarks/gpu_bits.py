"""Would products of packed signs be faster on a GPU than the tensor cores' products of the same signs? One kernel beside them.

    python benchmarks/gpu_bits.py [--batch 1 32 256] [--rounds 5] [--out docs/results]

Shapes are those of linear maps of a binary DeiT-S and of BinaryViT's stages at 224 pixels: tokens x inputs to outputs. `bits`
takes both sides packed, 32 signs a word, and counts the bits in which they differ (XOR and popcount, in Triton); bf16, int8 and
fp8 are the library's products of the same signs as numbers. Packing is left out, in favor of `bits`. Every way is compared with
the definition before it is timed, in CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frugalvit.measure.captured import captured
from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.report.files import write_json
from frugalvit.training.devices import place_for
from script import started

MAPS = {  # tokens of a picture, inputs, outputs
    "DeiT-S, one of q, k and v": (197, 384, 384),
    "DeiT-S, MLP up": (197, 384, 1536),
    "DeiT-S, MLP down": (197, 1536, 384),
    "BinaryViT stage 1, MLP up": (3136, 64, 512),
    "BinaryViT stage 2, MLP up": (784, 128, 1024),
    "BinaryViT stage 3, MLP up": (196, 256, 1024),
    "BinaryViT stage 4, MLP up": (49, 512, 2048),
}
CALLS = 20  # in a graph

Way = Callable[[], Tensor]


def packed(sign_RI: Tensor) -> Tensor:
    """Words of 32 signs, a set bit for +1; words come first, so that neighboring rows are neighbors in memory: WR."""
    bit_RWB = (sign_RI > 0).unflatten(1, (-1, 32)).long()
    word_RW = (bit_RWB << torch.arange(32, device=sign_RI.device)).sum(2)
    return torch.where(word_RW >= 1 << 31, word_RW - (1 << 32), word_RW).int().t().contiguous()


def counted(x_WR: Tensor, weight_WO: Tensor) -> Tensor:
    """The definition by words: signs that agree less signs that differ."""
    table = torch.tensor([bin(byte).count("1") for byte in range(256)], dtype=torch.int32, device=x_WR.device)
    differ_WRO = (x_WR[:, :, None] ^ weight_WO[:, None, :]).contiguous()
    count_RO = table[differ_WRO.view(torch.uint8).long()].unflatten(2, (-1, 4)).sum((0, 3))
    return 32 * len(x_WR) - 2 * count_RO


def by_triton(x_WR: Tensor, weight_WO: Tensor) -> Tensor:
    import triton

    from gpu_bits_kernel import TILE, differing_signs

    (words, rows), outputs = x_WR.shape, weight_WO.shape[1]
    y_RO = torch.empty((rows, outputs), dtype=torch.int16, device=x_WR.device)
    grid = (triton.cdiv(rows, TILE), triton.cdiv(outputs, TILE))
    differing_signs[grid](x_WR, weight_WO, y_RO, rows, outputs, words, TILE, num_warps=4)
    return y_RO


def ways(sign_RI: Tensor, weight_OI: Tensor) -> dict[str, Way]:
    """Each gives the product; all inputs are ready."""
    x_WR, weight_WO = packed(sign_RI), packed(weight_OI)
    if not sign_RI.is_cuda:
        return {"bits": lambda: counted(x_WR, weight_WO), "bf16": lambda: sign_RI.bfloat16() @ weight_OI.bfloat16().t()}
    rounded, rounded_weight = sign_RI.bfloat16(), weight_OI.bfloat16().t()
    small, small_weight = sign_RI.to(torch.int8), weight_OI.to(torch.int8).t()
    eighth, eighth_weight = sign_RI.to(torch.float8_e4m3fn), weight_OI.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=sign_RI.device)
    return {
        "bits": lambda: by_triton(x_WR, weight_WO),
        "bf16": lambda: rounded @ rounded_weight,
        "int8": lambda: torch._int_mm(small, small_weight),
        "fp8": lambda: torch._scaled_mm(eighth, eighth_weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
    }


def agrees(ours: Tensor, exact_RO: Tensor) -> bool:
    """To the last sum, but for those that bf16 cannot hold."""
    rounds = ours.dtype == torch.bfloat16
    return torch.equal(ours.float(), exact_RO.bfloat16().float() if rounds else exact_RO)


def seconds_of(way: Way, calls: int, device: torch.device) -> float:
    """Of one call, in a row of them."""
    began = time.perf_counter()
    for _ in range(calls):
        way()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def measured(name: str, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    tokens, inputs, outputs = MAPS[name]
    device = torch.device(arguments.device)
    generator = torch.Generator().manual_seed(0)
    rows = max(17, tokens * batch)  # which is the least that the library's product of int8 takes
    sign_RI, weight_OI = (
        (torch.randint(0, 2, (count, inputs), generator=generator) * 2.0 - 1).to(device) for count in (rows, outputs)
    )
    exact_RO = (sign_RI.double() @ weight_OI.double().t()).float()
    found: dict[str, list[float]] = {}
    timed: dict[str, Way] = {}
    told: dict[str, str] = {}
    for way, call in ways(sign_RI, weight_OI).items():
        try:
            if not agrees(call(), exact_RO):
                told[way] = "wrong"
                continue
            timed[way] = many(call) if device.type == "cuda" else call
        except RuntimeError as error:  # a shape or a device that the library has no product for
            told[way] = str(error).splitlines()[0][:120]
    for _ in range(arguments.rounds):
        for way, call in timed.items():
            found.setdefault(way, []).append(seconds_of(call, 3, device) / (CALLS if device.type == "cuda" else 1))
    return {
        "map": name,
        "batch": batch,
        "rows": rows,
        "inputs": inputs,
        "outputs": outputs,
        "microseconds": {way: round(1e6 * statistics.median(values), 2) for way, values in found.items()},
        "not_measured": told,
        "where": {"device": device_name(device), "torch": torch.__version__, "commit": arguments.commit},
    }


def many(call: Way) -> Way:
    """Several calls in one graph, so that no launch is timed."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return captured(calls)  # type: ignore[return-value]


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Products of packed signs on a GPU",
        "",
        "`python benchmarks/gpu_bits.py`: µs of one product of signs, the median of rounds; T/s are 1e12 multiplications with "
        "their sums by `bits` in a second; the last column is how many times as long `bits` takes as the fastest other way "
        "(above 1: a packed kernel loses). Both sides lie packed before.",
        "",
        "| map | batch | rows x inputs to outputs | bits | T/s | bf16 | int8 | fp8 | bits : fastest other |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        took = row["microseconds"]
        others = [took[way] for way in took if way != "bits"]
        work = row["rows"] * row["inputs"] * row["outputs"]
        bits = took.get("bits")
        cells = [row["map"], row["batch"], f"{row['rows']} x {row['inputs']} to {row['outputs']}"]
        cells += ["-" if bits is None else f"{bits:.1f}", "-" if bits is None else f"{work / bits / 1e6:.3g}"]
        cells += [f"{took[way]:.1f}" if way in took else "-" for way in ("bf16", "int8", "fp8")]
        cells.append(f"{bits / min(others):.2f}" if bits is not None and others else "-")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    place = rows[-1]["where"]
    missing = [f"{row['map']}, batch {row['batch']}, {way}: {why}" for row in rows for way, why in row["not_measured"].items()]
    lines += ["", f"{place['device']}, torch {place['torch']}, commit {place['commit']}."]
    lines += ["", "Not measured:", "", *(f"- {one}" for one in missing)] if missing else []
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--maps", nargs="+", choices=MAPS, default=list(MAPS), metavar="MAP", help=", ".join(MAPS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if min(*arguments.batch, arguments.rounds) < 1:
        parser.error("--batch and --rounds are 1 or more.")
    place_for(arguments.device, "auto")  # which says what is wrong with it
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.maps:
        for batch in arguments.batch:
            rows.append(measured(name, batch, arguments))
            print(json.dumps(rows[-1]), flush=True)
    write_json(arguments.out / "gpu_bits.json", {"rows": rows})
    (arguments.out / "gpu_bits.md").write_text(page(rows))
    print(page(rows))


if __name__ == "__main__":
    started(main)
