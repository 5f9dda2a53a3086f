"""What a saved program's native code has to be linked to, as far as its plans tell."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.diag.records import record
from smelt.package.c.tables import needs_library, needs_python
from smelt.runtime.ingot.abi import abi
from smelt.runtime.ingot.contents import Contents
from smelt.runtime.ingot.manifest import Method
from smelt.runtime.ingot.natives import NativeText


@record
class Links:
    """The operators that only libtorch computes, and those that only Python runs; none: libc, libm, pthreads do."""

    libtorch: tuple[str, ...]
    python: tuple[str, ...]


def links_of(contents: Contents, method: Method) -> Mapping[str, Links]:
    """By target; nothing where the native code is of another version. Raises: PackageError (S0701)."""
    manifest = contents.manifest
    if manifest.abi != abi():
        return {}
    profiles = () if method.free is None else method.free.profiles
    found: dict[str, Links] = {}
    for native in (method.native, *(profile.native for profile in profiles)):
        for target, entry in native.items():
            kernels = contents.entry(manifest.kernels[target])
            plan = NativeText.read(contents.json(entry), kernels, method, len(manifest.state)).plan
            before = found.get(target, Links((), ()))
            python = dict.fromkeys((*before.python, *needs_python(plan)))
            library = dict.fromkeys((*before.libtorch, *needs_library(plan)))
            found[target] = Links(tuple(op for op in library if op not in python), tuple(python))
    return found
