"""Two training steps of one rank, tensor by tensor: set-up, micro-batches in the order of the schedule with what its
variables name, and the optimizer's steps.

Sources: Megatron-LM, megatron/core/pipeline_parallel/schedules.py, megatron/training/training.py,
megatron/core/optimizer/optimizer.py and distrib_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from weakref import ref

from ...errors import InputError
from ...model import ModelSpec
from ...optional import MTP
from ...parallel.layout import Layout, Stage, stages
from ...parallel.rank_program import RankFlow, rank_program
from ...parallel.schedules import check
from ...simulator.autograd import Graph, backward
from ...simulator.event_log import Recorder
from ...simulator.meter import Meter, NoMeter, Place
from ...simulator.repeat_microbatches import PassPlayer, PassRecorder
from ...simulator.tensor import (
    BFLOAT16,
    BOOL,
    FLOAT32,
    INT64,
    Gradient,
    Needs,
    Node,
    Storage,
    Tensor,
    counted_as,
    empty,
    on_stream,
)
from ...workload.run_config import RunConfig
from ...workload.workload import Workload
from .evidence import check_parts
from .kernel_choices import choices_of, cublas_workspace, engine_workspace, refuse, retains_batches, sharing
from .kernels import Parameter, PersistentTensors, RankLowering, weight_sizes
from .layer_wise_optimizer import by_layout, by_turns, packed
from .param_and_grad_buffer import Buffer, bucket_size, buffer_of, by_muon, updated
from .settings import MegatronSettings

STATES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of an element of a state by the name of its type."""

ORIGINAL_POSITIONS = 4096
"""Positions whose angles YaRN makes at first (transformer_config.py, `original_max_position_embeddings`)."""

FLAGS = 2
"""Small tensors of the optimizer: a scale of one (optimizer.py, `_scale_one`), and the flag of an overflow of its Adam
(TransformerEngine, optimizers/fused_adam.py, `_dummy_overflow_buf`)."""

REPORTED = 2
"""Losses that the last stage keeps: that of the last step, and the sum of several (training/training.py, `train`)."""


SIDE = 1
"""The stream on which data parallelism is set up: what it leaves free serves no other stream.

Source: Megatron-LM, megatron/training/training.py, `get_model`: `torch.cuda.stream(ddp_stream)`.
"""


@dataclass
class Chunk:
    """The layers of one stage.

    record: gives their program. number: of the rank's chunks. parameters: as they are made, found by a run if empty.
    input_tensor: what entered last, which its module names.
    """

    stage: Stage | None
    record: Callable[[], RankFlow]
    lowering: RankLowering
    number: int = 0
    parameters: list[Parameter] = field(default_factory=list)
    input_tensor: Tensor | None = None

    @cached_property
    def program(self) -> RankFlow:
        """What it runs."""
        return self.record()

    @property
    def first(self) -> bool:
        return self.stage is None or self.stage.first

    @property
    def last(self) -> bool:
        return self.stage is None or self.stage.last


class Output:
    """What a forward pass gives to the schedule.

    chunk: of which layers. data: what is sent on. end: the end of its graph. entered: what entered, which the graph
    holds.
    """

    __slots__ = ("chunk", "data", "end", "entered")

    def __init__(self, chunk: Chunk, made: Tensor, entered: Tensor | None) -> None:
        self.chunk = chunk
        self.data: Tensor | None = made
        self.end = Tensor(made.shape, made.dtype, Storage(NoMeter(), 0))
        self.end.node, self.end.output = made.node, made.output
        self.entered = entered

    def free(self) -> None:
        """Frees what has been sent on, and not its graph (`deallocate_output_tensor`)."""
        self.data = None


class RankRun:
    """Runs steps of one rank of a layout.

    spec: the model, with the vocabulary before it is padded.
    """

    def __init__(self, spec: ModelSpec, settings: MegatronSettings, rank: int, meter: Meter | Recorder) -> None:
        refuse(settings)
        check_parts(spec)
        self.settings, self.meter = settings, meter
        self.layout: Layout = settings.layout()
        check(self.layout, settings.microbatches, settings.microbatch_group_size_per_virtual_pipeline_stage)
        self.at = self.layout.coordinates(rank)
        self.sharing = sharing(settings)
        vocabulary = settings.padded_vocabulary
        self.spec = spec if vocabulary is None else spec.model_copy(update={"vocab_size": vocabulary})
        self.graph = Graph(meter)
        self.graph.keeps_gradients = False
        self.rank_choices = choices_of(settings)
        self.persistent = PersistentTensors(meter, cublas_workspace(settings), engine_workspace(settings))
        tokens = settings.tokens // settings.cp
        decoder = settings.decoder_seq_length
        seq = tokens if decoder is None else decoder // settings.cp
        self.run_config = RunConfig(Workload(settings.micro_batch_size or 1, seq, source=tokens, phase="training"))
        self.chunks = [self._chunk(spec_stage, rank) for spec_stage in self._stages()]
        for number, chunk in enumerate(self.chunks):
            chunk.number = number
        self.buffers: list[Buffer] = []
        self.kept: list[Storage] = []
        self.states: list[Storage] = []
        self.copies: list[Storage] = []
        self.batches: list[list[Tensor]] = []
        self.sizes: list[int] = []
        self.states_of: list[int] = []
        self.gathered: list[int] = []
        self.reported: list[Storage] = []
        self.angles: list[Storage] = []
        self.passes: PassRecorder | PassPlayer | None = None
        self.retains = retains_batches(settings) and self.at.tp == 0
        self.stepped = self.angled = False

    def _stages(self) -> Sequence[Stage | None]:
        if self.layout.pp == 1:
            return [None]
        if self.spec.kind == "encoder-decoder":
            raise InputError("--pipeline-model-parallel-size: an encoder-decoder has one stage; expected 1")
        layers = self.spec.main.num_hidden_layers
        return [stage for stage in stages(self.layout, layers) if stage.rank == self.at.pp]

    def _chunk(self, stage: Stage | None, rank: int) -> Chunk:
        lowering = RankLowering(self.graph, self.run_config, self.rank_choices, self.persistent)
        lowering.include = frozenset({MTP.name} if self.settings.later_tokens else ())
        lowering.below = 0 if stage is None else stage.layers.start
        return Chunk(stage, partial(rank_program, self.spec, self.layout, rank, stage), lowering)

    # --- set-up ------------------------------------------------------------------------------------------------------

    def storage(self, size: Any, kind: str) -> Storage:
        with counted_as(self.meter, kind):
            return Storage(self.meter, size)

    def set_up_tables(self) -> None:
        """Makes what passes read beside parameters."""
        self.meter.place = Place("set-up")
        self._positions()

    def set_up(self) -> None:
        """Makes all that is there before the first step."""
        settings, layout = self.settings, self.layout
        distributed = self.sharing in ("elements", "layout")
        self.set_up_tables()
        weights: list[list[Storage]] = []
        for chunk in self.chunks:
            chunk.parameters = chunk.parameters or chunk.lowering.parameters_of(chunk.program)
            weights.append([])
            for one in chunk.parameters:
                weights[-1].append(self.storage((1 if one.narrow else 2) * one.size, "weights"))
                if one.narrow:
                    _, *more = weight_sizes(self.rank_choices, *one.tensor.shape)
                    self.kept += [self.storage(size, "weights") for size in more]
        self.angles = [self.storage(one.bytes // 2, "overhead") for one in self.angles]  # buffers of a Float16Module
        element = 4 if settings.reduces_in_fp32 else 2
        tied = self.spec.tie_word_embeddings
        for number, chunk in enumerate(self.chunks):
            bucket = bucket_size(settings, layout, self.at, number, sum(one.size for one in chunk.parameters))
            for buffer in self._buffers(chunk, bucket, tied):
                self.buffers.append(buffer)
                with on_stream(self.meter, SIDE):
                    if distributed:
                        self.kept.append(self.storage((1 if buffer.narrow else 2) * buffer.size, "weights"))
                    self.kept.append(self.storage(element * buffer.size, "gradients"))
            if distributed:
                weights[number].reverse()
                while weights[number]:
                    weights[number].pop(0)
        self.kept += [one for of in weights for one in of]
        del weights
        self._main_parameters()

    def _buffers(self, chunk: Chunk, bucket: int | None, tied: bool) -> Iterator[Buffer]:
        """The buffers of data parallelism of a chunk: those of experts come last, and matrices may have their own."""
        distributed = self.sharing in ("elements", "layout")
        for expert in (False, True):
            own = [one for one in chunk.parameters if one.expert is expert]
            apart = self.sharing == "layout"
            matrices = [one for one in own if apart and by_muon(one)]
            rest = [one for one in own if not (apart and by_muon(one))]
            if matrices:
                yield packed(matrices, expert, self.settings, self.layout, bucket)
            for narrow in sorted({one.narrow for one in rest}):
                group = [one for one in rest if one.narrow is narrow]
                yield buffer_of(group, expert, self.settings, self.layout, bucket, tied, distributed)

    def _positions(self) -> None:
        """The table of rotations, which is remembered (rotary_pos_embedding.py, `lru_cache`). Latent attention has one
        in each layer, and with YaRN cosines and sines (yarn_rotary_pos_embedding.py, `_set_cos_sin_cache`).
        """
        s = self.settings
        if s.latent:
            yarn = (s.rope_type or "yarn") == "yarn"
            for _ in range(self._attention_layers() if yarn else 0):
                width = s.qk_pos_emb_head_dim
                self.angles += [self.storage(4 * ORIGINAL_POSITIONS * width, "overhead") for _ in range(2)]
        elif s.positions == "rope":
            self.kept.append(self.storage(4 * (s.tokens // s.cp) * int(s.head_dim * s.rotary_percent), "overhead"))

    def _attention_layers(self) -> int:
        """Layers of this rank with latent attention; each stands for itself here, though equal."""
        if self.layout.pp == 1:
            return self.spec.main.num_hidden_layers + self.settings.later_tokens
        own = sum(len(chunk.stage.layers) for chunk in self.chunks if chunk.stage is not None)
        return own + (self.settings.later_tokens if self.chunks[-1].last else 0)

    def _first_angles(self) -> None:
        """The first forward pass makes the angles of its positions, and of one kernel for both their cosines too."""
        s = self.settings
        if not s.latent or self.angled:
            return
        self.angled = True
        size, yarn = (s.tokens // s.cp) * s.qk_pos_emb_head_dim, (s.rope_type or "yarn") == "yarn"
        for i in range(self._attention_layers()):
            self.kept.append(self.storage(4 * size, "overhead"))
            if yarn and self.rank_choices.mla_fusion:
                for k in range(2):
                    self.angles[2 * i + k] = self.storage(2 * size, "overhead")

    def _main_parameters(self) -> None:
        """A copy in fp32 of each parameter, or of this rank's part of it, made of a copy in its own type.

        A precision-aware optimizer makes its own at its first step (core/optimizer/distrib_optimizer.py,
        `_build_model_and_main_param_groups`).
        """
        s = self.settings
        if self.sharing == "turns":
            own, self.gathered = by_turns(self.buffers, self.layout, self.at)
        elif self.sharing == "layout":
            own = by_layout(self.buffers, self.layout, self.at)
        else:
            own = list(updated(self.buffers, self.sharing == "elements", self.layout, self.at, s.optimizer))
        for size, states in own:
            if not s.use_precision_aware_optimizer:
                copy = self.storage(2 * size, "temporary")
                self.kept.append(self.storage(4 * size, "optimizer"))
                del copy
            self.sizes.append(size)
            self.states_of.append(states)
        self.kept += [self.storage(4, "optimizer") for _ in range(FLAGS)]

    def optimizer_step(self) -> None:
        s = self.settings
        self.meter.place = Place("step")
        aware = s.use_precision_aware_optimizer
        if not s.reduces_in_fp32 and not aware:
            self.copies = [self.storage(4 * size, "gradients") for size in self.sizes]
        if not self.stepped:
            for size, states in zip(self.sizes, self.states_of, strict=True):
                if aware:
                    self._own_states(size)
                else:
                    self.states += [self.storage(4 * size, "optimizer") for _ in range(states)]
            self.stepped = True
        for size in [] if s.overlap_param_gather else self.gathered:
            self.storage(2 * size, "communication")

    def _own_states(self, size: int) -> None:
        """The states of a parameter that a precision-aware optimizer has, each with its factor where it is not fp32.

        Of fp32 main parameters it keeps the 16 bits that bf16 weights do not have (`store_param_remainders`).
        Source: TransformerEngine, pytorch/optimizers/fused_adam.py, `initialize_state`.
        """
        s = self.settings
        for name in (s.exp_avg_dtype, s.exp_avg_sq_dtype):
            self.states.append(self.storage(STATES[name] * size, "optimizer"))
            if name != "fp32":
                self.states.append(self.storage(4, "optimizer"))
        remainders = s.bf16 and s.main_params_dtype == "fp32"
        main = self.storage((2 if remainders else STATES[s.main_params_dtype]) * size, "optimizer")
        if not remainders:
            copy = self.storage(2 * size, "temporary")
            whole = self.storage(4 * size, "temporary")
            del copy, whole
        self.states.append(main)
        if s.main_params_dtype != "fp32":
            self.states.append(self.storage(4, "optimizer"))

    # --- a micro-batch -----------------------------------------------------------------------------------------------

    def batch(self, chunk: Chunk) -> list[Tensor]:
        """What a stage gets of the batch (training/utils.py, `get_batch_on_this_tp_rank`)."""
        new, s = self.graph.new, self.settings
        rows = self.run_config.batch * self.run_config.workload.seq
        made: list[Tensor] = []
        if chunk.last:
            made += [new((rows,), INT64), new((rows,), FLOAT32)]
        if chunk.first or (chunk.last and s.later_tokens):
            made += [new((rows,), INT64), new((rows,), INT64)]
        if made and not s.no_create_attention_mask_in_dataloader:
            made.append(new((self.run_config.batch * self.run_config.workload.seq, s.tokens), BOOL))
        return made

    def forward(self, chunk: Chunk, entered: Tensor | None) -> Output:
        """forward_step: the loss of the last stage, or what is sent on."""
        self.meter.place = Place("forward")
        batch = self.batch(chunk)
        self._first_angles()
        chunk.input_tensor = entered
        passes = self.passes

        def run() -> Tensor:
            return self._forward_pass(chunk, entered)

        made = run() if passes is None else passes.forward(chunk.number, entered, run)
        if self.retains:
            self.batches.append(batch)
        del batch
        return Output(chunk, made, entered)

    def _forward_pass(self, chunk: Chunk, entered: Tensor | None) -> Tensor:
        self.persistent.entry_of_chunk = entered
        made = chunk.lowering.run_rank(chunk.program, entered)
        self.persistent.entry_of_chunk = None
        if chunk.last:
            self.meter.place = Place("forward", path="loss")
            losses = chunk.lowering.loss_of(made)
            del made
            made = self._summed(losses)
            chunk.lowering.logits = []
            del losses
        return made

    def _summed(self, losses: Tensor) -> Tensor:
        """The sum over the tokens that count (pretrain_gpt.py, `loss_func`)."""
        graph, shape = self.graph, losses.shape
        masked = graph.new(shape, FLOAT32)
        out = graph.new((1,), FLOAT32)
        del masked
        node = Node(graph, "sum", (losses,), lambda g, needs: [graph.new(shape, FLOAT32)])
        out.node = node
        return out

    def backward(self, entered: Tensor | None, output: Output, gradient: Tensor | None) -> Tensor | None:
        """backward_step: the gradient of what entered."""
        self.meter.place = Place("backward")
        passes = self.passes

        def run() -> None:
            self._backward_pass(output, gradient)

        if passes is None:
            run()
        else:
            passes.backward(output.chunk.number, [] if entered is None else [entered], run)
        return None if entered is None else entered.grad

    def _backward_pass(self, output: Output, gradient: Tensor | None) -> None:
        if gradient is None:
            gradient = self.graph.new(output.end.shape, output.end.dtype)
        backward(self.graph, output.end, gradient)

    def received(self) -> Tensor:
        """What the stage before sends; its gradient stays with it."""
        self.meter.place = Place("forward", path="receive")
        x = self._hidden()
        here = ref(x)

        def arrived(g: Tensor, needs: Needs) -> Sequence[Gradient]:
            there = here()
            if there is not None:
                there.grad = g
            return (None,)

        x.node = Node(self.graph, "received", (empty(NoMeter(), (), BFLOAT16, leaf=True),), arrived)
        return x

    def _hidden(self) -> Tensor:
        rows = self.run_config.batch * self.run_config.workload.seq
        return self.graph.new((self.chunks[0].lowering.local_rows(rows), self.spec.hidden_size), BFLOAT16)

    # --- schedules ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.copies = []
        self.batches = []
        if self.layout.pp == 1:
            self._alone()
        elif self.layout.vpp == 1:
            self._one_forward_one_backward()
        else:
            self._interleaved()
        self.end_step()

    def end_step(self) -> None:
        """What follows the passes of a step."""
        self.persistent.drain(self.layout.tp if self.rank_choices.sequence_parallel else 1)
        self.optimizer_step()
        if self.chunks[-1].last and not self.reported:
            self.reported = [self.storage(4, "temporary") for _ in range(REPORTED)]

    @property
    def microbatches(self) -> int:
        """Micro-batches that are run: after those that differ, all are alike."""
        if self.retains or self.rank_choices.deferred is not None:
            return self.settings.microbatches
        return min(self.settings.microbatches, 2 * self.layout.pp * self.layout.vpp + 2)

    def _alone(self) -> None:
        """forward_backward_no_pipelining. Where the passes of two micro-batches overlap, one enters a layer while the
        other leaves one, and both together keep as much as one pass; the loss comes after the last layer of both
        (core/pipeline_parallel/combined_1f1b.py, models/common/model_chunk_schedule_plan.py, `run`).
        """
        for _ in range(self.microbatches):
            output = self.forward(self.chunks[0], None)
            self.backward(None, output, None)

    def _one_forward_one_backward(self) -> None:
        """forward_backward_pipelining_without_interleaving"""
        (chunk,), number = self.chunks, self.microbatches
        warmup = min(self.layout.pp - self.at.pp - 1, number)
        entered, outputs = list[Tensor | None](), list[Output]()
        for _ in range(warmup):
            x = None if chunk.first else self.received()
            output = self.forward(chunk, x)
            entered.append(x)
            outputs.append(output)
            output.free()
        remaining = number - warmup
        if remaining:
            x = None if chunk.first else self.received()
        for i in range(remaining):
            output = self.forward(chunk, x)
            gradient = None if chunk.last else self.sent_back()
            entered.append(x)
            outputs.append(output)
            output.free()
            x, output = entered.pop(0), outputs.pop(0)
            sent = self.backward(x, output, gradient)
            x = None if chunk.first or i == remaining - 1 else self.received()
        for _ in range(warmup):
            x, output = entered.pop(0), outputs.pop(0)
            gradient = None if chunk.last else self.sent_back()
            sent = self.backward(x, output, gradient)
        del sent

    def sent_back(self) -> Tensor:
        """The gradient that the stage after sends."""
        self.meter.place = Place("backward", path="receive")
        return self._hidden()

    def _interleaved(self) -> None:
        """forward_backward_pipelining_with_interleaving"""
        Interleaved(self).run()


class Interleaved:
    """The interleaved schedule of one rank, with the variables of Megatron's function.

    order: which chunk each forward pass is of. warmup: forward passes before the first backward pass.
    """

    def __init__(self, run: RankRun) -> None:
        settings, self.rank = run.settings, run
        self.pp, self.chunks, self.at = run.layout.pp, len(run.chunks), run.at.pp
        group = settings.microbatch_group_size_per_virtual_pipeline_stage or self.pp
        every = run.retains or run.rank_choices.deferred is not None
        number = settings.microbatches if every else min(settings.microbatches, max(3 * group, self.pp))
        if settings.microbatches % group == 0:
            number = max(group, number // group * group)
        self.order: list[int] = []
        for start in range(0, number, group):
            size = min(group, number - start)
            self.order += [chunk for chunk in range(self.chunks) for _ in range(size)]
        self.total = number * self.chunks
        self.warmup = min(self.total, (self.pp - self.at - 1) * 2 + (self.chunks - 1) * group)
        self.overlaps = not settings.no_overlap_p2p_communication
        self.entered: list[list[Tensor | None]] = [[] for _ in run.chunks]
        self.outputs: list[list[Output]] = [[] for _ in run.chunks]
        self.gradients: list[list[Tensor | None]] = [[] for _ in run.chunks]
        first, last = self.at == 0, self.at == self.pp - 1
        self.forward_buffer: list[Tensor | None] = [None] * (group - self.pp + 1 if first else 1)
        self.backward_buffer: list[Tensor | None] = [None] * (group - self.pp + 1 if last else 1)
        self.first, self.last = first, last
        self.sent: Tensor | None = None

    def chunk(self, step: int, forward: bool) -> int:
        chunk = self.order[step % self.total]
        return chunk if forward else self.chunks - 1 - chunk

    def is_first(self, chunk: int) -> bool:
        return self.first and chunk == 0

    def is_last(self, chunk: int) -> bool:
        return self.last and chunk == self.chunks - 1

    def arrives(self, step: int, forward: bool) -> tuple[bool, int]:
        """recv_tensor_from_previous_stage: whether a tensor comes after a step, and for which chunk."""
        comes, final = True, self.chunks - 1 if forward else 0
        if not (self.first if forward else self.last):
            return True, self.chunk(step + 1, forward)
        if step < self.pp - 1:
            comes, chunk = False, self.chunk(step + 1, forward)
        else:
            chunk = self.chunk(step - (self.pp - 1), forward)
        return comes and chunk != final, chunk + (1 if forward else -1)

    def forward(self, step: int) -> Output:
        chunk = self.chunk(step, True)
        if self.is_first(chunk) and len(self.entered[chunk]) == len(self.outputs[chunk]):
            self.entered[chunk].append(None)
        x = self.entered[chunk][len(self.outputs[chunk])]
        output = self.rank.forward(self.rank.chunks[chunk], x)
        self.outputs[chunk].append(output)
        return output

    def backward(self, step: int) -> Tensor | None:
        chunk = self.chunk(step, False)
        if self.is_last(chunk) and not self.gradients[chunk]:
            self.gradients[chunk].append(None)
        x, output = self.entered[chunk].pop(0), self.outputs[chunk].pop(0)
        gradient = self.gradients[chunk].pop(0)
        return self.rank.backward(x, output, gradient)

    def run(self) -> None:
        rank, remaining = self.rank, self.total - self.warmup
        output: Output | None = None
        given: Tensor | None
        self.entered[0].append(None if self.is_first(0) else rank.received())
        for k in range(self.warmup):
            comes, chunk = self.arrives(k, True)
            comes = comes and k != self.total - 1
            output = self.forward(k)
            if self.is_last(self.chunk(k, True)):
                output = None
            given = rank.received() if comes else None
            if k == self.warmup - 1 and not self.overlaps and remaining:
                self.gradients[-1].append(None if self.last else rank.sent_back())
            if comes:
                self.entered[chunk].append(given)
            if output is not None:
                output.free()
            if k == self.warmup - 1 and self.overlaps and remaining and not self.last:
                self.backward_buffer[-1] = rank.sent_back()
                self.gradients[-1].append(self.backward_buffer[-1])
        for k in range(remaining):
            step = k + self.warmup
            if self.overlaps:
                output = self._overlapped(k, step, remaining, output)
                continue
            output = self.forward(step)
            self.sent = self.backward(k)
            if self.is_last(self.chunk(step, True)):
                output = None
            if self.is_first(self.chunk(k, False)):
                self.sent = None
            comes, chunk = self.arrives(step, True)
            comes = comes and k != remaining - 1
            back, before = self.arrives(k, False)
            given = rank.received() if comes else None
            gradient = rank.sent_back() if back else None
            if output is not None:
                output.free()
            if comes:
                self.entered[chunk].append(given)
            if back:
                self.gradients[before].append(gradient)
        if output is not None:
            output.free()
        if not remaining:
            self.gradients[-1].append(None if self.last else rank.sent_back())
        for k in range(remaining, self.total):
            back, before = self.arrives(k, False)
            back = back and k != self.total - 1
            self.sent = self.backward(k)
            gradient = rank.sent_back() if back else None
            if back:
                self.gradients[before].append(gradient)

    def _overlapped(self, k: int, step: int, remaining: int, output: Output | None) -> Output | None:
        """One forward and one backward pass, where what is sent and received overlaps with them."""
        rank = self.rank
        if output is not None:
            output.free()
        del output
        made: Output | None = self.forward(step)
        if self.is_last(self.chunk(step, True)):
            made = None
        comes, chunk = self.arrives(step, True)
        comes = comes and k != remaining - 1
        places = len(self.forward_buffer)
        self.forward_buffer[step % places] = rank.received() if comes else None
        if comes:
            self.entered[chunk].append(self.forward_buffer[step % places])
            self.forward_buffer[(step + 1) % places] = None
        self.sent = self.backward(k)
        if self.is_first(self.chunk(k, False)):
            self.sent = None
        back, before = self.arrives(k, False)
        places = len(self.backward_buffer)
        self.backward_buffer[k % places] = rank.sent_back() if back else None
        if back:
            self.gradients[before].append(self.backward_buffer[k % places])
            self.backward_buffer[(k + 1) % places] = None
        return made
