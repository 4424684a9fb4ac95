"""A run's estimated seconds by part, bound and module, its utilization, and explanations of a measured time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from ..accelerator import Hardware
from ..costs.flops import FlopCount
from ..costs.params import ParameterCount
from ..errors import InputError
from ..frozen import frozen
from ..model import ModelSpec
from ..parallel.layout import Layout
from ..timing.device import Device
from ..timing.kernels import RankPass, RankWork
from ..timing.step import StepPlan
from ..timing.time_estimator import NumberFormats, TimedOperation, TimeEstimator
from ..timing.time_ranges import TimeRange
from ..timing.timing_constants import SoftwareStack
from ..timing.traffic import MemoryTraffic, kernel_traffic
from ..timing.work_recorder import rank_work
from ..units import signed_percent
from ..workload.counting import Counting, Pairs
from ..workload.execution import Execution
from ..workload.run_config import RunConfig
from ..workload.workload import Workload

TimePhase: TypeAlias = Literal["training", "prefill", "decode"]

Bound: TypeAlias = Literal["compute", "memory", "network", "wait"]

BOUNDS: tuple[Bound, ...] = ("compute", "memory", "network", "wait")

ASSUMED_UTILIZATION = 0.45
"""Model FLOPs utilization that the rules 6ND and 8ND assume."""

HOST_BANDWIDTH = 100_000_000_000
"""Assumed bytes/s of a host's memory for layers on the host: DDR5-6400 with two channels has 102.4 GB/s."""

HOST_SAMPLING = "sampling on the host"

UNCOUNTED_EFFECTS = {
    "training": ("stragglers", "data loading", "checkpoints", "evaluation", "uneven routing of experts"),
    "prefill": ("queueing", "tokenization", "uneven routing of experts"),
    "decode": ("prompts that join the batch", "queueing", HOST_SAMPLING, "uneven routing of experts"),
}
"""Phase → the costs that a time estimate leaves out."""


class TimedNode(NamedTuple):
    """A node of the model's tree, or a part of the run outside of it, with its estimated seconds.

    path: path in the model, or the name of a part of the run.
    kind: kind of its kernel or message.
    seconds: its share of the estimate; those of all nodes add up to it.
    bound: what takes longest of it.
    bound_share: share of its seconds that the bound alone would take.
    seconds_by_bound: bound → seconds.
    """

    path: str
    kind: str
    seconds: float
    bound: Bound
    bound_share: float
    seconds_by_bound: dict[Bound, float]


@frozen
class TimedRun:
    """A training step, prompt or decoding pass with its estimated seconds.

    spec: the model.
    phase: training, prefill or decode.
    hardware, device, stack: what runs it.
    layout: the layout over devices.
    sequences: sequences of a step of all devices, of a prompt batch, or of a decoding batch.
    seq, context: new tokens and cached tokens of each sequence.
    step_plan: the training step; None in inference.
    time_range: the estimate with its range.
    seconds_by_part: part → seconds, which add up to the estimate.
    operations: the priced kernels and messages, each with how often it runs in the estimate.
    inference_passes: the passes of inference; none in training.
    host_wait_seconds: seconds of the parts in which kernels wait for the host.
    resident_bytes: weights and cache of a device in inference; in training the largest rank's weights, gradients,
        optimizer states and activations in the layout that was asked for, 0 if its replicas do not divide the batch.
    includes_buffers: whether `resident_bytes` in inference are an engine's, with its buffers; default false.
    chosen_layout_options: options of the layout that was chosen for a run of devices alone; empty for none.
    is_planned: whether `step_plan` has the memory of the run's precision; default true.
    has_stated_micro_batches: whether layouts were not searched because the micro-batches are stated; default false.
    unpriced_options: options that change the kernels of a training step but not the estimate; default none.
    engine_notes: remarks on the engine's version, the model's class and the run's adapters; default none.
    seconds_of_alternatives: description of other settings → seconds with them.
    estimate_seconds_on: the estimate on another device under another stack.
    short_context_run: the same decoding pass after fewer tokens, where no length was asked for; default None.
    """

    spec: ModelSpec
    phase: TimePhase
    hardware: Hardware
    device: Device
    stack: SoftwareStack
    layout: Layout
    sequences: int
    seq: int
    context: int
    number_formats: NumberFormats
    step_plan: StepPlan | None
    time_range: TimeRange
    seconds_by_part: dict[str, float]
    operations: tuple[tuple[float, TimedOperation], ...] = field(repr=False)
    inference_passes: tuple[RankWork, ...] = field(default=(), repr=False)
    host_wait_seconds: float = 0.0
    resident_bytes: int = 0
    includes_buffers: bool = False
    chosen_layout_options: str = ""
    is_planned: bool = True
    has_stated_micro_batches: bool = False
    included_parts: frozenset[str] = frozenset()
    unpriced_options: tuple[str, ...] = ()
    engine_notes: tuple[str, ...] = ()
    seconds_of_alternatives: dict[str, float] = field(default_factory=dict)
    estimate_seconds_on: Callable[[Device, SoftwareStack], float] | None = field(default=None, repr=False)
    short_context_run: TimedRun | None = None

    @property
    def uncounted_effects(self) -> tuple[str, ...]:
        """The effects that the time estimate leaves out, in words, such as sampling on the host."""
        includes_sampling = self.phase == "decode" and self.stack.host_seconds_per_sequence > 0
        return tuple(
            effect_text
            for effect_text in UNCOUNTED_EFFECTS[self.phase]
            if not (includes_sampling and effect_text == HOST_SAMPLING)
        )

    @property
    def fits(self) -> bool:
        """Whether static bytes fit in the device's memory, or the layout was chosen because it fits."""
        return bool(self.chosen_layout_options) or self.resident_bytes <= self.hardware.capacity_bytes

    @property
    def leaves_layers_on_host(self) -> bool:
        """Whether the run does not fit, and its software runs the layers that do not fit from host memory."""
        return not self.fits and self.stack.runs_layers_on_host and not self.hardware.unified_memory

    @property
    def seconds_with_host(self) -> float | None:
        """The least seconds per token if layers that do not fit run on the host; None if all layers fit.

        One host reads the weights of those layers of all ranks, at most at `HOST_BANDWIDTH` and no faster than a device
        reads those of its own rank. The device's part is at the low end of the range.
        """
        if self.phase != "decode" or not self.leaves_layers_on_host:
            return None
        share_on_host = 1 - self.hardware.capacity_bytes / self.resident_bytes
        read_seconds = sum(
            run_count * float(operation.memory)
            for run_count, operation in self.operations
            if operation.kind in ("product", "experts")
        )
        read_bytes = read_seconds * float(min(self.device.memory_rate, self.device.vector_rate))
        host_seconds = max(read_seconds, self.layout.tp * self.layout.dp * read_bytes / HOST_BANDWIDTH)
        return (1 - share_on_host) * float(self.time_range.low) + share_on_host * host_seconds

    @property
    def seconds(self) -> float:
        """The estimated seconds of the run: the likely value of the range."""
        return float(self.time_range.estimate)

    @property
    def devices(self) -> int:
        return self.layout.world_size

    @property
    def tokens(self) -> int:
        """Number of new tokens of a step or pass, over all sequences."""
        return self.sequences * self.seq

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def peak_flops(self) -> float:
        """The device's peak FLOP/s in the number format of the matrix products."""
        return self.device.peak_rates[self.device.format_of(self.number_formats.product_format)]

    def model_flops(self, pairs: Pairs) -> int:
        """Returns the model FLOPs of the step or pass, without recomputation.

        With low-rank adapters, the frozen weights have no gradients, so that a step has about 4ND in place of 6ND.
        """
        if self.step_plan is not None and self.step_plan.adapters is not None:
            whole_model_pass = RankPass(
                self.sequences,
                self.seq,
                phase="training",
                counted_pairs=pairs,
                included_parts=self.included_parts,
                adapters=self.step_plan.adapters,
            )
            pass_work = rank_work(self.spec, whole_model_pass)
            return int(pass_work.forward_flops + pass_work.backward_flops)
        workload = Workload(self.sequences, self.seq, self.context, phase=self.phase)
        run_config = RunConfig(workload, Counting(pairs), Execution())
        return int(FlopCount(self.spec, self.spec.tree(), run_config, self.included_parts).total)

    def utilization(self, pairs: Pairs) -> float:
        """Returns the Model FLOPs utilization (PaLM, arXiv:2204.02311, appendix B) under a convention."""
        return self.model_flops(pairs) / (self.seconds * self.devices * self.peak_flops)

    @cached_property
    def hardware_utilization(self) -> float:
        """The hardware FLOPs utilization (HFU) with causal attention pairs, including recomputed layers."""
        recompute_share = 0.0 if self.step_plan is None else self.step_plan.recomputed_share / 3
        return self.utilization("causal") * (1 + recompute_share)

    @cached_property
    def seconds_by_rule(self) -> dict[str, float | None]:
        """Seconds by rules of thumb at 45 % of the peak: 6ND, 8ND if layers are recomputed, 4ND for frozen weights."""
        if self.step_plan is None:
            return {"4ND": None, "6ND": None, "8ND": None}
        active_params = ParameterCount(self.spec, self.spec.tree(), self.included_parts).active
        seconds = self.tokens * active_params / (self.devices * self.peak_flops * ASSUMED_UTILIZATION)
        if self.step_plan.adapters is not None:
            return {"4ND": 4 * seconds, "6ND": None, "8ND": None}
        return {"4ND": None, "6ND": 6 * seconds, "8ND": 8 * seconds if self.step_plan.recomputed_share else None}

    @property
    def seconds_by_bound(self) -> dict[Bound, float]:
        """Seconds by bound (compute, memory, network or wait), summed over the whole run."""
        return {
            time_bound: sum(timed_node.seconds_by_bound[time_bound] for timed_node in self.nodes(0))
            for time_bound in BOUNDS
        }

    def nodes(self, depth: int = 2) -> list[TimedNode]:
        """Returns the run's nodes, longest first. depth: levels of the model's tree; 0 for the model as a whole."""
        seconds_by_node: dict[tuple[str, str], dict[Bound, float]] = {}
        for run_count, operation in self.operations:
            node_path = ".".join(operation.path.split(".")[:depth]) if depth else "model"
            seconds_by_bound = seconds_by_node.setdefault(
                (node_path or "model", operation.kind), dict.fromkeys(BOUNDS, 0.0)
            )
            seconds_by_bound["memory" if operation.memory > operation.compute else "compute"] += run_count * max(
                operation.compute, operation.memory
            )
            seconds_by_bound["network"] += run_count * operation.network
            seconds_by_bound["wait"] += run_count * operation.wait
        for part_name, time_bound, part_seconds in self._parts_of_the_run():
            seconds_by_node.setdefault((part_name, "run"), dict.fromkeys(BOUNDS, 0.0))[time_bound] += part_seconds
        timed_nodes = []
        for (node_path, component_name), bound_seconds in seconds_by_node.items():
            part_seconds, time_bound = sum(bound_seconds.values()), max(BOUNDS, key=bound_seconds.__getitem__)
            if part_seconds:
                timed_nodes.append(
                    TimedNode(
                        node_path,
                        component_name,
                        part_seconds,
                        time_bound,
                        bound_seconds[time_bound] / part_seconds,
                        bound_seconds,
                    )
                )
        return sorted(timed_nodes, key=lambda node: -node.seconds)

    def traffic(self) -> dict[str, MemoryTraffic]:
        """Returns the FLOPs and bytes of an inference pass's matrix products by module path.

        Raises `InputError` for a training step.
        """
        if self.step_plan is not None:
            raise InputError("--phase training: has no roofline; expected prefill or decode")
        traffic_by_module: dict[str, MemoryTraffic] = {}
        for pass_work in self.inference_passes:
            time_estimator = TimeEstimator(self.device, self.stack, self.number_formats, pass_work.rank_pass)
            for module_path, kernel in kernel_traffic(pass_work, time_estimator):
                traffic_by_module[module_path] = (
                    traffic_by_module[module_path] + kernel if module_path in traffic_by_module else kernel
                )
        return traffic_by_module

    def _parts_of_the_run(self) -> Iterator[tuple[str, Bound, float]]:
        """Yields the run's parts outside of the model, such as the pipeline bubble, each with its bound and seconds."""
        yield "layer waits", "wait", self.seconds_by_part.get("layer waits", 0.0)
        yield "pipeline bubble", "wait", self.seconds_by_part.get("bubble", 0.0)
        yield "gradients and weights", "network", self.seconds_by_part.get("data", 0.0)
        yield "update", "compute" if self.stack.optimizer_flops else "memory", self.seconds_by_part.get("update", 0.0)
        yield "host", "wait", self.seconds_by_part.get("host", 0.0) + self.host_wait_seconds
        yield "hops between stages", "network", self.seconds_by_part.get("hops", 0.0)
        yield "server", "wait", self.seconds_by_part.get("server", 0.0)


def explain_measured(timed_run: TimedRun, seconds: float) -> list[str]:
    """Returns possible explanations of a measured time. Raises `InputError` for a time that is not positive."""
    low_seconds, high_seconds = float(timed_run.time_range.low), float(timed_run.time_range.high)
    if low_seconds <= seconds <= high_seconds:
        return [f"{signed_percent(seconds / timed_run.seconds - 1, 0)} against the estimate"]
    if seconds < low_seconds:
        advice_text = {
            "training": "the tokens of a step, the number format and what is recomputed",
            "prefill": f"the tokens of the prompt (--seq; {timed_run.seq:,} here), how many are cached, the format",
            "decode": f"the tokens before this one (--seq; {timed_run.context:,} here), the users and the format",
        }[timed_run.phase]
        return [f"{timed_run.seconds / seconds:.1f} times as fast as the estimate: compare {advice_text}"]
    explanations = [f"{seconds / timed_run.seconds:.1f} times the estimate; the whole range is faster"]
    slower_alternatives = sorted(
        timed_run.seconds_of_alternatives.items(), key=lambda alternative: abs(alternative[1] - seconds)
    )
    explanations += [
        f"{settings_text}: {slower_seconds:.2g} s"
        for settings_text, slower_seconds in slower_alternatives
        if slower_seconds > 1.03 * timed_run.seconds
    ]
    if timed_run.phase != "training":
        explanations.append("no captured graphs: the host launches every kernel (--stack vllm-eager)")
    return [*explanations, f"not counted: {', '.join(timed_run.uncounted_effects)}"]
