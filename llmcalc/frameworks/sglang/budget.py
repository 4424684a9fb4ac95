"""What SGLang leaves for the cache: a fraction of what is free before loading, less the weights; no profile run.

`presets/engines/sglang.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ...accelerator import Hardware
from ...errors import InputError
from ...parallel.layout import Layout
from ...sources.preset import Preset
from ..engines.engine import EngineMemory, EngineVersion, Term
from ..engines.rank import EngineRank
from ..engines.server import EngineServer
from .versions import Rules, SGLangRecord, sglang_record

GIB, MIB = 2**30, 2**20

ROPE_BYTES = 4
"""Bytes of an element of the tables of cosines and sines, which stay in float32 (layers/rotary_embedding.py)."""


class Server(EngineServer):
    """An SGLang server."""

    name = "sglang"
    length_field = "context_length"
    layout_fields = ("tp_size",)
    decided_by = {"weights": ("dtype", "quantize"), "non_torch": (), "kv_cache": ("mem_fraction_static", "dtype")}

    @property
    def record(self) -> SGLangRecord:
        return sglang_record()

    @cached_property
    def rules(self) -> Rules:
        return self.record.rules(self.numbers)

    @property
    def tp(self) -> int:
        return int(self.flags.get("tp_size", 1))

    @property
    def fraction(self) -> float:
        """The fraction of the memory for weights and cache: the flag's, or the default of version and device."""
        if "mem_fraction_static" in self.flags:
            return float(self.flags["mem_fraction_static"])
        if self.rules.fraction == "by_tp":
            return self.record.fraction_of_tp(self.tp)
        gib = self.hardware.capacity_bytes / GIB
        defaults = self.record.defaults(gib)
        if self.rules.fraction == "by_memory":
            reserve = defaults.reserve_gib + defaults.reserve_gib_per_rank * self.tp
        else:
            chunk = int(self.flags.get("chunked_prefill_size", defaults.chunked_prefill_size))
            graphs = int(self.flags.get("cuda_graph_max_bs", defaults.cuda_graph_max_bs[self.tp >= 4]))
            reserve = (512 + 1.5 * max(chunk, 2048) + 2 * graphs + 1024 * self.tp / 8) / 1024
            reserve = max(reserve, 10.0) if gib > 60 else reserve
        if reserve >= gib:
            raise InputError(f"--mem-fraction-static: {self.hardware.title} has less than SGLang reserves; set it")
        return round((gib - reserve) / gib, 3)

    @property
    def cached_element_bytes(self) -> int:
        """Bytes of a cached element."""
        word = self.flags.get("kv_cache_dtype", "auto")
        if word == "auto":
            return 4 if self.dtype == "float32" else 2
        return 1 if word.startswith("fp8") else 2

    @cached_property
    def rank(self) -> EngineRank:
        """The model of a rank."""
        return EngineRank(self.preset, Layout(tp=self.tp), 0, self.flags.get("quantize"), self.dtype)

    @property
    def defaults(self) -> dict[str, Any]:
        """The name of a flag → its value in effect: the given one, or the default."""
        return {
            "mem_fraction_static": self.fraction,
            "context_length": self.longest_request,
            "kv_cache_dtype": "auto",
            "tp_size": self.tp,
        }

    @property
    def outside_torch(self) -> int:
        """Bytes in use before the weights are loaded."""
        return self.measured("non_torch", self.record.context_of(self.tp).mib * MIB)

    @property
    def free_before(self) -> int:
        """Bytes that are free before the weights are loaded."""
        return self.hardware.capacity_bytes - self.outside_torch

    @property
    def weights(self) -> int:
        """Bytes of the weights, with the tables of RoPE."""
        return self.rank.weights + self.rank.rope_elements * ROPE_BYTES

    @property
    def ratios(self) -> tuple[float, float]:
        """Recurrent states to one part of the cache, and tokens of windowed layers to one of full layers."""
        defaults = self.record.ratios
        return (
            float(self.flags.get("mamba_full_memory_ratio", defaults.states)),
            float(self.flags.get("swa_full_tokens_ratio", defaults.window)),
        )

    def tokens_in(self, available: int) -> int:
        """The tokens of the cache in that many bytes. Raises `InputError` for a model without keys and values."""
        caches, divided = self.rank.token_caches, self.rules.divided_pools
        states, window = self.ratios
        if not caches:
            raise InputError("--engine sglang: the model has no layer with keys and values; it is not modelled")
        if self.rank.state_caches:
            if not divided:
                raise InputError("--engine sglang: recurrent states are modelled from SGLang 0.5 on")
            available = int(available / (1 + states))
        has_full = any(cache.window is None for cache in caches)
        token_bytes = sum(
            cache.layers
            * cache.width
            * self.cached_element_bytes
            * (window if divided and has_full and cache.window is not None else 1)
            for cache in caches
        )
        return max(0, int(available // token_bytes))


def memory(preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]) -> EngineMemory:
    """Computes what SGLang does on its devices. Raises `InputError` for flags that contradict the model."""
    server = Server(preset, hardware, version, flags)
    rules, fraction = server.rules, server.fraction
    weights = server.measured("weights", server.weights)
    budget = int(server.free_before * fraction)
    available = server.measured("kv_cache", budget - weights)
    page = int(flags.get("page_size", 1))
    tokens = min(server.tokens_in(available), int(flags.get("max_total_tokens", 10**15))) // page * page
    context = server.record.context_of(server.tp)
    terms = (
        Term("budget", budget, "estimate", rules.place, f"{fraction} × free before loading (--mem-fraction-static)"),
        Term("weights", weights, "source", "tensors of the rank", server.rank.scheme or "as published"),
        Term("profile_run", 0, "source", rules.place, "none; activations take what the fraction leaves"),
        Term("non_torch", server.outside_torch, "estimate", f"{context.logs} logs of h100-sxm", "outside the budget"),
        Term("cuda_graphs", 0, "source", rules.place, "outside the budget; in what the fraction leaves"),
        Term("kv_cache", max(available, 0), "estimate", rules.place, f"{tokens:,} tokens"),
    )
    length = server.longest_request
    message = server.record.messages["no_cache"] if tokens == 0 else ""
    return EngineMemory(
        terms=server.with_receipt(terms),
        kv_tokens=tokens,
        blocks=tokens // page,
        max_concurrency=tokens / length,
        starts=not message,
        message=message,
        max_model_len=length,
        devices=server.tp,
        block_size=page,
        assumed=server.assumed,
        settings=server.settings,
        notes=tuple(filter(None, (version.note, _note(tokens, length, bool(message))))),
    )


def _note(tokens: int, length: int, stops: bool) -> str:
    """A note where the cache holds less than one request: SGLang starts, and refuses longer requests."""
    if stops or tokens >= length:
        return ""
    return (
        f"requests of more than {tokens:,} tokens are refused: the cache holds fewer than --context-length {length:,}"
    )
