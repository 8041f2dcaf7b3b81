"""`python -m frugalvit`."""

from frugalvit.cli import main

main()
