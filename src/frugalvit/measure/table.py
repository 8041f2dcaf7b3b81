"""A model's cost as a table for the terminal, alike layers folded into one row."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from frugalvit.measure.cost import Cost, ModelCost
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.foreign import ForeignModel
from frugalvit.outline import folds


def cost_table(model: Architecture, costs: ModelCost) -> Table:
    """A row for the first part, for each run of alike layers, for the readout, and for the whole."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in ("leaves", "parameters", "MACs", "kept"):
        table.add_column(column, justify="right")
    first, *rest = costs.places
    parts = () if isinstance(model, ForeignModel) else model.layers
    table.add_row(first.path, leaves(first, model), *sums([first]))
    for start, stop in folds(parts) if parts else ():
        kind = type(parts[start]).__name__
        label = f"layers[{start}] {kind}" if stop - start == 1 else f"layers[{start}..{stop - 1}] {stop - start} × {kind}"
        table.add_row(escape(label), leaves(rest[stop - 1], model), *sums(rest[start:stop]))
    for place in rest[len(parts) :]:
        table.add_row(place.path, leaves(place, model), *sums([place]))
    table.add_row("[bold]total[/bold]", "", *sums(list(costs.places)))
    return table


def leaves(place: Cost, model: Architecture) -> str:
    return f"{model.classes} classes" if place.shape is None else str(place.shape)


def sums(places: list[Cost]) -> tuple[str, str, str]:
    macs, kept = sum(place.macs for place in places), sum(place.activations for place in places)
    return f"{sum(place.parameters for place in places):,}", f"{macs / 1e6:,.1f} M", f"{kept / 2**20:,.2f} MiB"
