"""Packed files of which one value was changed, with a checksum that fits: whoever can write a file can write such a one."""

from __future__ import annotations

import copy
import json
import random
import zlib
from typing import Any

from frugalvit.deploy.packed_file import CHECKSUM, Packed, encoded

ODD: tuple[Any, ...] = (None, True, "x", "t1", "", -1, 0, 1, 3, 2.5, 1e9, 1e300, [], [1], {}, {"a": 1})


def changed(packed: Packed, draw: random.Random) -> bytes:
    """The file with one node of its program, or of its list of tensors, changed, moved or left out."""
    header, data = parts(packed)
    program = json.loads(header["__metadata__"]["program"])
    change(program if draw.random() < 0.8 else {name: one for name, one in header.items() if name != "__metadata__"}, draw)
    return written(header, json.dumps(program), data)


def parts(packed: Packed) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes behind it."""
    whole = encoded(packed)
    size = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + size]), whole[8 + size :]


def written(header: dict[str, Any], program: str, data: bytes) -> bytes:
    header = header | {"__metadata__": header["__metadata__"] | {"checksum": "0" * 8, "program": program}}
    text = json.dumps(header, separators=(",", ":")).encode()
    whole = len(text).to_bytes(8, "little") + text + data
    place = whole.index(CHECKSUM) + len(CHECKSUM)
    return whole[:place] + b"%08x" % zlib.crc32(whole) + whole[place + 8 :]


def change(tree: Any, draw: random.Random) -> None:
    nodes = list(places(tree))
    holder, key = draw.choice(nodes)
    way = draw.randrange(6)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder["zz"] = holder.pop(key)
    elif way == 2 and isinstance(holder[key], (int, float)):
        holder[key] = draw.choice([holder[key] * 2, holder[key] + 1, holder[key] - 1, -holder[key], float(holder[key])])
    elif way == 3:  # as another of its kind has it, so that names stay names
        alike = [one[place] for one, place in nodes if type(one[place]) is type(holder[key])]
        holder[key] = copy.deepcopy(draw.choice(alike))
    elif way == 4 and isinstance(holder[key], (list, dict)):
        copied = copy.deepcopy(holder[key])
        holder[key] = [*copied, *copied] if isinstance(copied, list) else copied | {"more": 1}
    else:
        holder[key] = copy.deepcopy(draw.choice(ODD))


def places(tree: Any) -> Any:
    """(holder, key) of every node below."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from places(tree[key])
