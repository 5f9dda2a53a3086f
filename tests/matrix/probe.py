"""Which of the ways into torch and the interpreter stand open here: one line of JSON, for the report.

python -m tests.matrix.probe      {"torch": "2.14.1", "python": "3.11.7", "native_entry": true, "fallbacks": [...]}
"""

from __future__ import annotations

import json
import platform
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402

import smelt  # noqa: E402
from smelt._torch import state_native, tensor_layout  # noqa: E402
from smelt._torch.library import shim, stable  # noqa: E402
from smelt._torch.seen import dispatch, handles, light_fake, module_call, staged_fakes  # noqa: E402
from smelt.compiler.object.compiled import dispatcher_of  # noqa: E402
from smelt.runtime.guarding import guard_versions  # noqa: E402


def has_native_entry() -> bool:
    """Whether the second call of a compiled module is served without Python."""
    compiled = smelt.compile(torch.nn.Linear(4, 4).eval())
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.ones(2, 4))
    return dispatcher_of(compiled)._table.rows[0].native is not None


def fallbacks() -> list[str]:
    """The second best ways that are taken."""
    bridge = handles.bridge()
    best = {
        "operators are recorded below autograd": dispatch.levels()[0] == "entry",
        "tensors cross into C by a private function": shim.has(handles.FROM) and shim.has(handles.TO),
        "tensors cross into C by a copy": bridge is not None and not bridge.copies,
        "operators without a C function of their own are called through Python": shim.has(stable.NEW_CELL),
        "errors of C functions have no text": shim.has("torch_exception_get_what_without_backtrace"),
        "tensors are not read in memory": tensor_layout.tensor_layout() is not None,
        "no stamps of dictionaries": guard_versions.HAVE_STAMPS,
        "no stamps of objects' dictionaries": guard_versions.HAVE_OBJECT_STAMPS or not guard_versions.HAVE_STAMPS,
        "objects are not read in memory": bool(guard_versions.class_offsets()),
        "the thread's keys are asked one by one": state_native._thread_keys() is not None,
        "the matmul precision is asked of Python": state_native._precision_address() is not None,
        "fake tensors import torch's compiler": staged_fakes.FakeTensorMode is not None
        and light_fake._light_classes(staged_fakes.FakeTensorMode) is not None,
        "modules are called by another forward of their own": module_call.call_with_forward() is not None,
    }
    return [what for what, is_best in best.items() if not is_best]


def main() -> None:
    told = {
        "torch": str(torch.__version__), "python": platform.python_version(), "native_entry": has_native_entry(),
        "fallbacks": fallbacks(),
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main()
