"""The LLVM text of the threads that help in regions.

A region is put up as tickets, one for each thread that may help; who takes a ticket helps until the region ends. The
region's own thread goes on at once, takes back at the end what tickets are left, and waits for those alone who took
one. So a thread that sleeps, or has lost its core, costs nothing but its help: after a pause, and beside other
processes, a region lasts hardly longer than one thread alone would take.

    the region's thread: take a team    tickets = n    wake who sleeps    walk    tickets = 0    wait for those inside
    a thread of a team:  take a ticket: help until the region stops, give it back; else pause, yield, at last sleep

Invariant: tickets and those inside are one word, which changes by exchange, so nobody comes in behind the end. The
words are the process's and never freed; a frame is read by those inside only. A caller that finds all teams taken works
alone. A library of its own (`Cell.PARALLEL`) brings such a pool itself, and calls `smelt_team` with each thread's part.
"""

from __future__ import annotations

from smelt.codegen.llvm.walkers.executor_body import Body
from smelt.runtime.encoding.table import CLAIM_STOP, POOL_AT, TEAMS, TEAMS_AT, Cell, PoolWord, Team

GATHER = "smelt_gather"
TEAM = "smelt_team"
_LEAD = "smelt_lead"
_JOIN = "smelt_join"
_WORKER = "smelt_worker"
# Yields of a thread without a ticket before it sleeps: about a millisecond where nobody else wants the core.
_YIELDS = 3000
_INSIDE = 2**32 - 1


def pool_text(walk: str, help_: str, clock: str, pause: str, patience: int) -> str:
    """LLVM IR of the pool's functions; `walk` runs records, `help_` claims chunks, `pause` is an instruction or ""."""
    return "".join((
        _gather_function(pause, patience), _worker_function(pause, patience), _lead_function(walk, clock),
        _join_function(help_, pause, patience), _team_function(),
    ))  # fmt: skip


def _at(body: Body, base: str, word: int) -> str:
    return body.let(f"getelementptr i64, ptr {base}, i64 {word}")


def _function(body: Body, pool: str, word: PoolWord) -> str:
    return body.let(f"load ptr, ptr {_at(body, pool, word)}")


def emit_pause(body: Body, pause: str, patience: int, then: str, rest: str) -> None:
    """`idle`: one step of waiting, back to `then`, or on to `rest` when `%waited` is long."""
    body.label("idle")
    if pause:
        body.do(pause)
    body.do("%longer = add i64 %waited, 1")
    body.do(f"br i1 {body.let(f'icmp sgt i64 %longer, {patience}')}, label %{rest}, label %{then}")


def _idle(body: Body, pause: str, patience: int, then: str, rest: str = "yield", yield_: str = "") -> None:
    """The same, and `yield`, which lets others run and goes back to `then`, too."""
    emit_pause(body, pause, patience, then, rest)
    body.label("yield")
    body.let(f"call i32 {yield_ or body.function(Cell.YIELD)}()")
    body.do(f"br label %{then}")


def _gather_function(pause: str, patience: int) -> str:
    """`void smelt_gather(ptr frame)`: the region whose first record is `Cell.AT`, with at most `Cell.TEAM_SIZE` threads
    and no more than the library would use.
    """
    body = Body()
    body.label("entry")
    body.do("%count = alloca i32, align 4")
    size = body.cell(Cell.TEAM_SIZE)
    body.do(f"br i1 {body.let(f'icmp sgt i64 {size}, 1')}, label %ask, label %alone")
    body.label("ask")
    words = body.cell(Cell.TEAM_WORDS, "ptr")
    body.do(f"%pool = getelementptr i64, ptr {words}, i64 {POOL_AT}")
    body.let(f"call i32 {_function(body, '%pool', PoolWord.THREADS)}(ptr %count)")
    has = body.let(f"zext i32 {body.let('load i32, ptr %count')} to i64")
    body.do(f"%most = call i64 @llvm.smin.i64(i64 {size}, i64 {has})")
    body.do("%helpers = sub i64 %most, 1")
    body.do(f"%teams = getelementptr i64, ptr {words}, i64 {TEAMS_AT}")
    body.do(f"br i1 {body.let('icmp sgt i64 %helpers, 0')}, label %look, label %alone")
    body.label("look")
    body.do("%number = phi i64 [0, %ask], [%following, %taken]")
    body.do(f"%team = getelementptr [{int(Team.NCELLS)} x i64], ptr %teams, i64 %number")
    pair = body.let(f"cmpxchg ptr {_at(body, '%team', Team.OWNER)}, i64 0, i64 1 acquire monotonic, align 8")
    body.do(f"br i1 {body.let(f'extractvalue {{ i64, i1 }} {pair}, 1')}, label %hire, label %taken")
    body.label("taken")
    body.do("%following = add i64 %number, 1")
    body.do(f"br i1 {body.let(f'icmp eq i64 %following, {TEAMS}')}, label %alone, label %look")
    # Threads are made when they are first wanted.
    body.label("hire")
    hired = body.let(f"load i64, ptr {_at(body, '%team', Team.HIRED)}")
    body.do(f"br i1 {body.let(f'icmp slt i64 {hired}, %helpers')}, label %hire_one, label %staffed")
    body.label("hire_one")
    create, attributes = (_function(body, "%pool", word) for word in (PoolWord.CREATE, PoolWord.ATTRIBUTES))
    made = f"ptr {_at(body, '%team', Team.THREAD)}, ptr {attributes}, ptr @{_WORKER}, ptr %team"
    rc = body.let(f"call i32 {create}({made})")
    body.do(f"br i1 {body.let(f'icmp eq i32 {rc}, 0')}, label %hired_one, label %staffed")
    body.label("hired_one")
    body.do(f"store i64 {body.let(f'add i64 {hired}, 1')}, ptr {_at(body, '%team', Team.HIRED)}")
    body.do("br label %hire")
    body.label("staffed")
    body.do(f"%joined = call i64 @llvm.smin.i64(i64 {hired}, i64 %helpers)")
    body.store("%joined", Cell.TEAM)
    body.do(f"store ptr %frame, ptr {_at(body, '%team', Team.FRAME)}")
    # Of these two and the sleeper's two one sees the other: it is woken, or does not sleep.
    tickets = body.let("shl i64 %joined, 32")
    body.do(f"store atomic i64 {tickets}, ptr %team seq_cst, align 8")
    sleeping = body.let(f"load atomic i64, ptr {_at(body, '%team', Team.SLEEPING)} seq_cst, align 8")
    body.do(f"br i1 {body.let(f'icmp eq i64 {sleeping}, 0')}, label %lead, label %wake")
    body.label("wake")
    mutex, condition = _at(body, "%team", Team.MUTEX), _at(body, "%team", Team.CONDITION)
    # With the lock given back already, so that who wakes need not wait for it.
    for word, argument in ((PoolWord.LOCK, mutex), (PoolWord.UNLOCK, mutex), (PoolWord.WAKE, condition)):
        body.let(f"call i32 {_function(body, '%pool', word)}(ptr {argument})")
    body.do("br label %lead")
    body.label("lead")
    body.do(f"call void @{_LEAD}(ptr %frame)")
    body.let(f"atomicrmw and ptr %team, i64 {_INSIDE} acq_rel, align 8")
    body.do("br label %watch")
    body.label("watch")
    body.do("%waited = phi i64 [0, %lead], [%longer, %idle], [%longer, %yield]")
    inside = body.let("load atomic i64, ptr %team acquire, align 8")
    body.do(f"br i1 {body.let(f'icmp eq i64 {inside}, 0')}, label %done, label %idle")
    _idle(body, pause, patience, "watch")
    body.label("done")
    body.do(f"store atomic i64 0, ptr {_at(body, '%team', Team.OWNER)} release, align 8")
    body.do("ret void")
    body.label("alone")
    body.store("0", Cell.TEAM)
    body.do(f"call void @{_LEAD}(ptr %frame)")
    body.do("ret void")
    return body.function_text(f"define internal void @{GATHER}(ptr %frame) #0")


def _worker_function(pause: str, patience: int) -> str:
    """`ptr smelt_worker(ptr team)`: what a thread of a team does for as long as the process lives."""
    body = Body()
    body.label("entry")
    body.do(f"%pool = load ptr, ptr {_at(body, '%team', Team.POOL)}")
    yield_ = _function(body, "%pool", PoolWord.YIELD)
    mutex, condition, asleep = (_at(body, "%team", word) for word in (Team.MUTEX, Team.CONDITION, Team.SLEEPING))
    body.do("br label %look")
    body.label("look")
    body.do(
        "%waited = phi i64 [0, %entry], [0, %helped], [0, %awake], [%waited, %try], [%longer, %idle], [%longer, %yield]"
    )
    word = body.let("load atomic i64, ptr %team acquire, align 8")
    body.do(f"%ticket = lshr i64 {word}, 32")
    body.do(f"br i1 {body.let('icmp eq i64 %ticket, 0')}, label %idle, label %try")
    body.label("try")
    taken = body.let(f"sub i64 {word}, {_INSIDE}")  # a ticket less, one more inside
    pair = body.let(f"cmpxchg ptr %team, i64 {word}, i64 {taken} acq_rel monotonic, align 8")
    body.do(f"br i1 {body.let(f'extractvalue {{ i64, i1 }} {pair}, 1')}, label %helped, label %look")
    body.label("helped")
    body.do(f"%frame = load ptr, ptr {_at(body, '%team', Team.FRAME)}")
    body.do(f"call void @{_JOIN}(ptr %frame, i64 %ticket)")
    body.let("atomicrmw sub ptr %team, i64 1 release, align 8")
    body.do("br label %look")
    _idle(body, pause, patience, "look", "tired", yield_)
    body.label("tired")
    body.do(f"br i1 {body.let(f'icmp sgt i64 %longer, {patience + _YIELDS}')}, label %sleep, label %yield")
    body.label("sleep")
    body.let(f"call i32 {_function(body, '%pool', PoolWord.LOCK)}(ptr {mutex})")
    body.let(f"atomicrmw add ptr {asleep}, i64 1 seq_cst, align 8")
    body.do("br label %doze")
    body.label("doze")
    word = body.let("load atomic i64, ptr %team seq_cst, align 8")
    none = body.let(f"icmp ule i64 {word}, {_INSIDE}")
    body.do(f"br i1 {none}, label %wait, label %awake")
    body.label("wait")
    body.let(f"call i32 {_function(body, '%pool', PoolWord.WAIT)}(ptr {condition}, ptr {mutex})")
    body.do("br label %doze")
    body.label("awake")
    body.let(f"atomicrmw sub ptr {asleep}, i64 1 seq_cst, align 8")
    body.let(f"call i32 {_function(body, '%pool', PoolWord.UNLOCK)}(ptr {mutex})")
    body.do("br label %look")
    return body.function_text(f"define internal ptr @{_WORKER}(ptr %team) #0")


def _lead_function(walk: str, clock: str) -> str:
    """`void smelt_lead(ptr frame)`: the part of the region's own thread."""
    body = Body()
    body.label("entry")
    body.store(body.let(f"call i64 @{clock}(ptr %frame)"), Cell.BEGAN)
    code, at = body.cell(Cell.CODE, "ptr"), body.cell(Cell.AT)
    status = body.let(f"call i32 @{walk}(ptr {code}, ptr %frame, i64 {at})")
    body.do(f"store i32 {status}, ptr {body.cell_address(Cell.STATUS)}")
    body.do(f"store atomic i64 {CLAIM_STOP}, ptr {body.cell_address(Cell.CLAIM)} release, align 8")
    body.store(body.let(f"call i64 @{clock}(ptr %frame)"), Cell.ENDED)
    body.do("ret void")
    return body.function_text(f"define internal void @{_LEAD}(ptr %frame) #0")


def _join_function(help_: str, pause: str, patience: int) -> str:
    """`void smelt_join(ptr frame, i64 number)`: the part of a thread that helps, with its own scratch memory."""
    body = Body()
    body.label("entry")
    offset = body.let(f"mul i64 %number, {body.cell(Cell.SCRATCH_STRIDE)}")
    scratch = body.let(f"add i64 {body.cell(Cell.SCRATCH)}, {offset}")
    body.do("br label %look")
    body.label("look")
    body.do("%waited = phi i64 [0, %entry], [0, %work], [%longer, %idle], [%longer, %yield]")
    claim = body.let(f"load atomic i64, ptr {body.cell_address(Cell.CLAIM)} acquire, align 8")
    stop = body.let(f"icmp eq i64 {claim}, {CLAIM_STOP}")
    body.do(f"br i1 {stop}, label %done, label %try")
    body.label("try")
    has_more = body.let(f"icmp ult i64 {body.let(f'and i64 {claim}, 4294967295')}, {body.let(f'lshr i64 {claim}, 32')}")
    body.do(f"br i1 {has_more}, label %work, label %idle")
    body.label("work")
    body.do(f"call void @{help_}(ptr %frame, i64 {scratch})")
    body.do("br label %look")
    _idle(body, pause, patience, "look")
    body.label("done")
    body.do("ret void")
    return body.function_text(f"define internal void @{_JOIN}(ptr %frame, i64 %number) #0")


def _team_function() -> str:
    """`void smelt_team(i64 begin, i64 end, ptr frame)`: a library calls it with each thread's part of the team."""
    body = Body()
    body.label("entry")
    is_first = body.let("icmp eq i64 %begin, 0")
    body.do(f"br i1 {is_first}, label %lead, label %join")
    body.label("lead")
    # The first part tells how many there are, for all but the last are as large.
    whole = body.let(f"add i64 {body.cell(Cell.TEAM_SIZE)}, {body.let('sub i64 %end, 1')}")
    body.store(body.let(f"sub i64 {body.let(f'udiv i64 {whole}, %end')}, 1"), Cell.TEAM)
    body.do(f"call void @{_LEAD}(ptr %frame)")
    body.do("ret void")
    body.label("join")
    body.do(f"call void @{_JOIN}(ptr %frame, i64 %begin)")
    body.do("ret void")
    return body.function_text(f"define internal void @{TEAM}(i64 %begin, i64 %end, ptr %frame) #0")
