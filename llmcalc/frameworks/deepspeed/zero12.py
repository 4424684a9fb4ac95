"""Training steps of one rank under ZeRO's stages 1 and 2, replayed.

Every rank has all parameters, as slices of one flat tensor, and updates a copy in float32 of its own part. Stage 1 sums
the gradients over ranks after the last backward pass of a step; stage 2 does so in every backward pass, and keeps only
those of its own part.

Each method allocates and frees what the method that it names does, in the same order. Source:
deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8 (`DeepSpeedZeroOptimizer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...device_memory.optimizers.run_step import run_step
from ...device_memory.optimizers.step import Trained
from ...device_memory.training import Training
from ...model import ModelSpec
from ...simulator.meter import Meter, Place
from ...simulator.tensor import FLOAT32, Dtype, Storage, Tensor, counted_as, empty
from .partitions import Piece, by_turns, elements, flat_size, in_module_order, offsets, pieces
from .settings import DeepSpeedSettings
from .zero import DOUBLE, ZeroRun


@dataclass
class Bucket:
    """Gradients that are summed together (`IPGBucket`).

    buffers: where they are copied to, two if sums run beside the backward pass. index: which of them is filled.
    weights: whose gradients. elements: of them all.
    """

    buffers: list[Storage] = field(default_factory=list)
    index: int = 0
    weights: list[Tensor] = field(default_factory=list)
    elements: int = 0

    def clear(self) -> None:
        self.weights, self.elements = [], 0


class DividedRun(ZeroRun):
    """Replays steps of one rank. ranks: over which states are divided. rank: which of them this is.

    sums_in: number format of sums over micro-batches. sends: that of sums over ranks. most: elements of a bucket.
    pieces: a parameter's pieces on each rank. mine: its piece on this one. own: the parameters that have one.
    bucket: what is summed next. large: a gradient that is larger than a bucket. ready: whether there are buffers.
    waiting: gradients that go with the next sum.
    accumulated: sums over micro-batches in a format of their own. in_partition: the buffer of the rank's gradients.
    summed: its gradients of all micro-batches so far. averaged: the same after the last one.
    compact: the sums of the rank's part, in float32. to_host: a buffer for gradients that go to the host.
    """

    def __init__(
        self,
        spec: ModelSpec,
        training: Training,
        settings: DeepSpeedSettings,
        ranks: int,
        rank: int,
        workspace: int = 0,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(spec, training, settings, ranks, workspace, meter)
        self.rank = rank
        self.bucket = Bucket()
        self.large: Tensor | None = None
        self.ready = False
        self.accumulated: dict[int, Tensor] = {}
        self.waiting: list[Tensor] = []
        self.in_partition: Storage | None = None
        self.summed: list[Tensor] | None = None
        self.averaged: list[Tensor] | None = None
        self.compact: Storage | None = None
        self.to_host: Storage | None = None

    # --- set-up -----------------------------------------------------------------------------------------------------

    def prepare_training(self) -> None:
        """The flat tensor, whose slices the parameters become, and the rank's part of it in float32 (`__init__`)."""
        by_path = dict(self.lowering.parameters)
        once = {id(weight): weight for weight in (by_path[path] for path in in_module_order(list(by_path)))}
        self.parameters = list(once.values())
        self.parameters += [weight for weight in self.lowering.unused if weight.leaf]
        settings, ranks = self.settings, self.ranks
        order = by_turns(self.parameters, ranks) if settings.round_robin_gradients else self.parameters
        width, sizes = self.dtype.bytes, [elements(weight) for weight in order]
        starts, end = offsets(sizes, width, settings.parameter_alignment)
        size = flat_size(end, ranks)
        self.part = size // ranks
        self.pieces = {
            id(weight): pieces(start, number, self.part)
            for weight, start, number in zip(order, starts, sizes, strict=True)
        }
        self.mine = {key: piece for key, found in self.pieces.items() for piece in found if piece.rank == self.rank}
        self.own = [weight for weight in order if id(weight) in self.mine]
        with counted_as(self.meter, "weights"):
            flat = Storage(self.meter, size * width)
            for weight in order:
                weight.storage = flat
        clone = Storage(self.meter, self.part * width)
        if self.offloads:
            del clone
            with counted_as(self.meter, "communication"):  # temp_grad_buffer_for_gpu_offload
                self.to_host = Storage(self.meter, max(sizes) * width)
            self.trained = []
            return
        with counted_as(self.meter, "optimizer"):
            updated = empty(self.meter, (self.part,), FLOAT32)
        del clone
        self.trained = [Trained(updated)]
        single_grad_partition = Storage(self.meter, self.part * FLOAT32.bytes)  # initialize_optimizer_states
        del single_grad_partition

    # --- gradients --------------------------------------------------------------------------------------------------

    @property
    def offloads(self) -> bool:
        """Whether the optimizer's states are on the host, and gradients go there."""
        return self.settings.offload_optimizer != "none"

    @property
    def contiguous(self) -> bool:
        """Whether gradients are copied into the bucket's buffer."""
        return self.settings.contiguous_gradients or self.offloads

    @property
    def sums_apart(self) -> bool:
        """Whether the gradients of several micro-batches are added up in a format of their own, by every rank."""
        return self.sums_in is not self.dtype and self.settings.stage == 1

    @property
    def sums_compactly(self) -> bool:
        """Whether each rank adds up its own part alone, in float32 (`_use_compact_grad_partition_buffer`)."""
        return self.sums_in is FLOAT32 and self.sums_in is not self.dtype

    @property
    def stages_in(self) -> Dtype:
        """The format of the bucket's buffer (`_gradient_reduction_buffer_dtype`)."""
        return self.sums_in if self.sums_apart else self.dtype

    @property
    def on_gradient(self) -> Callable[[Tensor], None]:
        return self.process_gradients

    def process_gradients(self, weight: Tensor) -> None:
        """The hook of a parameter."""
        if id(weight) not in self.pieces:  # an input of a part that runs again
            return
        self.setup_buckets()
        if self.sums_apart:
            self._fill_param_grad_accum_attribute(weight)
        if self.settings.stage == 2 or (self.settings.overlaps and self.boundary):
            self.reduce_independent(weight)

    def setup_buckets(self) -> None:
        if self.ready:
            return
        if self.contiguous:
            self.bucket.buffers, self.bucket.index = [], 0
            with counted_as(self.meter, "communication"):
                for _ in range(2 if self.settings.overlaps else 1):
                    self.bucket.buffers.append(Storage(self.meter, self.most * self.stages_in.bytes))
        self.ready = True

    def _fill_param_grad_accum_attribute(self, weight: Tensor) -> None:
        if id(weight) not in self.accumulated:
            with counted_as(self.meter, "gradients"):
                self.accumulated[id(weight)] = empty(self.meter, weight.shape, self.sums_in)
        else:
            grad = empty(self.meter, weight.shape, self.sums_in)
            del grad
        weight.grad = None

    def gradient(self, weight: Tensor) -> Tensor | None:
        """What is summed over ranks (`get_param_gradient_attribute`)."""
        return self.accumulated.get(id(weight)) if self.sums_apart else weight.grad

    def _store(self, weight: Tensor, grad: Tensor | None) -> None:
        if not self.sums_apart:
            weight.grad = grad
        elif grad is None:
            self.accumulated.pop(id(weight), None)
        else:
            self.accumulated[id(weight)] = grad

    def reduce_independent(self, weight: Tensor) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`."""
        bucket, settings, number = self.bucket, self.settings, elements(weight)
        if bucket.elements + number > self.most:
            self.reduce_ipg_grads()
            if self.contiguous and settings.overlaps:
                bucket.index = 1 - bucket.index
        if self.contiguous:
            if number > self.most:
                self.large = weight
            else:
                self._store(weight, Tensor(weight.shape, self.stages_in, bucket.buffers[bucket.index]))
        bucket.elements += number
        bucket.weights.append(weight)

    def reduce_ipg_grads(self) -> None:
        """Sums a bucket, and lets go of the gradients that other ranks keep."""
        bucket, settings = self.bucket, self.settings
        if not bucket.weights:
            return
        with self.beside():
            if self.contiguous:
                self.average_tensor()
                self.large = None
            else:
                self._clear_previous_reduced_grads()
                own = [self.mine[id(weight)] for weight in bucket.weights if id(weight) in self.mine]
                if own and self.sums_compactly and self.compact is None:
                    self._build_compact_grad_partition_buffer()
                self._allreduce([Piece(-1, elements(weight)) for weight in bucket.weights], own)
            for weight in bucket.weights:
                mine = id(weight) in self.mine
                if settings.stage == 2 and not mine:
                    if settings.overlaps and not self.contiguous:
                        self.waiting.append(weight)
                    else:
                        self._store(weight, None)
                elif self.contiguous and mine:
                    self.copy_grads_in_partition(weight)
        bucket.clear()

    def _clear_previous_reduced_grads(self) -> None:
        for weight in self.waiting:
            self._store(weight, None)
        self.waiting = []

    def average_tensor(self) -> None:
        """Sums what is in the bucket's buffer, or one large gradient, each part for the rank that keeps it."""
        settings, mine = self.settings, self.rank
        found: list[Piece] = []
        for weight in self.bucket.weights:
            for piece in self.pieces[id(weight)]:
                apart = self.sums_compactly and piece.rank == mine
                if apart and self.compact is None:
                    self._build_compact_grad_partition_buffer()
                if found and not apart and settings.reduce_scatter and found[-1].rank == piece.rank:
                    found[-1] = found[-1]._replace(elements=found[-1].elements + piece.elements)
                else:
                    found.append(piece)
        if not settings.reduce_scatter:
            total = Piece(-1, self.bucket.elements)
            self._allreduce([total], [piece for piece in found if piece.rank == mine])
        elif settings.use_multi_rank_bucket_allreduce:
            self._in_turn(found)
        else:
            for rank in dict.fromkeys(piece.rank for piece in found):
                self._in_turn([piece for piece in found if piece.rank == rank])

    def _in_turn(self, found: Sequence[Piece]) -> None:
        """Sums pieces, as many at once as a bucket has elements (`allreduce_and_scatter`, `allreduce_no_retain`)."""
        now: list[Piece] = []
        for piece in found:
            now.append(piece)
            if sum(one.elements for one in now) > self.most:
                self._allreduce(now)
                now = []
        if now:
            self._allreduce(now)

    def _allreduce(self, found: Sequence[Piece], added: Sequence[Piece] | None = None) -> None:
        """`allreduce_bucket`: several pieces are copied into one tensor, and that into the format that is sent.

        added: the pieces that this rank adds to its own sums, by default those of its part.
        """
        total = sum(piece.elements for piece in found)
        tensor = Storage(self.meter, total * self.stages_in.bytes) if len(found) > 1 else None
        sent = Storage(self.meter, total * self.sends.bytes) if self.sends is not self.stages_in else None
        if self.sums_compactly and self.sends is not FLOAT32:
            for piece in found if added is None else added:
                if piece.rank == self.rank:
                    source = Storage(self.meter, piece.elements * FLOAT32.bytes)
                    del source
        del tensor, sent

    def _build_compact_grad_partition_buffer(self) -> None:
        with counted_as(self.meter, "gradients"):
            self.compact = Storage(self.meter, self.part * FLOAT32.bytes)

    def copy_grads_in_partition(self, weight: Tensor) -> None:
        """The next bucket's gradients need the buffer: those that this rank keeps go to another, or to the host."""
        if self.offloads:
            self._copy_to_host(weight)
            return
        if self.sums_compactly:
            if self.sums_apart:
                self._store(weight, None)
            return
        if self.in_partition is None:
            total = sum(elements(one) for one in self.own)
            with counted_as(self.meter, "gradients"):
                self.in_partition = Storage(self.meter, total * self.dtype.bytes)
        self._store(weight, Tensor(weight.shape, self.dtype, self.in_partition))

    def _copy_to_host(self, weight: Tensor) -> None:
        """`set_norm_for_param_grad_in_gpu`, `async_inplace_copy_grad_to_fp32_buffer_from_gpu`."""
        if self.boundary:
            size = self.mine[id(weight)].elements
            in_double = Storage(self.meter, size * DOUBLE)
            self.norms[id(weight)] = Storage(self.meter, DOUBLE)
            del in_double
            if self.sums_in is not FLOAT32:
                src_tensor = Storage(self.meter, size * FLOAT32.bytes)
                del src_tensor
            self._store(weight, None)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.meter.place = Place("backward")
        if self.settings.stage == 2:
            self.epilogue()
        elif self.boundary:
            self.reduce_gradients()

    def reduce_gradients(self) -> None:
        """Sums the gradients after the backward pass, in stage 1."""
        if not self.settings.overlaps:
            for weight in self.parameters:
                if self.gradient(weight) is not None:
                    self.reduce_independent(weight)
        self.epilogue()

    def epilogue(self) -> None:
        """`independent_gradient_partition_epilogue`."""
        self.reduce_ipg_grads()
        self._clear_previous_reduced_grads()
        if self.offloads:
            pass
        elif self.sums_compactly:
            if self.boundary and self.compact is None:
                self._build_compact_grad_partition_buffer()
        else:
            with counted_as(self.meter, "gradients"):
                grads = [self.gradient(weight) or empty(self.meter, weight.shape, self.sums_in) for weight in self.own]
            self.summed = grads if self.summed is None else self.summed
            del grads
            if self.boundary:
                self._get_flat_partition()
        self.bucket.buffers, self.in_partition, self.ready = [], None, False
        for weight in self.parameters:
            weight.grad = None

    def _get_flat_partition(self) -> None:
        """The gradients of the rank's part, and zeros where the flat tensor ends before it."""
        assert self.summed is not None
        self.averaged, self.summed = self.summed, None
        missing = self.part - sum(self.mine[id(weight)].elements for weight in self.own)
        if missing:
            with counted_as(self.meter, "gradients"):
                self.averaged.append(empty(self.meter, (missing,), self.sums_in))

    # --- the step ---------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """`step`. The optimizer has one tensor: the rank's part."""
        self.meter.place = Place("step")
        if self.offloads:
            self.norms, self.compact, self.accumulated = {}, None, {}
            return
        training, (one,) = self.training, self.trained
        if self.settings.compute_grad_norm:
            for piece in self.mine.values():  # scaled_global_norm
                in_double = Storage(self.meter, piece.elements * DOUBLE)
                del in_double
        with counted_as(self.meter, "gradients"):
            one.gradient = self._single_grad_partition()
        self.averaged = self.compact = None
        self.accumulated = {}
        with self.graph.no_grad():
            run_step(
                self.graph,
                training.optimizer,
                [one],
                training.implementation,
                training.momentum,
                training.state_dtype,
                training.torch,
            )
        one.gradient = None

    def _single_grad_partition(self) -> Tensor:
        """The gradients of the rank's part, side by side in float32."""
        if self.compact is not None:
            return Tensor((self.part,), FLOAT32, self.compact)
        assert self.averaged is not None
        flat = self.averaged[0].storage
        if len(self.averaged) > 1:
            flat = Storage(self.meter, self.part * self.sums_in.bytes)
        if self.sums_in is FLOAT32:
            return Tensor((self.part,), FLOAT32, flat)
        return empty(self.meter, (self.part,), FLOAT32)
