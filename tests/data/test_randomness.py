from __future__ import annotations

import itertools

from frugalvit.data.randomness import Stream, key

INSIDE = (Stream.ORDER, Stream.AUGMENT, Stream.ERASE, Stream.MIX, Stream.DEPTH)


def test_streams_that_follow_a_step_share_no_key_with_each_other() -> None:
    places = [(seed, step, stream) for seed in range(12) for step in range(40) for stream in INSIDE]
    places += [(*place, position) for place in places for position in range(4)]
    assert len({key(*place) for place in places}) == len(places)


def test_splits_and_weights_share_the_keys_that_they_always_have() -> None:
    """Whoever sets them apart changes every split, and every model that a seed names."""
    assert key(0, Stream.SPLIT, 1) == key(0, 0, Stream.ORDER) == 15361804988134424298
    assert key(0, Stream.SPLIT, 4) == key(0, 0, Stream.MIX)
    assert key(0, Stream.SPLIT, 2, 1) == key(0, 0, Stream.AUGMENT, 1)
    assert key(0, Stream.INIT, 1) == key(0, 6, Stream.ORDER)
    inside = {key(0, *place) for place in itertools.product(range(1000), INSIDE)}
    assert key(0, Stream.INIT) not in inside
