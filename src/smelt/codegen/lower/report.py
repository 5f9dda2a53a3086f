"""What the lowering did, as plain data: how each node runs, which candidates were timed, bytes and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import Any, Literal

from smelt.codegen.fusion.decisions import Decision
from smelt.codegen.kernels.nest import Nest
from smelt.diag.records import record

How = Literal[
    "kernel", "library", "dispatcher", "python", "view", "static", "fused", "state", "copy", "in place", "unused",
    "number", "block",
]  # fmt: skip
"""An own kernel, direct call of a C function, through the dispatcher, in Python, no work at run time (view, static,
state), part of another node's call (fused), a copy (of a write), a write of what a kernel has put there already (in
place), not run because nothing uses it, a number computed by the executor, or a branch or loop of the plan."""


@record
class NodeReport:
    """How one node runs. `target` is a symbol (a kernel's too), an overload, the node it was fused into, what a write
    took, or why a write is a copy; `where` its source line.
    """

    value: str
    op: str
    how: How
    target: str = ""
    where: str = ""
    scope: str = ""


@record
class KernelReport:
    """One launch of an own kernel, in the plan's order.

    symbol: the digest of its text, equal for launches of one kernel. listing: its loops. nodes: the operators it
    computes, `%value = op`; where: their source lines; scopes: the modules they belong to. nbytes: bytes read and
    written at least once. flops: a multiply-add counts two.
    """

    symbol: str
    label: str
    listing: str
    nodes: tuple[str, ...]
    where: tuple[str, ...]
    scopes: tuple[str, ...]
    items: int
    nbytes: int
    flops: int


@record
class CandidateReport:
    """One way to compute a product: its name and measured time in microseconds (None: chosen by rule, not timed)."""

    name: str
    latency_us: float | None


@record
class ChoiceReport:
    """A choice among candidates for one shape (rows x n x k for products), and how many nodes share it."""

    shape: str
    chosen: str
    candidates: tuple[CandidateReport, ...]
    reason: str
    nodes: int = 1


@record
class MemoryReport:
    """Bytes: the arena, the same tensors without sharing, packed and folded copies of weights, and the largest sum
    of arena and library-made results alive at once.
    """

    arena_nbytes: int = 0
    arena_naive_nbytes: int = 0
    packed_nbytes: int = 0
    folded_nbytes: int = 0
    peak_nbytes: int = 0


@record
class Report:
    """All of it; `stages_ms` are wall times of the lowering's stages (`lower: x` is part of `lower`).

    kernels: the launches of own kernels, in the plan's order. texts: the LLVM text of each kernel by its symbol.
    decisions: what was fused and what was not, and why. nests: of the kernels that are loop nests, in the order in
    which steps on loops number them; None where sizes are free.
    """

    nodes: tuple[NodeReport, ...] = ()
    choices: tuple[ChoiceReport, ...] = ()
    memory: MemoryReport = field(default_factory=MemoryReport)
    stages_ms: tuple[tuple[str, float], ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    decisions: tuple[Decision, ...] = field(default=(), repr=False)
    nests: tuple[Nest | None, ...] = field(default=(), repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """Nodes by how they run."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.how] = found.get(node.how, 0) + 1
        return found

    @property
    def python_nodes(self) -> tuple[NodeReport, ...]:
        """Nodes that need Python at run time."""
        return tuple(node for node in self.nodes if node.how == "python")

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able data, without the kernels' texts and nests."""
        whole = asdict(replace(self, texts={}, nests=()))
        del whole["nests"]
        return {**whole, "counts": self.counts}
