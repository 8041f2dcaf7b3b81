"""A model's cost as a table for the terminal, alike layers folded into one row."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from frugalvit.measure.cost import Cost, ModelCost
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.foreign import ForeignModel
from frugalvit.outline import folds


def cost_table(model: Architecture, costs: ModelCost, packed: int | None = None) -> Table:
    """A row for the first part, for each run of alike layers, for the readout, and for the whole.

    Where products have one bit, two columns show their share, and a line below sums up, with the bytes of the packed file
    where there can be one.
    """
    binary = costs.bops > 0
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    one_bit = ("1 bit",) if binary else ()
    for column in ("leaves", "parameters", *one_bit, "MACs", *one_bit, "kept"):
        table.add_column(column, justify="right")
    first, *rest = costs.places
    parts = () if isinstance(model, ForeignModel) else model.layers

    def add(label: str, left: str, places: list[Cost]) -> None:
        table.add_row(label, left, *(one_bit_sums(places) if binary else sums(places)))

    add(first.path, leaves(first, model), [first])
    for start, stop in folds(parts) if parts else ():
        kind = type(parts[start]).__name__
        label = f"layers[{start}] {kind}" if stop - start == 1 else f"layers[{start}..{stop - 1}] {stop - start} × {kind}"
        add(escape(label), leaves(rest[stop - 1], model), rest[start:stop])
    for place in rest[len(parts) :]:
        add(place.path, leaves(place, model), [place])
    add("[bold]total[/bold]", "", list(costs.places))
    if binary:
        table.caption = binary_line(costs, packed)
        table.caption_justify = "left"
    return table


def leaves(place: Cost, model: Architecture) -> str:
    return f"{model.classes} classes" if place.shape is None else str(place.shape)


def sums(places: list[Cost]) -> tuple[str, str, str]:
    macs, kept = sum(place.macs for place in places), sum(place.activations for place in places)
    return f"{sum(place.parameters for place in places):,}", f"{macs / 1e6:,.1f} M", f"{kept / 2**20:,.2f} MiB"


def one_bit_sums(places: list[Cost]) -> tuple[str, str, str, str, str]:
    """The sums, with the shares of parameters and products that have one bit."""
    parameters, macs, kept = sums(places)
    bits = share(sum(place.bits for place in places), sum(place.parameters for place in places))
    bops = share(sum(place.bops for place in places), sum(place.macs for place in places))
    return parameters, bits, macs, bops, kept


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if part else ""


def cost_line(costs: ModelCost, packed: int | None = None) -> str:
    """`5,717,416 parameters, 1,253.7 M MACs a picture`, and of a binary model what `binary_line` says."""
    counted = f"{costs.parameters:,} parameters, {costs.macs / 1e6:,.1f} M MACs a picture"
    return f"{counted}; {binary_line(costs, packed)}" if costs.bops else counted


def binary_line(costs: ModelCost, packed: int | None) -> str:
    """`OPs 79.0 M = 3,822.2 M BOPs / 64 + 19.2 M FLOPs; packed about 7.71 MB (in float32 89.97 MB)`.

    About, since names of classes are in the file too, and nobody knows them yet.
    """
    counted = f"OPs {costs.ops / 1e6:,.1f} M = {costs.bops / 1e6:,.1f} M BOPs / 64 + {costs.flops / 1e6:,.1f} M FLOPs"
    real = f"{4 * costs.parameters / 1e6:,.2f} MB"
    return f"{counted}; in float32 {real}" if packed is None else f"{counted}; packed about {size(packed)} (in float32 {real})"


def size(packed: int) -> str:
    """`7.71 MB`, `0.068 MB`."""
    return f"{packed / 1e6:,.2f} MB" if packed >= 1e5 else f"{packed / 1e6:.3f} MB"
