"""Straight code for one call's way out: the program's result, and what is put in the objects of its arguments.

Invariant: all that is read of the arguments is read before the first thing is put there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from smelt._torch.seen.labels import attribute_code
from smelt.capture.structure.tree import ConstantLeaf, Container, Made, SameObject, TensorLeaf, Tree, parts, rebuild
from smelt.diag.records import distinct_record

Step = tuple[str, Any]


@distinct_record
class Put:
    """What becomes of one object, at `place`.

    kind: "list" (items from `start` to `stop` are replaced), "deque" (all items are), "dict", "attributes" or "slots"
    (`deleted` go, `keys` are stored); where the place is outside the arguments, the kinds of `state.Place`, "append"
    (of each item) or "extend" (by a list that the graph gives).
    """

    place: str
    kind: str
    items: tuple[Tree, ...]
    keys: tuple[Any, ...] = ()
    deleted: tuple[object, ...] = ()
    start: int = 0
    stop: int = 0


class Source:
    """Straight code that makes a result and puts what is to be put."""

    def __init__(self, puts: Sequence[Put], ways: Mapping[str, tuple[Step, ...]], result: Tree) -> None:
        self.puts, self.ways, self.result = puts, ways, result
        self.scope: dict[str, Any] = {
            "rebuild": rebuild, "missing": _stand_at, "list_set": list.__setitem__,
            "list_append": list.append, "list_extend": list.extend, "dict_set": dict.__setitem__,
            "dict_del": dict.__delitem__, "ordered_set": OrderedDict.__setitem__,
            "ordered_del": OrderedDict.__delitem__, "OrderedDict": OrderedDict, "item_of": _item_of,
            "deque_clear": deque.clear, "deque_extend": deque.extend,
        }  # fmt: skip
        self.lines: list[str] = []
        self._variables: dict[tuple[Step, ...], str] = {}
        self._count = 0

    def function(self) -> Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], Any]:
        """The code, compiled."""
        named = {place: self._way(steps) for place, steps in self.ways.items()}
        trees = (self.result, *(tree for put in self.puts for tree in put.items))
        rest = list(dict.fromkeys(place for tree in trees for place in _named_in(tree) if place not in named))
        entries = ", ".join(f"{place!r}: {variable}" for place, variable in named.items())
        self.lines.append(f"same = {{{entries}}}")
        if rest:
            self.lines.append(f"missing(same, {rest!r}, args, kwargs)")
        self.lines.append(f"result = {self._tree(self.result, named)}")
        values = [[self._value(tree, named) for tree in put.items] for put in self.puts]
        for put, stored in zip(self.puts, values, strict=True):
            self._put(put, named[put.place], stored)
        body = "".join(f"    {line}\n" for line in self.lines)
        text = f"def deliver(outputs, args, kwargs):\n{body}    return result\n"
        exec(compile(text, "<smelt puts>", "exec"), self.scope)
        made: Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], Any] = self.scope["deliver"]
        return made

    def _bind(self, value: object) -> str:
        self._count += 1
        self.scope[f"k{self._count}"] = value
        return f"k{self._count}"

    def _variable(self, code: str) -> str:
        self._count += 1
        self.lines.append(f"v{self._count} = {code}")
        return f"v{self._count}"

    def _way(self, steps: tuple[Step, ...]) -> str:
        if steps[0][0] == "outside":  # an object of the user's, which need not be hashable
            return ".".join((self._bind(steps[0][1]), *(name for _, name in steps[1:])))
        found = self._variables.get(steps)
        if found is not None:
            return found
        if len(steps) == 1:
            return "kwargs" if steps[0][1] else "args"
        holder, (how, key) = self._way(steps[:-1]), steps[-1]
        if how == "attribute":
            code = attribute_code(holder, key)
        else:
            code = f"{holder}[{key!r}]" if len(steps) == 2 else f"item_of({holder}, {self._key(key)})"
        self._variables[steps] = self._variable(code)
        return self._variables[steps]

    def _key(self, key: object) -> str:
        return repr(key) if type(key) in (int, str) else self._bind(key)

    def _tree(self, tree: Tree, named: Mapping[str, str]) -> str:
        match tree:
            case TensorLeaf(index):
                return f"outputs[{index}]"
            case ConstantLeaf(value):
                return repr(value) if value is None or type(value) in (bool, int, str) else self._bind(value)
            case SameObject(place) if place in named:
                return named[place]
        return f"rebuild({self._bind(tree)}, outputs, same)"

    def _value(self, tree: Tree, named: Mapping[str, str]) -> str:
        code = self._tree(tree, named)
        return self._variable(code) if code.startswith("rebuild") else code

    def _put(self, put: Put, at: str, values: list[str]) -> None:
        keys, deleted = list(map(self._key, put.keys)), list(map(self._key, put.deleted))
        lines = self.lines
        if put.kind == "list":
            lines.append(f"list_set({at}, slice({put.start}, {put.stop}), [{', '.join(values)}])")
        elif put.kind == "deque":
            lines.append(f"deque_clear({at})")
            lines.append(f"deque_extend({at}, [{', '.join(values)}])")
        elif put.kind == "dict":
            ordered = f"isinstance({at}, OrderedDict)"
            store = self._variable(f"ordered_set if {ordered} else dict_set")
            if deleted:
                delete = self._variable(f"ordered_del if {ordered} else dict_del")
                lines.extend(f"{delete}({at}, {key})" for key in deleted)
            lines.extend(f"{store}({at}, {key}, {value})" for key, value in zip(keys, values, strict=True))
        elif put.kind == "attributes":
            space = self._variable(f"{at}.__dict__")
            lines.extend(f"del {space}[{key}]" for key in deleted)
            lines.extend(f"{space}[{key}] = {value}" for key, value in zip(keys, values, strict=True))
        elif put.kind == "entry":
            lines.append(f"{at}[{keys[0]}] = {values[0]}")
        elif put.kind in ("append", "extend"):
            held = self._variable(f"{at}.cell_contents" if put.keys[0] is None else f"{at}[{keys[0]}]")
            lines.extend(f"list_{put.kind}({held}, {value})" for value in values)
        elif put.kind == "cell":
            lines.append(f"{at}.cell_contents = {values[0]}")
        elif put.kind == "class":
            lines.append(f"type.__setattr__({at}, {keys[0]}, {values[0]})")
        elif put.kind == "slot":
            lines.append(f"{keys[0]}.__set__({at}, {values[0]})")
        else:
            lines.extend(f"object.__delattr__({at}, {key})" for key in deleted)
            lines.extend(f"object.__setattr__({at}, {key}, {value})" for key, value in zip(keys, values, strict=True))


def _named_in(tree: Tree) -> Iterator[str]:
    match tree:
        case SameObject(place):
            yield place
        case Made(_, inner) if inner is not None:
            yield from _named_in(inner)
        case Container():
            for child in (*tree.items, *tree.attributes):
                yield from _named_in(child)


def _item_of(holder: Any, key: Any) -> object:
    """An item as it is stored: subclasses may compute what they show."""
    base = next(base for base in (dict, list, tuple, deque) if isinstance(holder, base))
    return base.__getitem__(holder, key)


def _stand_at(
    found: dict[str, object], places: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Find what stands at places that no way leads to: in classes that torch's pytree takes apart."""
    wanted = set(places)
    stack: list[tuple[str, object]] = [("args", tuple(args)), ("kwargs", dict(kwargs))]
    while stack and wanted:
        path, value = stack.pop()
        if path in wanted:
            wanted.discard(path)
            found[path] = value
        if any(place.startswith(path) for place in wanted):
            stack.extend((path + suffix, part) for suffix, part in parts(value))
