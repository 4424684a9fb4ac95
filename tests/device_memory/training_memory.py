"""The memory of a training run as an answer, from what is replayed alone: no settings, no command."""

from __future__ import annotations

from llmcalc.device_memory.cuda_runtime import HOPPER_RUNTIME, CudaRuntime
from llmcalc.device_memory.device_memory import TENSORS_TERM, DeviceMemory, device_memory, with_evidence
from llmcalc.device_memory.evidence import evidence_of_run
from llmcalc.device_memory.training import TrainingConfig, record_training
from llmcalc.model import ModelSpec


def training_memory(spec: ModelSpec, training: TrainingConfig, runtime: CudaRuntime = HOPPER_RUNTIME) -> DeviceMemory:
    """Replays training. Raises `UnsupportedKernel` for a step of the model without kernels."""
    return device_memory(
        spec,
        lambda layers, workspace: [record_training(spec, training, layers, workspace)],
        runtime,
        (),
        with_evidence(TENSORS_TERM, evidence_of_run(spec, training.kernel_choices, training.optimizer)),
        training.recompute.every,
    )
