"""Which parameters are whole on a rank under ZeRO's stage 3: gathered before a module runs, ahead of it, or kept.

In the first pass the order of the modules is written down; from then on parameters are gathered ahead, and one that is
used again soon stays. Source: deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py and
partition_parameters.py (`all_gather_coalesced`, `AllGatherCoalescedHandle`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...simulator.lowering import Path
from ...simulator.meter import Block
from ...simulator.tensor import Meter, Storage, Tensor, counted_as, on_stream
from .partitions import elements, module_of
from .settings import DeepSpeedSettings

GATHERING = 2
"""The stream on which parameters are gathered beside the passes."""

NEVER = -1


class Whole(Storage):
    """The memory of a whole parameter, which may be a part of a larger storage, and is there while it is gathered.

    inner: that memory; None while there is none.
    """

    __slots__ = ("inner",)

    def __init__(self, meter: Meter, size: int) -> None:
        self.meter, self.bytes, self.block = meter, size, Block(0, "weights")
        self.inner: Storage | None = None

    def __del__(self) -> None:
        """The inner storage goes by itself."""


class Gathering:
    """Parameters that are being gathered together (`AllGatherCoalescedHandle`). flat: the buffer that all are in."""

    def __init__(self, parameters: Sequence[Parameter], flat: Storage | None) -> None:
        self.parameters, self.flat, self.complete = parameters, flat, False


class Parameter:
    """One parameter. path: its path in the model. module: that of its module. whole: what modules use.

    part: elements of a rank's part. persists: whether it stays whole from its first use to the next step.
    available: whether it is whole. gathering: the operation that makes it whole, None if there is none.
    fetched: the last step of the trace that it has been gathered for.
    """

    __slots__ = ("available", "count", "fetched", "gathering", "module", "part", "path", "persists", "whole")

    def __init__(self, meter: Meter, path: Path, like: Tensor, ranks: int) -> None:
        self.path, self.module = path, module_of(path)
        self.count = size = elements(like)
        self.part = -(-size // ranks)
        self.whole = Tensor(like.shape, like.dtype, Whole(meter, size * like.dtype.bytes), leaf=like.leaf)
        self.persists = self.available = False
        self.gathering: Gathering | None = None
        self.fetched = NEVER

    @property
    def storage(self) -> Whole:
        assert isinstance(self.whole.storage, Whole)
        return self.whole.storage


class Coordinator:
    """Gathers and releases parameters (`PartitionedParameterCoordinator`).

    parameters: all of them. modules: the path of a module → its own.
    """

    def __init__(self, meter: Meter, settings: DeepSpeedSettings, ranks: int) -> None:
        self.meter, self.settings, self.ranks = meter, settings, ranks
        self.parameters: list[Parameter] = []
        self.modules: dict[Path, list[Parameter]] = {}
        self.by_tensor: dict[int, Parameter] = {}
        self.order: list[Path] = []
        self.records = self.complete = False
        self.queue: deque[tuple[Parameter, int]] = deque()
        self.at = self.live = 0
        self.kept: dict[tuple[Path, int], list[Parameter]] = {}
        self.in_backward: list[Path] = []

    def add(self, path: Path, like: Tensor) -> Parameter:
        """A new parameter."""
        made = Parameter(self.meter, path, like, self.ranks)
        self.parameters.append(made)
        self.modules.setdefault(made.module, []).append(made)
        self.by_tensor[id(made.whole)] = made
        return made

    def mark_persistent(self) -> None:
        """`mark_persistent_parameters`."""
        limit, total = self.settings.stage3_model_persistence_threshold, 0
        for one in self.parameters:
            if limit is not None and one.count + total > limit:
                continue
            if one.count <= self.settings.elements("stage3_param_persistence_threshold"):
                one.persists = True
                total += one.count

    # --- the trace --------------------------------------------------------------------------------------------------

    def reset_step(self) -> None:
        """The start of a forward pass."""
        for one in self.parameters:
            if one.gathering is not None:
                self._wait(one)
                self._release(one)
        self.complete = self.complete or self.records
        self.records = not self.complete
        self.queue = deque()
        if self.complete:
            for at, module in enumerate(self.order):
                self.queue += ((one, at) for one in self.modules[module])
        for one in self.parameters:
            one.fetched = NEVER
        self.at = self.live = 0

    def fetch(self, module: Path) -> None:
        """Gathers the parameters of a module, and begins to gather those that come next (`fetch_sub_module`)."""
        if self.records:
            self.order.append(module)
        wanted = self.modules[module]
        self._gather([one for one in wanted if not one.available and one.gathering is None])
        for one in wanted:
            if one.gathering is not None:
                self._wait(one)
        if self.complete and self.at < len(self.order) and self.order[self.at] == module:
            self._prefetch(wanted)
        self.at += 1

    def _prefetch(self, wanted: Sequence[Parameter]) -> None:
        new = sum(one.fetched < self.at for one in wanted)
        for _ in range(min(new, len(self.queue))):
            one, at = self.queue.popleft()
            one.fetched = at
        most = min(
            self.settings.stage3_max_live_parameters - self.live, self.settings.elements("stage3_prefetch_bucket_size")
        )
        ahead: list[Parameter] = []
        elements = 0
        while self.queue and elements < most:
            one, at = self.queue.popleft()
            one.fetched = max(one.fetched, at)
            if not one.available and one.gathering is None and one not in ahead:
                ahead.append(one)
                elements += one.count
        self._gather(ahead)

    # --- memory -----------------------------------------------------------------------------------------------------

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is allocated here is of the stream that gathers beside the passes, if there is one."""
        stream = GATHERING if self.settings.overlaps else self.meter.stream
        with on_stream(self.meter, stream), counted_as(self.meter, "weights"):
            yield

    def _gather(self, wanted: Sequence[Parameter]) -> None:
        """Begins to gather parameters; several together are gathered into one buffer (`all_gather_coalesced`)."""
        if not wanted:
            return
        self.live += sum(one.count for one in wanted)
        width = wanted[0].whole.dtype.bytes
        with self.beside():
            from_host = self._from_host(wanted)
        if self.ranks == 1:
            for one in wanted:
                one.gathering = Gathering([one], None)
                if self.settings.offload_param != "none":
                    with self.beside():
                        one.storage.inner = Storage(self.meter, one.count * width)
        elif len(wanted) == 1 or self.settings.stage3_allgather_sequential:
            for one in wanted:
                with self.beside():
                    one.storage.inner = Storage(self.meter, one.part * self.ranks * width)
                one.gathering = Gathering([one], None)
        else:
            with self.beside(), counted_as(self.meter, "communication"):
                flat = Storage(self.meter, sum(one.part for one in wanted) * self.ranks * width)
            summed = self.settings.stage3_use_all_reduce_for_fetch_params
            together = Gathering(wanted, None if summed else flat)
            for one in wanted:
                one.gathering = together
                if summed:
                    one.storage.inner = flat
            del flat
        del from_host

    def _wait(self, one: Parameter) -> None:
        """Copies every parameter of an operation out of its buffer. That goes when nothing else waits for it."""
        found = one.gathering
        assert found is not None
        one.gathering = None
        if not found.complete:
            found.complete = True
            for each in found.parameters:
                each.available = True
                if each.storage.inner is None and self.ranks > 1:
                    with self.beside():
                        each.storage.inner = Storage(self.meter, each.count * each.whole.dtype.bytes)

    def release(self, module: Path) -> None:
        """Releases the parameters of a module that are not used again soon (`release_sub_module`)."""
        for one in self._to_release(module) if self.complete else self.modules[module]:
            self._release(one)

    def _release(self, one: Parameter) -> None:
        if one.available and one.gathering is None:
            one.storage.inner, one.available = None, False
            self.live -= one.count

    def _to_release(self, module: Path) -> list[Parameter]:
        """`__params_to_release`, whose answers are kept."""
        key = (module, self.at)
        if key not in self.kept:
            found = [one for one in self.modules[module] if not one.persists and one.fetched <= self.at]
            passed = 0
            for i in range(self.at, len(self.order)):
                if passed >= self.settings.stage3_max_reuse_distance or not found:
                    break
                for one in self.modules[self.order[i]]:
                    if one in found:
                        found.remove(one)
                    passed += one.count
            self.kept[key] = found
        return self.kept[key]

    def release_all(self) -> None:
        """Releases all parameters (`release_and_reset_all`)."""
        for one in self.parameters:
            if one.gathering is not None:
                self._wait(one)
            self._release(one)
        self.in_backward = []

    def gather_persistent(self) -> None:
        """The end of a step: what stays whole is gathered, each into a buffer of its own."""
        persistent = [one for one in self.parameters if one.persists]
        with counted_as(self.meter, "weights"):
            from_host = self._from_host(persistent)
            for one in persistent:
                one.available = True
                if self.ranks > 1 or self.settings.offload_param != "none":
                    one.storage.inner = Storage(self.meter, one.part * self.ranks * one.whole.dtype.bytes)
        del from_host

    def _from_host(self, wanted: Sequence[Parameter]) -> list[Storage]:
        """The rank's parts, copied from the host if they are there, before the other ranks get them."""
        if self.settings.offload_param == "none" or self.ranks == 1:
            return []
        return [Storage(self.meter, one.part * one.whole.dtype.bytes) for one in wanted]

    # --- the backward pass ------------------------------------------------------------------------------------------

    def before_backward(self, module: Path) -> Callable[[], None]:
        """The hook of a module's output (`PreBackwardFunctionForModule`)."""

        def fetch() -> None:
            if module in self.in_backward:
                return
            for other in [other for other in self.in_backward if module[: len(other)] != other]:
                self.after_backward(other)
            self.in_backward.append(module)
            self.fetch(module)

        return fetch

    def after_backward(self, module: Path) -> None:
        """The hook of a module's input (`PostBackwardFunctionModule`)."""
        if module in self.in_backward:
            self.in_backward.remove(module)
            self.release(module)
