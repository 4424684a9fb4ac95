"""The software stack that determines a Megatron-LM run's times, and the format of its matrix products."""

from __future__ import annotations

from ..launch.record import Launch
from .named_arguments import NamedModelArguments
from .settings import MegatronSettings

OVERLAPS = {
    "overlap_grad_reduce": "dp",
    "overlap_param_gather": "weights",
    "tp_comm_overlap": "tp",
    "overlap_moe_expert_parallel_comm": "ep",
}
"""Arguments → the group whose messages they send beside products."""


def time_stack_name(launched_run: Launch | None, is_compiled: bool, has_experts: bool) -> str:
    """Returns the name of the software stack, which depends on a file's overlaps, dispatcher and CUDA graphs.

    Without a file, experts get their tokens by the `alltoall` dispatcher, whose memory is counted for such runs.
    """
    if launched_run is None:
        return "megatron-alltoall" if has_experts else "megatron"
    if not overlapped_groups(launched_run):
        return "megatron-no-overlap"
    settings = launched_run.own_settings
    if isinstance(settings, MegatronSettings):
        gathers_tokens = settings.num_experts is not None and settings.moe_token_dispatcher_type == "allgather"
        if gathers_tokens and not captures_layers(settings):
            return "megatron-allgather"
        sends_copies = settings.num_experts is not None and settings.moe_token_dispatcher_type == "alltoall"
    else:  # programs that name a model: their readers say what sends experts' tokens
        uses_flex = isinstance(settings, NamedModelArguments) and (settings.uses_hybridep or settings.uses_deepep)
        sends_copies = launched_run.layout.ep > 1 and not uses_flex
    if sends_copies:
        return "megatron-alltoall"
    is_captured = (isinstance(settings, MegatronSettings) and captures_layers(settings)) or (
        isinstance(settings, NamedModelArguments) and settings.has_layer_graphs
    )
    return "megatron-layer-graphs" if is_captured else "megatron"


def captures_layers(settings: MegatronSettings) -> bool:
    """Whether the host launches a captured graph for each layer, or for the whole step."""
    return settings.enable_cuda_graph or settings.external_cuda_graph or settings.cuda_graph_impl != "none"


def overlapped_groups(launched_run: Launch) -> frozenset[str]:
    """Returns the groups whose messages a file sends beside products.

    Files of other programs may list the arguments among those that do not change memory. Tensor-parallel messages
    overlap with sequence parallelism alone (`user_buffers` of kernel_choices.py).
    """
    settings = launched_run.own_settings
    stated_names = {name.lstrip("-").replace("-", "_").rpartition(".")[2] for name in launched_run.ignored}
    groups = {group for name, group in OVERLAPS.items() if name in stated_names or getattr(settings, name, False)}
    if isinstance(settings, MegatronSettings) and not settings.uses_sequence_parallelism:
        groups.discard("tp")
    return frozenset(groups)


def product_format(settings: MegatronSettings | NamedModelArguments) -> str:
    """Returns the number format of matrix products; empty for that of the options, for a named model."""
    if isinstance(settings, NamedModelArguments):
        return ""
    return "bf16" if settings.fp8_format is None else "fp8"
