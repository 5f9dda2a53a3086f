"""What is written for users beside the library: a header with the program's own signature, and a file for CMake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from smelt.package.c.addresses import DTYPES
from smelt.package.c.expressions import c_text
from smelt.package.c.link import TORCH_LIBRARIES
from smelt.package.c.signature import UNKNOWN, Kind, Signature, size_text
from smelt.package.names import identifier


def header_text(
    name: str, weights: str, signatures: Sequence[Signature], needs: Mapping[str, Sequence[str]] | None = None
) -> str:
    """The header: the program, and a typed function for each entry point. needs: what libtorch computes, by entry."""
    guard = f"{name.upper()}_H"
    entries = ", ".join(f"{name}_entry_{s.name} = {i}" for i, s in enumerate(signatures))
    lines = [
        f"/* {name}: made by `smelt export`. Weights: {weights}. smelt.h says what the functions do. */",
        *_needed(needs or {}),
        f"#ifndef {guard}", f"#define {guard}", "", '#include "smelt.h"', "", "#ifdef __cplusplus", 'extern "C" {',
        "#endif", "", f"extern const smelt_program {name}_program;", f"enum {{ {entries} }};", "",
    ]  # fmt: skip
    for signature in signatures:
        lines += _entry(name, signature)
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def _needed(needs: Mapping[str, Sequence[str]]) -> list[str]:
    if not needs:
        return ["/* It needs libc, libm and pthreads only. */"]
    return [
        "/* It needs libtorch (libtorch_cpu.so, libc10.so) for",
        *(f" *   {entry}: {', '.join(operators)}" for entry, operators in needs.items()),
        " */",
    ]


def _entry(name: str, signature: Signature) -> list[str]:
    function = f"{name}_{signature.name}"
    outputs = list(signature.outputs.values())
    names = _members(outputs)
    lines = [f"/* {signature}", " *", " * Results stay where they are until the context's next call. */"]
    members = [f"    {_member(kind, label)}" for kind, label in zip(outputs, names, strict=True)]
    lines += [f"typedef struct {function}_result {{", *(members or ["    char none;"]), f"}} {function}_result;", ""]
    arguments = [f"int64_t {each.label}" for each in signature.free]
    arguments += [_argument(kind) for kind in signature.inputs]
    pad = " " * len(f"static inline smelt_status {function}(")
    lines.append(f"static inline smelt_status {function}(smelt_context *context,")
    lines += [f"{pad}{argument}," for argument in arguments]
    lines += [f"{pad}{function}_result *result)", "{"]
    lines += _body(name, signature, names)
    return [*lines, "}", ""]


def _body(name: str, signature: Signature, names: Sequence[str]) -> list[str]:
    # Its own names end with a line, as no argument's does.
    inputs, outputs = signature.inputs, list(signature.outputs.values())
    free = {each.name: each.label for each in signature.free}
    lines = []
    for i, kind in enumerate(inputs):
        for what, values in (("sizes", kind.sizes), ("strides", kind.strides or ())):
            if values:
                storage = "static const" if all(isinstance(n, int) for n in values) else "const"
                numbers = ", ".join(c_text(n, free) for n in values)
                lines.append(f"    {storage} int64_t {what}{i}_[] = {{{numbers}}};")
    lines += [f"    smelt_tensor inputs_[{max(len(inputs), 1)}], outputs_[{max(len(outputs), 1)}];"]
    for i, kind in enumerate(inputs):
        lines += [
            f"    inputs_[{i}].data = (void *){kind.name};",
            f"    inputs_[{i}].dtype = SMELT_{DTYPES[kind.dtype][1]};",
            f"    inputs_[{i}].ndim = {len(kind.sizes)};",
            f"    inputs_[{i}].sizes = {f'sizes{i}_' if kind.sizes else 'NULL'};",
            f"    inputs_[{i}].strides = {f'strides{i}_' if kind.strides else 'NULL'};",
        ]
    entry = f"{name}_entry_{signature.name}"
    call = f"smelt_call(context, {entry}, inputs_, {len(inputs)}, outputs_, {len(outputs)})"
    lines += [f"    smelt_status status_ = {call};", "    if (status_ != SMELT_OK)", "        return status_;"]
    for i, (kind, label) in enumerate(zip(outputs, names, strict=True)):
        found = f"outputs_[{i}]" if _is_unknown(kind) else f"(const {DTYPES[kind.dtype][2]} *)outputs_[{i}].data"
        lines.append(f"    result->{label} = {found};")
    lines += ["    (void)result;"] if not outputs else []
    return [*lines, "    return SMELT_OK;"]


def _members(outputs: Sequence[Kind]) -> list[str]:
    return [identifier(kind.name) for kind in outputs]


def _is_unknown(kind: Kind) -> bool:
    return UNKNOWN in kind.sizes


def _member(kind: Kind, name: str) -> str:
    if _is_unknown(kind):
        return f"smelt_tensor {name}; /* {kind}: its sizes depend on the data */"
    return f"const {DTYPES[kind.dtype][2]} *{name}; /* {kind}{_strides(kind)} */"


def _argument(kind: Kind) -> str:
    const = "" if kind.is_written else "const "
    return f"{const}{DTYPES[kind.dtype][2]} *{kind.name}"


def _strides(kind: Kind) -> str:
    return "" if kind.strides is None else f", strides [{', '.join(map(size_text, kind.strides))}]"


def cmake_text(name: str, weights: str, libtorch: Path | None = None) -> str:
    """`find_package(<name> CONFIG)`: targets <name>::shared and <name>::static, and where the weights are.

    libtorch: its folder, which another value of <name>_LIBTORCH replaces for the static library.
    """
    variable, libraries = "", "Threads::Threads;m"
    if libtorch is not None:
        variable = f'set({name}_LIBTORCH "{libtorch}" CACHE PATH "the folder of libtorch_cpu.so")\n'
        libraries = ";".join((*(f"${{{name}_LIBTORCH}}/lib{one}.so" for one in TORCH_LIBRARIES), libraries))
    return f"""# Made by `smelt export`. find_package({name} CONFIG REQUIRED PATHS <this folder>), then link
# {name}::shared, or {name}::static. {name}_WEIGHTS is the file that {name}_program is opened with.
get_filename_component(_{name}_folder "${{CMAKE_CURRENT_LIST_FILE}}" DIRECTORY)
set({name}_WEIGHTS "${{_{name}_folder}}/{weights}")
{variable}find_package(Threads REQUIRED)
if(NOT TARGET {name}::shared)
  add_library({name}::shared SHARED IMPORTED)
  set_target_properties({name}::shared PROPERTIES
    IMPORTED_LOCATION "${{_{name}_folder}}/lib{name}.so"
    IMPORTED_NO_SONAME ON
    INTERFACE_INCLUDE_DIRECTORIES "${{_{name}_folder}}")
  add_library({name}::static STATIC IMPORTED)
  set_target_properties({name}::static PROPERTIES
    IMPORTED_LOCATION "${{_{name}_folder}}/lib{name}.a"
    INTERFACE_LINK_LIBRARIES "{libraries}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_{name}_folder}}")
endif()
"""
