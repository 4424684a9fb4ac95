"""The base class that replays training in all ZeRO stages: number formats, buckets, and the reduction stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from ...costs.trained_tensors import TrainedTensor
from ...device_memory.device_memory import MemoryTerm
from ...device_memory.optimizers.registry import optimizer
from ...device_memory.optimizers.step import OptimizedParameter
from ...device_memory.training import TrainingConfig, TrainingRun
from ...frozen import frozen
from ...model import ModelSpec
from ...ops import ParamTensor
from ...simulator.meter import Meter
from ...simulator.tensor import DTYPES, FLOAT32, Dtype, Storage, Tensor, allocate_on_stream, count_storages_as
from .partitions import sort_in_module_order
from .settings import DeepSpeedSettings

REDUCTION_STREAM = 1
"""The stream on which gradients are reduced while the backward pass runs."""

FLOAT64_BYTES = 8
"""Bytes of a number in float64, the format of gradient norms (`get_norm_dtype`)."""


def number_format(deepspeed_name: str | None, default_dtype: Dtype) -> Dtype:
    """Returns the number format that a text such as `bf16` or `fp32` means in DeepSpeed's config (`DtypeEnum`)."""
    format_names = {
        "fp32": "float32",
        "fp16": "float16",
        "bf16": "bfloat16",
        "bfp16": "bfloat16",
        "float": "float32",
        "half": "float16",
    }
    if deepspeed_name is None:
        return default_dtype
    short_name = deepspeed_name.removeprefix("torch.")
    return DTYPES[format_names.get(short_name, short_name)]


@frozen
class ZeroSetup:
    """The inputs of a rank's replay under ZeRO: the model, the training configuration and DeepSpeed's settings.

    rank_count: number of partitions. rank: index of the rank; 0 by default. workspace_bytes: bytes of products'
        workspace.
    """

    spec: ModelSpec
    training_config: TrainingConfig
    settings: DeepSpeedSettings
    rank_count: int
    rank: int = 0
    workspace_bytes: int = 0


class ZeroRun(TrainingRun):
    """The replayed training steps of one rank under ZeRO.

    settings: DeepSpeed's settings.
    rank_count, rank: number of partitions, and index of the rank's.
    dtype: number format of the parameters.
    accumulation_dtype: number format in which gradients are accumulated over micro-batches.
    communication_dtype: number format in which gradients are reduced over ranks.
    bucket_elements: elements of a gradient bucket.
    is_last_microbatch: whether the current micro-batch is the last of its step.
    offloaded_gradient_norms: norms of offloaded gradients, which stay on the device until the step.
    has_rank_dependent_storages: whether a rank's storages depend on its index, false by default: each has equally large
        parts.
    """

    has_rank_dependent_storages: ClassVar[bool] = False

    def __init__(self, zero_setup: ZeroSetup, memory_meter: Meter | None = None) -> None:
        super().__init__(zero_setup.spec, zero_setup.training_config, None, zero_setup.workspace_bytes, memory_meter)
        settings = zero_setup.settings
        self.settings: DeepSpeedSettings = settings
        self.rank_count: int = zero_setup.rank_count
        self.rank: int = zero_setup.rank
        self.dtype: Dtype = DTYPES[zero_setup.training_config.dtype]
        self.accumulation_dtype: Dtype = number_format(settings.grad_accum_dtype, self.dtype)
        self.communication_dtype: Dtype = number_format(settings.communication_data_type, self.dtype)
        self.bucket_elements: int = settings.size_in_elements("reduce_bucket_size")
        self.is_last_microbatch: bool = True
        self.offloaded_gradient_norms: dict[int, Storage] = {}

    def run_micro_batches(self) -> None:
        """Replays a step's first micro-batch and its last one, which represents all others."""
        recorded_microbatches = min(self.training_config.microbatches, 2)
        for i in range(recorded_microbatches):
            if i:
                self.replace_batch()
            self.is_last_microbatch = i == recorded_microbatches - 1
            self.forward_and_backward()

    def parameters_in_module_order(self) -> list[Tensor]:
        """Returns every trained parameter once, in the order of the model's modules."""
        parameters_by_path = dict(self.lowering.parameters)
        weights_by_id = {
            id(weight): weight
            for weight in (
                parameters_by_path[parameter_path] for parameter_path in sort_in_module_order(list(parameters_by_path))
            )
        }
        return [*weights_by_id.values(), *(weight for weight in self.lowering.unused_modules if weight.is_leaf)]

    def run_optimizer(self, trained_parameters: Sequence[OptimizedParameter]) -> None:
        """Updates trained tensors by the optimizer's step, and frees their gradients."""
        self.training_config.step_optimizer(self.graph, trained_parameters)
        for trained_parameter in trained_parameters:
            trained_parameter.gradient = None

    def host_terms(self) -> tuple[MemoryTerm, ...]:
        """Returns the named terms of the rank's host memory, in bytes."""
        raise NotImplementedError

    def host_state_bytes(self, element_count: int) -> int:
        """Returns the host bytes of fp32 optimizer states without step counts (`DeepSpeedCPUAdam`)."""
        master_tensor = TrainedTensor(ParamTensor((element_count,), "vector"), "optimizer", 1)
        optimizer_record = optimizer(self.training_config.optimizer)
        optimizer_states = optimizer_record.state(
            [master_tensor], FLOAT32.name, self.training_config.has_momentum
        ).states
        return sum(int(state_bytes) for state_name, state_bytes in optimizer_states.items() if state_name != "step")

    @contextmanager
    def reduction_stream(self) -> Iterator[None]:
        """Returns a context that allocates on the reduction stream; without overlap, on the current stream."""
        cuda_stream = REDUCTION_STREAM if self.settings.has_overlapped_reductions else self.meter.stream
        with allocate_on_stream(self.meter, cuda_stream), count_storages_as(self.meter, "communication"):
            yield
