"""Which layouts a search tries for a framework."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Zero


@dataclass(frozen=True)
class LayoutRules:
    """Which layouts a search tries for a framework.

    name: the framework's, in errors.
    zero: the ZeRO stage of a layout with replicas where none is asked for.
    untried: sizes of groups that are tried as 1 alone.
    whole_experts: whether each rank holds whole experts (`etp` 1) in a mixture.
    sequence_parallel: whether tensor parallelism comes with sequence parallelism.
    fills_pipeline: whether a schedule of one stage a rank takes at least as many micro-batches as there are stages.
    pipelines_if_asked: whether pipelines are tried only where something of a pipeline is asked for.
    keeps_gathered_in_pipelines: whether gathered weights stay whole after the forward pass in a pipeline.
    """

    name: str
    zero: Zero = 0
    untried: tuple[str, ...] = ()
    whole_experts: bool = False
    sequence_parallel: bool = False
    fills_pipeline: bool = False
    pipelines_if_asked: bool = False
    keeps_gathered_in_pipelines: bool = False

    def keeps_gathered(self, pp: int, zero: int) -> bool:
        """Whether gathered weights stay whole after the forward pass where nothing else is asked for."""
        return self.keeps_gathered_in_pipelines and pp > 1 and zero == 3
