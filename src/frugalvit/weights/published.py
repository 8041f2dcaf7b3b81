"""Released weights by name: their addresses, hashes, and what their pictures look like.

DeiT's file names end in the first eight digits of their SHA-256. AugReg publishes no hashes; the addresses are those
that timm records for its `augreg` tags.
"""

from __future__ import annotations

from dataclasses import dataclass

from frugalvit.errors import WeightsError, suggestion

DEIT = "https://dl.fbaipublicfiles.com/deit/"
AUGREG = "https://storage.googleapis.com/vit_models/augreg/"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class Published:
    """One released file of weights for one model of the zoo."""

    name: str
    model: str
    url: str
    origin: str
    classes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: float  # the share of the resized picture that evaluation keeps
    sha256: str = ""  # its first digits, where they are published

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


# deit.md: the released files; evaluation crops 0.875 at every size there
DEIT_HASHES = {
    "deit_tiny_patch16_224": "a1311bcf",
    "deit_small_patch16_224": "cd65a155",
    "deit_base_patch16_224": "b5f2ef4d",
    "deit_tiny_distilled_patch16_224": "b40b3cf7",
    "deit_small_distilled_patch16_224": "649709d9",
    "deit_base_distilled_patch16_224": "df68dfff",
    "deit_base_patch16_384": "8de9b5d1",
    "deit_base_distilled_patch16_384": "d0272ac0",
}

I21K = "-i21k-300ep-lr_0.001-aug_"
I1K = "-i1k-300ep-lr_0.001-aug_"
TUNED_30 = "--imagenet2012-steps_20k-lr_0.03-res_"
TUNED_10 = "--imagenet2012-steps_20k-lr_0.01-res_"

# name: pre-training on ImageNet-21k, then the fine-tuning on ImageNet-1k that its file name adds
AUGREG_21K = {
    "vit_tiny_patch16_224": ("Ti_16" + I21K + "none-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "224"),
    "vit_tiny_patch16_384": ("Ti_16" + I21K + "none-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "384"),
    "vit_small_patch32_224": ("S_32" + I21K + "light1-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "224"),
    "vit_small_patch32_384": ("S_32" + I21K + "light1-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "384"),
    "vit_small_patch16_224": ("S_16" + I21K + "light1-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "224"),
    "vit_small_patch16_384": ("S_16" + I21K + "light1-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "384"),
    "vit_base_patch32_224": ("B_32" + I21K + "medium1-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "224"),
    "vit_base_patch32_384": ("B_32" + I21K + "light1-wd_0.1-do_0.0-sd_0.0", TUNED_30 + "384"),
    "vit_base_patch16_224": ("B_16" + I21K + "medium1-wd_0.1-do_0.0-sd_0.0", TUNED_10 + "224"),
    "vit_base_patch16_384": ("B_16" + I21K + "medium1-wd_0.1-do_0.0-sd_0.0", TUNED_10 + "384"),
    "vit_base_patch8_224": ("B_8" + I21K + "medium1-wd_0.1-do_0.0-sd_0.0", TUNED_10 + "224"),
    "vit_large_patch16_224": ("L_16" + I21K + "medium1-wd_0.1-do_0.1-sd_0.1", TUNED_10 + "224"),
    "vit_large_patch16_384": ("L_16" + I21K + "medium1-wd_0.1-do_0.1-sd_0.1", TUNED_10 + "384"),
}
AUGREG_1K = {
    "vit_small_patch16_224": "S_16" + I1K + "medium2-wd_0.1-do_0.0-sd_0.0" + TUNED_10 + "224",
    "vit_small_patch16_384": "S_16" + I1K + "medium2-wd_0.1-do_0.0-sd_0.0" + TUNED_10 + "384",
    "vit_base_patch32_224": "B_32" + I1K + "medium2-wd_0.1-do_0.1-sd_0.1" + TUNED_10 + "224",
    "vit_base_patch32_384": "B_32" + I1K + "medium2-wd_0.1-do_0.1-sd_0.1" + TUNED_10 + "384",
    "vit_base_patch16_224": "B_16" + I1K + "strong2-wd_0.1-do_0.1-sd_0.1" + TUNED_10 + "224",
    "vit_base_patch16_384": "B_16" + I1K + "strong2-wd_0.1-do_0.1-sd_0.1" + TUNED_10 + "384",
}


def released() -> dict[str, Published]:
    """Every released file we know, by timm's name for it: `model.tag`."""
    files = [
        Published(f"{name}.fb_in1k", name, f"{DEIT}{name}-{digits}.pth", "official", 1000, *IMAGENET, 0.875, digits)
        for name, digits in DEIT_HASHES.items()
    ]
    for name, (before, after) in AUGREG_21K.items():
        files.append(augreg(f"{name}.augreg_in21k_ft_in1k", name, before + after, 1000))
        if name.endswith("_224"):
            files.append(augreg(f"{name}.augreg_in21k", name, before, 21843))
    files += [augreg(f"{name}.augreg_in1k", name, file, 1000) for name, file in AUGREG_1K.items()]
    return {file.name: file for file in files}


def augreg(name: str, model: str, stem: str, classes: int) -> Published:
    crop = 1.0 if model.endswith("_384") else 0.9
    return Published(name, model, f"{AUGREG}{stem}.npz", "augreg", classes, *HALF, crop)


def published(name: str) -> Published:
    """The released weights of that name; a model's bare name means its ImageNet-1k classifier."""
    known = released()
    for full in (name, f"{name}.fb_in1k", f"{name}.augreg_in21k_ft_in1k"):
        if full in known:
            return known[full]
    raise WeightsError(f"no released weights are called '{name}', and there is no such file. {suggestion(name, known)}")
