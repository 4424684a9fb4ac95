"""The software stack that determines a Megatron-LM run's times, and the format of its matrix products."""

from __future__ import annotations

from ..launch.launch_types import Launch
from .named_arguments import NamedModelArguments
from .settings import MegatronSettings

GROUP_BY_OVERLAP_ARGUMENT = {
    "overlap_grad_reduce": "dp",
    "overlap_param_gather": "weights",
    "tp_comm_overlap": "tp",
    "overlap_moe_expert_parallel_comm": "ep",
}
"""Argument → process group whose messages the argument overlaps with matrix products."""


LAYER_GRAPHS_STACK = "megatron-layer-graphs"
"""Name of the software stack in which the host launches one captured graph per layer."""


def time_stack_name(launched_run: Launch | None, is_compiled: bool, exchanges_tokens: bool) -> str:
    """Returns the name of the software stack behind a time estimate, composed from overlaps, CUDA graphs, dispatcher.

    Without a file, experts get their tokens by the `alltoall` dispatcher, whose memory is counted for such runs.
    """
    if launched_run is None:
        return "megatron-alltoall" if exchanges_tokens else "megatron"
    is_overlapped = bool(overlapped_parallel_groups(launched_run))
    dispatcher = _token_dispatcher(launched_run)
    stack_names = [LAYER_GRAPHS_STACK] if _has_cuda_graphs(launched_run) else []
    if dispatcher not in ("", "flex" if is_overlapped else "alltoall"):
        stack_names.append(f"megatron-{dispatcher}")
    if is_overlapped:
        return "+".join(stack_names) or "megatron"
    return "+".join(["megatron-no-overlap", *stack_names])


def _token_dispatcher(launched_run: Launch) -> str:
    """Returns the token dispatcher, `allgather`, `alltoall` or `flex`; empty if ranks exchange no tokens."""
    settings = launched_run.framework_settings
    if launched_run.layout.ep == 1:
        return ""
    if isinstance(settings, MegatronSettings):
        return settings.moe_token_dispatcher_type
    # programs that name a model: their readers say what sends experts' tokens
    uses_flex = isinstance(settings, NamedModelArguments) and (settings.uses_hybridep or settings.uses_deepep)
    return "flex" if uses_flex else "alltoall"


def _has_cuda_graphs(launched_run: Launch) -> bool:
    settings = launched_run.framework_settings
    if isinstance(settings, MegatronSettings):
        return captures_cuda_graphs(settings)
    return isinstance(settings, NamedModelArguments) and settings.has_layer_graphs


def captures_cuda_graphs(settings: MegatronSettings) -> bool:
    """Whether CUDA graphs are captured, one per layer or one of the whole step."""
    return settings.enable_cuda_graph or settings.external_cuda_graph or settings.cuda_graph_impl != "none"


def overlapped_parallel_groups(launched_run: Launch) -> frozenset[str]:
    """Returns the process groups whose messages the launch file overlaps with matrix products.

    Files of other programs may list the arguments among those that do not change memory. Tensor-parallel messages
    overlap with sequence parallelism alone (`has_user_buffers` of kernel_choices.py).
    """
    settings = launched_run.framework_settings
    stated_arguments = {
        ignored_argument.lstrip("-").replace("-", "_").rpartition(".")[2]
        for ignored_argument in launched_run.ignored_arguments
    }
    process_groups = {
        overlapped_group
        for argument_name, overlapped_group in GROUP_BY_OVERLAP_ARGUMENT.items()
        if argument_name in stated_arguments or getattr(settings, argument_name, False)
    }
    if isinstance(settings, MegatronSettings) and not settings.uses_sequence_parallelism:
        process_groups.discard("tp")
    return frozenset(process_groups)


def recomputed_modules(launched_run: Launch) -> frozenset[str]:
    """Returns the modules that selective recomputation runs again (`--recompute-modules`)."""
    settings = launched_run.framework_settings
    if isinstance(settings, MegatronSettings):
        return frozenset((*settings.recomputed_modules, *(("moe",) if settings.moe_layer_recompute else ())))
    return frozenset((settings.recompute_modules or ()) if isinstance(settings, NamedModelArguments) else ())


def recomputed_layers(launched_run: Launch) -> float:
    """Returns the fraction of layers that are recomputed as a whole: all, or the first ones of each chunk (`block`)."""
    settings = launched_run.framework_settings
    if not isinstance(settings, MegatronSettings) or settings.recompute_mode != "full":
        return 0.0
    if settings.recompute_method != "block":
        return 1.0
    chunk_count = launched_run.layout.pp * launched_run.layout.vpp
    return min(1.0, (settings.recompute_num_layers or 1) * chunk_count / settings.layer_count)


def product_format(settings: MegatronSettings | NamedModelArguments) -> str:
    """Returns the number format of matrix products; empty for a model given by name, whose options state the format."""
    if isinstance(settings, NamedModelArguments):
        return ""
    return "bf16" if settings.fp8_format is None else "fp8"
