"""The sections on what a program is made of, as a few lines each: kinds with their counts, sums, one row an entry.

Invariant: as of `shown`; what a line counts is seen whole in `to_text(everything=True)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from smelt.inspect.shown import Row, Shown, guards, last_sizes, merged, plural, size, spans, symbols

_ORDINARY = ("kernel", "fused", "state", "view", "static", "number", "block")
_SIZED = re.compile(r",? \S*[\d⟨].*")
_MEMORY = {
    "packed weights": "packed", "computed from weights": "computed from weights",
    "originals of packed and folded": "their originals", "originals released": "released", "arena": "arena",
    "peak of a call": "peak of a call",
}  # fmt: skip
_LONGEST = 3  # stages that are named


def kernels(rows: Sequence[Row]) -> Shown:
    """Own kernels by what they compute, and what others run by its name, each kind with its count; measured kernels are
    rows of their own."""
    kept = last_sizes(rows)
    if any("us" in row and "kernel" in row for row in kept):
        own: list[Row] = [{k: v for k, v in row.items() if k != "nodes"} for row in kept if "kernel" in row]
    else:
        own = _summed(row for row in kept if "kernel" in row)
    others = Counter((row["entry"], row["how"], row["target"], row["where"]) for row in kept if _is_others(row))
    shown = [*own, *_others(others)]
    nodes = Counter(row["how"] for row in kept if row.get("how") in _ORDINARY)
    counted = [plural(sum("choice" in row for row in kept), "choice", " between kernels and libraries")]
    counted += [plural(sum("group" in row and bool(row["fused"]) for row in kept), "group", " fused")]
    counted += [plural(sum("group" in row and not row["fused"] for row in kept), "group", " left apart")]
    plans = len({(row["entry"], row.get("sizes")) for row in rows}) - len({row["entry"] for row in rows})
    counted += [plural(plans, "plan", " for other sizes")]
    if nodes:
        counted += [f"nodes by how they run: {', '.join(f'{how} {count}' for how, count in nodes.most_common())}"]
    return Shown(shown, ", ".join(filter(None, counted)))


def _is_others(row: Row) -> bool:
    return "node" in row and row["how"] not in _ORDINARY


def _others(counts: Mapping[tuple[int, str, str, str], int]) -> list[Row]:
    return [
        {"entry": entry, "how": how, "runs": target, "nodes": count, "where": where}
        for (entry, how, target, where), count in counts.items()
    ]


def _summed(rows: Iterable[Row]) -> list[Row]:
    """Kernels that compute the same, whatever the sizes, as one row, with the most bytes and operations of an entry."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        entries = found.setdefault(_SIZED.sub("", row["computes"]) or row["computes"], {})
        entries.setdefault(row["entry"], []).append(row)
    return [
        {
            "entry": spans(entries),
            "computes": computes,
            "launches": max(sum(row["launches"] for row in of) for of in entries.values()),
            "bytes": max(sum(row["bytes"] * row["launches"] for row in of) for of in entries.values()),
            "flops": max(sum((row["flops"] or 0) * row["launches"] for row in of) for of in entries.values()),
        }
        for computes, entries in found.items()
    ]


def memory(rows: Sequence[Row]) -> Shown:
    """A row for each entry, with the bytes that matter in columns."""
    found: dict[tuple[int, str], dict[str, object]] = {}
    hidden = 0
    for row in last_sizes(rows):
        column = _MEMORY.get(row["what"])
        if column is None or row.get("note"):
            hidden += 1
            continue
        named = {"entry": row["entry"], **_half(row)}
        entry = found.setdefault(_key(row), {**named, **dict.fromkeys(_MEMORY.values())})
        entry[column] = size(row["bytes"]) if row["bytes"] else None
    notes = [row for row in last_sizes(rows) if row.get("note")]
    return Shown([*found.values(), *notes], plural(hidden - len(notes), "other number"))


def _key(row: Row) -> tuple[int, str]:
    """An entry, or half of one that is trained."""
    return row["entry"], row.get("half", "")


def _half(row: Row) -> Row:
    return {"half": row["half"]} if row.get("half") else {}


def passes(rows: Sequence[Row]) -> Shown:
    """A row for each entry: the passes that changed its graph, and the time of all."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in last_sizes(rows):
        found.setdefault(_key(row), []).append(row)
    shown: list[Row] = [
        {
            "entry": entry,
            **_half(of[0]),
            "ms": sum(row["ms"] for row in of),
            "nodes before": of[0]["nodes before"],
            "nodes after": of[-1]["nodes after"],
            "changed by": ", ".join(dict.fromkeys(row["pass"] for row in of if row["changed"])),
        }
        for (entry, _), of in found.items()
    ]
    return Shown(shown, plural(sum(not row["changed"] for row in rows), "run", " of passes that changed nothing"))


def timings(rows: Sequence[Row]) -> Shown:
    """A row for each entry: the time in all, and the longest stages."""
    found: dict[int, list[tuple[float, str]]] = {}
    for row in last_sizes(rows):
        if not row["stage"].startswith("lower: "):
            found.setdefault(row["entry"], []).append((row["ms"], row["stage"]))
    shown: list[Row] = [
        {
            "entry": entry,
            "ms": sum(ms for ms, _ in of),
            "most of it": ", ".join(f"{stage} {ms:.1f}" for ms, stage in sorted(of, reverse=True)[:_LONGEST]),
        }
        for entry, of in found.items()
    ]
    return Shown(shown, f"{plural(len(rows), 'stage')} in all" if len(rows) > len(shown) else "")


CHOSEN: Mapping[str, Callable[[Sequence[Row]], Shown]] = {
    "guards": guards, "kernels": kernels, "passes": passes, "timings": timings, "memory": memory,
    "symbols": symbols, "breaks": merged, "fallbacks": merged,
}  # fmt: skip
