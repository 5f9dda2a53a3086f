"""The command line: `smelt <command>`. Each command is a module here; `app` lists them."""

from smelt.cli.app import app, main

__all__ = ["app", "main"]
