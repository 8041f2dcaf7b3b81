"""A model's cost as a table for the terminal, alike layers folded into one row."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from frugalvit.measure.cost import Cost, ModelCost
from frugalvit.nn.model import Model
from frugalvit.outline import folds


def cost_table(model: Model, costs: ModelCost) -> Table:
    """A row for the tokenizer, for each run of alike layers, for the readout, and for the whole."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in ("leaves", "parameters", "MACs", "kept"):
        table.add_column(column, justify="right")
    tokenizer, *layers, readout = costs.places
    table.add_row("tokenizer", str(tokenizer.shape), *sums([tokenizer]))
    for start, stop in folds(model.layers):
        kind = type(model.layers[start]).__name__
        label = f"layers[{start}] {kind}" if stop - start == 1 else f"layers[{start}..{stop - 1}] {stop - start} × {kind}"
        table.add_row(escape(label), str(layers[stop - 1].shape), *sums(layers[start:stop]))
    table.add_row("readout", f"{model.classes} classes", *sums([readout]))
    table.add_row("[bold]total[/bold]", "", *sums(list(costs.places)))
    return table


def sums(places: list[Cost]) -> tuple[str, str, str]:
    macs, kept = sum(place.macs for place in places), sum(place.activations for place in places)
    return f"{sum(place.parameters for place in places):,}", f"{macs / 1e6:,.1f} M", f"{kept / 2**20:,.2f} MiB"
