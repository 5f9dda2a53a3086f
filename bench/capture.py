"""What capturing BERT-base costs beyond its run, with and without noting what it reads: `python bench/capture.py`.

Rounds of eager, recorded, and recorded with reads in turn; full collections of garbage wait, as in a compile.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from smelt.compiler.collector import full_collections_later
from transformers import BertConfig, BertModel

import smelt
from smelt.capture import capture
from smelt.capture.reads.reads import record_reads
from smelt.compiler.profile_hook import watch_natively
from smelt.diag import Options


def main(rounds: int) -> None:
    """Print medians and least times in milliseconds."""
    model = BertModel(BertConfig()).eval()
    ids = torch.randint(0, 30000, (1, 128))
    compiled = smelt.compile(model)
    compiled(ids), compiled(ids)  # the native hook's code is at hand
    watch_natively(Options())

    def recorded() -> None:
        with full_collections_later():
            capture(model, (ids,), target=model)

    def with_reads() -> None:
        with full_collections_later(), record_reads({"model": model}, (ids,), {}):
            capture(model, (ids,), target=model)

    ways: dict[str, Callable[[], object]] = {
        "eager": lambda: model(ids),
        "recorded": recorded,
        "with reads": with_reads,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - begin) * 1e3)
    for name, found in times.items():
        pairs = list(zip(found, times["eager"], strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        beyond = statistics.median(a - b for a, b in pairs)
        print(f"{name:10} {statistics.median(found):6.1f} ms, least {min(found):6.1f}; {ratio:.2f} of eager, "
              f"{beyond:5.1f} beyond it, least {min(found) - min(times['eager']):5.1f}")  # fmt: skip


if __name__ == "__main__":
    with torch.no_grad():
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
