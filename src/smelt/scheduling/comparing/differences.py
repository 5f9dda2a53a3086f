"""What a schedule changed, as a diff that a person reads: of the module tree, and of each graph that steps edited."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import torch

from smelt.ir import Graph
from smelt.scheduling.graphs.scope_graphs import paths_with_steps
from smelt.scheduling.state import State

_ORIGIN = re.compile(r'  @ ".*$', re.MULTILINE)


def difference(before: State, after: State) -> str:
    """Unified diffs, one after the other; empty where nothing changed."""
    found = [_diff("modules", _tree(before.tree), _tree(after.tree))]
    for path in paths_with_steps(after.tree):
        scope = after.scope(path)
        earlier = before.scope(path).edited.graph if path in before.modules and before.scopes.get(path) else None
        first = scope.original if earlier is None else earlier
        found.append(_diff(path or "the whole", _rows(first), _rows(scope.edited.graph)))
    return "\n".join(text for text in found if text)


def _diff(name: str, before: Iterable[str], after: Iterable[str]) -> str:
    rows = difflib.unified_diff(list(before), list(after), f"{name}, before", f"{name}, after", lineterm="", n=2)
    return "\n".join(rows)


def _rows(graph: Graph) -> list[str]:
    return _ORIGIN.sub("", str(graph)).splitlines()


def _tree(tree: torch.nn.Module) -> list[str]:
    rows = []
    for path, module in tree.named_modules(remove_duplicate=False):
        said = module.extra_repr()
        own = f"{path or 'the whole'}: {type(module).__name__}" + (f"({said})" if said else "")
        rows.append(own.replace("\n", " "))
    return rows
