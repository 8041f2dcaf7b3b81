"""What may be trained, measured and used as a model."""

from __future__ import annotations

from frugalvit.nn.convnet import ConvNet
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.model import Model

Architecture = Model | ConvNet | ForeignModel  # every one has heads, classes, image and build(taps, seed) -> Network
