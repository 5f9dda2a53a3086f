"""Which values a plan holds as tensors, which as numbers, and which as objects of Python.

Invariant: every value has exactly one of these forms, told by its type alone.
"""

from __future__ import annotations

from smelt.ir import BOOL, FLOAT, INT, NONE, Node, TensorType, TupleType, Type
from smelt.runtime.plan import Kind

_KINDS: dict[Type, Kind] = {INT: "int", FLOAT: "float", BOOL: "bool"}


def kind_of(type_: Type) -> Kind:
    """What a slot for a value that is no plain tensor holds."""
    return _KINDS.get(type_, "object")


def is_number(type_: Type) -> bool:
    """Whether native code computes with values of this type: an int, a float or a bool."""
    return type_ in _KINDS


def is_plain_type(type_: Type) -> bool:
    """Whether it is a tensor that kernels take (strided, with memory, of known size), or a tuple of such."""
    if isinstance(type_, TupleType):
        return all(isinstance(t, TensorType) and is_plain_type(t) for t in type_.elements)
    if not isinstance(type_, TensorType) or not type_.is_static or type_.layout != "strided":
        return False
    return has_memory(type_.device)


def has_memory(device: str) -> bool:
    """Whether plans are made for tensors of a device: the CPU, or a GPU ("cuda:0")."""
    return device == "cpu" or device.startswith("cuda")


def is_plain(node: Node) -> bool:
    """Whether a node computes plain tensors of plain tensors: an operator of torch or of our own, without regions."""
    if node.regions or node.op.startswith("py."):
        return False
    plain = all(is_plain_type(v.type) for v in node.operands())
    return plain and all(is_plain_type(r.type) or (r.type == NONE and not r.users) for r in node.results)
