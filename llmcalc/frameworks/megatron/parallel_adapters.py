"""The low-rank adapters of a training run with Megatron-Core."""

from __future__ import annotations

from dataclasses import dataclass

from ...workload.lora import Library

ADAPTER_SETTINGS = frozenset({"lora_rank", "lora_targets", "lora_dtype", "lora_dropout", "lora_library"})
"""Names of the adapter settings that Megatron-Core's adapters support."""


@dataclass(frozen=True)
class ParallelAdapters:
    """Low-rank adapters, sharded over ranks like the linear layers that they adapt.

    library: whose they are. rank: inner width. targets: names of the linear layers that have one.
    dropout: whether the input of an adapter passes dropout.
    """

    library: Library
    rank: int
    targets: frozenset[str]
    dropout: bool = False
