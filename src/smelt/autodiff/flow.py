"""The smallest cut of a network, by Dinic's algorithm on arrays.

Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation" (1970).
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60


class Network:
    """Vertices are numbers; edges have whole capacities."""

    def __init__(self) -> None:
        self._to: list[int] = []
        self._left: list[int] = []
        self._edges: list[list[int]] = []

    def vertex(self) -> int:
        """One more vertex."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        """An edge from a to b."""
        self._edges[a].append(len(self._to))
        self._edges[b].append(len(self._to) + 1)
        self._to += [b, a]
        self._left += [capacity, 0]

    def cut(self, source: int, sink: int) -> tuple[int, set[int]]:
        """The capacity of the smallest cut, and the vertices on the source's side of it (the most there can be)."""
        total = 0
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return total, self._beyond(sink)
            nexts = [0] * len(self._edges)
            while flow := self._augment(source, sink, level, nexts):
                total += flow
                if total >= INFINITE:
                    return total, set()

    def _beyond(self, sink: int) -> set[int]:
        """The vertices from which nothing more can flow to the sink."""
        reaching = {sink}
        pending = [sink]
        while pending:
            for edge in self._edges[pending.pop()]:
                before = self._to[edge]
                if self._left[edge ^ 1] and before not in reaching:
                    reaching.add(before)
                    pending.append(before)
        return set(range(len(self._edges))) - reaching

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            at = queue.popleft()
            for edge in self._edges[at]:
                to = self._to[edge]
                if self._left[edge] and level[to] < 0:
                    level[to] = level[at] + 1
                    queue.append(to)
        return level

    def _augment(self, source: int, sink: int, level: list[int], nexts: list[int]) -> int:
        """Send what one path along the levels takes; 0 where there is none left."""
        path: list[int] = []
        at = source
        while at != sink:
            edges = self._edges[at]
            while nexts[at] < len(edges):
                edge = edges[nexts[at]]
                if self._left[edge] and level[self._to[edge]] == level[at] + 1:
                    break
                nexts[at] += 1
            else:
                if not path:
                    return 0
                edge = path.pop()
                at = self._to[edge ^ 1]
                nexts[at] += 1
                continue
            path.append(edge)
            at = self._to[edge]
        flow = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= flow
            self._left[edge ^ 1] += flow
        return flow
