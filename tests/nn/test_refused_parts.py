"""Parts that do not fit together are refused at build: where, why, and what would fit."""

from __future__ import annotations

import re

import pytest
import torch

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention, SkipAttention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.init import Identity
from frugalvit.nn.layers import Join, Layer
from frugalvit.nn.linear import Dense
from frugalvit.nn.model import Model
from frugalvit.nn.pooling import MergePatches, PoolTokens, ShiftedMerge
from frugalvit.nn.readout import Mean, Readout, Tokens
from frugalvit.nn.residual import LayerScale
from frugalvit.nn.scope import PatchesOnly, SummaryOnly, Windows
from frugalvit.nn.score import GatePosition, HideSelf, MixHeads, RelativeBias
from frugalvit.nn.shape import Image
from frugalvit.nn.t2t import TokensToTokens
from frugalvit.nn.tokenizer import OverlappingPatches, Patches, ShiftedPatches, Tokenizer


def toy(
    *layers: Layer, tokenizer: Tokenizer = Patches(4, 12), readout: Readout = Mean(), image: Image = Image(20, 28)
) -> Model:
    return Model(tokenizer, layers, readout, 9, image)


HALVABLE = Image(16, 24)  # a grid of 4 x 6
JOIN = Join(("class",))
SCOPE = r"model\.layers\[0\]\.attention\.scope: "
BEHIND_JOIN = r"model\.layers\[1\]"


def refused(model: Model) -> str:
    with pytest.raises(SpecError) as error:
        model.build()
    return str(error.value)


@pytest.mark.parametrize(
    ("attention", "image", "message"),
    [
        (
            Attention(3, Windows(4)),
            Image(20, 28),
            SCOPE + r"windows of 4 x 4 do not tile a grid of 5 x 7\. Use a side of \[1\],",
        ),
        (
            Attention(3, Windows((2, 4))),
            HALVABLE,
            SCOPE + r"windows of 2 x 4 do not tile a grid of 4 x 6\. Use a side of \[1, 2\]",
        ),
        (Attention(3, Windows(0)), HALVABLE, SCOPE + "windows of 0 x 0 do not tile"),
        (Attention(3, Windows(8)), HALVABLE, SCOPE + "windows of 8 x 8 do not tile"),
        (Attention(3, Windows(2, 2)), HALVABLE, SCOPE + r"a shift of 2 in windows of 2 x 2\. Use 0 to 1\."),
        (Attention(3, Windows((2, 3), 2)), HALVABLE, SCOPE + r"a shift of 2 in windows of 2 x 3\. Use 0 to 1\."),
        (Attention(3, Windows(2, -1)), HALVABLE, SCOPE + "a shift of -1 in windows"),
        (
            Attention(3, Windows((4, 2), 1)),
            HALVABLE,
            SCOPE + r"a shift in a grid of 4 x 6, which one window of 4 x 2 covers\. Use shift=0 or smaller",
        ),
        (
            Attention(3, before=(HideSelf(), MixHeads())),
            HALVABLE,
            r"model\.layers\[0\]\.attention\.before\[0\]: HideSelf must stand last: .* would mix −inf",
        ),
        (
            Attention(3, Windows(2, 1), before=(HideSelf(),)),
            HALVABLE,
            r"model\.layers\[0\]\.attention\.before: HideSelf leaves a token nothing to see: .*Use larger windows or no shift",
        ),
        (
            Attention(3, Windows(1), before=(HideSelf(),)),
            HALVABLE,
            r"model\.layers\[0\]\.attention\.before\[0\]: HideSelf on a single token .* Use ",
        ),
        (
            Attention(3, before=(MixHeads(), GatePosition())),
            HALVABLE,
            r"model\.layers\[0\]\.attention\.before\[1\]: GatePosition mixes two attentions, .* belongs in `after`",
        ),
        (
            Attention(3, Windows(2, 1), after=(GatePosition(),)),
            HALVABLE,
            r"model\.layers\[0\]\.attention\.after: GatePosition weighs every place .* Use windows without shift",
        ),
        (
            Attention(3, after=(MixHeads(), RelativeBias())),
            HALVABLE,
            r"model\.layers\[0\]\.attention\.after\[1\]: RelativeBias adds to scores, so it belongs in `before`",
        ),
        (Attention(3, head_dim=0), HALVABLE, r"model\.layers\[0\]\.attention\.head_dim: heads of width 0\. Use 1 and more"),
        (
            Attention(3, SummaryOnly()),
            HALVABLE,
            SCOPE + r"there is no summary token to look\. Put Join in front of this layer",
        ),
    ],
)
def test_attention_that_cannot_be_is_refused(attention: Attention, image: Image, message: str) -> None:
    assert re.match(message, refused(toy(Block(attention), image=image)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            Block(Attention(3, Windows(2))),
            r"\.attention\.scope: windows tile patches, and class belong to no window\. Join them behind .*with_mean_readout",
        ),
        (
            Block(Attention(3, after=(GatePosition(),))),
            r"\.attention\.after\[0\]: GatePosition needs patches alone, and class has no place on the grid\. Join it behind",
        ),
        (
            Block(Attention(3, before=(RelativeBias(),))),
            r"\.attention\.before\[0\]: RelativeBias needs patches alone, and class has no place on the grid\. Join it behind",
        ),
        (
            Block(Attention(3, SummaryOnly())),
            r"\.attention\.scope: only summary tokens look here, and a Block changes all\. Use SummaryBlock",
        ),
        (Block(Attention(3, PatchesOnly())), r"\.attention\.scope: only summary tokens look here.* Use SummaryBlock"),
        (
            Block(SkipAttention(Attention(3, SummaryOnly()))),
            r"\.attention\.inner\.scope: only summary tokens look here.* Use ",
        ),
        (
            SummaryBlock(Attention(3)),
            r"\.attention\.scope: Everywhere would change the patches too\. Use SummaryOnly or PatchesOnly",
        ),
        (SummaryBlock(SkipAttention(Attention(3))), r"\.attention: .*SkipAttention.* Use Attention"),
        (
            SummaryBlock(Attention(3, SummaryOnly(), before=(HideSelf(),))),
            r"\.attention\.before\[0\]: HideSelf needs queries that are the keys\. Leave it out here, or use",
        ),
        (
            SummaryBlock(Attention(3, PatchesOnly(), after=(GatePosition(),))),
            r"\.attention\.after\[0\]: GatePosition needs patches alone",
        ),
        (MergePatches(), r": MergePatches has no way to widen summary tokens\. Use PoolTokens or ShiftedMerge"),
    ],
)
def test_what_has_no_place_for_summary_tokens_is_refused_behind_them(layer: Layer, message: str) -> None:
    assert re.match(BEHIND_JOIN + message, refused(toy(JOIN, layer, readout=Tokens(), image=HALVABLE)))


@pytest.mark.parametrize("layer", [MergePatches(), ShiftedMerge()])
@pytest.mark.parametrize(("image", "grid"), [(Image(16, 28), "4 x 7"), (Image(20, 24), "5 x 6")])
def test_an_odd_grid_cannot_be_halved_in_squares(layer: Layer, image: Image, grid: str) -> None:
    message = refused(toy(layer, image=image))
    assert message.startswith(f"model.layers[0]: a grid of {grid} cannot be halved in squares of 2 x 2. Use another image or")


def test_class_attention_without_a_summary_token_is_refused() -> None:
    message = refused(toy(SummaryBlock(Attention(3, SummaryOnly()))))
    assert message == "model.layers[0].attention: there is no summary token to look. Put Join in front of this layer."


@pytest.mark.parametrize(
    ("tokenizer", "image", "message"),
    [
        (
            ShiftedPatches(1, 12),
            Image(4, 6),
            r"\.patch: half of a patch of 1 is no pixel to shift by\. Use patches of 2 and more",
        ),
        (ShiftedPatches(4, 12), Image(20, 30), r": patches of 4 x 4 do not tile an image of 20 x 30\. Use images of 20 x 28"),
        (TokensToTokens(12, 5), Image(2, 28), r": a grid of 1 x 14 is too small to split\. Use a larger image or fewer splits"),
        (
            TokensToTokens(12, 5, 5),
            Image(12, 16),
            r": a grid of 1 x 1 is too small to split\. Use a larger image or fewer splits",
        ),
        (TokensToTokens(12, 5, 1), Image(20, 28), r": 1 splits to widths of 5 and 12\. Use 2 splits and more"),
        (OverlappingPatches(8, 4, 12), Image(20, 7), r": patches of 8 x 8 do not fit into an image of 20 x 7\. Use a larger"),
        (OverlappingPatches(8, 0, 12), Image(20, 28), r": patches of 8 x 8 every 0 x 0 pixels .* Use 1 and more"),
        (
            TokensToTokens(12, 5, before=(GatePosition(),)),
            Image(20, 28),
            r"\.before\[0\]: GatePosition mixes two attentions, .* Leave it out",
        ),
        (TokensToTokens(12, 5, before=(HideSelf(), MixHeads())), Image(20, 28), r"\.before\[0\]: HideSelf must stand last"),
    ],
)
def test_tokenizers_refuse_images_they_cannot_cut(tokenizer: Tokenizer, image: Image, message: str) -> None:
    assert re.match(r"model\.tokenizer" + message, refused(toy(tokenizer=tokenizer, image=image)))


def test_a_pooling_needs_two_rows_and_two_columns() -> None:
    message = refused(toy(PoolTokens(), image=Image(4, 28)))
    assert message == "model.layers[0]: a grid of 1 x 7 is too small to be pooled. Use a larger image."


def test_values_start_as_an_identity_only_where_widths_are_alike() -> None:
    message = refused(toy(Block(Attention(3, head_dim=5, value=Dense(Identity())))))
    assert re.match(r"model\.layers\[0\]\.attention\.value: an identity from 12 to 15 features\. Use it for square", message)


@pytest.mark.parametrize(
    "block",
    [
        Block(Attention(3), residual=LayerScale(1)),
        Block(Attention(3, after=(GatePosition(1, 1),))),
    ],
)
def test_first_values_may_be_whole_numbers(block: Block) -> None:
    module = toy(block).build()
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
