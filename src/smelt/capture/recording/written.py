"""What state held before a run wrote to it, so that the run can be checked against its graph afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from smelt._torch.seen.dispatch import Record
from smelt.capture.recording.opinfo import op_info, targets_of
from smelt.capture.structure.roots import Roots


class Written:
    """Copies of state tensors from right before their memory was first written, by the tensor's id.

    A run that writes nothing copies nothing; a batch norm in training copies its running statistics only.
    """

    def __init__(self, roots: Roots) -> None:
        self.before: dict[int, torch.Tensor] = {}
        self._roots = roots
        self._by_storage: Mapping[int, list[torch.Tensor]] | None = None

    def watching(self, record: Record) -> Record:
        """The recorder's hook with a look at what each operator is about to write."""

        def watched(overload: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            for one in op_info(overload).written(args, kwargs):
                for tensor in targets_of(one, args, kwargs):
                    if isinstance(tensor, torch.Tensor):
                        self._save(tensor)
            return record(overload, args, kwargs)

        return watched

    def _save(self, tensor: torch.Tensor) -> None:
        if self._by_storage is None:
            found: dict[int, list[torch.Tensor]] = {}
            for entry in self._roots:
                if entry.tensor.layout == torch.strided and entry.tensor.device.type != "meta":
                    found.setdefault(entry.tensor.untyped_storage().data_ptr(), []).append(entry.tensor)
            self._by_storage = found
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        sharing = [s for s in self._by_storage.get(tensor.untyped_storage().data_ptr(), ()) if id(s) not in self.before]
        if not sharing:
            return
        copied = tensor.untyped_storage().clone()
        # They are written when the program has run, outside of its modes.
        with torch.inference_mode(False), torch.no_grad():
            for state in sharing:
                # State that shares memory shares it in the copies, so that writes to one are seen in the others.
                place = torch.empty(0, dtype=state.dtype, device=state.device)
                self.before[id(state)] = place.set_(copied, state.storage_offset(), state.shape, state.stride())
