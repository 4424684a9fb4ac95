"""Runs the set-up and training steps of one Megatron-LM rank: passes of micro-batches and optimizer steps.

A variable that holds a tensor here lives as long as Megatron's own variable.

Sources: Megatron-LM, megatron/training/training.py, megatron/core/pipeline_parallel/schedules.py (`forward_step`,
`backward_step`), megatron/core/optimizer/optimizer.py and distrib_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from weakref import ref

from ...errors import InputError
from ...identity_cache import IdentityCache
from ...model import ModelSpec
from ...optional import MTP
from ...parallel.layout import Coordinates, Layout, Stage, stages
from ...parallel.rank_program import RankFlow, cached_rank_program, representative_stage
from ...parallel.schedules import check_micro_batches
from ...simulator.autograd import AutogradGraph, backward
from ...simulator.event_log import EventRecorder
from ...simulator.lowering import ModulePath
from ...simulator.meter import AllocationPlace, Meter, NoMeter
from ...simulator.record_microbatches import PassRecorder
from ...simulator.repeat_microbatches import PassReplayer
from ...simulator.tensor import (
    BFLOAT16,
    BOOL,
    FLOAT32,
    INT64,
    AutogradNode,
    NeedsInputGrad,
    OptionalGradient,
    Storage,
    Tensor,
    allocate_on_stream,
    empty,
)
from ...workload.run_config import RunConfig
from ...workload.workload import Workload
from .evidence import check_components
from .fully_sharded import ShardedWeights
from .kernel_choices import (
    cublas_workspace_bytes,
    optimizer_sharding,
    rank_kernel_choices,
    refuse_unmodelled_arguments,
    retains_batches,
    te_workspace_bytes,
)
from .kernels import Parameter, PersistentTensors, RankLowering, weight_sizes
from .kernels.rank_choices import RankKernelChoices
from .layer_wise_optimizer import make_unsplit_buffer, optimizer_updates_in_rank_order, optimizer_updates_of_rank
from .param_and_grad_buffer import (
    GradientBuffer,
    bucket_elements_of_chunk,
    is_updated_by_muon,
    make_buffer,
    optimizer_updates,
)
from .settings import MegatronSettings

STATE_BYTES_BY_DTYPE = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Number format of an optimizer state → bytes per element."""

YARN_ORIGINAL_POSITIONS = 4096
"""Number of positions whose angles YaRN creates first (transformer_config.py, `original_max_position_embeddings`)."""

OPTIMIZER_FLAG_COUNT = 2
"""Number of the optimizer's small tensors: a scale of one (optimizer.py, `_scale_one`) and Adam's overflow flag
(TransformerEngine, optimizers/fused_adam.py, `_dummy_overflow_buf`).
"""

REPORTED_LOSS_COUNT = 2
"""Number of losses that the last stage keeps: the last one, and a sum over steps (training/training.py, `train`)."""


SIDE_STREAM = 1
"""CUDA stream on which data parallelism is set up; no other stream reuses blocks that are freed on it.

Source: Megatron-LM, megatron/training/training.py, `get_model`: `torch.cuda.stream(ddp_stream)`.
"""


@dataclass
class ModelChunk:
    """The layers of one virtual pipeline stage on a rank.

    stage: which stage of the pipeline; None without a pipeline.
    record_program: records the program of the layers.
    lowering: runs the program.
    chunk_index: index of the chunk among the rank's chunks.
    parameters: the parameters in the order in which Megatron creates them; a run finds them if the list is empty.
    input_tensor: the last input, which the module of the chunk names.
    """

    stage: Stage | None
    record_program: Callable[[], RankFlow]
    lowering: RankLowering
    chunk_index: int = 0
    parameters: list[Parameter] = field(default_factory=list)
    input_tensor: Tensor | None = None

    @cached_property
    def program(self) -> RankFlow:
        """The operations of the chunk's layers, recorded as a program."""
        return self.record_program()

    @property
    def is_first(self) -> bool:
        """Whether the chunk has the model's first layers."""
        return self.stage is None or self.stage.has_embedding

    @property
    def is_last(self) -> bool:
        """Whether the chunk has the model's last layers."""
        return self.stage is None or self.stage.has_head


class ForwardOutput:
    """The output tensor of a chunk's forward pass.

    model_chunk: the layers that ran.
    output_tensor: the tensor that is sent to the next stage; None after it has been sent.
    graph_end: the end of the autograd graph.
    chunk_input: the input of the chunk, to which the graph refers.
    """

    __slots__ = ("chunk_input", "graph_end", "model_chunk", "output_tensor")

    def __init__(self, model_chunk: ModelChunk, output_tensor: Tensor, chunk_input: Tensor | None) -> None:
        self.model_chunk: ModelChunk = model_chunk
        self.output_tensor: Tensor | None = output_tensor
        self.graph_end: Tensor = Tensor(output_tensor.shape, output_tensor.dtype, Storage(NoMeter(), 0))
        self.graph_end.node, self.graph_end.output_index = output_tensor.node, output_tensor.output_index
        self.chunk_input: Tensor | None = chunk_input

    def free(self) -> None:
        """Frees the data of the tensor sent to the next stage, but not its graph (`deallocate_output_tensor`)."""
        self.output_tensor = None


class RankRun:
    """Runs the training steps of one rank of a layout.

    spec: the model, with the vocabulary before it is padded.
    """

    def __init__(
        self, spec: ModelSpec, settings: MegatronSettings, rank: int, memory_meter: Meter | EventRecorder
    ) -> None:
        refuse_unmodelled_arguments(settings)
        check_components(spec)
        self.settings: MegatronSettings = settings
        self.meter: Meter | EventRecorder = memory_meter
        self.layout: Layout = settings.layout()
        check_micro_batches(
            self.layout, settings.microbatches, settings.microbatch_group_size_per_virtual_pipeline_stage
        )
        self.coordinates: Coordinates = self.layout.coordinates(rank)
        self.optimizer_sharding = optimizer_sharding(settings)
        self.spec: ModelSpec = (
            spec
            if settings.padded_vocabulary_size is None
            else _spec_with_vocabulary(spec, settings.padded_vocabulary_size)
        )
        self.graph: AutogradGraph = AutogradGraph(memory_meter)
        self.graph.keeps_gradients = False
        self.rank_choices: RankKernelChoices = rank_kernel_choices(settings)
        self.persistent: PersistentTensors = PersistentTensors(
            memory_meter, cublas_workspace_bytes(settings), te_workspace_bytes(settings)
        )
        tokens_per_rank = settings.sequence_length // settings.cp
        decoder_tokens = settings.decoder_seq_length
        rank_tokens = tokens_per_rank if decoder_tokens is None else decoder_tokens // settings.cp
        self.run_config: RunConfig = RunConfig(
            Workload(settings.micro_batch_size or 1, rank_tokens, source=tokens_per_rank, phase="training")
        )
        self.chunks: list[ModelChunk] = [self._create_chunk(stage, rank) for stage in self._stages_of_chunks()]
        for chunk_index, model_chunk in enumerate(self.chunks):
            model_chunk.chunk_index = chunk_index
        self.buffers: list[GradientBuffer] = []
        self.persistent_storages: list[Storage] = []
        self.optimizer_states: list[Storage] = []
        self.gradient_copies: list[Storage] = []
        self.batches: list[list[Tensor]] = []
        self.updated_element_counts: list[int] = []
        self.states_per_parameter: list[int] = []
        self.step_gather_element_counts: list[int] = []
        self.reported_losses: list[Storage] = []
        self.rope_tables: list[Storage] = []
        self.pass_recorder: PassRecorder | PassReplayer | None = None
        self.retains_batches: bool = retains_batches(settings) and self.coordinates.tp == 0
        self.sharded_weights: ShardedWeights | None = None
        self.parameter_paths: dict[int, ModulePath] = {}
        self.has_run_optimizer: bool = False
        self.has_rope_tables: bool = False

    def _stages_of_chunks(self) -> Sequence[Stage | None]:
        """Returns the pipeline stage of each chunk."""
        if self.layout.pp == 1:
            return [None]
        if self.spec.kind == "encoder-decoder":
            raise InputError("--pipeline-model-parallel-size: an encoder-decoder has one stage; expected 1")
        layer_count = self.spec.main.num_hidden_layers
        return [stage for stage in stages(self.layout, layer_count) if stage.pipeline_rank == self.coordinates.pp]

    def _create_chunk(self, stage: Stage | None, rank: int) -> ModelChunk:
        """Creates the chunk of layers of a pipeline stage."""
        rank_lowering = RankLowering(self.graph, self.run_config, self.rank_choices, self.persistent)
        rank_lowering.included_parts = frozenset({MTP.name} if self.settings.mtp_layer_count else ())
        rank_lowering.first_layer_index = 0 if stage is None else stage.layers.start
        recorded_stage = None if stage is None else representative_stage(self.spec, stage)
        return ModelChunk(
            stage, partial(cached_rank_program, self.spec, self.layout, rank, recorded_stage), rank_lowering
        )

    # --- set-up ------------------------------------------------------------------------------------------------------

    def allocate_storage(self, storage_bytes: Any, memory_kind: str) -> Storage:
        """Allocates bytes under a category of memory, such as gradients."""
        memory_meter = self.meter
        previous_kind, memory_meter.kind = memory_meter.kind, memory_kind
        storage = Storage(memory_meter, storage_bytes)
        memory_meter.kind = previous_kind
        return storage

    def set_up_rope_tables(self) -> None:
        """Creates the RoPE tables, which passes read and no optimizer updates."""
        self.meter.place = AllocationPlace("set-up")
        self._make_rope_tables()

    def set_up(self) -> None:
        """Creates all tensors that exist before the first step."""
        settings, layout = self.settings, self.layout
        is_distributed = self.optimizer_sharding in ("elements", "layout")
        self.set_up_rope_tables()
        weights_by_chunk: list[list[Storage]] = []
        for model_chunk in self.chunks:
            model_chunk.parameters = model_chunk.parameters or model_chunk.lowering.parameters_of(model_chunk.program)
            weights_by_chunk.append([])
            for parameter in model_chunk.parameters:
                weights_by_chunk[-1].append(
                    self.allocate_storage((1 if parameter.is_fp8 else 2) * parameter.element_count, "weights")
                )
                if parameter.is_fp8:
                    _, *extra_copy_sizes = weight_sizes(self.rank_choices, *parameter.tensor.shape)
                    self.persistent_storages += [
                        self.allocate_storage(copy_bytes, "weights") for copy_bytes in extra_copy_sizes
                    ]
        self.rope_tables = [
            self.allocate_storage(parameter.bytes // 2, "overhead") for parameter in self.rope_tables
        ]  # buffers of a Float16Module
        if settings.use_megatron_fsdp:
            self._shard_weights(weights_by_chunk.pop())
            return
        gradient_bytes = 4 if settings.reduces_in_fp32 else 2
        is_tied = self.spec.tie_word_embeddings
        for chunk_index, model_chunk in enumerate(self.chunks):
            bucket_elements = bucket_elements_of_chunk(
                settings,
                layout,
                self.coordinates,
                chunk_index,
                sum(parameter.element_count for parameter in model_chunk.parameters if parameter.is_trained),
            )
            for gradient_buffer in self._gradient_buffers(model_chunk, bucket_elements, is_tied):
                self.buffers.append(gradient_buffer)
                with allocate_on_stream(self.meter, SIDE_STREAM):
                    if is_distributed:
                        self.persistent_storages.append(
                            self.allocate_storage(
                                (1 if gradient_buffer.is_fp8 else 2) * gradient_buffer.element_count, "weights"
                            )
                        )
                    self.persistent_storages.append(
                        self.allocate_storage(gradient_bytes * gradient_buffer.element_count, "gradients")
                    )
            if is_distributed:  # trained weights move to the buffer
                frozen_parameters = [
                    storage
                    for parameter, storage in zip(model_chunk.parameters, weights_by_chunk[chunk_index], strict=True)
                    if not parameter.is_trained
                ]
                weights_by_chunk[chunk_index].reverse()
                while weights_by_chunk[chunk_index]:
                    weights_by_chunk[chunk_index].pop(0)
                weights_by_chunk[chunk_index] = frozen_parameters
        self.persistent_storages += [parameter for chunk_weights in weights_by_chunk for parameter in chunk_weights]
        del weights_by_chunk
        self._make_main_parameters()

    def _shard_weights(self, weight_storages: list[Storage]) -> None:
        """Divides the weights of the only chunk by Megatron-FSDP, and creates the optimizer's states.

        The states are made where a checkpoint is looked for (core/optimizer/distrib_optimizer.py,
        `_init_optimizer_states_with_dummy_values`).
        """
        (model_chunk,) = self.chunks
        self.sharded_weights = model_chunk.lowering.weight_gathering = ShardedWeights(
            model_chunk.parameters, self.settings, self.layout, self.coordinates, self.meter
        )
        parameter_paths = [parameter.path for parameter in model_chunk.parameters]
        weights_by_path = dict(zip(parameter_paths, weight_storages, strict=True))
        weight_storages.clear()
        self.sharded_weights.set_up(weights_by_path)
        self.updated_element_counts = self.sharded_weights.updated_element_counts
        self.states_per_parameter = [2] * len(self.updated_element_counts)
        zero_storages = [
            self.allocate_storage(4 * element_count, "temporary") for element_count in self.updated_element_counts
        ]
        self._make_optimizer_states()
        del zero_storages
        self.graph.leaf_gradient_hook = self._accumulate_in_bucket
        self.persistent_storages += [self.allocate_storage(4, "optimizer") for _ in range(OPTIMIZER_FLAG_COUNT)]

    def _accumulate_in_bucket(self, weight_leaf: Tensor) -> None:
        """Moves a parameter's gradient into its Megatron-FSDP bucket when the backward pass completes the gradient."""
        assert self.sharded_weights is not None
        parameters = self.chunks[0].lowering.ordered_parameters
        if len(self.parameter_paths) < len(parameters):
            self.parameter_paths = {id(parameter.tensor): parameter.path for parameter in parameters}
        self.sharded_weights.accumulate_gradient(self.parameter_paths[id(weight_leaf)])

    def _gradient_buffers(
        self, model_chunk: ModelChunk, bucket_elements: int | None, is_tied: bool
    ) -> Iterator[GradientBuffer]:
        """Yields a chunk's data-parallel buffers, with the experts' buffers last."""
        is_distributed = self.optimizer_sharding in ("elements", "layout")
        for is_expert in (False, True):
            parameters = [
                parameter
                for parameter in model_chunk.parameters
                if parameter.is_expert is is_expert and parameter.is_trained
            ]
            is_layout_sharded = self.optimizer_sharding == "layout"
            muon_matrices = [
                parameter for parameter in parameters if is_layout_sharded and is_updated_by_muon(parameter)
            ]
            adam_parameters = [
                parameter for parameter in parameters if not (is_layout_sharded and is_updated_by_muon(parameter))
            ]
            if muon_matrices:
                yield make_unsplit_buffer(muon_matrices, is_expert, self.settings, self.layout, bucket_elements)
            for is_fp8 in sorted({parameter.is_fp8 for parameter in adam_parameters}):
                buffer_parameters = [parameter for parameter in adam_parameters if parameter.is_fp8 is is_fp8]
                yield make_buffer(
                    buffer_parameters, is_expert, self.settings, self.layout, bucket_elements, is_tied, is_distributed
                )

    def _make_rope_tables(self) -> None:
        """Creates the cached RoPE table (rotary_pos_embedding.py, `lru_cache`).

        Latent attention with YaRN has cosines and sines in each layer (yarn_rotary_pos_embedding.py,
        `_set_cos_sin_cache`).
        """
        settings = self.settings
        if settings.has_latent_attention:
            is_yarn = (settings.rope_type or "yarn") == "yarn"
            for _ in range(self._latent_attention_layer_count() if is_yarn else 0):
                rope_dim = settings.qk_pos_emb_head_dim
                self.rope_tables += [
                    self.allocate_storage(4 * YARN_ORIGINAL_POSITIONS * rope_dim, "overhead") for _ in range(2)
                ]
        elif settings.position_type == "rope":
            self.persistent_storages.append(
                self.allocate_storage(
                    4 * (settings.sequence_length // settings.cp) * int(settings.head_dim * settings.rotary_percent),
                    "overhead",
                )
            )

    def _latent_attention_layer_count(self) -> int:
        """Returns the number of this rank's latent-attention layers, each of which has RoPE tables."""
        if self.layout.pp == 1:
            return self.spec.main.num_hidden_layers + self.settings.mtp_layer_count
        layer_count = sum(len(model_chunk.stage.layers) for model_chunk in self.chunks if model_chunk.stage is not None)
        return layer_count + (self.settings.mtp_layer_count if self.chunks[-1].is_last else 0)

    def make_first_rope_tables(self) -> None:
        """Creates the RoPE tables of latent attention in the first forward pass.

        The fused kernel also replaces the cosines and sines.
        """
        settings = self.settings
        if not settings.has_latent_attention or self.has_rope_tables:
            return
        self.has_rope_tables = True
        table_bytes = (settings.sequence_length // settings.cp) * settings.qk_pos_emb_head_dim
        is_yarn = (settings.rope_type or "yarn") == "yarn"
        for table_index in range(self._latent_attention_layer_count()):
            self.persistent_storages.append(self.allocate_storage(4 * table_bytes, "overhead"))
            if is_yarn and self.rank_choices.fuses_latent_rope:
                for k in range(2):
                    self.rope_tables[2 * table_index + k] = self.allocate_storage(2 * table_bytes, "overhead")

    def _make_main_parameters(self) -> None:
        """Creates this rank's fp32 main parameters, each from a copy in the parameter's format.

        A precision-aware optimizer makes its own at its first step (core/optimizer/distrib_optimizer.py,
        `_build_model_and_main_param_groups`), and one on the host copies each parameter there.
        """
        settings = self.settings
        if self.optimizer_sharding == "turns":
            rank_updates, self.step_gather_element_counts = optimizer_updates_in_rank_order(
                self.buffers, self.layout, self.coordinates
            )
        elif self.optimizer_sharding == "layout":
            rank_updates = optimizer_updates_of_rank(self.buffers, self.layout, self.coordinates)
        else:
            rank_updates = list(
                optimizer_updates(
                    self.buffers,
                    self.optimizer_sharding == "elements",
                    self.layout,
                    self.coordinates,
                    settings.optimizer,
                )
            )
        if settings.optimizer_cpu_offload:  # cpu_offloading/hybrid_optimizer.py, `_get_sub_optimizer_param_groups`
            for model_chunk in self.chunks:
                for parameter in model_chunk.parameters if self.optimizer_sharding != "none" else ():
                    self.allocate_storage(2 * parameter.element_count if parameter.is_trained else 0, "temporary")
        for element_count, state_count in rank_updates:
            if settings.optimizer_cpu_offload:
                self.allocate_storage(2 * element_count, "temporary")
            elif not settings.adam_keeps_main_weights:
                main_parameter_copy = self.allocate_storage(2 * element_count, "temporary")
                self.persistent_storages.append(self.allocate_storage(4 * element_count, "optimizer"))
                del main_parameter_copy
            self.updated_element_counts.append(element_count)
            self.states_per_parameter.append(state_count)
        self.persistent_storages += [self.allocate_storage(4, "optimizer") for _ in range(OPTIMIZER_FLAG_COUNT)]

    def optimizer_step(self) -> None:
        """Runs the optimizer's step, which allocates the states in the first step."""
        settings = self.settings
        self.meter.place = AllocationPlace("step")
        copies_gradients = not settings.reduces_in_fp32 and not settings.adam_keeps_main_weights
        if self.sharded_weights is None and copies_gradients:
            self.gradient_copies = [
                self.allocate_storage(4 * element_count, "gradients") for element_count in self.updated_element_counts
            ]
        if not self.has_run_optimizer and not settings.optimizer_cpu_offload:
            self._make_optimizer_states()
        for element_count in [] if settings.overlap_param_gather else self.step_gather_element_counts:
            self.allocate_storage(2 * element_count, "communication")

    def _make_optimizer_states(self) -> None:
        """Creates the optimizer's states in the first optimizer step."""
        for element_count, state_count in zip(self.updated_element_counts, self.states_per_parameter, strict=True):
            if self.settings.use_precision_aware_optimizer:
                self._make_precision_aware_states(element_count)
            else:
                self.optimizer_states += [
                    self.allocate_storage(4 * element_count, "optimizer") for _ in range(state_count)
                ]
        self.has_run_optimizer = True

    def _make_precision_aware_states(self, element_count: int) -> None:
        """Creates a parameter's states for a precision-aware optimizer, with scales for formats below fp32.

        Of fp32 main parameters it keeps the 16 bits that bf16 weights do not have (`store_param_remainders`).
        Source: TransformerEngine, pytorch/optimizers/fused_adam.py, `initialize_state`.
        """
        settings = self.settings
        for state_format in (settings.exp_avg_dtype, settings.exp_avg_sq_dtype):
            self.optimizer_states.append(
                self.allocate_storage(STATE_BYTES_BY_DTYPE[state_format] * element_count, "optimizer")
            )
            if state_format != "fp32":
                self.optimizer_states.append(self.allocate_storage(4, "optimizer"))
        if not settings.adam_keeps_main_weights:
            return
        stores_remainders = settings.bf16 and settings.main_params_dtype == "fp32"
        main_parameter = self.allocate_storage(
            (2 if stores_remainders else STATE_BYTES_BY_DTYPE[settings.main_params_dtype]) * element_count, "optimizer"
        )
        if not stores_remainders:
            main_parameter_copy = self.allocate_storage(2 * element_count, "temporary")
            fp32_copy = self.allocate_storage(4 * element_count, "temporary")
            del main_parameter_copy, fp32_copy
        self.optimizer_states.append(main_parameter)
        if settings.main_params_dtype != "fp32":
            self.optimizer_states.append(self.allocate_storage(4, "optimizer"))

    # --- a micro-batch -----------------------------------------------------------------------------------------------

    def get_batch(self, model_chunk: ModelChunk) -> list[Tensor]:
        """Creates a micro-batch's input tensors on a stage (training/utils.py, `get_batch_on_this_tp_rank`)."""
        new_tensor, settings = self.graph.new_tensor, self.settings
        token_count = self.run_config.batch * self.run_config.workload.seq
        batch_tensors: list[Tensor] = []
        if model_chunk.is_last:
            batch_tensors += [new_tensor((token_count,), INT64), new_tensor((token_count,), FLOAT32)]
        if model_chunk.is_first or (model_chunk.is_last and settings.mtp_layer_count):
            batch_tensors += [new_tensor((token_count,), INT64), new_tensor((token_count,), INT64)]
        if batch_tensors and not settings.no_create_attention_mask_in_dataloader:
            batch_tensors.append(
                new_tensor((self.run_config.batch * self.run_config.workload.seq, settings.sequence_length), BOOL)
            )
        return batch_tensors

    def forward(self, model_chunk: ModelChunk, chunk_input: Tensor | None) -> ForwardOutput:
        """Runs `forward_step`, whose output on the last stage is the loss."""
        self.meter.place = AllocationPlace("forward")
        batch_tensors = self.get_batch(model_chunk)
        self.make_first_rope_tables()
        model_chunk.input_tensor = chunk_input
        recorder = self.pass_recorder

        def run_forward() -> Tensor:
            return self._forward_pass(model_chunk, chunk_input)

        output_tensor = (
            run_forward() if recorder is None else recorder.forward(model_chunk.chunk_index, chunk_input, run_forward)
        )
        if self.retains_batches:
            self.batches.append(batch_tensors)
        del batch_tensors
        return ForwardOutput(model_chunk, output_tensor, chunk_input)

    def _forward_pass(self, model_chunk: ModelChunk, chunk_input: Tensor | None) -> Tensor:
        """Runs the layers of a chunk, and on the last stage the loss."""
        self.persistent.chunk_input = chunk_input
        if self.sharded_weights is not None:
            self.sharded_weights.gather(None)
        hidden_states = model_chunk.lowering.run_rank(model_chunk.program, chunk_input)
        self.persistent.chunk_input = None
        if model_chunk.is_last:
            self.meter.place = AllocationPlace("forward", path="loss")
            token_losses = model_chunk.lowering.token_losses(hidden_states)
            del hidden_states
            hidden_states = self._sum_loss(token_losses)
            model_chunk.lowering.logits = []
            del token_losses
        return hidden_states

    def _sum_loss(self, losses: Tensor) -> Tensor:
        """Returns the sum of the losses of unmasked tokens (pretrain_gpt.py, `loss_func`)."""
        graph, shape = self.graph, losses.shape
        masked_losses = graph.new_tensor(shape, FLOAT32)
        loss_sum = graph.new_tensor((1,), FLOAT32)
        del masked_losses
        sum_node = AutogradNode(graph, "sum", (losses,), lambda g, needs_input_grad: [graph.new_tensor(shape, FLOAT32)])
        loss_sum.node = sum_node
        return loss_sum

    def backward(
        self, chunk_input: Tensor | None, forward_output: ForwardOutput, gradient: Tensor | None
    ) -> Tensor | None:
        """Runs `backward_step`. Returns the gradient of the chunk's input."""
        self.meter.place = AllocationPlace("backward")
        pass_recorder = self.pass_recorder

        def run_backward() -> None:
            self._backward_pass(forward_output, gradient)

        if pass_recorder is None:
            run_backward()
        else:
            pass_recorder.backward(
                forward_output.model_chunk.chunk_index, [] if chunk_input is None else [chunk_input], run_backward
            )
        return None if chunk_input is None else chunk_input.grad

    def _backward_pass(self, forward_output: ForwardOutput, output_gradient: Tensor | None) -> None:
        """Runs the backward pass from the end of a chunk's graph."""
        if output_gradient is None:
            output_gradient = self.graph.new_tensor(forward_output.graph_end.shape, forward_output.graph_end.dtype)
        backward(self.graph, forward_output.graph_end, output_gradient)
        if self.sharded_weights is not None:
            self.sharded_weights.end_backward()

    def receive_hidden_states(self) -> Tensor:
        """Returns the hidden states received from the previous stage, whose gradient the backward pass stores."""
        self.meter.place = AllocationPlace("forward", path="receive")
        hidden_states = self._allocate_hidden_states()
        tensor_reference = ref(hidden_states)

        def store_gradient(output_gradient: Tensor, needs_input_grad: NeedsInputGrad) -> Sequence[OptionalGradient]:
            """Stores the gradient of the received hidden states."""
            tensor = tensor_reference()
            if tensor is not None:
                tensor.grad = output_gradient
            return (None,)

        hidden_states.node = AutogradNode(
            self.graph, "received", (empty(NoMeter(), (), BFLOAT16, is_leaf=True),), store_gradient
        )
        return hidden_states

    def _allocate_hidden_states(self) -> Tensor:
        """Allocates hidden states of this rank's tokens."""
        token_count = self.run_config.batch * self.run_config.workload.seq
        return self.graph.new_tensor((self.chunks[0].lowering.local_rows(token_count), self.spec.hidden_size), BFLOAT16)

    # --- a step ------------------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Runs the end of a training step after all passes: deferred gradients and optimizer."""
        self.persistent.drain_deferred_gradients(self.layout.tp if self.rank_choices.sequence_parallel else 1)
        if self.sharded_weights is not None:
            self.sharded_weights.end_step()
        self.optimizer_step()
        if self.chunks[-1].is_last and not self.reported_losses:
            self.reported_losses = [self.allocate_storage(4, "temporary") for _ in range(REPORTED_LOSS_COUNT)]

    @property
    def microbatches(self) -> int:
        """The number of micro-batches to replay, the last of which represents all later micro-batches."""
        if self.retains_batches or self.rank_choices.wgrad_deferral_limit is not None:
            return self.settings.microbatches
        return min(self.settings.microbatches, 2 * self.layout.pp * self.layout.vpp + 2)

    def receive_gradient(self) -> Tensor:
        """Returns the gradient received from the next stage."""
        self.meter.place = AllocationPlace("backward", path="receive")
        return self._allocate_hidden_states()


_padded_specs: IdentityCache[ModelSpec] = IdentityCache(32)
"""Models with padded vocabularies."""


def _spec_with_vocabulary(spec: ModelSpec, vocabulary_size: int) -> ModelSpec:
    """Returns the model with a padded vocabulary, cached so that ranks can share programs."""
    vocabulary_field = {"vocab_size": vocabulary_size}
    return _padded_specs.result((spec,), (vocabulary_size,), lambda: spec.model_copy(update=vocabulary_field))
