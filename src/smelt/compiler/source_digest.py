"""Which code of Smelt's makes plans: the digest of its own source, for what is kept of its work on disk.

Contents and not times: two builds of one version may lie in one place with the same times.
"""

from __future__ import annotations

import hashlib
import os
import threading
from functools import lru_cache
from pathlib import Path

import smelt.diag as anchor

# All that has a say in what becomes of a captured graph.
_PACKAGES = ("_torch", "analysis", "codegen", "compiler", "diag", "ir", "ops", "passes", "rewrite", "runtime")


@lru_cache(maxsize=1)
def source_digest() -> str:
    """The digest of the source files; "" where they cannot be read: then nothing is to be kept."""
    root = Path(anchor.__file__).parent.parent
    digest = hashlib.sha256()
    try:
        for package in _PACKAGES:
            for folder, below, names in os.walk(root / package):
                below.sort()
                for name in sorted(names):
                    if name.endswith(".py"):
                        path = os.path.join(folder, name)
                        with open(path, "rb", buffering=0) as file:
                            data = file.read()
                        digest.update(f"{os.path.relpath(path, root)}\0{len(data)}\0".encode())
                        digest.update(data)
    except OSError:
        return ""
    return digest.hexdigest()


@lru_cache(maxsize=1)
def begin_source_digest() -> threading.Thread:
    """Find the digest in a thread of its own, once in a process: it is needed when the first program is recorded."""
    thread = threading.Thread(target=source_digest, name="smelt source", daemon=True)
    thread.start()
    return thread
