"""Whether anything may be downloaded, weights and data sets alike."""

from __future__ import annotations

import os

OFFLINE = "HF_HUB_OFFLINE"


def offline() -> bool:
    """Whether the user forbids downloads, in the words that HF's libraries know."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")
