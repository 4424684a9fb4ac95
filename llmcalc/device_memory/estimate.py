"""The memory of a model on one device: persistent tensors from closed forms, the others from a replay of the run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..components.base import PUBLISHED_KERNELS_WITNESS
from ..components.evidence import nested_components
from ..components.networks.moe import MoE
from ..costs.trained_tensors import packed_bytes, total_elements, trained_tensors
from ..errors import InputError
from ..evidence import UNTESTED, Evidence, Witness
from ..flow.module_names import Checkpoint
from ..frozen import frozen
from ..identity_cache import IdentityCache
from ..model import ModelSpec
from ..ops.recurrent import State
from ..optional import TOWERS
from ..parallel.rank_model import RankModel
from ..simulator.event_log import RecordedEvents
from ..simulator.lowering import UnsupportedKernel
from ..workload.execution import AttentionImplementation
from ..workload.loaded_encoders import LoadedEncoders
from . import static as resident
from .cuda_runtime import HOPPER_RUNTIME, LARGE_GPU_WORKSPACE_BYTES, CudaRuntime
from .device_memory import (
    TENSORS_TERM,
    CountedRun,
    DeviceMemory,
    MemoryTerm,
    RecordReplay,
    UnreplayedBytes,
    refuse_too_many_layers,
    with_evidence,
)
from .evidence import evidence_of_run
from .host_memory import host_terms, with_paged_states
from .inference import InferenceConfig, record_inference, recording_key_of_rank
from .optimizers.registry import optimizer
from .settings import Settings
from .simulated_run import (
    activation_format,
    cache_block_tokens,
    default_attention,
    has_storage_format,
    inference_configs,
    kernel_choices,
    kernel_choices_for_runtime,
    training_replay_config,
)
from .static import DEFAULT_SETTINGS, QuantizedSizes, StaticMemory
from .training import TrainingConfig, record_training

if TYPE_CHECKING:
    from .encoders import EncoderPeak


class CountedMemory(NamedTuple):
    """A run with counted tensors, its attention implementation, and the memory peaks of image and audio encoders.

    attention_implementation: the attention implementation. encoder_peaks: peaks of image and audio encoders.
    """

    attention_implementation: AttentionImplementation
    run: CountedRun
    encoder_peaks: Sequence[EncoderPeak]


_counted_runs_of_inference: IdentityCache[CountedRun] = IdentityCache(64)
"""Counted runs of inference, which formats of the weights and accelerators with equal kernels share."""


@frozen
class Memory:
    """The memory of a model on one device, for given settings.

    settings: the settings of the run.
    states: persistent tensors, in closed form.
    published_dtype: number format of the published weights, default bfloat16.
    model_config: the model's `config.json`; None if it has none.
    cuda_runtime: memory of the accelerator's runtime, default that of an H100.
    bytes_of_other_models: bytes that another model keeps on the device, such as a draft of speculative decoding;
        default none.
    names_gguf_file: whether the model's name is that of a GGUF file, whose weights in 16 bits or MXFP4 are GGUF too: a
        tag of Ollama's library or a repository of GGUF files; or whether an engine that reads them is named.
    """

    spec: ModelSpec
    settings: Settings
    states: StaticMemory
    published_dtype: str = "bfloat16"
    model_config: Mapping[str, Any] | Checkpoint | None = None
    cuda_runtime: CudaRuntime = HOPPER_RUNTIME
    bytes_of_other_models: Sequence[UnreplayedBytes] = ()
    names_gguf_file: bool = False
    _recordings: dict[Hashable, RecordedEvents] = field(default_factory=dict, repr=False, compare=False)
    _counted_runs: dict[Hashable, CountedRun] = field(default_factory=dict, repr=False, compare=False)
    _quantized_sizes: QuantizedSizes = field(default_factory=dict, repr=False, compare=False)
    _quantized_sizes_of_ranks: dict[Hashable, QuantizedSizes] = field(default_factory=dict, repr=False, compare=False)
    _counted_memory_by_runtime: dict[CudaRuntime, CountedMemory] = field(
        default_factory=dict, repr=False, compare=False
    )
    _device_memory_by_runtime: dict[CudaRuntime, DeviceMemory] = field(default_factory=dict, repr=False, compare=False)

    @property
    def device(self) -> DeviceMemory:
        """The memory on the run's accelerator. Raises `UnsupportedKernel` for an operation without a kernel."""
        return self.memory_for_runtime(self.cuda_runtime)

    @property
    def has_gguf_weights(self) -> bool:
        """Whether the weights come from a GGUF file, the format of llama.cpp.

        Those of a name of a GGUF file do in 16 bits (`none`) too, and as published in MXFP4.
        """
        quantized_size, scheme_name = self.states.quantized_size, self.settings.quantize
        if quantized_size is None:
            return self.names_gguf_file and scheme_name is not None
        from ..costs.quantization.gguf import GGUFMix

        is_published_mxfp4 = scheme_name is None and quantized_size.scheme.label == "mxfp4"
        return isinstance(quantized_size.scheme, GGUFMix) or (self.names_gguf_file and is_published_mxfp4)

    @property
    def attention(self) -> AttentionImplementation:
        """The attention implementation of the settings, else the phase's default."""
        return self._counted_run_for_runtime(self.cuda_runtime).attention_implementation

    @property
    def least_device_bytes(self) -> int:
        """A lower bound of `device.device_bytes`, which is found without a replay of the caching allocator."""
        counted_run = self._counted_run_for_runtime(self.cuda_runtime).run
        return counted_run.least_bytes(self.cuda_runtime.context_bytes, self._unreplayed_bytes())

    @property
    def flash_bytes(self) -> int | None:
        """The `device_bytes` of the same run with flash attention; None if flash attention cannot be chosen.

        None if flash or sdpa runs already, or flash has no kernel, or if the settings choose an implementation.
        """
        if self.settings.attn_implementation is not None or self.attention in ("flash", "sdpa"):
            return None
        try:
            return self.with_changes(attn_implementation="flash").device.device_bytes
        except UnsupportedKernel:
            return None

    def with_changes(self, **changes: Any) -> Memory:
        """Returns the memory of the same model with changed settings. Raises `InputError` for contradictory settings.

        A new base in few bits brings the recomputation that it has by default.
        """
        parameter_count, run_settings = self.states.parameter_count, self.settings.with_changes(**changes)
        changed_memory = memory(
            self.spec,
            run_settings.with_usual_recomputation() if "base" in changes else run_settings,
            self.published_dtype,
            parameter_count.include,
            self.model_config,
            self.cuda_runtime,
            self.bytes_of_other_models,
            self._quantized_sizes,
        )
        return replace(
            changed_memory,
            names_gguf_file=self.names_gguf_file,
            _quantized_sizes_of_ranks=self._quantized_sizes_of_ranks,
        )

    def quantized_sizes_of_rank(self, model: RankModel) -> QuantizedSizes:
        """Returns the cached sizes of a rank's quantized weights, which `memory` fills in. model: the rank's model."""
        return self._quantized_sizes_of_ranks.setdefault(recording_key_of_rank(model, {}), {})

    def memory_for_runtime(self, cuda_runtime: CudaRuntime) -> DeviceMemory:
        """Returns the device memory on an accelerator with these CUDA properties."""
        if cuda_runtime not in self._device_memory_by_runtime:
            self._device_memory_by_runtime[cuda_runtime] = self._replay(cuda_runtime)
        return self._device_memory_by_runtime[cuda_runtime]

    def _counted_run_for_runtime(self, cuda_runtime: CudaRuntime) -> CountedMemory:
        """Returns the run with these CUDA properties: tensors are counted, the allocator is not replayed."""
        if cuda_runtime not in self._counted_memory_by_runtime:
            usual_attention = default_attention(self.settings, self.spec)
            try:
                self._counted_memory_by_runtime[cuda_runtime] = self._count_memory(cuda_runtime, usual_attention)
            except UnsupportedKernel:
                if usual_attention == "eager" or self.settings.attn_implementation is not None:
                    raise
                self._counted_memory_by_runtime[cuda_runtime] = self._count_memory(cuda_runtime, "eager")
        return self._counted_memory_by_runtime[cuda_runtime]

    def _count_memory(self, cuda_runtime: CudaRuntime, attention: AttentionImplementation) -> CountedMemory:
        if self.settings.phase == "training":
            training_run = self._training_recorder(cuda_runtime)
            counted_run = CountedRun(self.spec, training_run, cuda_runtime, self._layer_period)
        else:
            counted_run = self._counted_inference_run(self._inference_passes(attention, cuda_runtime), cuda_runtime)
        return CountedMemory(attention, counted_run, self._encoder_peaks(attention))

    def _replay(self, cuda_runtime: CudaRuntime) -> DeviceMemory:
        """Replays the run on the caching allocator of an accelerator with these CUDA properties."""
        attention, training_run, encoder_peaks = self._counted_run_for_runtime(cuda_runtime)
        unreplayed_allocations, tensors = self._unreplayed_bytes(), self.tensors(attention)
        device = training_run.memory(cuda_runtime.context_bytes, unreplayed_allocations, tensors, encoder_peaks)
        if self.settings.phase != "training":
            return device
        device = with_paged_states(device, self.states)
        return replace(device, host_terms=host_terms(self.spec, self.states, self.training(), self._layer_period))

    @property
    def _layer_period(self) -> int:
        """Returns the number of layers after which the sequence of layer types in execution order repeats."""
        trains_all_layers = self.states.first_trained_layer is None
        return self.settings.recompute_choice().every if trains_all_layers else self.training().layer_period

    @property
    def _has_encoder_run(self) -> bool:
        """Whether an image or audio encoder runs before the text model's prompt pass."""
        encoded_inputs = self.states.encoded_inputs
        return encoded_inputs is not None and bool(encoded_inputs.encoder_runs) and self.settings.phase != "decode"

    def _encoder_peaks(self, attention: AttentionImplementation) -> list[EncoderPeak]:
        """Returns the memory peaks of image and audio encoders; empty without images or audio."""
        encoded_inputs = self.states.encoded_inputs
        if encoded_inputs is None or not self._has_encoder_run:
            return []
        from .encoders import encoder_peaks

        kernel_options = replace(kernel_choices(self.settings, self.spec, attention), attention=attention)
        return encoder_peaks(self.spec, encoded_inputs, activation_format(self.states), kernel_options)

    def training(self, cuda_runtime: CudaRuntime | None = None) -> TrainingConfig:
        """Returns the configuration of the training replay, with the accelerator's kernels.

        cuda_runtime: that of the accelerator; None (default) for that of this memory. Raises `InputError` for another
        phase than training.
        """
        if self.settings.phase != "training":
            raise InputError(f"--phase {self.settings.phase}: is not of training; expected --phase training")
        config = training_replay_config(
            self.settings, self.spec, self.states, default_attention(self.settings, self.spec)
        )
        return replace(
            config,
            kernel_choices=kernel_choices_for_runtime(
                config.kernel_choices, self.cuda_runtime if cuda_runtime is None else cuda_runtime
            ),
        )

    def _training_recorder(self, cuda_runtime: CudaRuntime) -> RecordReplay:
        training_config = replace(self.training(cuda_runtime), pages_states=True)
        return lambda repeats_by_stack, workspace_bytes: [
            record_training(self.spec, training_config, repeats_by_stack, workspace_bytes)
        ]

    def _inference_passes(self, attention: AttentionImplementation, cuda_runtime: CudaRuntime) -> list[InferenceConfig]:
        """Returns the configurations of the inference replays, with the accelerator's kernels.

        Only the kernels of sdpa and of gradients depend on the accelerator, so that others are those of an H100.
        """
        pass_configs = inference_configs(self.settings, self.spec, self.states, attention)
        if attention != "sdpa":
            return pass_configs
        compute_capability = cuda_runtime.compute_capability
        return [
            replace(
                inference_config,
                kernel_choices=replace(inference_config.kernel_choices, compute_capability=compute_capability),
            )
            for inference_config in pass_configs
        ]

    def _counted_inference_run(self, pass_configs: Sequence[InferenceConfig], cuda_runtime: CudaRuntime) -> CountedRun:
        """Returns the counted tensors of these passes, from a cache for equal ranks and equal kernels."""

        def count_passes() -> CountedRun:
            """Records the passes of each configuration separately, and counts their tensors."""
            return CountedRun(
                self.spec,
                lambda repeats_by_stack, workspace_bytes: [
                    self._passes_recorder(pass_config, repeats_by_stack, workspace_bytes)
                    for pass_config in pass_configs
                ],
                cuda_runtime,
                self.settings.recompute_choice().every,
            )

        runtime_key = (
            cuda_runtime.workspace_bytes,
            cuda_runtime.has_expandable_segments,
            cuda_runtime.belongs_to_search,
        )
        if not isinstance(self.spec, RankModel):
            size_types = [(type(pass_config.batch), type(pass_config.seq)) for pass_config in pass_configs]
            whole_run_key = *pass_configs, *size_types, runtime_key, self.settings.recompute_choice().every
            return _counted_runs_of_inference.result((self.spec,), whole_run_key, count_passes)
        run_key = recording_key_of_rank(self.spec, {}), tuple(pass_configs), runtime_key
        if run_key not in self._counted_runs:
            self._counted_runs[run_key] = count_passes()
        return self._counted_runs[run_key]

    def _passes_recorder(
        self, inference_config: InferenceConfig, repeats_by_stack: Mapping[int, int], workspace_bytes: int
    ) -> RecordedEvents:
        """Returns the recorded allocations of passes for a workspace size, shared by ranks with equal keys."""
        if not isinstance(self.spec, RankModel):
            return record_inference(self.spec, inference_config, repeats_by_stack, workspace_bytes)
        run_key = recording_key_of_rank(self.spec, repeats_by_stack), inference_config
        if run_key not in self._recordings:
            self._recordings[run_key] = record_inference(
                self.spec, inference_config, repeats_by_stack, LARGE_GPU_WORKSPACE_BYTES
            )
        return self._recordings[run_key].with_workspace(workspace_bytes)

    def _unreplayed_bytes(self) -> list[UnreplayedBytes]:
        """Returns the bytes that no replay allocates: stored weights, a paged cache, image and audio encoders."""
        static_memory, run_settings = self.states, self.settings
        if static_memory.phase == "training":
            return self.tower_bytes()
        paged_cache_bytes, block_tokens = [], cache_block_tokens(run_settings, static_memory)
        if block_tokens:
            cached_tokens = run_settings.cached_tokens(static_memory.workload.seq)
            cache_bytes = static_memory.paged_cache_bytes(block_tokens, cached_tokens)
            paged_cache_bytes.append(UnreplayedBytes("cache", cache_bytes))
        stored_weight_bytes = (
            [UnreplayedBytes("weights", static_memory.weights)]
            if has_storage_format(static_memory)
            else self.tower_bytes()
        )
        return [*paged_cache_bytes, *stored_weight_bytes, *self.bytes_of_other_models]

    def tower_bytes(self, loaded_encoders: LoadedEncoders | None = None) -> list[UnreplayedBytes]:
        """Returns the bytes of image and audio encoders, which the replay of the text model does not run.

        loaded_encoders: the use of encoders that are not included; None (default) if the run does not load them.
            Included ones are trained with the model.
        """
        static_memory, parameter_count = self.states, self.states.parameter_count
        if TOWERS.name in parameter_count.include:
            loaded_encoders = LoadedEncoders()
        elif loaded_encoders is None or TOWERS.name not in parameter_count.left_out:
            return []
        if static_memory.adapters is not None and not loaded_encoders.is_quantized:
            static_memory = replace(static_memory, adapters=replace(static_memory.adapters, base_format="none"))
        parts_without_towers = parameter_count.include - {TOWERS.name}
        weight_bytes, bytes_without_towers = (
            replace(static_memory, parameter_count=replace(parameter_count, include=parts)).weights
            for parts in (parts_without_towers | {TOWERS.name}, parts_without_towers)
        )
        weights = [UnreplayedBytes("weights", weight_bytes - bytes_without_towers)]
        trains_all_weights = static_memory.adapters is None and static_memory.first_trained_layer is None
        if static_memory.optimizer is None or not trains_all_weights or not loaded_encoders.is_trained:
            return weights
        text_tensors = list(trained_tensors(parameter_count.tree, parts_without_towers))
        tower_tensors = [
            tensor
            for tensor in trained_tensors(parameter_count.tree, parts_without_towers | {TOWERS.name})
            if tensor not in text_tensors
        ]
        tower_elements = total_elements(tower_tensors)
        state_bytes = (
            optimizer(static_memory.optimizer.name)
            .state(tower_tensors, static_memory.optimizer.dtype, bool(self.settings.momentum))
            .bytes
        )
        master_bytes = packed_bytes(tower_elements, "float32") if static_memory.has_master_weights else 0
        zeroes_gradients = self.settings.zero_grad == "zeros"
        return [
            *weights,
            UnreplayedBytes("optimizer", state_bytes + master_bytes),
            UnreplayedBytes(
                "gradients",
                packed_bytes(tower_elements, static_memory.grad_dtype),
                ("backward", "step"),
                stays_after_run=zeroes_gradients,
            ),
        ]

    def tensors(self, attention: AttentionImplementation) -> MemoryTerm:
        """The memory term for the run's tensors, with the weakest verification status among the evidence."""
        return with_evidence(TENSORS_TERM, self.evidence(attention))

    def evidence(self, attention: AttentionImplementation) -> list[Evidence]:
        """Returns the evidence for the model's parts, the kernels, the optimizer and the settings of the run.

        attention: the attention implementation that runs.
        """
        run_settings, static_memory = self.settings, self.states
        frozen_format = "none" if static_memory.adapters is None else static_memory.adapters.base_format
        evidence_from_source = [
            (frozen_format.startswith("nf4"), "bitsandbytes/functional.py, quantize_4bit"),
            (frozen_format == "int8", "bitsandbytes/autograd/_functions.py, MatMul8bitLt, without columns of outliers"),
            (static_memory.adapters is not None and static_memory.adapters.library == "litgpt", "lit_gpt/lora.py"),
            (bool(run_settings.lora_experts), "peft/tuners/lora/layer.py, ParamWrapper"),
            (bool(run_settings.use_dora), "peft/tuners/lora/dora.py, DoraLinearLayer"),
            (bool(run_settings.offload_activations), "torchtune/training/_activation_offloading.py"),
            (bool(run_settings.optimizer_in_backward), "torchtune/training/memory.py, OptimizerInBackwardWrapper"),
            (static_memory.quantized_size is not None, "the scheme's storage; products in the activations' format"),
            (bool(cache_block_tokens(run_settings, static_memory)), "a paged cache, written in place"),
            (is_recurrent(self.spec), PUBLISHED_KERNELS_WITNESS.name),
        ]
        estimated_parts = [
            (
                bool(run_settings.quantized_experts),
                "experts in 4 bits, decoded whole in each pass: moe_quant.py of axolotl",
            ),
            (
                static_memory.grad_dtype not in ("", static_memory.trained_format),
                "sums of gradients in a format of their own",
            ),
            (
                kernel_choices(run_settings, self.spec, attention).matches_transformers
                and loops_over_experts(self.spec),
                "experts that the class of transformers runs one after another, counted as one grouped product",
            ),
            (
                attention == "flash" and run_settings.phase != "training" and has_modified_scores(self.spec),
                "scores that an engine's kernel changes inside, with the memory of flash attention",
            ),
        ]
        optimizer = None if static_memory.optimizer is None else static_memory.optimizer.name
        return [
            *evidence_of_run(
                self.spec,
                kernel_choices(run_settings, self.spec, attention),
                optimizer,
                static_memory.parameter_count.include,
            ),
            *([Evidence("pass", "of the encoders", UNTESTED)] if self._has_encoder_run else []),
            *(
                Evidence("setting", evidence_text, Witness("source", evidence_text, ""))
                for setting_applies, evidence_text in evidence_from_source
                if setting_applies
            ),
            *(
                Evidence("setting", evidence_text, Witness("estimate", evidence_text, ""))
                for setting_applies, evidence_text in estimated_parts
                if setting_applies
            ),
        ]


def is_recurrent(spec: ModelSpec) -> bool:
    """Whether a token mixer of the model has a recurrent state that changes with every token."""
    return any(isinstance(tree_node.node.op, State) for tree_node in spec.tree().walk())


def loops_over_experts(spec: ModelSpec) -> bool:
    """Whether the model's class in transformers runs the experts one after another in a loop."""
    return any(isinstance(expert_part, MoE) and expert_part.expert_loop for expert_part in nested_components(spec))


def has_modified_scores(spec: ModelSpec) -> bool:
    """Whether the scores of attention have sinks, an added bias, or a selection of keys."""
    return any(
        operation.verb == "joint_softmax"
        or (operation.verb == "attention" and (operation.options.get("sinks") or len(operation.input_values) > 3))
        for operation in spec.shared_program.root.steps(includes_idle=False)
    )


def memory(
    spec: ModelSpec,
    run_settings: Settings = DEFAULT_SETTINGS,
    published_dtype: str = "bfloat16",
    extra_parts: frozenset[str] = frozenset(),
    model_config: Mapping[str, Any] | Checkpoint | None = None,
    cuda_runtime: CudaRuntime = HOPPER_RUNTIME,
    other_models: Sequence[UnreplayedBytes] = (),
    quantized_sizes: QuantizedSizes | None = None,
) -> Memory:
    """Returns a model's memory under these settings; the first access to `device` starts the replay.

    published_dtype, extra_parts, model_config: as in `static.memory`.
    cuda_runtime: memory of the accelerator's runtime, default that of an H100 with torch's defaults.
    other_models: as in `Memory`.
    quantized_sizes: as in `static.memory`.
    Raises `InputError` for settings that contradict each other, the phase or the model.
    """
    refuse_too_many_layers(spec)
    spec = spec.with_dropout(run_settings.dropout)
    stored_sizes: QuantizedSizes = {} if quantized_sizes is None else quantized_sizes
    static_memory = resident.memory(spec, run_settings, published_dtype, extra_parts, model_config, stored_sizes)
    return Memory(
        spec,
        run_settings,
        static_memory,
        published_dtype,
        model_config,
        cuda_runtime,
        other_models,
        _quantized_sizes=stored_sizes,
    )
