"""The memory of a device in reinforcement learning, on which an inference engine and training take turns.

The update is the replayed training step. The engine has its own rule. What other models and passes take is estimated:
their weights, and for a pass without gradients the logits of a micro-batch or the widest layer's activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..accelerator import Hardware
from ..device_memory.cuda_runtime import CudaRuntime
from ..device_memory.device_memory import DeviceMemory
from ..errors import InputError
from ..evidence import Status
from ..frameworks.engines.engine import EngineMemory
from ..frameworks.engines.flags import read_flag_values
from ..frameworks.engines.rank import EngineRank
from ..frameworks.engines.registry import engine_and_version
from ..frameworks.launch.rollout import AdditionalModel, Rollout, with_arguments_for_flags
from ..frameworks.ranks import Cluster, rank_with_most_memory
from ..sources.preset import Preset
from ..units import DTYPE_BITS

HIDDEN_VECTORS = 4
"""Number of hidden-size vectors that are alive per token in a layer's pass without gradients."""

TRAINED_STATE_KINDS = ("weights", "gradients", "optimizer")
"""Kinds of memory that the trained model keeps between its passes."""


class PhaseTerm(NamedTuple):
    """A memory term of a phase. status: verification status. source: the file, rule or check behind its bytes."""

    name: str
    bytes: int
    status: Status
    source: str


class RolloutPhase(NamedTuple):
    """A phase (`rollout`, `weight_transfer`, `log_probabilities` or `update`), with its memory terms at the peak."""

    name: str
    terms: tuple[PhaseTerm, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all memory terms of the phase."""
        return sum(memory_term.bytes for memory_term in self.terms)


def rollout_phases(
    cluster: Cluster, rollout: Rollout, preset: Preset, hardware: Hardware, cuda_runtime: CudaRuntime
) -> list[RolloutPhase]:
    """Returns the phases of a reinforcement-learning step on an accelerator, in execution order.

    cluster: the update of the trained model. cuda_runtime: the CUDA runtime of the accelerator.
    Raises `InputError` for flags of the engine that contradict the model.
    """
    device = rank_with_most_memory(cluster.memory_of_ranks(cuda_runtime)).device
    return _PhaseCalculator(cluster, rollout, preset, hardware, device).phases()


class _PhaseCalculator:
    """Computes a device's memory terms in each phase. device: its memory in the update phase."""

    def __init__(
        self, cluster: Cluster, rollout: Rollout, preset: Preset, hardware: Hardware, device: DeviceMemory
    ) -> None:
        self.cluster, self.rollout, self.preset, self.device = cluster, rollout, preset, device
        self.context = device.device_bytes - device.reserved_bytes
        step_bytes = device.moments.get("step", {})
        self.states = {memory_kind: step_bytes.get(memory_kind, 0) for memory_kind in TRAINED_STATE_KINDS}
        other_memory_terms = ("weights", "optimizer", "overhead")
        self.states["gradients"] = max(
            0, device.after_step_bytes - sum(step_bytes.get(memory_kind, 0) for memory_kind in other_memory_terms)
        )
        tp = cluster.layout.tp
        self.vocab = -(-preset.model.vocab_size // tp)
        self.model = EngineRank(preset, cluster.layout, 0, includes_towers=False)
        self.engine = None if rollout.shares_weights else self._engine_memory(hardware)
        self.shared_budget = self._shared_budget(hardware.capacity_bytes) if rollout.shares_weights else 0

    def _shared_budget(self, device_capacity: int) -> int:
        """Returns the engine's memory budget on a device it shares with training: a fraction of the device's memory."""
        memory_shares = (
            memory_share
            for least_gib, memory_share in self.rollout.memory_fractions_by_capacity
            if device_capacity >= least_gib << 30
        )
        return int(next(memory_shares, self.rollout.flags["gpu_memory_utilization"]) * device_capacity)

    def _engine_memory(self, hardware: Hardware) -> EngineMemory | None:
        """Returns the inference engine's memory on the device, by term.

        Its budget is a share of the device, or of the memory that training leaves free.
        """
        if not self.rollout.engine:
            return None
        engine, engine_version = engine_and_version(self.rollout.engine)
        if engine.budgets_free_memory:
            free_bytes = hardware.capacity_bytes - sum(
                memory_term.bytes for memory_term in self._terms_between_passes()
            )
            hardware = hardware.model_copy(update={"driver_total": max(free_bytes, 1), "usable_memory_bytes": None})
        try:
            engine_flags = read_flag_values(engine.title, engine.known_flags(), self.rollout.flags)
            return engine.memory_on(self.preset, hardware, engine_version, engine_flags)
        except InputError as error:
            error_text = with_arguments_for_flags(str(error), self.rollout.argument_by_engine_flag)
            raise InputError(f"the rollout's {engine.title}: {error_text}") from None

    def phases(self) -> list[RolloutPhase]:
        """The phases of reinforcement learning in execution order, with their memory terms."""
        terms_by_phase_name = {
            "rollout": self._rollout_terms,
            "weight_transfer": self._weight_transfer_terms,
            "log_probabilities": self._log_probability_terms,
            "update": self._update_terms,
        }
        omitted_phases: tuple[str, ...] = () if self.engine is not None else ("rollout", "weight_transfer")
        omitted_phases = ("weight_transfer",) if self.rollout.shares_weights else omitted_phases
        if not self.rollout.has_log_probabilities:
            omitted_phases = (*omitted_phases, "log_probabilities")
        return [
            RolloutPhase(phase_name, tuple(_nonzero_terms(phase_terms())))
            for phase_name, phase_terms in terms_by_phase_name.items()
            if phase_name not in omitted_phases
        ]

    def _terms_between_passes(self) -> list[PhaseTerm]:
        """Returns the memory terms that training keeps on the device between passes."""
        other_states = [
            memory_term
            for memory_term in self._other_model_terms()
            if memory_term.name != "reference" or memory_term.name not in self.rollout.offloaded_states
        ]
        return list(_nonzero_terms([*self._trained_model_terms(()), *other_states, self._context_term()]))

    def _trained_model_terms(self, loaded_states: Iterable[str]) -> Iterator[PhaseTerm]:
        """Yields the trained model's memory terms. loaded_states: states that this phase copies from the host."""
        for memory_kind in TRAINED_STATE_KINDS:
            if memory_kind not in self.rollout.offloaded_states or memory_kind in loaded_states:
                yield PhaseTerm(memory_kind, self.states[memory_kind], "source", self.rollout.source)

    def _other_model_terms(self) -> Iterator[PhaseTerm]:
        """Yields the memory terms of other models on the device: reference, reward and critic models."""
        for model_name, additional_model in self._frozen_models():
            if additional_model.weights_location == "device":
                yield self._frozen_term(model_name, additional_model)
        if self.rollout.critic_location == "device":
            yield self._critic_terms()

    def _frozen_models(self) -> Iterator[tuple[str, AdditionalModel]]:
        yield "reference", self.rollout.reference_model
        yield "reward", self.rollout.reward_model

    def _frozen_term(self, model_name: str, additional_model: AdditionalModel) -> PhaseTerm:
        parameter_count = additional_model.parameter_count or self.cluster.memory.states.parameter_count.total
        return PhaseTerm(
            model_name,
            parameter_count * additional_model.bytes_per_weight // additional_model.rank_count,
            "estimate",
            self.rollout.source,
        )

    def _critic_terms(self) -> PhaseTerm:
        if self.rollout.critic_bytes:
            return PhaseTerm("critic", self.rollout.critic_bytes, "estimate", self.rollout.source)
        state_bytes = sum(self.states.values())
        return PhaseTerm("critic", state_bytes, "estimate", f"as large as the trained model; {self.rollout.source}")

    def _context_term(self) -> PhaseTerm:
        process_count = 2 if self.rollout.has_separate_process and self.rollout.engine else 1
        return PhaseTerm("context", process_count * self.context, "estimate", "the CUDA context of each process")

    def _engine_terms(self, *term_names: str) -> Iterator[PhaseTerm]:
        """Yields the engine's memory terms, all or those named; its memory budget is not a term."""
        if self.rollout.shares_weights:
            if not term_names or "kv_cache" in term_names:
                cache_bytes = self.shared_budget - self.states["weights"]
                yield PhaseTerm("engine_kv_cache", cache_bytes, "estimate", self.rollout.source)
            return
        assert self.engine is not None
        for memory_term in self.engine.terms:
            if memory_term.name != "budget" and (not term_names or memory_term.name in term_names):
                term_status: Status = "estimate" if memory_term.status == "measured" else memory_term.status
                yield PhaseTerm(f"engine_{memory_term.name}", memory_term.bytes, term_status, memory_term.source)

    def _idle_engine_terms(self) -> Iterator[PhaseTerm]:
        """Yields the idle engine's memory terms; in the same process, training reuses its activation blocks."""
        if self.engine is None and not self.rollout.shares_weights:
            return
        term_names = ["non_torch", "cuda_graphs"]
        if not self.rollout.engine_sleeps_while_idle:
            term_names += ["weights", "kv_cache", *(["profile_run"] if self.rollout.has_separate_process else [])]
        yield from self._engine_terms(*term_names)

    def _rollout_terms(self) -> Iterator[PhaseTerm]:
        yield from self._terms_between_passes()
        yield from self._engine_terms()

    def _weight_transfer_terms(self) -> Iterator[PhaseTerm]:
        """Yields the terms while the engine receives weights; after sleep mode it has no cache at that time."""
        yield from self._terms_between_passes()
        yield from self._idle_engine_terms()
        if self.rollout.engine_sleeps_while_idle:
            yield from self._engine_terms("weights")
        byte_count = self.rollout.weight_transfer_bytes or self._largest_matrix_bytes()
        yield PhaseTerm("weights_sent", byte_count, "estimate", self.rollout.source)

    def _largest_matrix_bytes(self) -> int:
        """The bytes of the largest matrix of the undivided model, at two bytes per element."""
        dense_width, _, expert_count = EngineRank(self.preset, includes_towers=False).widest_network_sizes
        hidden_size = self.model.hidden_size
        matrix_width = max(
            dense_width,
            self.model.vocab_size,
            0 if expert_count is None else expert_count.expert_count * expert_count.intermediate_size,
        )
        return 2 * matrix_width * hidden_size

    def _log_probability_terms(self) -> Iterator[PhaseTerm]:
        """Yields the memory terms of passes without gradients: of the trained model, the reference and the critic."""
        rollout = self.rollout
        yield from self._trained_model_terms(("weights",))
        yield from self._other_model_terms()
        if "weights" not in rollout.offloaded_states:
            frozen_weight_terms = (
                self._frozen_term(model_name, additional_model)
                for model_name, additional_model in self._frozen_models()
                if additional_model.weights_location == "host"
            )
            yield from sorted(frozen_weight_terms, key=lambda term: -term.bytes)[:1]  # one after the other
        gathered_bytes = self.device.moments.get("forward", {}).get("weights", 0) - self.states["weights"]
        yield PhaseTerm("gathered_weights", max(0, gathered_bytes), "estimate", "the training's forward pass")
        row_count = rollout.sequence_count * rollout.logit_tokens_per_sequence
        yield PhaseTerm("logits", row_count * self.vocab * rollout.bytes_per_logit, "estimate", rollout.source)
        yield PhaseTerm("activations", self._layer_bytes(), "estimate", "the widest layer's vectors per token")
        yield from self._idle_engine_terms()
        yield self._context_term()

    def _layer_bytes(self) -> int:
        """Returns the bytes of one layer's activations in a pass without gradients."""
        dense_width, is_gated, expert_count = self.model.widest_network_sizes
        network_width = dense_width * (3 if is_gated else 2)
        if expert_count is not None:
            network_width = max(network_width, expert_count.top_k * 3 * expert_count.intermediate_size)
        element_bytes = max(2, DTYPE_BITS[self.cluster.memory.states.dtype] // 8)
        row_count = self.rollout.sequence_count * self.rollout.tokens_per_sequence
        return row_count * element_bytes * (HIDDEN_VECTORS * self.model.hidden_size + network_width)

    def _update_terms(self) -> Iterator[PhaseTerm]:
        """Yields the terms of the training step, beside the idle engine. The critic is trained after the model."""
        device = self.device
        tensors_term = device.terms[0]
        for memory_kind, byte_count in device.by_kind.items():
            yield PhaseTerm(memory_kind, byte_count, tensors_term.status, tensors_term.witness)
        yield PhaseTerm("fragmentation", device.fragmentation, "estimate", "the caching allocator")
        yield from self._other_model_terms()
        yield from self._idle_engine_terms()
        yield self._context_term()


def _nonzero_terms(phase_terms: Iterable[PhaseTerm]) -> Iterator[PhaseTerm]:
    """Yields the memory terms whose bytes are not 0."""
    return (memory_term for memory_term in phase_terms if memory_term.bytes > 0)
