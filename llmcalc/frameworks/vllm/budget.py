"""What vLLM does with the memory of its devices: the budget, what is taken from it, and what is left for the cache.

`presets/engines/vllm.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from ...accelerator import Hardware
from ...errors import InputError
from ...parallel.layout import Layout
from ...sources.preset import Preset
from ..engines.engine import EngineMemory, EngineVersion, Term, TermStatus
from ..engines.rank import EngineRank
from ..engines.server import EngineServer
from .kv_blocks import BlockPool, block_pool
from .profile_run import ProfileRun
from .versions import Rules, VLLMRecord, vllm_record

GIB, MIB = 2**30, 2**20

USUAL_BLOCK = 16
"""Tokens of a block by default."""

LEAST_UNITS = 108
"""Compute units of an accelerator that does not state them."""

GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes of which vLLM captures CUDA graphs (vllm/config/vllm.py, `_set_cudagraph_sizes`)."""

SCHEMES = {"fp8": "fp8-dynamic", "awq": "awq-int4-g128", "gptq": "gptq-int4-g128", "mxfp4": "mxfp4"}
"""Value of `--quantization` → the scheme of the weights of a checkpoint that states none."""

MXFP4_COLUMNS = 256
"""Columns to which the hidden size of MXFP4 experts is padded (quantization/mxfp4.py)."""


class Server(EngineServer):
    """A vLLM server."""

    name = "vllm"
    length_field = "max_model_len"
    layout_fields = "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
    decided_by = {
        "weights": ("dtype", "quantization", "quantize"),
        "profile_run": ("max_num_seqs", "max_num_batched_tokens"),
        "non_torch": (),
        "cuda_graphs": ("max_num_seqs", "enforce_eager"),
        "kv_cache": ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "quantize"),
    }

    def __post_init__(self) -> None:
        """Raises `InputError` for flags that contradict each other or the model."""
        super().__post_init__()
        if self.flags.get("max_num_batched_tokens", self.max_num_batched_tokens) < self.max_num_seqs:
            raise InputError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: is less than --max-num-seqs "
                f"{self.max_num_seqs}; expected at least as many"
            )
        if self.dp > 1 and self.pp > 1 and self.flags.get("enable_expert_parallel"):
            raise InputError("--enable-expert-parallel: with --data-parallel-size and stages is not modelled")

    @property
    def record(self) -> VLLMRecord:
        return vllm_record()

    @cached_property
    def rules(self) -> Rules:
        return self.record.rules(self.numbers)

    @property
    def tp(self) -> int:
        return int(self.flags.get("tensor_parallel_size", 1))

    @property
    def pp(self) -> int:
        return int(self.flags.get("pipeline_parallel_size", 1))

    @property
    def dp(self) -> int:
        return int(self.flags.get("data_parallel_size", 1))

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @cached_property
    def layout(self) -> Layout:
        """The layout: layers as vllm/distributed/utils.py, `get_pp_indices`, divides them over the stages.

        With expert parallelism the experts are divided over all ranks of the tensor and data groups, each undivided.
        """
        layers = sum(stack.num_hidden_layers for _, stack in self.preset.model.stacks())
        if layers < self.pp:
            raise InputError(f"--pipeline-parallel-size {self.pp}: the model has {layers} layers")
        sizes = [layers // self.pp] * self.pp
        for i in range(2, layers % self.pp + 2):
            sizes[-i] += 1
        split = None if len(set(sizes)) == 1 else tuple(sizes)
        if not self.flags.get("enable_expert_parallel"):
            return Layout(tp=self.tp, pp=self.pp, pp_layout=split)
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.tp * self.dp, etp=1, pp_layout=split)

    @property
    def dtype(self) -> str | None:
        """The number format of weights and activations; None for the published one."""
        if self.flags.get("dtype", "auto") == "auto" and self.published_dtype == "float32":
            return "bfloat16"  # vllm/config/model.py, `_get_and_verify_dtype`: float32 models run in half precision
        return super().dtype

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation."""
        return 4 if self.dtype == "float32" else 2

    @property
    def cached_element_bytes(self) -> int:
        """Bytes of a cached element: of the flag, or of the checkpoint's own scheme for caches."""
        word = self.flags.get("kv_cache_dtype", "auto")
        if word == "auto":
            quantization = (self.preset.config or {}).get("quantization_config")
            states = isinstance(quantization, dict) and (
                quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
            )
            return 1 if states else self.element_bytes
        return 1 if word.startswith("fp8") else 2

    @property
    def quantize(self) -> str | None:
        """The scheme of the weights; None for that of the checkpoint."""
        if self.flags.get("quantize"):
            return str(self.flags["quantize"])
        word = str(self.flags.get("quantization", "none")).removesuffix("_marlin").removeprefix("gpt_oss_")
        if word == "none" or (
            self.preset.checkpoint is not None and (self.preset.config or {}).get("quantization_config")
        ):
            return None
        if word not in SCHEMES:
            raise InputError(
                f"--quantization {word}: the checkpoint does not say its scheme; expected --quantize SCHEME too"
            )
        return SCHEMES[word]

    @property
    def max_num_seqs(self) -> int:
        chosen = self.flags.get("max_num_seqs")
        default = min(self.record.defaults(self.numbers, self.hardware).max_num_seqs, self.max_num_batched_tokens)
        return int(chosen or default)

    @property
    def max_num_batched_tokens(self) -> int:
        chosen = self.flags.get("max_num_batched_tokens")
        if chosen:
            return int(chosen)
        default = self.record.defaults(self.numbers, self.hardware).max_num_batched_tokens
        if self.rules.generation == "v0":
            if self.longest_request > 32768:
                return self.rules.chunk_above_32k
            return max(self.longest_request, default)
        return max(default, int(self.flags.get("max_num_seqs", 1)))

    @property
    def utilization(self) -> float:
        return float(self.flags.get("gpu_memory_utilization", self.rules.gpu_memory_utilization))

    @property
    def block_size(self) -> int:
        return int(self.flags.get("block_size", USUAL_BLOCK))

    @property
    def total(self) -> int:
        """The driver's total of the device."""
        return self.hardware.capacity_bytes

    @property
    def defaults(self) -> dict[str, Any]:
        """The name of a flag → its value in effect: the given one, or the default."""
        return {
            "max_model_len": self.longest_request,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "gpu_memory_utilization": self.utilization,
            "kv_cache_dtype": "auto",
            "enforce_eager": False,
            "block_size": self.block_size,
            "tensor_parallel_size": self.tp,
        }

    def rank(self, stage: int) -> EngineRank:
        """The model of the first rank of a stage."""
        loads_towers = not self.flags.get("language_model_only") and stage == 0
        number = self.layout.rank(pp=stage)
        return EngineRank(self.preset, self.layout, number, self.quantize, self.dtype, loads_towers)

    def profile_run(self, stage: int) -> ProfileRun:
        """The profile run of a stage's ranks."""
        units = self.hardware.compute_units
        return ProfileRun(
            tokens=self.max_num_batched_tokens,
            sequences=min(self.max_num_seqs, self.max_num_batched_tokens),
            element_bytes=self.element_bytes,
            units=LEAST_UNITS if units is None else units.count,
            last_stage=stage == self.pp - 1,
            chunked=self.longest_request > 32768,
            stages=self.pp,
        )

    def graph_bytes(self, layers: int) -> int:
        """The estimate of CUDA graphs: fewer where fewer sequences are captured."""
        if self.flags.get("enforce_eager"):
            return 0
        estimate, sequences = self.record.cuda_graphs, self.max_num_seqs
        most = min(2 * sequences, GRAPH_SIZES[-1])
        captured = sum(size <= most for size in GRAPH_SIZES) + sum(size <= sequences for size in GRAPH_SIZES)
        share = captured / (2 * len(GRAPH_SIZES))
        return int(share * (estimate.constant_mib + estimate.mib_per_layer * layers) * MIB)

    def stored_weights(self, rank: EngineRank) -> int:
        """Bytes of the weights as vLLM stores them: with tables of RoPE, padded experts and MLA's own copies."""
        tables = rank.rope_elements * self.element_bytes
        _, _, experts = rank.widths
        padding = 0
        if rank.scheme == "mxfp4" and experts is not None:
            columns = -rank.hidden_size % MXFP4_COLUMNS
            padding = rank.number_of_layers * experts.number * 3 * experts.width * columns * 17 // 32
        offloaded = int(float(self.flags.get("cpu_offload_gb", 0)) * GIB)
        return max(0, rank.weights + tables + padding + rank.latent_projections * self.element_bytes - offloaded)

    def stage(self, number: int) -> Stage:
        """The memory of a rank of a stage."""
        rank, run, rules = self.rank(number), self.profile_run(number), self.rules
        pool = block_pool(rank, self.cached_element_bytes, self.block_size, rules)
        outside = self.record.outside_torch(self.numbers, self.hardware, self.tp, self.pp)
        graphs = self.measured("cuda_graphs", self.graph_bytes(rank.number_of_layers))
        beside = self.measured("non_torch", outside.mib * MIB)
        budget = math.ceil(self.utilization * self.total)
        weights = self.measured("weights", self.stored_weights(rank))
        peak = self.measured("profile_run", run.peak_bytes(rank, rules))
        taken = weights + peak + beside + (graphs if rules.subtracts_graphs else 0)
        available = int(self.flags.get("kv_cache_memory_bytes", self.measured("kv_cache", budget - taken)))
        blocks = int(self.flags.get("num_gpu_blocks_override", pool.blocks(available)))
        estimate: TermStatus = "estimate"
        graph_origin = "subtracted from the budget" if rules.subtracts_graphs else "outside the budget"
        terms = (
            Term("budget", budget, "source", rules.place, f"{self.utilization} × total (--gpu-memory-utilization)"),
            Term("weights", weights, "source", "tensors of the rank", self._weights_origin(rank)),
            Term("profile_run", peak, "source", rules.place, run.origin(rank, rules)),
            Term("non_torch", beside, estimate, outside.source, "context, NCCL and libraries"),
            Term("cuda_graphs", graphs, estimate, self.record.cuda_graphs.source, graph_origin),
            Term(
                "kv_cache", max(available, 0), estimate, rules.place, f"{blocks:,} blocks of {pool.block_size} tokens"
            ),
        )
        return Stage(self.with_receipt(terms), pool, available, blocks, graphs)

    def _weights_origin(self, rank: EngineRank) -> str:
        return rank.scheme or ("as published" if self.dtype is None else self.dtype)

    @property
    def free_at_start(self) -> int:
        """Bytes that are free when the engine starts: without CUDA's context."""
        return self.total - self.record.context_of(self.hardware, self.tp * self.pp).mib * MIB


class Stage(NamedTuple):
    """The memory of a rank of one stage: its terms, its pool, the bytes and blocks of its cache, and its graphs."""

    terms: tuple[Term, ...]
    pool: BlockPool
    available: int
    blocks: int
    graphs: int


def memory(preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]) -> EngineMemory:
    """Computes what vLLM does on its devices: that of the stage with the fewest blocks.

    Raises `InputError` for flags that contradict each other or the model.
    """
    server = Server(preset, hardware, version, flags)
    fullest = min(map(server.stage, range(server.pp)), key=lambda stage: stage.blocks)
    pool, blocks, rules = fullest.pool, fullest.blocks, server.rules
    length, chunk = server.longest_request, server.max_num_batched_tokens
    concurrency = pool.max_concurrency(blocks, length, chunk)
    message = _message(server, fullest, concurrency)
    return EngineMemory(
        terms=fullest.terms,
        kv_tokens=pool.printed_tokens(blocks, length, chunk, rules),
        blocks=blocks,
        max_concurrency=concurrency,
        starts=not message,
        message=message,
        max_model_len=length,
        devices=server.devices,
        block_size=pool.block_size,
        assumed=server.assumed,
        settings=server.settings,
        notes=tuple(filter(None, (version.note, *_notes(server)))),
    )


def _message(server: Server, stage: Stage, concurrency: float) -> str:
    """Returns vLLM's message where it does not start, by its checks in their order; empty where it starts."""
    messages, rules, length = server.record.messages, server.rules, server.longest_request
    budget = stage.terms[0].bytes
    if rules.checks_free_memory and server.free_at_start < budget:
        return f"{messages['free_memory']} ({server.utilization}): {server.free_at_start / GIB:.2f} GiB are free"
    if stage.available <= 0:
        return messages["no_cache"]
    if concurrency < 1:
        longest = stage.pool.longest_request(stage.blocks, server.max_num_batched_tokens, length)
        text = messages["one_request_v0" if rules.generation == "v0" else "one_request"]
        return f"{text} (--max-model-len {length}); the longest that fits is {longest}"
    unused = server.free_at_start - budget
    if not rules.subtracts_graphs and unused < stage.graphs:
        return messages["outside_budget"]
    return ""


def _notes(server: Server) -> list[str]:
    notes = []
    if server.hardware.driver_total is None:
        notes.append(f"{server.hardware.title}: what the driver offers is not known; all memory is counted")
    if server.preset.model.towers and not server.flags.get("language_model_only"):
        notes.append("the profile run of the encoders of images is not modelled; it may take more")
    return notes


def longest_request(preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]) -> int:
    """Returns the longest `--max-model-len` with which the cache holds one request; 0 if none."""
    server = Server(preset, hardware, version, flags)
    fullest = min(map(server.stage, range(server.pp)), key=lambda stage: stage.blocks)
    return fullest.pool.longest_request(fullest.blocks, server.max_num_batched_tokens, server.longest_request)
