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
from smelt.ops.catalogue.onnx import ONNX_FORMS, WHY_NOT
from smelt.ops.catalogue.packed import PACKED
from smelt.ops.catalogue.pointwise import POINTWISE
from smelt.ops.catalogue.products import PRODUCTS
from smelt.ops.catalogue.recurrent import RECURRENT
from smelt.ops.catalogue.reductions import REDUCTIONS
from smelt.ops.catalogue.synonyms import SYNONYMS
from smelt.ops.catalogue.views import VIEWS
from smelt.ops.record import Gradient, OnnxForm, OpRecord, Slot

_BARE = (
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


def _whole(record: OpRecord) -> OpRecord:
    """A record with what stands beside the other gradients, and the other forms."""
    why = {Slot.ONNX: WHY_NOT[record.name]} if record.name in WHY_NOT else {}
    return replace(
        record,
        vjp=GRADIENTS.get(record.name),
        onnx=ONNX_FORMS.get(record.name),
        why_not=MappingProxyType({**record.why_not, **why}),
    )


CATALOGUE: tuple[OpRecord, ...] = tuple(map(_whole, _BARE))
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


def onnx_form(op: str) -> OnnxForm | None:
    """What an overload, or an operator of Python's, is in ONNX; it may have no record. None where it has no form."""
    return ONNX_FORMS.get(op)
