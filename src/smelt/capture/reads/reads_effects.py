"""Calls that make a replay dishonest: clocks, random numbers, files, the environment, global generators.

Invariant: deciding costs nothing for a call whose name is not suspect; a suspect name is judged by its module or by the
type it is bound to, never by the name alone.
"""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import os
import sysconfig
from collections import OrderedDict
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from smelt._torch.settings import builtin
from smelt.diag import Span

_TORCH_DIR = os.path.dirname(torch.__file__) + os.sep
_SMELT_DIR = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
# The programs that these packages bring along are compiled like anyone's.
_DOORS = os.path.join("compiler", "doors", "programs")
PROGRAM_DIRS = tuple(os.path.join(_SMELT_DIR, name, "") for name in ("bench", "cli", _DOORS))
_STDLIB_DIR = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_CACHES_FILE = _STDLIB_DIR + "functools.py"  # takes a cached property's value from there, and puts it there
_CLASSIFY_LIMIT = 4096
ENVIRONMENT = "uses the environment"
DRAWS = "draws random numbers"
LOGGING = "logs a message"
SETS_LOGGING = "changes what is logged"
LOOKS = "looks at files"
PRINTS = "prints"
WARNS = "warns"
SHOWS_WARNING = "shows a warning"
LOCKS = "takes a lock"
DEBUGS = "stops in the debugger"
_OPENS, _USES_FILE, _CHANGES_FILES, _RUNS = "opens a file", "uses a file", "changes files", "runs a command"
_CONNECTS, _ASKS, _SLEEPS, _STARTS = "uses the network", "reads from the terminal", "sleeps", "starts a thread"
_FORKS, _SETS = "forks the process", "changes the environment"
_SETS_PROCESS, _AT_EXIT = "changes a setting of the process", "leaves something to be done at the end"
OUTSIDE = frozenset((
    _OPENS, _USES_FILE, _CHANGES_FILES, _RUNS, _CONNECTS, _ASKS, _SLEEPS, _STARTS, _FORKS, _SETS, _SETS_PROCESS,
    _AT_EXIT,
))  # fmt: skip
"""What is done outside of this process, or cannot be taken back in it."""


@lru_cache(maxsize=_CLASSIFY_LIMIT)
def file_kind(filename: str) -> str:
    """Whose source a file is: "torch", "smelt", "import" (the import machinery), "stdlib" or "user"."""
    if filename.startswith("<frozen"):
        return "import" if "importlib" in filename else "stdlib"
    if filename.startswith(_TORCH_DIR):
        return "torch"
    if filename.startswith(_SMELT_DIR) and not filename.startswith(PROGRAM_DIRS):
        return "smelt"
    if filename.startswith(_STDLIB_DIR) and not any(part in filename for part in _PACKAGES):
        return "stdlib"
    return "user"


def is_builtin_module(module: ModuleType) -> bool:
    """Whether the interpreter itself brings a module, as `sys`: it holds streams and all modules beside functions."""
    return getattr(getattr(module, "__spec__", None), "origin", None) in ("built-in", "frozen")


def reads_all(name: str, filename: str) -> bool:
    """Whether code of this file that asks an object for its own attribute of this name may read, or change, any of
    them by it: its `__dict__`, and what copies and pickles are made with.
    """
    if name in ("__reduce_ex__", "__reduce__", "__getstate__"):
        return True
    return name == "__dict__" and file_kind(filename) in ("user", "stdlib") and filename != _CACHES_FILE


# Builtins by (module, name) ...
_FUNCTIONS: dict[tuple[str, str], str] = {
    **{("time", n): "reads the clock" for n in (
        "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "localtime",
        "gmtime", "strftime", "ctime", "thread_time",
    )},
    ("time", "sleep"): _SLEEPS,
    ("builtins", "print"): PRINTS,
    ("_warnings", "warn"): WARNS,
    ("builtins", "input"): _ASKS,
    ("builtins", "breakpoint"): DEBUGS,
    ("builtins", "globals"): "reads globals by computed name",
    ("builtins", "eval"): "evaluates text",
    ("builtins", "exec"): "executes text",
    ("_io", "open"): _OPENS,
    ("io", "open"): _OPENS,
    ("_sqlite3", "connect"): _OPENS,
    ("sqlite3", "connect"): _OPENS,
    ("posix", "urandom"): DRAWS,
    ("nt", "urandom"): DRAWS,
    ("posix", "open"): _OPENS,
    **{("posix", name): _USES_FILE for name in ("write", "pwrite", "writev", "sendfile", "read", "pread")},
    **{(module, name): LOOKS for module in ("posix", "nt") for name in (
        "stat", "lstat", "listdir", "scandir", "access", "getcwd", "readlink",
    )},
    **{(module, name): _CHANGES_FILES for module in ("posix", "nt") for name in (
        "remove", "unlink", "rename", "replace", "mkdir", "rmdir", "chdir", "truncate", "ftruncate", "link", "symlink",
        "chmod", "chown", "utime", "mkfifo",
    )},
    **{("gc", name): "reads the garbage collector's state" for name in (
        "get_objects", "get_referrers", "get_referents", "get_count", "get_stats",
    )},
    **{("posix", name): _RUNS for name in (
        "system", "posix_spawn", "posix_spawnp", "execv", "execve", "kill", "killpg",
    )},
    ("_posixsubprocess", "fork_exec"): _RUNS,
    ("posix", "putenv"): _SETS,
    ("posix", "unsetenv"): _SETS,
    ("posix", "fork"): _FORKS,
    **{(module, name): _SETS_PROCESS for module, names in {
        "sys": ("setrecursionlimit", "setswitchinterval", "set_int_max_str_digits", "set_asyncgen_hooks",
                "set_coroutine_origin_tracking_depth", "setdlopenflags", "addaudithook"),
        "gc": ("enable", "disable", "set_threshold", "set_debug", "freeze", "unfreeze"),
        "posix": ("umask", "nice", "setpriority", "sched_setaffinity", "sched_setscheduler"),
        "_signal": ("signal", "setitimer", "alarm", "siginterrupt", "set_wakeup_fd", "pthread_sigmask"),
        "_socket": ("setdefaulttimeout", "sethostname"),
        "faulthandler": ("enable", "disable", "register", "unregister", "dump_traceback_later"),
        "_locale": ("setlocale",), "time": ("tzset",), "_thread": ("stack_size",), "resource": ("setrlimit",),
        "_abc": ("_abc_register",), "torch": ("set_flush_denormal", "set_num_threads", "set_num_interop_threads"),
    }.items() for name in names},
    **{("atexit", name): _AT_EXIT for name in ("register", "unregister")},
    ("_thread", "start_new_thread"): _STARTS,
    ("_thread", "start_joinable_thread"): _STARTS,
}  # fmt: skip
# ... and bound builtins by the module of the type they are bound to: (prefix, names or None for all).
_OWNERS: tuple[tuple[str, frozenset[str] | None, str], ...] = (
    ("random", None, DRAWS),
    ("_random", None, DRAWS),
    ("numpy.random", None, DRAWS),
    (
        "_io",
        frozenset(
            {
                "write",
                "writelines",
                "read",
                "readline",
                "readlines",
                "readinto",
                "getvalue",
                "getbuffer",
                "seek",
                "tell",
            }
        ),
        _USES_FILE,
    ),
    ("sqlite3", frozenset({"execute", "executemany", "executescript", "commit", "rollback"}), _USES_FILE),
    ("_socket", frozenset({"connect", "connect_ex", "bind", "send", "sendall", "sendto", "sendmsg"}), _CONNECTS),
    (
        "torch._C",
        frozenset({"manual_seed", "seed", "initial_seed", "get_state", "set_state", "set_offset", "clone_state"}),
        "uses a random generator's state",
    ),
)
_CLOCK_METHODS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}
_RANDOM_METHODS = frozenset({
    "random", "getrandbits", "uniform", "normal", "standard_normal", "integers", "choice", "rand", "randn", "randint",
    "random_sample", "permutation", "shuffle", "seed", "getstate", "setstate",
})  # fmt: skip
# What asks for a setting of torch's under which another call may run; those through a function of torch's Python.
_SETTINGS = {
    "is_grad_enabled": "is_grad_enabled",
    "is_inference_mode_enabled": "is_inference_mode_enabled",
    "get_num_threads": "get_num_threads",
    "_get_deterministic_algorithms": "are_deterministic_algorithms_enabled",
    "_get_float32_matmul_precision": "get_float32_matmul_precision",
}
MODES_ASKED: Final = ("torch.is_grad_enabled()", "torch.is_inference_mode_enabled()")
_FX_CODE = "<eval_with_key>"  # generated by torch.fx, which asks to put back what it sets
SUSPECT_NAMES = frozenset(
    {name for _, name in _FUNCTIONS}
    | {name for _, names, _ in _OWNERS for name in names or ()}
    | {name for _, name in _CLOCK_METHODS}
    | _RANDOM_METHODS
    | {"get", "set", "reset"}  # of context variables
    | {"add_note"}  # of errors
    | set(_SETTINGS)
)


def asked_setting(function: Any, frame: FrameType) -> tuple[str, FrameType] | None:
    """The setting of torch's that the program itself asks for in calling this builtin, as text, and the frame."""
    name = _SETTINGS.get(function.__name__)
    if name is None or function not in (getattr(torch, name, None), builtin(function.__name__)):
        return None
    if frame.f_code.co_name == name and frame.f_back is not None and file_kind(frame.f_code.co_filename) == "torch":
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file_kind(file) != "user" or file.startswith(_FX_CODE):
        return None
    return f"torch.{name}() was {function()}", frame


_HARMLESS_OWNERS = frozenset({dict, list, str, OrderedDict, torch.Tensor})


def builtin_effect(function: Any) -> str | None:
    """What calling this builtin does that a replay would not, or None."""
    name = function.__name__
    owner = getattr(function, "__self__", None)
    if type(owner) in _HARMLESS_OWNERS:
        return None
    if owner is None or isinstance(owner, ModuleType):
        return _FUNCTIONS.get((str(getattr(function, "__module__", "")), name))
    kind = owner if isinstance(owner, type) else type(owner)
    if kind in (io.StringIO, io.BytesIO):
        return "uses a buffer" if name in SUSPECT_NAMES else None
    if (kind.__name__, name) in _CLOCK_METHODS and kind.__module__ == "datetime":
        return "reads the clock"
    if kind.__module__ == "torch._C" and kind is not torch.Generator:
        return None
    for module, names, what in _OWNERS:
        if kind.__module__.split(".")[: module.count(".") + 1] == module.split(".") and (
            names is None or name in names
        ):
            return what
    return None


def is_registered(handle: RemovableHandle) -> bool:
    """Whether a hook is still where it was registered. It is there by a number that no other one gets, ever."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks


def shows_warning(frame: FrameType) -> bool:
    """Whether this frame is Python's own, and writes what `warnings.warn` gave."""
    caller = frame.f_back
    return (
        frame.f_code.co_name == "_showwarnmsg_impl"
        and frame.f_globals.get("__name__") in ("warnings", "_py_warnings")
        and caller is not None
        and caller.f_code.co_name == "_showwarnmsg"
    )


_LOGGING_FILE = os.path.join(_STDLIB_DIR, "logging", "__init__.py")
_SETS_LOGGERS = frozenset({  # by qualified name: what asks has the same names
    "Logger.setLevel", "Handler.setLevel", "Handler.setFormatter", "Logger.addHandler", "Logger.removeHandler",
    "Filterer.addFilter", "Filterer.removeFilter", "disable", "basicConfig", "addLevelName", "captureWarnings",
    "setLoggerClass", "setLogRecordFactory",
})  # fmt: skip
# Python functions of the standard library and of torch, by the path of their file: (names or None for all, what).
_PYTHON: tuple[tuple[str, frozenset[str] | None, str], ...] = (
    (_STDLIB_DIR + "random.py", None, DRAWS),
    (_STDLIB_DIR + "secrets.py", None, DRAWS),
    (_STDLIB_DIR + "uuid.py", frozenset({"uuid1", "uuid4"}), DRAWS),
    (
        _STDLIB_DIR + "os.py",
        frozenset({"__getitem__", "__setitem__", "__delitem__", "__iter__"}),
        ENVIRONMENT,
    ),
    (_STDLIB_DIR + "subprocess.py", frozenset({"__init__", "run"}), _RUNS),
    (_STDLIB_DIR + "socket.py", None, _CONNECTS),
    (_TORCH_DIR + "serialization.py", frozenset({"save", "load"}), _USES_FILE),
    (_LOGGING_FILE, frozenset({"_log"}), LOGGING),
    (_TORCH_DIR + "random.py", None, "uses the random generator's state"),
)
_PYTHON_FILES = {path: (names, what) for path, names, what in _PYTHON}
_PYTHON_FILES["<frozen os>"] = _PYTHON_FILES[_STDLIB_DIR + "os.py"]  # some interpreters carry it inside
# How the standard library's loggers find out whether a message is wanted.
LEVEL_CODES: Final = frozenset({logging.Logger.isEnabledFor.__code__, logging.Logger.getEffectiveLevel.__code__})
STATIC_CODE: Final = inspect.getattr_static.__code__
IMPORT_CODE: Final = importlib.import_module.__code__
HOOKS_CODE: Final = RemovableHandle.__init__.__code__
# A library may look at these for its own sake; they count only when the program itself asks.
_ONLY_FROM_USER = frozenset({ENVIRONMENT, LOOKS, "reads the clock"})
# The standard library looks at files for the program in these, elsewhere (source lines of a warning) for itself.
_FILE_HELPERS = (
    *(os.path.join(_STDLIB_DIR, name) for name in (
        "posixpath.py", "ntpath.py", "genericpath.py", "os.py", "pathlib", "glob.py", "shutil.py", "filecmp.py",
    )),
    "<frozen os>", "<frozen posixpath>", "<frozen ntpath>", "<frozen genericpath>",
)  # fmt: skip


def code_effect(code: CodeType) -> str | None:
    """What running this Python function does that a replay would not, or None."""
    entry = _PYTHON_FILES.get(code.co_filename)
    if entry is None or code.co_name.startswith("<"):
        return None
    names, what = entry
    if what == LOGGING and code.co_qualname in _SETS_LOGGERS:
        return SETS_LOGGING
    return what if names is None or code.co_name in names else None


CALLED_BY_TORCH: set[int] = set()
"""The ids of code that torch's compiler calls. What it made of the user's functions goes away with their code: of the
frames above, a copy of the code is kept."""


def user_site(frame: FrameType | None, what: str = "") -> tuple[CodeType, int] | None:
    """The nearest frame of the user's own code at or above `frame`, as (code, offset of the instruction).

    None if there is none, or, for what libraries may do on their own account, if torch did it.
    """
    is_torchs = False
    while frame is not None:
        kind = file_kind(frame.f_code.co_filename)
        if kind == "user":
            return (frame.f_code.replace() if is_torchs else frame.f_code), frame.f_lasti
        is_torchs = is_torchs or id(frame.f_code) in CALLED_BY_TORCH
        if kind == "torch" and what in _ONLY_FROM_USER:
            return None
        if kind == "stdlib" and what == LOOKS and not frame.f_code.co_filename.startswith(_FILE_HELPERS):
            return None
        frame = frame.f_back
    return None


# What these do to files and streams is not the program's: lines of sources for a warning, a log.
_OWN_ACCOUNT = tuple(_STDLIB_DIR + name for name in (
    "linecache.py", "warnings.py", "traceback.py", os.path.join("logging", ""), "inspect.py",
))  # fmt: skip


def acting_site(frame: FrameType | None, boundary: FrameType | None) -> tuple[CodeType, int] | None:
    """Where in the user's own code something is done outside, as (code, offset of the instruction); None where the
    interpreter does it on its own account: imports, sources, logs. boundary: the frame in which the program runs.
    """
    found: tuple[CodeType, int] | None = None
    while frame is not None and frame is not boundary:
        kind = file_kind(frame.f_code.co_filename)
        if kind == "import" or (kind == "stdlib" and frame.f_code.co_filename.startswith(_OWN_ACCOUNT)):
            return None
        if kind == "user" and found is None:
            found = frame.f_code, frame.f_lasti
        frame = frame.f_back
    return found


# Functions of torch that only hand on to the user's: a call goes through them as through the user's own.
_THROUGH = tuple(_TORCH_DIR + os.path.join(*parts) for parts in (
    ("nn", "modules", "container.py"), ("utils", "_contextlib.py"), ("amp", "autocast_mode.py"),
))  # fmt: skip


def hands_on(code: CodeType) -> bool:
    """Whether a function of torch's does nothing of its own but call the user's."""
    return code.co_filename.startswith(_THROUGH)


Callers = dict[tuple[str, str], Span]
"""By file and qualified name of a function: the line that called it."""


def note_callers(frame: FrameType, boundary: FrameType | None, callers: Callers) -> None:
    """Note who called the function of a frame, and so on upwards to what is known; the first caller counts."""
    code, above = frame.f_code, frame.f_back
    while above is not None and above is not boundary:
        outer = above.f_code
        kind = file_kind(outer.co_filename)
        if kind == "user" or (kind == "torch" and hands_on(outer)):
            key = (code.co_filename, code.co_qualname)
            if key in callers:
                return
            callers[key] = Span(outer.co_filename, above.f_lineno, outer.co_qualname)
            code = outer
        above = above.f_back


def is_by_recorder(frame: FrameType | None) -> bool:
    """Whether the call was made by Smelt itself (a recorder that runs beside this one), not by the program."""
    while frame is not None and file_kind(frame.f_code.co_filename) == "stdlib":
        frame = frame.f_back
    return frame is not None and file_kind(frame.f_code.co_filename) == "smelt"
