from __future__ import annotations

from pathlib import Path

import pytest
import torch

from frugalvit.deploy.adopt import adopt
from frugalvit.errors import WeightsError
from frugalvit.nn.model import Model
from frugalvit.weights.fetch import fetch
from frugalvit.weights.load import export_weights


def test_a_file_that_is_missing_is_said_to_be_before_anybody_asks_whose_names_it_has(tmp_path: Path, toy_vit: Model) -> None:
    file = tmp_path / "mine.pth"
    with pytest.raises(WeightsError, match=r"mine\.pth: there is no such file"):
        adopt(toy_vit, fetch(str(file)))
    torch.save(export_weights(toy_vit.build()), file)
    with pytest.raises(WeightsError, match=r"mine\.pth: whose names does it have\? Say --origin, one of: timm, official, "):
        adopt(toy_vit, fetch(str(file)))
    assert adopt(toy_vit, fetch(str(file)), origin="timm").classes == tuple("012345678")
