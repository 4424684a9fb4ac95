"""One process of a distributed run: it builds its part of the model, trains, and follows every storage.

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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from ...parallel.layout import stages
from ..loop import built, matrices_of, optimizers
from ..memory import OnCpu
from . import parallel
from .job import DTYPE, STEPS, Job
from .scratch import scratch_of

SEED = 0

c10d: Any = _distributed_c10d

PAIRS = frozenset({"send", "recv_", "recv_any_source_"})
"""Operations between two processes, which may be under way while others begin."""

OF_BUCKETS = frozenset({"allreduce_"})
"""Operations whose tensors stay, so that it does not matter who holds them."""

PATIENCE = 10.0
"""Seconds in which gloo's threads are done with the tensors of a finished collective."""

WRAPPERS = DTensor, AsyncCollectiveTensor
"""Tensors that hold another one, which has the storage."""


class OnRank(OnCpu):
    """Follows the storages of the local parts of distributed tensors, and those that are given other sizes."""

    def __init__(self) -> None:
        super().__init__(device="cpu")
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, WRAPPERS) for one in types):
            return NotImplemented  # a distributed tensor first takes the operation apart
        if func.namespace in ("c10d", "_c10d_functional"):
            return self._collective(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a collective to its end, until gloo's threads hold none of its tensors: at what time they let go of them
        differs from run to run.
        """
        given: list[Any] = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        before = [one._use_count() for one in given]
        out = func(*args, **kwargs)
        if func.namespace == "c10d" and func._opname not in PAIRS:
            *made, work = out
            dist.Work.unbox(work).wait()
            if func._opname in OF_BUCKETS:
                return out
            del work
            done: torch.futures.Future[Any] = torch.futures.Future()
            done.set_result([])
            out = (*made, c10d._create_work_from_future(done).boxed())
        elif func.namespace == "_c10d_functional" and isinstance(out, Tensor) and func._opname != "wait_tensor":
            torch.ops._c10d_functional.wait_tensor(out)
            given.append(out)
            before.append(1)
        if func._opname not in PAIRS:
            wait_for_release(given, before)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._follow(tensor, func)
        return out

    def _follow(self, tensor: Tensor, func: Any) -> None:
        if isinstance(tensor, (*WRAPPERS, FakeTensor)):
            return
        if not self.set_up and tensor.dtype is torch.int32:  # the numbers of ranks, which a mesh keeps on the host
            self.seen.add(tensor.untyped_storage()._cdata)
            weakref.finalize(tensor.untyped_storage(), self.seen.discard, tensor.untyped_storage()._cdata)
            return
        super()._follow(tensor, func)

    def _gone(self, key: int, size: int) -> None:
        super()._gone(key, self.sizes.pop(key, size))

    @contextmanager
    def resized(self) -> Iterator[None]:
        """Follows `resize_` of storages, which no dispatch mode sees; FSDP frees whole parameters with it."""
        before = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            key, old = storage._cdata, storage.nbytes()
            out = before(storage, size)
            if key in self.seen:
                self.sizes[key] = size
                self.now += size - old
                self.peak = max(self.peak, self.now)
                if self.log is not None:
                    self.log.append(f"r{size - old:>12,} {self.now:>12,}")
            return out

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = before  # type: ignore[method-assign]


def wait_for_release(tensors: list[Any], holders: list[int]) -> None:
    """Waits until tensors have no more holders than these."""
    limit = time.monotonic() + PATIENCE
    while any(one._use_count() > most for one, most in zip(tensors, holders, strict=True)):
        if time.monotonic() > limit:
            return
        time.sleep(0.0001)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def token_ids(job: Job) -> Tensor:
    """The tokens of all micro-batches of all replicas: [replicas, micro-batches, batch, tokens]."""
    shape = job.layout.dp, job.microbatches, job.batch, job.seq
    return torch.randint(0, job.spec.vocab_size, shape, generator=torch.Generator().manual_seed(SEED + 1))


def reference(job: Job) -> Any:
    """The model, with the same values in every process."""
    torch.manual_seed(SEED)
    return built(job.spec, DTYPE, "cpu")


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy."""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def losses_of_one(job: Job) -> list[float]:
    """The mean loss of every step when one process runs all micro-batches of all replicas."""
    module, ids = reference(job), token_ids(job)
    found: list[float] = []
    updates = _optimizers(job, module)
    for _ in range(STEPS):
        total = 0.0
        for one in ids.flatten(0, 1):
            loss = loss_of(module(one, None, grouped_experts=True), one)
            loss.backward(torch.full_like(loss, 1 / job.layout.dp))
            total += loss.item()
        for optimizer in updates:
            optimizer.step()
        module.zero_grad(set_to_none=True)
        found.append(total / (job.layout.dp * job.microbatches))
    return found


def _optimizers(job: Job, module: Any) -> list[Any]:
    matrices = matrices_of(module)
    found = [(one, id(one) in matrices) for one in module.parameters()]
    return list(optimizers(job.how.optimizer, found, "foreach", job.how.momentum))


class Rank:
    """A process of a run. log: gets every allocation."""

    def __init__(self, job: Job, log: list[str] | None = None) -> None:
        self.job, self.mode = job, OnRank()
        self.rank, layout = dist.get_rank(), job.layout
        self.at = layout.coordinates(self.rank)
        names = "pp", "replicas", "dp", "tp"
        sizes = layout.pp, layout.hsdp_replicas, layout.dp // layout.hsdp_replicas, layout.tp
        self.mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        self.meshes = {name: self.mesh[name] for name in names}  # made before storages are followed
        self.shards = self.mesh["replicas", "dp"] if layout.hsdp_replicas > 1 else self.meshes["dp"]
        self.ends = self._ends() if layout.pp > 1 and job.spec.tie_word_embeddings else None
        self.mode.log = log
        self.most: dict[str, int] = {}

    def measured(self) -> tuple[dict[str, int], list[float]]:
        """Quantity → bytes, and the sum of the losses of each step, where this process computes them."""
        job, mode = self.job, self.mode
        module = reference(job)
        ids = token_ids(job)[self.at.dp]
        found: dict[str, int] = {}
        losses: list[float] = []
        mode.seen.add(ids.untyped_storage()._cdata)
        with mode.resized(), mode:
            self.build(module)
            del module
            mode.follow(map(local, (*self.module.parameters(), *self.module.buffers())))
            updates = _optimizers(job, self.module)
            found["set_up_bytes"] = mode.now
            mode.set_up = True
            run = self.pipeline() if job.layout.pp > 1 else self.micro_batches
            for i in range(STEPS):
                self.most.clear()
                mode.peak = mode.now
                losses.append(run(ids))
                if job.layout.pp > 1:
                    self.seen("passes")
                gc.collect()  # cycles that the dispatcher of distributed tensors leaves
                before = mode.now
                self.sum_tied()
                for optimizer in updates:
                    optimizer.step()
                self.seen("step")
                self.module.zero_grad(set_to_none=True)
                if i == 0:
                    found["first_step_peak_bytes"] = self.most["step"]
            found |= {f"{phase}_peak_bytes": most for phase, most in self.most.items()}
            found |= {"before_step_bytes": before, "after_step_bytes": mode.now}
        self.scratch = scratch_of(lambda: run(ids))
        return found, losses

    def seen(self, phase: str) -> None:
        """Takes the most since the last phase as that of this one."""
        self.most[phase] = max(self.most.get(phase, 0), self.mode.peak)
        self.mode.peak = self.mode.now
        if self.mode.log is not None:
            self.mode.log.append(f"--- {phase}")

    def _ends(self) -> Any:
        """The group of the first and the last stage."""
        layout, own = self.job.layout, None
        for tp in range(layout.tp):
            for dp in range(layout.dp):
                ranks = [layout.rank(tp, dp=dp, pp=pp) for pp in (0, layout.pp - 1)]
                group = dist.new_group(ranks)
                own = group if (tp, dp) == (self.at.tp, self.at.dp) else own
        return own

    # --- building ---------------------------------------------------------------------------------------------------

    def build(self, module: Any) -> None:
        """Leaves this process its part of the model."""
        layout = self.job.layout
        self.last = True
        if layout.pp > 1:
            layers = len(module.layers)
            (own,) = (stage for stage in stages(layout, layers) if stage.rank == self.at.pp)
            parallel.keep_stage(module, own.layers, own.first, own.last)
            self.last = own.last
        if layout.tp > 1:
            parallel.divide_products(module, self.meshes["tp"])
        if layout.zero == 3:
            parallel.shard(module, self.shards, layout.reshard, getattr(torch, DTYPE), layout.prefetch)
        elif layout.dp > 1:
            module = DistributedDataParallel(module, process_group=self.meshes["dp"].get_group())
        self.module = module

    # --- running ----------------------------------------------------------------------------------------------------

    def loss_context(self) -> AbstractContextManager[Any]:
        """With the vocabulary divided, the loss is computed on divided logits."""
        return loss_parallel() if self.job.layout.tp > 1 else nullcontext()

    def micro_batches(self, ids: Tensor) -> float:
        """The passes of a step. Returns the sum of the losses."""
        total = 0.0
        for i in range(self.job.microbatches):
            self.ids = ids[i].clone()
            last = i == self.job.microbatches - 1
            with self.unsummed(last), self.loss_context():
                loss = loss_of(self.module(self.ids, None, grouped_experts=True), self.ids)
                self.seen("forward")
                loss.backward(torch.ones_like(loss))
            total += local(loss.detach()).item()
            del loss
            self.seen("backward")
        return total

    def unsummed(self, last: bool) -> AbstractContextManager[Any]:
        """Replicas sum their gradients once, after the last micro-batch."""
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()

    def sum_tied(self) -> None:
        """Adds up the gradients of a tied table, of which the first and the last stage of a pipeline have a copy."""
        layout, at = self.job.layout, self.at
        if self.ends is None or at.pp not in (0, layout.pp - 1):
            return
        module = self.module.module if isinstance(self.module, DistributedDataParallel) else self.module
        table = module.embed_tokens if at.pp == 0 else module.lm_head
        gradient: Any = local(table.weight.grad)
        if gradient.shape != local(table.weight).shape:  # whole on every rank of the products
            gradient = gradient.chunk(layout.tp)[at.tp]
        holders = gradient._use_count()
        dist.all_reduce(gradient, group=self.ends)
        wait_for_release([gradient], [holders])

    def pipeline(self) -> Callable[[Tensor], float]:
        """What runs the passes of a step in a pipeline."""
        job, at = self.job, self.at
        group = self.meshes["pp"].get_group()
        stage = PipelineStage(self.module, at.pp, job.layout.pp, torch.device("cpu"), group=group)

        def loss_fn(logits: Tensor, labels: Tensor) -> Tensor:
            return loss_of(logits, labels)

        schedule = Schedule1F1B(stage, job.microbatches, loss_fn=loss_fn, scale_grads=False)

        def run(ids: Tensor) -> float:
            self.ids = ids.flatten(0, 1).clone()
            given = (self.ids,) if at.pp == 0 else ()
            losses: list[Tensor] = []
            with self.loss_context():
                schedule.step(*given, target=self.ids if self.last else None, losses=losses, return_outputs=False)
            return sum(float(one.detach()) for one in losses)

        return run


class Found(NamedTuple):
    """What one process found.

    bytes: quantity → bytes. losses: the mean loss of each step, of all processes. scratch: kernel → the largest block
    that it took and freed, of a further step.
    """

    bytes: dict[str, int]
    losses: list[float]
    scratch: dict[str, int]


def run(job: Job, log: list[str] | None = None) -> Found:
    """Runs this process's part of a job, in the default process group. log: gets every allocation."""
    rank = Rank(job, log)
    found, losses = rank.measured()
    own = torch.tensor([one if rank.last and rank.at.tp == 0 else 0.0 for one in losses], dtype=torch.float64)
    dist.all_reduce(own)
    return Found(found, (own / (job.layout.dp * job.microbatches)).tolist(), rank.scratch)
