"""What earlier formats lack of the present one.

    format 1  -- to_2 -->  format 2  -- to_3 -->  format 3  -- ... -->  the present one

Invariant: an upgrade is written when a format changes, and never changed again; it takes any JSON, as what it gives is
checked like a file of the present format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def upgraded(manifest: dict[str, Any], version: int) -> dict[str, Any]:
    """A manifest of this format as one of the present one."""
    for upgrade in UPGRADES[version - 1 :]:
        manifest = upgrade(manifest)
    return manifest


def _to_2(manifest: dict[str, Any]) -> dict[str, Any]:
    """Training steps, free sizes, and schemas of operators: format 1 has none."""
    methods, more = manifest.get("methods"), {"trains": False, "grads": [], "free": None}
    if isinstance(methods, dict):
        methods = {name: method | more if isinstance(method, dict) else method for name, method in methods.items()}
    return manifest | {"methods": methods, "operators": {}}


def _to_3(manifest: dict[str, Any]) -> dict[str, Any]:
    """Matrices in panels: format 2 has none."""
    state = manifest.get("state")
    if isinstance(state, list):
        state = [[*each, None] if isinstance(each, list) else each for each in state]
    return manifest | {"state": state}


UPGRADES: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (_to_2, _to_3)
"""From each format to the next."""
