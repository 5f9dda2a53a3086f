"""What machine code and plans of an ingot rely on beside the format: the executor's words, and the kernels' arguments.

Invariant: it changes with each change of what a plan or a table means, so that native code of another state of Smelt is
left alone and the program is compiled again from its graph.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from smelt.diag.records import names_of
from smelt.runtime import filters, plan, recipes
from smelt.runtime.encoding import table
from smelt.runtime.ingot.texts import held_json

# Raised where the meaning of a plan changes, and no name or number of it does.
_MEANING = 2


@lru_cache(maxsize=1)
def abi() -> str:
    """The digest of all that native code of this state of Smelt relies on."""
    enums = (table.Op, table.Cell, table.Launched, table.TeamWord, table.Arith, table.Status, table.Field)
    shown = [f"{enum.__name__}.{name}={int(value)}" for enum in enums for name, value in enum.__members__.items()]
    records = [getattr(module, name) for module in (plan, recipes, filters, held_json) for name in sorted(vars(module))]
    for record in records:
        names = names_of(record) if isinstance(record, type) else None
        if names is not None:
            shown.append(f"{record.__name__}({', '.join(names)})")
    return hashlib.sha256("\n".join([str(_MEANING), *shown]).encode()).hexdigest()[:32]
