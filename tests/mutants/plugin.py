"""For pytest runs over a copy of the sources: the copy is what is imported, a failing example is not made small, and
nothing goes on when the tool that started the run is gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
from importlib.util import find_spec
from pathlib import Path

from hypothesis import Phase, settings

from tests.mutants.mutant import TREE

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux

if hasattr(ctypes.CDLL(None), "prctl"):
    # A bug may show as a run that never ends.
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)

settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)
settings.load_profile("mutants")

_spec = find_spec("smelt")
if _spec is None or _spec.origin is None or not Path(_spec.origin).is_relative_to(os.environ[TREE]):
    raise ImportError(f"smelt is imported from {_spec and _spec.origin}, not from the copy in {os.environ[TREE]}")
