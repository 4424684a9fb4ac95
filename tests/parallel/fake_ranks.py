"""One rank of many in one process: torch's fake process group, whose collectives return at once; and what it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def fake_rank(rank: int, world: int) -> Iterator[None]:
    """Everything inside runs as that rank of a world of so many."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


KINDS = {
    "_c10d_functional.all_reduce.default": "all_reduce",
    "_c10d_functional.all_gather_into_tensor.default": "all_gather",
    "_c10d_functional.reduce_scatter_tensor.default": "reduce_scatter",
    "_c10d_functional.all_to_all_single.default": "all_to_all",
    "c10d.allreduce_.default": "all_reduce",
    "c10d._allgather_base_.default": "all_gather",
    "c10d._reduce_scatter_base_.default": "reduce_scatter",
}
"""torch's collective operations → what they do."""


class Collectives(TorchDispatchMode):
    """Counts (phase, kind, bytes of the whole tensor) of the collective operations that run in it."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.seen = "forward", Counter[tuple[str, str, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # its local operations come here again
        out = func(*args, **(kwargs or {}))
        name = str(func)
        assert "c10d" not in name or name in KINDS or "wait_tensor" in name or "wrap_tensor" in name, name
        if name in KINDS:
            self.seen[self.phase, KINDS[name], max(_sizes((args, out)))] += 1
        return out

    def by(self, *kinds: str) -> Counter[tuple[str, str, int]]:
        """What was seen of these kinds; of all, if none is given."""
        return Counter({key: n for key, n in self.seen.items() if not kinds or key[1] in kinds})


def _sizes(values: Any) -> list[int]:
    if isinstance(values, torch.Tensor):
        return [values.nbytes]
    return [size for one in values for size in _sizes(one)] if isinstance(values, (list, tuple)) else []
