"""Names of what an entry point takes and gives, for other languages.

args[0], kwargs['mask']  ==>  x0, mask          out, out.hidden[1], grad.up.weight  ==>  out, hidden_1, grad_up_weight
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from smelt.runtime.ingot.manifest import Method
from smelt.runtime.ingot.structure import Leaf, Mapping_, Sequence_, Shared, Structure

_KEYWORDS = (
    "alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do "
    "double else enum explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept nullptr operator or private protected public register restrict return short signed sizeof static struct "
    "switch template this throw true try typedef typeid typename typeof union unsigned using virtual void volatile "
    "while xor not main context result errno"
)


def identifier(text: str) -> str:
    """A text as a name of C."""
    made = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "_"
    return f"{made}_" if made in _KEYWORDS.split() else f"_{made}" if made[0].isdigit() else made


def unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where two are the same."""
    taken: dict[str, None] = {}
    for name in names:
        found, number = name, 1
        while found in taken:
            number += 1
            found = f"{name}_{number}"
        taken[found] = None
    return list(taken)


def input_names(method: Method) -> list[str]:
    """A name for each input of an entry point."""
    return unique([_input_name(place) for place in method.places])


def output_names(method: Method, given: Sequence[int]) -> list[str]:
    """A name for each of these outputs of its graph; gradients that it leaves are called after their parameters."""
    state = {number: path for (_, path), number in method.state.items()}
    paths = {output: f"grad.{state[number]}" for number, output in method.grads if output is not None}
    paths |= dict(_paths(method.result, "out"))
    return unique([_output_name(paths.get(i, f"out[{i}]")) for i in given])


def _input_name(place: str) -> str:
    if place.startswith("kwargs['"):
        return identifier(place.removeprefix("kwargs"))
    inner = place.removeprefix("args[").removesuffix("]")
    return f"x{inner}" if inner.isdecimal() else f"x{identifier(place.removeprefix('args'))}"


def _output_name(path: str) -> str:
    inner = path.removeprefix("out")
    return "out" if not inner else identifier(inner) if not inner.startswith("[") else identifier(f"out{inner}")


def _paths(structure: Structure, path: str) -> Iterator[tuple[int, str]]:
    """Where each tensor stands in a result."""
    match structure:
        case Leaf(index=index):
            yield index, path
        case Sequence_(items=items, fields=names):
            for i, item in enumerate(items):
                yield from _paths(item, f"{path}.{names[i]}" if names else f"{path}[{i}]")
        case Mapping_(keys=keys, items=items):
            for key, item in zip(keys, items, strict=True):
                yield from _paths(item, f"{path}.{key}")
        case Shared(made=made) if made is not None:
            yield from _paths(made, path)
