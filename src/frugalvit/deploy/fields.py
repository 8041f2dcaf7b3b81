"""An object of a packed program, read strictly: every name in it must be asked for, and none may be left over."""

from __future__ import annotations

from typing import Any, NoReturn

from frugalvit.errors import WeightsError, first_line, join, suggestion


class Fields:
    """The names of an object at `path` of the program."""

    def __init__(self, value: Any, path: str):
        self.path = path
        self.asked: set[str] = set()
        if not isinstance(value, dict):
            self.refuse(f"{shown(value)} is no object. Use names and values in braces.")
        self.value: dict[str, Any] = value

    def refuse(self, problem: str, name: str = "") -> NoReturn:
        raise WeightsError(problem, path=join(self.path, name))

    def get(self, name: str) -> Any:
        self.asked.add(name)
        if name not in self.value:
            self.refuse("is missing. The format asks for it.", name)
        return self.value[name]

    def text(self, name: str) -> str:
        return self.text_of(self.get(name), name)

    def text_of(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            self.refuse(f"{shown(value)} is no text. Use one in quotes.", name)
        return value

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, list):
            self.refuse(f"{shown(value)} is no list. Use values in brackets.", name)
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        return self.whole_of(self.get(name), name, least, most)

    def whole_of(self, value: Any, name: str, least: int, most: int) -> int:
        if type(value) is not int or not least <= value <= most:
            fitting = f"{least}" if least == most else f"a whole number from {least} to {most}"
            self.refuse(f"{shown(value)} does not fit. Use {fitting}.", name)
        return value

    def number(self, name: str) -> float:
        return self.number_of(self.get(name), name)

    def number_of(self, value: Any, name: str) -> float:
        if type(value) not in (int, float):
            self.refuse(f"{shown(value)} is no number. Use one.", name)
        return float(value)

    def inner(self, name: str) -> Fields:
        return Fields(self.get(name), join(self.path, name))

    def done(self) -> None:
        for name in self.value:
            if name not in self.asked:
                self.refuse(f"the name {shown(name)} is unknown. {suggestion(name, self.asked)}")


def shown(value: Any) -> str:
    """A value of the file, as far as it is short."""
    return first_line(repr(value))[:60]
