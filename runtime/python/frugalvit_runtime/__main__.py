"""python -m frugalvit_runtime MODEL PICTURE...: the most probable classes of pictures."""

from __future__ import annotations

import argparse
import os
import sys

from frugalvit_runtime import FileError, Model


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m frugalvit_runtime", description="The most probable classes of pictures.")
    parser.add_argument("model", help="a packed file")
    parser.add_argument("picture", nargs="+", help="JPEG, PNG, or binary PPM or PGM")
    parser.add_argument("--top", type=int, default=5, help="how many classes to show")
    parser.add_argument("--threads", type=int, help="default: FRUGALVIT_THREADS, or all that the process may use")
    options = parser.parse_args()
    try:
        model = Model(options.model, options.threads)
        for picture in options.picture:
            classes = model.classify(picture, options.top)
            print(picture)
            for label, probability in classes:
                print(f"  {100 * probability:5.1f} %  {label}")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (FileError, ValueError) as error:
        print(f"frugalvit_runtime: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
