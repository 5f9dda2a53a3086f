"""A forecast as text, as plain data, and as a page."""

from __future__ import annotations

from typing import Any

from smelt.inspect.ranks.ranks_page import forecast_page
from smelt.parallel.proving.clock import text_of_seconds
from smelt.parallel.proving.figures import to_dict as figures_to_dict
from smelt.parallel.proving.forecast import Forecast, Kin
from smelt.parallel.proving.proof import text_of_bytes

_SHOWN = 24


def text_of(found: Forecast, width: int = 72) -> str:
    """For a terminal: one row a class of ranks, what they send, and a step of one rank of each class."""
    mesh, per_second = found.mesh, found.batch / found.seconds if found.seconds else 0.0
    step = f"{text_of_seconds(found.seconds)} a step, {per_second:.4g} samples/s"
    rows = [
        f"{mesh.size} ranks ({mesh}), batch {found.batch}: {step}; at most {text_of_bytes(found.worst.memory.peak)} on "
        "a rank",
        f"predicted from {found.figures}",
        "",
        f"{'ranks':>6}  {'position':<26}{'parameters':>11}{'gradients':>11}{'optimizer':>11}{'saved':>10}{'peak':>10}"
        f"{'compute':>9}{'exchange':>9}{'idle':>6}",
    ]
    for kin in found.kinds[:_SHOWN]:
        m = kin.memory
        held = "".join(f"{text_of_bytes(n):>11}" for n in (m.parameters, m.gradients, m.optimizer))
        held += "".join(f"{text_of_bytes(n):>10}" for n in (m.saved, m.peak))
        rows.append(f"{kin.count:>6}  {kin.where:<26}{held}{kin.busy:>9.0%}{kin.talking:>9.0%}{kin.idle:>6.0%}")
    if len(found.kinds) > _SHOWN:
        rows.append(f"  and {len(found.kinds) - _SHOWN} more kinds of ranks")
    rows += ["", *_traffic(found), "", found.clock.picture(width, range(min(len(found.kinds), _SHOWN)))]
    rows.append(f"bubble {found.clock.bubble:.0%} of all ranks' time; a line a kind of rank, in the order above")
    return "\n".join(rows)


def _traffic(found: Forecast) -> list[str]:
    """Of each axis what the rank sends that sends most there."""
    rows = []
    for axis in found.mesh.names:
        kin = max(found.kinds, key=lambda k, a=axis: _sent(k, a))  # type: ignore[misc]
        if axis not in kin.traffic:
            continue
        of, link = kin.traffic[axis], found.figures.link(axis)
        told = ", ".join(f"{n} {kind} of {text_of_bytes(of.nbytes[kind])} together" for kind, n in of.messages.items())
        rows.append(
            f"{axis}: a rank sends {text_of_bytes(of.total)} a step ({told}) at {link.latency_us:.3g} us, "
            f"{link.gbps:.3g} GB/s"
        )
    return rows or ["nothing is sent"]


def _sent(kin: Kin, axis: str) -> float:
    return kin.traffic[axis].total if axis in kin.traffic else 0.0


def to_dict(found: Forecast) -> dict[str, Any]:
    """As plain data that `json.dumps` takes: seconds and bytes."""
    return {
        "mesh": dict(found.mesh.axes),
        "ranks": found.mesh.size,
        "batch": found.batch,
        "seconds": found.seconds,
        "bubble": found.clock.bubble,
        "figures": figures_to_dict(found.figures),
        "kinds": [_kin_to_dict(kin) for kin in found.kinds],
    }


def _kin_to_dict(kin: Kin) -> dict[str, Any]:
    m = kin.memory
    return {
        "ranks": kin.count, "example": kin.example, "place": kin.where, "trained_elements": kin.parameters,
        "memory": {
            "parameters": m.parameters, "gradients": m.gradients, "optimizer": m.optimizer, "saved": m.saved,
            "peak": m.peak,
        },
        "sent": {
            axis: {kind: {"messages": n, "bytes": of.nbytes[kind]} for kind, n in of.messages.items()}
            for axis, of in kin.traffic.items()
        },
        "compute": kin.busy, "exchange": kin.talking, "idle": kin.idle,
    }  # fmt: skip


def page_of(found: Forecast, title: str) -> str:
    """As one HTML page."""
    return forecast_page(found, title, "\n".join(text_of(found).splitlines()[:2]))
