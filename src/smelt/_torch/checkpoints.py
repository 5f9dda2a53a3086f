"""Folders of `torch.distributed.checkpoint`, written beside what is there: a folder always has one whole checkpoint.

Its own writer puts a new checkpoint's files over those of the old one, under the same names, and removes the old index
before it moves the new one there: a rank that ends meanwhile leaves neither. Here files have names of their own, and
the index, which names them, is exchanged once all ranks are done.

Adapter for the writer's `fs`, and for the `prefix` by which it names a rank's files.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem


@dataclass(frozen=True)
class Prefix:
    """How the names of a rank's files begin."""

    prefix: str


class _Exchanging(FileSystem):
    """A file system in which the index is exchanged, and never gone."""

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Removes nothing: what takes the index's place is its successor."""

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Put a file in another's place, for good."""
        os.replace(path, new_path)
        folder = os.open(Path(new_path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Writer(dcp.FileSystemWriter):
    """Writes a checkpoint into a folder that may have one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.fs, self._own = _Exchanging(), ""

    def prepare_local_plan(self, plan: Any) -> Any:
        """As of StorageWriter; nothing is said of a checkpoint that is there."""
        self.fs.mkdir(self.path)
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """As of StorageWriter: files have names that no other save gives."""
        return [replace(plan, storage_data=Prefix(f"__{self.save_id}_{i}_")) for i, plan in enumerate(plans)]

    def write_data(self, plan: Any, planner: Any) -> Any:
        """As of StorageWriter."""
        self._own = plan.storage_data.prefix
        return super().write_data(plan, planner)

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """As of StorageWriter, on one rank: from here on the folder has the new checkpoint."""
        super().finish(metadata, results)
        self._remove(lambda name: not name.startswith(f"__{self.save_id}_"))

    def discard(self) -> None:
        """Remove what this rank wrote, of a save that failed."""
        if self._own:
            self._remove(lambda name: name.startswith(self._own))

    def _remove(self, is_old: Any) -> None:
        for file in Path(self.path).glob("__*.distcp"):
            if is_old(file.name):
                file.unlink(missing_ok=True)


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


def write(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Save on all ranks together. Raises: CheckpointError, and RuntimeError where a rank is lost."""
    writer = Writer(path)
    try:
        with _quietly(), _failures():
            dcp.save(state, storage_writer=writer)
    except BaseException:
        writer.discard()
        raise


def read(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Load into tensors, on all ranks together. Raises: CheckpointError, and RuntimeError where a rank is lost."""
    with _quietly(), _failures():
        dcp.load(state, storage_reader=dcp.FileSystemReader(path))


def index_of(path: str | os.PathLike[str]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What a checkpoint has by name (tensors have a `size`), and where each stood in what was saved."""
    found = dcp.FileSystemReader(path).read_metadata()
    return found.state_dict_metadata, found.planner_data or {}


class CheckpointError(Exception):
    """Ranks that failed, and why: (rank, error)."""

    def __init__(self, failures: list[tuple[int, BaseException]]) -> None:
        super().__init__(failures)
        self.failures = failures


@contextmanager
def _failures() -> Iterator[None]:
    """torch's own error of failed ranks is no Exception."""
    try:
        yield
    except CheckpointException as error:
        raise CheckpointError([(rank, failure[0]) for rank, failure in error.failures.items()]) from None
    except OSError as error:
        raise CheckpointError([(dist.get_rank() if dist.is_initialized() else 0, error)]) from error
