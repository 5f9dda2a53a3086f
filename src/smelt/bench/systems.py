"""Who is compared: every system as one record that turns a model into something callable, at its best settings.

A system's `prepare` takes the model, its arguments and a `Context`, and returns a `Ready`. What it can keep between
processes goes to `Context.cache_dir`, in the form that the system itself offers for that (see each `prepare`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import smelt
from smelt._torch.library import inductor
from smelt.bench import ctranslate2_models
from smelt.bench.models import Target, as_module, flatten
from smelt.diag.packages import not_installed
from smelt.diag.records import record

DTYPES: dict[str, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "mixed": torch.float32}
"""The dtype of the program by the name of the rows. `mixed`: the f32 program, run by systems that may compute its
products in bf16, each by its own switch; eager is f32 there."""

PRODUCTS: dict[str, torch.dtype] = {**DTYPES, "mixed": torch.bfloat16}
"""The dtype in which products may be computed, by the name of the rows."""

_ALL_BUT_MIXED = frozenset(DTYPES) - {"mixed"}

"""The name under which Smelt offers its compiler; a version without it benchmarks its peers only."""


@record
class Context:
    """Where and how a system runs: `threads`, the name of the dtype (a key of `DTYPES`), its own cache directory."""

    threads: int
    dtype: str
    cache_dir: Path


@record
class Ready:
    """A model prepared by a system: `call(*args)` runs it once, `outputs(call(*args))` gives its tensors.

    `keep` writes what the next process may reuse, where the system does not do that by itself and nothing was kept yet
    (a kept file may be mapped into memory by whoever read it: it is never written again). `facts` gives more about a
    step of training: `saved_mb` and `losses`, those of its first steps. own_threads: it computes in threads of its own
    while the caller waits, even with one.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    outputs: Callable[[Any], tuple[Tensor, ...]] = flatten
    keep: Callable[[], None] | None = None
    facts: Callable[[], dict[str, Any]] | None = None
    own_threads: bool = False


@record
class System:
    """`packages` must be installed (see `missing`); `modules` are imported before any clock starts.

    forget: drops global state. dtypes: the rows that it takes part in.
    """

    name: str
    summary: str
    prepare: Callable[[Target, tuple[Tensor, ...], Context], Ready]
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    forget: Callable[[], None] | None = None
    dtypes: frozenset[str] = _ALL_BUT_MIXED


def missing(packages: Sequence[str]) -> str:
    """What to say where some of `packages` are not installed, "" where all are.

    Packages of the extra `bench` are named by their modules; others with the version that fits (`name==version`).
    """
    return not_installed(packages, "bench")


def load_modules(chosen: Sequence[System]) -> None:
    """Import the modules of all `chosen` systems that are installed, in their order.

    zentorch comes last: it opens the symbols of PyTorch's libraries, MKL's among them, to all that is loaded later, and
    CTranslate2 would then compute with half of another MKL. What cannot be imported says so when it is prepared.
    """
    for system in chosen:
        if not missing(system.packages):
            with contextlib.suppress(Exception):
                for module in system.modules:
                    importlib.import_module(module)


def _versions(*packages: str) -> dict[str, str]:
    return {f"{p}_version": importlib.metadata.version(p) for p in packages}


def prepare_eager(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """PyTorch as it is."""
    return Ready(target, args, {"grad": False})


def prepare_autocast(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """PyTorch's own way to bf16 products: `torch.autocast`."""

    def call(*call_args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return target(*call_args)

    return Ready(call, args, {"grad": False, "autocast": "bf16"})


def prepare_jit(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """`torch.jit.trace`, then `freeze` for a module; kept as the saved archive. The profiling executor warms up."""
    path = context.cache_dir / "traced.pt"
    frozen = isinstance(target, torch.nn.Module)
    kept = path.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kept:
            traced = torch.jit.load(str(path))
        else:
            traced = torch.jit.trace(target, args, check_trace=False)
            traced = torch.jit.freeze(traced) if frozen else traced

    def keep() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(traced, str(path))

    return Ready(traced, args, {"capture": "torch.jit.trace", "frozen": frozen}, keep=None if kept else keep)


_FREEZING: dict[str, Any] = {"freezing": True}
_MAX_AUTOTUNE: dict[str, Any] = {"freezing": True, "max_autotune": True}


def prepare_inductor(target: Target, args: tuple[Tensor, ...], context: Context, options: dict[str, Any]) -> Ready:
    """`torch.compile(backend="inductor", dynamic=False)`; Inductor keeps its own caches in the cache directory."""
    compiled = inductor.compile_and_run(target, args, options, str(context.cache_dir))
    return Ready(compiled, args, {"options": options, "dynamic": False})


def export_onnx(target: Target, args: tuple[Tensor, ...], path: Path) -> str:
    """Write `target` as ONNX, weights beside it; says which exporter did it (the newer one first)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                as_module(target), args, str(path), dynamo=True, external_data=True, optimize=True, verbose=False
            )
            return "torch.onnx.export(dynamo=True)"
        except Exception as newer:
            try:
                torch.onnx.export(as_module(target), args, str(path), dynamo=False, opset_version=17)
            except Exception:
                raise newer from None
            return "torch.onnx.export(dynamo=False)"


def prepare_onnxruntime(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """ONNX Runtime's CPU provider, all graph optimisations; kept as its own optimised model file."""
    ort = importlib.import_module("onnxruntime")
    model, optimised = context.cache_dir / "model.onnx", context.cache_dir / "optimised.onnx"
    kept = optimised.exists()
    exporter = "cached file" if kept else export_onnx(target, args, model)

    def session(source: Path, save_to: Path | None = None) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = context.threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 4
        options.graph_optimization_level = (
            ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            if source == optimised
            else ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        )
        if save_to is not None:
            options.optimized_model_filepath = str(save_to)
        return ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])

    running = session(optimised if kept else model)
    feeds = {spec.name: a.numpy() for spec, a in zip(running.get_inputs(), args, strict=True)}
    settings = {
        "exporter": exporter, "optimisation": "ORT_ENABLE_ALL", "intra_op_threads": context.threads,
        "provider": "CPUExecutionProvider", **_versions("onnxruntime", "onnx"),
    }  # fmt: skip

    def keep() -> None:
        session(model, save_to=optimised)

    return Ready(running.run, (None, feeds), settings, _from_arrays, None if kept else keep)


def _from_arrays(arrays: Any) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(a) for a in arrays)


def _openvino_model(target: Target, args: tuple[Tensor, ...]) -> tuple[Any, str]:
    """An OpenVINO model with static shapes from `target`, and which of OpenVINO's two PyTorch front doors made it."""
    ov = importlib.import_module("openvino")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(as_module(target), args)
            return ov.convert_model(exported), "torch.export"
        except Exception as first:
            try:
                shapes = [list(a.shape) for a in args]
                return ov.convert_model(as_module(target), example_input=args, input=shapes), "torch.jit.trace"
            except Exception:
                raise first from None


_OPENVINO_HINTS = {"f32": "f32", "bf16": "bf16", "mixed": "bf16"}


def prepare_openvino(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """OpenVINO's CPU plugin, latency hint, precision pinned; kept as its IR and its own compiled-model cache."""
    ov = importlib.import_module("openvino")
    path = context.cache_dir / "model.xml"
    core = ov.Core()
    kept = path.exists()
    if kept:
        model, frontend = core.read_model(path), "cached file"
    else:
        model, frontend = _openvino_model(target, args)
    properties = {
        "INFERENCE_PRECISION_HINT": _OPENVINO_HINTS[context.dtype], "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": context.threads, "NUM_STREAMS": 1, "CACHE_DIR": str(context.cache_dir / "blobs"),
    }  # fmt: skip
    request = core.compile_model(model, "CPU", properties).create_infer_request()
    call = functools.partial(request.infer, share_inputs=True, share_outputs=True)
    inputs = [_openvino_tensor(a) for a in args]
    settings = {**properties, "CACHE_DIR": "(own)", "frontend": frontend, **_versions("openvino")}

    def outputs(result: Any) -> tuple[Tensor, ...]:
        return tuple(_from_openvino(tensor) for tensor in request.output_tensors)

    def keep() -> None:
        ov.save_model(model, path, compress_to_fp16=False)

    return Ready(call, (inputs,), settings, outputs, None if kept else keep)


def _openvino_tensor(tensor: Tensor) -> Any:
    """`tensor` as OpenVINO's, bf16 (which numpy lacks) through its bits."""
    ov = importlib.import_module("openvino")
    if tensor.dtype is torch.bfloat16:
        return ov.Tensor(tensor.view(torch.int16).numpy(), list(tensor.shape), ov.Type.bf16)
    return ov.Tensor(tensor.numpy())


def _from_openvino(tensor: Any) -> Tensor:
    """A copy of an OpenVINO tensor; its bf16 comes as another 16-bit type with the same bits."""
    if tensor.element_type.get_type_name() == "bf16":
        return torch.from_numpy(tensor.data.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(tensor.data.copy())


ZENTORCH, CTRANSLATE2 = "zentorch==2.13.0.2", "ctranslate2==4.8.5"
"""zentorch is built for one minor version of PyTorch: this one for 2.13. Neither comes with an extra of Smelt."""


def prepare_zentorch(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """`torch.compile(backend="zentorch", dynamic=False)` without gradients, weights frozen, as AMD advises.

    It runs on top of Inductor, and leaves a pass in its configuration: that is taken out again. It may pack weights in
    their own memory, after which the model gives other results in eager mode: it compiles a copy.
    """
    importlib.import_module("zentorch")
    own = copy.deepcopy(target) if isinstance(target, torch.nn.Module) else target
    compiled = inductor.compile_and_run(own, args, _FREEZING, str(context.cache_dir), "zentorch")
    return Ready(compiled, args, {"options": _FREEZING, "dynamic": False, **_versions("zentorch")})


def prepare_ctranslate2(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """CTranslate2 in float32, one worker with `context.threads` threads; kept as its converted model.

    Raises: NotImplementedError for a model that is not among its architectures.
    """
    loaded = ctranslate2_models.load(target, args, context.cache_dir / "converted", context.threads)
    settings = {
        "compute_type": "float32", "inter_threads": 1, "intra_threads": context.threads,
        "converter": "cached file" if loaded.kept else "TransformersConverter", **_versions("ctranslate2"),
    }  # fmt: skip
    return Ready(loaded.call, loaded.args, settings, loaded.outputs, own_threads=True)


def prepare_smelt(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """`smelt.compile` as a user calls it, in mixed rows with `dtype="bf16"`, else with its defaults.

    What is timed is a call of the compiled object, guards and all, and not the eager calls that the first ones are
    compared with; machine code is kept in the cache directory.
    """
    chosen = {"dtype": "bf16"} if context.dtype == "mixed" else {}
    options = {"cache_dir": str(context.cache_dir), "adaptive": False, **chosen}
    compiled = smelt.compile(target, options=options)
    return Ready(compiled, args, {"options": chosen or "defaults"})


def _inductor(name: str, summary: str, options: dict[str, Any]) -> System:
    return System(
        name,
        summary,
        functools.partial(prepare_inductor, options=options),
        modules=inductor.MODULES,
        forget=inductor.forget,
    )


def _registry() -> tuple[System, ...]:
    """All systems, eager first, and zentorch last (see `load_modules`)."""
    every = frozenset(DTYPES)
    ours = (System("smelt", "smelt.compile, defaults", prepare_smelt, dtypes=every),)
    return (
        System("eager", "unmodified PyTorch; every ratio is to it", prepare_eager, dtypes=every),
        *ours,
        System("autocast", "torch.autocast to bf16 (mixed rows only)", prepare_autocast, dtypes=frozenset({"mixed"})),
        System("jit", "TorchScript: torch.jit.trace, frozen", prepare_jit),
        _inductor("inductor", "torch.compile, defaults", {}),
        _inductor("inductor-freezing", "torch.compile with frozen, pre-packed weights", _FREEZING),
        _inductor("inductor-max", "torch.compile, frozen and max-autotuned", _MAX_AUTOTUNE),
        System(
            "onnxruntime",
            "ONNX Runtime, all graph optimisations",
            prepare_onnxruntime,
            packages=("onnxruntime", "onnx", "onnxscript"),
            modules=("onnxruntime", "onnx", "onnxscript", "torch.onnx"),
        ),
        System(
            "openvino",
            "OpenVINO, latency hint, precision pinned",
            prepare_openvino,
            packages=("openvino",),
            modules=("openvino", "torch.export"),
            dtypes=every,
        ),
        System(
            "ctranslate2",
            "CTranslate2 (the architectures that it has)",
            prepare_ctranslate2,
            packages=(CTRANSLATE2,),
            modules=("ctranslate2", "ctranslate2.converters"),
            dtypes=frozenset({"f32"}),
        ),
        System(
            "zentorch",
            "torch.compile with AMD's backend, frozen weights",
            prepare_zentorch,
            packages=(ZENTORCH,),
            modules=(*inductor.MODULES, "zentorch"),
            forget=inductor.forget,
        ),
    )


def systems() -> tuple[System, ...]:
    """Every known system in the order of the report. Read at call time: `smelt` is only complete once imported."""
    return _registry()
