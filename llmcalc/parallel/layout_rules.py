"""A framework's layout rules, from which a search enumerates layouts."""

from __future__ import annotations

from ..frozen import frozen
from .layout import Zero


@frozen
class LayoutRules:
    """A framework's layout rules, from which a search enumerates layouts.

    name: the framework's name in errors.
    zero: default ZeRO stage of a layout with replicas.
    untried: names of group sizes that the search leaves at 1.
    whole_experts: whether each rank of a mixture of experts holds whole experts (`etp` 1).
    sequence_parallel: whether tensor parallelism comes with sequence parallelism.
    fills_pipeline: whether 1F1B needs at least as many micro-batches as stages.
    pipelines_on_request: whether pipelines are tried only if an option of pipelines was given.
    keeps_gathered_in_pipelines: whether a pipeline keeps gathered weights after the forward pass by default.
    """

    name: str
    zero: Zero = 0
    untried: tuple[str, ...] = ()
    whole_experts: bool = False
    sequence_parallel: bool = False
    fills_pipeline: bool = False
    pipelines_on_request: bool = False
    keeps_gathered_in_pipelines: bool = False

    def keeps_gathered(self, pp: int, zero_stage: int) -> bool:
        """Whether gathered weights stay on the device after the forward pass by default."""
        return self.keeps_gathered_in_pipelines and pp > 1 and zero_stage == 3
