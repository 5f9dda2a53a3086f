"""What torch.export's `Dim`, `Dim.AUTO`, `Dim.DYNAMIC` and `Dim.STATIC` say, as plain data.

Invariant: nothing of torch.export is imported; a value of its classes is known by the class's module.
"""

from __future__ import annotations

from typing import Any, Literal

from smelt.diag.records import record

_MODULE = "torch.export.dynamic_shapes"
_HINTS = ("AUTO", "DYNAMIC", "STATIC")


@record
class ExportDim:
    """kind: a named size, one of torch's hints, or what has no meaning here (sizes derived from others)."""

    kind: Literal["named", "AUTO", "DYNAMIC", "STATIC", "unknown"]
    name: str | None = None
    min: int | None = None
    max: int | None = None


def export_dim(value: Any) -> ExportDim | None:
    """What a value of torch.export says of a size; None for anything else."""
    if type(value).__module__ != _MODULE:
        return None
    low, high = _bound(getattr(value, "min", None)), _bound(getattr(value, "max", None))
    hint = getattr(getattr(value, "type", None), "name", None)
    if hint in _HINTS:
        return ExportDim(hint, None, low, high)
    name = getattr(value, "__name__", None)
    if type(value).__name__ != "Dim" or not isinstance(name, str):
        return ExportDim("unknown")
    return ExportDim("named", name, low, high)


def _bound(value: Any) -> int | None:
    """A bound as an int; None where there is none, as torch's own infinity says."""
    return value if type(value) is int else None
