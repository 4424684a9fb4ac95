"""The FLOPs, bytes and seconds of a forward pass's kernels, which are the points of a roofline plot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..frozen import frozen
from .kernels import Kernel, RankWork
from .time_estimator import TimeEstimator


@frozen
class MemoryTraffic:
    """The FLOPs, bytes and seconds of kernels, summed over a pass.

    flops: FLOPs of their matrix products. bytes: bytes that they read and write. seconds: their estimated duration.
    """

    flops: float
    bytes: float
    seconds: float

    def __add__(self, other_traffic: MemoryTraffic) -> MemoryTraffic:
        return MemoryTraffic(
            self.flops + other_traffic.flops, self.bytes + other_traffic.bytes, self.seconds + other_traffic.seconds
        )

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_second(self) -> float:
        """The estimated FLOP/s of the kernels."""
        return self.flops / self.seconds


def kernel_traffic(rank_work: RankWork, time_estimator: TimeEstimator) -> Iterator[tuple[str, MemoryTraffic]]:
    """Yields the traffic of an inference pass's kernels that compute products, each with its module path.

    Bytes are those that the estimate prices, without the losses of the device and of its software.
    """
    generation = time_estimator.device.generation.model_copy(update={"memory": 1.0, "cache": 1.0})
    device = replace(time_estimator.device, memory_bandwidth=1.0, generation=generation)  # on it a second is a byte
    lossless_estimator = replace(
        time_estimator,
        device=device,
        stack=time_estimator.stack.model_copy(
            update={"expert_weight_rate_share": 1.0, "prompt_expert_weight_rate_share": None}
        ),
    )
    for kernel in rank_work.kernels:
        run_count = float(kernel.runs_per_layer * rank_work.layer_count(kernel.layer_kind_index))
        kernel_flops = run_count * float(kernel.flops[0])
        if not kernel_flops:
            continue
        kernel_seconds = sum(float(operation.seconds) for operation in time_estimator.timed_kernels(kernel))
        if kernel.kind == "attention":
            traffic_bytes = attention_bytes(kernel, time_estimator)
        else:
            traffic_bytes = sum(float(operation.memory) for operation in lossless_estimator.timed_kernels(kernel))
        yield kernel.path, MemoryTraffic(kernel_flops, run_count * traffic_bytes, run_count * kernel_seconds)


def attention_bytes(kernel: Kernel, time_estimator: TimeEstimator) -> float:
    """Returns the bytes that fused attention moves: cache, 16-bit queries, results, and new keys of a prompt."""
    cache_bytes = float(kernel.cache_elements) * time_estimator.number_formats.cache_bits / 8
    head_count = float(kernel.heads) + (0.0 if time_estimator.rank_pass.phase == "decode" else float(kernel.kv_heads))
    return cache_bytes + 2.0 * float(kernel.m) * head_count * float(kernel.key_width + kernel.k)
