"""Initial weights have the statistics of the papers' code."""

from __future__ import annotations

import math

import pytest
import torch

from frugalvit.nn.model import VisionTransformer
from frugalvit.zoo.deit import deit_tiny_distilled_patch16_224
from frugalvit.zoo.vit import vit_tiny_patch16_224


@pytest.fixture(scope="module")
def deit_tiny() -> VisionTransformer:
    return deit_tiny_distilled_patch16_224().build(seed=0)


@pytest.fixture(scope="module")
def vit_tiny() -> VisionTransformer:
    return vit_tiny_patch16_224().build(seed=0)


def assert_normal(tensor: torch.Tensor, std: float) -> None:
    values, n = tensor.detach().flatten().double(), tensor.numel()
    assert abs(values.mean()) < 5 * std / math.sqrt(n)
    assert abs(values.std() / std - 1) < 5 / math.sqrt(2 * n)


def assert_uniform(tensor: torch.Tensor, bound: float) -> None:
    values, n = tensor.detach().flatten().double(), tensor.numel()
    assert values.abs().max() <= bound
    assert abs(values.std() / (bound / math.sqrt(3)) - 1) < 5 / math.sqrt(n)


def test_deit_draws_every_linear_weight_token_and_position_from_a_normal_of_two_hundredths(
    deit_tiny: VisionTransformer,
) -> None:
    for name, parameter in deit_tiny.named_parameters():
        if name.startswith("tokenizer"):
            continue
        if parameter.ndim >= 2:
            assert_normal(parameter, 0.02)
        elif "norm" in name and name.endswith("weight"):
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert name.endswith("bias") and not parameter.any(), name


def test_the_normal_of_deit_is_not_cut() -> None:
    weight = torch.empty(2_000_000)
    from frugalvit.nn.init import Normal

    Normal(0.02).fill(weight, 1, 1)
    assert weight.abs().max() > 4 * 0.02


def test_deit_leaves_its_patches_at_pytorchs_default(deit_tiny: VisionTransformer) -> None:
    assert_uniform(deit_tiny.tokenizer.weight, 1 / math.sqrt(768))
    assert_uniform(deit_tiny.tokenizer.bias, 1 / math.sqrt(768))
    torch_default = torch.nn.Conv2d(3, 192, 16, 16)
    assert abs(deit_tiny.tokenizer.weight.std() / torch_default.weight.std() - 1) < 0.02


def test_vit_starts_as_the_original(vit_tiny: VisionTransformer) -> None:
    block = vit_tiny.layers[2]
    for rows in block.attention.qkv.weight.chunk(3):  # q, k and v each with their own fans
        assert_uniform(rows, math.sqrt(6 / (192 + 192)))
    assert_uniform(block.attention.out.weight, math.sqrt(6 / (192 + 192)))
    assert_uniform(block.mlp.up.weight, math.sqrt(6 / (192 + 768)))
    assert_normal(block.mlp.up.bias, 1e-6)
    assert not block.attention.qkv.bias.any()
    assert not vit_tiny.layers[0].tokens["class"].any()
    assert_normal(vit_tiny.layers[1].positions, 0.02)
    assert not vit_tiny.readout.heads["class"].weight.any()
    assert not vit_tiny.readout.heads["class"].bias.any()


def test_the_patches_of_vit_are_a_cut_normal_of_variance_one_over_fan_in(vit_tiny: VisionTransformer) -> None:
    weight = vit_tiny.tokenizer.weight
    assert abs(weight.std().item() / math.sqrt(1 / 768) - 1) < 0.01
    assert weight.abs().max() <= 2 * math.sqrt(1 / 768) / 0.8796 * 1.0001
    assert not vit_tiny.tokenizer.bias.any()


def test_a_fresh_vit_predicts_all_classes_alike(vit_tiny: VisionTransformer) -> None:
    with torch.inference_mode():
        assert not vit_tiny(torch.randn(1, 3, 224, 224))["class"].any()
