"""Stands in for the GPU libraries that a build of torch wants to be loaded with: gigabytes that no test here calls.

`fill(folder)` looks at the libraries in `torch/lib`, and for each one that they need and that is nowhere to be found
makes a small one with the same names in it. A name that answers a text gives one; every other gives 100, which is
"no device" to CUDA: `torch.cuda.is_available()` is then False as on any machine without a GPU.

Raises: OSError where there is no C compiler or no binutils.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_HEAD: Final = 'static int number(void) { return 100; }\nstatic const char *text(void) { return "stand-in"; }\n'
_PYTHON: Final = ("Py", "_Py")


def fill(folder: Path) -> list[str]:
    """Make what is missing, beside torch's own libraries; the names of what was made."""
    libraries = sorted(path for path in folder.iterdir() if ".so" in path.name and path.is_file())
    there = {path.name for path in libraries}
    needs = {name for path in libraries for name in _needed(path)}
    missing = sorted(name for name in needs - there if not _loads(name))
    if not missing:
        return []
    versions = {tag: name for path in libraries for name, tags in _versions(path).items() for tag in tags}
    defined = {name for path in libraries for name, _ in _names(path, "--defined-only")}
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    for path in libraries:
        for name, tag in _names(path, "--undefined-only"):
            if tag:
                if (owner := versions.get(tag)) in wanted:
                    wanted[owner][tag].add(name)
            elif name not in defined and not name.startswith(_PYTHON):
                wanted[missing[0]][""].add(name)
    for name, parts in wanted.items():
        _build(folder / name, parts)
    return missing


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _needed(path: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-d", str(path)))


def _versions(path: Path) -> dict[str, list[str]]:
    """The version tags that a library wants of each library it needs."""
    found: dict[str, list[str]] = defaultdict(list)
    file = ""
    for line in _run("readelf", "-V", str(path)).splitlines():
        if (head := re.search(r"File: (\S+)", line)) is not None:
            file = head[1]
        elif file and (tag := re.search(r"Name: (\S+)\s+Flags", line)) is not None:
            found[file].append(tag[1])
    return found


def _names(path: Path, which: str) -> list[tuple[str, str]]:
    """Names, each with its version tag or an empty one."""
    words = (line.split()[-2:] for line in _run("nm", "-D", which, str(path)).splitlines())
    pairs = (name.partition("@") for kind, name in words if kind != "w")
    return [(name, tag.lstrip("@")) for name, _, tag in pairs]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _build(path: Path, parts: dict[str, set[str]]) -> None:
    lines = [_HEAD]
    for name in sorted({name for names in parts.values() for name in names}):
        kind, answer = ("const char *", "text") if name.endswith(("String", "Name")) else ("int ", "number")
        lines.append(f'{kind}{name}(void) __attribute__((alias("{answer}")));\n')
    script = [
        f"{tag} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
        for tag, names in parts.items()
        if tag
    ]
    with TemporaryDirectory() as scratch:
        source, versions = Path(scratch, "stand_in.c"), Path(scratch, "versions")
        source.write_text("".join(lines))
        versions.write_text("".join(script))
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}"]
        if script:
            options.append(f"-Wl,--version-script,{versions}")
        _run("cc", *options, "-o", str(path), str(source))
