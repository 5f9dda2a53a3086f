"""`smelt export`: a saved program as a C library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smelt.cli.ingot import check_is_file
from smelt.package.c.export import export as export_ingot


def export(
    ingot: Annotated[str, typer.Argument(help="A saved program, a file that ends with .ingot.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.")] = Path("build"),
    target: Annotated[str, typer.Option(help="avx512, avx2 or neon; by default this machine's.")] = "",
    name: Annotated[str, typer.Option(help="What names in C begin with; by default the file's name.")] = "",
    compiler: Annotated[str, typer.Option(help="A C compiler's command, or zig (the package ziglang).")] = "",
) -> None:
    """Make a C library of a saved program, which needs no Python and no torch.

    The folder gets lib<name>.so and lib<name>.a, <name>.safetensors (the
    weights), <name>.h (the program's own signature), smelt.h, smelt.hpp,
    and a file for CMake's find_package. What torch alone can compute is
    named, and nothing is written.

    \b
    Examples:
      smelt export m.ingot --out build
      smelt export m.ingot --target neon --compiler zig
    """
    check_is_file(ingot)
    made = export_ingot(Path(ingot), out, target=target, name=name, compiler=compiler)
    typer.echo(f"{made.library}: {made.library.stat().st_size:,} bytes, for {made.target}")
    if made.weights.exists():
        typer.echo(f"{made.weights}: {made.weights.stat().st_size:,} bytes")
    for signature in made.signatures:
        typer.echo(f"  {signature}")
