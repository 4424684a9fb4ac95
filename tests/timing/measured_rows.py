"""Measured runs of `tests/data/timing`, each turned into a question of `llmcalc.timing`.

Every folder is a set: rows.csv, and a README with its source and what its seconds are. No constant is fitted here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import llmcalc
from llmcalc.accelerator import Hardware
from llmcalc.costs.params import params
from llmcalc.frameworks.engines.engine import Engine, EngineVersion
from llmcalc.frameworks.engines.registry import engine, engine_and_version
from llmcalc.frameworks.engines.versions import parse_version
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import load_hardware, read_hardware
from llmcalc.sources.preset import Preset
from llmcalc.studies.server import LayoutSizes, Server
from llmcalc.studies.serving import cache_format_flag
from llmcalc.timing.batching import LoadLatencies, Replica, RequestSizes
from llmcalc.timing.calibration import UNIT_FACTORS, CalibrationFactors
from llmcalc.timing.device import Device, device_of
from llmcalc.timing.inference import decode, prefill
from llmcalc.timing.kernels import Adapters
from llmcalc.timing.software_stacks import (
    ADAMW_STATE_BYTES,
    with_16_bit_adapters,
    with_attention,
    with_loss,
    with_norms,
    with_optimizer,
    with_overlap,
    with_overlapped_groups,
)
from llmcalc.timing.step import StepPlan, StepTimer
from llmcalc.timing.time_estimator import GRAPH_MODULES, NumberFormats
from llmcalc.timing.timing_constants import SoftwareStack, software_stacks

DATA = Path(__file__).parents[1] / "data" / "timing"

STACKS = {
    "megatron-bridge": "megatron",
    "megatron-bridge-graphs": "megatron-graphs",
    "nemo": "megatron",
    "nemo-perf": "megatron",
    "nemo-perf-alltoall": "megatron-alltoall",
    "megatron-bridge-alltoall": "megatron-alltoall",
    "megatron-no-overlap": "megatron-no-overlap",
    "megatron-deepspeed-2022": "megatron-2021",
    "megatron-deepspeed-2021": "megatron-2021",
    "megatron-deepspeed-2024": "deepspeed",
    "aleph-alpha": "aleph-alpha-scaling",
    "atorch-fsdp": "fsdp2",
    "atorch-3d": "deepspeed",
    "flagperf-megatron": "megatron-no-overlap",
    "llm-foundry": "llm-foundry-2023",
    "xtuner-2024": "deepspeed",
    "llama-factory": "fsdp2-liger",
    "llmq": "fsdp2-compile",
    "peft": "torch",
    "torchtune": "torch",
    "torchtune-compile": "torch-compile",
    "torchtune-fsdp": "fsdp2-compile",
    "torchtitan": "fsdp2",
    "torchtitan-compile": "fsdp2-compile",
    "fms-fsdp": "fsdp2-compile",
    "olmo-core": "fsdp2-compile",
    "deepspeed": "deepspeed",
    "qwen-2023": "torch",
    "qwen-2023-zero3": "deepspeed",
    "trainer": "torch",
    "trainer-fsdp": "fsdp2",
    "trainer-unsloth": "unsloth",
    "vectorlm": "torch",
    "vectorlm-fsdp": "fsdp2",
    "fsdp-qlora": "fsdp2",
    "fsdp-qlora-replicas": "torch",
    "yafsdp-baseline": "fsdp2",
    "deepspeed-offload": "deepspeed-offload",
    "automodel": "fsdp2-liger",
    "trl": "fsdp2-liger",
    "halo": "fsdp2-liger",
    "paddlenlp": "paddle",
    "maxtext": "maxtext",
    "trtllm": "tensorrt-llm",
    "llama.cpp": "llamacpp",
    "llama.cpp-2024": "llamacpp-2024",
    "llama-batched-bench": "llamacpp",
    "mlc-llm": "gpt-fast",
    "vllm-ascend": "vllm-npu",
    "neuron": "vllm-neuron",
    "vllm-v100": "vllm-eager",
    "megatron-lm-inference": "fastertransformer",
    "lmdeploy": "vllm",
    "optimum-habana": "vllm",
    "neuronx-distributed": "megatron",
}
"""Software of the rows → stack of `presets/timing`; others have its name. Servers without one have the default."""

STAND_INS = {"lmdeploy", "neuronx-distributed", "optimum-habana"}
"""Software of rows that have the stack of another one, and test no estimate of that one."""

ONE_CONNECTION = {"halo", "trl", "qwen-2023-zero3"}
"""Software of rows with CUDA_DEVICE_MAX_CONNECTIONS=1 (Halo's image and Qwen's script set it): all kernels and messages
of FSDP are in one queue, so none hides another; Megatron-LM refuses to run FSDP with it.
"""

UNSAMPLED = {"llama-batched-bench"}
"""Software of rows that decode random tokens, so that no sequence is sampled (tools/batched-bench/batched-bench.cpp).
"""

WIDE_PASSES = {"batched_spark", "llamacpp_strix_halo", "llamacpp_r9700"}
"""Sets whose prompts of more than 512 tokens run with `-ub 2048` in place of llama.cpp's default (benches/dgx-spark.md;
benchmark/run_benchmarks.sh of kyuz0's repositories, on the R9700 under ROCm alone).
"""

GRADIENTS_IN_16_BITS = {
    "megatron-bridge",
    "megatron-bridge-alltoall",
    "megatron-bridge-graphs",
    "nemo-perf",
    "nemo-perf-alltoall",
}
"""Software of rows whose recipes reduce gradients in 16 bits (`grad_reduce_in_fp32 = False` in Megatron-Bridge's and
NeMo's recipes for performance), where Megatron-Core's default is 32.
"""

CHECKED = {"nanotron"}
"""Software of rows whose launch script sets TORCH_DISTRIBUTED_DEBUG=DETAIL: before each collective the hosts of its
ranks wait for each other and compare shapes through Gloo, message by message (torch/csrc/distributed/c10d/
ProcessGroupWrapper.cpp). torch's documentation wants it for debugging alone; no estimate holds it.
"""

RECOMPUTED = {
    "none": 0.0,
    "full": 1.0,
    "full-reentrant": 1.0,
    "selective-layer": 0.5,
    "selective-op": 0.35,
    "minimal": 0.0,
    "custom": 0.65,
}
"""What a run recomputes → share of the layers' forward passes. full-reentrant: torch's `use_reentrant`, which runs all
of a layer again; selective-op: every second product; custom (MaxText's recipes, which keep or offload the inputs of
products of attention): the feed-forward network.
"""

WHOLE_LAYERS = "full", "selective-layer"
"""What a run recomputes, where that is whole layers."""

NODES = {"v100-32gb": 4, "v100-16gb": 4}
"""Accelerators whose measured nodes are smaller than a scale-up domain of the record."""

ADAPTED = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
"""Linear layers with an adapter in MLPerf's task: those of attention (its rules, `linear_qkv` and `linear_proj`)."""

ALL_ADAPTED = ADAPTED | {"gate_proj", "up_proj", "down_proj"}
"""Those of rows that adapt every linear layer but the head."""

TARGETS = {
    "": ADAPTED,
    "all": ALL_ADAPTED,
    "joined": ALL_ADAPTED - {"k_proj", "v_proj"},
    "fused": ALL_ADAPTED - {"k_proj", "v_proj", "up_proj"},
    "no-keys": ALL_ADAPTED - {"k_proj"},
    "no-outputs": ALL_ADAPTED - {"o_proj"},
    "queries-values": frozenset({"q_proj", "v_proj"}),
    "mlp": ALL_ADAPTED - ADAPTED,
}
"""Adapted layers of a row → their names; `joined`: queries, keys and values are one layer with one adapter, `fused`:
both projections of a gated network as well, as in Megatron-Core; `no-keys`: torchtune's recipes; `no-outputs`:
fsdp_qlora's script.
"""

BASE_BITS = {"": 0.0, "nf4": 4.5}
"""Frozen weights of a row → bits of an element with its scale in float32 for each 64."""

STEP_TOKENS = 8192
"""Most tokens of a step of a server: the default of vLLM and TensorRT-LLM on the rows' accelerators."""

SCHEMES = {"fp8": "fp8-dynamic", "fp4": "nvfp4"}
"""Number format of products of a checkpoint that was published in 16 bits → the scheme of its weights."""

NAIVE_MFU = 0.45
"""MFU that the rule 6ND (2ND of a prompt) is used with."""

DENSE, NEW, MOE = "training, dense, known stack", "training, dense, new stack or device", "training, MoE"
DEBUGGED = "training, with torch's checks of messages"
SERVERS, CAPTURED = "decode, NVIDIA servers", "decode, llama.cpp or captured torch"
PROMPTS, OTHERS = "prompts, TTFT", "other vendors"
EAGER = "decode, eager torch"
FULL, RATE, LOADED = "tokens/s of full servers", "tokens/s at a concurrency", "TTFT under load"
CLASSES = (DENSE, NEW, MOE, DEBUGGED, SERVERS, FULL, RATE, CAPTURED, EAGER, PROMPTS, LOADED, OTHERS)

KNOWN_SETS = {"train_megatron_bridge", "train_simumax_b200", "train_torchtitan", "train_llm_foundry"}
"""Sets on whose rows constants of their stack were found."""

SERVER_STACKS = {
    "vllm",
    "sglang",
    "sglang-2025",
    "sglang-0510",
    "tensorrt-llm",
    "fastertransformer",
    "vllm-eager",
    "vllm-2024",
    "vllm-2025",
    "vllm-npu",
}


@dataclass(frozen=True)
class Row:
    """One measured run. set: its folder. values: its columns; seconds: what was measured."""

    set: str
    values: dict[str, str] = field(repr=False)

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    def whole(self, name: str, default: int = 1) -> int:
        """A whole number of a column; the default where it is empty."""
        return int(self[name] or default)

    @property
    def id(self) -> str:
        return self["id"]

    @property
    def seconds(self) -> float:
        return float(self["seconds"])

    @property
    def trains(self) -> bool:
        return not self["measure"]

    @property
    def is_loaded(self) -> bool:
        """Whether it is one of several requests of a server."""
        return self["under_load"] == "1" and self.whole("batch") > 1

    @property
    def arrives_in_bursts(self) -> bool:
        """Whether its requests have equal lengths, so that they end together and the next ones arrive at once."""
        return self["equal"] == "1" and self.is_loaded

    @property
    def hardware(self) -> Hardware:
        return _hardware(self["hardware"])

    @property
    def stack(self) -> SoftwareStack:
        return _stack(self["stack"], self.whole("input", 0) + self.whole("output", 0))

    @property
    def kind(self) -> str:
        """Its class of the issue on time."""
        if self.hardware.vendor != "NVIDIA":
            return OTHERS
        if self.trains:
            if has_experts(self["model"]):
                return MOE
            if self["stack"] in CHECKED:
                return DEBUGGED
            return DENSE if self.set in KNOWN_SETS else NEW
        if self["measure"] in ("prompt", "ttft"):
            return LOADED if self.is_loaded else PROMPTS
        if self["measure"] in ("throughput", "output_rate"):
            return FULL if self["measure"] == "throughput" else RATE
        if self.stack.name in SERVER_STACKS:
            return SERVERS
        return EAGER if self.stack.host_seconds_per_kernel else CAPTURED


EAGER_FROM = 8192
"""Tokens of a sequence beyond which vLLM before 0.8 captures no graph."""


@cache
def _stack(software: str, tokens: int = 0) -> SoftwareStack:
    """The stack of a row. software: its name, and its version after `==`. tokens: of a sequence of inference."""
    software, _, version = software.partition("==")
    name = STACKS.get(software, software)
    if name == "vllm" and version and tokens > EAGER_FROM and (0, 7) <= parse_version(version) < (0, 8):
        name = "vllm-eager"
    elif (name == "vllm" and version) or name == "sglang":
        name = engine(name).software_stack(parse_version(version or "0"))
    stack = with_overlap(software_stacks()[name], "none" if software in ONE_CONNECTION else None)
    if software in UNSAMPLED:
        host_seconds = stack.host_seconds_per_step + stack.host_seconds_per_sequence
        stack = stack.model_copy(update={"host_seconds_per_step": host_seconds, "host_seconds_per_sequence": 0.0})
    return stack.model_copy(update={"gradient_bytes": 2.0}) if software in GRADIENTS_IN_16_BITS else stack


def read_sets(names: Sequence[str] = ()) -> dict[str, list[Row]]:
    """The rows of all sets, or of these."""
    sets = {}
    for path in sorted(DATA.glob("*/rows.csv")):
        if not names or path.parent.name in names:
            with path.open(newline="") as file:
                sets[path.parent.name] = [Row(path.parent.name, values) for values in csv.DictReader(file)]
    return sets


@cache
def _configs() -> dict[str, Any]:
    return dict(json.loads((DATA / "models.json").read_text()))


@cache
def preset_of(model: str) -> Preset:
    """The model of a row: a preset, or a config of `models.json`."""
    return llmcalc.load(_configs().get(model, model))


def spec_of(model: str) -> ModelSpec:
    return preset_of(model).model


@cache
def params_of(model: str) -> dict[str, int]:
    """total, active and embedding parameters."""
    count = params(spec_of(model))
    return {"total": count.total, "active": count.active, "embedding": count.embedding}


@cache
def has_experts(model: str) -> bool:
    counted = params_of(model)
    return counted["active"] < 0.9 * counted["total"]


class NotAsked(Exception):
    """Raised for a row that is no question yet."""


@cache
def _hardware(name: str) -> Hardware:
    """An accelerator: of the folder `hardware` of the data, where it is a variant that no preset has, or a preset."""
    variant = DATA / "hardware" / f"{name}.toml"
    return read_hardware(str(variant)) if variant.exists() else load_hardware(name)


@cache
def device_of_row(name: str, nic: str) -> Device:
    hardware = _hardware(name)
    link = hardware.interconnect
    if name in NODES and link is not None:
        hardware = hardware.model_copy(update={"interconnect": link.model_copy(update={"domain_size": NODES[name]})})
    return device_of(hardware, float(nic) * 1e9 if nic else None)


class KernelChoices(NamedTuple):
    """Kernels that a row states.

    cross_entropy, norm: values of `--cross-entropy` and `--norm`; empty for the stack's own.
    state_bytes: bytes per parameter of AdamW's states. is_stepwise: whether AdamW runs step by step.
    has_narrow_adapters: whether adapters are in 16 bits.
    """

    cross_entropy: str
    norm: str
    state_bytes: float
    is_stepwise: bool
    has_narrow_adapters: bool

    @classmethod
    def of_row(cls, row: Row) -> KernelChoices:
        """Returns the choices of a row."""
        state_bytes = float(row["state_bytes"] or ADAMW_STATE_BYTES)
        is_stepwise = row["optimizer_impl"] == "foreach"
        return cls(row["cross_entropy"], row["norm"], state_bytes, is_stepwise, row["lora_dtype"] == "bf16")

    def stack(self, stack: SoftwareStack) -> SoftwareStack:
        """Returns the stack with these kernels."""
        stack = with_norms(with_loss(stack, self.cross_entropy or None), self.norm or None)
        stack = with_optimizer(stack, self.state_bytes, is_stepwise=self.is_stepwise)
        return with_16_bit_adapters(stack) if self.has_narrow_adapters else stack


@cache
def _prices(
    model: str, device: tuple[str, str], software: str, overlap: str, attention: str, factors: CalibrationFactors,
    choices: KernelChoices, on_fastest_host: bool = False, captured: tuple[str, ...] = (),
) -> StepTimer:  # fmt: skip
    groups = frozenset(overlap.split("+")) if "+" in overlap else None
    stack = with_overlapped_groups(with_overlap(_stack(software), None if groups else overlap or None), groups)
    stack = choices.stack(with_attention(stack, attention or None))
    if captured:
        stack = stack.model_copy(update={"captured_modules": captured})
    if on_fastest_host:
        stack = stack.on_fastest_host or stack
    return StepTimer(spec_of(model), factors.scale_device(device_of_row(*device)), factors.scale_stack(stack))


def pricer_of(row: Row) -> Callable[[CalibrationFactors], float]:
    """The estimate of a row by the factors of a calibration."""
    return lambda factors: estimate(row, factors)


def estimate(row: Row, factors: CalibrationFactors = UNIT_FACTORS) -> float:
    """The seconds that `llmcalc.timing` estimates for a row.

    Raises `NotAsked` for what it has no question for, and `InputError` for what it refuses.
    """
    return _step_seconds(row, factors) if row.trains else _inference_seconds(row, factors)


def fast_host_seconds(row: Row) -> float:
    """The estimate of a training step on the fastest measured host."""
    return _step_seconds(row, UNIT_FACTORS, on_fastest_host=True)


def _step_seconds(row: Row, factors: CalibrationFactors, on_fastest_host: bool = False) -> float:
    zero, dp = row.whole("zero"), row.whole("dp")
    layout = Layout(
        tp=row.whole("tp"),
        pp=row.whole("pp"),
        dp=dp,
        cp=row.whole("cp"),
        ep=row.whole("ep"),
        etp=row.whole("etp") if row["etp"] else None,
        vpp=row.whole("vpp"),
        sequence_parallel=row["sequence_parallel"] == "1",
        cp_comm=row["cp_comm"] or "p2p",  # type: ignore[arg-type]
        zero=zero,  # type: ignore[arg-type]
        hsdp_replicas=dp // row.whole("shard") if row["shard"] else 1,
        pp_layout=_stage_sizes(row["stages"]),
        schedule=row["schedule"] or ("interleaved" if row.whole("vpp") > 1 else "1f1b"),  # type: ignore[arg-type]
    )
    precision = row["precision"]
    dtype = {"fp16": "bf16", "mxfp8": "fp8", "nvfp4": "fp4"}.get(precision, precision)
    device = row["hardware"], row["nic_gb_s"]
    captured = tuple(name for name in row["graphs"].split("+") if name in GRAPH_MODULES)
    prices = _prices(
        row["model"], device, row["stack"], row["overlap"], row["attention"], factors, KernelChoices.of_row(row),
        on_fastest_host, captured,
    )  # fmt: skip
    micro_batch = float(row["micro_batch"])
    plan = StepPlan.from_layout(
        layout,
        int(micro_batch) if micro_batch.is_integer() else micro_batch,
        row.whole("micro_batches"),
        row.whole("seq"),
        dtype=dtype,
        recomputed_share=_recomputed_share(row["recompute"]),
        included_parts=frozenset({"mtp"} if row["mtp"] else ()),
        adapters=_adapters(row),
        recomputed_modules=frozenset(filter(None, row["recompute_modules"].split("+"))),
        stops_early=prices.stack.stops_early and (row["recompute"] in WHOLE_LAYERS or "/" in row["recompute"]),
    )
    return float(prices.step(plan).seconds)


def _adapters(row: Row) -> Adapters | None:
    """The adapters of a row. base_inputs: `fp32` after `prepare_model_for_kbit_training`."""
    if not row["lora"]:
        return None
    targets, base_bits = TARGETS[row["lora_targets"]], BASE_BITS[row["base"]]
    return Adapters(
        int(row["lora"]),
        targets,
        base_bits,
        base_inputs_are_fp32=row["base_inputs"] == "fp32",
        quantized_experts=row["quantized_experts"] == "1",
    )


def _recomputed_share(text: str) -> float:
    """The share of the layers that run again: a name of `RECOMPUTED`, or `10/80` for ten of 80 layers."""
    recomputed_layers, _, layers = text.partition("/")
    return int(recomputed_layers) / int(layers) if layers else RECOMPUTED[text]


def _stage_sizes(text: str) -> tuple[int, ...] | None:
    """Layers of each stage: `4*15+1` is fifteen stages of four layers, and one of one."""
    if not text:
        return None
    runs = (run.partition("*") for run in text.split("+"))
    return tuple(chain.from_iterable([int(layers)] * int(count or 1) for layers, _, count in runs))


def replica_of(row: Row, factors: CalibrationFactors = UNIT_FACTORS) -> Replica:
    """The replica of a row that serves requests."""
    return _replica(*_key(row, factors))


def load_of(row: Row, factors: CalibrationFactors = UNIT_FACTORS) -> LoadLatencies:
    """The load of a row's replica by its requests: those that arrive at a rate, or a number of them at any time.

    in_flight: the mean number where a client states it, which is below the most of a benchmark that begins and ends.
    """
    if row["rate"]:
        return _load_at_rate(float(row["rate"]), row.whole("batch"), *_key(row, factors))
    return _load(float(row["in_flight"] or row["batch"]), *_key(row, factors))


def load_as_arrived(row: Row, factors: CalibrationFactors = UNIT_FACTORS) -> LoadLatencies:
    """The load of a row, with the latencies of a burst where its requests arrive in bursts."""
    load = load_of(row, factors)
    return load.latencies_in_waves if row.arrives_in_bursts else load


def _key(row: Row, factors: CalibrationFactors) -> tuple[Any, ...]:
    """The arguments of `_replica`."""
    tp, ep, dp = row.whole("tp"), row.whole("ep"), row.whole("dp")
    layout = Layout(tp=tp, ep=ep, dp=dp, pp=row.whole("pp"), etp=max(1, tp * dp // ep) if ep > 1 else None)
    dtype = {"q": "quantized"}.get(row["precision"], row["precision"])
    formats = NumberFormats(dtype, float(row["weight_bits"]), float(row["kv_bits"]), None, row["scales"] == "block")
    requests = RequestSizes(row.whole("input", 0), row.whole("output", 0))
    return row["model"], row["hardware"], row["stack"], requests, layout, formats, factors


@cache
def _replica(
    model: str,
    hardware: str,
    software: str,
    requests: RequestSizes,
    layout: Layout,
    formats: NumberFormats,
    factors: CalibrationFactors,
) -> Replica:
    """A replica. Rows with other loads share it, and what it has computed of prompts."""
    stack = factors.scale_stack(_stack(software, requests.input_tokens + requests.output_tokens))
    return Replica(
        spec_of(model), factors.scale_device(device_of_row(hardware, "")), stack, requests, layout, formats, STEP_TOKENS
    )


@cache
def _load(concurrency: float, *key: Any) -> LoadLatencies:
    return _replica(*key).latencies(concurrency)


@cache
def _load_at_rate(rate: float, sequences: int, *key: Any) -> LoadLatencies:
    """The load of requests that arrive at a rate. sequences: most of them at a time (`--max-num-seqs`)."""
    replica = replace(_replica(*key), waited_step_share=0.5)
    point = Server(LayoutSizes(), None, None, replica, None, sequences).load_point_at_rate(rate)
    if point is None:
        raise NotAsked("requests that arrive faster than the estimated server completes them")
    return point.replica_latencies


ENGINES = {"trtllm": "tensorrt-llm"}
"""Software of the rows → engine of llmcalc; others have its name."""

CHECKPOINTS = {"bf16": {}, "fp8": {"quantize": "fp8-dynamic"}}
"""Number format of a published checkpoint → flags that stand for it where the preset has another one."""


def full_server(row: Row) -> tuple[Replica, int]:
    """The server of a row whose requests arrive at once, and the requests that it holds, by its engine's own rule.

    Rows with a checkpoint were served with the engine's defaults, others are of `trtllm-bench throughput`.
    Raises `NotAsked` for rows without a number of requests, and for servers that cannot hold one.
    """
    if not row["requests"]:
        raise NotAsked("throughput of which pages do not say whether prompts count")
    software, _, number = row["stack"].partition("==")
    engine_name = ENGINES.get(software, software)
    record, version = engine_and_version(f"{engine_name}=={number}" if row["checkpoint"] else engine_name)
    preset = preset_of(row["model"])
    length = row.whole("input") + row.whole("output")
    assert record.layout_flags is not None
    flags = dict(record.layout_flags(*(row.whole(size) for size in ("tp", "pp", "dp", "ep"))))
    if row["checkpoint"]:
        return _default_server(row, record, version, flags)
    flags[record.flags_by_option["--seq"].lstrip("-")] = length
    if preset.checkpoint is None and row["precision"] in SCHEMES and "oss" not in row["model"]:
        flags["quantize"] = SCHEMES[row["precision"]]
    if row["kv_bits"] == "8":
        flags |= cache_format_flag(record, "fp8")
    flags |= bench_settings(row)
    memory = record.memory_on(preset, row.hardware, version, flags)
    requests_in_cache = min(
        int(memory.kv_tokens // length), int(flags["max_batch_size"]) * row.whole("pp")
    ) * row.whole("dp")
    if requests_in_cache < 1:
        raise NotAsked("throughput of servers whose cache holds no request")
    graphs = tuple(size for size in BENCH_GRAPHS if size <= int(flags["max_batch_size"]))
    return replace(replica_of(row), step_tokens=int(flags["max_num_tokens"]), graph_batches=graphs), requests_in_cache


def _default_server(row: Row, record: Engine, version: EngineVersion, flags: dict[str, Any]) -> tuple[Replica, int]:
    """The server of an engine's defaults, with the flags that a row states."""
    preset = preset_of(row["model"])
    if preset.checkpoint is None:
        flags |= CHECKPOINTS[row["checkpoint"]]
    if row["model_len"]:
        flags[record.flags_by_option["--seq"].lstrip("-").replace("-", "_")] = row.whole("model_len")
    if row["step_tokens"]:
        flags[record.batch_tokens_flag] = row.whole("step_tokens")
    memory = record.memory_on(preset, row.hardware, version, flags)
    length = row.whole("input") + row.whole("output")
    at_once = int(memory.settings.get(record.request_limit_flag) or memory.kv_tokens // length)
    requests_in_cache = min(min(int(memory.kv_tokens // length), at_once) * row.whole("dp"), row.whole("batch"))
    if requests_in_cache < 1:
        raise NotAsked("throughput of servers whose cache holds no request")
    return replace(replica_of(row), step_tokens=memory.settings.get(record.batch_tokens_flag)), requests_in_cache


def bench_settings(row: Row) -> dict[str, int]:
    """The settings that `trtllm-bench` chooses where the command has none: requests and tokens of a step.

    It rounds up its own estimate of the cache (tensorrt_llm/bench/build/tuning.py); prompts are not cut. Before 0.15 it
    reads them from a table of models (benchmark_config.yml), of which a row has its figures.
    """
    if row["sequences"]:
        return {"max_batch_size": row.whole("sequences"), "max_num_tokens": row.whole("step_tokens")}
    ranks, pp, input_tokens, output = (
        row.whole("tp") * row.whole("dp"),
        row.whole("pp"),
        row.whole("input"),
        row.whole("output"),
    )
    elements = 0
    for layer, count in _layers(row["model"]):
        mixer = layer.attention
        head_dim = mixer.head_dim or spec_of(row["model"]).hidden_size // mixer.num_attention_heads
        elements += 2 * count * max(ranks, mixer.num_key_value_heads) * head_dim
    token_bytes = elements * float(row["kv_bits"]) / 8
    weights = params_of(row["model"])["total"] * {"fp8": 1.0, "fp4": 0.5}[row["precision"]]
    cache = (row.hardware.memory_bytes * ranks * pp - weights) * CACHE_SHARE
    sequences = min(cache / token_bytes / (input_tokens + output), 4096) / pp
    tokens = min(sequences * (1 + input_tokens / output), 32768)
    step = 32 if sequences < 256 else 128 if sequences < 1024 else 256
    batch = max(64, step * ceil(sequences / step))
    step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    step_tokens = max(2048, step * ceil(tokens / step), input_tokens + batch)
    return {"max_batch_size": batch, "max_num_tokens": step_tokens}


def _layers(model: str) -> Iterator[tuple[Any, int]]:
    for _, stack in spec_of(model).stacks():
        for _, layer, count, _ in stack.layer_groups():
            yield layer, count


BENCH_GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""Batches of captured graphs, to which smaller ones are padded, in the pages' `cuda_graph_config`."""

CACHE_SHARE = 0.9
"""Share of free memory that `trtllm-bench` gives to the cache by default."""


def full_seconds(row: Row) -> float:
    """Seconds of an output token where all requests of a benchmark arrive at once and fill the server in waves."""
    replica, requests_in_cache = full_server(row)
    waves, last = divmod(row.whole("requests"), requests_in_cache)
    seconds = waves * replica.latencies(requests_in_cache).end_to_end_seconds if waves else 0.0
    seconds += replica.latencies(last).end_to_end_seconds if last else 0.0
    return seconds / row.whole("requests") / row.whole("output")


def _inference_seconds(row: Row, factors: CalibrationFactors) -> float:
    if row["drafts"]:
        raise NotAsked("tokens of servers that draft, whose acceptance no source states")
    measure, replica = row["measure"], replica_of(row, factors)
    if measure == "throughput":
        return full_seconds(row)
    layout, formats, spec, device, stack = (
        replica.layout, replica.number_formats, replica.spec, replica.device, replica.stack
    )  # fmt: skip
    if row.set in WIDE_PASSES and not (row.set == "llamacpp_r9700" and "/vulkan" in row.id):
        stack = stack.model_copy(update={"prompt_batch_tokens": 2048})
    input_tokens, output, load = replica.requests.input_tokens, replica.requests.output_tokens, row.whole("batch")
    batch = max(1, load // layout.dp)
    if measure == "output_rate":
        return 1 / load_as_arrived(row, factors).output_tokens_per_second
    if row.is_loaded and input_tokens:
        served = load_as_arrived(row, factors)
        waited_steps = row.whole("batch_wait", 0)  # steps that TensorRT-LLM waits for further prompts
        ttft = served.ttft + waited_steps * served.tpot
        return {"tpot": served.tpot, "ttft": ttft, "end_to_end": served.end_to_end_seconds}[measure]

    def prompt(sequences: int, context: int = 0, server: bool = False) -> float:
        seconds = prefill(spec, device, stack, sequences, input_tokens, context, None, layout, formats, server).seconds
        return float(seconds)

    if measure == "ttft":
        return prompt(1, server=True)
    if measure == "prompt":
        return prompt(batch, context=output if row.stack.name.startswith("llamacpp") and batch == 1 else 0)
    token = float(decode(spec, device, stack, batch, input_tokens + output // 2, layout, formats).seconds)
    return prompt(batch) + output * token if measure == "end_to_end" else token


def naive(row: Row) -> float:
    """The rules of thumb: 6ND, and 2ND of prompts and tokens/s, at 45 % of the peak; of a token active weights over the
    memory bandwidth of all devices.
    """
    hardware, devices = row.hardware, row.whole("devices")
    peaks = hardware.peak_flops
    peak = peaks.get("bfloat16", peaks.get("float16", 1))
    if row["precision"] in ("fp8", "mxfp8", "nvfp4", "fp4"):
        peak = peaks.get("float8", peak)
    used = params_of(row["model"])["active"]
    if row.trains:
        tokens = float(row["micro_batch"]) * row.whole("micro_batches") * row.whole("dp") * row.whole("seq")
        factor = 4 if row["lora"] else 6  # frozen weights have no gradient
        return factor * used * tokens / (peak * devices * NAIVE_MFU)
    batch, input_tokens, output = row.whole("batch"), row.whole("input", 0), row.whole("output", 0)
    prompt = 2 * used * batch * input_tokens / (peak * devices * NAIVE_MFU)
    token = used * float(row["weight_bits"]) / 8 / (hardware.bandwidth() * devices)
    if row["measure"] in ("prompt", "ttft"):
        return prompt
    if row["measure"] in ("throughput", "output_rate"):
        return 2 * used * (input_tokens + output) / output / (peak * devices * NAIVE_MFU)
    return prompt + output * token if row["measure"] == "end_to_end" else token
