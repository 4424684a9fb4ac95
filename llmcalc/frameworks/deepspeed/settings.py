"""The keys of DeepSpeed's config that affect memory, with DeepSpeed's own defaults.

Source: deepspeed 0.19.8, deepspeed/runtime/zero/config.py (`DeepSpeedZeroConfig`), runtime/config.py and
runtime/precision_config.py. `auto` is for the integration in transformers (integrations/deepspeed.py,
`trainer_config_finalize`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from ...errors import InputError

Auto: TypeAlias = Literal["auto"]
HostOffload: TypeAlias = Literal["none", "cpu", "nvme"]

VERSION = "0.19.8"
"""The version of deepspeed whose code is modelled."""


ONE_BIT_ADAM, ZERO_ONE_ADAM, ONE_BIT_LAMB, LAMB = "onebitadam", "zerooneadam", "onebitlamb", "lamb"
"""Lowercase names of DeepSpeed's own optimizers. The first three compress messages to one bit per element."""


@dataclass(frozen=True)
class DeepSpeedSettings:
    """The ZeRO settings of a DeepSpeed config; fields have the names of the config's keys.

    stage: of `zero_optimization`, as are all keys up to `memory_efficient_linear`; None for that of the layout.
    contiguous_gradients: whether gradients are copied into the buffer of a bucket as they are produced.
    reduce_scatter: whether each rank gets the sums of its own part alone.
    reduce_bucket_size: elements of gradients that are summed at once; `auto` is the square of the hidden size.
    use_multi_rank_bucket_allreduce: whether the parts of all ranks are summed in one operation.
    allgather_bucket_size: elements that older versions gather at once after a step, in place.
    overlap_comm: whether sums run beside the backward pass, with a second buffer; None (default) for stage 3 alone.
    round_robin_gradients: whether parameters go to the ranks by turns. parameter_alignment: whether each begins at a
        multiple of 16 bytes.
    compute_grad_norm: whether the norm of the gradients is computed in a step.
    offload_optimizer, offload_param: the `device` of these sections: where the optimizer's states, and the parts of
        parameters, are.
    offload_optimizer_pin_memory, offload_param_pin_memory: their `pin_memory`: whether this memory is pinned.
    sub_group_size: elements of the partitions that one step of the optimizer updates, in stage 3.
    stage3_prefetch_bucket_size: elements that are gathered ahead; `auto` is 0.9 of the hidden size's square.
    stage3_param_persistence_threshold: parameters of at most so many elements stay whole; `auto` is ten hidden sizes.
    stage3_model_persistence_threshold: elements of such parameters altogether, at most; None for no limit.
    stage3_max_live_parameters: elements that are whole at once, at most, when more are gathered ahead.
    stage3_max_reuse_distance: a parameter stays whole if it is used again before so many other elements are.
    stage3_module_granularity_threshold, stage3_use_all_reduce_for_fetch_params, stage3_allgather_sequential,
        zero_hpz_partition_size, zero_quantized_weights, zero_quantized_nontrainable_weights, zero_quantized_gradients,
        memory_efficient_linear: other ways of gathering and summing.
    grad_accum_dtype: of the section `data_types`: the format of sums over micro-batches; None for the parameters'.
    communication_data_type: the format in which gradients are summed over ranks; None for the parameters'.
    check_grad_overflow: of the section `bf16`. gradient_clipping: the largest norm, 0 for none.
    bf16_master_weights_and_grads, fp16_master_weights_and_grads: whether the optimizer's copies have 16 bits.
    optimizer: its `type`; empty if the script makes one. torch_adam: of its parameters: whether Adam is torch's.
    version: of deepspeed; empty for the newest known.
    """

    stage: Literal[0, 1, 2, 3] | None = None
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int | Auto = 500_000_000
    use_multi_rank_bucket_allreduce: bool = True
    allgather_bucket_size: int | Auto = 500_000_000
    overlap_comm: bool | None = None
    round_robin_gradients: bool = False
    parameter_alignment: bool = False
    compute_grad_norm: bool = True
    offload_optimizer: HostOffload = "none"
    offload_param: HostOffload = "none"
    offload_optimizer_pin_memory: bool = False
    offload_param_pin_memory: bool = False
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int | Auto = 50_000_000
    stage3_param_persistence_threshold: int | Auto = 100_000
    stage3_model_persistence_threshold: int | None = None
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    stage3_module_granularity_threshold: int = 0
    stage3_use_all_reduce_for_fetch_params: bool = False
    stage3_allgather_sequential: bool = False
    zero_hpz_partition_size: int = 1
    zero_quantized_weights: bool = False
    zero_quantized_nontrainable_weights: bool = False
    zero_quantized_gradients: bool = False
    memory_efficient_linear: bool = True
    grad_accum_dtype: str | None = None
    communication_data_type: str | None = None
    check_grad_overflow: bool = True
    gradient_clipping: float = 0.0
    bf16_master_weights_and_grads: bool = False
    fp16_master_weights_and_grads: bool = False
    optimizer: str = ""
    torch_adam: bool = False
    version: str = ""

    def with_resolved_values(self, hidden_size: int) -> DeepSpeedSettings:
        """Returns the settings with `auto` replaced by numbers."""
        auto_values: dict[str, Any] = {
            "reduce_bucket_size": hidden_size * hidden_size,
            "allgather_bucket_size": 500_000_000,
            "stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
            "stage3_param_persistence_threshold": 10 * hidden_size,
        }
        return replace(
            self,
            **{
                field_name: resolved_value
                for field_name, resolved_value in auto_values.items()
                if getattr(self, field_name) == "auto"
            },
        )

    @property
    def has_overlapped_reductions(self) -> bool:
        """Whether gradient reductions overlap the backward pass (`overlap_comm_valid`)."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm

    def size_in_elements(self, field_name: str) -> int:
        """Returns the value, in elements, of a size setting for which `auto` has been resolved."""
        element_count = getattr(self, field_name)
        assert isinstance(element_count, int), field_name
        return element_count

    def check(self) -> None:
        """Raises `InputError` for settings that are not modelled."""
        for field in fields(self):
            if field.name in UNMODELLED_SETTINGS and getattr(self, field.name) != field.default:
                raise InputError(f"{field.name}: not modelled; expected {str(field.default).lower()}")
        for offload_field in ("offload_optimizer", "offload_param"):
            if getattr(self, offload_field) == "nvme":
                raise InputError(f"{offload_field}: nvme is not modelled; expected cpu or none")
        if self.offload_param != "none" and self.stage != 3:
            raise InputError(f"offload_param: stage {self.stage} keeps all parameters; expected stage 3, or none")
        if self.offload_optimizer != "none" and not self.stage:
            raise InputError("offload_optimizer: stage 0 divides no states; expected stage 1, 2 or 3, or none")


UNMODELLED_SETTINGS = frozenset(
    {
        "stage3_module_granularity_threshold",
        "zero_hpz_partition_size",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
        "memory_efficient_linear",
        "bf16_master_weights_and_grads",
        "fp16_master_weights_and_grads",
    }
)
"""Keys whose default is the only modelled value."""
