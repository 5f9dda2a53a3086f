"""The configurations of the matrix: compilers with their options, each as one record that makes a program callable."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import smelt
from smelt._torch.library import inductor
from smelt.bench.matrix.program import rows_of
from smelt.bench.models import Target, as_module
from smelt.bench.systems import (
    Context,
    Ready,
    missing,
    prepare_eager,
    prepare_jit,
    prepare_onnxruntime,
    prepare_openvino,
)
from smelt.diag.records import record

EAGER = "eager"


@record
class Configuration:
    """One configuration. how: what a user writes. trains: whether gradients can flow through what it makes.

    exact: computes in the dtypes of the program. builds: how often it has compiled so far, if it tells; else None.
    sized: a call with other sizes is possible without a new export.
    """

    name: str
    how: str
    prepare: Callable[[Target, tuple[Tensor, ...], Context], Ready]
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    trains: bool = True
    exact: bool = True
    sized: bool = True
    builds: Callable[[Ready], int | None] = lambda ready: None


def _script(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """`torch.jit.script`, frozen if it is a module in evaluation mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(target)
        frozen = isinstance(target, torch.nn.Module) and not target.training
        return Ready(torch.jit.freeze(scripted) if frozen else scripted, args, {"frozen": frozen})


def _trace(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """`torch.jit.trace`, with its parameters as attributes, as training needs them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Ready(torch.jit.trace(target, args, check_trace=False), args)


def _torch_compile(
    target: Target, args: tuple[Tensor, ...], context: Context, how: Mapping[str, Any], config: Mapping[str, Any]
) -> Ready:
    inductor.set_config(config)
    inductor.use_cache(str(context.cache_dir))
    return Ready(torch.compile(target, **how), args)


def _smelt(target: Target, args: tuple[Tensor, ...], context: Context, options: Mapping[str, Any]) -> Ready:
    return Ready(smelt.compile(target, options={"cache_dir": str(context.cache_dir), **options}), args)


def _smelt_builds(ready: Ready) -> int | None:
    stats: int = ready.call.stats().builds  # type: ignore[attr-defined]
    return stats


def _dynamo_builds(ready: Ready) -> int | None:
    return inductor.graphs_made()


def _dynamic_onnxruntime(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """Exported with a free number of rows."""
    ort = importlib.import_module("onnxruntime")
    path = context.cache_dir / "dynamic.onnx"
    if not path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                as_module(target), args, str(path), dynamo=True, external_data=True, optimize=True, verbose=False,
                dynamic_shapes=_free_rows(as_module(target), args),
            )  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = context.threads, 1, 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in session.get_inputs()]

    def call(*given: Tensor) -> Any:
        return session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)})

    return Ready(call, args, {}, lambda arrays: tuple(torch.from_numpy(array) for array in arrays))


def _free_rows(module: torch.nn.Module, args: tuple[Tensor, ...]) -> dict[str, Any]:
    """By parameter of `forward`: the first dimension of all that have as many rows as the first argument."""
    rows = rows_of(args)
    bound = inspect.signature(module.forward).bind(*args)

    def free(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(free(item) for item in value)
        return {0: torch.export.Dim.DYNAMIC} if value.ndim and value.shape[0] == rows else {}

    return {name: free(value) for name, value in bound.arguments.items()}


def _torch_compiled(
    name: str, how: Mapping[str, Any], config: Mapping[str, Any] | None = None, **more: Any
) -> Configuration:
    given = ", ".join(f"{key}={value!r}" for key, value in how.items())
    told = f"torch.compile({given})" + "".join(f", inductor.config.{k} = {v}" for k, v in (config or {}).items())
    prepare = functools.partial(_torch_compile, how=how, config=config or {})
    return Configuration(name, told, prepare, modules=inductor.MODULES, builds=_dynamo_builds, **more)


def _smelts(name: str, options: Mapping[str, Any], **more: Any) -> Configuration:
    """Measured is what Smelt compiles, not eager in its place, unless `adaptive`, the default, is what is measured."""
    chosen = {"adaptive": False, **options}
    told = ", ".join(f"{key!r}: {value!r}" for key, value in chosen.items())
    how = "smelt.compile(f)" if chosen == {"adaptive": True} else f"smelt.compile(f, options={{{told}}})"
    prepare = functools.partial(_smelt, options=chosen)
    return Configuration(name, how, prepare, builds=_smelt_builds, **more)


_ONNX = ("onnxruntime", "onnx", "onnxscript")
_FREEZING = {"freezing": True}

CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(EAGER, "unmodified PyTorch", prepare_eager),
    _smelts("smelt", {}),
    _smelts("smelt-adaptive", {"adaptive": True}),
    _smelts("smelt-deterministic", {"deterministic": True}),
    _smelts("smelt-bf16", {"dtype": "bf16"}, exact=False),
    _smelts("smelt-release", {"release_originals": True}, trains=False),
    _torch_compiled("compile", {}),
    _torch_compiled("compile-static", {"dynamic": False}),
    _torch_compiled("compile-dynamic", {"dynamic": True}),
    _torch_compiled("compile-reduce-overhead", {"mode": "reduce-overhead"}),
    _torch_compiled("compile-max-autotune", {"mode": "max-autotune"}),
    _torch_compiled("compile-freezing", {}, _FREEZING, trains=False),
    _torch_compiled("compile-freezing-autotune", {"mode": "max-autotune"}, _FREEZING, trains=False),
    _torch_compiled("compile-cpp-wrapper", {}, {"cpp_wrapper": True}),
    _torch_compiled("compile-aot-eager", {"backend": "aot_eager"}),
    _torch_compiled("compile-smelt", {"backend": "smelt"}),
    _torch_compiled("compile-openvino", {"backend": "openvino"}, packages=("openvino",), trains=False),
    Configuration("jit-trace", "torch.jit.trace", _trace),
    Configuration("jit-trace-frozen", "torch.jit.freeze(torch.jit.trace)", prepare_jit, trains=False),
    Configuration("jit-script", "torch.jit.freeze(torch.jit.script)", _script),
    Configuration(
        "onnxruntime", "ONNX Runtime, all optimisations, fixed sizes", prepare_onnxruntime, _ONNX,
        (*_ONNX, "torch.onnx"), trains=False, sized=False,
    ),
    Configuration(
        "onnxruntime-dynamic", "ONNX Runtime, exported with free rows", _dynamic_onnxruntime, _ONNX,
        (*_ONNX, "torch.onnx"), trains=False,
    ),
    Configuration(
        "openvino", "OpenVINO, latency hint, f32, fixed sizes", prepare_openvino, ("openvino",),
        ("openvino", "torch.export"), trains=False, sized=False,
    ),
)  # fmt: skip
"""All of them, eager first."""


def absent(configuration: Configuration) -> str:
    """What of a configuration's packages is not installed, "" if nothing."""
    return missing(configuration.packages)
