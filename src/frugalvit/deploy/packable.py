"""What a packed program can say, and a reason with a cure for everything else."""

from __future__ import annotations

from collections.abc import Sequence

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import ClassifierSpec
from frugalvit.errors import SpecError, at
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_block import BinaryBlock, PoolBranch
from frugalvit.nn.binary_channels import Affine, TokenBatchNorm
from frugalvit.nn.binary_linear import Binary, BinaryMlp, CenteredSigns, Signs
from frugalvit.nn.binary_merge import BinaryMerge, RealMerge
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.dropout import Drop
from frugalvit.nn.layers import AddPositions, AddSinusoid, Join, Normalize
from frugalvit.nn.linear import Dense
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Mean, SumSoftmax, Tokens
from frugalvit.nn.residual import LayerScale, Plain
from frugalvit.nn.shape import MapShape, Shape, pair
from frugalvit.nn.tokenizer import Patches

WIDEST_HEAD, WIDEST = 255, 1 << 16  # channels
LARGEST_IMAGE, LARGEST_COVER = 4096, 8192  # pixels a side
PASSING = (Normalize, AddPositions, AddSinusoid, Drop)
WINDOWS = ((1, 1), (3, 1), (1, 3), (5, 1), (1, 5))


def refuse_unpackable(spec: ClassifierSpec, shapes: Sequence[Shape] | Sequence[MapShape]) -> None:
    """Raise unless every part has a packed form. `shapes` are those that the layers meet."""
    with at("preprocess"):
        refuse_preprocess(spec.preprocess)
    model = spec.model
    if type(model) is not Model:
        raise SpecError(
            f"a {type(model).__name__} has no packed form. Binary transformers have, such as binaryvit_tiny_patch2_32: see "
            "`frugalvit list models`.",
            path="model",
        )
    with at("model"):
        begun = False
        for index, (layer, shape) in enumerate(zip(model.layers, shapes, strict=False)):
            assert isinstance(shape, Shape)
            with at(f"layers[{index}]"):
                if begun and isinstance(layer, Join):
                    raise SpecError("tokens that join behind blocks have no packed form. Join them before the first block.")
                refuse_layer(layer, shape)
            begun = begun or isinstance(layer, (BinaryBlock, BinaryMerge, RealMerge))
        with at("tokenizer"):  # behind the layers: that a model is not of one bit is the first thing to know
            refuse_tokenizer(model.tokenizer)
        with at("readout"):
            refuse_readout(model.readout)
    if isinstance(spec.fusion, SumSoftmax):
        raise SpecError(
            "a packed program has no softmax of heads to add. Pack another reading: --head mean, or one head by its name.",
            path="fusion",
        )


def refuse_preprocess(preprocess: Preprocess) -> None:
    if type(preprocess) is not Preprocess or preprocess.interpolation not in ("bicubic", "bilinear"):
        raise SpecError("a packed file resizes by bicubic or bilinear means and cuts the center. Train with Preprocess alone.")
    if len(preprocess.mean) not in (1, 3):
        raise SpecError(
            f"{len(preprocess.mean)} channels. A packed file takes pictures of 1 or 3: train with such.", path="mean"
        )
    if max(preprocess.height, preprocess.width) > LARGEST_IMAGE:
        raise SpecError(f"pictures of {preprocess.height} x {preprocess.width}. Use sides up to {LARGEST_IMAGE}.")
    if max(cover_of(preprocess)) > LARGEST_COVER:
        raise SpecError(
            f"a crop of {preprocess.crop} cuts from more than {LARGEST_COVER} pixels. Use a larger one.", path="crop"
        )


def cover_of(preprocess: Preprocess) -> tuple[int, int]:
    """The height and width that a picture must cover before its center is cut."""
    return int(preprocess.height / preprocess.crop), int(preprocess.width / preprocess.crop)


def refuse_tokenizer(tokenizer: object) -> None:
    if type(tokenizer) is not Patches:
        raise SpecError(f"{type(tokenizer).__name__} has no packed form. Train a model with Patches.")
    high, wide = pair(tokenizer.patch)
    if high != wide:
        raise SpecError(f"patches of {high} x {wide} pixels. A packed file has squares: train with such.", path="patch")


def refuse_layer(layer: object, shape: Shape) -> None:
    if isinstance(layer, BinaryBlock):
        refuse_block(layer, shape)
    elif isinstance(layer, (BinaryMerge, RealMerge)):
        refuse_norm(layer.norm)
        if isinstance(layer, BinaryMerge):
            refuse_weights(layer.weights)
    elif isinstance(layer, Normalize):
        refuse_norm(layer.norm)
    elif isinstance(layer, (Block, SummaryBlock)):
        raise SpecError(
            f"{type(layer).__name__} computes attention, norms and GELU in full precision, also where its linear maps are "
            "Binary. Train the model that `binarized` makes (MODEL+binarized), whose blocks are of one bit."
        )
    elif not isinstance(layer, (*PASSING, Join)):
        raise SpecError(f"{type(layer).__name__} has no packed form. Between stages, use BinaryMerge or RealMerge.")


def refuse_block(block: BinaryBlock, shape: Shape) -> None:
    refuse_norm(block.norm)
    with at("attention"):
        if type(block.attention) is not BinaryAttention:
            raise SpecError(f"{type(block.attention).__name__} has no packed form. Use BinaryAttention.")
        refuse_map(block.attention.linear)
        width = shape.dim // block.attention.heads
        if width > WIDEST_HEAD:
            raise SpecError(f"heads {width} channels wide. A packed file has up to {WIDEST_HEAD}: use more.", path="heads")
    with at("mlp"):
        if type(block.mlp) is not BinaryMlp:
            raise SpecError(f"{type(block.mlp).__name__} has no packed form. Use BinaryMlp.")
        refuse_map(block.mlp.linear)
        if shape.dim * block.mlp.ratio > WIDEST:
            raise SpecError(f"{shape.dim * block.mlp.ratio} hidden channels. Use up to {WIDEST}.", path="ratio")
    if type(block.residual) not in (Affine, Plain, LayerScale):
        raise SpecError(
            f"{type(block.residual).__name__} has no packed form. Use Affine, Plain or LayerScale.", path="residual"
        )
    for index, branch in enumerate(block.branches):
        if type(branch) is not PoolBranch or (branch.height, branch.width) not in WINDOWS:
            window = f"a window of {branch.height} x {branch.width}"
            raise SpecError(
                f"{window} has no packed form. Use 3 x 1, 1 x 3, 5 x 1 and 1 x 5, as BinaryViT has them.",
                path=f"branches[{index}]",
            )


def refuse_map(linear: Binary) -> None:
    with at("linear"):
        if type(linear) is not Binary:
            raise SpecError(f"{type(linear).__name__} has no packed form. Use Binary.")
        refuse_norm(linear.norm)
        refuse_weights(linear.weights)


def refuse_weights(weights: object) -> None:
    if type(weights) not in (CenteredSigns, Signs):
        raise SpecError(
            f"{type(weights).__name__} are not of one bit: a first stage of training, or a twin in full precision. Train "
            "with CenteredSigns or Signs from it (--init), and pack that.",
            path="weights",
        )


def refuse_norm(norm: object) -> None:
    if type(norm) is not TokenBatchNorm:
        raise SpecError(
            f"{type(norm).__name__} has no packed form: it does not fold into thresholds. Train with TokenBatchNorm.",
            path="norm",
        )


def refuse_readout(readout: object) -> None:
    if type(readout) not in (Tokens, Mean):
        raise SpecError(f"{type(readout).__name__} has no packed form. Use Tokens or Mean.")
    assert isinstance(readout, (Tokens, Mean))
    refuse_norm(readout.norm)
    if type(readout.linear) is not Dense:
        raise SpecError(f"{type(readout.linear).__name__} has no packed form. Use Dense for the head.", path="linear")
