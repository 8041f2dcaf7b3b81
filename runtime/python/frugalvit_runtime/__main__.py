"""python -m frugalvit_runtime MODEL PICTURE...: the most probable classes of pictures."""

from __future__ import annotations

import argparse
import io
import os
import sys

import frugalvit_runtime
from frugalvit_runtime import Model


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m frugalvit_runtime", description="The most probable classes of pictures.")
    parser.add_argument("model", help="a packed file")
    parser.add_argument("picture", nargs="+", help="JPEG, PNG, or binary PPM or PGM")
    parser.add_argument("--top", type=int, default=5, help="how many classes to show")
    parser.add_argument("--threads", type=int, help="default: FRUGALVIT_THREADS, or all that the process may use")
    parser.add_argument("--version", action="version", version=f"frugalvit_runtime {frugalvit_runtime.__version__}")
    return parser


def say(problem: str, path: str = "") -> int:
    """One line, with the file's name in front; the exit status."""
    named = not path or problem.startswith(f"{path}: ")
    print(f"frugalvit_runtime: {problem if named else f'{path}: {problem}'}", file=sys.stderr)
    return 1


def classify(options: argparse.Namespace) -> int:
    """Prints the classes of each picture; 1 where one of them, or the model, cannot be used."""
    if options.top < 1:
        return say(f"--top {options.top}: use 1 or more")
    try:
        model = Model(options.model, options.threads)
    except MemoryError:
        return say("not enough memory", options.model)
    except ValueError as error:
        return say(str(error))
    status = 0
    for picture in options.picture:
        try:
            classes = model.classify(picture, options.top)
        except MemoryError:
            status = say("not enough memory", picture)
        except ValueError as error:
            status = say(str(error), picture)
        else:
            print(picture, *(f"  {100 * probability:5.1f} %  {label}" for label, probability in classes), sep="\n", flush=True)
    return status


def main() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files that are not UTF-8
    try:
        try:
            return classify(parser().parse_args())
        finally:
            print(end="", flush=True)  # what --help has said
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python then leaves what it could not write
        if isinstance(error, BrokenPipeError):  # whoever read has enough
            return 0
        return say(f"standard output: cannot be written ({error.strerror})")


if __name__ == "__main__":
    sys.exit(main())
