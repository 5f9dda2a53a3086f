"""Which matches a step is about, as data: the pattern, and which of its matches inside the step's module.

Invariant: ordinals count the matches of the pattern whose nodes all lie in the step's module, in program order.
"""

from __future__ import annotations

from typing import Any

from smelt.diag.records import record
from smelt.ir import Graph


@record
class Selector:
    """A pattern and which of its matches.

    pattern: as given to `find`. ordinals: None takes all. escaping: as given to `find`.
    """

    pattern: Any
    ordinals: tuple[int, ...] | None = None
    escaping: bool = False

    def __str__(self) -> str:
        name = self.pattern.name if isinstance(self.pattern, Graph) else self.pattern
        which = "" if self.ordinals is None else f", {list(self.ordinals)}"
        text = getattr(name, "__qualname__", None) or repr(name)
        return f"{text}{which}"
