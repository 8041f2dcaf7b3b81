"""Which way pictures take to the model: read and augmented by the host, or kept on the device and augmented there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal
from weakref import WeakValueDictionary

import numpy as np

from frugalvit.data.augment import Augment, ResizedCrop
from frugalvit.data.batches import TrainingBatches
from frugalvit.data.device.erase import erase
from frugalvit.data.device.mix import mix
from frugalvit.data.device.pipeline import part_of_pipeline, pipeline
from frugalvit.data.device.resample import largest_source
from frugalvit.data.device.size import MapSize
from frugalvit.data.encoded import EncodedBatches
from frugalvit.data.gpu_jpeg import decoder_for, decodes_on, plain_jpeg
from frugalvit.data.numbered import NumberedBatches, stand_ins
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.source import Source
from frugalvit.data.store import Store, default_place, spots
from frugalvit.data.store_build import OneByOne, open_or_build
from frugalvit.data.store_device import SHARE, OnDevice, free_memory, to_device
from frugalvit.data.store_files import gigabytes
from frugalvit.errors import DataError, FrugalError, SpecError
from frugalvit.training.devices import Place
from frugalvit.training.recipe import Recipe, Stored
from frugalvit.training.teacher import Teacher

Progress = Callable[[int, int], None]
Batches = TrainingBatches | EncodedBatches | NumberedBatches

PATH = "recipe.path"
CUDA = "cuda"  # where `auto` leaves the plain path
OTHERWISE = "path=auto finds another way."
LOADING = threading.Lock()
KEPT: WeakValueDictionary[tuple[str, str], OnDevice] = WeakValueDictionary()  # trainings at the same time share their pictures


@dataclass(frozen=True)
class Way:
    """What was chosen, and why."""

    path: Literal["plain", "sent", "decoded", "kept"]
    kept: OnDevice | None
    batches: Batches
    note: str


class Unfit(FrugalError):
    """Why a path cannot be taken here."""


def way_for(
    recipe: Recipe,
    source: Source,
    preprocess: Preprocess,
    place: Place,
    teacher: Teacher | None,
    workers: int,
    progress: Progress,
) -> Way:
    """The path that the recipe names; for `auto`, the fastest that this device and these pictures allow.

    `progress` is told how many pictures have been decoded, of how many.
    """
    data = recipe.data
    if recipe.path == "decoded" and data.store is not None:
        raise SpecError("files are decoded on the way, and data.store decodes them once. Leave one of the two out.", path=PATH)
    if data.store is not None:
        source = stored(data.store, source, preprocess.mode, place, workers, progress)
    batches = TrainingBatches(source, data.augment, data.order, recipe.seed, recipe.batch, preprocess, data.unreadable)
    if recipe.path == "plain" or (recipe.path == "auto" and place.device.type != CUDA):
        return Way("plain", None, batches, "")
    reasons = []
    try:
        refuse_plain_parts(recipe, place, teacher)
        if recipe.path == "decoded":
            return decoded_way(batches, place)
        if recipe.path != "sent":
            try:
                return kept_way(recipe, source, preprocess, place, workers, progress)
            except (Unfit, DataError, SpecError) as error:
                if recipe.path == "kept":
                    raise
                reasons.append(f"pictures are augmented by the host (path=sent), not on the device: {error.problem}")
        return Way("sent", None, batches, "; ".join(reasons))
    except Unfit as error:
        if recipe.path != "auto":
            raise SpecError(f"{error.problem} {OTHERWISE}", path=PATH) from error
        return Way("plain", None, batches, f"the step is not captured (path=plain): {error.problem}")


def stored(spec: Stored, source: Source, mode: str, place: Place, workers: int, progress: Progress) -> Store:
    """The training pictures in a store of their own in the cache."""
    decoder = decoder_for(place.device) if spec.decoder == "device" else OneByOne()
    where = default_place(source.fingerprint(), mode, spec.limit, decoder.name)
    return open_or_build(source, where, mode=mode, limit=spec.limit, workers=workers, progress=progress, decoder=decoder)


def refuse_plain_parts(recipe: Recipe, place: Place, teacher: Teacher | None) -> None:
    """What a captured step needs."""
    if teacher is not None and not teacher.captured:
        raise Unfit(f"the teacher, {teacher.name}, cannot be part of a CUDA graph.")
    if place.scales_loss:
        raise Unfit("fp16 scales its loss by steps of its own. Use bf16 or fp32.")
    try:
        if recipe.data.erase is not None:
            erase(recipe.data.erase)
        mix(recipe.data.mix, recipe.model.classes or 1, 0.0)
    except SpecError as error:
        raise Unfit(error.problem) from error


def decoded_way(batches: TrainingBatches, place: Place) -> Way:
    """Files on their way to the device, which decodes them. Unfit where it cannot, or where there is nothing to decode."""
    preprocess, source = batches.preprocess, batches.source
    cropped_first(batches.augment, preprocess, "decodes")
    if not decodes_on(place.device):
        raise Unfit(f"no JPEG can be decoded by {place.device} here: torchvision lacks what it takes.")
    if all(plain_jpeg(source, index, preprocess.mode) is None for index in spots(len(source))):
        raise Unfit("of the pictures that were tried, none is a JPEG file that a device decodes.")
    return Way("decoded", None, EncodedBatches(batches), "")


def cropped_first(augment: Augment, preprocess: Preprocess, does: str) -> ResizedCrop:
    """The crop that brings pictures of several sizes to one, on a device that can do what comes behind it."""
    first, *rest = augment.steps
    if not isinstance(first, ResizedCrop):
        kind = type(first).__name__
        raise Unfit(
            f"pictures of many sizes that the device {does} must be cropped first (ResizedCrop), and here {kind} is first."
        )
    size = preprocess.height, preprocess.width
    part_of_pipeline(rest, MapSize(*size, len(preprocess.mean)), size)
    return first


def kept_way(recipe: Recipe, source: Source, preprocess: Preprocess, place: Place, workers: int, progress: Progress) -> Way:
    """All pictures on the device. Unfit where they are too many, or need what only the host can do."""
    sizes = some_sizes(source)
    refuse_sizes(recipe, set(sizes), preprocess)
    pixels = sum(height * width for height, width in sizes) / len(sizes)
    size, free = round(len(source) * len(preprocess.mean) * pixels), free_memory(place.device)
    if size > SHARE * free:
        raise Unfit(f"{gigabytes(size)} of pictures are more than {SHARE:.0%} of the {gigabytes(free)} that are free.")
    store = source
    if not (isinstance(source, Store) and source.mode == preprocess.mode):
        where = default_place(source.fingerprint(), preprocess.mode, None)
        store = open_or_build(source, where, mode=preprocess.mode, limit=None, workers=workers, progress=progress)
    assert isinstance(store, Store)
    every = zip(store.heights, store.widths, strict=True)
    found = {(int(high), int(wide)) for place, (high, wide) in enumerate(every) if place not in store.unreadable}
    refuse_sizes(recipe, found or set(sizes), preprocess)
    if store.unreadable and recipe.data.unreadable == "refused":
        first = next(iter(store.unreadable))
        raise DataError("cannot be read, and the recipe refuses such pictures (data.unreadable).", path=store.name(first))
    kept, note = shared(store, place)
    readable = np.ones(len(store), dtype=bool)
    readable[list(store.unreadable)] = False
    names = {index: source.name(index) for index in store.unreadable}
    batches = NumberedBatches(source.labels, recipe.data.order, recipe.seed, recipe.batch, stand_ins(readable), names)
    return Way("kept", kept, batches, note)


def refuse_sizes(recipe: Recipe, sizes: set[tuple[int, int]], preprocess: Preprocess) -> None:
    """Pictures of such heights and widths that a device cannot augment, or that only who asks for it keeps there."""
    largest = max(high for high, _ in sizes), max(wide for _, wide in sizes)
    target = preprocess.height, preprocess.width
    if len(sizes) == 1:
        pipeline(recipe.data.augment, MapSize(*largest, len(preprocess.mean)), target)
        return
    crop = cropped_first(recipe.data.augment, preprocess, "keeps")
    if recipe.path == "auto" and recipe.data.store is None:  # files may hold far more pixels than are needed
        limit = 2 * min(target)
        raise Unfit(f"the pictures differ in size. 'data.store=Stored({limit})' decodes them once, for the device to keep.")
    refuse_large(crop, sizes, target)


def refuse_large(crop: ResizedCrop, sizes: set[tuple[int, int]], target: tuple[int, int]) -> None:
    """Pictures, one of which shrinks by more than a captured step spells out."""
    high, wide = (largest_source(side, crop.interpolation) for side in target)
    largest = max(sizes, key=lambda size: max(size[0] / high, size[1] / wide))
    if largest[0] <= high and largest[1] <= wide:
        return
    limit = min(int(min(high / size[0], wide / size[1]) * min(size)) for size in sizes)
    cure = f" data.store=Stored({limit}), which limits the shorter side, makes all small enough."
    raise Unfit(
        f"there is a picture of {largest[1]} x {largest[0]} pixels, and for a model of {target[1]} x {target[0]} those "
        f"that are kept have at most {wide} x {high}.{cure if limit >= min(target) else ''}"
    )


def shared(store: Store, place: Place) -> tuple[OnDevice, str]:
    """The pictures of a store on the device, where another training may have put them already."""
    where = str(store.file), str(place.device)
    with LOADING:
        if where in KEPT:
            return KEPT[where], f"all {gigabytes(store.bytes)} of pictures are on {place.device} already."
        kept, note = to_device(store, place.device)
        if kept is None:
            raise Unfit(note)
        KEPT[where] = kept
        return kept, note


def some_sizes(source: Source) -> list[tuple[int, int]]:
    """Height and width of some pictures, evenly spread."""
    sizes = []
    for index in spots(len(source)):
        try:
            width, height = source.picture(index).size
        except DataError:
            continue
        sizes.append((height, width))
    if not sizes:
        raise Unfit("the pictures that were tried cannot be read.")
    return sizes


def with_path(recipe: Recipe, way: Way) -> Recipe:
    """The recipe as it is trained: the path is part of it, since its draws are."""
    return replace(recipe, path=way.path)
