"""What is worth a word before a training starts."""

from __future__ import annotations

from collections.abc import Iterator

from frugalvit.advise.rules import LOCAL, SMALL_SIDE
from frugalvit.data.folder import SPLIT_OF, ImageFolder
from frugalvit.data.preprocess import Preprocess
from frugalvit.measure.bits import one_bit_weights
from frugalvit.training.adapt import listed
from frugalvit.training.one_bit import precision_of
from frugalvit.training.optimizer import Optimizer, Sgd, peak_lr
from frugalvit.training.paths import Unfit, some_sizes
from frugalvit.training.prepare import Training
from frugalvit.training.recipe import Recipe
from frugalvit.training.tune import Everything
from frugalvit.weights.published import Published

KNOWN_LR = {"AdamW": (1e-6, 1e-2), "Sgd": (1e-4, 1.0), "Muon": (1e-6, 0.1)}  # of the papers' recipes, per 256 pictures
GENTLE_LR = {"AdamW": 2e-3, "Sgd": 0.1, "Muon": 2e-3}  # at most, where weights are given; those of our transfers are a tenth


def cautions(training: Training) -> Iterator[str]:
    """What is worth a word before the first step."""
    recipe = training.recipe
    peak = peak_lr(recipe.optimizer, recipe.pictures)
    held = f", {len(training.sources['val'])} for validation" if "val" in training.sources else ""
    yield (
        f"{len(training.sources['train'])} pictures{held}, {recipe.pictures} a step, {training.clock.total} steps; "
        f"peak learning rate {peak:.3g}; {training.place.device}, {precision_of(training.state.module, training.place)}"
    )
    yield from filter(None, (training.note, resizing(training)))
    store, side = recipe.data.store, min(training.preprocess.height, training.preprocess.width)
    if store is not None and store.limit is not None and store.limit < side:
        small = f"pictures are stored with {store.limit} pixels on their shorter side and enlarged for the model"
        yield f"caution: {small}, which takes {side}"
    if recipe.batch > len(training.sources["train"]):
        yield f"caution: {recipe.batch} pictures a batch are more than there are, so that some repeat within it"
    places = recipe.data.order.length(len(training.sources["train"]))
    left, fewer = places % recipe.batch, places // (places // recipe.batch + 1)
    if places > recipe.batch and left > places / 10:
        yield (
            f"caution: {left} of the {places} pictures of an epoch fill no batch of {recipe.batch} and are left out, others "
            f"each time; batch={fewer} leaves out {places % fewer}"
        )
    yield from unseen(training)
    if "val" in training.sources:
        yield from unmeasured(training)
    if not training.framed:
        yield "no pictures are held out, so none will say how good the model is; data.dataset.holdout keeps some of each class"
    parameters = dict(training.state.module.named_parameters())
    learning = recipe.tune.starts(training.state.module)
    frozen = [name for name, one in parameters.items() if not one.requires_grad and name.startswith(learning)]
    if frozen:
        yield f"{len(frozen)} of {len(parameters)} parameter tensors are frozen (requires_grad) and stay so, {frozen[0]} first"
    answering = getattr(training.state.module, "answering", ())
    if len(answering) > 1:
        yield f"validation takes the mean of the heads {', '.join(answering)}"
    idle = [] if answering else [head for head in recipe.model.heads if head not in training.answering]
    if idle and training.answering:
        alone = len(training.answering) == 1
        who = "validation and the saved model answer by" if alone else "the saved model answers by all heads, validation by"
        yield f"caution: no term of the objective teaches the head {', '.join(idle)}; {who} {', '.join(training.answering)}"
    elif idle:
        yield "caution: no term of the objective teaches a head, so that what the model answers is left to chance"
    warm_up = getattr(recipe.schedule, "warmup", None)
    if warm_up is not None and warm_up.steps(training.clock.per_epoch, training.clock.total) >= training.clock.total:
        yield "caution: the warm-up is as long as the training, so the peak learning rate is never reached (schedule.warmup)"
    low, high = KNOWN_LR[type(recipe.optimizer).__name__]
    per = per_256(recipe)
    one_bit = any(True for _ in one_bit_weights(training.state.module))  # the papers' rates are not for these
    if one_bit and recipe.average is not None:
        yield "caution: the signs of averaged weights are not those that the norms have seen (average); use none with one bit"
    if not low <= per <= high and not one_bit:
        known = f"what is known to work with {kind_of(recipe.optimizer)}, {low:g} to {high:g}"
        yield f"caution: a learning rate of {per:.2g} per 256 pictures is outside {known}"
    alike = [name for name in training.sources["train"].classes if name.lower() in SPLIT_OF]
    if alike and isinstance(recipe.data.dataset, ImageFolder):
        yield f"caution: the folder {', '.join(alike)} is a class here, beside others, and no split"
    if recipe.data.validate == "test":
        yield "caution: validation reads the test pictures (data.validate=test), so the best epoch is chosen by them"


def unseen(training: Training) -> Iterator[str]:
    """A word on classes of which there is nothing to learn."""
    train = training.sources["train"]
    seen = {*train.labels.tolist()}
    if missing := [name for label, name in enumerate(train.classes) if label not in seen]:
        from_one = missing == ["0"]
        why = ". Are labels counted from 1?" if from_one else ""
        yield f"caution: no training picture is of {listed(missing)}{why}"


def unmeasured(training: Training) -> Iterator[str]:
    """A word on classes that are trained and never seen in validation."""
    train, val = training.sources["train"], training.sources["val"]
    missing = sorted({*train.labels.tolist()} - {*val.labels.tolist()})
    if missing:
        names, them = listed(train.classes[label] for label in missing), "it" if len(missing) == 1 else "them"
        yield f"caution: no validation picture is of {names}: what is learned of {them} is not measured"


def start_cautions(training: Training, init: str) -> Iterator[str]:
    """What is worth a word of the weights that a training begins from, or of beginning from none."""
    recipe, pictures = training.recipe, len(training.sources["train"])
    side, per, gentle = training.preprocess.height, per_256(recipe), GENTLE_LR[type(recipe.optimizer).__name__]
    if not init and side > SMALL_SIDE and pictures < LOCAL:
        few = f"{pictures} pictures are few for fresh weights at {side} pixels"
        yield f"caution: {few}; --init takes released ones, and `frugalvit advise --data ...` says what fits"
    frozen = not isinstance(recipe.tune, Everything)
    if not init and frozen:
        how = type(recipe.tune).__name__
        yield f"caution: by tune={how} all that is before the heads stays as it was drawn, at random; --init takes weights"
    if init and not frozen and gentle < per <= KNOWN_LR[type(recipe.optimizer).__name__][1]:
        per_setting = recipe.optimizer.per or recipe.pictures  # pictures a step that `lr` is meant for
        rate = f"a learning rate of {per:.2g} per 256 pictures may undo what the given weights have learned"
        setting = gentle * per_setting / 256
        known = f"with {kind_of(recipe.optimizer)}, {gentle:g} and less is known to keep it (optimizer.lr={setting:.2g})"
        yield f"caution: {rate}; {known}"


def per_256(recipe: Recipe) -> float:
    """The peak learning rate for 256 pictures a step."""
    return peak_lr(recipe.optimizer, recipe.pictures) * 256 / recipe.pictures


def kind_of(optimizer: Optimizer) -> str:
    return "SGD" if isinstance(optimizer, Sgd) else type(optimizer).__name__


def resizing(training: Training) -> str:
    """A word where the pictures have one size and the model takes another; photographs of several are always resized."""
    try:
        sizes = set(some_sizes(training.sources["train"]))
    except Unfit:
        return ""
    return training.preprocess.resizing(*sizes.pop()) if len(sizes) == 1 else ""


def other_colors(preprocess: Preprocess, released: Published | None) -> Iterator[str]:
    """A caution where released weights have learned from pictures that were normalized otherwise."""
    if released is None or len(preprocess.mean) != 3:
        return
    if (preprocess.mean, preprocess.std) != (released.mean, released.std):
        words = (f"data.{name}={','.join(map(str, getattr(released, name)))}" for name in ("mean", "std"))
        yield f"caution: {released.name} has learned from pictures of other colors; say {' '.join(words)}"
