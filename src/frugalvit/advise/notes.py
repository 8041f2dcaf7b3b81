"""What is worth a word beside the choices: odd pictures, nothing to measure on, times that nobody waits."""

from __future__ import annotations

from frugalvit.advise.facts import Facts

FEW = 10  # pictures of a class, as in `data check`
LARGE = 1024  # pixels, as in `data check`
LONG = 14 * 24  # hours
VAL = {  # where validation pictures of one's own are looked for
    "ImageFolder": "val/<class>/, beside train/<class>/",
    "LabelTable": "rows whose split is val",
    "ArrayFolder": "val_images.npy and val_labels.npy",
}


def of_data(facts: Facts) -> tuple[str, ...]:
    """What else there is to know of the pictures."""
    found = []
    if facts.unreadable:
        found.append(
            f"{len(facts.unreadable)} of {facts.looked} pictures that were looked at cannot be read (the first: "
            f"{facts.unreadable[0]}). Training replaces them by others; `frugalvit data check` names all."
        )
    if facts.least < FEW:
        cure = "Add some, or merge classes." if facts.classes > 2 else "Add some."
        found.append(f"The smallest class has {counted(facts.least)}. {cure}")
    if facts.gray == facts.looked - len(facts.unreadable) and facts.known != "digits":
        found.append("The pictures are gray. They are read as color pictures.")
    elif facts.gray and facts.known != "digits" and not facts.known:
        found.append(f"{facts.gray} of {facts.looked} pictures looked at are gray; all are read as color pictures.")
    if facts.side > LARGE:
        found.append("The pictures are large. Shrink them once, to 512 or so: decoding would take most of the time.")
    if not facts.held:
        found.append(unheld(facts))
    return tuple(found)


def unheld(facts: Facts) -> str:
    """Why no picture is for validation, and what to do."""
    kind = facts.dataset.partition("(")[0]
    told = "so training tells no accuracy"
    add = f"put others into {VAL[kind]}" if kind in VAL else "hold others back, and measure on them (`evaluate`)"
    if facts.most == 1:
        return f"No picture can be held out for validation: every class has only one, {told}. Add pictures, or {add}."
    return f"No picture is held out for validation, {told}. Leave holdout=0 out, or {add}."


def counted(pictures: int) -> str:
    return f"{pictures:,} picture{'s' * (pictures != 1)}"


def all_pictures(recipe: str, pictures: int, facts: Facts) -> tuple[str, ...]:
    """A word where a recipe learns from what the data set would hold out, as papers do."""
    if pictures <= facts.pictures:
        return ()
    return (f"{recipe} learns from all {pictures:,} pictures, as in its paper. Hold some out: data.dataset.holdout=0.1.",)


def too_long(takes: float, hours: float | None) -> tuple[str, ...]:
    """A word where nobody would wait."""
    if hours is not None or takes <= LONG:
        return ()
    return ("That is longer than anyone waits. Say --hours for what fits this machine, or advise on a faster one.",)
