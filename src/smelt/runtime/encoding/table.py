"""The encoding that the native executor walks: records of int32 words over a frame of int64 cells.

Invariant: `codegen.llvm.walkers.executor` emits the function for exactly these numbers, and `encode` writes exactly
these records; a change here changes the emitted text, hence the key of its cached machine code.

    i32 smelt_run(const i32* code, i64* frame)

`code` is one plan, shared by all runs; `frame` is one run. A record is [opcode, length in words, operands...]; operands
are indices of cells unless named otherwise, so immediates, addresses and handles are all loaded alike. Cells that
hold an address inside the frame itself are filled once, when the frame is made. The first words of `code` are
[first record, failure list, its pairs, success list, its pairs]; a list holds (cell, cell of its deleter) pairs.

    CALL_n      fn, a0..a(n-1)               rc = fn(...); not zero ends the run with LIBRARY
    CALL_nD     fn, a0..a(n-1), d0..d3       the same with four doubles
    SET         dst, src                     frame[dst] = frame[src]
    MOVE        dst, src                     the same, then frame[src] = 0
    POKE        at, src                      *(i64*)frame[at] = frame[src]
    CHECK       slot, ndim (a number), sizes, strides, dtype (0: any)      else ends with LAYOUT
    BUMP        slot, version, count         add 1 to the version counter of the tensor: frame[count] bytes behind the
                                             address that stands frame[version] bytes in, if that is not 0
    ADVISE      slot, nbytes, function, advice, page
                function(first whole page of the tensor's data, bytes of whole pages, advice), whatever it returns
    RELEASE     n (a number), cells...       delete handles that are not null, set null
    DISPATCH    fn, name, overload, stack, version, first, n, nouts (the last three numbers)
                the n cells from `first` are the stack; consumed inputs become 0 whatever happens
    ESCAPE      slot, low, high              ends with ESCAPED if the tensor's data lies in [low, high)
    DATA        slot, n (a number), n pairs (dst, offset)
                frame[dst] = address of the tensor's first element + frame[offset]
    LAUNCH      first, n, chunks (numbers)   run n independent kernels; their descriptors stand from cell `first` on
    REGION      n (a number)                 the records up to LEAVE are run by the first of at most n threads, and
                                             the chunks of launches among them by all
    JUMP        word                         go on at this word of the code
    UNLESS      cell, word                   the same if frame[cell] is 0
    AGAIN       word                         the same, back to a loop's begin; looks for signals now and then
    ARM         -                            signals were looked for just now
    ARITH       operation (an `Arith`), dst, a, b, step
                frame[dst] = operation(frame[a], frame[b]), or the Python step's answer where that is none
    LOAD        dst, address, element (an `Element`)     frame[dst] = the element at frame[address], as a number
    BLIT        dst, src, nbytes, row        copy frame[nbytes] bytes from frame[src] to
                                             frame[dst] + frame[row] * frame[nbytes]
    STEP        step                         call the Python step of that number (a cell); ends with LIBRARY if it fails
    EXPECT      address, size (1, 2, 4, 8), mask, low, high     ends with MISS unless
                                             low <= (element & frame[mask]) <= high, unsigned (low, high are cells too)

On SysV x86-64 and AArch64, integer and floating-point arguments are assigned to registers independently, the caller
removes stack arguments, and a narrower argument is the low part of its word; so one call with n words and four doubles
serves every signature with at most that many.

A descriptor is `Launched` cells: a kernel, its arguments and items. A kernel that returns anything but 0 leaves it in
its descriptor; when all of the record are done, each such one's step (`eager` in Python) is called in order, through
`CALLBACK`, and not zero from there ends the run with LIBRARY.
"""

from __future__ import annotations

from enum import IntEnum


class Op(IntEnum):
    """Opcodes."""

    END = 0
    CALL_6 = 1
    CALL_6D = 2
    CALL_12 = 3
    CALL_12D = 4
    CALL_28 = 5
    CALL_28D = 6
    SET = 7
    MOVE = 8
    POKE = 9
    CHECK = 10
    RELEASE = 11
    DISPATCH = 12
    ESCAPE = 13
    DATA = 14
    LAUNCH = 15
    REGION = 16
    LEAVE = 17
    JUMP = 18
    UNLESS = 19
    AGAIN = 20
    ARM = 21
    ARITH = 22
    LOAD = 23
    BLIT = 24
    EXPECT = 25
    STEP = 26
    BUMP = 27
    ADVISE = 28


class Arith(IntEnum):
    """Operations on numbers: i are ints (64 bits), f floats, b bools. What stands in the comment is left to Python."""

    COPY = 0
    I_ADD = 1  # beyond 64 bits; so are the next five
    I_SUB = 2
    I_MUL = 3
    I_NEG = 4
    I_ABS = 5
    I_FLOORDIV = 6  # by 0
    I_MOD = 7  # by 0
    I_TRUEDIV = 8  # by 0; operands beyond 2 ** 53
    I_AND = 9
    I_OR = 10
    I_XOR = 11
    I_INVERT = 12
    I_EQ = 13
    I_NE = 14
    I_LT = 15
    I_LE = 16
    I_GT = 17
    I_GE = 18
    I_MIN = 19
    I_MAX = 20
    I_FLOAT = 21
    I_EXACT = 22  # to a float, beyond 2 ** 53
    I_BOOL = 23
    F_ADD = 24
    F_SUB = 25
    F_MUL = 26
    F_TRUEDIV = 27  # by 0
    F_NEG = 28
    F_ABS = 29
    F_EQ = 30
    F_NE = 31
    F_LT = 32
    F_LE = 33
    F_GT = 34
    F_GE = 35
    F_MIN = 36
    F_MAX = 37
    F_INT = 38  # nan, and beyond 64 bits
    F_BOOL = 39
    F_SQRT = 40  # of what is less than 0
    B_NOT = 41
    F_IN_F32 = 43  # finite, and beyond floats of 32 bits
    F_POW = 42  # of what is not above 0, of infinities and nan; results beyond all floats


class Element(IntEnum):
    """Elements that LOAD turns into numbers."""

    F64 = 0
    F32 = 1
    BF16 = 2
    I64 = 3
    I32 = 4
    I16 = 5
    I8 = 6
    U8 = 7
    BOOL = 8


# (most integer words, without doubles, with doubles), smallest first.
CALL_CLASSES: tuple[tuple[int, Op, Op], ...] = (
    (6, Op.CALL_6, Op.CALL_6D),
    (12, Op.CALL_12, Op.CALL_12D),
    (28, Op.CALL_28, Op.CALL_28D),
)
MAX_DOUBLES = 4


class Status(IntEnum):
    """What `smelt_run` returns."""

    OK = 0
    LIBRARY = 1
    LAYOUT = 2
    ESCAPED = 3
    MALFORMED = 4
    MISS = 5
    INTERRUPTED = 6


class Cell(IntEnum):
    """Cells with a fixed meaning; those of the plan follow from `FIRST`."""

    ZERO = 0
    FAILED_AT = 1
    GRAD_GET = 2
    GRAD_SET = 3
    DELETE = 4
    GET_DIM = 5
    GET_SIZES = 6
    GET_STRIDES = 7
    GET_DTYPE = 8
    GET_DATA = 9
    TMP0 = 10
    TMP1 = 11
    NEXT = 12
    RUNS = 13
    CALLBACK = 14
    REFUSED = 15
    SCRATCH = 16
    SCRATCH_STRIDE = 17
    PARALLEL = 18
    YIELD = 19
    TEAM_WORDS = 20
    CLOCK = 21
    PROFILE = 22
    TEAM = 23
    TEAM_SIZE = 24
    CODE = 25
    AT = 26
    STATUS = 27
    BEGAN = 28
    ENDED = 29
    STALL = 30
    # Written by all threads of a region, so in a cache line of their own (frames are aligned to `FRAME_ALIGNMENT`).
    CLAIM = 32
    DONE = 33
    SHARED_FIRST = 34
    SHARED_COUNT = 35
    # Looking for signals: functions of Python, and what they found.
    GIL_TAKE = 40
    GIL_GIVE = 41
    CHECK_SIGNALS = 42
    FETCH_ERROR = 43
    ERROR = 44  # and two more: type, value, traceback
    POLLS = 47
    POLLS_SKIPPED = 48
    POLLED_AT = 49
    POLL_CLOCK = 50
    MEMCPY = 51
    STEPPED = 52
    AUTOCAST_GET = 53
    AUTOCAST_SET = 54
    POW = 55
    FIRST = 56


class TeamWord(IntEnum):
    """Words of the process, for all regions: whether threads may be started, until when (nanoseconds of the clock) one
    thread does all, the recent time of regions in which work went on and in which it waited for a thread, and how often
    of late one thread did all (each time it does so for twice as long).
    """

    ALLOWED = 0
    REST_UNTIL = 1
    WORK = 2
    STALL = 3
    RESTS = 4


class PoolWord(IntEnum):
    """Words of the process's own threads, `POOL_AT` words behind the first `TeamWord`: the functions that say how many
    threads a region may have, make one, lock and unlock, wait and wake, and let others run; then come `TEAMS` teams.
    """

    THREADS = 0
    CREATE = 1
    ATTRIBUTES = 2
    LOCK = 3
    UNLOCK = 4
    WAIT = 5
    WAKE = 6
    YIELD = 7


class Team(IntEnum):
    """Words of a team: (tickets to a region that nobody has taken << 32 | threads inside of it), whether a caller has
    it, its threads, the region's frame, the first `PoolWord`, the last thread made, how many sleep, and what they sleep
    on. What different threads write stands in cache lines of its own. `NCELLS` is their number.
    """

    TICKETS = 0
    OWNER = 8
    HIRED = 9
    FRAME = 10
    POOL = 11
    THREAD = 12
    SLEEPING = 16
    MUTEX = 24
    CONDITION = 32
    NCELLS = 40


POOL_AT = 8
TEAMS_AT = 16
"""Words from the first `TeamWord` to the first team, which begins a cache line as that does."""
TEAMS = 8
"""So many callers at once have threads to help them; one more works alone."""
POOL_NWORDS = TEAMS_AT + TEAMS * Team.NCELLS
FRAME_ALIGNMENT = 64
# The claim word is (chunks << 32 | next chunk); this value ends a region.
CLAIM_STOP = -1
MAX_CHUNKS = 2**31 - 1
# Of a row of the profile: least, total (nanoseconds), number. A row stands at the record's word.
PROFILE_CELLS = 3
CLOCK_MONOTONIC = 1


class Launched(IntEnum):
    """Cells of a launch's descriptor: addresses of the function and its arguments, items in all and in one chunk, the
    number of its first chunk in the record, its Python step, what the kernel refused with. `NCELLS` is their number.
    """

    FUNCTION = 0
    ARGS = 1
    ITEMS = 2
    CHUNK = 3
    FIRST_CHUNK = 4
    STEP = 5
    FAULT = 6
    NCELLS = 7


# A library of its own brings its threads: this function runs a region. A process has a pool (`PoolWord`) instead.
PARALLEL = "smelt_parallel_for"
# The shim function whose address each cell holds; 0 where the symbol is missing (and then no record uses it).
FUNCTION_CELLS: tuple[tuple[Cell, str], ...] = (
    (Cell.DELETE, "aoti_torch_delete_tensor_object"),
    (Cell.GET_DIM, "aoti_torch_get_dim"),
    (Cell.GET_SIZES, "aoti_torch_get_sizes"),
    (Cell.GET_STRIDES, "aoti_torch_get_strides"),
    (Cell.GET_DTYPE, "aoti_torch_get_dtype"),
    (Cell.GET_DATA, "aoti_torch_get_data_ptr"),
    (Cell.PARALLEL, PARALLEL),
)
PROCESS_CELLS: tuple[tuple[Cell, str], ...] = (
    (Cell.GIL_TAKE, "PyGILState_Ensure"),
    (Cell.GIL_GIVE, "PyGILState_Release"),
    (Cell.CHECK_SIGNALS, "PyErr_CheckSignals"),
    (Cell.FETCH_ERROR, "PyErr_Fetch"),
    (Cell.POW, "pow"),
)
GRAD_CELLS: tuple[tuple[Cell, str], ...] = (
    (Cell.GRAD_GET, "aoti_torch_grad_mode_is_enabled"),
    (Cell.GRAD_SET, "aoti_torch_grad_mode_set_enabled"),
)
# at::autocast::is_autocast_enabled(DeviceType) and set_autocast_enabled(DeviceType, bool).
AUTOCAST_CELLS: tuple[tuple[Cell, str], ...] = (
    (Cell.AUTOCAST_GET, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"),
    (Cell.AUTOCAST_SET, "_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb"),
)


class Field(IntEnum):
    """Words of the context that the builtin `smelt_enter` reads: addresses, counts, and the list of idle frames.

        PyObject* smelt_enter(PyObject* self, PyObject* const* args, Py_ssize_t nargs)     (METH_FASTCALL)
        void smelt_give(i64* context, i64* frame)                                (GIL held: adds an idle frame)

    KINDS, OUTPUT_KINDS: for each argument and output what it is, as `NUMBER_CODES` says (0: a tensor).

    `self` is a bytes object that holds the context's address. Idle frames are linked through `Cell.NEXT` and touched
    only with the GIL held. `SLOW` (called with the same arguments) and `FAIL` (called with frame and status) are
    Python's.
    """

    NARGS = 0
    NOUTS = 1
    CODE = 2
    IDLE = 3
    FIRST_INPUT = 4
    OUTPUT_CELLS = 5
    TENSOR_TYPE = 6
    LEND_OFFSET = 7
    WRAP = 8
    SAVE_THREAD = 9
    RESTORE_THREAD = 10
    LIST_NEW = 11
    LIST_SET = 12
    VECTORCALL = 13
    IS_SUBTYPE = 14
    LONG = 15
    DECREF = 16
    SLOW = 17
    FAIL = 18
    KINDS = 19
    INT_TYPE = 20
    FLOAT_TYPE = 21
    BOOL_TYPE = 22
    TRUE = 23
    AS_INT = 24
    AS_FLOAT = 25
    OUTPUT_KINDS = 26
    FROM_FLOAT = 27
    FROM_BOOL = 28


NUMBER_CODES = {"int": 1, "float": 2, "bool": 3}
"""What a number among a plan's inputs or outputs is to native code."""

ENTER_SYMBOL = "smelt_enter"
GIVE_SYMBOL = "smelt_give"
# Where a bytes object keeps its bytes, and every object its type (checked before use).
BYTES_OFFSET = bytes.__basicsize__ - 1
TYPE_OFFSET = 8

ANY_STRIDE = -(2**63)
ENTRY_SYMBOL = "smelt_run"
HEADER_WORDS = 5
