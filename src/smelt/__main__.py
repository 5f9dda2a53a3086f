"""`python -m smelt` is the command `smelt`."""

from smelt.cli import main

main()
