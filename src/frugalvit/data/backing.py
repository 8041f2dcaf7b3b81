"""The files behind a source, as the file system tells of them: whether a store of their pictures may be out of date."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from copy import copy

import numpy as np

from frugalvit.data.arrays import Arrays
from frugalvit.data.files import Files
from frugalvit.data.source import Source
from frugalvit.data.split import Picked


def written(source: Source) -> str:
    """Sixteen hexadecimal digits of the length and the time of change (in ns) of each file behind the pictures.

    Names stay out, so that a moved folder is the same; a copy is, where it was made with its times. Not noticed is a file that
    changes and keeps both. Pictures in memory have no files, and their fingerprint is of every byte. Sources of the user's own
    name none, so their fingerprints alone tell of changes.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in files_behind(source, np.arange(len(source))):
        try:
            found = os.stat(name)  # noqa: PTH116 -- a million times, so no Path for each
            digest.update(b"%d %d\n" % (found.st_size, found.st_mtime_ns))
        except OSError:
            digest.update(b"missing\n")
    return digest.hexdigest()


def afresh(source: Source) -> Source:
    """The same source without the fingerprint that it keeps, so that files are looked at again."""
    if not isinstance(source, (Picked, Files)):
        return source
    found = copy(source)
    if isinstance(found, Picked):
        found.source = afresh(found.source)
    return found


def files_behind(source: Source, index_N: np.ndarray) -> Iterable[str]:
    """The files that hold those pictures, in their order."""
    if isinstance(source, Picked):
        return files_behind(source.source, source.indices[index_N])
    if isinstance(source, Files):
        return map(source.name, index_N.tolist())
    return [str(source.file)] if isinstance(source, Arrays) and source.file is not None else []
