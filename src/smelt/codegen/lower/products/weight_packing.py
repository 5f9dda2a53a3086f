"""Memory of a plan that kernels fill while Python goes on: weights that are packed.

    fills.add(source, isa, options, (weight, packed), words, items)   noted
    fills.start()                                                     threads begin, each with one native call
    ...                                                               guards, encoding
    fills.pause()                                                     the call returns: nothing is read or written now
    fills.finish()                                                    the next call helps, until all is there

A weight that is itself a copy (merged, folded) is in memory until it is packed: few of these wait at a time. So are
originals that are to be released (`finish_by_parts`).

Threads claim pieces of a table from a counter, in native code: one that had to ask for the interpreter's lock between
two pieces would wait for it longer than a piece takes. Invariant: each piece has run once in this process when `finish`
returns; a forked child, which has none of the threads, runs all of them again. Between calls no thread reads a weight:
the program may give its memory back then.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from smelt.codegen.llvm.isa import Isa, is_for_elsewhere
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.diag import Options, SmeltError
from smelt.diag.records import distinct_record
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.machine.loaded_kernels import kernels
from smelt.runtime.machine.loader import LoadedCode

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
# Words of the table. A piece is four more: kernel, arguments, begin, end.
_CLAIMED, _COUNT, _DONE, _ACTIVE, _STOP, _FIRST = range(6)
_PIECE_NBYTES = 2 << 20
_WAITING_NBYTES = 16 << 20
"""Of copies, or of originals that are to go, no more wait to be packed."""
_MOST_WORKERS = 8
_POLL_S = 0.0001

# Claims pieces until none is left, or it is told to stop. %args: the table.
_WALK = f"""
define i32 @KERNEL(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
start:
  %count_at = getelementptr i64, ptr %args, i64 {_COUNT}
  %done_at = getelementptr i64, ptr %args, i64 {_DONE}
  %active_at = getelementptr i64, ptr %args, i64 {_ACTIVE}
  %stop_at = getelementptr i64, ptr %args, i64 {_STOP}
  %count = load i64, ptr %count_at
  %entered = atomicrmw add ptr %active_at, i64 1 seq_cst
  br label %next
next:
  %stop = load atomic i64, ptr %stop_at seq_cst, align 8
  %goes = icmp eq i64 %stop, 0
  br i1 %goes, label %claim, label %out
claim:
  %i = atomicrmw add ptr %args, i64 1 seq_cst
  %more = icmp slt i64 %i, %count
  br i1 %more, label %run, label %out
run:
  %words = shl i64 %i, 2
  %first = add i64 %words, {_FIRST}
  %piece = getelementptr i64, ptr %args, i64 %first
  %kernel = load ptr, ptr %piece
  %p1 = getelementptr i64, ptr %piece, i64 1
  %its = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %piece, i64 2
  %from = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %piece, i64 3
  %to = load i64, ptr %p3
  %status = call i32 %kernel(ptr %its, i64 %from, i64 %to, ptr null)
  %now = atomicrmw add ptr %done_at, i64 1 seq_cst
  br label %next
out:
  %left = atomicrmw sub ptr %active_at, i64 1 seq_cst
  ret i32 0
}}
"""


@lru_cache(maxsize=1)
def _walk() -> KernelSource:
    return KernelSource.of(_WALK)


def _loaded(source: KernelSource, isa: Isa, options: Options) -> LoadedCode | None:
    """A kernel in memory; None if it cannot be built or loaded here."""
    try:
        code = compile_kernels([source], isa, code_cache(options.cache_dir, options.cache_limit_mb))
    except (ImportError, SmeltError):
        return None
    return kernels().loaded(code[source.symbol])


@distinct_record
class _Task:
    """One weight to be packed: pieces of the table, what must live meanwhile. is_copy: nothing else reads it."""

    pieces: tuple[tuple[int, int, int, int], ...]
    keeps: Any
    weight: torch.Tensor
    is_copy: bool


class _Work:
    """The table of pieces, and what must live while a thread walks it."""

    def __init__(self, walk: LoadedCode, tasks: Sequence[_Task]) -> None:
        pieces = [piece for task in tasks for piece in task.pieces]
        words = [0] * _FIRST
        words[_COUNT] = len(pieces)
        words += [word for piece in pieces for word in piece]
        self.words = (ctypes.c_int64 * len(words))(*words)
        self._walk: LoadedCode = walk
        self._tasks: Sequence[_Task] = tasks

    def walk(self) -> None:
        """Do pieces until none is left to be claimed, or all are to stop."""
        _FUNCTION(self._walk.address(_walk().symbol))(ctypes.addressof(self.words), 0, 0, None)

    @property
    def is_done(self) -> bool:
        return bool(self.words[_DONE] == self.words[_COUNT])

    def stop(self) -> None:
        """Return when no thread is at a piece, nor will be before the next `go`."""
        self.words[_STOP] = 1
        while self.words[_ACTIVE]:
            time.sleep(_POLL_S)

    def go(self) -> None:
        self.words[_STOP] = 0

    def forget(self) -> None:
        """Hold no weights any more; all is done."""
        self._tasks = ()

    def in_child(self) -> None:
        """Only the thread that forked is here: whatever others had claimed is to be done again."""
        self.words[_ACTIVE] = 0
        if not self.is_done:
            for word in (_CLAIMED, _DONE, _STOP):
                self.words[word] = 0


class Fills:
    """What is to be filled for one plan."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []
        self._shared: list[Fills] = []
        self._walk: LoadedCode | None = None
        self._work: _Work | None = None
        self._lock = threading.Lock()
        _all.add(self)

    def add(
        self, source: KernelSource, isa: Isa, options: Options, tensors: tuple[torch.Tensor, torch.Tensor],
        words: Sequence[int], items: int, *, is_copy: bool = False,
    ) -> bool:  # fmt: skip
        """Note all items of a kernel that needs no scratch, before `start`; False if it cannot be run here.

        tensors: the weight, and memory for it packed. is_copy: nothing else reads the weight, which goes soon.
        """
        if is_for_elsewhere():
            return False
        code = _loaded(source, isa, options)
        if self._walk is None:
            self._walk = _loaded(_walk(), isa, options)
        if code is None or self._walk is None:
            return False
        args = (ctypes.c_int64 * (len(tensors) + len(words)))(*(t.data_ptr() for t in tensors), *words)
        parts = max(1, min(items, sum(t.nbytes for t in tensors) // _PIECE_NBYTES))
        bounds = [items * i // parts for i in range(parts + 1)]
        kernel, where = code.address(source.symbol), ctypes.addressof(args)
        pieces = tuple((kernel, where, bounds[i], bounds[i + 1]) for i in range(parts))
        with self._lock:
            self._tasks.append(_Task(pieces, (args, code, tensors[1]), tensors[0], is_copy))
            copies = [task for task in self._tasks if task.is_copy]
            if sum(task.weight.nbytes for task in copies) >= _WAITING_NBYTES:
                self._do(copies)
        return True

    def share(self, other: Fills) -> None:
        """Be done only when these are, too: they fill memory that this plan has in common with another."""
        if other is not self and not other.is_done:
            self._shared.append(other)

    @property
    def is_done(self) -> bool:
        """Whether all is filled."""
        if any(not other.is_done for other in self._shared):
            return False
        return not self._tasks and (self._work is None or self._work.is_done)

    def start(self) -> None:
        """Begin, with as many threads as torch has beside this one."""
        with self._lock:
            self._begin(self._tasks)

    def pause(self) -> None:
        """Return when no thread reads a weight, nor will before `finish`."""
        with self._lock:
            if self._work is not None:
                self._work.stop()

    def finish(self) -> None:
        """Help until all is filled."""
        for other in self._shared:
            other.finish()
        with self._lock:
            self._do(self._tasks)
            self._shared.clear()

    def finish_by_parts(self, behind: Callable[[Sequence[torch.Tensor]], object]) -> None:
        """The same, of a few weights at a time, with which `behind` is called as soon as they are packed."""
        while self._tasks:
            count, nbytes = 0, 0
            while count < len(self._tasks) and nbytes < _WAITING_NBYTES:
                nbytes += self._tasks[count].weight.nbytes
                count += 1
            with self._lock:
                tasks = self._tasks[:count]
                self._do(tasks)
            behind([task.weight for task in tasks])
        self.finish()

    def _begin(self, tasks: Sequence[_Task]) -> None:
        """Have threads work at these, or go on with what they are at; the lock is held."""
        if self._work is None and tasks and self._walk is not None:
            self._work = _Work(self._walk, tuple(tasks))
            self._tasks = [task for task in self._tasks if task not in tasks]
        work = self._work
        if work is None or work.is_done:
            return
        work.go()
        for _ in range(min(max(torch.get_num_threads() - 1, 1), _MOST_WORKERS)):
            threading.Thread(target=work.walk, name="smelt packing", daemon=True).start()

    def _do(self, tasks: Sequence[_Task]) -> None:
        """Help until these are done, and what threads are at; the lock is held."""
        while self._work is not None or tasks:
            self._begin(tasks)
            tasks = [task for task in tasks if task in self._tasks]
            work = self._work
            assert work is not None, "a task is there only with the code that walks it"
            work.walk()
            while not work.is_done:
                time.sleep(_POLL_S)
            # Weights and code are let go of.
            work.stop()
            work.forget()
            self._work = None

    def in_child(self) -> None:
        """After a fork, before there are other threads."""
        self._lock = threading.Lock()
        if self._work is not None:
            self._work.in_child()


_all: weakref.WeakSet[Fills] = weakref.WeakSet()


def _in_child() -> None:
    for fills in list(_all):
        fills.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
