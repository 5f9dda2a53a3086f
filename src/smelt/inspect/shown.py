"""What text shows of the sections of a report: what tells of this program; what holds of every program is counted.

Invariant: a row is shown, joined with others that say the same of other names or entries, or counted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smelt.diag.records import record
from smelt.inspect.places import is_installed

Row = Mapping[str, Any]


@record
class Shown:
    """The rows of a section that text shows, and what is said of the others."""

    rows: Sequence[Row]
    hidden: str = ""


_OF_ARGUMENTS = ("shape", "dtype", "size", "value")
_TELLING = (*_OF_ARGUMENTS, "check", "read of data")
"""Guards that a person asks for: what of the arguments, of sizes and of data an entry holds for."""
_OF_A_LINE = 3  # guards on what one line read, beyond which they are counted
_USUAL = (
    "static", "absent", "module", "constant", "structure", "type", "layout", "device", "state", "hooks", "function",
    "class", "object",
)  # fmt: skip
_OF_MODULES = re.compile(r"\._(parameters|buffers|modules|\w*hooks\w*|non_persistent_buffers_set)(\[.*\])?$")


def guards(rows: Sequence[Row]) -> Shown:
    """Guards that tell of this program; equal ones of several entries in one row."""
    held = {(row["entry"], row["guard"]) for row in rows if row["kind"] == "content"}
    checks = _joined_checks([row for row in rows if row["kind"] == "check"])
    telling = [row for row in rows if row["kind"] != "check" and is_telling(row)]
    telling = [row for row in telling if row["kind"] != "item" or (row["entry"], row["guard"]) not in held]
    entries: dict[tuple[str, ...], list[int]] = {}
    for row in (*checks, *telling):
        entries.setdefault((row["kind"], row["guard"], row["value"], row["where"]), []).append(row["entry"])
    alike: dict[tuple[str, ...], list[str]] = {}
    for (kind, guard, value, where), found in entries.items():
        alike.setdefault((spans(found), kind, value, where), []).append(guard)
    shown: list[Row] = []
    for (entry, kind, value, where), names in alike.items():
        each = [runs_of_names(", ".join(names))] if kind in _OF_ARGUMENTS else names
        shown += [{"entry": entry, "kind": kind, "guard": g, "value": value, "where": where} for g in each]
    hidden = sum(row["kind"] != "check" for row in rows) - len(telling)
    usual = "of the usual kind (types, modes, modules and their members, functions, weights, what libraries read)"
    return Shown(_of_one_line(shown), f"{hidden:,} guards {usual}" if hidden else "")


def _of_one_line(rows: Sequence[Row]) -> list[Row]:
    """Guards on many things that one line read, as one row."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for number, row in enumerate(rows):
        key = (str(number),) if row["kind"] in _TELLING else (row["entry"], row["kind"], row["where"])
        found.setdefault(key, []).append(row)
    shown: list[Row] = []
    for alike in found.values():
        first = alike[0]
        if len(alike) <= _OF_A_LINE:
            shown += alike
        else:
            shown.append({**first, "guard": f"{first['guard']} and {len(alike) - 1} more", "value": ""})
    return shown


def is_telling(row: Row) -> bool:
    """Whether a guard tells of this program, not of every one."""
    if row["kind"] in _TELLING:
        return True
    if row["kind"] in _USUAL or not row["where"] or _OF_MODULES.search(row["guard"]):
        return False
    return not is_installed(row["where"]) and not row["value"].startswith("<")


def spans(numbers: Iterable[int]) -> str:
    """Numbers in order, runs of them as `0-3`."""
    found = sorted(set(numbers))
    runs = [list(run) for _, run in itertools.groupby(enumerate(found), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 2 else ", ".join(str(n) for _, n in run) for run in runs)


_EQUALITY = re.compile(r"^(\w+) == ([A-Za-z_]\w*)$")
_BOUND = re.compile(r"^(\w+) (\S+ -?\d+)$")


def _joined_checks(rows: Sequence[Row]) -> list[Row]:
    """Checks on sizes, where those of one entry and line that make sizes equal, or bound them alike, are one row."""
    found: dict[tuple[Any, ...], list[str]] = {}
    equal: dict[tuple[Any, ...], list[list[str]]] = {}
    for row in rows:
        place, text = (row["entry"], row["where"]), row["guard"]
        if match := _EQUALITY.match(text):
            classes = equal.setdefault(place, [])
            joined = [names for names in classes if not set(match.groups()).isdisjoint(names)]
            names = list(dict.fromkeys([*(name for names in joined for name in names), *match.groups()]))
            equal[place] = [*(names for names in classes if names not in joined), names]
            found.setdefault((*place, ""), [])
        elif match := _BOUND.match(text):
            found.setdefault((*place, match[2]), []).append(match[1])
        else:
            found[(*place, "", text)] = [text]
    texts: list[tuple[Any, ...]] = []
    for (entry, where, bound, *_), names in found.items():
        if not bound and not names:
            texts += [(entry, where, _equal_text(names)) for names in equal[entry, where]]
        elif not bound:
            texts.append((entry, where, names[0]))
        else:
            each = "each of " if len(names) > 1 else ""
            texts.append((entry, where, f"{each}{runs_of_names(', '.join(sorted(names, key=_counting)))} {bound}"))
    return [{"entry": e, "kind": "check", "guard": text, "value": "True", "where": w} for e, w, text in texts]


def _counting(name: str) -> tuple[str, int]:
    """The order in which names are counted: B, B2, B10."""
    letters = name.rstrip("0123456789")
    return letters, int(name.removeprefix(letters) or 0)


def _equal_text(names: Sequence[str]) -> str:
    return " == ".join(names) if len(names) < 4 else f"{runs_of_names(', '.join(names))} are equal"


_NUMBER = re.compile(r"\d+")


def runs_of_names(text: str, least: int = 4) -> str:
    """A list of names where each run of at least so many that count up stands as its ends: `a[0] ... a[7] (8)`."""
    runs: list[list[str]] = []
    for name in text.split(", "):
        step = _step(runs[-1][-1], name) if runs else None
        if step is not None and (len(runs[-1]) == 1 or _step(*runs[-1][-2:]) == step):
            runs[-1].append(name)
        else:
            runs.append([name])
    shown = [[f"{run[0]} ... {run[-1]} ({len(run)})"] if len(run) >= least else run for run in runs]
    return ", ".join(name for names in shown for name in names)


def _step(before: str, after: str) -> int | None:
    """Which of the numbers in a name is one more in the next, where all else is the same."""
    if _NUMBER.sub("", before) != _NUMBER.sub("", after):
        return None
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=False)
    changed = [(i, int(new) - int(old)) for i, (old, new) in enumerate(pairs) if old != new]
    return changed[0][0] if len(changed) == 1 and changed[0][1] == 1 else None


def symbols(rows: Sequence[Row]) -> Shown:
    shown = [row for row in rows if not str(row.get("note", "")).startswith("is ")]
    hidden = len(rows) - len(shown)
    return Shown(shown, f"{hidden} that are equal to one of these" if hidden else "")


def last_sizes(rows: Sequence[Row]) -> list[Row]:
    """Of an entry with plans for several sizes the rows of one of them: the others differ in numbers only."""
    last = {row["entry"]: row["sizes"] for row in rows if row.get("sizes")}
    return [row for row in rows if row.get("sizes") in (None, last.get(row["entry"]))]


def merged(rows: Sequence[Row]) -> Shown:
    """What several entries have in common, once."""
    found: dict[tuple[Any, ...], tuple[Row, list[int]]] = {}
    for number, row in enumerate(rows):
        rest = {key: value for key, value in row.items() if key not in ("entry", "sizes")}
        is_numbered = "entry" in row
        key = (is_numbered, *((key, str(value)) for key, value in rest.items()))
        found.setdefault(key if is_numbered else (number,), (rest, []))[1].extend([row["entry"]] if is_numbered else [])
    return Shown([{"entry": spans(entries), **row} if entries else row for row, entries in found.values()])


def plural(count: int, noun: str, rest: str = "") -> str:
    """A count with its noun, in the plural where there are several, and what follows; nothing for none."""
    return f"{count:,} {noun}{'s' * (count != 1)}{rest}" if count else ""


def size(nbytes: float) -> str:
    """A number of bytes with its unit: 768 B, 1.5 KB, 27.0 MB (of 1024 each)."""
    for unit in ("B", "KB", "MB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.2f} GB"
