"""What earlier formats lack of the present one.

    format 1  -- to_2 -->  format 2  -- to_3 -->  format 3  -- to_4 -->  the present one

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


def _to_4(manifest: dict[str, Any]) -> dict[str, Any]:
    """Packed entries, the manifest's own larger part among them: format 3 has all as it is."""
    entries, head = manifest.get("entries"), ("format", "smelt", "torch", "abi")
    if isinstance(entries, dict):
        entries = {name: [*each, None] if isinstance(each, list) else each for name, each in entries.items()}
    rest = {key: value for key, value in manifest.items() if key not in (*head, "entries")}
    return {key: manifest[key] for key in head if key in manifest} | {"entries": entries, "program": rest}


UPGRADES: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (_to_2, _to_3, _to_4)
"""From each format to the next."""
