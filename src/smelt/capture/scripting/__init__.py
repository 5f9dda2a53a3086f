"""Graphs from source: a program is run on what its parameters may be, and nothing computes.

Read `run`, then `domain` and `runtime`; `calls` tells a call's kinds apart, `functions` and `builtins` answer for two.
"""

from smelt.capture.scripting.annotations import TensorAnnotation
from smelt.capture.scripting.run import Scripted, entry_of, script_graph

__all__ = ["Scripted", "TensorAnnotation", "entry_of", "script_graph"]
