"""The command line as it begins, also by `python -m frugalvit`."""

import sys


def main() -> None:
    try:
        from frugalvit.cli import main as commands
    except KeyboardInterrupt:  # before anything has begun
        sys.exit(130)
    commands()


if __name__ == "__main__":
    main()
