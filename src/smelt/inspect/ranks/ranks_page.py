"""The page on a program of many ranks: mesh, time line of a step, memory, links, and the graph with its placements.

Invariant: the file asks for nothing and has no script; what comes from the program stands in it escaped.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from smelt.diag import Span
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Node, TensorType, Value
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.placements import Partial, Placement, Shard
from smelt.parallel.dividing.parted import Parted
from smelt.parallel.mesh import Mesh
from smelt.parallel.proving.clock import Clock, text_of_seconds
from smelt.parallel.proving.events import Memory, exchange_of
from smelt.parallel.proving.forecast import Forecast
from smelt.parallel.proving.proof import Proof, text_of_bytes

_COLOURS: Mapping[str, str] = {
    "forward": "#4f8fd0", "backward": "#c9813f", "update": "#6ba35a", "collective": "#b0509e", "send": "#d46a6a",
    "recv": "#e3b7b7", "wait": "#e9e9ee",
}  # fmt: skip
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem;color:#1c2230;background:#fff;max-width:1300px}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}table{border-collapse:collapse}
td,th{padding:.15rem .55rem;text-align:left;border-bottom:1px solid #e4e6ec;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}code,.g td{font:12px/1.5 ui-monospace,monospace}
.R{background:#e8ecf2}.S{background:#cfe6d4}.P{background:#f6dcb8}.dist td{background:#f7eaf4}
.chip{border-radius:3px;padding:0 .3em;white-space:nowrap}.where,.scope{color:#6b7282}.pre{white-space:pre-wrap}
svg text{font:11px ui-monospace,monospace}svg{display:block;max-width:100%}
a{color:inherit;text-decoration:none}a:hover,:target td{background:#fff3c4}
@media(prefers-color-scheme:dark){body{background:#15181f;color:#dfe3ea}td,th{border-color:#2b303b}.R{background:#2c3442}
.S{background:#24472f}.P{background:#5a4322}.dist td{background:#3a2436}svg text{fill:#dfe3ea}
a:hover,:target td{background:#4b4420}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_ROWS, _LINKS, _CELLS, _INTERVALS = 4000, 400, 4096, 20_000


@record
class Line:
    """A rank of the page, or several that do the same: its name, how many, and its memory."""

    name: str
    count: int
    memory: Memory


Linked = tuple[str, str, float]
"""From whom to whom, bytes a step."""


def page(
    title: str, summary: str, mesh: Mesh, lines: Sequence[Line], clock: Clock, links: Sequence[Linked],
    part: Parted | None, stages: Mapping[str, int], kind_of: Sequence[int],
) -> str:  # fmt: skip
    """The file. lines: one a row of the time line. kind_of: the line of each rank of the mesh."""
    parts = [
        f"<h1>{_e(title)}</h1><p class=pre>{_e(summary)}</p>",
        "<h2>Mesh</h2>", _mesh(mesh, kind_of, lines),
        "<h2>A step</h2>", _timeline(clock, lines),
        "<h2>Memory</h2>", _memory(lines),
        "<h2>Links, bytes a step</h2>", _links(links),
    ]  # fmt: skip
    if part is not None:
        parts += [
            f"<h2>The graph of rank {part.rank}, and the placement of each value</h2>",
            _legend(),
            _graph(part, stages),
        ]
    return (
        f'<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta http-equiv="Content-Security-Policy" '
        f'content="{_POLICY}"><meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def proof_page(proof: Proof, title: str = "Ranks") -> str:
    """The page on what `s.verify(mesh=...)` gave."""
    lines = [Line(f"{rank}: {one.where}", 1, one.memory) for rank, one in enumerate(proof.ranks)]
    links = [(f"rank {a}", f"rank {b}", nbytes / proof.steps) for (a, b), nbytes in proof.links.items()]
    summary = str(proof).splitlines()[0]
    numbers = range(proof.mesh.size)
    return page(title, summary, proof.mesh, lines, proof.clock, links, proof.part, proof.stages, numbers)


def forecast_page(found: Forecast, title: str, summary: str) -> str:
    """The page on a forecast."""
    lines = [Line(kin.where, kin.count, kin.memory) for kin in found.kinds]
    links = [
        (kin.where, f"{'the next' if 'send' not in of.messages else 'others'} along {axis}", of.total)
        for kin in found.kinds
        for axis, of in kin.traffic.items()
    ]
    kinds = [found.kind_of(rank) for rank in range(min(found.mesh.size, _CELLS))]
    return page(title, summary, found.mesh, lines, found.clock, links, found.part, found.stages, kinds)


# --- ranks


def _mesh(mesh: Mesh, kind_of: Sequence[int], lines: Sequence[Line]) -> str:
    """Ranks as cells: the last axis across, the others down; one colour a kind of rank."""
    across = mesh.axes[-1][1]
    shown = min(mesh.size, _CELLS)
    size = 34 if mesh.size <= 64 else 12
    cells = []
    for rank in range(shown):
        x, y = rank % across * size + 90, rank // across * size + 18
        colour = f"hsl({kind_of[rank] * 137 % 360} 45% 72%)"
        where = _e(f"rank {rank}: {mesh.where(rank)}; {lines[kind_of[rank]].name}")
        cells.append(
            f'<rect x={x} y={y} width={size - 2} height={size - 2} fill="{colour}"><title>{where}</title></rect>'
        )
        if size > 20:
            cells.append(f"<text x={x + 6} y={y + 20}>{rank}</text>")
        if rank % across == 0 and (size > 20 or rank // across % 4 == 0):
            told = ",".join(f"{axis}{i}" for axis, i in list(mesh.coordinates(rank).items())[:-1])
            cells.append(f"<text x=2 y={y + size / 2 + 4:.0f}>{_e(told)}</text>")
    axis = _e(mesh.names[-1])
    width, height = across * size + 100, -(-shown // across) * size + 24
    more = f"<p>and {mesh.size - shown} more</p>" if shown < mesh.size else ""
    return (
        f'<p>{mesh.size} ranks: {_e(str(mesh))}</p><svg role=img aria-label="the mesh" width={width} height={height}>'
        f"<text x=90 y=12>{axis} 0 ... {across - 1}</text>{''.join(cells)}</svg>{more}"
    )


def _timeline(clock: Clock, lines: Sequence[Line]) -> str:
    """One row a line; what a rank does, to scale."""
    width, row, left, drawn = 1000.0, 22, 190, 0
    made = []
    scale = width / clock.length if clock.length else 0.0
    for number, (line, intervals) in enumerate(zip(lines, clock.intervals, strict=True)):
        y = number * row
        made.append(f"<text x=2 y={y + 15}>{_e(line.name)}</text>")
        for one in intervals:
            drawn += 1
            if drawn > _INTERVALS:
                break
            length = one.end - one.start
            of = f" of microbatch {one.microbatch}" if clock.is_pipe and one.kind in ("forward", "backward") else ""
            told = f"{one.kind}{of}: {text_of_seconds(length)}, from {text_of_seconds(one.start)}"
            box = f"x={left + one.start * scale:.2f} y={y + 3} width={max(length * scale, 0.3):.2f} height={row - 6}"
            made.append(f'<rect {box} fill="{_COLOURS[one.kind]}"><title>{_e(told)}</title></rect>')
        rest = left + width + 8
        made.append(f"<text x={rest:.0f} y={y + 15}>idle {clock.idle(number):.0%}</text>")
    keys = " ".join(f'<span class=chip style="background:{c};color:#111">{k}</span>' for k, c in _COLOURS.items())
    return (
        f"<p>{text_of_seconds(clock.length)} a step, bubble {clock.bubble:.0%}: {keys}</p>"
        f'<svg role=img aria-label="time line of a step" width={left + width + 80:.0f} '
        f"height={len(lines) * row + 4}>{''.join(made)}</svg>"
    )


def _memory(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        m = line.memory
        held = "".join(
            f"<td class=n>{text_of_bytes(n)}" for n in (m.parameters, m.gradients, m.optimizer, m.saved, m.peak)
        )
        rows.append(f"<tr><td>{_e(line.name)}<td class=n>{line.count}{held}")
    return (
        f"<table><tr><th>rank<th>ranks<th>parameters<th>gradients<th>optimizer<th>saved<th>peak{''.join(rows)}</table>"
    )


def _links(links: Sequence[Linked]) -> str:
    """The busiest first."""
    if not links:
        return "<p>Nothing is sent.</p>"
    most = max(nbytes for _, _, nbytes in links) or 1
    rows = []
    for a, b, nbytes in sorted(links, key=lambda one: -one[2])[:_LINKS]:
        bar = f"<svg width=200 height=12><rect width={max(nbytes / most * 200, 1):.1f} height=12 fill=#b0509e /></svg>"
        rows.append(f"<tr><td>{_e(a)}<td>{_e(b)}<td class=n>{text_of_bytes(nbytes)}<td>{bar}")
    more = f"<p>and {len(links) - _LINKS} more</p>" if len(links) > _LINKS else ""
    return f"<table><tr><th>from<th>to<th>bytes<th>{''.join(rows)}</table>{more}"


# --- the graph


def _legend() -> str:
    return (
        "<p><span class='chip R'>R</span> whole on each rank, <span class='chip S'>S(1)</span> a part of dimension 1, "
        "<span class='chip P'>P(sum)</span> a sum over the ranks that is yet to be made. Coloured rows send.</p>"
    )


def _graph(part: Parted, stages: Mapping[str, int]) -> str:
    axes = [axis for axis in part.mesh.names if any(axis in one for one in part.placements.values())]
    rows = [_row(part, node, axes, stages) for node in part.graph.walk() if node.op not in STATE_OPS]
    head = "<tr>" + ("<th>stage" if stages else "") + "<th>value<th>operator<th>of<th>placement<th>module<th>line"
    more = f"<p>and {len(rows) - _ROWS} more</p>" if len(rows) > _ROWS else ""
    return f"<table class=g>{head}{''.join(rows[:_ROWS])}</table>{more}"


def _row(part: Parted, node: Node, axes: Sequence[str], stages: Mapping[str, int]) -> str:
    names = [value.name for value in node.results]
    sends = ""
    if node.op in dist.COLLECTIVES:
        one = exchange_of(node)
        sends = f" <b>{text_of_bytes(one.nbytes)} along {_e(one.axis)}</b>"
    stage = f"<td>{stages.get(names[0], '') if names else ''}" if stages else ""
    of = " ".join(dict.fromkeys(_edge(part, value, axes) for value in node.operands()))
    lies = " ".join(_chips(part, value, axes) for value in node.results)
    types = ", ".join(str(value.type) for value in node.results)
    kind = " class=dist" if node.op in dist.COLLECTIVES else ""
    anchor = f" id={_anchor(names[0])}" if names else ""
    told = ", ".join(f"%{_e(name)}" for name in names)
    return (
        f"<tr{kind}{anchor}>{stage}<td>{told}: {_e(types)}<td>{_e(node.op)}{sends}<td>{of}<td>{lies}"
        f"<td class=scope>{_e(node.scope)}<td class=where>{_e(_place(node.span))}"
    )


def _edge(part: Parted, value: Value, axes: Sequence[str]) -> str:
    """An operand, with how it lies: a link to where it is made."""
    node = value.node
    if node is not None and node.op in STATE_OPS:
        path = str(node.args[0])
        lies = part.state.get(path, {})
        return f"{_e(path)}{_chips_of({axis: lies.get(axis) for axis in axes})}"
    return f"<a href=#{_anchor(value.name)}>%{_e(value.name)}</a>{_chips(part, value, axes)}"


def _chips(part: Parted, value: Value, axes: Sequence[str]) -> str:
    if not isinstance(value.type, TensorType):
        return ""
    lies = part.placements.get(value.name, {})
    return _chips_of({axis: lies.get(axis) for axis in axes})


def _chips_of(lies: Mapping[str, Placement | None]) -> str:
    return "".join(_chip(axis, at) for axis, at in lies.items())


def _chip(axis: str, at: Placement | None) -> str:
    kind = "S" if isinstance(at, Shard) else "P" if isinstance(at, Partial) else "R"
    text = "R" if at is None else str(at)
    if isinstance(at, Shard) and len(at.sizes) > 8:
        text = f"S({at.dim})"
    return f" <span class='chip {kind}' title='{_e(axis)}'>{_e(axis)} {_e(text)}</span>"


def _place(span: Span | None) -> str:
    return "" if span is None else f"{span.file.rsplit('/', 1)[-1]}:{span.line}"


def _anchor(name: str) -> str:
    return "v-" + "".join(sign if sign.isalnum() else "-" for sign in name)


def _e(text: str) -> str:
    return html.escape(text, quote=True)
