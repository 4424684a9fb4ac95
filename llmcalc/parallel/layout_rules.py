"""A framework's layout rules, from which a search enumerates layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import InputError
from ..frozen import frozen
from .layout import Layout, Zero

if TYPE_CHECKING:
    from .layout_request import LayoutRequest


@frozen
class LayoutRules:
    """The layouts that a framework supports and a search tries: ZeRO stages, group sizes, and constraints.

    name: the framework's name in errors.
    default_zero_stage: default ZeRO stage of a layout with replicas.
    other_zero_stages: ZeRO stages that a search tries beside the default where no option states one.
    largest_zero_stage: the largest ZeRO stage that the framework has with llmcalc's options.
    untried_size_names: names of group sizes that the search leaves at 1.
    keeps_experts_whole: whether each rank of a mixture of experts holds whole experts (`etp` 1).
    sequence_parallel: whether tensor parallelism comes with sequence parallelism, for a model with routed experts even
        without the option (megatron/core/transformer/moe/moe_layer.py raises `ValueError` in training without it).
    needs_full_pipeline: whether 1F1B needs at least as many micro-batches as stages.
    pipelines_on_request: whether pipelines are tried only if an option of pipelines was given, or no layout is possible
        without them.
    keeps_gathered_in_pipelines: whether a pipeline keeps gathered weights after the forward pass by default.
    divides_weights: whether replicas always divide weights: ZeRO stage 3 without a stage, stage 2 where gathered
        weights are kept after the forward pass, and no stage 1.
    """

    name: str
    default_zero_stage: Zero = 0
    other_zero_stages: tuple[Zero, ...] = ()
    largest_zero_stage: Zero = 3
    untried_size_names: tuple[str, ...] = ()
    keeps_experts_whole: bool = False
    sequence_parallel: bool = False
    needs_full_pipeline: bool = False
    pipelines_on_request: bool = False
    keeps_gathered_in_pipelines: bool = False
    divides_weights: bool = False

    def keeps_gathered_weights(self, pp: int, zero_stage: int) -> bool:
        """Whether weights that were all-gathered stay on the device after the forward pass by default."""
        if self.divides_weights and zero_stage == 2:
            return True
        return self.keeps_gathered_in_pipelines and pp > 1 and (self.divides_weights or zero_stage == 3)

    def layout_of(self, layout_request: LayoutRequest, *, trains_experts: bool = False) -> Layout:
        """Returns the layout of a request, completed by the framework's defaults.

        trains_experts: whether a model with routed experts is trained. False by default.
        Raises `InputError` for options that contradict each other.
        """
        layout = self._with_divided_weights(layout_request.layout(self.keeps_gathered_weights))
        return self.with_divided_tokens(layout, layout_request, trains_experts=trains_experts)

    def with_divided_tokens(self, layout: Layout, layout_request: LayoutRequest, *, trains_experts: bool) -> Layout:
        """Returns a request's layout, with sequence parallelism if the framework requires it for expert parallelism."""
        divides_tokens = self.sequence_parallel and (trains_experts or layout.ep > 1) and layout.tp > 1
        if divides_tokens and layout_request.sequence_parallel is None:
            return replace(layout, sequence_parallel=True)
        return layout

    def _with_divided_weights(self, layout: Layout) -> Layout:
        """Returns the layout, with the framework's ZeRO stage if the framework always divides weights."""
        needs_zero_stage = self.divides_weights and layout.dp * layout.cp > 1 and not layout.zero
        return replace(layout, zero=self.default_zero_stage) if needs_zero_stage else layout

    def check_zero_stage(self, layout_request: LayoutRequest) -> None:
        """Raises `InputError` for a ZeRO stage that the framework does not have."""
        if layout_request.zero_stage() > self.largest_zero_stage:
            typed_option = "--fsdp" if layout_request.zero is None else f"--zero {layout_request.zero}"
            raise InputError(
                f"{typed_option}: without --launch, --framework {self.name} has at most ZeRO stage "
                f"{self.largest_zero_stage}; expected --zero {self.largest_zero_stage}, or another --framework"
            )
        if self.divides_weights and layout_request.zero == 1:
            raise InputError(
                f"--zero 1: {self.name} divides gradients and weights too; expected --zero 3, or --zero 2, which keeps "
                "gathered weights, or another framework"
            )
