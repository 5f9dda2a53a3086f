"""Sizes that follow data, inside of plans of known sizes: tensors as long as they can get, with numbers that say how
much of them counts (`docs/decisions/0014-sizes-from-data.md`).

    %3: f32[_, 8] = aten.index.Tensor(%x, [%mask])      ==>      %3: f32[18, 8], %n: int

`padded(graph)` is the whole of it to the lowering; what has no such form stays on tensors of unknown size.
"""

from smelt.codegen.lower.unknown.rewriting import padded

__all__ = ["padded"]
