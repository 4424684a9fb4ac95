"""How much memory a model takes on one device: closed forms of what stays, and a replay of what a run adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..components.base import PUBLISHED
from ..costs.trained_tensors import bytes_of, elements_of, trained_tensors
from ..errors import InputError
from ..evidence import Evidence, Witness
from ..flow.module_names import Checkpoint
from ..model import ModelSpec
from ..ops.recurrent import State
from ..optional import TOWERS
from ..simulator.lowering import Unsupported
from ..workload.execution import AttentionImplementation
from . import static as resident
from .cuda_runtime import HOPPER, Runtime
from .device_memory import TENSORS, DeviceMemory, Run, Term, UnreplayedBytes, check_layers, device_memory, with_evidence
from .evidence import evidence_of_run
from .inference import record_inference
from .optimizers.registry import optimizer
from .settings import Settings
from .simulated_run import cache_block, inference_passes, is_stored_otherwise, kernel_choices, training_run
from .static import USUAL, MemoryUse
from .training import Training, record


@dataclass(frozen=True)
class Memory:
    """The memory that a model takes on one device.

    settings: how it runs. states: what stays between passes, in closed form.
    published: number format of the published weights. config: the model's `config.json`, if it has one.
    runtime: what the accelerator's runtime takes.
    """

    spec: ModelSpec
    settings: Settings
    states: MemoryUse
    published: str = "bfloat16"
    config: Mapping[str, Any] | Checkpoint | None = None
    runtime: Runtime = HOPPER
    _found: dict[Runtime, tuple[AttentionImplementation, DeviceMemory]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def device(self) -> DeviceMemory:
        """What the run holds on the accelerator of `runtime`. Raises `Unsupported` for a step without kernels."""
        return self.on(self.runtime)

    @property
    def attention(self) -> AttentionImplementation:
        """The attention implementation: that of the settings, else the phase's default."""
        return self._at(self.runtime)[0]

    @property
    def flash_bytes(self) -> int | None:
        """`device_bytes` with flash attention; None where that runs already, was not asked about or has no kernel."""
        if self.settings.attn_implementation is not None or self.attention == "flash":
            return None
        try:
            return self.with_(attn_implementation="flash").device.device_bytes
        except Unsupported:
            return None

    def with_(self, **changes: Any) -> Memory:
        """The same model with other settings. Raises `InputError` for settings that contradict each other."""
        count = self.states.count
        return memory(
            self.spec, self.settings.with_(**changes), self.published, count.include, self.config, self.runtime
        )

    def on(self, runtime: Runtime) -> DeviceMemory:
        """What the run holds on an accelerator with that runtime."""
        return self._at(runtime)[1]

    def _at(self, runtime: Runtime) -> tuple[AttentionImplementation, DeviceMemory]:
        """The attention implementation, and what the run holds with it."""
        if runtime not in self._found:
            usual = kernel_choices(self.settings).attention
            try:
                self._found[runtime] = usual, self._replayed(runtime, usual)
            except Unsupported:
                if usual == "eager" or self.settings.attn_implementation is not None:
                    raise
                self._found[runtime] = "eager", self._replayed(runtime, "eager")
        return self._found[runtime]

    def _replayed(self, runtime: Runtime, attention: AttentionImplementation) -> DeviceMemory:
        run = self._training() if self.settings.phase == "training" else self._inference(attention)
        every = self.settings.recomputed().every
        return device_memory(self.spec, run, runtime, self._beside(), self.tensors(attention), every)

    def training(self) -> Training:
        """How a rank of a layout trains the model. Raises `InputError` for another phase."""
        if self.settings.phase != "training":
            raise InputError(f"--phase {self.settings.phase}: is not of training; expected --phase training")
        return training_run(self.settings, self.states)

    def _training(self) -> Run:
        training = self.training()
        return lambda layers, workspace: [record(self.spec, training, layers, workspace)]

    def _inference(self, attention: AttentionImplementation) -> Run:
        """Prefill, decoding, or both, one after the other on an allocator of its own each."""
        passes = inference_passes(self.settings, self.spec, self.states, attention)
        return lambda layers, workspace: [
            record_inference(self.spec, inference, layers, workspace) for inference in passes
        ]

    def _beside(self) -> list[UnreplayedBytes]:
        """What no replay counts: weights in another format than the run's, a paged cache, image and audio encoders."""
        use, settings = self.states, self.settings
        if use.phase == "training":
            return self._towers()
        block = cache_block(settings, use)
        paged = [UnreplayedBytes("cache", use.paged(block, settings.cached(use.workload.seq)))] if block else []
        return [*paged, *([UnreplayedBytes("weights", use.weights)] if is_stored_otherwise(use) else self._towers())]

    def _towers(self) -> list[UnreplayedBytes]:
        """The image and audio encoders, if they are included: no text passes through them."""
        use, count = self.states, self.states.count
        if TOWERS.name not in count.include:
            return []
        rest = count.include - {TOWERS.name}
        here = list(trained_tensors(count.tree, count.include))
        towers = [one for one in here if one not in list(trained_tensors(count.tree, rest))]
        n = elements_of(towers)
        found = [UnreplayedBytes("weights", bytes_of(n, use.dtype))]
        if use.optimizer is None or use.adapters is not None:
            return found
        states = optimizer(use.optimizer.name).state(towers, use.optimizer.dtype, bool(self.settings.momentum)).bytes
        master = bytes_of(n, "float32") if use.has_master else 0
        kept = self.settings.zero_grad == "zeros"
        return [
            *found,
            UnreplayedBytes("optimizer", states + master),
            UnreplayedBytes("gradients", bytes_of(n, use.grad_dtype), ("backward", "step"), stays=kept),
        ]

    def tensors(self, attention: AttentionImplementation) -> Term:
        """The tensors of the run, known as well as the least known of what it uses."""
        return with_evidence(TENSORS, self.evidence(attention))

    def evidence(self, attention: AttentionImplementation) -> list[Evidence]:
        """The parts, kernels, optimizer and settings of the run, each with its witness.

        attention: which implementation runs.
        """
        settings, use = self.settings, self.states
        from_source = [
            (use.adapters is not None and use.adapters.base != "none", "bitsandbytes/functional.py, quantize_4bit"),
            (use.adapters is not None and use.adapters.library == "litgpt", "lit_gpt/lora.py"),
            (bool(settings.offload_activations), "torchtune/training/_activation_offloading.py"),
            (bool(settings.optimizer_in_backward), "torchtune/training/memory.py, OptimizerInBackwardWrapper"),
            (use.quantized is not None, "the scheme's storage; products in the activations' format"),
            (bool(cache_block(settings, use)), "a paged cache, written in place"),
            (is_recurrent(self.spec), PUBLISHED.name),
        ]
        estimated = [
            (
                use.grad_dtype not in ("", use.adapter_dtype or use.dtype),
                "sums of gradients in a format of their own",
            )
        ]
        optimizer = None if use.optimizer is None else use.optimizer.name
        return [
            *evidence_of_run(self.spec, kernel_choices(settings, attention), optimizer, use.count.include),
            *(Evidence("setting", text, Witness("source", text, "")) for holds, text in from_source if holds),
            *(Evidence("setting", text, Witness("estimate", text, "")) for holds, text in estimated if holds),
        ]


def is_recurrent(spec: ModelSpec) -> bool:
    """Whether a layer has a state that is updated token by token."""
    return any(isinstance(place.node.op, State) for place in spec.tree().walk())


def memory(
    spec: ModelSpec,
    settings: Settings = USUAL,
    published: str = "bfloat16",
    include: frozenset[str] = frozenset(),
    config: Mapping[str, Any] | Checkpoint | None = None,
    runtime: Runtime = HOPPER,
) -> Memory:
    """The memory of a model under these settings; the run is replayed when it is asked for.

    published, include, config: as in `costs.resident.memory`. runtime: what the accelerator's runtime takes; default
    that of an H100 with torch's defaults.
    Raises `InputError` for settings that contradict each other, the phase or the model.
    """
    check_layers(spec)
    states = resident.memory(spec, settings, published, include, config)
    return Memory(spec, settings, states, published, config, runtime)
