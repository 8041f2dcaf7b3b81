from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from frugalvit.data.digits import Digits
from frugalvit.errors import DataError


def test_digits_are_1297_to_train_on_and_500_held_out() -> None:
    train, val, test = (Digits().open(split, None) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (1297, 500, 500)
    assert train.classes == val.classes == tuple("0123456789")
    names = {source.name(index) for source in (train, val) for index in range(len(source))}
    assert len(names) == 1797
    assert val.fingerprint() == test.fingerprint() != train.fingerprint()


def test_every_digit_is_held_out_in_proportion() -> None:
    train, val = (Digits().open(split, None) for split in ("train", "val"))
    shares = np.bincount(val.labels) / (np.bincount(train.labels) + np.bincount(val.labels))
    np.testing.assert_allclose(shares, 500 / 1797, atol=0.006)


def test_the_split_never_changes() -> None:
    assert Digits().open("val", Path("nowhere")).name(0) == "digits[0004]"
    val = Digits().open("val", None)
    chosen = hashlib.blake2b(val.indices.tobytes() + val.labels.tobytes(), digest_size=8)  # type: ignore[attr-defined]
    assert chosen.hexdigest() == "68749d5fc15f9a20"
    assert val.fingerprint() == "96ad8d6d5048c66a"


def test_digits_are_gray_pictures_over_the_whole_range() -> None:
    source = Digits().open("train", None)
    picture = source.picture(3)
    assert (picture.mode, picture.size) == ("L", (8, 8))
    values = np.stack([np.asarray(source.picture(index)) for index in range(50)])
    assert (values.min(), values.max()) == (0, 255)
    assert source.labels.dtype == np.int64


def test_digits_show_what_their_labels_say() -> None:
    from sklearn.linear_model import RidgeClassifier

    train, val = (Digits().open(split, None) for split in ("train", "val"))
    pixels = [np.stack([np.asarray(one.picture(index)).ravel() / 255 for index in range(len(one))]) for one in (train, val)]
    assert RidgeClassifier().fit(pixels[0], train.labels).score(pixels[1], val.labels) > 0.9


def test_digits_travel_to_other_processes() -> None:
    source = Digits().open("val", None)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == source.fingerprint()
    assert copy.picture(2).tobytes() == source.picture(2).tobytes()


def test_another_split_is_refused() -> None:
    with pytest.raises(DataError, match=r"split: there is no split 'vall'. Did you mean 'val'\?"):
        Digits().open("vall", None)
