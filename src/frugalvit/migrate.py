"""The versions of our JSON files, and what has changed between them. Renames of parts and fields live here alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frugalvit.errors import SpecError

FORMAT = 1


def migrate(data: Mapping[str, Any]) -> dict[str, Any]:
    """File contents of any released format, brought to the present one."""
    if not isinstance(data, Mapping):
        raise SpecError("the file does not hold a JSON object.")
    version = data.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SpecError(f"the format is {version!r}. Expected a whole number from 1 to {FORMAT}.")
    if version > FORMAT:
        raise SpecError(f"written in format {version} by a newer FrugalViT; this one reads up to {FORMAT}. Upgrade it.")
    return dict(data)
