"""The bytes of experts in host memory, with KTransformers in SGLang (`--kt-weight-path`).

SGLang makes the weights of as many experts of a layer as the device keeps; the first rank computes the others on the
CPU, from weights of their own (srt/layers/moe/kt_ep_wrapper.py, `KTEPWrapperMethod.create_weights`). The flags are
those of srt/server_args.py in SGLang 0.5.10; their share is one of kvcache-ai's branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ...errors import InputError
from ...ops import ExpertLinear
from ...parallel.layout import ONE_DEVICE
from ..engines.rank import EngineRank

WEIGHT_PATH_FLAG = "kt_weight_path"
GPU_EXPERTS_FLAG = "kt_num_gpu_experts"
GPU_EXPERT_SHARE_FLAG = "kt_gpu_experts_ratio"
GPU_PREFILL_FLAG = "kt_gpu_prefill_token_threshold"
"""Field of the flag for a prompt length in tokens; the fields above are of host weights, experts per layer on the
device, and their fraction.
"""


def host_expert_share(engine_rank: EngineRank, flags: Mapping[str, Any]) -> Fraction:
    """Returns the fraction of the rank's experts in host memory; 0 without KTransformers.

    flags: values of SGLang's flags by their fields. Raises `InputError` for flags that contradict each other or the
    model.
    """
    placement_flags = [flag_field for flag_field in (GPU_EXPERTS_FLAG, GPU_EXPERT_SHARE_FLAG) if flag_field in flags]
    if WEIGHT_PATH_FLAG not in flags:
        if placement_flags:
            raise InputError(f"--{placement_flags[0].replace('_', '-')}: SGLang needs --kt-weight-path too")
        return Fraction(0)
    expert_layers = list(_expert_layers(engine_rank))
    if not expert_layers:
        raise InputError("--kt-weight-path: the model has no experts; remove the flag")
    total_expert_count = sum(
        experts_per_layer * expert_layer_count for experts_per_layer, expert_layer_count in expert_layers
    )
    if GPU_EXPERT_SHARE_FLAG in flags:
        return 1 - Fraction(int(total_expert_count * flags[GPU_EXPERT_SHARE_FLAG]), total_expert_count)
    device_expert_count = int(flags.get(GPU_EXPERTS_FLAG, 0))
    fewest_experts = min(experts_per_layer for experts_per_layer, _ in expert_layers)
    if device_expert_count > fewest_experts:
        raise InputError(f"--kt-num-gpu-experts {device_expert_count:,}: a layer has {fewest_experts:,} experts")
    return 1 - Fraction(device_expert_count * sum(layer_count for _, layer_count in expert_layers), total_expert_count)


def _expert_layers(engine_rank: EngineRank) -> Iterator[tuple[int, int]]:
    """Yields (experts per layer, number of layers) for each run of layers with equal numbers of experts."""
    for tree_node in engine_rank.model.tree().walk():
        node_op = tree_node.node.op
        if isinstance(node_op, ExpertLinear) and not tree_node.optional_part and tree_node.node.name == "down_proj":
            yield int(node_op.num_experts), int(tree_node.copies)


def expert_bytes(engine_rank: EngineRank) -> int:
    """Returns the bytes of all of the rank's experts, in device or host memory."""
    if engine_rank.scheme == "mxfp4" and engine_rank.layout.tp > 1:
        undivided_rank = replace(engine_rank, layout=ONE_DEVICE, rank=0)
        return undivided_rank.weights_by_component["experts"] // (engine_rank.layout.tp * engine_rank.layout.pp)
    return engine_rank.weights_by_component["experts"]


def host_experts_bytes(engine_rank: EngineRank, flags: Mapping[str, Any]) -> int:
    """Returns the bytes of the rank's experts in host memory. flags: as in `host_expert_share`."""
    host_fraction = host_expert_share(engine_rank, flags)
    return int(expert_bytes(engine_rank) * host_fraction) if host_fraction else 0


def host_expert_notes(engine_rank: EngineRank, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yields notes on experts in host memory. flags: as in `host_expert_share`."""
    host_fraction = host_expert_share(engine_rank, flags)
    if not host_fraction:
        return
    yield (
        f"{float(1 - host_fraction):.1%} of the experts are on the devices; the others are in the memory of the host, "
        "in the format of --kt-method, which is not counted"
    )
    if flags.get(GPU_PREFILL_FLAG):
        expert_layer_count = sum(layer_count for _, layer_count in _expert_layers(engine_rank))
        gib_per_layer = expert_bytes(engine_rank) // expert_layer_count / 2**30
        yield (
            f"a prompt of {flags[GPU_PREFILL_FLAG]:,} tokens or more copies one layer's experts to each device, "
            f"{gib_per_layer:.2f} GiB (--kt-gpu-prefill-token-threshold); they are in what the fraction leaves"
        )
