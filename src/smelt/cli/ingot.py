"""`smelt run`, `show`, `bench` and `diff` of saved programs."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table

from smelt.diag import SmeltError
from smelt.diag.console import console
from smelt.inspect.verdict import duration
from smelt.package.c.links import Links, links_of
from smelt.runtime.ingot.contents import open_file
from smelt.runtime.ingot.entry_point import EntryPoint
from smelt.runtime.ingot.free_sizes import FreeSizes, least_of, shown
from smelt.runtime.ingot.load import load
from smelt.runtime.ingot.manifest import EXTRA, InputType, Manifest, Method
from smelt.runtime.ingot.program import LoadedProgram
from smelt.runtime.ingot.structure import Const, Leaf, Mapping_, Sequence_, Structure
from smelt.runtime.ingot.tensors import dtype_name, raw

SUFFIX = ".ingot"
_ROUNDS, _BUDGET_S = 30, 10.0
_TRIED = 4096  # sizes, from the least on, where the file names none


def is_ingot(target: str) -> bool:
    """Whether a target names a saved program."""
    return target.endswith(SUFFIX)


def run_ingot(path: str, inputs: Sequence[str], output: Path | None, entry: str) -> None:
    """Run an entry point with arrays of files; print its results, or write them.

    Raises: typer.BadParameter for an input that it does not have; as `smelt.load`, and as the call.
    """
    check_is_file(path)
    program = load(path)
    point = _entry(program, entry)
    tensors = _given(point.method, inputs)
    with torch.no_grad():
        result = point(*_filled(point.method.args, tensors), **_filled(point.method.kwargs, tensors))
    found = dict(_named(result, "out"))
    for name, tensor in found.items():
        typer.echo(f"{name}: {dtype_name(tensor.dtype)}{list(tensor.shape)}")
        if output is None:
            typer.echo(str(tensor))
    if output is not None:
        np.savez(output, **{name: _array(tensor) for name, tensor in found.items()})


def _entry(program: LoadedProgram, name: str) -> EntryPoint:
    if name not in program.methods:
        raise typer.BadParameter(f"it has no entry point {name!r}; it has {', '.join(program.methods)}")
    return program.entry(name)


def _given(method: Method, inputs: Sequence[str]) -> list[torch.Tensor]:
    """The tensors of all inputs, in order."""
    names = [_short(place) for place in method.places]
    found: dict[int, torch.Tensor] = {}
    for text in inputs:
        name, separator, file = text.partition("=")
        if not separator:
            raise typer.BadParameter(f"{text!r} is not NAME=FILE.npy", param_hint="--input")
        if name not in names and not (name.isdecimal() and int(name) < len(names)):
            raise typer.BadParameter(f"there is no input {name!r}; there are {', '.join(names)}", param_hint="--input")
        number = names.index(name) if name in names else int(name)
        found[number] = _tensor(Path(file), method.inputs[number])
    missing = [name for number, name in enumerate(names) if number not in found]
    if missing:
        listed = ", ".join(f"--input {name}=FILE.npy" for name in missing)
        raise typer.BadParameter(f"inputs are missing: {listed}", param_hint="--input")
    return [found[number] for number in range(len(names))]


def _short(place: str) -> str:
    """An input's name: the number of a positional argument, the keyword of one by name, else where it stands."""
    inner = place.removeprefix("args[").removesuffix("]")
    if place == f"args[{inner}]" and inner.isdecimal():
        return inner
    inner = place.removeprefix("kwargs['").removesuffix("']")
    return inner if place == f"kwargs['{inner}']" else place


def _tensor(file: Path, wanted: InputType) -> torch.Tensor:
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="--input") from None
    tensor = torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)
    # NumPy has no bfloat16: such inputs are given as f32.
    return tensor.to(wanted.dtype) if wanted.dtype == torch.bfloat16 else tensor


def _array(tensor: torch.Tensor) -> Any:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().resolve_conj().numpy()


def _filled(structure: Structure, tensors: Sequence[torch.Tensor]) -> Any:
    match structure:
        case Leaf(index=index):
            return tensors[index]
        case Const(value=value):
            return value
        case Sequence_(items=items):
            return structure.cls(_filled(item, tensors) for item in items)
        case Mapping_(keys=keys, items=items):
            return {key: _filled(item, tensors) for key, item in zip(keys, items, strict=True)}
    raise typer.BadParameter("its arguments have no form in files")


def _named(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a result, each with the access path to it."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", range(len(value)))
        for name, item in zip(fields, value, strict=True):
            yield from _named(item, f"{path}.{name}")


# --- show -------------------------------------------------------------------------------------------------------------


def show_ingot(path: str, full: bool) -> None:
    """Print what a saved program holds; everything in it is checked."""
    check_is_file(path)
    program = load(path, verify=True)
    manifest, contents = program.manifest, open_file(path)
    nbytes = Path(path).stat().st_size
    typer.echo(f"{path}: {_size(nbytes)}, saved by Smelt {manifest.smelt} with torch {manifest.torch}")
    for name, method in manifest.methods.items():
        typer.echo(f"\n{name}({', '.join(_argument(method, i) for i in range(len(method.places)))})")
        for line in (*_about(method), *_links(links_of(contents, method))):
            typer.echo(f"  {line}")
    out = console()
    out.print()
    out.print(_state(manifest))
    out.print(_entries(manifest))
    if full:
        for name in manifest.methods:
            typer.echo(f"\n{program.text(name)}")


def _argument(method: Method, number: int) -> str:
    wanted = method.inputs[number]
    return f"{_short(method.places[number])}: {dtype_name(wanted.dtype)}[{', '.join(map(shown, wanted.sizes))}]"


def _about(method: Method) -> Iterator[str]:
    if method.free is None:
        yield f"native code: {', '.join(method.native) or 'none'}"
    else:
        yield from _about_sizes(method.free)
    for target, why in method.why_not_native.items():
        yield f"no native code for {target}: {why}"
    if method.written:
        yield f"writes to {len(method.written)} of its own tensors"
    if method.trains:
        yield "is a training step"
    if method.draws:
        yield "draws random numbers"
    if method.has_no_gradient:
        yield f"has no gradient: {method.has_no_gradient}"


def _links(found: Mapping[str, Links]) -> Iterator[str]:
    """What a C library of it links to, targets of one answer together."""
    targets: dict[Links, list[str]] = {}
    for target, links in found.items():
        targets.setdefault(links, []).append(target)
    for links, names in targets.items():
        where = f" ({', '.join(names)})" if len(targets) > 1 else ""
        if links.python:
            yield f"makes no C library{where}: only Python runs {', '.join(links.python)}"
        elif links.libtorch:
            yield f"links to libtorch{where}, for {', '.join(links.libtorch)}"
        else:
            yield f"links to libc, libm and pthreads only{where}"


def _about_sizes(free: FreeSizes) -> Iterator[str]:
    for symbol in free.symbols:
        yield f"{symbol.name} is free, from {symbol.low}" + (f" to {symbol.high}" if symbol.high is not None else " on")
    yield from (f"where {'' if outcome else 'not '}{shown(expr)}" for expr, outcome in free.checks)
    for profile in free.profiles:
        spans = (f"{n[0]}..{n[1]}" if isinstance(n, tuple) else str(n) for n in profile.sizes)
        sizes = ", ".join(f"{s.name} = {span}" for s, span in zip(free.symbols, spans, strict=True))
        yield f"native code at {sizes}: {', '.join(profile.native) or 'none'}"


def _state(manifest: Manifest) -> Table:
    out = Table("state", "type", "size", title=f"{len(manifest.state)} tensors")
    for each in manifest.state:
        placed = each.placed
        kind = f"{dtype_name(placed.dtype)}{list(placed.sizes)}"
        name = each.path if each.kind != "const" else "a constant"
        out.add_row(name, kind, _size(placed.span * placed.dtype.itemsize))
    return out


def _entries(manifest: Manifest) -> Table:
    out = Table("entry", "in the file", "unpacked", title="the file")
    for name, digest in manifest.entries.items():
        out.add_row(name, _size(digest.nbytes), "" if digest.unpacked is None else _size(digest.unpacked))
    return out


def _size(nbytes: int) -> str:
    if nbytes < 10_000:
        return f"{nbytes:,} bytes"
    return f"{nbytes / 1000:,.0f} kB" if nbytes < 10_000_000 else f"{nbytes / 1_000_000:,.0f} MB"


# --- bench ------------------------------------------------------------------------------------------------------------


def bench_ingot(path: str, threads: int, entry: str = "forward") -> None:
    """Time loading, the first call and further ones, on random inputs of the saved types."""
    check_is_file(path)
    torch.set_num_threads(threads)
    start, cpu = time.perf_counter(), time.process_time()
    program = load(path)
    loaded, loaded_cpu = time.perf_counter() - start, time.process_time() - cpu
    point = _entry(program, entry if entry in program.methods else program.methods[0])
    sizes = _sizes(point.method)
    tensors = [_random(wanted, sizes) for wanted in point.method.inputs]
    args, kwargs = _filled(point.method.args, tensors), _filled(point.method.kwargs, tensors)
    with torch.no_grad():
        times: list[tuple[float, float]] = []
        begin = time.perf_counter()
        while len(times) <= _ROUNDS and (len(times) < 2 or time.perf_counter() - begin < _BUDGET_S):
            start, cpu = time.perf_counter(), time.process_time()
            point(*args, **kwargs)
            times.append((time.perf_counter() - start, time.process_time() - cpu))
    out = Table("", "time", "CPU time")
    seconds, busy = (median(each) for each in zip(*times[1:], strict=True))
    for name, (took, used) in (
        ("load", (loaded, loaded_cpu)), ("first call", times[0]), (f"median of {len(times) - 1}", (seconds, busy)),
    ):  # fmt: skip
        out.add_row(name, duration(took), duration(used))
    console().print(out)
    if not program.is_native:
        typer.echo(f"operator by operator: {program.why_not_native()}")


def _sizes(method: Method) -> dict[str, int]:
    """Values of free sizes: those of the first native code, or else small ones that the program takes.

    Raises: typer.BadParameter where none are found.
    """
    free = method.free
    if free is None:
        return {}
    count = max(2, int(_TRIED ** (1 / len(free.symbols))))
    near = sorted(product(*(range(symbol.low, symbol.low + count) for symbol in free.symbols)), key=sum)
    for sizes in (*(tuple(map(least_of, profile.sizes)) for profile in free.profiles), *near):
        values = {symbol.name: size for symbol, size in zip(free.symbols, sizes, strict=True)}
        if not free.refused(values):
            return values
    raise typer.BadParameter("no sizes that the program takes were found: save it with p.save(path, sizes=[...])")


def _random(wanted: InputType, values: Mapping[str, int]) -> torch.Tensor:
    sizes, _ = wanted.at(values)
    if wanted.dtype.is_floating_point or wanted.dtype.is_complex:
        return torch.randn(sizes).to(wanted.dtype)
    return torch.zeros(sizes, dtype=wanted.dtype)


# --- diff -------------------------------------------------------------------------------------------------------------


def diff(
    before: Annotated[str, typer.Argument(help="A saved program.", show_default=False)],
    after: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
) -> None:
    """Compare two saved programs: entry points, graphs, weights.

    Exit code 1 if they differ. Weights are compared by bits, and the
    largest difference is shown; native code is not compared, as it
    follows from the rest.

    \b
    Examples:
      smelt diff before.ingot after.ingot
    """
    for path in (before, after):
        check_is_file(path)
    lines = list(_differences(load(before, allow_native=False), load(after, allow_native=False), before, after))
    for line in lines:
        typer.echo(line)
    if lines:
        raise typer.Exit(1)
    typer.echo("the programs are equal")


def _differences(one: LoadedProgram, other: LoadedProgram, before: str, after: str) -> Iterator[str]:
    methods, others = one.manifest.methods, other.manifest.methods
    for name in sorted(methods.keys() ^ others.keys()):
        yield f"{'-' if name in methods else '+'} entry point {name}"
    for name in sorted(methods.keys() & others.keys()):
        texts = one.text(name).splitlines(), other.text(name).splitlines()
        yield from difflib.unified_diff(*texts, f"{before} {name}", f"{after} {name}", lineterm="", n=1)
        if texts[0] == texts[1] and _called(methods[name]) != _called(others[name]):
            yield f"! {name} takes or gives other structures"
    state, others_state = (_by_path(program) for program in (one, other))
    for path in sorted(state.keys() ^ others_state.keys()):
        yield f"{'-' if path in state else '+'} {path}"
    for path in sorted(state.keys() & others_state.keys()):
        a, b = state[path], others_state[path]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            kinds = [f"{dtype_name(t.dtype)}{list(t.shape)}" for t in (a, b)]
            yield f"! {path}: {kinds[0]} and {kinds[1]}"
        elif raw(a.contiguous()) != raw(b.contiguous()):
            wide = torch.complex128 if a.is_complex() else torch.float64
            yield f"! {path}: differs by up to {float((a.to(wide) - b.to(wide)).abs().max()):.3e}"
    for name in sorted(set(one.extra_files) | set(other.extra_files)):
        if one.extra_files.get(name) != other.extra_files.get(name):
            yield f"! {EXTRA}{name}"


def _called(method: Method) -> Any:
    return method.args, method.kwargs, method.result, method.inputs


def _by_path(program: LoadedProgram) -> dict[str, torch.Tensor]:
    state = program.manifest.state
    return {f"{each.kind} {each.path}": program.tensor(i).detach() for i, each in enumerate(state)}


def check_is_file(path: str) -> None:
    """Raises: SmeltError (S0501) where there is no such file."""
    if not Path(path).is_file():
        raise SmeltError(
            f"there is no file {path}", why=f"a name that ends with {SUFFIX} is that of a saved program",
            fix="write it with p.save(path)", code="S0501",
        )  # fmt: skip
