"""What saved programs cost, in the processor's time of one thread: `python bench/ingots.py bert mlp ...`; all by default.

Each model in fresh processes: saving beside one compilation, both with empty caches; loading and the first answer; a
call from Python and one from C, in turn; two contexts in two threads; bytes of the file and of the library.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
_BUDGET_S, _MOST_ROUNDS, _STARTS = 4.0, 400, 5


def build(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A model of the benchmark, or one of MiniLM's size, and its arguments."""
    from smelt.bench.models import MODELS

    torch.manual_seed(0)
    if name != "minilm":
        return next(model for model in MODELS if model.name == name).build()
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    model = BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()
    return model, (torch.randint(0, 30000, (1, 128)),)


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of the processor."""
    begin = time.process_time()
    call()
    return 1e3 * (time.process_time() - begin)


# --- in processes of their own


def compile_one(name: str, folder: Path) -> dict[str, float]:
    """One compilation: what the calls until native code runs cost beyond eager ones."""
    import smelt

    target, args = build(name)
    target(*args)
    eager = timed(lambda: target(*args))
    compiled = smelt.compile(target)
    return {"compile": sum(timed(lambda: compiled(*args)) - eager for _ in range(2))}


def save_one(name: str, folder: Path) -> dict[str, float]:
    """Saving for three targets; exported here, too, for those who come behind."""
    import safetensors.torch

    import smelt
    from smelt.package.c.export import export
    from smelt.runtime.ingot.natives import targets

    target, args = build(name)
    program = smelt.trace(target, args)
    spent = timed(lambda: program.save(folder / "m.ingot"))
    exported = export(folder / "m.ingot", folder / "c", target=targets()[0])
    torch.save(args, folder / "args")
    (folder / "c.json").write_text(json.dumps([str(exported.library), str(exported.weights), exported.name]))
    held = {t.untyped_storage().data_ptr(): (n, t) for n, t in smelt.load(folder / "m.ingot").state_dict().items()}
    plain = safetensors.torch.save(dict(held.values())) if held else b""
    return {
        "save": spent, "file": (folder / "m.ingot").stat().st_size, "plain": len(plain),
        "library": exported.library.stat().st_size,
    }  # fmt: skip


def start_one(name: str, folder: Path) -> dict[str, float]:
    """From `import smelt` to later calls."""
    args = torch.load(folder / "args", weights_only=False)
    begin = time.process_time()
    import smelt

    imported = 1e3 * (time.process_time() - begin)
    made: list[Any] = []
    loaded = timed(lambda: made.append(smelt.load(folder / "m.ingot")))
    first = timed(lambda: made[0](*args))
    assert made[0].is_native
    later = statistics.median(timed(lambda: made[0](*args)) for _ in range(15))
    return {"import": imported, "load": loaded, "first": first, "later": later}


def calls(name: str, folder: Path) -> dict[str, float]:
    """Calls from Python and from C, of as many contexts as there may be."""
    sys.path.append(str(ROOT))
    import smelt
    from tests.ingots_c.client import CTensor, Library, lent

    class Exported:
        library, weights, name = json.loads((folder / "c.json").read_text())

    args = torch.load(folder / "args", weights_only=False)
    library: Any = Library(Exported)  # type: ignore[arg-type]
    model = context = None

    def opened() -> None:
        nonlocal model, context
        model = library.open(Exported.weights)
        context = model.context()

    opening = min(timed(opened) for _ in range(5))
    loaded = smelt.load(folder / "m.ingot")
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    given = (CTensor * len(tensors))(*map(lent, tensors))
    count = library.entries[0].noutputs

    def from_c(at: Any) -> Callable[[], None]:
        made = (CTensor * max(count, 1))()
        return lambda: library.check(library.c.smelt_call(at.handle, 0, given, len(tensors), made, count))

    one, other = from_c(context), lambda: loaded(*args)
    for _ in range(3):
        one(), other()
    # Short calls are timed many at once.
    many = max(1, int(1.0 / max(timed(one), 1e-3)))
    found: list[tuple[float, float]] = []
    begin = time.process_time()
    while len(found) < 5 or (len(found) < _MOST_ROUNDS and time.process_time() - begin < _BUDGET_S):
        pair = [timed(lambda c=call: [c() for _ in range(many)]) / many for call in (one, other)]
        found.append((pair[0], pair[1]))
    c, python = (min(each) for each in zip(*found, strict=True))
    ratio = statistics.median(b / a for a, b in found)
    alone, _ = together([from_c(context)], c)
    both, runnable = together([from_c(model.context()) for _ in range(2)], c)  # type: ignore[attr-defined]
    return {
        "open": opening, "c": c, "python": python, "ratio": ratio, "contexts": runnable * alone / both,
        "runnable": runnable,
    }  # fmt: skip


def together(runs: list[Callable[[], None]], call_ms: float) -> tuple[float, float]:
    """Calls in threads of their own: milliseconds of a processor a call, and how many threads could run at once."""
    count, figures = max(3, int(1500 / max(call_ms, 1e-3))), []
    begin = threading.Barrier(len(runs))

    def work(run: Callable[[], None]) -> None:
        begin.wait()
        before, wall = schedule(), time.perf_counter()
        for _ in range(count):
            run()
        ran, waited = (b - a for a, b in zip(before, schedule(), strict=True))
        figures.append((ran / count / 1e6, (ran + waited) / 1e9 / (time.perf_counter() - wall)))

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.mean(ms for ms, _ in figures), sum(share for _, share in figures)


def schedule() -> tuple[int, int]:
    """Nanoseconds that this thread ran, and that it waited for a processor."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran), int(waited)


# --- all of them

_PARTS = {"compile": compile_one, "save": save_one, "start": start_one, "calls": calls}


def part(what: str, name: str, folder: Path, cache: Path) -> dict[str, float]:
    """What a part says, in a process of its own."""
    environment = {**os.environ, "SMELT_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "--part", what, name, str(folder)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(name: str, folder: Path) -> str:
    """A model's line of the table."""
    made = part("compile", name, folder, folder / "one") | part("save", name, folder, folder / "other")
    starts = [part("start", name, folder, folder / "other") for _ in range(_STARTS)]
    found = {key: statistics.median(each[key] for each in starts) for key in starts[0]}
    found |= part("calls", name, folder, folder / "other")
    more, plain = made["file"] - made["plain"], made["plain"]
    added = f"{100 * more / plain:+.2f}% of {plain / 1e6:.1f} MB" if plain else f"{more / 1e3:+.0f} kB"
    return (
        f"| {name} | {made['save'] / made['compile']:.2f}x of {made['compile'] / 1e3:.1f} s "
        f"| {added} "
        f"| {made['library'] / 1e3:.0f} | {found['import']:.1f} | {found['load']:.1f} "
        f"| {found['first'] / found['later']:.2f}x of {found['later']:.2f} | {found['open']:.2f} | {found['c']:.4f} "
        f"| {found['ratio']:.2f}x | {found['contexts']:.2f} ({found['runnable']:.2f}) |"
    )


def main() -> None:
    if sys.argv[1:2] == ["--part"]:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        print(json.dumps(_PARTS[sys.argv[2]](sys.argv[3], Path(sys.argv[4]))))
        return
    from smelt.bench.models import MODELS

    heads = ("model", "save, three targets", "file over a safetensors file", "library, kB", "import, ms", "load, ms")
    heads += ("first call", "open + context in C, ms", "C, ms", "Python over C", "two contexts (runnable)")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name in sys.argv[1:] or ["minilm", *(model.name for model in MODELS)]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(row(name, Path(folder)), flush=True)
            except subprocess.CalledProcessError as failed:
                print(f"| {name} | {failed} |", flush=True)


if __name__ == "__main__":
    main()
