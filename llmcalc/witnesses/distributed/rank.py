"""One process of a distributed run, which builds and trains its part of the model and tracks storages.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch._dynamo  # a first optimizer step imports it, and would count what it allocates
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._C import _distributed_c10d
from torch._subclasses import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from ...parallel.layout import Coordinates, stages
from ..memory import CpuStorageTracker
from ..training_loop import build_optimizers, build_reference, layer_matrix_ids
from . import parallel
from .job import JOB_DTYPE, STEP_COUNT, TrainingJob
from .scratch import scratch_bytes_by_kernel

SEED = 0

c10d: Any = _distributed_c10d

POINT_TO_POINT = frozenset({"send", "recv_", "recv_any_source_"})
"""Names of point-to-point operations, which may overlap with other operations."""

BUCKET_OPERATIONS = frozenset({"allreduce_"})
"""Names of collectives on gradient buckets, whose tensors persist."""

RELEASE_SECONDS = 10.0
"""Timeout in seconds for gloo's threads to release the tensors of a finished collective."""

TENSOR_WRAPPERS = DTensor, AsyncCollectiveTensor
"""Classes of tensors that wrap another tensor, which has the storage."""


class RankStorageTracker(CpuStorageTracker):
    """Tracks the storages of DTensors' local parts, and storages that are resized."""

    def __init__(self) -> None:
        super().__init__(device="cpu")
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(tensor_type, TENSOR_WRAPPERS) for tensor_type in types):
            return NotImplemented  # a distributed tensor first decomposes the operation
        if function.namespace in ("c10d", "_c10d_functional"):
            return self._run_collective(function, args, kwargs or {})
        return super().__torch_dispatch__(function, types, args, kwargs)

    def _run_collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a collective, and waits until gloo's threads release its tensors, so that counts are reproducible."""
        input_tensors: list[Any] = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        reference_counts = [leaf._use_count() for leaf in input_tensors]
        output = func(*args, **kwargs)
        if func.namespace == "c10d" and func._opname not in POINT_TO_POINT:
            *output_tensors, work_handle = output
            dist.Work.unbox(work_handle).wait()
            if func._opname in BUCKET_OPERATIONS:
                return output
            del work_handle
            finished_future: torch.futures.Future[Any] = torch.futures.Future()
            finished_future.set_result([])
            output = (*output_tensors, c10d._create_work_from_future(finished_future).boxed())
        elif func.namespace == "_c10d_functional" and isinstance(output, Tensor) and func._opname != "wait_tensor":
            torch.ops._c10d_functional.wait_tensor(output)
            input_tensors.append(output)
            reference_counts.append(1)
        if func._opname not in POINT_TO_POINT:
            wait_for_release(input_tensors, reference_counts)
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._track_tensor(tensor, func)
        return output

    def _track_tensor(self, tensor: Tensor, function: Any) -> None:
        if isinstance(tensor, (*TENSOR_WRAPPERS, FakeTensor)):
            return
        if not self.set_up and tensor.dtype is torch.int32:  # numbers of ranks, which a mesh stores on the host
            self.tracked.add(tensor.untyped_storage()._cdata)
            weakref.finalize(tensor.untyped_storage(), self.tracked.discard, tensor.untyped_storage()._cdata)
            return
        super()._track_tensor(tensor, function)

    def _release(self, storage_key: int, byte_count: int) -> None:
        super()._release(storage_key, self.sizes.pop(storage_key, byte_count))

    @contextmanager
    def track_resizes(self) -> Iterator[None]:
        """Tracks `resize_` of storages, which dispatch modes do not see. FSDP frees parameters by `resize_`."""
        original_resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, byte_count: int) -> Any:
            storage_key, old_bytes = storage._cdata, storage.nbytes()
            resized_storage = original_resize(storage, byte_count)
            if storage_key in self.tracked:
                self.sizes[storage_key] = byte_count
                self.now += byte_count - old_bytes
                self.peak = max(self.peak, self.now)
            return resized_storage

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original_resize  # type: ignore[method-assign]


def wait_for_release(tensors: list[Any], reference_counts: list[int]) -> None:
    """Waits until other threads have dropped their references to the tensors."""
    deadline = time.monotonic() + RELEASE_SECONDS
    while any(
        tensor._use_count() > reference_count for tensor, reference_count in zip(tensors, reference_counts, strict=True)
    ):
        if time.monotonic() > deadline:
            return
        time.sleep(0.0001)


def local_tensor(tensor: Tensor) -> Tensor:
    """Returns the local part of a distributed tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def token_ids(training_job: TrainingJob) -> Tensor:
    """Returns the token ids of all replicas' micro-batches: [replicas, micro-batches, batch, tokens]."""
    shape = training_job.layout.dp, training_job.microbatches, training_job.batch, training_job.seq
    return torch.randint(0, training_job.spec.vocab_size, shape, generator=torch.Generator().manual_seed(SEED + 1))


def seeded_reference(training_job: TrainingJob) -> Any:
    """Builds the reference model with the same random weights in every process."""
    torch.manual_seed(SEED)
    return build_reference(training_job.spec, JOB_DTYPE, "cpu")


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean cross-entropy of the logits."""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def single_process_losses(training_job: TrainingJob) -> list[float]:
    """Returns the mean loss over all replicas' micro-batches for every step, computed by one process."""
    model, token_batches = seeded_reference(training_job), token_ids(training_job)
    losses: list[float] = []
    optimizers = _build_optimizers(training_job, model)
    for _ in range(STEP_COUNT):
        summed_loss = 0.0
        for micro_batch in token_batches.flatten(0, 1):
            loss = loss_of(model(micro_batch, None, grouped_experts=True), micro_batch)
            loss.backward(torch.full_like(loss, 1 / training_job.layout.dp))
            summed_loss += loss.item()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(summed_loss / (training_job.layout.dp * training_job.microbatches))
    return losses


def _build_optimizers(training_job: TrainingJob, model: Any) -> list[Any]:
    matrix_ids = layer_matrix_ids(model)
    parameters = [(parameter, id(parameter) in matrix_ids) for parameter in model.parameters()]
    return list(
        build_optimizers(training_job.training.optimizer, parameters, "foreach", training_job.training.has_momentum)
    )


class RankProcess:
    """One process of a distributed run, which trains and measures its part of the model."""

    def __init__(self, training_job: TrainingJob) -> None:
        self.training_job: TrainingJob = training_job
        self.storage_tracker: RankStorageTracker = RankStorageTracker()
        self.rank: int = dist.get_rank()
        layout = training_job.layout
        self.coordinates: Coordinates = layout.coordinates(self.rank)
        axis_names = "pp", "replicas", "dp", "tp"
        mesh_shape = layout.pp, layout.hsdp_replicas, layout.dp // layout.hsdp_replicas, layout.tp
        self.mesh: DeviceMesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=axis_names)
        self.meshes: dict[str, DeviceMesh] = {
            axis_name: self.mesh[axis_name] for axis_name in axis_names
        }  # created before storages are tracked
        self.shards = self.mesh["replicas", "dp"] if layout.hsdp_replicas > 1 else self.meshes["dp"]
        self.ends: Any | None = (
            self._end_stages_group() if layout.pp > 1 and training_job.spec.tie_word_embeddings else None
        )
        self.peaks: dict[str, int] = {}

    def measure_training(self) -> tuple[dict[str, int], list[float]]:
        """Trains the model. Returns the measured bytes by quantity, and each step's loss.

        Returns bytes by quantity, and each step's sum of losses if this process computes losses.
        """
        training_job, tracker = self.training_job, self.storage_tracker
        model = seeded_reference(training_job)
        rank_token_ids = token_ids(training_job)[self.coordinates.dp]
        measured_quantities: dict[str, int] = {}
        losses: list[float] = []
        tracker.tracked.add(rank_token_ids.untyped_storage()._cdata)
        with tracker.track_resizes(), tracker:
            self.build_model_part(model)
            del model
            tracker.track_tensors(map(local_tensor, (*self.module.parameters(), *self.module.buffers())))
            optimizers_of_rank = _build_optimizers(training_job, self.module)
            measured_quantities["set_up_bytes"] = tracker.now
            tracker.set_up = True
            run_passes = self.pipeline_runner() if training_job.layout.pp > 1 else self.run_micro_batches
            for step_index in range(STEP_COUNT):
                self.peaks.clear()
                tracker.peak = tracker.now
                losses.append(run_passes(rank_token_ids))
                if training_job.layout.pp > 1:
                    self.record_phase("passes")
                gc.collect()  # cycles that the dispatcher of distributed tensors leaves
                bytes_before_step = tracker.now
                self.sum_tied_gradients()
                for optimizer in optimizers_of_rank:
                    optimizer.step()
                self.record_phase("step")
                self.module.zero_grad(set_to_none=True)
                if step_index == 0:
                    measured_quantities["first_step_peak_bytes"] = self.peaks["step"]
            measured_quantities |= {f"{phase}_peak_bytes": peak for phase, peak in self.peaks.items()}
            measured_quantities |= {"before_step_bytes": bytes_before_step, "after_step_bytes": tracker.now}
        self.scratch: dict[str, int] = scratch_bytes_by_kernel(lambda: run_passes(rank_token_ids))
        return measured_quantities, losses

    def record_phase(self, phase: str) -> None:
        """Records the peak of the phase that ends now."""
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.storage_tracker.peak)
        self.storage_tracker.peak = self.storage_tracker.now

    def _end_stages_group(self) -> Any:
        """Returns the process group of this rank's first and last pipeline stage."""
        layout, this_process_group = self.training_job.layout, None
        for tp in range(layout.tp):
            for dp in range(layout.dp):
                end_stage_ranks = [layout.rank(tp, dp=dp, pp=pp) for pp in (0, layout.pp - 1)]
                end_stage_group = dist.new_group(end_stage_ranks)
                this_process_group = (
                    end_stage_group if (tp, dp) == (self.coordinates.tp, self.coordinates.dp) else this_process_group
                )
        return this_process_group

    # --- building ---------------------------------------------------------------------------------------------------

    def build_model_part(self, model: Any) -> None:
        """Builds the part of the model that this process trains."""
        layout = self.training_job.layout
        self.last: bool = True
        if layout.pp > 1:
            layer_count = len(model.layers)
            (this_stage,) = (
                stage for stage in stages(layout, layer_count) if stage.pipeline_rank == self.coordinates.pp
            )
            parallel.remove_other_stages(model, this_stage.layers, this_stage.has_embedding, this_stage.has_head)
            self.last = this_stage.has_head
        if layout.tp > 1:
            parallel.apply_tensor_parallelism(model, self.meshes["tp"])
        if layout.zero == 3:
            parallel.shard_layers(model, self.shards, layout.reshard, getattr(torch, JOB_DTYPE), layout.prefetch)
        elif layout.dp > 1:
            model = DistributedDataParallel(model, process_group=self.meshes["dp"].get_group())
        self.module = model

    # --- running ----------------------------------------------------------------------------------------------------

    def loss_context(self) -> AbstractContextManager[Any]:
        """Returns the context manager of the loss; tensor parallelism computes the loss on sharded logits."""
        return loss_parallel() if self.training_job.layout.tp > 1 else nullcontext()

    def run_micro_batches(self, rank_token_ids: Tensor) -> float:
        """Runs the passes of a step and returns the sum of the losses."""
        summed_loss = 0.0
        for micro_batch in range(self.training_job.microbatches):
            self.ids: Tensor = rank_token_ids[micro_batch].clone()
            is_last_micro_batch = micro_batch == self.training_job.microbatches - 1
            with self.gradient_context(is_last_micro_batch), self.loss_context():
                loss = loss_of(self.module(self.ids, None, grouped_experts=True), self.ids)
                self.record_phase("forward")
                loss.backward(torch.ones_like(loss))
            summed_loss += local_tensor(loss.detach()).item()
            del loss
            self.record_phase("backward")
        return summed_loss

    def gradient_context(self, is_last: bool) -> AbstractContextManager[Any]:
        """Returns a micro-batch's context manager, in which gradients are all-reduced only for the last micro-batch."""
        if isinstance(self.module, DistributedDataParallel) and not is_last:
            return self.module.no_sync()
        return nullcontext()

    def sum_tied_gradients(self) -> None:
        """All-reduces the gradient of a tied embedding between the first and the last pipeline stage."""
        layout, rank_coordinates = self.training_job.layout, self.coordinates
        if self.ends is None or rank_coordinates.pp not in (0, layout.pp - 1):
            return
        model = self.module.module if isinstance(self.module, DistributedDataParallel) else self.module
        embedding = model.embed_tokens if rank_coordinates.pp == 0 else model.lm_head
        gradient: Any = local_tensor(embedding.weight.grad)
        if gradient.shape != local_tensor(embedding.weight).shape:  # whole on every rank of the products
            gradient = gradient.chunk(layout.tp)[rank_coordinates.tp]
        reference_count = gradient._use_count()
        dist.all_reduce(gradient, group=self.ends)
        wait_for_release([gradient], [reference_count])

    def pipeline_runner(self) -> Callable[[Tensor], float]:
        """Returns a function that runs a step's passes through the pipeline stages."""
        training_job, rank_coordinates = self.training_job, self.coordinates
        process_group = self.meshes["pp"].get_group()
        pipeline_stage = PipelineStage(
            self.module, rank_coordinates.pp, training_job.layout.pp, torch.device("cpu"), group=process_group
        )

        def loss_fn(logits: Tensor, labels: Tensor) -> Tensor:
            return loss_of(logits, labels)

        schedule = Schedule1F1B(pipeline_stage, training_job.microbatches, loss_fn=loss_fn, scale_grads=False)

        def run_pipeline(ids: Tensor) -> float:
            self.ids = ids.flatten(0, 1).clone()
            inputs = (self.ids,) if rank_coordinates.pp == 0 else ()
            losses: list[Tensor] = []
            with self.loss_context():
                schedule.step(*inputs, target=self.ids if self.last else None, losses=losses, return_outputs=False)
            return sum(float(loss.detach()) for loss in losses)

        return run_pipeline


class RankResult(NamedTuple):
    """The measurements of one process: memory bytes, losses and scratch bytes.

    bytes: quantity → bytes.
    losses: mean loss of each step, over all processes.
    scratch_bytes: kernel → bytes of its largest scratch block, in another step.
    """

    bytes: dict[str, int]
    losses: list[float]
    scratch_bytes: dict[str, int]


def run_rank(training_job: TrainingJob) -> RankResult:
    """Runs this process's part of a job in the default process group."""
    rank_process = RankProcess(training_job)
    measured_quantities, losses = rank_process.measure_training()
    loss_sums = torch.tensor(
        [loss if rank_process.last and rank_process.coordinates.tp == 0 else 0.0 for loss in losses],
        dtype=torch.float64,
    )
    dist.all_reduce(loss_sums)
    return RankResult(
        measured_quantities,
        (loss_sums / (training_job.layout.dp * training_job.microbatches)).tolist(),
        rank_process.scratch,
    )
