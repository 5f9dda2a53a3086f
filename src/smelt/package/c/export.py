"""`smelt export`: an ingot as a C library.

ingot -- plans of one target --> tables, kernels, weights -- compiled and linked --> lib<name>.so, lib<name>.a
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import torch

from smelt.codegen.lower.symbolic import specialize
from smelt.diag import PackageError, limits
from smelt.diag.records import record
from smelt.ops.upgrades import read_graph
from smelt.package.c.addresses import Elsewhere
from smelt.package.c.header import cmake_text, header_text
from smelt.package.c.link import PUBLIC, RUNTIME, build, libtorch_folder, toolchain
from smelt.package.c.signature import Signature, check_numbers, signature_of
from smelt.package.c.sized import Sized, bounds_of
from smelt.package.c.tables import TableWriter, Tensor, needs_library, needs_python
from smelt.package.c.text import Entry, ProgramText
from smelt.package.c.weights import Weights
from smelt.package.names import identifier
from smelt.package.natives import TARGETS
from smelt.runtime.ingot.abi import abi
from smelt.runtime.ingot.contents import Contents, open_file
from smelt.runtime.ingot.errors import broken
from smelt.runtime.ingot.free_sizes import Profile, Symbol
from smelt.runtime.ingot.manifest import WEIGHTS, Manifest, Method, Placed
from smelt.runtime.ingot.natives import NativeText, targets
from smelt.runtime.plan import KernelCode, Plan

ALONE_LIMIT = limits.SAVED_SIZES
"""Sizes of one range that have plans of their own, because records of the others do not serve them."""
# Libraries of the system: a lib<name> beside the program would be linked instead of these.
_TAKEN = frozenset(("c", "m", "dl", "rt", "gcc", "util", "pthread", "stdc", "resolv", "smelt"))


@record
class Exported:
    """What was written. needs: by entry point, the operators that libtorch computes, where it is linked."""

    name: str
    target: str
    signatures: tuple[Signature, ...]
    library: Path
    weights: Path
    needs: Mapping[str, tuple[str, ...]]


def export(
    ingot: Path, out: Path, *, target: str = "", name: str = "", compiler: str = "", flags: Sequence[str] = (),
    libtorch: str = "", sizes: Sequence[Mapping[str, int]] = (),
) -> Exported:  # fmt: skip
    """Write an ingot as a C library into a folder.

    target: "avx512", "avx2" or "neon"; "": the best that runs here. name: what C names begin with; "": that of the
    file. compiler: a command, or "zig". flags: more for compiling and linking. libtorch: the folder of libtorch, or
    "torch" for that of the installed package: it is linked if an operator needs it. sizes: of a program with free ones,
    those to make entry points for, within the ranges that it has native code for; by default one takes all of these.
    Raises: PackageError (S0701) for a broken file; (S0704) where it cannot be exported, naming the operators that
    need torch.
    """
    contents = open_file(ingot, verify=True)
    target = target or _target_here(contents.manifest)
    name = identifier(name or ingot.stem).lower()
    if name in _TAKEN or not re.fullmatch("[a-z][a-z0-9_]*", name):
        name = f"program_{name.strip('_')}"
    folder_of_torch = libtorch_folder(libtorch) if libtorch else None
    program = _Program(contents, target, name, links_torch=folder_of_torch is not None, sizes=sizes)
    program.read()
    linked = folder_of_torch if program.needs else None
    tools = toolchain(TARGETS[target].triple.partition("-")[0], compiler)
    out.mkdir(parents=True, exist_ok=True)
    weights = out / f"{name}.safetensors"
    with tempfile.TemporaryDirectory(prefix="smelt-export-") as scratch:
        folder = Path(scratch)
        (folder / "program.c").write_text(program.source())
        build(tools, folder, out, name, program.objects(folder), flags, linked)
    if program.file.content:
        weights.write_bytes(program.file.content)
    signatures = tuple(entry.signature for entry in program.entries)
    (out / f"{name}.h").write_text(header_text(name, weights.name, signatures, program.needs))
    (out / f"{name}-config.cmake").write_text(cmake_text(name, weights.name, linked))
    for header in PUBLIC:
        shutil.copyfile(RUNTIME / header, out / header)
    return Exported(name, target, signatures, out / f"lib{name}.so", weights, program.needs)


def _target_here(manifest: Manifest) -> str:
    found = [each for each in targets() if each in manifest.kernels]
    if found:
        return found[0]
    raise _cannot(
        f"the file has native code for {', '.join(manifest.kernels) or 'no machine'}, and this machine runs "
        f"{', '.join(targets()) or 'none of its targets'}",
        "name a target of the file by --target, or save the program for more of them",
    )


def _cannot(why: str, fix: str) -> PackageError:
    return PackageError("the ingot cannot be exported to C", why=why, fix=fix, code="S0704")


@record
class _Variant:
    """A plan of an entry point; sizes: those that it is for alone."""

    text: NativeText
    sizes: tuple[int, ...] = ()


@record
class _Point:
    """An entry point of C: of a method, with its sizes free or for some values of these.

    profiles: by target, the entry that holds a plan, and the sizes that it may be for; the first plan that is for the
    sizes of a call is theirs. is_free: callers choose sizes.
    """

    name: str
    method: Method
    profiles: Sequence[Profile]
    sizes: Mapping[str, int] = field(default_factory=dict)
    is_free: bool = False


def _points(name: str, method: Method, wanted: Sequence[Mapping[str, int]]) -> Iterator[_Point]:
    """forward  ==>  forward, for all sizes that it has plans for, or forward_1_128, forward_8_128 for those wanted

    Raises: PackageError (S0704) where there is code for none, or the program is not for sizes that are wanted.
    """
    free = method.free
    if free is None:
        yield _Point(name, method, (Profile((), method.native),))
        return
    names = [symbol.name for symbol in free.symbols]
    chosen = [sizes for sizes in wanted if sizes.keys() == set(names)]
    if not free.profiles:
        raise _cannot(f"the sizes of {name} are free, and it has native code for none", "name some: p.save(sizes=...)")
    if not chosen:
        singles = {each.exact: each for each in free.profiles if each.exact is not None}
        ranges = [each for each in free.profiles if each.exact is None]
        yield _Point(name, method, [*singles.values(), *ranges], is_free=True)
        return
    for sizes in chosen:
        values = tuple(sizes[each] for each in names)
        label = "_".join(map(str, (name, *values)))
        broken_rule = free.refused(sizes)
        plans = [each for each in free.profiles if each.takes(values)]
        if broken_rule or not plans:
            raise _cannot(
                f"{label} would be for sizes that the program is not for: {broken_rule}"
                if broken_rule
                else f"the file has no native code for the sizes of {label}",
                "name other sizes, or save the program for these",
            )
        yield _Point(label, method, plans, dict(zip(names, values, strict=True)))


@dataclass
class _Program:
    """What is exported, as it is read out of the ingot."""

    contents: Contents
    target: str
    name: str
    links_torch: bool = False
    sizes: Sequence[Mapping[str, int]] = ()
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def read(self) -> None:
        """Raises: PackageError (S0701, S0704)."""
        manifest, target = self.contents.manifest, self.target
        if target not in TARGETS:
            raise _cannot(f"there is no target {target!r}", f"name one of {', '.join(TARGETS)}")
        if manifest.abi != abi():
            raise _cannot(
                f"its native code is of another version of Smelt, {manifest.smelt}", "save the program again with this"
            )
        points = [point for name, method in manifest.methods.items() for point in _points(name, method, self.sizes)]
        variants = {point.name: self._variants(point) for point in points}
        self._check_operators({name: [each.text.plan for each in found] for name, found in variants.items()})
        written = {number for method in manifest.methods.values() for number in method.written}
        self._stored = frozenset(manifest.state[number].placed.stored for number in written)
        for point in points:
            for variant in variants[point.name]:
                self._check_written(point.name, point.method, variant.text)
        self.weights = Weights(self.contents, target in targets(), self._stored)
        for point in points:
            self._add(point, variants[point.name])
        self.state = [self._named(number) for number in sorted(written)]
        self.file = self.weights.written_file()

    def _variants(self, point: _Point) -> list[_Variant]:
        """The plans of an entry point. Raises: PackageError (S0701); (S0704) where there is none."""
        method, manifest = point.method, self.contents.manifest
        found: list[_Variant] = []
        for profile in point.profiles:
            entry = profile.native.get(self.target)
            if entry is None:
                continue
            kernels = self.contents.entry(manifest.kernels[self.target])
            text = NativeText.read(self.contents.json(entry), kernels, method, len(manifest.state))
            if changed := text.changed_operator(manifest):
                raise _cannot(
                    f"weights follow from others by {changed}, which this torch has otherwise", "save it again"
                )
            if point.is_free:
                found += _free_variants(text, profile, method)
            elif (one := text.at(point.sizes)) is not None:
                return [_Variant(one)]
        if found:
            return found
        why = method.why_not_native.get(self.target, f"the file was saved without {self.target}, or for other sizes")
        raise _cannot(f"{point.name} has no native code for {self.target}: {why}", "save the program for this target")

    def _check_operators(self, plans: Mapping[str, Sequence[Plan]]) -> None:
        needed = _each(needs_library, plans)
        if self.links_torch:
            self.needs = {name: tuple(ops) for name, ops in needed.items() if ops}
            needed = _each(needs_python, plans)
            if any(needed.values()):
                listed = "; ".join(f"{name}: {', '.join(ops)}" for name, ops in needed.items() if ops)
                raise _cannot(f"only Python runs {listed}", "run the ingot by smelt.load")
        if any(needed.values()):
            listed = "; ".join(f"{name}: {', '.join(ops)}" for name, ops in needed.items() if ops)
            raise _cannot(
                f"these operators have no kernel of Smelt's own, and need torch: {listed}",
                "link it (--libtorch torch), run the ingot by smelt.load, or write the program without them",
            )

    def _check_written(self, name: str, method: Method, text: NativeText) -> None:
        """Contents that native code holds in another form must not change."""
        state = self.contents.manifest.state
        for number in {*method.folded, *text.baked}:
            if state[number].placed.stored in self._stored:
                raise _cannot(
                    f"calls write to {state[number].path}, which {name} holds packed or folded",
                    "run the ingot by smelt.load, which packs it again",
                )

    def _add(self, point: _Point, variants: Sequence[_Variant]) -> None:
        method = point.method
        tables = []
        for variant in variants:
            writer = TableWriter(
                point.name, [each.dtype for each in method.inputs], variant.text, self.weights,
                lambda kind, path: method.state[kind, path], self._tensor, self._placed,
                where=Elsewhere(links_torch=self.links_torch), sizes=[s.name for s in _symbols(method)],
            )  # fmt: skip
            table = writer.table()
            is_exact = point.is_free and table.sized is None
            tables.append(replace(table, sized=Sized.single(variant.sizes)) if is_exact else table)
        constants = {path: self._tensor(number) for (kind, path), number in method.state.items() if kind == "const"}
        manifest = self.contents.manifest
        graph = read_graph(self.contents.text(method.graph), constants, manifest.operators, manifest.torch)
        if point.sizes:
            graph = specialize(graph, point.sizes)
        given = [i for i, sources in enumerate(zip(*(t.outputs for t in tables), strict=True)) if None not in sources]
        tables = [replace(table, outputs=[table.outputs[i] for i in given]) for table in tables]
        bounds = bounds_of([table.sized for table in tables if table.sized is not None])
        signature = signature_of(point.name, method, graph, given, point.sizes, bounds)
        checks = method.free.checks if point.is_free and method.free is not None else ()
        check_numbers(signature, [expr for expr, _ in checks])
        self.entries.append(Entry(signature, tuple(tables), tuple(checks)))

    def _tensor(self, number: int) -> torch.Tensor:
        return self.contents.state(self.contents.manifest.state[number])

    def _placed(self, number: int) -> Placed:
        state = self.contents.manifest.state[number]
        if state.panels is not None:
            raise broken(WEIGHTS, f"{state.path} is there in panels, and a plan reads it in its eager layout")
        return state.placed

    def _named(self, number: int) -> tuple[str, Tensor]:
        state = self.contents.manifest.state[number]
        placed = state.placed
        block = self.weights.of_stored(placed)
        offset = placed.offset * placed.dtype.itemsize
        return state.path, Tensor(block, offset, placed.dtype, placed.sizes, placed.strides)

    def source(self) -> str:
        """The tables as C source."""
        needs = "; ".join(f"{name}: {', '.join(ops)}" for name, ops in self.needs.items())
        text = ProgramText(self.name, self.target, self.entries, self.file, self.weights.packings, self.state, needs)
        return text.source()

    def objects(self, folder: Path) -> list[Path]:
        """The files of the executor and of each kernel, once."""
        manifest = self.contents.manifest
        machine = TARGETS[self.target].triple.partition("-")[0]
        executor = folder / f"smelt_executor_{machine}.o"
        executor.write_bytes(bytes(self.contents.entry(manifest.executors[machine])))
        tables = [table for entry in self.entries for table in entry.tables]
        kernels: dict[str, KernelCode] = {k.symbol: k for table in tables for k in table.kernels}
        kernels |= {packing.kernel.symbol: packing.kernel for packing in self.weights.packings}
        paths = [executor]
        for symbol, kernel in kernels.items():
            paths.append(folder / f"{symbol}.o")
            paths[-1].write_bytes(kernel.object)
        return paths


def _symbols(method: Method) -> Sequence[Symbol]:
    return () if method.free is None else method.free.symbols


def _each(needs: Callable[[Plan], list[str]], plans: Mapping[str, Sequence[Plan]]) -> dict[str, list[str]]:
    """By entry point, what its plans need, each once."""
    return {name: list(dict.fromkeys(op for plan in some for op in needs(plan))) for name, some in plans.items()}


def _free_variants(text: NativeText, profile: Profile, method: Method) -> list[_Variant]:
    """The plan for many sizes, and plans for those of its sizes that need their own."""
    table = text.table
    if table is None:
        return [] if profile.exact is None else [_Variant(text, profile.exact)]
    numbers = [number for number in range(prod(table.count)) if table.taken.at(number)]
    alone = [table.sizes(number) for number in numbers if not table.shares.at(number)]
    found = [] if len(alone) == len(numbers) else [_Variant(text)]
    for sizes in alone[:ALONE_LIMIT]:
        one = text.at(dict(zip([symbol.name for symbol in _symbols(method)], sizes, strict=True)))
        assert one is not None, "the plan is for these"
        found.append(_Variant(one, sizes))
    return found
