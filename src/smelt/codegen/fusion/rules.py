"""All rules by the operator's name: how an element of a result comes of elements of operands."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.codegen.fusion.activations import ACTIVATIONS
from smelt.codegen.fusion.creation import CREATION
from smelt.codegen.fusion.indexing import INDEXING
from smelt.codegen.fusion.norms import NORMS
from smelt.codegen.fusion.pointwise import POINTWISE
from smelt.codegen.fusion.pull import Rule
from smelt.codegen.fusion.reductions import REDUCTIONS
from smelt.codegen.fusion.views import VIEWS
from smelt.codegen.fusion.windows import WINDOWS

RULES: Mapping[str, Rule] = MappingProxyType(
    {**POINTWISE, **ACTIVATIONS, **REDUCTIONS, **NORMS, **INDEXING, **WINDOWS, **CREATION, **VIEWS}
)
"""Every operator that a nest can compute; whether it can for given types is told by building it."""
