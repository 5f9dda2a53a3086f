"""Many random programs, in processes that may die: `python -m tests.programs.run FIRST COUNT [--jobs 2]`.

Prints the share of each construct, how programs were captured, and each difference by class with its number.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.programs.aimed import FAMILIES
from tests.programs.asks import asks
from tests.programs.broad import broad
from tests.programs.generate import Generated, generate
from tests.programs.sized import sized
from tests.programs.wide import wide

_CHUNK = 200
# Scripting may take 20 s of a processor before it refuses, with and without types; others may use the processor, too.
_HANGS_S = 300
_WAYS = ("compile", "trace", "staged", "script")
KINDS: dict[str, Callable[[int, int], Generated]] = {
    "generate": generate,
    "wide": wide,
    "broad": broad,
    "asks": asks,
    **FAMILIES,
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting work after this time")
    parser.add_argument("--ways", default=",".join(_WAYS))
    parser.add_argument("--own", action="store_true", help="with kernels of our own in all, not in every other")
    parser.add_argument("--size", type=int, default=0, help="statements of each program; 0: many or few")
    parser.add_argument("--quick", action="store_true", help="one order of calls")
    parser.add_argument("--vary", action="store_true", help="other strides, shared memory, modes, changing state")
    parser.add_argument("--kind", choices=list(KINDS), default="generate", help="which constructs")
    parser.add_argument("--sizes", action="store_true", help="other sizes and numbers at each call")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path)
    options = parser.parse_args()
    if options.vary and options.ways == ",".join(_WAYS):
        options.ways = "compile"
    if options.sizes and options.ways == ",".join(_WAYS):
        options.ways = "compile,dynamic"
    if options.worker is not None:
        _work(options)
        return
    rows = _collect(options)
    print(report(rows))
    if options.out is not None:
        options.out.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def _work(options: Any) -> None:
    import torch

    from tests.programs.judge import OPTIONS, ORDERS, OWN, judge

    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, options.worker.open("a") as log:
        for seed in range(options.first, options.first + options.count):
            if time.perf_counter() - started > options.seconds:
                break
            log.write(json.dumps({"start": seed}) + "\n")
            log.flush()
            path = Path(folder) / f"program_{seed}.py"
            text = KINDS[options.kind](seed, options.size).text
            path.write_text(sized(text, seed) if options.sizes else text)
            begun = time.perf_counter()
            try:
                orders = ORDERS[seed % 2 :][:1] if options.quick else ORDERS
                verdict = judge(
                    path,
                    options.ways.split(","),
                    OWN if options.own or seed % 2 else OPTIONS,
                    orders,
                    seed if options.vary else None,
                )
                row = {"seed": seed, **vars(verdict), "s": round(time.perf_counter() - begun, 2)}
            except Exception as error:
                row = {"seed": seed, "difference": f"the judge: {type(error).__name__}: {error}"}
            if row["difference"] or row.get("internal"):
                print(seed, row["difference"] or row["internal"], flush=True)
            log.write(json.dumps({**row, "size": options.size, "kind": options.kind}) + "\n")
            log.flush()


def _collect(options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    waiting = [(s, min(_CHUNK, options.first + options.count - s))
               for s in range(options.first, options.first + options.count, _CHUNK)]  # fmt: skip
    running: list[tuple[subprocess.Popen[bytes], Path, int, int]] = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < options.jobs and time.perf_counter() - begun < options.seconds:
                first, count = waiting.pop(0)
                log = Path(folder) / f"{first}_{count}.jsonl"
                command = [sys.executable, "-m", "tests.programs.run", str(first), str(count), "--worker", str(log)]
                command += ["--ways", options.ways, "--size", str(options.size)]
                command += (["--own"] if options.own else []) + (["--quick"] if options.quick else [])
                command += (["--sizes"] if options.sizes else []) + ["--kind", options.kind]
                command += ["--vary"] if options.vary else []
                command += ["--seconds", str(options.seconds - (time.perf_counter() - begun))]
                process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
                running.append((process, log, first, count))
            if not running:
                break
            time.sleep(0.2)
            for item in list(running):
                process, log, first, count = item
                is_over = process.poll() is not None  # asked first: what it wrote at last is read then
                # The last one may be half written yet.
                whole = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
                lines = [json.loads(line) for line in whole]
                hangs = log.exists() and time.time() - log.stat().st_mtime > _HANGS_S
                if not is_over and not hangs:
                    continue
                if hangs:
                    process.kill()
                    process.wait()
                running.remove(item)
                rows += [line for line in lines if "seed" in line]
                started = [line["start"] for line in lines if "start" in line]
                done = {line["seed"] for line in lines if "seed" in line}
                dead = [s for s in started if s not in done]
                if dead:
                    how = "it hangs" if hangs else f"the process died ({process.returncode})"
                    rows.append({"seed": dead[0], "difference": how})
                    left = first + count - dead[0] - 1
                    if left:
                        waiting.insert(0, (dead[0] + 1, left))
                elif not started:
                    raise RuntimeError("a worker did not start")
    return sorted(rows, key=lambda row: row["seed"])


def kind_of(text: str) -> str:
    """A difference without its numbers."""
    text = re.sub(r"input \d|call \d+ of \([^)]*\)", "…", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    text = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?|nan|inf", "#", text)
    text = re.sub(r"[vwcxinmgpq]#|%\w+", "V", text)
    return re.sub(r"\[[^\]]*\]", "[…]", text)[:110]


def _by_way(rows: list[dict[str, Any]]) -> list[str]:
    """How many programs each way was asked for, what came of it, and what it cost."""
    lines, seconds = [], defaultdict(list)
    for row in rows:
        for way, time_s in row.get("seconds", {}).items():
            seconds[way].append(time_s)
    for way, times in seconds.items():
        came = Counter(_came(part) for row in rows for part in row.get(way, "").split("; typed: ")[:1] if part)
        shares = ", ".join(f"{what} {100 * n / len(times):.1f}%" for what, n in came.most_common(12))
        lines.append(f"{way}: {len(times)} programs, {sum(times) / len(times):.2f} s each. {shares}")
    typed = Counter(_came(row["script"].split("; typed: ")[1]) for row in rows if "; typed: " in row.get("script", ""))
    if typed:
        shares = ", ".join(f"{what} {100 * n / typed.total():.1f}%" for what, n in typed.most_common(12))
        lines.append(f"script with the types of a call: {typed.total()} programs. {shares}")
    return lines


def _came(text: str) -> str:
    """What came of a way, without its numbers and names."""
    if text.startswith("refused"):
        return "refused"
    return text.split(",")[0] if text.startswith("accepted") else kind_of(text)[:70]


def report(rows: list[dict[str, Any]]) -> str:
    """What was run and found."""
    constructs: Counter[str] = Counter()
    for row in rows:
        make = KINDS[row.get("kind", "generate")]
        constructs.update(make(row["seed"], row.get("size", 0)).constructs.keys())
    total = max(len(rows), 1)
    lines = [f"{len(rows)} programs; the share of programs with each construct:"]
    items = [f"{name} {100 * n / total:.0f}%" for name, n in constructs.most_common()]
    lines += ["  " + ", ".join(items[i : i + 6]) for i in range(0, len(items), 6)]
    captured = Counter(row.get("captured", "") or "not reached" for row in rows)
    lines.append("captured: " + ", ".join(f"{k} {100 * n / total:.1f}%" for k, n in captured.most_common()))
    lines += _by_way(rows)
    for title, key in (
        ("differences", "difference"),
        ("internal errors", "internal"),
    ):
        classes: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            if row.get(key):
                classes[kind_of(row[key])].append(row["seed"])
        lines.append(f"{title}: {sum(map(len, classes.values()))}")
        for kind, seeds in sorted(classes.items(), key=lambda item: -len(item[1])):
            lines.append(f"  {len(seeds):4}  {kind}   e.g. {seeds[:4]}")
    for way in ("paths", "eager"):
        why = Counter(kind_of(row.get("why", "")) for row in rows if row.get("captured") == way)
        lines.append(f"why {way}:")
        lines += [f"  {n:4}  {text}" for text, n in why.most_common(18)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
