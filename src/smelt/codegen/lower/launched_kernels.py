"""Own kernels in a plan: launches are placed while the graph is lowered, all their kernels are built at its end.

Invariant: after `with_code` every launch has object code, or none and then runs its `eager` in Python.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.report import KernelReport
from smelt.diag import InternalError, SmeltWarning, user_level
from smelt.diag.records import record
from smelt.ir import Node
from smelt.ir.sizes import MARK, SizeLeak
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.plan import KernelCode, Launch, Plan


@record
class About:
    """What a person sees of a launch.

    listing: its loops as readable text. nodes: the operators it computes. nbytes: bytes that must be read and written
    at least once. flops: floating-point operations (a multiply-add counts two).
    """

    listing: str = ""
    nodes: Sequence[Node] = ()
    nbytes: int = 0
    flops: int = 0


def launch(
    ctx: Context,
    source: KernelSource,
    buffers: Sequence[int],
    words: Sequence[int] = (),
    *,
    items: int,
    eager: Callable[..., Any],
    writes: Sequence[int],
    item_ns: float = 0.0,
    scratch_nbytes: int = 0,
    label: str = "",
    piece_of: int = 0,
    may_refuse: bool = True,
    about: About | None = None,
) -> None:
    """Append a launch of a kernel whose code is made when the lowering ends; see `plan.Launch` for the arguments.

    What a library made is checked first: a kernel believes the sizes and strides that it was told.
    Raises: SizeLeak for a text with a size in it that is known at run time only.
    """
    if MARK in source.text:
        raise SizeLeak(f"the kernel of {label or source.symbol} holds a size as text: {_around_mark(source.text)}")
    ctx.sources[source.symbol] = source
    ctx.kernels.append(_report(source.symbol, label, items, about or About()))
    for slot in buffers:
        ctx.builder.check(ctx.builder.storage_of(slot))
    ctx.builder.emit(
        Launch(
            KernelCode(source.symbol, b""),
            tuple(buffers),
            tuple(words),
            items,
            eager,
            tuple(writes),
            item_ns,
            scratch_nbytes,
            label,
            piece_of,
            may_refuse,
        )
    )


def _around_mark(text: str) -> str:
    at = text.index(MARK)
    return " ".join(text[max(at - 60, 0) : at + 60].split())


def _report(symbol: str, label: str, items: int, about: About) -> KernelReport:
    lines = tuple(dict.fromkeys(str(node.span) for node in about.nodes if node.span is not None))
    values = tuple(f"%{result.name} = {node.op}" for node in about.nodes for result in node.results[:1])
    scopes = tuple(dict.fromkeys(node.scope for node in about.nodes if node.scope))
    return KernelReport(symbol, label, about.listing, values, lines, scopes, items, about.nbytes, about.flops)


def with_code(ctx: Context, plan: Plan) -> Plan:
    """The plan with object code in its launches; what cannot be built runs in Python, with one warning for all.

    Raises: InternalError in strict mode if a kernel cannot be built.
    """
    used = {i.kernel.symbol for i in plan.instructions if isinstance(i, Launch)}
    isa = host_isa()
    if not used or isa is None:
        return plan
    options = ctx.options
    failures: list[InternalError] = []
    codes: dict[str, KernelCode] = {}
    try:
        codes = compile_kernels(
            [ctx.sources[symbol] for symbol in sorted(used)],
            isa,
            code_cache(options.cache_dir, options.cache_limit_mb),
            None if options.strict else lambda source, error: failures.append(error),
        )
    except ImportError as error:
        if options.strict:
            raise
        failures.append(InternalError("kernels cannot be built", why=str(error)))
    if failures:
        text = f"{len(used) - len(codes)} of {len(used)} kernels cannot be built, eager computes instead: {failures[0]}"
        warnings.warn(text, SmeltWarning, stacklevel=user_level())
    instructions = tuple(
        replace(i, kernel=codes.get(i.kernel.symbol, i.kernel)) if isinstance(i, Launch) else i
        for i in plan.instructions
    )
    return replace(plan, instructions=instructions)
