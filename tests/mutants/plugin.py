"""For pytest runs over a copy of the sources: the copy is what is imported, and a failing example is not made small."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from hypothesis import Phase, settings

from tests.mutants.mutant import TREE

settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)
settings.load_profile("mutants")

_spec = find_spec("smelt")
if _spec is None or _spec.origin is None or not Path(_spec.origin).is_relative_to(os.environ[TREE]):
    raise ImportError(f"smelt is imported from {_spec and _spec.origin}, not from the copy in {os.environ[TREE]}")
