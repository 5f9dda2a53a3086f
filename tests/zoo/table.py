"""All architectures of `transformers`, run in eager mode, by Smelt and by the other ways to capture a program.

    python -m tests.zoo.table                        # all, into bench/results/zoo.json; goes on where it stopped
    python -m tests.zoo.table --only bert llama      # some, anew
    python -m tests.zoo.table --show                 # the table of what is there
    python -m tests.zoo.table --known                # tests/zoo/known.json anew: what is not whole today, and why

Each process measures one architecture at a time; one that dies or hangs costs one row.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.zoo.row import OWN, PEERS, SECONDS

ROOT = Path(__file__).resolve().parents[2]
KNOWN = Path(__file__).with_name("known.json")
RESULTS = ROOT / "bench" / "results" / "zoo.json"
LABELS = {
    "compile": "smelt.compile", "plain": "… without mask", "trace": "smelt.trace", "export": "torch.export",
    "dynamo": "Dynamo fullgraph", "jit": "torch.jit.trace",
}  # fmt: skip


class Worker:
    """A process that measures rows, replaced when it dies or takes too long."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.process: subprocess.Popen[str] | None = None

    def row(self, name: str) -> dict[str, Any]:
        """The row of an architecture, or what became of the process."""
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-m", "tests.zoo.worker", ",".join(self.columns)]
            self.process = subprocess.Popen(
                command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(timeout=(len(self.columns) + 1) * (SECONDS + 10))
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.close()
            return {
                "name": name,
                "built": None,
                "why": f"the process ended with {self.process.returncode}" if ready else "hung",
            }
        return dict(json.loads(line))

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()


def fill(rows: dict[str, dict[str, Any]], names: list[str], columns: tuple[str, ...], jobs: int, path: Path) -> None:
    """Measure these architectures into `rows` and the file. Columns measured before and not asked for now stay."""
    waiting, lock = list(reversed(names)), threading.Lock()

    def serve() -> None:
        worker = Worker(columns)
        try:
            while True:
                with lock:
                    if not waiting:
                        return
                    name = waiting.pop()
                found = worker.row(name)
                with lock:
                    kept = {c: v for c, v in rows.get(name, {}).items() if c in LABELS and found.get("built")}
                    rows[name] = kept | found
                    save(rows, path)
                    print(f"{len(names) - len(waiting)}/{len(names)} {name} {brief(rows[name])}", flush=True)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def load(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Rows by name."""
    return {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}


def save(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """The rows, sorted, with versions and totals; replaced whole, so that a run that is stopped leaves a whole file."""
    from importlib.metadata import version

    data = {
        "torch": version("torch"),
        "transformers": version("transformers"),
        "command": "python -m tests.zoo.table",
        "totals": totals(rows),
    }
    lines = ",\n".join(_anywhere(json.dumps(rows[name], ensure_ascii=False)) for name in sorted(rows))
    head = json.dumps(data, indent=1).removesuffix("\n}")
    fresh = path.with_suffix(".tmp")
    fresh.write_text(f'{head},\n "rows": [\n{lines}\n]}}\n')
    fresh.replace(path)


def totals(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many were built; by column how many were captured whole, and how many of these were equal on all inputs."""
    built = [row for row in rows.values() if row.get("built")]
    found: dict[str, Any] = {"architectures": len(rows), "built": len(built)}
    for column in LABELS:
        there = [row[column] for row in built if column in row]
        if there:
            found[column] = {
                "ran": len(there),
                "captured": sum(bool(cell["captured"]) for cell in there),
                "captured and equal": sum(bool(cell["captured"] and cell["equal"]) for cell in there),
                "wrong": sum(bool(cell.get("differs")) for cell in there),
                "refuses other inputs": sum(bool(cell.get("refuses")) for cell in there),
            }
    return found


def brief(row: dict[str, Any]) -> str:
    """A row in a few characters."""
    if not row.get("built"):
        return f"not built: {row.get('why')}"[:100]
    return " ".join(f"{column}={_mark(row[column])}" for column in LABELS if column in row)


def _mark(cell: dict[str, Any]) -> str:
    if cell.get("differs"):
        return "[red]wrong[/]"
    if not cell["captured"]:
        return "[yellow]no[/]"
    if cell.get("refuses"):
        return "one way"
    graphs = cell.get("graphs", 1)
    return "yes" if graphs == 1 else f"yes, {graphs} graphs"


def show(rows: dict[str, dict[str, Any]], console: Console) -> None:
    """The table with totals, then what could not be built, and why."""
    table = Table(title="Captured whole, and equal to eager on all inputs")
    for title in ("architecture", *LABELS.values(), "first call", "Python nodes"):
        table.add_column(title)
    for name, row in sorted(rows.items()):
        if row.get("built"):
            own = row.get("compile", {})
            marks = [_mark(row[column]) if column in row else "" for column in LABELS]
            table.add_row(name, *marks, f"{own.get('first_call_s', '')} s", str(own.get("python_nodes", "")))
    console.print(table)
    missing = {name: row.get("why", "") for name, row in rows.items() if not row.get("built")}
    for name, why in sorted(missing.items()):
        console.print(f"not built: {name}: {why[:200]}", markup=False)
    reasons = Counter(_reason(row["compile"]) for row in rows.values() if "compile" in row)
    for reason, count in reasons.most_common():
        if reason:
            console.print(f"{count:4} {reason}", markup=False)
    console.print_json(json.dumps(totals(rows)))


def _reason(cell: dict[str, Any]) -> str:
    """Why an architecture is not captured whole."""
    if cell.get("differs"):
        return "differs from eager"
    if "error" in cell:
        return str(cell["error"])
    return "" if cell["captured"] else next(iter(cell.get("fallbacks") or ["no entry"]))


def known(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """By column the architectures that are not captured whole and equal, and why; those that cannot be built."""
    found: dict[str, dict[str, str]] = {"not built": {}}
    for name, row in sorted(rows.items()):
        if not row.get("built"):
            found["not built"][name] = str(row.get("why"))[:160]
        for column in OWN if row.get("built") else ():
            cell = row[column]
            if not (cell["captured"] and cell["equal"]):
                refused = next(iter(cell.get("refuses", {}).values()), "")
                found.setdefault(column, {})[name] = _short(_reason(cell) or f"one way: {refused}")
    return found


def _anywhere(text: str) -> str:
    """A text, or a line of JSON, without what differs from machine to machine."""
    return re.sub(r"""[^ "']*site-packages/""", "", text).replace(f"{ROOT}/", "")


def _short(reason: str) -> str:
    reason = _anywhere(reason)
    return reason if len(reason) <= 240 else reason[:240] + "…"


def main() -> None:
    """The command."""
    from tests.zoo.build import model_types

    parser = argparse.ArgumentParser(prog="python -m tests.zoo.table", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="*", help="these architectures, anew")
    parser.add_argument("--columns", default=",".join((*OWN, *PEERS)), help="separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--known", action="store_true", help="run nothing, write what the tests know")
    given = parser.parse_args()
    rows = load(given.out)
    if given.known:
        KNOWN.write_text(json.dumps(known(rows), indent=1, ensure_ascii=False) + "\n")
        return
    columns = tuple(given.columns.split(","))
    if not given.show:
        names = given.only or [
            name
            for name in model_types()
            if name not in rows or (rows[name].get("built") and any(column not in rows[name] for column in columns))
        ]
        fill(rows, names, columns, given.jobs, given.out)
    show(rows, Console(width=200))


if __name__ == "__main__":
    main()
