"""`smelt export`: a saved program as a C library, or as an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smelt.cli.ingot import check_is_file
from smelt.package.c.export import export as export_ingot
from smelt.package.onnx.export import export_onnx


def export(
    ingot: Annotated[str, typer.Argument(help="A saved program, a file that ends with .ingot.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.")] = Path("build"),
    target: Annotated[str, typer.Option(help="avx512, avx2 or neon; by default this machine's.")] = "",
    name: Annotated[str, typer.Option(help="What names in C begin with; by default the file's name.")] = "",
    compiler: Annotated[str, typer.Option(help="A C compiler's command, or zig (the package ziglang).")] = "",
    libtorch: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="The folder of libtorch to link to if an operator needs it; torch: that of the installed package.",
        ),
    ] = "",
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size", show_default=False, help="An entry point for these of the free sizes alone: batch=1,tokens=128."
        ),
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", help="Write an ONNX model to this file instead.", show_default=False)
    ] = None,
    entry: Annotated[str, typer.Option(help="With --onnx, the entry point; by default forward.")] = "",
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--no-external-data", show_default=False,
            help="With --onnx, weights in a file beside it; by default from 1.9 GB on.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Make a C library of a saved program, or an ONNX model (--onnx).

    The folder gets lib<name>.so and lib<name>.a, <name>.safetensors (the
    weights), <name>.h (the program's own signature), smelt.h, smelt.hpp,
    and a file for CMake's find_package. Neither needs Python or torch.
    What torch alone can compute is named, and nothing is written, unless
    the library may be linked to libtorch (--libtorch).

    An ONNX model needs the package onnx to be written. Branches become
    If, loops Loop. What ONNX cannot say is named with its line, and
    nothing is written.

    \b
    Examples:
      smelt export m.ingot --out build
      smelt export m.ingot --target neon --compiler zig
      smelt export m.ingot --libtorch torch
      smelt export m.ingot --size tokens=128 --size tokens=512
      smelt export m.ingot --onnx model.onnx
    """
    check_is_file(ingot)
    if onnx is not None:
        if target or name or compiler or libtorch or size:
            what = "--target, --name, --compiler, --libtorch and --size"
            raise typer.BadParameter(f"{what} are for C libraries", param_hint="--onnx")
        _export_onnx(ingot, onnx, entry, external_data)
        return
    if entry or external_data is not None:
        raise typer.BadParameter("it is for ONNX models: name one with --onnx", param_hint="--entry, --external-data")
    made = export_ingot(
        Path(ingot), out, target=target, name=name, compiler=compiler, libtorch=libtorch,
        sizes=[_sizes(each) for each in size or ()],
    )  # fmt: skip
    typer.echo(f"{made.library}: {made.library.stat().st_size:,} bytes, for {made.target}")
    if made.weights.exists():
        typer.echo(f"{made.weights}: {made.weights.stat().st_size:,} bytes")
    for signature in made.signatures:
        typer.echo(f"  {signature}")
    for entry_point, operators in made.needs.items():
        typer.echo(f"  {entry_point} is linked to libtorch for {', '.join(operators)}")


def _sizes(text: str) -> dict[str, int]:
    """batch=1,tokens=128  ==>  {"batch": 1, "tokens": 128}        Raises: typer.BadParameter"""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip().isidentifier() and number.strip().isdecimal() for name, _, number in pairs):
        raise typer.BadParameter(f"{text!r} is no list of sizes: write batch=1,tokens=128", param_hint="--size")
    return {name.strip(): int(number) for name, _, number in pairs}


def _export_onnx(ingot: str, path: Path, entry: str, external_data: bool | None) -> None:
    made = export_onnx(Path(ingot), path, entry=entry, external_data=external_data)
    for file in (made.path, made.data):
        if file is not None:
            typer.echo(f"{file}: {file.stat().st_size:,} bytes")
    typer.echo(f"  opset {made.opset}: ({', '.join(made.inputs)}) -> ({', '.join(made.outputs)})")
    for before, after in made.state:
        typer.echo(f"  state: {after} is {before} after the call")
