"""The data of a page: frozen values of plain types, whose JSON the page's scripts read.

    Page ── sources, codes, guards, recompiles, breaks, fallbacks, stages of compiling
    Code ── one plan (an entry, or half of one that is trained): its graphs, steps, kernels, buffers, decisions

Invariant: what refers to something else does so by its index in a list of the page, or of the same `Code`: a place is
(index of a source, line), a node is a *record* by its index in `Code.nodes`. `uid` is the node itself: one that a pass
changes has several records of one uid. A value is known by its name, which is unique within one stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from smelt.diag.records import record

SCHEMA = 1
"""Of the JSON; a page's scripts come with it, so no reader has to know two."""

Place = tuple[int, int]


@record
class Source:
    """A file of the program, or the parts of it that matter: `lines` are (number, text). own: not of a package."""

    file: str
    own: bool
    lines: Sequence[tuple[int, str]]


@record
class Arm:
    """A region of a node: what it is for (then, else, test, body), its parameters, what it yields."""

    what: str
    params: Sequence[str]
    yields: Sequence[str]


@record
class NodeRecord:
    """A node at some stage. names, types: of its results. inputs: names of the values that it uses itself.

    text: as the graph's text has it. at: its line, then the lines of the user's that led to it. parent: uid of the node
    in whose region it stands, and `arm` which one; -1 for the graph's own. nbytes, flops: by `analysis.cost`.
    """

    uid: int
    op: str
    names: Sequence[str]
    types: Sequence[str]
    inputs: Sequence[str]
    text: str
    scope: str
    mode: str
    at: Sequence[Place]
    parent: int
    arm: int
    view: bool
    nbytes: int
    flops: int
    arms: Sequence[Arm] = ()


@record
class Stage:
    """The graph before all passes, or after one that changed it: its records in order, and what the pass did.

    picture: before and after, of the pass in general. edits: how many of which kind. led: uid -> uids that stand in its
    place from here on.
    """

    name: str
    picture: str
    ms: float
    records: Sequence[int]
    outputs: Sequence[str]
    edits: Mapping[str, int] = field(default_factory=dict)
    led: Mapping[int, Sequence[int]] = field(default_factory=dict)
    peak: tuple[int, int] | None = None


@record
class Kernel:
    """Native code that one or more steps run. Empty texts: there is none of this form here."""

    symbol: str
    loops: str
    llvm: str
    assembly: str


@record
class Step:
    """An instruction of the plan. kind: kernel, library, dispatcher, python, move, number, block or memory.

    nodes: names of the values that it computes. kernel: index of its kernel, or -1. us: least microseconds of a call,
    None where nothing was measured. reads, writes: slots.
    """

    kind: str
    what: str
    nodes: Sequence[str]
    kernel: int
    nbytes: int
    flops: int
    us: float | None
    reads: Sequence[int]
    writes: Sequence[int]


@record
class Buffer:
    """Memory that a call uses from step `first` to step `last`. offset: in the arena; -1: of its own."""

    slot: int
    offset: int
    nbytes: int
    first: int
    last: int
    what: str


@record
class Ran:
    """How a node of the last stage runs, by the name of its first result."""

    how: str
    target: str


@record
class Decided:
    """Two or more nodes that were fused, or were not, why, and the bytes that they move apart and as one."""

    nodes: Sequence[str]
    fused: bool
    why: str
    apart: int
    one: int


@record
class Chosen:
    """A choice between implementations of one shape; us: measured microseconds by candidate."""

    shape: str
    chosen: str
    why: str
    nodes: int
    us: Mapping[str, float | None]


@record
class Saved:
    """A value that the forward half keeps for the backward half, and why it is kept and not computed again.

    name: `%name`, or the path of a parameter. nbytes: 0 for what is there all the same.
    """

    name: str
    type: str
    nbytes: int
    why: str


@record
class Code:
    """One plan. half: forward or backward of an entry that is trained, else empty. sizes: those that it was made for.

    missing: what is not shown of it, and why. phases: of a whole step of training, which nodes (by uid) are forward,
    backward and update.
    """

    title: str
    entry: int
    half: str
    sizes: str
    inputs: Sequence[tuple[str, str]]
    nodes: Sequence[NodeRecord]
    stages: Sequence[Stage]
    steps: Sequence[Step]
    kernels: Sequence[Kernel]
    buffers: Sequence[Buffer]
    arena: int
    ran: Mapping[str, Ran]
    decisions: Sequence[Decided]
    choices: Sequence[Chosen]
    saved: Sequence[Saved]
    memory: Mapping[str, int]
    missing: Sequence[str]
    phases: Mapping[int, str] = field(default_factory=dict)


@record
class Guard:
    """A condition of an entry, and the line that read what it holds for. usual: every program has such ones."""

    entry: int
    kind: str
    text: str
    value: str
    at: Place | None
    usual: bool


@record
class Recompile:
    """Why a call was compiled anew: what changed, from which value to which, and how often that was met."""

    what: str
    old: str
    new: str
    times: int
    text: str


@record
class Remark:
    """A break or a fallback: an entry (-1: none), what is to be said of it, how often, and the line."""

    kind: str
    entry: int
    text: str
    times: int | None
    at: Place | None


@record
class Timing:
    """Milliseconds of a stage of compiling an entry."""

    entry: int
    stage: str
    ms: float
    sizes: str


@record
class Roof:
    """The machine's ceilings, measured here with so many threads."""

    gflops: float
    gbps: float
    threads: int


@record
class Page:
    """All that a page shows. verdict: its first lines. usual: how many guards are of the usual kind. text: the report.

    missing: what is not shown, and how to get it.
    """

    name: str
    verdict: Sequence[str]
    text: str
    sources: Sequence[Source]
    codes: Sequence[Code]
    guards: Sequence[Guard]
    usual: str
    recompiles: Sequence[Recompile]
    remarks: Sequence[Remark]
    timings: Sequence[Timing]
    roof: Roof | None
    missing: Sequence[str]
    version: str
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """As plain data that `json.dumps` takes."""
        return asdict(self)
