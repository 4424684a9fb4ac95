"""FSDP2's settings that only launch files can set, such as float8 products and gradient reduction.

Source: torchtitan/config_manager.py at 9dec370 (2024-12-26) and e7c0cae (2025-06-11), torchtitan/config/job_config.py
at 9810191bb^ (2026-02-22), and torchtitan/components/quantization of these dates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

from ...frozen import frozen

Float8Recipe: TypeAlias = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]

OuterGroups: TypeAlias = Literal["separate", "embedding", "together"]
"""Groups of the parameters outside the layers: one of the embedding and one of the last norm with the output layer; one
of the embedding alone, with the others in the group of the model; or the group of the model for all of them."""

FLOAT8_SIZE_MULTIPLE = 16
"""Number that must divide both sides of a matrix for float8 (`module_filter_fn`)."""


@frozen
class Float8Settings:
    """The settings of torchao's 8-bit linear layers (`convert_to_float8_training`).

    gathers_float8: whether FSDP gathers their weights in 8 bits (`enable_fsdp_float8_all_gather`), false by default.
    recipe: scaling of the numbers; `tensorwise` by default.
    skipped_names: texts; a linear layer with one of them in its torchtitan name is not converted (`filter_fqns`).
    skips_small_layers: whether layers too small to gain speed are not converted either (`auto_filter_small_kn`), false
        by default.
    """

    gathers_float8: bool = False
    recipe: Float8Recipe = "tensorwise"
    skipped_names: tuple[str, ...] = ("output",)
    skips_small_layers: bool = False

    def is_converted(self, layer_name: str, row_count: int, column_count: int) -> bool:
        """Whether a linear layer with this unsharded shape runs in float8. layer_name: its path in torchtitan.

        Source: torchtitan/components/quantization/utils.py; torchao/float8/float8_linear_utils.py,
        `_auto_filter_for_tensorwise` and `_auto_filter_for_rowwise`.
        """
        if (
            row_count % FLOAT8_SIZE_MULTIPLE
            or column_count % FLOAT8_SIZE_MULTIPLE
            or any(skipped_name in layer_name for skipped_name in self.skipped_names)
        ):
            return False
        if not self.skips_small_layers:
            return True
        if self.recipe == "tensorwise":
            return not (column_count <= 4096 and row_count <= 1024)
        return not (row_count <= 2048 or column_count <= 1024 or (row_count <= 4096 and column_count <= 2048))


@frozen
class TitanSettings:
    """Settings of a torchtitan job that no option of `llmcalc memory` sets; accelerate configs set the last six.

    is_2024_form: whether the file has the form of 2024.
    float8: the conversion of linear layers to float8; None (default) for none.
    uses_loss_parallel: with tensor parallelism, whether the loss is computed on divided logits; true by default.
    async_tensor_parallel: whether products and collectives overlap (symmetric memory); false by default.
    compiles_loss: whether the loss is compiled; None (default) for torchtitan's default at its date.
    schedules_per_step: number of pipeline schedules per step; 1 by default.
    reduction_format: number format in which gradients are reduced; empty (default) for torchtitan's.
    reduces_each_microbatch: whether every micro-batch reduces its gradients, or only the last one of a step; true by
        default.
    has_flat_parameters: whether the parameters of a layer are one flat tensor, as in FSDP version 1; false by default.
    fsdp_version: version of FSDP; 2 by default. Version 1 is counted as version 2.
    offloads_to_host: whether shards, gradients and optimizer states are on the host; false by default.
    outer_groups: groups of the parameters outside the layers; by default those of torchtitan and of accelerate's FSDP2.
    wraps_whole_experts: whether FSDP wraps experts that no other rank has a part of; true by default.
    """

    is_2024_form: bool = False
    float8: Float8Settings | None = None
    uses_loss_parallel: bool = True
    async_tensor_parallel: bool = False
    compiles_loss: bool | None = None
    schedules_per_step: int = 1
    reduction_format: str = ""
    reduces_each_microbatch: bool = True
    has_flat_parameters: bool = False
    fsdp_version: Literal[1, 2] = 2
    offloads_to_host: bool = False
    outer_groups: OuterGroups = "separate"
    wraps_whole_experts: bool = True


def titan_settings(file_settings: Any, precision: str | None = None) -> TitanSettings:
    """Returns the settings of a torchtitan job, or torchtitan's defaults for runs without a file.

    precision: the training precision, of which fp8 converts linear layers as torchtitan's own recipe does.
    """
    settings = file_settings if isinstance(file_settings, TitanSettings) else TitanSettings()
    return replace(settings, float8=Float8Settings()) if precision == "fp8" and settings.float8 is None else settings
