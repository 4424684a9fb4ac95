"""One rank of many in one process: torch's fake process group, whose collectives return at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_rank(rank: int, world: int) -> Iterator[None]:
    """Everything inside runs as that rank of a world of so many."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
