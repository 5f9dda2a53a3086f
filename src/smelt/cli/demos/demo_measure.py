"""The demo's figures: eager and compiled take turns on every batch, then both answer the same queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from smelt.cli.demos.demo_model import Batch, join
from smelt.diag.records import record

Run = Callable[[Tensor, Tensor], Tensor]


@record
class Timed:
    """One system's run over the corpus: seconds per batch in the order measured, and the embeddings f32[n, width]."""

    batch_s: tuple[float, ...]
    embeddings: Tensor

    @property
    def median_s(self) -> float:
        """Median seconds per batch."""
        return median(self.batch_s)


@record
class Pair:
    """Eager and compiled on the same batches."""

    eager: Timed
    compiled: Timed

    @property
    def speed_up(self) -> float:
        """Eager's median over the compiled one's."""
        return self.eager.median_s / self.compiled.median_s

    @property
    def largest_difference(self) -> float:
        """Between the coordinates of the embeddings (unit vectors); nan if any is not finite."""
        return (self.eager.embeddings - self.compiled.embeddings).abs().max().item()


@record
class Hit:
    """A sentence found: its index in the corpus and the cosine of the angle to the query."""

    index: int
    score: float


@record
class Answer:
    """The nearest sentences to a query by both systems, best first."""

    query: str
    eager: tuple[Hit, ...]
    compiled: tuple[Hit, ...]

    @property
    def is_same(self) -> bool:
        """Whether both found the same sentences in the same order."""
        return [h.index for h in self.eager] == [h.index for h in self.compiled]


def measure_pair(
    eager: Run, compiled: Run, batches: Sequence[Batch], rounds: int, step: Callable[[], Any] = lambda: None
) -> Pair:
    """Time both on every batch, `rounds` times. Who goes first alternates; `step` is called after each batch.

    The first batch of each is run once before, untimed. Gradients are off.
    """
    runs = (eager, compiled)
    times: tuple[list[float], list[float]] = ([], [])
    results: tuple[list[Tensor], list[Tensor]] = ([], [])
    with torch.no_grad():
        for run in runs:
            run(batches[0].ids, batches[0].mask)
        for turn, batch in _turns(batches, rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                start = time.perf_counter()
                result = runs[which](batch.ids, batch.mask)
                times[which].append(time.perf_counter() - start)
                if turn < len(batches):
                    results[which].append(result)
            step()
    first, second = (Timed(tuple(t), join(batches, r)) for t, r in zip(times, results, strict=True))
    return Pair(first, second)


def _turns(batches: Sequence[Batch], rounds: int) -> Iterator[tuple[int, Batch]]:
    return enumerate(batch for _ in range(rounds) for batch in batches)


def search(
    queries: Sequence[str], batches: Sequence[Batch], eager: Run, compiled: Run, corpus: Pair, count: int
) -> list[Answer]:
    """Embed the queries with both systems (`batches` holds them) and look each up in that system's own embeddings."""
    with torch.no_grad():
        by_eager = join(batches, [eager(b.ids, b.mask) for b in batches])
        by_compiled = join(batches, [compiled(b.ids, b.mask) for b in batches])
    return [
        Answer(query, nearest(e, corpus.eager.embeddings, count), nearest(c, corpus.compiled.embeddings, count))
        for query, e, c in zip(queries, by_eager, by_compiled, strict=True)
    ]


def nearest(query: Tensor, corpus: Tensor, count: int) -> tuple[Hit, ...]:
    """The `count` rows of `corpus` f32[n, width] with the largest product with `query` f32[width], best first."""
    scores, found = (corpus @ query).topk(min(count, len(corpus)))
    return tuple(Hit(index, score) for index, score in zip(found.tolist(), scores.tolist(), strict=True))
