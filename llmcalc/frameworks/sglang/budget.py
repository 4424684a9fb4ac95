"""The device memory of SGLang: the KV cache gets a fraction of the memory free before loading, less the weights.

`presets/engines/sglang.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from ...accelerator import Hardware
from ...components.towers.vision import VisionTower
from ...errors import InputError
from ...parallel.layout import ONE_DEVICE, Layout
from ...sources.preset import Preset
from ...workload.setting import option
from ..engines.engine import EngineMemory, EngineVersion, Term
from ..engines.rank import EngineRank
from ..engines.server import EngineServer
from ..engines.versions import Context
from .adapters import adapter_bytes
from .attention_rank import AttentionRank
from .flags import SCHEMES
from .host_experts import host_experts_bytes
from .host_experts import notes as host_notes
from .versions import Rules, SGLangRecord, sglang_record
from .weights import unused_bytes

GIB, MIB = 2**30, 2**20

USUAL_TOWER = (24, 1024)
"""Layers and width of the encoder of images by which others are measured, and of configs without these keys."""

PROMPT_LENGTHS = (
    (4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, 10**12, 512),
)  # fmt: skip
"""Lengths of prompts that are captured as CUDA graphs in pieces: the first, the last and their distance."""

MANY_GRAPHS = 300
"""Sequences of the largest CUDA graph above which replicas of attention reserve 4.5 MiB for each, not 3."""

MAX_PREFILL_TOKENS = 16384
"""Tokens of a prompt's pass where prompts are not divided (`--chunked-prefill-size -1`)."""

ROPE_BYTES = 4
"""Bytes of an element of the tables of cosines and sines, which stay in float32 (layers/rotary_embedding.py)."""


BLACKWELL = 10
"""Compute capability from which SGLang stores latents that an indexer selects in 8 bits."""


class Server(EngineServer):
    """An SGLang server: model, accelerator, version and flags."""

    name = "sglang"
    length_field = "context_length"
    layout_fields = "tp_size", "pp_size", "dp_size"
    decided_by = {
        "weights": (
            "dtype",
            "quantize",
            "enable_lora",
            "max_lora_rank",
            "max_loras_per_batch",
            "kt_weight_path",
            "kt_num_gpu_experts",
            "kt_gpu_experts_ratio",
        ),
        "non_torch": (),
        "kv_cache": ("mem_fraction_static", "dtype"),
    }

    @property
    def record(self) -> SGLangRecord:
        return sglang_record()

    @cached_property
    def rules(self) -> Rules:
        return self.record.rules(self.numbers)

    def __post_init__(self) -> None:
        """Raises `InputError` for flags that contradict each other or the model."""
        super().__post_init__()
        if self.divides_attention and self.tp % self.dp:
            raise InputError(
                f"--dp-size {self.dp}: does not divide --tp-size {self.tp}, which --enable-dp-attention needs"
            )
        if self.flags.get("moe_dense_tp_size") and self.pp > 1:
            raise InputError("--moe-dense-tp-size: with --pp-size is not modelled; remove one of them")
        if self.flags.get("enable_dp_lm_head") and not self.flags.get("enable_dp_attention"):
            raise InputError("--enable-dp-lm-head: SGLang needs --enable-dp-attention too")
        for name in ("enable_lora", "kt_weight_path"):
            if self.divides_attention and self.flags.get(name):
                raise InputError(f"--enable-dp-attention: with {option(name)} is not modelled; remove one of them")

    @property
    def cached_element_bytes(self) -> int:
        """The bytes of one element of the KV cache; latents that an indexer selects have 8 bits on Blackwell by default
        (python/sglang/srt/server_args.py).
        """
        is_blackwell = float(self.hardware.compute_capability or 0) >= BLACKWELL
        if is_blackwell and self.flags.get("kv_cache_dtype", "auto") == "auto" and self.rank(0).selects_latents:
            return 1
        return super().cached_element_bytes

    @property
    def dp(self) -> int:
        """The number of data-parallel replicas of the model, or of attention within its tensor-parallel ranks."""
        return int(self.flags.get("dp_size", 1))

    @property
    def divides_attention(self) -> bool:
        """Whether only attention is replicated (data-parallel attention); SGLang ignores the flag with one replica."""
        return bool(self.flags.get("enable_dp_attention")) and self.dp > 1

    @property
    def devices(self) -> int:
        """The number of devices of all replicas."""
        return self.tp * self.pp * (1 if self.divides_attention else self.dp)

    @cached_property
    def layout(self) -> Layout:
        """The layout of a replica; the last stages have one layer more (srt/distributed/utils.py, `get_pp_indices`)."""
        layers = sum(stack.num_hidden_layers for _, stack in self.preset.model.stacks())
        if layers < self.pp:
            raise InputError(f"--pp-size {self.pp}: the model has {layers} layers")
        sizes = tuple(layers // self.pp + (i >= self.pp - layers % self.pp) for i in range(self.pp))
        return Layout(tp=self.tp, pp=self.pp, pp_layout=None if len(set(sizes)) == 1 else sizes)

    @property
    def whole_layout(self) -> Layout:
        """The layout of all devices, with data-parallel replicas and expert-parallel groups (`--ep-size`)."""
        experts = int(self.flags.get("ep_size", 1))
        etp = self.tp // experts if experts > 1 else None
        tp = self.tp // self.dp if self.divides_attention else self.tp
        return replace(self.layout, tp=tp, dp=self.dp, ep=experts, etp=etp)

    @property
    def loads_towers(self) -> bool:
        return bool(self.preset.model.towers)

    @property
    def tower_factor(self) -> float:
        """The factor of the default memory fraction where image encoders are loaded (`adjust_mem_fraction_for_vlm`)."""
        if not self.loads_towers and not isinstance(self._vision_config, Mapping):
            return 1.0
        layers, width = self._tower_sizes
        ratio = layers * width**2 / (USUAL_TOWER[0] * USUAL_TOWER[1] ** 2)
        return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (ratio - 1)))

    @property
    def _vision_config(self) -> Any:
        """The config of the image encoder, counted or not; None for a model without one."""
        return (self.preset.config or {}).get("vision_config")

    @property
    def _tower_sizes(self) -> tuple[int, int]:
        """The layers and the width of the image encoder, from its config or from SGLang's defaults."""
        config = self._vision_config
        if isinstance(config, Mapping):
            sizes = tuple(
                config.get(name, config.get(f"vt_{name}", default_size))
                for name, default_size in zip(("num_hidden_layers", "hidden_size"), USUAL_TOWER, strict=True)
            )
            if all(isinstance(size, int) and 0 < size < 10**6 for size in sizes):
                return sizes
        towers = [tower for tower in self.preset.model.towers.values() if isinstance(tower, VisionTower)]
        return (int(towers[0].stack.num_hidden_layers), int(towers[0].hidden_size)) if towers else USUAL_TOWER

    @property
    def draft_reserve_gib(self) -> float:
        """The GiB reserved for a draft model and its KV cache, which are outside the budget."""
        algorithm, rule = self.flags.get("speculative_algorithm"), self.rules.fraction
        if algorithm is None or rule == "by_tp" or (algorithm, rule) == ("ngram", "by_reserve"):
            return 0
        return 6 if (algorithm, rule) == ("standalone", "by_reserve") else self.rules.draft_reserve_gib

    def piecewise_bytes(self, chunk: int) -> int:
        """Returns the bytes reserved for piecewise CUDA graphs of prompts. chunk: tokens of a chunk."""
        is_disabled = (
            self.flags.get("disable_piecewise_cuda_graph")
            or self.pp > 1
            or self.loads_towers
            or "speculative_algorithm" in self.flags
            or self.flags.get("disaggregation_mode", "null") != "null"
            or not self.hardware.vendor.upper().startswith("NVIDIA")
        )
        if not self.rules.piecewise_graphs or is_disabled:
            return 0
        if self.rank(0).latent_projections:
            return 1536 * MIB
        most_tokens = int(self.flags.get("piecewise_cuda_graph_max_tokens", chunk))
        return 8 * MIB * sum(len(range(start, min(end, most_tokens) + 1, step)) for start, end, step in PROMPT_LENGTHS)

    @property
    def shown_gib(self) -> float:
        """The device's memory in GiB as nvidia-smi shows it."""
        return (self.hardware.usable_memory_bytes or self.hardware.memory_bytes) / GIB

    @property
    def chunked_prefill_size(self) -> int:
        """The tokens of a prefill chunk, by the flag or the device's default."""
        chunk_tokens = self.flags.get("chunked_prefill_size", self.record.defaults(self.shown_gib).chunked_prefill_size)
        return MAX_PREFILL_TOKENS if str(chunk_tokens) == "-1" else int(chunk_tokens)

    @property
    def fraction(self) -> float:
        """The fraction of the memory for weights and KV cache, by the flag or the default of version and device."""
        if "mem_fraction_static" in self.flags:
            return float(self.flags["mem_fraction_static"])
        if self.rules.fraction == "by_tp":
            return self.record.fraction_of_tp(self.tp)
        gib = self.shown_gib
        ranks = self.tp * self.pp
        defaults = self.record.defaults(gib)
        if self.rules.fraction == "by_memory":
            reserve = defaults.reserve_gib + defaults.reserve_gib_per_rank * ranks
        else:
            chunk = self.chunked_prefill_size
            sizes = self.flags.get("cuda_graph_bs") or [defaults.cuda_graph_max_bs[self.tp >= 4]]
            graphs = int(self.flags.get("cuda_graph_max_bs", max(sizes)))
            reserve = (512 + 1.5 * max(chunk, 2048) + 2 * graphs + 1024 * ranks / 8) / 1024
            if self.divides_attention:
                reserve += graphs * self.dp * (4.5 if graphs > MANY_GRAPHS else 3) / 1024
            reserve += self.piecewise_bytes(chunk) / GIB
            reserve = max(reserve, 10.0) if gib > 60 else reserve
        reserve += self.draft_reserve_gib
        if reserve >= gib:
            raise InputError(f"--mem-fraction-static: {self.hardware.title} has less than SGLang reserves; set it")
        return round((gib - reserve) / gib, 3) * self.tower_factor

    @property
    def reads_cache_scheme(self) -> bool:
        return self.rules.cache_scheme_of_checkpoint

    @property
    def quantize(self) -> str | None:
        """The quantization scheme of the weights; None for the checkpoint's scheme."""
        return self.scheme_of(str(self.flags.get("quantization", "none")).removesuffix("_marlin"), SCHEMES)

    def rank(self, stage: int) -> EngineRank:
        """Returns the model on the first rank of a pipeline stage."""
        loads_towers, layout = self.loads_towers and stage == 0, self.layout
        number = layout.rank(pp=stage)
        if not self.divides_attention:
            return EngineRank(self.preset, layout, number, self.quantize, self.dtype, loads_towers)
        attention = replace(layout, tp=self.tp // self.dp)
        return AttentionRank(
            self.preset, attention, attention.rank(pp=stage), self.quantize, self.dtype, loads_towers,
            network_layout=layout, network_rank=number, divides_head=not self.flags.get("enable_dp_lm_head"),
        )  # fmt: skip

    @property
    def defaults(self) -> dict[str, Any]:
        """The name of each flag → its value in effect, typed by the user or the default."""
        return {
            "mem_fraction_static": round(self.fraction, 4),
            "context_length": self.longest_request,
            "kv_cache_dtype": "auto",
            "chunked_prefill_size": self.chunked_prefill_size,
            "tp_size": self.tp,
        }

    @property
    def context(self) -> Context:
        """The device memory in use before the weights are loaded, measured in start-up logs."""
        return self.record.context_of(self.hardware, self.tp * self.pp)

    @property
    def outside_torch(self) -> int:
        """The bytes in use before the weights are loaded."""
        return self.measured_or_computed("non_torch", self.context.mib * MIB)

    @property
    def free_before(self) -> int:
        """The bytes that are free before the weights are loaded."""
        return self.hardware.capacity_bytes - self.outside_torch

    def weights(self, rank: EngineRank) -> int:
        """Returns the bytes by which loading reduces free memory: weights, RoPE tables and adapter slots."""
        tables = rank.rope_elements * ROPE_BYTES
        adapters = adapter_bytes(rank, self.flags, self.element_bytes)
        host_expert_bytes = host_experts_bytes(rank, self.flags) - self.repeated_dense_bytes(rank)
        return rank.weights - host_expert_bytes + tables + adapters + unused_bytes(rank, self.element_bytes)

    def repeated_dense_bytes(self, rank: EngineRank) -> int:
        """Returns the extra bytes of dense networks in models with experts where each rank has them whole."""
        if not self.flags.get("moe_dense_tp_size") or rank.widths[2] is None:
            return 0
        whole_bytes = replace(rank, layout=ONE_DEVICE, rank=0).weights_by_component.get("feed_forward", 0)
        return whole_bytes - whole_bytes // self.tp

    @property
    def ratios(self) -> tuple[float, float]:
        """The ratios of pool sizes: recurrent states / KV cache, tokens of windowed layers / tokens of full layers."""
        defaults = self.record.ratios
        return (
            float(self.flags.get("mamba_full_memory_ratio", defaults.states)),
            float(self.flags.get("swa_full_tokens_ratio", defaults.window)),
        )

    def tokens_in(self, rank: EngineRank, available: int) -> int:
        """Returns the tokens of a rank's KV cache in `available` bytes. Raises `InputError` for models without one."""
        caches = rank.token_caches
        has_separate_pools = self.rules.divided_pools and not self.flags.get("disable_hybrid_swa_memory")
        states, window = self.ratios
        rank.check_caches("sglang")
        if not caches:
            raise InputError("--engine sglang: the model has no layer with keys and values; it is not modelled")
        if rank.state_caches and "speculative_algorithm" in self.flags:
            raise InputError("--speculative-algorithm: states of drafted tokens are not modelled; remove the flag")
        if rank.state_caches:
            if not self.rules.divided_pools:
                raise InputError("--engine sglang: recurrent states are modelled from SGLang 0.5 on")
            available = int(available / (1 + states))
        has_full = any(cache.window is None for cache in caches)
        token_bytes = sum(
            cache.layers
            * rank.token_bytes(cache, Fraction(self.cached_element_bytes))
            * (Fraction(window) if has_separate_pools and has_full and cache.window is not None else 1)
            for cache in caches
        )
        return max(0, int(available // token_bytes))


def memory(preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]) -> EngineMemory:
    """Returns the memory of SGLang on its devices. Raises `InputError` for flags that contradict the model."""
    server = Server(preset, hardware, version, flags)
    rules, fraction = server.rules, server.fraction
    budget = int(server.free_before * fraction)
    page = int(flags.get("page_size", 1))
    stages = []
    for number in range(server.pp):
        rank = server.rank(number)
        weights = server.measured_or_computed("weights", server.weights(rank))
        cache_bytes = server.measured_or_computed("kv_cache", budget - weights)
        stages.append((server.tokens_in(rank, cache_bytes), cache_bytes, weights, rank))
    tokens, cache_bytes, weights, rank = min(stages, key=lambda stage: stage[0])
    tokens = min(tokens, int(flags.get("max_total_tokens", 10**15))) // page * page
    terms = (
        Term(
            "budget",
            budget,
            "estimate",
            rules.place,
            f"{round(fraction, 4)} × free before loading (--mem-fraction-static)",
        ),
        Term("weights", weights, "source", "tensors of the rank", rank.scheme or "as published"),
        Term("profile_run", 0, "source", rules.place, "none; activations take what the fraction leaves"),
        Term("non_torch", max(0, server.outside_torch), "estimate", server.context.source, "outside the budget"),
        Term("cuda_graphs", 0, "source", rules.place, "outside the budget; in what the fraction leaves"),
        Term("kv_cache", max(cache_bytes, 0), "estimate", rules.place, f"{tokens:,} tokens"),
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
        devices=server.devices,
        block_size=page,
        assumed=server.assumed,
        settings=server.settings,
        layout=server.whole_layout,
        notes=tuple(filter(None, (version.note, _cache_note(tokens, length, bool(message)), *_server_notes(server)))),
    )


def _server_notes(server: Server) -> list[str]:
    """Returns notes on draft models, and on data-parallel attention with a KV cache per replica."""
    notes = [*host_notes(server.rank(0), server.flags)]
    if "speculative_algorithm" in server.flags:
        notes.append(
            "the model that drafts tokens, and its cache, are outside the budget; they take what the fraction leaves"
        )
    if server.divides_attention:
        notes.append(f"each of the {server.dp} replicas of attention has that many tokens")
    return notes


def _cache_note(tokens: int, length: int, stops: bool) -> str:
    """Returns a note on a KV cache that holds less than one request; empty if it holds one."""
    if stops or tokens >= length:
        return ""
    return (
        f"requests of more than {tokens:,} tokens are refused: the cache holds fewer than --context-length {length:,}"
    )
