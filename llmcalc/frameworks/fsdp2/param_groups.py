"""Groups of parameters that FSDP2 gathers and reduces together, without values.

A group is what one call of `fully_shard` wraps. Each rank keeps an equal part of the rows of every parameter, its
shard. Before the group's modules run, the shards are gathered into one buffer and copied into whole parameters; after
the backward pass the whole gradients are copied into one buffer, of which each rank gets the sum of its part.

Every method here allocates and frees what the method that it names does, in the same order; a local variable stands for
the local variable of that name. Source: torch/distributed/fsdp/_fully_shard of torch 2.13 (_fsdp_param.py,
_fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...algebra import Number, ceil_div
from ...parallel.placements import Collective
from ...simulator.aten import Aten
from ...simulator.autograd import Graph, record
from ...simulator.lowering import Path
from ...simulator.strides import count
from ...simulator.tensor import Dtype, Meter, Needs, Storage, Tensor, counted_as, empty, on_stream
from .settings import Float8

COPY_IN, REDUCE, ALL_REDUCE = 1, 2, 3
"""Streams beside the default one (`FSDPCommContext.lazy_init`). A block of a stream serves that stream alone."""

Moment: TypeAlias = Literal["pre-forward", "post-forward", "pre-backward", "post-backward"]
"""The hooks of a group."""


@dataclass(frozen=True)
class Sharding:
    """How parameters are sharded.

    shards: ranks that hold the parts of a parameter. index: which part this rank holds. replicas: groups of ranks that
        each hold all parts (HSDP), 1 by default.
    dtype: number format of the parts, of their gradients and of the optimizer's states.
    gathered: the format in which parameters are gathered and modules compute.
    reduced: the format in which gradients are summed.
    float8: which linear layers run in 8 bits, and whether they are gathered so; None (default) if none does.
    tensor: ranks of a tensor group, 1 by default.
    divides_loss: whether they compute the loss on divided logits, true by default.
    frozen: the format of the parts of parameters that are not trained; None (default) for that of the others.
    copies_gathered: of a tensor group, as of `Divided`, false by default.
    overlaps: whether the products of compiled layers send what they read and give themselves (asynchronous tensor
        parallelism), false by default.
    """

    shards: int
    index: int
    replicas: int
    dtype: Dtype
    gathered: Dtype
    reduced: Dtype
    float8: Float8 | None = None
    tensor: int = 1
    divides_loss: bool = True
    frozen: Dtype | None = None
    copies_gathered: bool = False
    overlaps: bool = False


class Gathered(Storage):
    """The memory of a whole parameter, which is there while its group is gathered (`alloc_storage`, `free_storage`)."""

    __slots__ = ()

    def __init__(self, meter: Meter, size: int) -> None:
        self.meter, self.bytes, self.block = meter, size, None

    def fill(self) -> None:
        """Takes the memory."""
        with counted_as(self.meter, "weights"):
            self.block = self.meter.allocate(self.bytes)

    def clear(self) -> None:
        """Gives the memory back."""
        if self.block is not None:
            self.meter.free(self.block)
            self.block = None

    def __del__(self) -> None:
        self.clear()


class Parameter:
    """One parameter of a group (`FSDPParam`).

    path: its path in the model. whole: the gathered one, which modules use and which gets the gradients of this rank.
    own: this rank's rows, which the optimizer updates; it has no gradient until the sums are there.
    part: the number of elements of the largest part: that many are kept and sent by every rank.
    summed: the sum of the gradients of earlier micro-batches, None if they have been reduced.
    width: bytes of an element that is gathered.
    partial: whether its gradients on the ranks of a tensor group have to be added up, false by default.
    """

    __slots__ = ("own", "part", "partial", "path", "summed", "whole", "width")

    def __init__(
        self, meter: Meter, path: Path, like: Tensor, how: Sharding, width: int, partial: bool = False
    ) -> None:
        self.partial = partial
        rows, *rest = like.shape
        each = ceil_div(rows, how.shards)
        here = max(0, min(each, rows - how.index * each))
        self.path, self.part, self.width = path, each * count(tuple(rest)), width
        dtype = how.dtype if like.leaf else how.frozen or how.dtype
        with counted_as(meter, "weights"):
            padded = Storage(meter, self.part * dtype.bytes)
        self.own = Tensor((here, *rest), dtype, padded, leaf=like.leaf)
        storage = Gathered(meter, self.part * how.shards * width)
        self.whole = Tensor(like.shape, how.gathered, storage, leaf=like.leaf)
        self.summed: Tensor | None = None


class Traffic:
    """What all groups of a model share (`FSDPCommContext`), and a record of what they send.

    gathered: the buffer of the last gathering of the forward pass, which the next one frees after its own copies.
    reducing: the buffers of sums that are under way. order: the groups in the order in which they finished forward.
    reduces: whether the backward pass sums the gradients of all ranks. reshards: whether it frees whole parameters.
    ends: whether what is under way is forgotten at its end (`set_is_last_backward`). All true by default.
    streams: how many streams come before its own, beside the default one; those of another model, 0 by default.
    sent: the collective operations so far. watch: called before (False) and after (True) each hook of a group, None
        (default) for nothing.
    """

    def __init__(self, graph: Graph, how: Sharding, streams: int = 0) -> None:
        self.graph, self.how, self.streams = graph, how, streams
        self.gathered: Storage | None = None
        self.reducing: list[Storage] = []
        self.order: list[Group] = []
        self.reduces = self.reshards = self.ends = True
        self.sent: list[Collective] = []
        self.watch: Callable[[Group, Moment, bool], None] | None = None

    @property
    def meter(self) -> Meter:
        return self.graph.meter

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """New storages are allocated on that stream, as buffers of communication."""
        with on_stream(self.meter, stream + self.streams), counted_as(self.meter, "communication"):
            yield

    @contextmanager
    def seen(self, group: Group, moment: Moment) -> Iterator[None]:
        if self.watch is not None:
            self.watch(group, moment, False)
        yield
        if self.watch is not None:
            self.watch(group, moment, True)

    def finish(self, groups: Sequence[Group]) -> None:
        """The end of a backward pass (`_root_post_backward_final_callback`).

        groups: all of them, that of the whole model first: its gradients, and those of other groups whose inputs need
            none, are summed here.
        """
        for group in groups:
            if group.state != "post-backward":
                group.post_backward()
            group.state = None
            if self.ends:
                group.finalize_backward()
        if self.ends:
            self.order.clear()
            self.reducing.clear()


class Group:
    """Parameters that are gathered and reduced together (`FSDPParamGroup`).

    name: the path of its module, empty for that of the model. reshards: whether its whole parameters are freed between
    forward and backward pass. ahead, behind: groups that it gathers too in its forward and in its backward pass
    (`set_modules_to_forward_prefetch`, `set_modules_to_backward_prefetch`); none by default, and then the backward pass
    gathers for the modules below.
    """

    def __init__(self, traffic: Traffic, name: str, reshards: bool) -> None:
        self.traffic, self.name, self.reshards = traffic, name, reshards
        self.parameters: list[Parameter] = []
        self.ahead: Sequence[Group] = ()
        self.behind: Sequence[Group] = ()
        self.state: Moment | None = None
        self.whole = False
        self.result: Storage | None = None
        self.finished: list[int] = []
        self.all_reduced: Storage | None = None

    @property
    def sent(self) -> int:
        """The bytes that each rank sends to gather them."""
        return sum(one.part * one.width for one in self.parameters)

    def collectives(self, microbatches: int, reduces: int) -> Iterator[Collective]:
        """What a step sends, with as many micro-batches and backward passes that sum gradients."""
        how, trained = self.traffic.how, sum(one.part for one in self.parameters if one.own.leaf)
        whole, summed = self.sent * how.shards, trained * how.reduced.bytes
        if how.shards > 1:
            for backward in (False, True) if self.reshards else (False,):
                yield Collective(self.name, "all_gather", "dp", how.shards, backward, whole, microbatches)
        if how.shards > 1 and trained:
            yield Collective(self.name, "reduce_scatter", "dp", how.shards, True, summed * how.shards, reduces)
        if how.replicas > 1 and trained:
            yield Collective(self.name, "all_reduce", "replicas", how.replicas, True, summed, reduces)
        kept = how.gathered if reduces == microbatches else how.reduced
        for one in self.parameters:
            if one.partial and one.own.leaf:
                yield self._of_tensor_group(one.whole.count * kept.bytes, reduces)

    # --- gathering --------------------------------------------------------------------------------------------------

    def unshard(self, forward: bool, stream: int | None = COPY_IN) -> None:
        """Gathers the parts, unless that is under way or done. stream: on which; None for the default one."""
        if self.result is None and not self.whole:
            self.result = self._all_gather(forward, stream)

    def _all_gather(self, forward: bool, stream: int | None) -> Storage:
        """`foreach_all_gather`, on a stream of its own. Parts in another format are cast into one tensor first."""
        traffic, how = self.traffic, self.traffic.how
        size = self.sent
        with counted_as(traffic.meter, "communication") if stream is None else traffic.on(stream):
            if how.shards == 1:
                return Storage(traffic.meter, 0)
            cast = sum(one.part * one.width for one in self.parameters if one.own.dtype is not how.gathered)
            _all_gather_inputs = Storage(traffic.meter, cast) if cast else None
            traffic.sent.append(Collective(self.name, "all_gather", "dp", how.shards, not forward, size * how.shards))
            return Storage(traffic.meter, size * how.shards)

    def wait_for_unshard(self, forward: bool) -> None:
        """Copies what was gathered into whole parameters. In the forward pass its buffer stays until the next copy is
        done, so that the two overlap.
        """
        if self.result is None:
            return
        traffic = self.traffic
        _prev_all_gather_state = traffic.gathered if forward else None
        if forward:
            traffic.gathered = None
        for one in self.parameters:
            self._copy_out(one)
        self.whole = True
        if forward and traffic.how.shards > 1:
            traffic.gathered = self.result
        self.result = None

    def _copy_out(self, one: Parameter) -> None:
        """Fills a whole parameter; on one rank alone from a copy in the format in which modules compute."""
        how = self.traffic.how
        if how.shards == 1 and one.own.dtype is not how.gathered:
            _all_gather_input = empty(self.traffic.meter, (one.part,), how.gathered)
        assert isinstance(one.whole.storage, Gathered)
        one.whole.storage.fill()

    def reshard(self) -> None:
        """Frees the whole parameters."""
        if self.whole:
            for one in self.parameters:
                assert isinstance(one.whole.storage, Gathered)
                one.whole.storage.clear()
            self.whole = False

    # --- hooks ------------------------------------------------------------------------------------------------------

    def pre_forward(self, x: Tensor | None) -> Tensor | None:
        """Gathers before the modules run. Returns their input in the format in which they compute; when its gradient is
        there, those of the group are complete.
        """
        with self.traffic.seen(self, "pre-forward"):
            self.state = "pre-forward"
            graph = self.traffic.graph
            if x is not None and x.dtype.floating:
                x = Aten(graph).to(x, self.traffic.how.gathered)
            self.unshard(forward=True)
            self.wait_for_unshard(forward=True)
            for group in self.ahead:
                group.unshard(forward=True)
            if x is None or not x.needs_grad:
                return x
            return record(graph, "RegisterPostBackwardFunction", [x], x.detached(), self._passed_on)

    def _passed_on(self, gradient: Tensor, needs: Needs) -> list[Tensor]:
        self.post_backward()
        return [gradient]

    def post_forward(self, outs: Sequence[Tensor], last: bool = False) -> None:
        """Frees the whole parameters after the modules have run.

        outs: their outputs, whose gradients come first. last: whether the forward pass ends here, and with it the last
            gathering.
        """
        with self.traffic.seen(self, "post-forward"):
            if self.reshards:
                self.reshard()
            self.finished.append(len(self.traffic.order))
            self.traffic.order.append(self)
            self.state = None
            for out in outs:
                if out.node is not None:
                    out.node.hooks.append(self.pre_backward)
            if last:
                self.traffic.gathered = None

    def pre_backward(self) -> None:
        """Gathers before the backward pass of the modules, and begins to gather for the modules below them."""
        if self.state == "pre-backward":
            return
        with self.traffic.seen(self, "pre-backward"):
            self.state = "pre-backward"
            self.unshard(forward=False)
            self.wait_for_unshard(forward=False)
            order = self.traffic.order
            if not self.behind and self.finished and (index := self.finished.pop()) > 0:
                order[index - 1].unshard(forward=False)
        for group in self.behind:
            group.unshard(forward=False)

    def post_backward(self) -> None:
        """Sums the gradients of all ranks, or adds them to those of earlier micro-batches."""
        with self.traffic.seen(self, "post-backward"):
            self.state = "post-backward"
            for one in self.parameters:
                if one.summed is not None:
                    one.whole.grad = None  # added in place
            if not self.traffic.reduces:
                if self.traffic.reshards:
                    self.reshard()
                for one in self.parameters:
                    self._to_accumulated_grad(one)
                return
            self._reduce_all()

    def _to_accumulated_grad(self, one: Parameter) -> None:
        """`to_accumulated_grad_if_needed`: the sum over micro-batches is in the format of the sum over ranks."""
        reduced = self.traffic.how.reduced
        unsharded_grad, one.whole.grad = one.whole.grad, None
        if unsharded_grad is None or unsharded_grad.dtype is reduced:
            one.whole.grad = unsharded_grad
            return
        with counted_as(self.traffic.meter, "gradients"):
            one.summed = empty(self.traffic.meter, unsharded_grad.shape, reduced)

    def _reduce_all(self) -> None:
        with_grad: list[Parameter] = []
        unsharded_grads: list[Tensor] = []
        for one in self.parameters:
            found = one.whole.grad if one.summed is None else one.summed
            if found is not None:
                with_grad.append(one)
                unsharded_grads.append(self._get_grad_inner_tensor(one, found))
                one.summed = one.whole.grad = None
            del found
        if self.traffic.reshards:
            self.reshard()
        if self.traffic.reducing:
            self.traffic.reducing.pop(0)
        if with_grad:
            self.all_reduced = None
            reduce_scatter_input, all_reduce_input = self._foreach_reduce(with_grad, unsharded_grads)
            self.traffic.reducing.append(reduce_scatter_input)
            self.all_reduced = all_reduce_input

    def _get_grad_inner_tensor(self, one: Parameter, grad: Tensor) -> Tensor:
        """A gradient that is whole where tensor parallelism divides the parameter is divided too, into a copy; of one
        that is a part of a sum, that sum is made.
        """
        if grad.shape == one.whole.shape and not one.partial:
            return grad
        found = empty(self.traffic.meter, one.whole.shape, grad.dtype)
        if one.partial:
            self.traffic.sent.append(self._of_tensor_group(found.bytes))
        return found

    def _of_tensor_group(self, size: Number, times: int = 1) -> Collective:
        """The sum of a gradient over the ranks of a tensor group."""
        return Collective(self.name, "all_reduce", "tp", self.traffic.how.tensor, True, size, times)

    def _foreach_reduce(
        self, with_grad: Sequence[Parameter], unsharded_grads: list[Tensor]
    ) -> tuple[Storage, Storage | None]:
        """`foreach_reduce`, which returns the buffers that stay until the sum is done. Its loop over the gradients
        still names the last one.
        """
        traffic, how = self.traffic, self.traffic.how
        n = sum(one.part for one in with_grad)
        if how.shards > 1:
            _unsharded_grad = unsharded_grads[-1]
        size = n * how.reduced.bytes
        with counted_as(traffic.meter, "communication"):
            reduce_scatter_input = Storage(traffic.meter, size * how.shards)
        unsharded_grads.clear()
        all_reduce_input: Storage | None = None
        stays = any(one.own.grad is None for one in with_grad)
        cast = how.reduced is not how.dtype
        with traffic.on(REDUCE), counted_as(traffic.meter, "gradients" if stays and not cast else "communication"):
            reduce_output = Storage(traffic.meter, size)
            if how.shards > 1:
                whole = size * how.shards
                traffic.sent.append(Collective(self.name, "reduce_scatter", "dp", how.shards, True, whole))
            if how.replicas > 1:
                traffic.sent.append(Collective(self.name, "all_reduce", "replicas", how.replicas, True, size))
                all_reduce_input = reduce_output
        if cast:
            post_reduce_stream = ALL_REDUCE if how.replicas > 1 else REDUCE
            with traffic.on(post_reduce_stream), counted_as(traffic.meter, "gradients" if stays else "communication"):
                reduce_output = Storage(traffic.meter, n * how.dtype.bytes)
        for one in with_grad:  # views of the sum, or added to the gradients that are there
            if one.own.grad is None:
                one.own.grad = Tensor(one.own.shape, one.own.dtype, reduce_output)
        return reduce_scatter_input, all_reduce_input

    def finalize_backward(self) -> None:
        """Forgets what the backward pass left."""
        self.all_reduced = self.result = None
        self.finished.clear()
