"""The LLVM text of launches and of the threads that share them.

Invariant: a word of the frame says which chunk is next and how many there are; whoever adds one to it by compare and
exchange owns that chunk. The first thread alone puts up a new launch, and only after every chunk of the last one is
done, so what a thread reads after its exchange belongs to the chunk that it owns. A thread that comes late, or never,
costs nothing but its help.

    thread 0:   put up the launch    help    wait for chunks of others    next record ...    word = STOP
    others:     until STOP:  help, or pause, and after a while yield

A region waits for whoever runs a chunk or looks for one. Where other processes have the cores, that can be many times
the work of a short region. So the time of regions is kept as work and stall, and where waiting costs more than the
others' help saves, one thread does all for twice as long as was waited, and for longer each time this comes again soon:
then it is a process that stays.
"""

from __future__ import annotations

from smelt.codegen.llvm.walkers.executor_body import Body
from smelt.codegen.llvm.walkers.executor_pool_ir import GATHER, TEAM, emit_pause, pool_text
from smelt.runtime.encoding.table import CLOCK_MONOTONIC, Cell, Launched, TeamWord

CLOCK = "smelt_clock"
STEP = "smelt_step"
_JUDGE = "smelt_judge"
_LINGER = "smelt_linger"
_HELP = "smelt_help"
_WAIT = "smelt_wait"
# Pauses before a waiting thread lets others run: tens of microseconds, less than most launches take.
_PATIENCE = 1000
# Nanoseconds: less stall than this says nothing; so much time of regions is remembered; the longest first rest.
_LEAST_STALL = 1_000_000
_MEMORY = 50_000_000
_LONGEST_REST = 20_000_000
_REST_A_STALL = 2
_MOST_RESTS = 3
_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "AMD64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def _descriptor(body: Body, number: str, field: Launched, kind: str = "i64") -> str:
    """A cell of descriptor `number` of the record at hand, whose descriptors begin at `%desc`."""
    return body.let(f"load {kind}, ptr {_descriptor_address(body, number, field)}")


def _descriptor_address(body: Body, number: str, field: Launched) -> str:
    row = body.let(f"getelementptr [{int(Launched.NCELLS)} x i64], ptr %desc, i64 {number}")
    return body.let(f"getelementptr i64, ptr {row}, i64 {int(field)}")


def _run_kernel(body: Body, number: str, begin: str, end: str, scratch: str, then: str) -> None:
    """Run descriptor `number` over [begin, end), note what it refuses, and go to `then`."""
    function = _descriptor(body, number, Launched.FUNCTION, "ptr")
    args = f"i64 {_descriptor(body, number, Launched.ARGS)}, i64 {begin}, i64 {end}, i64 {scratch}"
    fault = body.let(f"call i32 {function}({args})")
    fine = body.let(f"icmp eq i32 {fault}, 0")
    body.do(f"br i1 {fine}, label %{then}, label %fault")
    body.label("fault")
    # Several threads may say so at once; that all is done orders these before anyone looks.
    at = _descriptor_address(body, number, Launched.FAULT)
    body.do(f"store atomic i64 1, ptr {at} monotonic, align 8")
    body.do(f"store atomic i64 1, ptr {body.cell_address(Cell.REFUSED)} monotonic, align 8")
    body.do(f"br label %{then}")


def emit_launch(body: Body) -> None:
    """LAUNCH: shared with the team where there is one and more than one chunk, else kernel after kernel."""
    first, chunks = body.word(2), body.word(4)
    body.do(f"%desc = getelementptr i64, ptr %frame, i64 {first}")
    body.do(f"%launches = add i64 {body.word(3)}, 0")
    has_team = body.let(f"icmp ne i64 {body.cell(Cell.TEAM)}, 0")
    has_chunks = body.let(f"icmp sgt i64 {chunks}, 1")
    body.do(f"br i1 {body.let(f'and i1 {has_team}, {has_chunks}')}, label %launch_shared, label %launch_alone")
    body.label("launch_shared")
    body.store(first, Cell.SHARED_FIRST)
    body.store("%launches", Cell.SHARED_COUNT)
    body.store("0", Cell.DONE)
    claim = body.let(f"shl i64 {chunks}, 32")
    body.do(f"store atomic i64 {claim}, ptr {body.cell_address(Cell.CLAIM)} release, align 8")
    body.do(f"call void @{_HELP}(ptr %frame, i64 {body.cell(Cell.SCRATCH)})")
    body.do(f"call void @{_WAIT}(ptr %frame, i64 {chunks})")
    body.do("br label %launched")
    body.label("launch_alone")
    scratch = body.cell(Cell.SCRATCH)
    body.do("br label %launch_one")
    body.label("launch_one")
    body.do("%li = phi i64 [0, %launch_alone], [%ln, %launch_step]")
    # At some sizes there may be none; who shares chunks finds none of such a launch either.
    items = _descriptor(body, "%li", Launched.ITEMS)
    body.do(f"br i1 {body.let(f'icmp sgt i64 {items}, 0')}, label %launch_run, label %launch_step")
    body.label("launch_run")
    _run_kernel(body, "%li", "0", items, scratch, "launch_step")
    body.label("launch_step")
    body.do("%ln = add i64 %li, 1")
    more = body.let("icmp slt i64 %ln, %launches")
    body.do(f"br i1 {more}, label %launch_one, label %launched")
    body.label("launched")
    refused = body.let(f"icmp ne i64 {body.cell(Cell.REFUSED)}, 0")
    body.do(f"br i1 {refused}, label %refused, label %next")
    _refused(body)


def _refused(body: Body) -> None:
    """Call the Python step of each launch with a fault until one fails; all faults are cleared."""
    body.label("refused")
    body.store("0", Cell.REFUSED)
    body.do("br label %refused_one")
    body.label("refused_one")
    body.do("%fi = phi i64 [0, %refused], [%fn, %refused_step]")
    body.do("%failing = phi i32 [0, %refused], [%failed_now, %refused_step]")
    at = _descriptor_address(body, "%fi", Launched.FAULT)
    has_fault = body.let(f"icmp ne i64 {body.let(f'load i64, ptr {at}')}, 0")
    fine_yet = body.let("icmp eq i32 %failing, 0")
    body.do(f"store i64 0, ptr {at}")
    must = body.let(f"and i1 {has_fault}, {fine_yet}")
    body.do(f"br i1 {must}, label %refused_call, label %refused_step")
    body.label("refused_call")
    step = _descriptor(body, "%fi", Launched.STEP)
    rc = body.let(f"call i32 @{STEP}(ptr %frame, i64 {step})")
    body.do("br label %refused_step")
    body.label("refused_step")
    body.do(f"%failed_now = phi i32 [%failing, %refused_one], [{rc}, %refused_call]")
    body.do("%fn = add i64 %fi, 1")
    more = body.let("icmp slt i64 %fn, %launches")
    body.do(f"br i1 {more}, label %refused_one, label %refused_end")
    body.label("refused_end")
    body.do("%eager_did = icmp eq i32 %failed_now, 0")
    body.do("br i1 %eager_did, label %next, label %library")


def emit_region(body: Body) -> None:
    """REGION: the records up to LEAVE, with threads that help (`executor_pool_ir`) if the process may have them now."""
    body.store(body.let(f"add i64 %pc, {body.word(1)}"), Cell.AT)
    body.store(body.let("ptrtoint ptr %code to i64"), Cell.CODE)
    body.store("0", Cell.CLAIM)
    began = body.let(f"call i64 @{CLOCK}(ptr %frame)")
    allowed = body.let(f"icmp ne i64 {_load_word(body, TeamWord.ALLOWED)}, 0")
    rested = body.let(f"icmp sge i64 {began}, {_load_word(body, TeamWord.REST_UNTIL)}")
    may = body.let(f"and i1 {allowed}, {rested}")
    size = body.let(f"select i1 {may}, i64 {body.word(2)}, i64 1")
    body.store(size, Cell.TEAM_SIZE)
    body.store("0", Cell.STALL)
    library = body.cell(Cell.PARALLEL)
    body.do(f"br i1 {body.let(f'icmp eq i64 {library}, 0')}, label %region_own, label %region_library")
    body.label("region_own")
    body.do(f"call void @{GATHER}(ptr %frame)")
    body.do("br label %region_over")
    body.label("region_library")
    args = f"i64 0, i64 {size}, i64 1, ptr @{TEAM}, ptr %frame"
    called = body.let(f"call i32 {body.function(Cell.PARALLEL)}({args})")
    body.do("br label %region_over")
    body.label("region_over")
    rc = body.let(f"phi i32 [0, %region_own], [{called}, %region_library]")
    helpers = body.cell(Cell.TEAM)
    body.store("0", Cell.TEAM)
    body.do(f"call void @{_JUDGE}(ptr %frame, i64 {began}, i64 {helpers})")
    body.unless_zero(rc, "library", "region_ran")
    body.do(f"%region_status = load i32, ptr {body.cell_address(Cell.STATUS)}")
    fine = body.let("icmp eq i32 %region_status, 0")
    body.do(f"br i1 {fine}, label %region_done, label %region_failed")
    body.label("region_done")
    body.do(f"%region_after = load i64, ptr {body.cell_address(Cell.AT)}")
    body.do("br label %loop")


def _word_address(body: Body, word: TeamWord) -> str:
    return body.let(f"getelementptr i64, ptr {body.cell(Cell.TEAM_WORDS, 'ptr')}, i64 {int(word)}")


def _load_word(body: Body, word: TeamWord) -> str:
    return body.let(f"load atomic i64, ptr {_word_address(body, word)} monotonic, align 8")


def _store_word(body: Body, value: str, word: TeamWord) -> None:
    # Callers at once may lose each other's sums, which are estimates anyway.
    body.do(f"store atomic i64 {value}, ptr {_word_address(body, word)} monotonic, align 8")


def team_text(machine: str, walk: str) -> str:
    """LLVM IR of the functions of a team; `walk` is the one that runs records."""
    declaration, pause = _PAUSES.get(machine, ("", ""))
    functions = (
        pool_text(walk, _HELP, CLOCK, pause, _PATIENCE), _help_function(), _wait_function(pause), _linger_function(),
        _judge_function(), _clock_function(),
    )  # fmt: skip
    return f"{declaration}\n{''.join(functions)}"


def _wait_function(pause: str) -> str:
    """`void smelt_wait(ptr frame, i64 chunks)`: until all chunks are done; a long wait is a stall."""
    body = Body()
    body.label("entry")
    body.do("br label %look")
    body.label("look")
    body.do("%waited = phi i64 [0, %entry], [%longer, %idle]")
    done = body.let(f"load atomic i64, ptr {body.cell_address(Cell.DONE)} acquire, align 8")
    body.do(f"br i1 {body.let(f'icmp eq i64 {done}, %chunks')}, label %done, label %idle")
    emit_pause(body, pause, _PATIENCE, "look", "linger")
    body.label("linger")
    body.do(f"call void @{_LINGER}(ptr %frame, i64 %chunks)")
    body.do("br label %done")
    body.label("done")
    body.do("ret void")
    return body.function_text(f"define internal void @{_WAIT}(ptr %frame, i64 %chunks) #0")


def _linger_function() -> str:
    """`void smelt_linger(ptr frame, i64 chunks)`: let others run until all chunks are done; adds to `Cell.STALL`."""
    body = Body()
    body.label("entry")
    begin = body.let(f"call i64 @{CLOCK}(ptr %frame)")
    body.do("br label %look")
    body.label("look")
    body.let(f"call i32 {body.function(Cell.YIELD)}()")
    done = body.let(f"load atomic i64, ptr {body.cell_address(Cell.DONE)} acquire, align 8")
    body.do(f"br i1 {body.let(f'icmp eq i64 {done}, %chunks')}, label %done, label %look")
    body.label("done")
    spent = body.let(f"sub i64 {body.let(f'call i64 @{CLOCK}(ptr %frame)')}, {begin}")
    body.store(body.let(f"add i64 {body.cell(Cell.STALL)}, {spent}"), Cell.STALL)
    body.do("ret void")
    return body.function_text(f"define internal void @{_LINGER}(ptr %frame, i64 %chunks) #0")


def _judge_function() -> str:
    """`void smelt_judge(ptr frame, i64 began, i64 helpers)`: add a region's work and stall to the process's, and rest
    where the stall is more than what the helpers saved.
    """
    body = Body()
    body.label("entry")
    alone = body.let("icmp eq i64 %helpers, 0")
    body.do(f"br i1 {alone}, label %done, label %weigh")
    body.label("weigh")
    now = body.let(f"call i64 @{CLOCK}(ptr %frame)")
    before = body.let(f"sub i64 {body.cell(Cell.BEGAN)}, %began")
    after = body.let(f"sub i64 {now}, {body.cell(Cell.ENDED)}")
    waits = body.let(f"add i64 {before}, {body.let(f'add i64 {after}, {body.cell(Cell.STALL)}')}")
    useful = body.let(f"sub i64 {body.let(f'sub i64 {now}, %began')}, {waits}")
    stall = body.let(f"add i64 {_load_word(body, TeamWord.STALL)}, {waits}")
    work = body.let(f"add i64 {_load_word(body, TeamWord.WORK)}, {useful}")
    matters = body.let(f"icmp sgt i64 {stall}, {_LEAST_STALL}")
    saved = body.let(f"mul i64 {work}, %helpers")
    loses = body.let(f"icmp sgt i64 {stall}, {saved}")
    body.do(f"br i1 {body.let(f'and i1 {matters}, {loses}')}, label %rest, label %go_on")
    body.label("rest")
    length = body.let(f"mul i64 {stall}, {_REST_A_STALL}")
    is_long = body.let(f"icmp sgt i64 {length}, {_LONGEST_REST}")
    bounded = body.let(f"select i1 {is_long}, i64 {_LONGEST_REST}, i64 {length}")
    rests = _load_word(body, TeamWord.RESTS)
    rest = body.let(f"shl i64 {bounded}, {rests}")
    _store_word(body, body.let(f"add i64 {now}, {rest}"), TeamWord.REST_UNTIL)
    is_most = body.let(f"icmp sge i64 {rests}, {_MOST_RESTS}")
    following = body.let(f"add i64 {rests}, 1")
    _store_word(body, body.let(f"select i1 {is_most}, i64 {rests}, i64 {following}"), TeamWord.RESTS)
    _store_word(body, "0", TeamWord.STALL)
    _store_word(body, "0", TeamWord.WORK)
    body.do("br label %done")
    body.label("go_on")
    is_old = body.let(f"icmp sgt i64 {body.let(f'add i64 {stall}, {work}')}, {_MEMORY}")
    halving = body.let(f"zext i1 {is_old} to i64")
    fewer = body.let(f"sub i64 {_load_word(body, TeamWord.RESTS)}, {halving}")
    _store_word(body, body.let(f"call i64 @llvm.smax.i64(i64 {fewer}, i64 0)"), TeamWord.RESTS)
    _store_word(body, body.let(f"ashr i64 {stall}, {halving}"), TeamWord.STALL)
    _store_word(body, body.let(f"ashr i64 {work}, {halving}"), TeamWord.WORK)
    body.do("br label %done")
    body.label("done")
    body.do("ret void")
    return body.function_text(f"define internal void @{_JUDGE}(ptr %frame, i64 %began, i64 %helpers) #0")


def _clock_function() -> str:
    """`i64 smelt_clock(ptr frame)`: nanoseconds of the monotonic clock."""
    body = Body()
    body.label("entry")
    body.do("%spec = alloca [2 x i64], align 8")
    body.let(f"call i32 {body.function(Cell.CLOCK)}(i32 {CLOCK_MONOTONIC}, ptr %spec)")
    seconds = body.let("load i64, ptr %spec")
    rest = body.let(f"load i64, ptr {body.let('getelementptr i64, ptr %spec, i64 1')}")
    whole = body.let(f"mul i64 {seconds}, 1000000000")
    body.do(f"ret i64 {body.let(f'add i64 {whole}, {rest}')}")
    return body.function_text(f"define internal i64 @{CLOCK}(ptr %frame) #0")


def _help_function() -> str:
    """`void smelt_help(ptr frame, i64 scratch)`: claim and run chunks until none is left."""
    body = Body()
    body.label("entry")
    body.do("br label %look")
    body.label("look")
    claim = body.let(f"load atomic i64, ptr {body.cell_address(Cell.CLAIM)} acquire, align 8")
    body.do(f"%chunk = and i64 {claim}, 4294967295")
    has_more = body.let(f"icmp ult i64 %chunk, {body.let(f'lshr i64 {claim}, 32')}")
    body.do(f"br i1 {has_more}, label %claim, label %out")
    body.label("out")
    body.do("ret void")
    body.label("claim")
    after = body.let(f"add i64 {claim}, 1")
    pair = body.let(f"cmpxchg ptr {body.cell_address(Cell.CLAIM)}, i64 {claim}, i64 {after} acq_rel acquire, align 8")
    owns = body.let(f"extractvalue {{ i64, i1 }} {pair}, 1")
    body.do(f"br i1 {owns}, label %own, label %look")
    body.label("own")
    body.do(f"%desc = getelementptr i64, ptr %frame, i64 {body.cell(Cell.SHARED_FIRST)}")
    last = body.let(f"sub i64 {body.cell(Cell.SHARED_COUNT)}, 1")
    body.do("br label %find")
    body.label("find")
    body.do("%number = phi i64 [0, %own], [%following, %later]")
    is_last = body.let(f"icmp sge i64 %number, {last}")
    body.do("%following = add i64 %number, 1")
    body.do(f"br i1 {is_last}, label %found, label %compare")
    body.label("compare")
    begins = _descriptor(body, "%following", Launched.FIRST_CHUNK)
    body.do(f"br i1 {body.let(f'icmp sge i64 %chunk, {begins}')}, label %later, label %found")
    body.label("later")
    body.do("br label %find")
    body.label("found")
    within = body.let(f"sub i64 %chunk, {_descriptor(body, '%number', Launched.FIRST_CHUNK)}")
    size = _descriptor(body, "%number", Launched.CHUNK)
    begin = body.let(f"mul i64 {within}, {size}")
    items = _descriptor(body, "%number", Launched.ITEMS)
    left = body.let(f"sub i64 {items}, {begin}")
    is_whole = body.let(f"icmp sge i64 {left}, {size}")
    end = body.let(f"add i64 {begin}, {body.let(f'select i1 {is_whole}, i64 {size}, i64 {left}')}")
    _run_kernel(body, "%number", begin, end, "%scratch", "ran")
    body.label("ran")
    body.let(f"atomicrmw add ptr {body.cell_address(Cell.DONE)}, i64 1 acq_rel, align 8")
    body.do("br label %look")
    return body.function_text(f"define internal void @{_HELP}(ptr %frame, i64 %scratch) #0")
