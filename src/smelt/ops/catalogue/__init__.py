"""The catalogue: one record per operator that Smelt knows more of than torch's registry says.

Invariant: an explicit tuple; nothing registers itself. Every overload that is not here works through the registry.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from smelt.ops.catalogue.creation import CREATION
from smelt.ops.catalogue.gradients import GRADIENTS
from smelt.ops.catalogue.indexing import INDEXING
from smelt.ops.catalogue.layers import LAYERS
from smelt.ops.catalogue.nn import NN
from smelt.ops.catalogue.packed import PACKED
from smelt.ops.catalogue.pointwise import POINTWISE
from smelt.ops.catalogue.products import PRODUCTS
from smelt.ops.catalogue.recurrent import RECURRENT
from smelt.ops.catalogue.reductions import REDUCTIONS
from smelt.ops.catalogue.synonyms import SYNONYMS
from smelt.ops.catalogue.views import VIEWS
from smelt.ops.record import Gradient, OpRecord

_WITHOUT_GRADIENTS = (
    *POINTWISE,
    *REDUCTIONS,
    *VIEWS,
    *INDEXING,
    *CREATION,
    *PRODUCTS,
    *NN,
    *LAYERS,
    *RECURRENT,
    *PACKED,
    *SYNONYMS,
)
CATALOGUE: tuple[OpRecord, ...] = tuple(replace(r, vjp=GRADIENTS.get(r.name)) for r in _WITHOUT_GRADIENTS)
_BY_NAME = MappingProxyType({record.name: record for record in CATALOGUE})


_FAMILIES = {
    "pointwise": POINTWISE, "reduction": REDUCTIONS, "movement": VIEWS, "gather": INDEXING, "creation": CREATION,
    "product": PRODUCTS, "neural": NN, "layer": LAYERS, "recurrent": RECURRENT, "packed": PACKED,
}  # fmt: skip
_FAMILY_OF = MappingProxyType({record.name: family for family, records in _FAMILIES.items() for record in records})


def family_of(op: str) -> str:
    """What kind of operator an overload is, for people ("pointwise", "movement", ...); "other" without a record."""
    return _FAMILY_OF.get(op, "other")


def record_of(op: str) -> OpRecord | None:
    """What the catalogue says of an overload, or None."""
    return _BY_NAME.get(op)


def gradient_of(op: str) -> Gradient | None:
    """The gradient of an overload, which may have no record; None where it has none of ours."""
    return GRADIENTS.get(op)
