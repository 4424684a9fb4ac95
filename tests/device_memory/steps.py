"""Training steps, once without values and once as torch runs the reference: the bytes of every phase.

The loop, and both measurements, are those of `llmcalc verify --memory`.
"""

from __future__ import annotations

from llmcalc.device_memory.training import TrainingConfig
from llmcalc.model import ModelSpec
from llmcalc.witnesses.memory import StepBytes as Step
from llmcalc.witnesses.memory import TrainingBytes as Steps
from llmcalc.witnesses.memory import measure_steps
from llmcalc.witnesses.memory import simulate_steps as replayed
from tests.simulator import models

__all__ = ["Step", "Steps", "by_torch", "device_of", "replayed"]


def device_of(training: TrainingConfig) -> str:
    """Where torch runs these steps: fused optimizers and autocast on the CPU, some kernels on meta alone."""
    return models.device_of(training.kernel_choices)


def by_torch(spec: ModelSpec, training: TrainingConfig, device: str = "", number: int = 2) -> Steps:
    """Steps of the reference."""
    return measure_steps(spec, training, device or device_of(training), number)
