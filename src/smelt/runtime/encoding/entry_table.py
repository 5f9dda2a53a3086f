"""The encoding of the native entry: guards as words that one emitted function walks, rows, and the process's constants.

Invariant: `codegen.llvm.walkers.entry_call_ir` emits the functions for exactly these numbers, and `entry_guards` and
`entry` write exactly these words; a change here changes the emitted text, hence the key of its cached machine code.

    i32 smelt_guards(const i64* guards, PyObject* args, PyObject* kwargs, i64* registers)          1: all hold
    PyObject* smelt_call(PyObject* self, PyObject* args, PyObject* kwargs)                         (a type's tp_call)

A guard is [operation, length in words, operands...]. Registers hold borrowed objects: first the positional arguments,
then the named ones in order, then what was taken out of containers. Addresses are of memory that `Guards.keeps` holds.

    ARGS        nargs, nnamed, names...             the call's form; fills the first registers
    SEQUENCE    reg, type, length, is_list, first   a list or tuple; its members go to the registers from `first`
    MAPPING     reg, type, length, first, keys...   a dict with these keys in this order; likewise its values
    ENTRIES     reg, type, length, first            a dict; its keys, then its values go to the registers from `first`
    FIELDS      reg, type, length, first, names...  an object of this class; likewise its attributes of these names
    TENSOR      reg, type, mask, keys, dtype, ndim, requires_grad (-1: any), sizes..., strides...
    IS          reg, object                         the same object
    SAME        reg, reg                            the same object in both
    OTHER       n, regs...                          n objects, none of which is another of them
    NONE_OF     m, objects, n, regs...              n objects, none of which is one of m others
    INT         reg, value                          FLOAT   reg, mask, bits (mask 0: any NaN)       TEXT   reg, object
    FORM        reg, type, mask, keys, dtype, ndim, requires_grad, first, strides, sizes... (-1: any)
                a tensor whose sizes go to the registers from `first`, its strides to those from `strides`, unless that
                is -1: then they are row-major
    NUMBER      reg, code, to                       an int of 64 bits, a float or a bool (`table.NUMBER_CODES`); its
                bits go to register `to`
    SET         to, value                           words in registers: a constant,
    COMPUTE     operation, to, a, is_constant, b    an integer of one in a register and of another or a constant,
    COMPARE     outcomes, a, is_constant, b         what is allowed of 1: less, 2: equal, 4: greater
    COMPARE_FLOAT   outcomes, a, is_constant, b     likewise, and 8: one is a NaN
    APART       n, (reg, nbytes, itemsize)...       tensors that share no memory with each other; nbytes < 0: what
                stands in register ~nbytes
    CLEAR       reg, nbytes, itemsize, n, ranges    a tensor that meets none of n (start, end) ranges; nbytes likewise
    WORDS       n, (address, value)...              memory words
    MASKED      address, mask, value                one of them, under a mask
    VALUE       function, argument, mask, value     what a C function returns
    POINTED     function, argument, n, (mask, value)...     the words that it points to
    NOARGS      function, self, object, is_text     a Python builtin without arguments returns this very object (text)
    SPACES      n, records                          dicts: [dict, stamp, n, entries, order length, order, holds]
    UNSTAMPED   n, records                          likewise, of dicts whose stamp tells nothing
    EITHER      holds, n, (address, value)...       memory words, or else a Python callable returns True
    ATTRIBUTE   object, name, value, holds          likewise of an attribute
    CONTEXT     object, default, value              of a context variable
    ITEMS       list, holds, n, objects...          likewise of the members of a list
    GRADS       n, (object, requires_grad)...
    CONSTANTS   n, records                          [object, address, version (-1: none), itemsize]
    SAMPLES     n, records                          [address, stride, count, itemsize, bits]
    PYTHON      callable                            true if it returns True
"""

from __future__ import annotations

from enum import IntEnum

CALL_SYMBOL = "smelt_call"
GUARDS_SYMBOL = "smelt_guards"
BLOCK_SYMBOL = "smelt_block"
MAX_REGISTERS = 128
MAX_APART = 16


class Guard(IntEnum):
    """Operations of the guards."""

    END = 0
    ARGS = 1
    SEQUENCE = 2
    MAPPING = 3
    TENSOR = 4
    IS = 5
    SAME = 6
    INT = 7
    FLOAT = 8
    TEXT = 9
    APART = 10
    CLEAR = 11
    WORDS = 12
    VALUE = 13
    POINTED = 14
    NOARGS = 15
    SPACES = 16
    ATTRIBUTE = 17
    CONTEXT = 18
    ITEMS = 19
    GRADS = 20
    CONSTANTS = 21
    SAMPLES = 22
    PYTHON = 23
    EITHER = 24
    MASKED = 25
    FORM = 26
    NUMBER = 27
    SET = 28
    COMPUTE = 29
    COMPARE = 30
    COMPARE_FLOAT = 31
    OTHER = 32
    ENTRIES = 33
    NONE_OF = 34
    FIELDS = 35
    UNSTAMPED = 36


class Compute(IntEnum):
    """Operations of `Guard.COMPUTE`; what 64 bits do not hold, and what is divided by less than 1, is a miss."""

    ADD = 0
    SUB = 1
    MUL = 2
    FLOORDIV = 3
    MOD = 4
    MAX = 5
    MIN = 6


class Block(IntEnum):
    """Words that all compiled objects of the process share: a counter, Python's objects, where torch keeps what.

    BUSY: not 0 while any thread records a program. SLOW: called as slow(self, args, kwargs or None). The last ones are
    byte offsets: IMPL in a tensor object, KEYS ... VERSION in the implementation, DATA in its storage, COUNT in the
    version counter; CAPACITY is the number of dimensions kept inside the implementation.
    """

    BUSY = 0
    SLOW = 1
    DISPATCHER = 2
    NONE = 3
    TRUE = 4
    TEXT_TYPE = 5
    INT_TYPE = 6
    FLOAT_TYPE = 7
    REQUIRES_GRAD = 8
    IMPL = 9
    KEYS = 10
    DTYPE = 11
    NDIM = 12
    SIZES = 13
    CAPACITY = 14
    STORAGE = 15
    DATA = 16
    OFFSET = 17
    META = 18
    VERSION = 19
    COUNT = 20
    BOOL_TYPE = 21


class Space(IntEnum):
    """Words of a dict's record. ENTRIES: (key, value or 0: absent) pairs; ORDER: all that it holds, likewise (0: any);
    ORDER_LENGTH -1: only the entries count.
    """

    DICT = 0
    STAMP = 1
    LENGTH = 2
    ENTRIES = 3
    ORDER_LENGTH = 4
    ORDER = 5
    HOLDS = 6


class Row(IntEnum):
    """Words of a row of a compiled object's table, which is [number of rows, addresses of rows...].

    CALLS, CLOCK: addresses of the object's counters. KIND: how the result is made. CONTEXT: the plan's words
    (`table.Field`); INPUTS: registers of its inputs, of a number ~register. PYTHON: called as python(args, kwargs or
    None), the whole way in Python. FAIL: fail(frame, status, args, kwargs or None). DELIVER: deliver(results, args,
    kwargs or None). KEEPS_GIL: the run is too short to let others have the GIL. RUN: address of `smelt_run`.

    A row for many sizes has PLANS: the address of [n, addresses of rows...]. Of these the one whose SIZES are those of
    the call runs; NSIZES and SIZES are how many there are, and the registers where a call's are. If none is: PYTHON.
    """

    GUARDS = 0
    HITS = 1
    USED = 2
    CALLS = 3
    CLOCK = 4
    KIND = 5
    CONTEXT = 6
    NINPUTS = 7
    INPUTS = 8
    PYTHON = 9
    FAIL = 10
    DELIVER = 11
    KEEPS_GIL = 12
    RUN = 13
    PLANS = 14
    NSIZES = 15
    SIZES = 16


class Kind(IntEnum):
    """How a row makes its result."""

    PYTHON = 0
    SINGLE = 1
    TUPLE = 2
    LIST = 3
    DELIVER = 4


# Python's functions by name, with their types; all but the two that release and take the GIL are called with it held.
EXTERNALS: dict[str, str] = {
    "PyBool_FromLong": "ptr (i64)",
    "PyContextVar_Get": "i32 (ptr, ptr, ptr)",
    "PyDict_GetItemWithError": "ptr (ptr, ptr)",
    "PyDict_Next": "i32 (ptr, ptr, ptr, ptr)",
    "PyErr_Clear": "void ()",
    "PyErr_Occurred": "ptr ()",
    "PyEval_RestoreThread": "void (ptr)",
    "PyEval_SaveThread": "ptr ()",
    "PyFloat_AsDouble": "double (ptr)",
    "PyFloat_FromDouble": "ptr (double)",
    "PyList_New": "ptr (i64)",
    "PyLong_AsLongLongAndOverflow": "i64 (ptr, ptr)",
    "PyLong_FromLongLong": "ptr (i64)",
    "PyObject_GetAttr": "ptr (ptr, ptr)",
    "PyObject_Vectorcall": "ptr (ptr, ptr, i64, ptr)",
    "PyTuple_New": "ptr (i64)",
    "PyUnicode_Compare": "i32 (ptr, ptr)",
    "Py_DecRef": "void (ptr)",
    "Py_IncRef": "void (ptr)",
}
# Offsets in objects of CPython's, checked before use: references (the lower half), type, length of a sequence or dict,
# items of a tuple, the pointer to those of a list, a dict's version, the instance size in a type, the bytes of `bytes`.
REFERENCES_AT = 0
TYPE_AT = 8
LENGTH_AT = 16
TUPLE_ITEMS_AT = tuple.__basicsize__  # from 3.14 on its hash stands before them
LIST_ITEMS_AT = 24
STAMP_AT = 24
BASICSIZE_AT = 32
# A compiled object keeps its dispatcher in its last word, or here: where depends on its class's bases.
FIRST_SLOT_AT = object.__basicsize__
# Where a dispatcher keeps its table, a bytes object with the table's address.
TABLE_AT = 16
