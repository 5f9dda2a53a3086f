"""Ready schedules: ordinary steps, applied wherever a pattern is found. They know patterns, and no model's name."""

from smelt.schedules.inference import inference
from smelt.schedules.memory import low_memory
from smelt.schedules.mixed_precision import bf16
from smelt.schedules.ranks import data_parallel, pipeline, tensor_parallel
from smelt.schedules.report import Ready

__all__ = ["Ready", "bf16", "data_parallel", "inference", "low_memory", "pipeline", "tensor_parallel"]
