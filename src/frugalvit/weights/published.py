"""Released weights by name: their addresses, hashes, and what their pictures look like.

DeiT's file names end in the first eight digits of their SHA-256. The others publish no hashes; AugReg's and Swin's
addresses are those that timm records for their tags.
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

# the hybrids: their files at 384 pixels, and those before fine-tuning, were not always trained alike
HYBRIDS = {
    "vit_tiny_r_s16_p8_224": ("R_Ti_16" + I21K + "none-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "224"),
    "vit_tiny_r_s16_p8_384": ("R_Ti_16" + I21K + "none-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "384"),
    "vit_small_r26_s32_224": ("R26_S_32" + I21K + "light0-wd_0.03-do_0.1-sd_0.1", TUNED_30 + "224"),
    "vit_small_r26_s32_384": ("R26_S_32" + I21K + "medium2-wd_0.03-do_0.0-sd_0.0", TUNED_30 + "384"),
    "vit_large_r50_s32_224": ("R50_L_32" + I21K + "medium1-wd_0.1-do_0.1-sd_0.1", TUNED_10 + "224"),
    "vit_large_r50_s32_384": ("R50_L_32" + I21K + "medium2-wd_0.1-do_0.0-sd_0.0", TUNED_10 + "384"),
}
HYBRIDS_21K = {
    "vit_tiny_r_s16_p8_224": "R_Ti_16" + I21K + "none-wd_0.03-do_0.0-sd_0.0",
    "vit_small_r26_s32_224": "R26_S_32" + I21K + "medium2-wd_0.03-do_0.0-sd_0.0",
    "vit_large_r50_s32_224": "R50_L_32" + I21K + "medium2-wd_0.1-do_0.0-sd_0.0",
}
TEACHER = Published(  # deit.md: DeiT's default teacher
    "regnety_160.deit_in1k", "regnety_160", f"{DEIT}regnety_160-a5fe301d.pth", "official", 1000, *IMAGENET, 0.95, "a5fe301d"
)

# cait.md: all released files are distilled; evaluation keeps the whole picture
CAIT_SIZES = [f"{size}_{image}" for size in ("xxs24", "xxs36", "s24") for image in (224, 384)]
CAIT_SIZES += ["xs24_384", "s36_384", "m36_384", "m48_448"]
CONVIT = "https://dl.fbaipublicfiles.com/convit/"
CONVIT_SIZES = ("convit_tiny", "convit_small", "convit_base")

# Swin's own releases, as timm records them: trained on ImageNet-1k, on 22k then 1k, and on 22k
SWIN = "https://github.com/SwinTransformer/storage/releases/download/"
SWIN_FILES = {
    "swin_tiny_patch4_window7_224.ms_in1k": "v1.0.0/swin_tiny_patch4_window7_224.pth",
    "swin_small_patch4_window7_224.ms_in1k": "v1.0.0/swin_small_patch4_window7_224.pth",
    "swin_base_patch4_window7_224.ms_in1k": "v1.0.0/swin_base_patch4_window7_224.pth",
    "swin_tiny_patch4_window7_224.ms_in22k_ft_in1k": "v1.0.8/swin_tiny_patch4_window7_224_22kto1k_finetune.pth",
    "swin_small_patch4_window7_224.ms_in22k_ft_in1k": "v1.0.8/swin_small_patch4_window7_224_22kto1k_finetune.pth",
    "swin_base_patch4_window7_224.ms_in22k_ft_in1k": "v1.0.0/swin_base_patch4_window7_224_22kto1k.pth",
    "swin_tiny_patch4_window7_224.ms_in22k": "v1.0.8/swin_tiny_patch4_window7_224_22k.pth",
    "swin_small_patch4_window7_224.ms_in22k": "v1.0.8/swin_small_patch4_window7_224_22k.pth",
    "swin_base_patch4_window7_224.ms_in22k": "v1.0.0/swin_base_patch4_window7_224_22k.pth",
}
# what a model's bare name stands for, the first that there is
TAGS = ("fb_in1k", "augreg_in21k_ft_in1k", "deit_in1k", "fb_dist_in1k", "ms_in1k")


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
    files += [augreg(f"{name}.augreg_in21k_ft_in1k", name, "".join(file), 1000) for name, file in HYBRIDS.items()]
    files += [augreg(f"{name}.augreg_in21k", name, file, 21843) for name, file in HYBRIDS_21K.items()]
    files.append(TEACHER)
    for size in CAIT_SIZES:
        name = f"cait_{size}"
        files.append(Published(f"{name}.fb_dist_in1k", name, f"{DEIT}{size.upper()}.pth", "official", 1000, *IMAGENET, 1.0))
    for name in CONVIT_SIZES:
        files.append(Published(f"{name}.fb_in1k", name, f"{CONVIT}{name}.pth", "official", 1000, *IMAGENET, 0.875))
    for full, file in SWIN_FILES.items():
        classes = 21841 if full.endswith(".ms_in22k") else 1000
        files.append(Published(full, full.partition(".")[0], SWIN + file, "official", classes, *IMAGENET, 0.9))
    return {file.name: file for file in files}


def augreg(name: str, model: str, stem: str, classes: int) -> Published:
    crop = 1.0 if model.endswith("_384") else 0.9
    return Published(name, model, f"{AUGREG}{stem}.npz", "augreg", classes, *HALF, crop)


def published(name: str) -> Published:
    """The released weights of that name; a model's bare name means its ImageNet-1k classifier."""
    known = released()
    for full in (name, *(f"{name}.{tag}" for tag in TAGS)):
        if full in known:
            return known[full]
    if "/" in name:  # no name has one
        raise WeightsError("there is no such file or folder.", path=name)
    others = f" Models of other libraries: timm:{name}, torchvision:{name}." if name.isidentifier() else ""
    raise WeightsError(f"no released weights are called '{name}', and there is no such file. {suggestion(name, known)}{others}")
