"""Ingots: saved programs in one file, read with what a shipped model needs and nothing more. See docs/ingots.md.

`natives` and `abi`, and with them all that runs plans, are imported with the first file that has native code: reading
weights and graphs needs none of it.
"""

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from smelt.runtime.ingot import abi, natives

__all__ = ["abi", "natives", "prepare"]


def prepare() -> None:
    """Import what runs plans, so that a program's first call has not to."""
    for name in ("natives", "abi"):
        _importlib.import_module(f"{__name__}.{name}")


if not TYPE_CHECKING:  # a type checker has the imports above

    def __getattr__(name: str) -> _Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _importlib.import_module(f"{__name__}.{name}")
