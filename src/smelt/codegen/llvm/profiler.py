"""The native profile hook of recordings: its LLVM text and its object code.

Invariant: it asks the Python hook of each code object and each builtin until that answers True, and never again of that
one in the same recording; it changes nothing but the table of those, and leaves an exception only where the Python hook
raised one: what was to be called is not called then, and later calls are looked at as before.

    call, c_call:  find the code object, or the builtin's method definition, in the table
                   there: done; not there: ask Python, and enter it if the answer is True
    all else:      done

Source: CPython's C API, "Profiling and Tracing" (Py_tracefunc, the PyTrace_ constants).
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.llvm.cached import cached_object, object_at_hand
from smelt.codegen.llvm.walkers.entry_text import declaration
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.machine.profiler import (
    BLOCK_SYMBOL,
    CAPACITY,
    DEFINITION_AT,
    EXTERNALS,
    HOOK_SYMBOL,
    RESUME_SYMBOL,
    TYPE_AT,
    Word,
)

_CALL, _C_CALL = 0, 4  # PyTrace_CALL, PyTrace_C_CALL
_MIX = -7046029254386353131  # 2^64 over the golden ratio: the upper bits of a product with it are a pointer's hash


def profiler_at_hand(cache: CodeCache) -> bytes | None:
    """Object code of the hook where the cache has it, or LLVM is loaded to make it; None elsewhere."""
    return object_at_hand("profiler", profiler_text(), cache)


def profiler_object(cache: CodeCache) -> bytes:
    """Object code of the hook. Raises: InternalError, and what LLVM or its absence raises."""
    return cached_object("profiler", profiler_text(), cache)


def _word(name: str, word: Word, kind: str = "i64") -> str:
    return (
        f"  %{name}.at = getelementptr i64, ptr @{BLOCK_SYMBOL}, i64 {int(word)}\n"
        f"  %{name} = load {kind}, ptr %{name}.at, align 8"
    )


@lru_cache(maxsize=1)
def profiler_text() -> str:
    """LLVM IR of `smelt_profile`, a Py_tracefunc, and `smelt_resume`, a builtin without arguments that installs it."""
    declarations = "\n".join(declaration(name, kind) for name, kind in EXTERNALS.items())
    shift = 64 - (CAPACITY.bit_length() - 1)
    return f"""
@{BLOCK_SYMBOL} = external global [{int(Word.TABLE) + CAPACITY} x i64]
{declarations}

define dso_local i32 @{HOOK_SYMBOL}(ptr %hook, ptr %frame, i32 %event, ptr %arg) {{
entry:
  %given = alloca [3 x ptr], align 8
  switch i32 %event, label %done [ i32 {_CALL}, label %call i32 {_C_CALL}, label %builtin ]
call:
  %code = call ptr @PyFrame_GetCode(ptr %frame)
  call void @Py_DecRef(ptr %code)
  br label %find
builtin:
  %type.at = getelementptr i8, ptr %arg, i64 {TYPE_AT}
  %type = load i64, ptr %type.at, align 8
{_word("function", Word.FUNCTION_TYPE)}
  %is.function = icmp eq i64 %type, %function
  %definition.at = getelementptr i8, ptr %arg, i64 {DEFINITION_AT}
  br i1 %is.function, label %method, label %ask
method:
  %definition = load ptr, ptr %definition.at, align 8
  br label %find
find:
  %key.at = phi ptr [%code, %call], [%definition, %method]
  %key = ptrtoint ptr %key.at to i64
  %mixed = mul i64 %key, {_MIX}
  %first = lshr i64 %mixed, {shift}
  br label %probe
probe:
  %slot = phi i64 [%first, %find], [%next, %other]
  %index = add i64 %slot, {int(Word.TABLE)}
  %held.at = getelementptr i64, ptr @{BLOCK_SYMBOL}, i64 %index
  %held = load i64, ptr %held.at, align 8
  %is.there = icmp eq i64 %held, %key
  br i1 %is.there, label %done, label %empty
empty:
  %is.empty = icmp eq i64 %held, 0
  br i1 %is.empty, label %ask, label %other
other:
  %more = add i64 %slot, 1
  %next = and i64 %more, {CAPACITY - 1}
  br label %probe
ask:
  %entry.at = phi ptr [%held.at, %empty], [null, %builtin]
  %entered = phi i64 [%key, %empty], [0, %builtin]
  %is.call = icmp eq i32 %event, {_CALL}
{_word("call.name", Word.CALL_NAME, "ptr")}
{_word("builtin.name", Word.BUILTIN_NAME, "ptr")}
{_word("none", Word.NONE, "ptr")}
  %name = select i1 %is.call, ptr %call.name, ptr %builtin.name
  %no.argument = icmp eq ptr %arg, null
  %what = select i1 %no.argument, ptr %none, ptr %arg
  %given.1 = getelementptr ptr, ptr %given, i64 1
  %given.2 = getelementptr ptr, ptr %given, i64 2
  store ptr %frame, ptr %given
  store ptr %name, ptr %given.1
  store ptr %what, ptr %given.2
  %answer = call ptr @PyObject_Vectorcall(ptr %hook, ptr %given, i64 3, ptr null)
  %is.raised = icmp eq ptr %answer, null
  br i1 %is.raised, label %raised, label %answered
answered:
  call void @Py_DecRef(ptr %answer)
  %bits = ptrtoint ptr %answer to i64
{_word("true", Word.TRUE)}
  %is.known = icmp eq i64 %bits, %true
  %has.entry = icmp ne ptr %entry.at, null
  %is.new = and i1 %is.known, %has.entry
  br i1 %is.new, label %room, label %done
room:
{_word("count", Word.COUNT)}
  %has.room = icmp slt i64 %count, {CAPACITY // 2}
  br i1 %has.room, label %enter, label %done
enter:
  store i64 %entered, ptr %entry.at
  %counted = add i64 %count, 1
  store i64 %counted, ptr %count.at
  br label %done
done:
  ret i32 0
raised:
  ret i32 -1
}}

define dso_local ptr @{RESUME_SYMBOL}(ptr %self, ptr %unused) {{
  call void @PyEval_SetProfile(ptr @{HOOK_SYMBOL}, ptr %self)
{_word("none", Word.NONE, "ptr")}
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}}
"""
