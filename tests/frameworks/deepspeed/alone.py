"""A rank of DeepSpeed by itself: its device is meta and its host the CPU, so that what it offloads is apart.

Collectives do nothing, and numbers that DeepSpeed reads from the device are 0: no overflow, no gradient. So a rank
holds what it holds beside others (`tests.frameworks.deepspeed.record` has both), and the host's tensors are not
counted.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from llmcalc.witnesses.storage_tracker import StorageTracker

COLLECTIVES = (
    "broadcast",
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "barrier",
    "monitored_barrier",
)

CHECKS = ("assert_lst_len_same_as_other_ranks", "assert_ints_same_as_other_ranks")
"""What compares ranks."""


class OfDevice(StorageTracker):
    """The bytes on meta, the device. DeepSpeed makes tensors on meta for their shapes, which do not count."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten, kwargs = torch.ops.aten, kwargs or {}
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and first.is_meta:
            if func is aten._local_scalar_dense.default:
                return torch.zeros((), dtype=first.dtype).item()
            if func is aten._to_copy.default and str(kwargs.get("device")) == "cpu":
                return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
            if func is aten.zeros_like.default and "device" in kwargs:
                return func(*args, **kwargs)
        elif func is aten.copy_.default and args[1].is_meta:
            return first
        return super().__torch_dispatch__(func, types, args, kwargs)


class Done:
    """The handle of a collective that does nothing."""

    def wait(self) -> bool:
        return True


def nothing(*_: Any, async_op: bool = False, **__: Any) -> Done | None:
    """A collective."""
    return Done() if async_op else None


def work(_: int, name: str, rank: int, folder: str, log: bool = False) -> None:
    """Runs a rank of a case and writes its bytes, by step and phase. It changes torch and deepspeed for the process."""
    from tests.frameworks.deepspeed.record import ALIKE, CASES, run_steps

    case = CASES[name]
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(case.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", DS_ACCELERATOR="cpu")
    alone(rank, case.ranks)
    mode = OfDevice(device="meta", keeps_log=log)
    set_up, found = run_steps(case, mode, "meta", ALIKE)
    text = "\n".join(mode.log or ())
    Path(folder, f"{rank}.json").write_text(json.dumps({"set_up": set_up, "steps": found, "log": text}))


def alone(rank: int, ranks: int) -> None:
    """Makes meta the accelerator, and this process a rank that waits for no other."""
    import logging

    import deepspeed
    from deepspeed.accelerator import real_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from torch.amp import autocast_mode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    class Meta(CPU_Accelerator):  # type: ignore[misc]
        def device_name(self, device_index: int | None = None) -> str:
            return "meta"

        def current_device_name(self) -> str:
            return "meta"

        def on_accelerator(self, tensor: torch.Tensor) -> bool:
            return tensor.is_meta

        def is_synchronized_device(self) -> bool:
            return True

        def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
            return tensor

        def communication_backend_name(self) -> str:
            return "fake"

    real_accelerator.set_accelerator(Meta())
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    begin, enabled, dtype = autocast_mode.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype

    def as_on_the_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    autocast_mode.autocast.__init__ = as_on_the_cpu  # type: ignore[method-assign]
    torch.is_autocast_enabled = lambda *args: enabled(*("cpu" if one == "meta" else one for one in args))
    torch.get_autocast_dtype = lambda device: dtype("cpu" if device == "meta" else device)
    for collective in COLLECTIVES:
        setattr(dist, collective, nothing)
    backend = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # type: ignore[attr-defined]
    backend.has_coalescing_manager = lambda: False  # type: ignore[attr-defined]
    for module in [one for key, one in sys.modules.items() if key.startswith("deepspeed")]:
        for check in CHECKS:
            if hasattr(module, check):
                setattr(module, check, nothing)
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake")
