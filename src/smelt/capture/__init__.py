"""Run a program once, record it, and know what it read."""

from smelt._torch.seen.dispatch import is_recording as is_capturing
from smelt.capture.captured import capture
from smelt.capture.recording.tensor_slots import Conversion, conversion_error
from smelt.capture.result import Captured, State
from smelt.capture.structure.roots import StateTensor
from smelt.capture.structure.signature import Signature, tensors_of

__all__ = [
    "Captured",
    "Conversion",
    "Signature",
    "State",
    "StateTensor",
    "capture",
    "conversion_error",
    "is_capturing",
    "tensors_of",
]
