"""The graph: types, values, nodes, regions; builder, printer, parser, verifier. Knows no op by name."""

from smelt.ir.builder import Builder
from smelt.ir.dims import UNKNOWN_DIM, Dim, Sym, SymExpr, UnknownDim
from smelt.ir.dtypes import DType
from smelt.ir.graph import Graph, parse
from smelt.ir.lexer import TextError
from smelt.ir.nodes import (
    Arg,
    Device,
    Layout,
    MemoryFormat,
    Node,
    Region,
    Value,
    clone_node,
    clone_region,
    map_values,
    values_in,
)
from smelt.ir.printer import arg_text, print_graph, print_node
from smelt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    DictType,
    ListType,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Type,
    contiguous_strides,
)
from smelt.ir.verifier import verify

__all__ = [
    "ANY",
    "BOOL",
    "COMPLEX",
    "FLOAT",
    "INT",
    "NONE",
    "STR",
    "UNKNOWN_DIM",
    "Arg",
    "Builder",
    "DType",
    "Device",
    "DictType",
    "Dim",
    "Graph",
    "Layout",
    "ListType",
    "MemoryFormat",
    "Node",
    "OptionalType",
    "Region",
    "ScalarType",
    "Sym",
    "SymExpr",
    "TensorType",
    "TextError",
    "TupleType",
    "Type",
    "UnknownDim",
    "Value",
    "arg_text",
    "clone_node",
    "clone_region",
    "contiguous_strides",
    "map_values",
    "parse",
    "print_graph",
    "print_node",
    "values_in",
    "verify",
]
