"""What stands as a module's `forward` after a module step: something around the module's own forward.

    module.forward = Checkpointed(module, inner)        module(x) ─▶ hooks ─▶ Checkpointed ─▶ inner, or the class's own

Invariant: the module stays of its class, with its keys, hooks and attributes; copies and pickles go with their module.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from smelt.capture.recording.detector import SAVES_AS_EVER
from smelt.diag import ScheduleError
from smelt.scheduling.comparing.compare import items
from smelt.scheduling.comparing.compare_runs import in_check, in_search
from smelt.scheduling.comparing.nested import mapped
from smelt.scheduling.modules.islands import Region, surrounding_region

_Inner = Callable[..., Any]
_Given = tuple[tuple[Any, ...], dict[str, Any]]
_FIXED = (torch.Tensor, type(None), bool, int, float, complex, str, torch.dtype, torch.device)
_SHORT = 1 << 16


class Around:
    """Base: runs a module's forward in its own way. inner: a forward of the instance that stood there before.

    surrounds: whether steps on the module's graph go inside, as they would lose what this one does.
    """

    what: ClassVar[str] = ""
    surrounds: ClassVar[bool] = False

    def __init__(self, module: torch.nn.Module, inner: _Inner | None = None) -> None:
        self.module, self.inner = module, inner

    @property
    def original(self) -> _Inner:
        """The forward that this one stands around."""
        return self.inner if self.inner is not None else types.MethodType(type(self.module).forward, self.module)

    @property
    def __wrapped__(self) -> _Inner:
        return self.original

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.original)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)


def surround(module: torch.nn.Module, make: Callable[[torch.nn.Module, _Inner | None], Around], path: str) -> None:
    """Let a module's calls go through another forward. Raises: ScheduleError (S0607) where it has none to call."""
    if type(module).forward is torch.nn.Module.forward and "forward" not in module.__dict__:
        raise ScheduleError(
            f"{path or 'the whole'} is never called", why=f"{type(module).__name__} has no forward",
            fix=f"select what it holds: s[{(path + '.*').lstrip('.')!r}]", code="S0607",
        )  # fmt: skip
    module.__dict__["forward"] = make(module, module.__dict__.get("forward"))


def arounds(module: torch.nn.Module) -> Iterator[Around]:
    """What stands around a module's forward by such steps, the outermost first."""
    found = module.__dict__.get("forward")
    while found is not None:
        if isinstance(found, Around):
            yield found
        found = getattr(found, "inner", None)


def surroundings(module: torch.nn.Module) -> Around | None:
    """The innermost of what only surrounds a module's forward: steps on its graph stand as the `inner` of that."""
    holder, found = None, module.__dict__.get("forward")
    while isinstance(found, Around) and found.surrounds:
        holder, found = found, found.inner
    return holder


class Checkpointed(Around):
    """Keeps the arguments only, and computes the module again in backward, with the same random numbers.

    What the second run does to buffers is taken back: running statistics count a batch once. It gets objects as they
    were before the first run (a cache of keys and values without those of this call), and what it does to them is lost.
    """

    what = "checkpoint"
    surrounds = True

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        versions = {buffer: buffer._version for buffer in self.module.buffers()}
        before = _frozen((args, kwargs))
        region = surrounding_region()
        runs = 0

        def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            nonlocal runs
            runs += 1
            if runs > 1 and before is not None:
                args, kwargs = _frozen(before) or before
            return self.original(*args, **kwargs)

        def contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
            return contextlib.nullcontext(), _again(region, versions)

        setattr(contexts, SAVES_AS_EVER, True)
        # Keywords go in one argument: some of the model's may be called as those of checkpoint are.
        return checkpoint(run, args, kwargs, use_reentrant=False, context_fn=contexts)


def _frozen(arguments: _Given) -> _Given | None:
    """Arguments over the same tensors that no call sees the changes of; None where nothing in them can change.

    Also where they cannot be copied: then a second run gets the very objects.
    """
    args, kwargs = arguments
    given = [*args, *kwargs.values()]
    if all(isinstance(value, _FIXED) for value in given):
        return None
    memo = {id(item.value): item.value for item in items(given, "") if isinstance(item.value, torch.Tensor)}
    memo.update({id(value): value for value in given if isinstance(value, torch.nn.Module)})
    try:
        return copy.deepcopy((args, kwargs), memo)
    except Exception:  # whatever the classes of the arguments raise
        return None


@contextlib.contextmanager
def _again(region: Region, versions: Mapping[torch.Tensor, int]) -> Iterator[None]:
    """What surrounds the second run: the first one's region, which torch's own checkpoint does not know of."""
    with region(), _kept(versions):
        yield


@contextlib.contextmanager
def _kept(versions: Mapping[torch.Tensor, int]) -> Iterator[None]:
    """Leave buffers as they are: those that the first run wrote, which had these versions before it."""
    # A norm writes its statistics without a new version; they are short.
    written = [buffer for buffer, old in versions.items() if buffer._version != old or buffer.numel() <= _SHORT]
    before = [buffer.detach().clone() for buffer in written]
    try:
        yield
    finally:
        for buffer, value in zip(written, before, strict=True):
            # Not a write that autograd counts: the value is the one it knows.
            buffer.data.copy_(value)


class ForkedRandom(Around):
    """Runs the module on random numbers of its own: one number drawn outside is their seed."""

    what = "fork_rng"
    surrounds = True

    def __init__(self, module: torch.nn.Module, inner: _Inner | None = None, offset: int = 0) -> None:
        super().__init__(module, inner)
        self.offset = offset

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if in_search.get():
            return self.original(*args, **kwargs)
        before = torch.get_rng_state()
        seed = int(torch.randint(1 << 62, (), dtype=torch.int64)) + self.offset
        devices = sorted({p.device.index for p in self.module.parameters() if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(seed)
            fresh = torch.get_rng_state()
            found = self.original(*args, **kwargs)
            drew = bool(devices) or not torch.equal(torch.get_rng_state(), fresh)
        if not drew:
            torch.set_rng_state(before)
        return found


class Printed(Around):
    """Prints what the module is given, or what it gives."""

    what = "print_at"
    surrounds = True

    def __init__(self, module: torch.nn.Module, inner: _Inner | None, path: str, which: str, values: bool) -> None:
        super().__init__(module, inner)
        self.path, self.which, self.values = path, which, values

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self.which == "input":
            self._show({**dict(enumerate(args)), **kwargs})
        found = self.original(*args, **kwargs)
        if self.which == "output":
            self._show(found)
        return found

    def _show(self, value: Any) -> None:
        if in_check.get() or in_search.get():
            return
        for item in items(value, f"{self.path or 'the whole'}: {self.which}"):
            if isinstance(item.value, torch.Tensor):
                print(item.path, described(item.value.detach()), *([item.value] if self.values else []))
            elif not item.is_structure:
                print(item.path, repr(item.value))


def described(tensor: torch.Tensor) -> str:
    """A tensor in one line: dtype, sizes, least, mean and largest value."""
    text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if tensor.numel() == 0 or tensor.is_complex():
        return text
    low, high = (float(v) for v in torch.aminmax(tensor.float() if tensor.dtype != torch.float64 else tensor))
    return f"{text} min {low:.4g} mean {float(tensor.double().mean()):.4g} max {high:.4g}"


class SeparateBias(Around):
    """A linear layer as a product and an addition."""

    what = "decompose"

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        product = functional.linear(input, self.module.weight)
        return product + self.module.bias.to(product.dtype)


class ChannelsLast(Around):
    """Runs the module on images that lie in memory channel by channel, and gives back what lies as always."""

    what = "layout"

    def __init__(self, module: torch.nn.Module, inner: _Inner | None, format: str) -> None:
        super().__init__(module, inner)
        self.format = format

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        args = tuple(self._inside(arg) for arg in args)
        found = self.original(*args, **{name: self._inside(arg) for name, arg in kwargs.items()})
        return mapped(found, self._outside)

    def _inside(self, value: Any) -> Any:
        return mapped(value, lambda t: t.contiguous(memory_format=FORMATS[self.format][0]) if self._fits(t) else t)

    def _outside(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._fits(tensor) and tensor.is_contiguous(memory_format=FORMATS[self.format][0]):
            return tensor.contiguous()
        return tensor

    def _fits(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() == FORMATS[self.format][1] and tensor.layout is torch.strided


FORMATS = {"channels_last": (torch.channels_last, 4), "channels_last_3d": (torch.channels_last_3d, 5)}
"""Names of layouts: torch's memory format, and the rank of the tensors that have it."""
