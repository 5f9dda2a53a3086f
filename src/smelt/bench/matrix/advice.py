"""Which configuration to take, with the reason, in plain sentences.

Invariant: a configuration is advised only if its results are eager's within rounding and it ran to the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.bench.matrix.configurations import EAGER
from smelt.bench.matrix.rows import Clock, Row
from smelt.bench.report import duration

RIGHT = 1e-4  # of eager's results: what rounding explains
_EVEN = 1.05  # what is not faster by more is as fast; more where eager beside itself comes out further apart
_GAIN = 1.1  # what an inexact configuration must give to be told of


def advice(rows: Sequence[Row], clock: Clock) -> list[str]:
    """Sentences, the choice first."""
    eager = next((row for row in rows if row.configuration == EAGER), None)
    eager_ms = None if eager is None else clock.ms(eager)
    if eager is None or eager_ms is None:
        return [f"Nothing can be said: eager has no times. {eager.problem if eager else ''}".strip()]
    even = _even(eager, clock)
    right = [row for row in rows if row.error is not None and row.error <= RIGHT and row.exact and _speed(row, clock)]
    best = _chosen(right, clock, even)
    found = _choice(best, right, clock, eager_ms, even)
    if best.configuration != EAGER:
        found += _lifetime(best, right, clock, eager_ms)
    found += _of_sizes(best, right, clock)
    found += _of_memory(best, right, clock, even)
    found += _inexact(rows, best, clock)
    wrong = [row for row in rows if row.exact and row.error is not None and not row.error <= RIGHT]
    found += [f"{row.configuration} gives other results than eager (error {row.error:.0e})." for row in wrong]
    failed = [row.configuration for row in rows if row.error is None]
    if failed:
        found.append(f"No times for {', '.join(failed)}: their rows say why.")
    return found


def _speed(row: Row, clock: Clock) -> float:
    return clock.speed_up(row) or 0.0


def _even(eager: Row, clock: Clock) -> float:
    ratio = clock.ratio(eager) or 1.0
    return max(_EVEN, ratio, 1 / ratio)


def _is_fast_as(row: Row, best: Row, clock: Clock, even: float) -> bool:
    return _speed(row, clock) * even >= _speed(best, clock)


def _cost(row: Row, clock: Clock) -> float:
    seconds = 0.0 if row.configuration == EAGER else clock.compile_s(row)
    return float("inf") if seconds is None else seconds


def _chosen(right: Sequence[Row], clock: Clock, even: float) -> Row:
    """Of the fastest ones, as fast as each other within the noise, the one that compiles in the least time."""
    fastest = max(right, key=lambda row: _speed(row, clock))
    return min((row for row in right if _is_fast_as(row, fastest, clock, even)), key=lambda row: _cost(row, clock))


def _choice(best: Row, right: Sequence[Row], clock: Clock, eager_ms: float, even: float) -> list[str]:
    of_cpu = " of processor time" if clock.cpu else ""
    on = f"on {clock.threads} thread{'s' if clock.threads > 1 else ''}"
    if best.configuration == EAGER:
        others = [row for row in right if row.configuration != EAGER]
        second = max(others, key=lambda row: _speed(row, clock), default=None)
        reason = (
            ""
            if second is None
            else f"; the next, {second.configuration}, is {_speed(second, clock):.2f} times as fast"
        )
        return [
            f"Stay with eager: a call takes {duration(eager_ms)}{of_cpu} {on}, and nothing is faster by {even - 1:.0%}"
            f"{reason}."
        ]
    speed = _speed(best, clock)
    found = [
        f"Take {best.configuration}, that is {best.how}: a call takes {duration(eager_ms / speed)}{of_cpu} {on}, "
        f"{speed:.2f} times as fast as eager, and results differ from eager's by {best.error:.0e}."
    ]
    as_fast = [row for row in right if row is not best and _is_fast_as(row, best, clock, even)]
    if as_fast:
        seconds, other = _cost(best, clock), min(as_fast, key=lambda row: _cost(row, clock))
        found.append(
            f"{_list(as_fast)} {'is' if len(as_fast) == 1 else 'are'} as fast within {even - 1:.0%}, but the first "
            f"result of {best.configuration} is there after {seconds:.1f} s, that of {other.configuration} after "
            f"{_cost(other, clock):.1f} s."
        )
    else:
        second = max((r for r in right if r is not best), key=lambda row: _speed(row, clock))
        found.append(f"The next, {second.configuration}, is {_speed(second, clock):.2f} times as fast as eager.")
    return found


def _lifetime(best: Row, right: Sequence[Row], clock: Clock, eager_ms: float) -> list[str]:
    """From how many calls on the choice costs least, and what does before."""
    after, warm = clock.pays_after(best, eager_ms), clock.pays_after(best, eager_ms, warm=True)
    if after is None:
        return []
    told = f"It pays from {after:,} calls of a process on"
    told += f", and from {warm:,} where an earlier process has filled its cache." if warm is not None else "."
    found = [told]
    earlier = [row for row in right if row is not best and row.configuration != EAGER]
    pairs = [(clock.pays_after(row, eager_ms), row) for row in earlier if _cost(row, clock) < _cost(best, clock)]
    first = min(((n, row) for n, row in pairs if n is not None and n < after), key=lambda pair: pair[0], default=None)
    if first is not None:
        calls, row = first
        gain_ms = eager_ms / _speed(row, clock) - eager_ms / _speed(best, clock)
        until = round((_cost(best, clock) - _cost(row, clock)) * 1e3 / gain_ms)
        found.append(
            f"A process that makes from {calls:,} to {until:,} calls is served soonest by {row.configuration}: it "
            f"takes {_cost(row, clock):.1f} s to its first result."
        )
    return found


def _of_sizes(best: Row, right: Sequence[Row], clock: Clock) -> list[str]:
    sizes = best.sizes
    if sizes is None or best.configuration == EAGER:
        return []
    taken = clock.other_sizes_s
    if not sizes.note and not sizes.builds:
        return [f"Other numbers of rows cost {best.configuration} no compile."]
    if sizes.note:
        told = f"For other numbers of rows {best.configuration} does not serve ({sizes.note})"
    else:
        times = "once" if sizes.builds == 1 else f"{sizes.builds} times"
        told = f"For two other numbers of rows {best.configuration} compiled {times} more ({taken(sizes):.1f} s)"
    free = [
        row for row in right
        if row is not best and row.configuration != EAGER and row.sizes is not None and not row.sizes.note
        and (sizes.note or taken(row.sizes) < 0.5 * taken(sizes)) and _speed(row, clock) > 1.0
    ]  # fmt: skip
    if not free:
        return [told + "."]
    other = max(free, key=lambda row: _speed(row, clock))
    assert other.sizes is not None
    return [
        f"{told}; {other.configuration} took {taken(other.sizes):.1f} s for the same, and is "
        f"{_speed(other, clock):.2f} times as fast as eager."
    ]


def _of_memory(best: Row, right: Sequence[Row], clock: Clock, even: float) -> list[str]:
    if best.run_mb is None:
        return []
    found = [f"Its calls reach {best.run_mb:.0f} MB above the program alone" + _compiling(best) + "."]
    less = [r for r in right if r.run_mb is not None and r.run_mb < 0.6 * best.run_mb and _speed(r, clock) > even]
    if less and best.run_mb > 32:
        other = max(less, key=lambda row: _speed(row, clock))
        found.append(
            f"{other.configuration} reaches {other.run_mb:.0f} MB and is {_speed(other, clock):.2f} times as fast as "
            "eager."
        )
    return found


def _compiling(best: Row) -> str:
    if best.compile_mb is None or best.run_mb is None or best.compile_mb <= 1.2 * best.run_mb:
        return ""
    return f", compiling {best.compile_mb:.0f} MB"


def _inexact(rows: Sequence[Row], best: Row, clock: Clock) -> list[str]:
    return [
        f"If an error of {row.error:.0e} is good enough, {row.configuration} is "
        f"{_speed(row, clock) / _speed(best, clock):.2f} times as fast again."
        for row in rows
        if not row.exact and row.error is not None and _speed(row, clock) > _GAIN * _speed(best, clock)
    ]


def _list(rows: Sequence[Row]) -> str:
    names = [row.configuration for row in rows]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
