"""Compute buffers as ggml reserves them: a graph of tensors is divided over devices and allocated, without any values.

The scheduler gives every operation a device, divides the graph into runs on one device, and copies what such a run
reads from other devices (ggml/src/ggml-backend.cpp, `ggml_backend_sched_split_graph`). The allocator then places each
tensor in the best-fitting free block of its device's buffer and frees it after its last reader (ggml/src/ggml-alloc.c,
`ggml_gallocr_alloc_graph_impl`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

HOST = "CPU"
"""The name of the host among the devices."""

ALIGNMENT = 128
"""Bytes to which tensors are aligned on CUDA devices."""

PIPELINE_COPIES = 4
"""Copies of inputs with pipeline parallelism (GGML_SCHED_MAX_COPIES)."""

Operation: TypeAlias = Literal["new", "inplace", "view", "store", "input", "weight", "cache"]
"""How an operation allocates its result.

new: in memory of its own. inplace: in that of a source with the same layout, where nothing else reads it.
view: nothing; it is another shape of a source. store: nothing; it writes into a cache.
input, weight, cache: no operation, but a tensor that the graph reads; only inputs are in the compute buffer.
"""


class Tensor:
    """A tensor of a graph.

    nbytes: its size. layout: equal for tensors that may share memory; None for a view with other strides.
    base: the tensor whose memory a view or a store is in. has_offset: whether a view begins within it.
    device: the device of a weight or a cache; of an operation the one that it is fixed to, or None.
    may_move: whether an operation whose weight is on the host may run on a GPU, which then gets a copy of the weight.
    """

    __slots__ = ("base", "device", "has_offset", "layout", "may_move", "nbytes", "operation", "sources")

    def __init__(
        self,
        nbytes: int,
        sources: Sequence[Tensor] = (),
        operation: Operation = "new",
        layout: tuple[int, ...] | None = None,
        device: str | None = None,
        has_offset: bool = False,
        may_move: bool = False,
    ) -> None:
        self.nbytes, self.operation, self.layout, self.device = nbytes, operation, layout, device
        self.sources = list(sources)
        self.has_offset, self.may_move = has_offset, may_move
        self.base: Tensor | None = None
        if operation in ("view", "store"):
            viewed = sources[-1] if operation == "store" else sources[0]
            self.base = viewed.base or viewed

    @property
    def is_external(self) -> bool:
        """Whether its memory is not in a compute buffer."""
        owner = self.base or self
        return owner.operation in ("weight", "cache")


class Graph:
    """Operations in the order in which they run."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self._visited: set[int] = set()

    def expand(self, *results: Tensor) -> None:
        """Adds operations with all that they need, sources first (`ggml_build_forward_expand`)."""
        for result in results:
            stack: list[tuple[Tensor, int]] = [(result, 0)]
            while stack:
                tensor, i = stack.pop()
                if i == 0:
                    if id(tensor) in self._visited:
                        continue
                    self._visited.add(id(tensor))
                if i < len(tensor.sources):
                    stack += [(tensor, i + 1), (tensor.sources[i], 0)]
                elif tensor.operation not in ("input", "weight", "cache"):
                    self.nodes.append(tensor)


def buffer_sizes(graph: Graph, devices: Sequence[str], pipeline: bool = False) -> dict[str, int]:
    """Computes the compute buffer of each device in bytes.

    devices: the GPUs in their order; the host comes after them. pipeline: whether inputs have several copies.
    """
    placement = _devices_of(graph.nodes, [*devices, HOST])
    ordered, copies = _with_copies(graph.nodes, placement)
    return _allocate(ordered, placement, copies, pipeline)


def _devices_of(nodes: Sequence[Tensor], devices: Sequence[str]) -> dict[int, str]:
    """Returns the device of every tensor by its identity (passes 1 to 4 of the scheduler)."""
    devices_by_id: dict[int, str] = {}
    for node in nodes:
        device = _fixed_device(node, devices)
        if device is not None:
            devices_by_id[id(node)] = device
    operations = [node for node in nodes if node.operation != "view"]
    for only_gpus, order in (
        (True, operations),
        (True, operations[::-1]),
        (False, operations),
        (False, operations[::-1]),
    ):
        current: str | None = None
        for node in order:
            device = devices_by_id.get(id(node))
            if device is not None:
                current = None if only_gpus and device == HOST else device
            elif current is not None:
                devices_by_id[id(node)] = current
    for node in nodes:
        if id(node) not in devices_by_id:  # a view
            devices_by_id[id(node)] = _home(node, devices_by_id, devices[0])
        for source in node.sources:
            if id(source) not in devices_by_id:
                devices_by_id[id(source)] = _home(source, devices_by_id, devices_by_id[id(node)])
    return devices_by_id


def _home(tensor: Tensor, devices_by_id: dict[int, str], default: str) -> str:
    """The device of a tensor that no operation is assigned to: its own, that of what it views, the host for inputs."""
    owner = tensor.base or tensor
    if owner.is_external:
        return owner.device or default
    if owner.operation == "input":
        return HOST
    return devices_by_id.get(id(owner), default)


def _fixed_device(node: Tensor, devices: Sequence[str]) -> str | None:
    """The device that an operation is fixed to: that of its cache or weight; the first GPU where it may move."""
    if node.device is not None:
        return node.device
    if node.base is not None and node.base.is_external:
        return node.base.device
    for source in node.sources:
        owner = source.base or source
        if owner.operation == "weight":
            if owner.device == HOST and node.may_move and len(devices) > 1:
                return devices[0]
            return owner.device
    return None


_Ordered: TypeAlias = list[tuple[Tensor, Tensor | None]]
"""Operations in their order. With a second tensor: the copy of a source, which is made there."""


def _with_copies(nodes: Sequence[Tensor], placement: dict[int, str]) -> tuple[_Ordered, dict[tuple[int, str], Tensor]]:
    """Divides the graph into runs on one device, and adds the copies that a run reads at its start (pass 5)."""
    copies: dict[tuple[int, str], Tensor] = {}
    ordered: _Ordered = []
    start, inputs, current = 0, 0, ""
    for node in nodes:
        if node.operation == "view":
            ordered.append((node, None))
            continue
        device = placement[id(node)]
        moves_weight = any(
            (source.base or source).operation == "weight" and placement[id(source)] != current
            for source in node.sources
        )
        if device != current or (inputs and moves_weight):
            start, inputs, current = len(ordered), 0, device
        for i, source in enumerate(node.sources):
            home = placement[id(source)]
            if home == device or (device == HOST and source.operation == "input"):
                continue
            key = (id(source), device)
            if key not in copies:
                copy = Tensor(source.nbytes, layout=source.layout)
                copies[key] = copy
                placement[id(copy)] = device
                ordered.insert(start, (source, copy))
                start += 1
                inputs += 1
            node.sources[i] = copies[key]
        ordered.append((node, None))
    return ordered, copies


class _Buffer:
    """The buffer of a device: its free blocks, and how far it was ever used."""

    def __init__(self) -> None:
        self.free: list[list[int]] = [[0, 2**62]]
        self.size = 0

    def allocate(self, nbytes: int) -> int:
        """Takes the best-fitting free block, the last one only if no other is large enough. Returns its offset."""
        fitting = [block for block in self.free[:-1] if block[1] >= nbytes]
        block = min(reversed(fitting), key=lambda candidate: candidate[1]) if fitting else self.free[-1]
        offset = block[0]
        block[0] += nbytes
        block[1] -= nbytes
        if not block[1]:
            self.free.remove(block)
        self.size = max(self.size, offset + nbytes)
        return offset

    def release(self, offset: int, nbytes: int) -> None:
        """Returns a block, merged with free ones beside it."""
        if not nbytes:
            return
        place = next((i for i, block in enumerate(self.free) if block[0] > offset), len(self.free))
        self.free.insert(place, [offset, nbytes])
        for i in (place, place - 1):
            if 0 <= i < len(self.free) - 1 and self.free[i][0] + self.free[i][1] == self.free[i + 1][0]:
                self.free[i][1] += self.free.pop(i + 1)[1]


class _Use:
    """Where a tensor is allocated, and how many readers and views it still has."""

    __slots__ = ("children", "is_allocated", "offset", "stays", "views")

    def __init__(self) -> None:
        self.children = self.views = self.offset = 0
        self.is_allocated = self.stays = False


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _allocate(
    ordered: _Ordered, placement: dict[int, str], copies: dict[tuple[int, str], Tensor], pipeline: bool
) -> dict[str, int]:
    """Allocates all tensors in their order, and returns how far the buffer of each device is used."""
    buffers: dict[str, _Buffer] = {}
    uses = defaultdict[int, _Use](_Use)

    def allocate(tensor: Tensor) -> None:
        if tensor.is_external or tensor.base is not None:
            return
        use = uses[id(tensor)]
        if use.is_allocated:
            return
        use.is_allocated = True
        if tensor.operation == "inplace":
            for parent in tensor.sources:
                parent_use = uses[id(parent)]
                owner = parent.base or parent
                owner_use = uses[id(owner)]
                if (
                    parent.is_external
                    or parent.layout is None
                    or parent.layout != tensor.layout
                    or owner_use.stays
                    or placement[id(parent)] != placement[id(tensor)]
                    or parent_use.children != 1
                    or parent_use.views
                ):
                    continue
                if parent.base is not None and (owner_use.views != 1 or owner_use.children or parent.has_offset):
                    continue
                use.offset = owner_use.offset
                parent_use.is_allocated = owner_use.is_allocated = False
                return
        buffer = buffers.setdefault(placement[id(tensor)], _Buffer())
        use.offset = buffer.allocate(_aligned(tensor.nbytes))

    def release(tensor: Tensor) -> None:
        use = uses[id(tensor)]
        if use.stays or tensor.is_external or not use.is_allocated:
            return
        buffers[placement[id(tensor)]].release(use.offset, _aligned(tensor.nbytes))
        use.is_allocated = False

    operations: list[tuple[Tensor, Iterable[Tensor]]] = []
    for node, copy in ordered:
        operations += [(node, (node,)), (copy, ())] if copy is not None else [(node, node.sources)]
    inputs = {id(t): t for node, _ in ordered for t in (node, *node.sources) if t.operation == "input"}
    if pipeline:
        for tensor in (*inputs.values(), *copies.values()):
            uses[id(tensor)].stays = True
            for _ in range(PIPELINE_COPIES - 1):
                buffers.setdefault(placement[id(tensor)], _Buffer()).allocate(_aligned(tensor.nbytes))
            allocate(tensor)
    for node, copy in ordered:
        if copy is None and node.operation == "view" and node.base is not None:
            uses[id(node.base)].views += 1
    for _, read in operations:
        for source in read:
            uses[id(source)].children += 1
    for tensor in inputs.values():
        allocate(tensor)
    for node, read in operations:
        for source in read:
            allocate(source)
        if node not in read:
            allocate(node)
        for source in read:
            use = uses[id(source)]
            use.children -= 1
            if use.children or use.views:
                continue
            if source.base is not None:
                base_use = uses[id(source.base)]
                base_use.views -= 1
                if not base_use.views and not base_use.children:
                    release(source.base)
            else:
                release(source)
    return {device: buffer.size for device, buffer in buffers.items()}
