"""What only files have words for that start a run under FSDP: float8 products, and how gradients are summed.

Source: torchtitan/config_manager.py at 9dec370 (2024-12-26) and e7c0cae (2025-06-11), torchtitan/config/job_config.py
at 9810191bb^ (2026-02-22), and torchtitan/components/quantization of these dates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Float8Recipe: TypeAlias = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]

MULTIPLE = 16
"""Both sides of a matrix of a float8 product are multiples of it (`module_filter_fn`)."""


@dataclass(frozen=True)
class Float8:
    """How torchao runs linear layers in 8 bits (`convert_to_float8_training`).

    gathers: whether FSDP gathers their weights in 8 bits (`enable_fsdp_float8_all_gather`), false by default.
    recipe: how numbers are scaled; `tensorwise` by default.
    skips: linear layers whose names in torchtitan contain one of these stay as they are (`filter_fqns`).
    skips_small: whether those that are too small to gain anything do too (`auto_filter_small_kn`), false by default.
    """

    gathers: bool = False
    recipe: Float8Recipe = "tensorwise"
    skips: tuple[str, ...] = ("output",)
    skips_small: bool = False

    def converts(self, name: str, rows: int, columns: int) -> bool:
        """Whether a linear layer runs in 8 bits. name: in torchtitan. rows, columns: of its whole weight.

        Source: torchtitan/components/quantization/utils.py; torchao/float8/float8_linear_utils.py,
        `_auto_filter_for_tensorwise` and `_auto_filter_for_rowwise`.
        """
        if rows % MULTIPLE or columns % MULTIPLE or any(one in name for one in self.skips):
            return False
        if not self.skips_small:
            return True
        if self.recipe == "tensorwise":
            return not (columns <= 4096 and rows <= 1024)
        return not (rows <= 2048 or columns <= 1024 or (rows <= 4096 and columns <= 2048))


@dataclass(frozen=True)
class TitanSettings:
    """A job's settings that `llmcalc memory` has no options for. The last three are for files of accelerate.

    old: whether the file has the form of 2024.
    float8: how linear layers run in 8 bits; None (default) if they do not.
    loss_parallel: with tensor parallelism, whether the loss is computed on divided logits; true by default.
    async_tensor_parallel: whether products run beside the collectives around them (symmetric memory); false by default.
    compiled_loss: whether the loss is compiled; None (default) for what torchtitan of that date does.
    schedules: how many times a step runs the schedule of its pipeline, whose gradients are added up; 1 by default.
    reduced: the number format in which gradients are summed over ranks; empty (default) for torchtitan's.
    reduces_each: whether the gradients of every micro-batch are summed over ranks, or those of the last one alone; true
        by default.
    flat: whether the parameters of a layer are one flat tensor, as in version 1 of FSDP; false by default.
    """

    old: bool = False
    float8: Float8 | None = None
    loss_parallel: bool = True
    async_tensor_parallel: bool = False
    compiled_loss: bool | None = None
    schedules: int = 1
    reduced: str = ""
    reduces_each: bool = True
    flat: bool = False


def titan_settings(own_settings: Any) -> TitanSettings:
    """torchtitan's settings of a run, or the defaults."""
    return own_settings if isinstance(own_settings, TitanSettings) else TitanSettings()
