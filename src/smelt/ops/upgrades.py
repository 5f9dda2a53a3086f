"""Calls of operators as earlier releases of torch had them, written by operators that this one has.

    saved for 2.13     %1 = aten.cholesky.default(%x, True)
    read by 2.14       %1 = aten.linalg_cholesky.default(%x, upper=True)

A saved program says of each operator of its graphs which schema torch had for it. Calls of an operator that takes them
still stay as they are; others are rewritten by an upgrade, or the graph is refused, by the operator's name.

Invariant: an upgrade is written when torch changes an operator, and never changed again; what it writes is for the
schemas that it names, so that later upgrades find these as they find those of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from smelt._torch.library.schemas import is_taken_by, parsed_schema, schema_text, takes_calls_of
from smelt._torch.versions import release_of
from smelt.diag import PackageError, SmeltError
from smelt.diag.records import record
from smelt.ir import NONE, Arg, Graph, Node, TupleType, Value, parse
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import Call, Emitter, Lowering
from smelt.ops.registry import arguments_of, overload
from smelt.rewrite import Rewriter

Release = tuple[int, int]


@record
class Upgrade:
    """What became of an operator.

    was: its schema before, as torch writes it, with the operator's name. since: the release of torch that has it no
    more, has other arguments for it, or computes another thing by the same call. rewrite: the call's values, of the
    types that they had, by other operators. makes: the schemas that these have in that release.
    """

    was: str
    since: Release
    rewrite: Lowering
    makes: tuple[str, ...]

    @property
    def op(self) -> str:
        """The operator's name in graphs."""
        return _name_of(self.was)


def _cholesky(b: Emitter, call: Call) -> Arg:
    return b.call("aten.linalg_cholesky.default", call["self"], upper=call["upper"])


def _cholesky_into(b: Emitter, call: Call) -> Arg:
    return b.call("aten.linalg_cholesky.out", call["self"], upper=call["upper"], out=call["out"])


def _qr(b: Emitter, call: Call) -> tuple[Value, ...]:
    return b.calls("aten.linalg_qr.default", call["self"], "reduced" if call["some"] else "complete")


def _qr_into(b: Emitter, call: Call) -> tuple[Value, ...]:
    mode = "reduced" if call["some"] else "complete"
    return b.calls("aten.linalg_qr.out", call["self"], mode, Q=call["Q"], R=call["R"])


UPGRADES: tuple[Upgrade, ...] = (
    Upgrade(
        "aten::cholesky(Tensor self, bool upper=False) -> Tensor",
        (2, 14),
        _cholesky,
        ("aten::linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor",),
    ),
    Upgrade(
        "aten::cholesky.out(Tensor self, bool upper=False, *, Tensor(a!) out) -> Tensor(a!)",
        (2, 14),
        _cholesky_into,
        ("aten::linalg_cholesky.out(Tensor self, *, bool upper=False, Tensor(a!) out) -> Tensor(a!)",),
    ),
    Upgrade(
        "aten::qr(Tensor self, bool some=True) -> (Tensor Q, Tensor R)",
        (2, 14),
        _qr,
        ('aten::linalg_qr(Tensor A, str mode="reduced") -> (Tensor Q, Tensor R)',),
    ),
    Upgrade(
        "aten::qr.Q(Tensor self, bool some=True, *, Tensor(a!) Q, Tensor(b!) R) -> (Tensor(a!) Q, Tensor(b!) R)",
        (2, 14),
        _qr_into,
        (
            'aten::linalg_qr.out(Tensor A, str mode="reduced", *, Tensor(a!) Q, Tensor(b!) R)'
            " -> (Tensor(a!) Q, Tensor(b!) R)",
        ),
    ),
)
"""All that is known, in the order in which torch made the changes."""


def read_graph(text: str, constants: Mapping[str, torch.Tensor], schemas: Mapping[str, str], version: str) -> Graph:
    """A saved graph's text as a graph of this torch's operators.

    schemas: by operator, that of the torch which it was saved with, of this version. Raises: ParseError; PackageError
    (S0701) for an operator that is another one here and has no upgrade.
    """
    graph = parse(text, constants)
    upgrade(graph, schemas, version, UPGRADES)
    return graph


def upgrade(graph: Graph, schemas: Mapping[str, str], version: str, upgrades: Sequence[Upgrade]) -> None:
    """Rewrite the calls of operators that are others here. Raises: PackageError (S0701)."""
    known = _Known(upgrades)
    release = release_of(version)
    rewriter: Rewriter | None = None
    for node in [node for node in graph.walk() if node.op in schemas]:
        one = known.upgrade_of(node.op, schemas[node.op], release)
        if one is not None:
            rewriter = rewriter or Rewriter(graph)
            _rewrite(rewriter, node, one, known)


@dataclass
class _Known:
    """What is to be done with an operator of this schema in this release; each is looked for once."""

    upgrades: Sequence[Upgrade]
    _found: dict[tuple[str, str, Release | None], Upgrade | None] = field(default_factory=dict)

    def upgrade_of(self, op: str, was: str, release: Release | None) -> Upgrade | None:
        """What rewrites its calls; None where they are right as they are.

        Raises: PackageError (S0701) where they are wrong, and nothing rewrites them.
        """
        key = op, was, release
        if key not in self._found:
            self._found[key] = self._look_for(op, was, release)
        return self._found[key]

    def _look_for(self, op: str, was: str, release: Release | None) -> Upgrade | None:
        found, here = overload(op), release_of(str(torch.__version__))
        is_taken = found is not None and takes_calls_of(found, was)
        for one in self.upgrades:
            if one.op != op or not is_taken_by(was, one.was):
                continue
            if not is_taken or (release is not None and here is not None and release < one.since <= here):
                return one
            if release is not None and here is not None and here < one.since <= release:
                since, saved = ".".join(map(str, one.since)), ".".join(map(str, release))
                raise _other(op, f"torch {since} changed what it computes, and the graph was saved with torch {saved}")
        if found is None or is_taken:
            return None  # An operator that there is not may come when its library is imported.
        raise _other(op, f"it was saved for {was}, and this torch has {schema_text(found)}")


class _Emitter(GraphEmitter):
    """What an upgrade writes to: calls for the schemas of its day, which later upgrades may rewrite."""

    def __init__(self, rewriter: Rewriter, one: Upgrade, known: _Known) -> None:
        super().__init__(rewriter.builder, rewriter.adopt)
        self._rewriter, self._one, self._known = rewriter, one, known
        self._schemas = {_name_of(text): text for text in one.makes}

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        later = self._later(op)
        if later is None:
            return super().call(op, *args, **kwargs)
        (found,) = _values(self._rewriter, later, self._known, args, kwargs)
        assert isinstance(found, Value)
        return found

    def calls(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        later = self._later(op)
        if later is None:
            return super().calls(op, *args, **kwargs)
        found = _values(self._rewriter, later, self._known, args, kwargs)
        return tuple(each for each in found if isinstance(each, Value))

    def _later(self, op: str) -> Upgrade | None:
        was = self._schemas.get(op)
        return None if was is None else self._known.upgrade_of(op, was, self._one.since)


def _values(
    rewriter: Rewriter, one: Upgrade, known: _Known, args: Sequence[Arg], kwargs: Mapping[str, Arg]
) -> tuple[Arg, ...]:  # fmt: skip
    """What stands for the results of a call, where the rewriter's builder stands.

    Raises: PackageError (S0701) where this torch reads no schemas; TypeError for arguments that do not fit.
    """
    schema = parsed_schema(one.was)
    if schema is None:
        raise _other(one.op, f"this torch does not tell what {one.was} takes")
    found = one.rewrite(_Emitter(rewriter, one, known), arguments_of(schema, args, kwargs))
    return found if isinstance(found, tuple) else (found,)


def _rewrite(rewriter: Rewriter, node: Node, one: Upgrade, known: _Known) -> None:
    """Put other nodes in a call's place. Raises: PackageError (S0701) where the call does not fit its schema."""
    try:
        with rewriter.builder.at(node):
            parts = _values(rewriter, one, known, node.args, node.kwargs)
    except PackageError:
        raise
    except (SmeltError, TypeError, ValueError) as error:
        raise _other(node.op, f"its call does not fit {one.was}: {getattr(error, 'what', error)}") from None
    types = [result.type for result in node.results]
    is_list = len(types) == 1 and isinstance(types[0], TupleType)
    wanted = list(types[0].elements) if isinstance(types[0], TupleType) and is_list else types
    found = [part.type if isinstance(part, Value) else NONE for part in parts]
    if found != wanted:
        raise _other(node.op, f"rewritten, it gives {_listed(found)} for {_listed(wanted)}")
    rewriter.replace_node(node, (parts,) if is_list else parts)


def _name_of(schema: str) -> str:
    """`aten.qr.Q` of `aten::qr.Q(Tensor self, ...`."""
    name = schema.partition("(")[0].replace("::", ".")
    return name if name.count(".") > 1 else f"{name}.default"


def _listed(types: Sequence[object]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _other(op: str, why: str) -> PackageError:
    return PackageError(
        f"the ingot's graph is not for torch {torch.__version__}, where {op} is another operator",
        why=why,
        fix="use the torch that it was saved with (`smelt show` says which), or save the program again",
        code="S0701",
    )
