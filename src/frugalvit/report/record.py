"""Run folders: the recipe, the environment, and a log that survives being killed.

recipe.json        the run's identity; a folder without it is no run
environment.json   where it ran; environment-2.json and so on where a resumed run differs
metrics.jsonl      one line a record, append-only; "nan", "inf" and "-inf" stand for those numbers
summary.json       the results
.lock              held by the process that writes here
"""

from __future__ import annotations

import contextlib
import json
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from frugalvit.errors import DataError
from frugalvit.handles import let_go
from frugalvit.report.environment import environment as environment_here
from frugalvit.report.files import differences, in_bytes, lock, number, plain, read_json, write_json, write_whole, writing
from frugalvit.spec import shown

RECIPE, ENVIRONMENT, METRICS, SUMMARY, LOCK = "recipe.json", "environment.json", "metrics.jsonl", "summary.json", ".lock"

Value = float | int | str | None


class AnotherLength(DataError):
    """A run that is resumed with another length than it has, and nothing else; `found` says with which."""

    def __init__(self, found: str, *, path: str):
        super().__init__(f"{found}. Resume with the length it has, say --extend to change it, or use another --out.", path=path)
        self.found = found


class RunFolder:
    """A run on disk. `RunFolder(path)` reads one; `create` and `resume` also hold it for writing, until `close`."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, recipe: Mapping[str, Any], environment: Mapping[str, Any]) -> Self:
        """A new run in a folder that is missing or empty."""
        run = cls.locked(path)
        try:
            run.refuse_contents()
            run.begin(recipe, environment)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def resume(cls, path: Path, recipe: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> Self:
        """The run in that folder, if it has the same recipe; a new one where the folder is missing or empty."""
        run = cls.locked(path)
        now = environment if environment is not None else environment_here()
        try:
            run.sweep()
            if (path / RECIPE).exists():
                run.refuse_another(recipe)
                run.keep_whole_lines()
                run.note_environment(now)
            else:
                run.refuse_contents()
                run.begin(recipe, now)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def locked(cls, path: Path) -> Self:
        run = cls(path)
        with writing(path):
            if path.exists() and not (path / LOCK).exists() and not (path / RECIPE).exists():
                run.refuse_contents()  # before a lock file is left in a folder that is none of ours
            path.mkdir(parents=True, exist_ok=True)
        run._lock = lock(path / LOCK)
        return run

    def refuse_contents(self) -> None:
        """Raise unless the folder is empty, but for what a run that died at once leaves."""
        if not self.path.is_dir():
            raise DataError("is a file, not a folder. Choose another --out.", path=str(self.path))
        found = sorted(one.name for one in self.path.iterdir() if one.name not in (LOCK, ENVIRONMENT) and not is_part(one))
        if RECIPE in found and all(name == RECIPE or name.startswith("environment") for name in found):
            problem = (
                "holds a run that ended before anything of it was kept. Delete the folder, --resume it, or use another --out."
            )
            raise DataError(problem, path=str(self.path))
        if RECIPE in found:
            raise DataError(
                "holds a run already. Use --resume (in Python resume=True) to continue it, or another --out.",
                path=str(self.path),
            )
        if found:
            problem = f"is not empty ({', '.join(found[:3])}), and holds no run to --resume. Use another --out."
            raise DataError(problem, path=str(self.path))

    def refuse_another(self, recipe: Mapping[str, Any]) -> None:
        found = list(differences(self.recipe(), plain(recipe)))
        if found:
            first = "; ".join(f"{path} was {shown(old)}, now {shown(new)}" for path, old, new in found[:3])
            more = f" (+{len(found) - 3} more)" if len(found) > 3 else ""
            fields = {path.partition(".")[0] for path, _, _ in found}
            if fields == {"duration"}:
                raise AnotherLength(f"holds a run of another length: {first}{more}", path=str(self.path))
            what, cure = reading(fields)
            raise DataError(f"{what}: {first}{more}. {cure}, or use another --out.", path=str(self.path))

    def replace_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Another length for the same run."""
        write_json(self.path / RECIPE, recipe)

    def begin(self, recipe: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """The recipe comes last: with it, the folder is a run."""
        try:
            write_json(self.path / ENVIRONMENT, environment)
            write_json(self.path / RECIPE, recipe)
        except DataError:
            with contextlib.suppress(OSError):
                (self.path / ENVIRONMENT).unlink()
            raise

    def note_environment(self, environment: Mapping[str, Any]) -> None:
        earlier = [one for one in self.path.glob("environment*.json") if read_json(one) == plain(environment)]
        if not earlier:
            taken = len(list(self.path.glob("environment*.json")))
            write_json(self.path / (f"environment-{taken + 1}.json" if taken else ENVIRONMENT), environment)

    def places(self) -> set[tuple[str, str]]:
        """The kinds of device and the precisions that the run has had so far."""
        known = [read_json(one) for one in self.path.glob("environment*.json")]
        told = [one for one in known if {"device", "precision"} <= set(one)]
        return {(str(one["device"]).partition(":")[0], str(one["precision"])) for one in told}

    def sweep(self) -> None:
        """Remove what a killed writer left beside its target."""
        for one in filter(is_part, self.path.rglob(".*")):
            with writing(one):
                one.unlink(missing_ok=True)

    def append(self, values: Mapping[str, Value]) -> None:
        """One line of the log, in the file when this returns. Where there is no room for it, the log stays as it was."""
        assert self._lock is not None, "RunFolder(path) only reads; use create or resume"
        if not isinstance(values.get("step"), numbers.Integral):
            raise DataError("a line of the log needs a whole number as its 'step'.", path=str(self.path / METRICS))
        line = in_bytes(json.dumps(plain(values), allow_nan=False, ensure_ascii=False)) + b"\n"
        with writing(self.path / METRICS), (self.path / METRICS).open("ab", buffering=0) as file:
            start = file.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(start)
                raise

    def cut(self, step: int) -> None:
        """Drop the lines after `step`, and a half-written last one. Without a checkpoint, cut(-1) drops all."""
        kept = b"".join(line for line, values in self.lines() if values["step"] <= step)
        if kept != self.content():
            write_whole(self.path / METRICS, kept)

    def keep_whole_lines(self) -> None:
        content = self.content()
        if content and not content.endswith(b"\n"):
            write_whole(self.path / METRICS, b"".join(line for line, _ in self.lines()))

    def metrics(self) -> list[dict[str, Any]]:
        """The log. A last line that is being written, or never was to its end, is left out."""
        return [values for _, values in self.lines()]

    def lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        whole = self.content().rpartition(b"\n")[0]
        return [(line + b"\n", self.parsed(line, count)) for count, line in enumerate(whole.split(b"\n"), 1) if line]

    def parsed(self, line: bytes, count: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
            return {key: number(value) for key, value in found.items()} | {"step": int(found["step"])}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            where = f"{self.path / METRICS} line {count}"
            raise DataError("is no record of a run. Remove the line, or restore the file.", path=where) from error

    def content(self) -> bytes:
        if not (self.path / RECIPE).exists():
            raise DataError(f"is not a run: there is no {RECIPE} in it.", path=str(self.path))
        try:
            return (self.path / METRICS).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror}).", path=str(self.path / METRICS)) from error

    def recipe(self) -> dict[str, Any]:
        return read_json(self.path / RECIPE)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write the results, in place of earlier ones."""
        write_json(self.path / SUMMARY, values)

    def results(self) -> dict[str, Any]:
        """What `summary` wrote; empty for a run that has not ended."""
        path = self.path / SUMMARY
        return {key: number(value) for key, value in read_json(path).items()} if path.exists() else {}

    def debug_bundle_path(self, step: int) -> Path:
        """Where the caller may put what led to trouble at `step`: a folder, not made yet."""
        return self.path / "debug" / f"step-{step:08d}"

    def close(self) -> None:
        if self._lock is not None:
            let_go(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def is_part(path: Path) -> bool:
    """Whether a file is what a killed write left: ours end in .part, those of safetensors begin with .tmp."""
    return path.name.startswith(".") and (path.suffix == ".part" or path.name.startswith(".tmp"))


def reading(fields: set[str]) -> tuple[str, str]:
    """What it means that a run differs in these fields of its recipe alone, and what to do."""
    if fields == {"data_fingerprint"}:
        return "holds a run of other pictures, which have changed since", "Resume with those it had"
    if fields == {"teacher_fingerprint"}:
        return "holds a run with another teacher, which has changed since", "Resume with the one it had"
    return "holds a run of another recipe", "Resume with the recipe it has"
