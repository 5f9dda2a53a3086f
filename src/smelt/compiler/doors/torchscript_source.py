"""A graph of TorchScript as the source of one Python function.

    %h : Tensor = prim::If(%c)                        if v3:
      block0(): %1 = aten::mul(%x, %two) -> (%1)          v4 = torch.ops.aten.mul.Tensor(v0, 2)
      block1(): -> (%x)                           ==>     v5 = v4
                                                      else:
                                                          v5 = v0

Operators over tensors are the overloads that the graph names; those over numbers, lists and texts are Python's own,
also where `torch.jit.trace` has made tensors of sizes to compute with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import Schema, find_overload, read_schema
from smelt.diag import CaptureError

_ENDLESS = 2**63 - 1
_DTYPES: Mapping[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
_LAYOUTS: Mapping[int, torch.layout] = {0: torch.strided}
_FORMATS: Mapping[int, torch.memory_format] = {
    0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last, 3: torch.channels_last_3d,
}  # fmt: skip
_CODES: Mapping[str, Mapping[int, Any]] = {"ScalarType": _DTYPES, "Layout": _LAYOUTS, "MemoryFormat": _FORMATS}
"""What numbers stand for among the arguments of operators, by the argument's type."""

_INFIX: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "remainder": "%", "pow": "**", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "__and__": "and", "__or__": "or", "__is__": "is",
    "__isnot__": "is not", "__lshift__": "<<", "__rshift__": ">>",
}  # fmt: skip
_CALLS: Mapping[str, str] = {
    "Int": "int", "IntImplicit": "int", "Float": "float", "FloatImplicit": "float",
    "Bool": "bool", "len": "len", "list": "list", "abs": "abs", "min": "min", "max": "max", "__not__": "not ",
    "neg": "-", "str": "str", "round": "round", "sorted": "sorted", "sum": "sum", "ord": "ord", "bool": "bool",
}  # fmt: skip
_METHODS: Mapping[str, str] = {
    "append": "append", "extend": "extend", "insert": "insert", "pop": "pop", "clear": "clear", "reverse": "reverse",
    "copy": "copy", "keys": "keys", "values": "values", "items": "items", "format": "format", "dim": "dim",
    "numel": "numel", "is_floating_point": "is_floating_point", "item": "item", "get": "get", "stride": "stride",
}  # fmt: skip
_ATTRIBUTES: Mapping[str, str] = {
    "prim::dtype": "dtype", "prim::device": "device", "prim::layout": "layout", "prim::is_cuda": "is_cuda",
    "prim::data": "data", "prim::requires_grad": "requires_grad",
}  # fmt: skip
_SAME = ("prim::unchecked_cast", "prim::unchecked_unwrap_optional", "aten::_unwrap_optional", "aten::ScalarImplicit")


class Source:
    """The source of a script's forward. constants: names of values that it refers to; root: the plain module."""

    def __init__(self, script: torch.jit.ScriptModule, root: torch.nn.Module) -> None:
        self.script, self.root = script, root
        self.constants: dict[str, Any] = {_NOTHING: None}
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._plain: dict[str, Any] = {}
        self._numbers: set[str] = set()
        self._depth = 1

    def text(self) -> str:
        """The module's text. Raises: CaptureError (S0104)."""
        graph = self.script.inlined_graph
        owner, *inputs = graph.inputs()
        self._paths[owner.debugName()] = ""
        self._names[owner.debugName()] = "self"
        arguments = self.script.forward.schema.arguments[1:]
        parameters = []
        for value, argument in zip(inputs, arguments, strict=True):
            self._names[value.debugName()] = argument.name
            default = f" = {self._constant(argument.default_value)}" if argument.has_default_value() else ""
            parameters.append(f"{argument.name}{default}")
        self._block(graph.nodes())
        self._line(f"return {', '.join(map(self.name, graph.outputs()))}")
        return f"def forward({', '.join(('self', *parameters))}):\n" + "\n".join(self.lines) + "\n"

    # --- lines and names

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def name(self, value: Any) -> str:
        """The variable, or the literal, of a value."""
        found = self._names.get(value.debugName())
        if found is None:
            found = self._names[value.debugName()] = f"v{len(self._names)}"
        return found

    def _constant(self, value: Any) -> str:
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        if type(value) is float and abs(value) < float("inf"):
            return repr(value)
        if isinstance(value, torch.Tensor):  # of a frozen module
            name = f"constant_{len(list(self.root.buffers()))}"
            self.root.register_buffer(name, value.detach(), persistent=False)
            return f"self.{name}"
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _block(self, nodes: Iterator[Any]) -> None:
        for node in nodes:
            self._node(node)

    def _indented(self, block: Any, results: Sequence[str]) -> None:
        """A block's lines, and its results in these variables."""
        self._depth += 1
        before = len(self.lines)
        self._block(block.nodes())
        self._assign(results, [self.name(value) for value in block.outputs()])
        if len(self.lines) == before:
            self._line("pass")
        self._depth -= 1

    def _assign(self, targets: Sequence[str], values: Sequence[str]) -> None:
        if targets:
            self._line(f"{', '.join(targets)} = {', '.join(values)}")

    # --- nodes

    def _node(self, node: Any) -> None:
        kind = node.kind()
        own = getattr(self, f"_{kind.replace('::', '_').lower()}", None)
        if kind.startswith("prim::") and own is not None:
            own(node)
            return
        if kind in _SAME:
            self._names[node.output().debugName()] = self.name(node.input())
            return
        inputs = list(node.inputs())
        results = [self.name(value) for value in node.outputs()]
        text = f"{self.name(inputs[0])}.{_ATTRIBUTES[kind]}" if kind in _ATTRIBUTES else self._called(node, inputs)
        self._line(f"{', '.join(results)} = {text}" if results else text)

    def _called(self, node: Any, inputs: Sequence[Any]) -> str:
        namespace, _, name = node.kind().partition("::")
        words = [self.name(value) for value in inputs]
        if namespace == "aten" and (number := self._of_numbers(node, name, inputs, words)) is not None:
            return number
        words = [
            f"torch.tensor({word})" if self._is_number(value) and name not in _CALLS else word
            for value, word in zip(inputs, words, strict=True)
        ]
        if namespace == "aten":
            python = _in_python(name, words, [str(value.type()) for value in inputs])
            if python is not None:
                return python
        if name in ("min", "max") and namespace == "prim":
            return f"{name}({', '.join(words)})"
        overload = _overload_of(node)
        if overload is None:
            raise self.refused(node)
        return self._of_tensors(read_schema(overload), inputs, words)

    def _is_number(self, value: Any) -> bool:
        """Whether a tensor is a Python number in what is written."""
        return value.debugName() in self._numbers

    def _of_numbers(self, node: Any, name: str, inputs: Sequence[Any], words: Sequence[str]) -> str | None:
        """Arithmetic of sizes that a trace has made tensors of."""
        operator = _OF_SIZES.get(name)
        pair = inputs[:2]
        are_numbers = all(self._is_number(v) or _is_whole(self._plain.get(v.debugName())) for v in pair)
        if operator is None or len(pair) < 2 or not are_numbers or not any(map(self._is_number, pair)):
            return None
        more = [self._plain.get(value.debugName()) for value in inputs[2:]]
        if more not in ([], [1], ["trunc"], ["floor"]) or (name == "div") != (more in (["trunc"], ["floor"])):
            return None
        self._numbers.add(node.output().debugName())
        plain = (self._plain.get(value.debugName()) for value in pair)
        left, right = (w if p is None else str(int(p)) for p, w in zip(plain, words, strict=False))
        return f"({left} {operator} {right})"

    def _of_tensors(self, schema: Schema, inputs: Sequence[Any], words: Sequence[str]) -> str:
        passed = []
        for argument, value, word in zip(schema.arguments, inputs, words, strict=False):
            codes = next((found for kind, found in _CODES.items() if kind in argument.type), None)
            code = self._plain.get(value.debugName())
            if codes is not None and type(code) is int:
                word = self._constant(codes[code])
            is_default = argument.has_default and code is None and argument.default is None
            if argument.kwarg_only and is_default and value.debugName() in self._plain:
                continue
            passed.append(f"{argument.name}={word}" if argument.kwarg_only else word)
        return f"torch.ops.{schema.name}({', '.join(passed)})"

    def refused(self, node: Any) -> CaptureError:
        """The error for an operator without a form."""
        return CaptureError(
            f"the TorchScript program calls {node.kind()}, which has no form in Python here",
            why=f"it stands at {' '.join(str(node.sourceRange()).split())[:200]}",
            fix="load the model's own source and call smelt.trace, or write that line in operators over tensors",
            code="S0104",
        )

    # --- nodes of TorchScript's own, by the name of their kind

    def _prim_constant(self, node: Any) -> None:
        value = node.output().toIValue()
        self._plain[node.output().debugName()] = value
        self._names[node.output().debugName()] = self._constant(value)

    def _prim_getattr(self, node: Any) -> None:
        owner, out, name = node.input().debugName(), node.output().debugName(), node.s("name")
        path = f"{self._paths[owner]}.{name}".lstrip(".")
        self._paths[out] = path
        script, plain = self.script, self.root
        for step in path.split(".")[:-1]:
            script, plain = getattr(script, step), getattr(plain, step)
        if not hasattr(plain, name):
            setattr(plain, name, self._ours(getattr(script, name)))
        self._names[out] = "self" + "".join(
            f".{step}" if step.isidentifier() else f"._modules[{step!r}]" for step in path.split(".")
        )
        if not isinstance(getattr(plain, name), torch.nn.Module):
            # What it holds here: it may be set before it is used.
            target = f"v{len(self._names)}_{len(self.lines)}"
            self._line(f"{target} = {self._names[out]}")
            self._names[out] = target

    def _ours(self, value: Any) -> Any:
        """An attribute's value, with the plain module's own tensors where it holds the script's."""
        if isinstance(value, torch.Tensor):
            state = (*self.root.parameters(), *self.root.buffers())
            return next((tensor for tensor in state if _lies_as(tensor, value)), value)
        if type(value) in (list, tuple):
            return type(value)(map(self._ours, value))
        return {key: self._ours(item) for key, item in value.items()} if type(value) is dict else value

    def _prim_setattr(self, node: Any) -> None:
        owner, value = node.inputs()
        self._line(f"{self._names[owner.debugName()]}.{node.s('name')} = {self.name(value)}")

    def _prim_if(self, node: Any) -> None:
        results = [self.name(value) for value in node.outputs()]
        self._line(f"if {self.name(node.input())}:")
        for block, word in zip(node.blocks(), (None, "else:"), strict=True):
            if word is not None:
                self._line(word)
            self._indented(block, results)

    def _prim_loop(self, node: Any) -> None:
        trips, start, *carried = node.inputs()
        (block,) = node.blocks()
        turn, *inside = block.inputs()
        condition, *_ = block.outputs()
        results = [self.name(value) for value in node.outputs()]
        self._assign(results, [self.name(value) for value in carried])
        begin = [(self.name(value), result) for value, result in zip(inside, results, strict=True)]
        is_counted = self._plain.get(start.debugName()) is True and self._plain.get(condition.debugName()) is True
        if is_counted:
            self._line(f"for {self.name(turn)} in range({self.name(trips)}):")
            self._turn(block, begin, results, None)
            return
        goes, turns = f"go{len(self.lines)}", self.name(turn)
        self._line(f"{goes} = {self.name(start)}")
        is_endless = self._plain.get(trips.debugName()) == _ENDLESS
        if not is_endless or any(True for _ in turn.uses()):
            self._line(f"{turns} = 0")
        self._line(f"while {goes}:" if is_endless else f"while {turns} < {self.name(trips)} and {goes}:")
        self._turn(block, begin, results, (goes, "" if is_endless and not list(turn.uses()) else turns))

    def _turn(
        self, block: Any, begin: Sequence[tuple[str, str]], results: Sequence[str], ends: tuple[str, str] | None
    ) -> None:  # fmt: skip
        """The body of a loop. begin: variables of the body, and those that hold them between its runs."""
        self._depth += 1
        before = len(self.lines)
        self._assign([name for name, _ in begin], [result for _, result in begin])
        self._block(block.nodes())
        condition, *carried = block.outputs()
        self._assign(results, [self.name(value) for value in carried])
        if ends is not None:
            goes, turns = ends
            self._line(f"{goes} = {self.name(condition)}")
            if turns:
                self._line(f"{turns} = {turns} + 1")
        if len(self.lines) == before:
            self._line("pass")
        self._depth -= 1

    def _prim_listconstruct(self, node: Any) -> None:
        self._line(f"{self.name(node.output())} = [{', '.join(map(self.name, node.inputs()))}]")

    def _prim_tupleconstruct(self, node: Any) -> None:
        self._line(f"{self.name(node.output())} = ({''.join(f'{self.name(value)}, ' for value in node.inputs())})")

    def _prim_dictconstruct(self, node: Any) -> None:
        words = [self.name(value) for value in node.inputs()]
        pairs = zip(words[::2], words[1::2], strict=True)
        self._line(f"{self.name(node.output())} = {{{', '.join(f'{key}: {value}' for key, value in pairs)}}}")

    def _prim_tupleunpack(self, node: Any) -> None:
        names = [self.name(value) for value in node.outputs()]
        self._line(f"{''.join(f'{name}, ' for name in names)} = {self.name(node.input())}")

    _prim_listunpack = _prim_tupleunpack

    def _prim_tupleindex(self, node: Any) -> None:
        whole, index = map(self.name, node.inputs())
        self._line(f"{self.name(node.output())} = {_element(whole, index)}")

    def _prim_numtotensor(self, node: Any) -> None:
        self._numbers.add(node.output().debugName())
        self._names[node.output().debugName()] = self.name(node.input())

    def _prim_uninitialized(self, node: Any) -> None:
        self._names[node.output().debugName()] = "None"

    def _prim_raiseexception(self, node: Any) -> None:
        self._line(f"raise RuntimeError({self.name(next(iter(node.inputs())))})")

    def _prim_print(self, node: Any) -> None:
        self._line(f"print({', '.join(map(self.name, node.inputs()))})")


_OF_SIZES: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "floor_divide": "//", "div": "//", "remainder": "%",
}  # fmt: skip


def _lies_as(one: torch.Tensor, other: torch.Tensor) -> bool:
    a, b = ((t.data_ptr(), t.dtype, t.shape, t.stride()) for t in (one, other))
    return bool(one.numel()) and a == b


def _is_whole(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and not value.dim() and not value.dtype.is_floating_point
    return type(value) is int or is_tensor


_NOTHING = "nothing"


def _element(whole: str, index: str) -> str:
    """An element; of None in what is never run, which Python warns of where it is written so."""
    return f"{_NOTHING if whole == 'None' else whole}[{index}]"


def _in_python(name: str, words: Sequence[str], types: Sequence[str]) -> str | None:
    """An operator over Python's values, and of what Python asks a tensor; None for one that gives tensors."""
    has_tensors = any(kind.startswith("Tensor") or kind == "Optional[Tensor]" for kind in types)
    is_reading = name in ("Int", "Float", "Bool", "IntImplicit", "FloatImplicit", "len", "__is__", "__isnot__")
    if name == "size" and has_tensors:
        return f"{words[0]}.size({words[1]})" if len(words) == 2 else f"list({words[0]}.size())"
    if name == "warn":
        return "None"
    if name in ("append", "extend", "insert") and types[0].startswith("List"):
        return f"{words[0]}.{name}({', '.join(words[1:])}) or {words[0]}"
    if name == "_set_item" and not types[0].startswith("Tensor"):
        return f"{words[0]}.__setitem__({words[1]}, {words[2]}) or {words[0]}"
    if name == "__getitem__":
        return _element(words[0], words[1])
    if name in ("dim", "numel", "is_floating_point", "item") and has_tensors:
        return f"{words[0]}.{_METHODS[name]}()"
    if has_tensors and not is_reading:
        return None
    if name == "slice" and types[0].startswith("List"):
        return f"{words[0]}[slice({', '.join(words[1:])})]"
    if name == "__contains__":
        return f"({words[1]} in {words[0]})"
    infix = _INFIX.get(name)
    if infix is not None and len(words) == 2:
        return f"({words[0]} {infix} {words[1]})"
    if name in ("__not__", "neg"):
        return f"({_CALLS[name]}{words[0]})"
    if name in _CALLS:
        return f"{_CALLS[name]}({', '.join(words)})"
    if name in _METHODS:
        return f"{words[0]}.{_METHODS[name]}({', '.join(words[1:])})"
    return None


def _overload_of(node: Any) -> Any:
    """The overload that a node calls; None where its schema names none that torch has."""
    head = str(node.schema()).partition("(")[0]
    namespace, _, rest = head.partition("::")
    name, _, variant = rest.partition(".")
    return find_overload(f"{namespace}.{name}.{variant or 'default'}") if name else None
