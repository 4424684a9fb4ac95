"""Published measurements of one device beside what llmcalc computes: the rows of tests/data/measured_training.json.

Each figure is compared with the quantity that its source reports. `python -m tests.device_memory.published` prints
every row with its error, or with the reason why it is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import llmcalc
from llmcalc.device_memory.cuda_runtime import WORKSPACE_BYTES, CudaRuntime
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.tensor import BFLOAT16
from llmcalc.workload.recompute import RECOMPUTE_MODES
from tests.device_memory.training_memory import training_memory

Row = Mapping[str, Any]

DATA = Path(__file__).parent.parent / "data"
FINE_TUNING = "finetune_peak_mem"
SERVERS = ("infer_kv_bytes", "infer_kv_bytes_per_token", "infer_mem_breakdown")

MIB, GIB, GB = 2**20, 2**30, 10**9

A100 = CudaRuntime(workspace_bytes=WORKSPACE_BYTES, gpu_name="A100")
A100_40GB = 40 * GIB


@dataclass(frozen=True)
class Outcome:
    """What a row measured and what was computed for it.

    low, high: the computed value, or the range that it states, in the row's unit. left_out: why nothing is compared;
    empty if something is. note: what the comparison rests on.
    """

    id: str
    measured: float | None = None
    low: float = 0.0
    high: float = 0.0
    left_out: str = ""
    note: str = ""

    @property
    def error(self) -> float:
        """The relative distance of the measured value from what was computed; 0 inside a range."""
        assert self.measured is not None
        if self.low <= self.measured <= self.high:
            return 0.0
        nearest = self.low if self.measured < self.low else self.high
        return nearest / self.measured - 1


def rows(*kinds: str) -> list[Row]:
    """The rows of these kinds."""
    return [row for row in _all() if row["kind"] in kinds]


@cache
def _all() -> list[Row]:
    found: list[Row] = json.loads((DATA / "measured_training.json").read_text())["rows"]
    return found


# Fine-tuning


def fine_tuning() -> list[Outcome]:
    """Every row of fine-tuning, with its error or the reason why it is left out."""
    return [_fine_tuned(row) for row in rows(FINE_TUNING)]


def _fine_tuned(row: Row) -> Outcome:
    source = row["id"].partition("/")[0]
    if row["n_gpus"] > 1:
        return Outcome(row["id"], left_out=_on_several(source, row))
    return {"litgpt": litgpt, "torchtune": torchtune, "qwen1_ft": qwen}[source](row)


def _on_several(source: str, row: Row) -> str:
    """Why a row of several devices is not compared here."""
    if source == "qwen1_ft":
        return "the script for it runs DeepSpeed: tests.frameworks.deepspeed.rows"
    if row["quant"] != "None":
        return "LitGPT refuses FSDP over quantized weights (finetune/lora.py), and the row has no figure"
    return "FSDP version 1, whose flat gradients hold those of frozen weights too, is not modelled with adapters"


LITGPT_MODELS = {
    "phi-1.5 1.3B": "phi-1.5",
    "StableLM Alpha 3B": str(DATA / "published" / "stablelm-alpha-3b.toml"),
    "Llama 2 7B": "llama2-7b",
    "Llama 2 13B": "llama2-13b",
}


def litgpt_run(row: Row) -> TrainingConfig:
    """LitGPT's LoRA at commit 8641822 with bitsandbytes 0.41.1 (tutorials/resource-tables.md states both).

    finetune/lora.py: queries and values, rank 8, dropout; the output head runs 128 tokens at a time, and the training
    loop names the logits, which Fabric has converted to float32 (`_FabricModule.forward`). The first batch has the
    longest sample, and the highest peak. With a quantised base every linear layer is, the output head included.
    LayerNorm is torch's kernel. RMSNorm runs step by step in float32 (lit_gpt/rmsnorm.py), and keeps its input there.
    """
    norm: Any = "eager" if "Llama" in row["model"] else "fused"
    quantised = {"None": "none", "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq"}[row["quant"]]
    return TrainingConfig(
        batch=row["micro_batch"],
        seq=row["seq_len"],
        kernel_choices=KernelChoices(
            attention="flash",
            norm=norm,
            cross_entropy="split",
            loss_chunk=128,
            keeps_logits=True,
            unfused_gelu=False,
            multiprocessors=132,
        ),
        adapters=Adapters(
            8,
            frozenset({"q_proj", "v_proj"}),
            dropout=True,
            dtype=BFLOAT16,
            base_storage=quantised,
            library="litgpt",
            quantized_head=True,
            bitsandbytes="0.41.1",
        ),
    )


def litgpt(row: Row) -> Outcome:
    """torch.cuda.max_memory_allocated() / 1e9; a row that ran out of memory has no figure, but a lower bound."""
    if row["method"] != "lora":
        return Outcome(row["id"], left_out="the layers of LLaMA-Adapter are not modelled")
    found = training_memory(spec(LITGPT_MODELS[row["model"]]), litgpt_run(row), A100)
    if row["measured"]["oom"]:
        return Outcome(
            row["id"], A100_40GB / GB, found.device_bytes / GB, found.device_bytes / GB, note="out of memory"
        )
    return Outcome(row["id"], row["measured"]["peak_gb"], found.peak_bytes / GB, found.peak_bytes / GB)


TORCHTUNE_TARGETS = frozenset({"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})


def torchtune_run(row: Row) -> TrainingConfig:
    """torchtune's flags, each on top of those before it (README.md, "Optimization flags", and its command).

    LoRA and QLoRA update after the backward pass, with torch's AdamW (recipes/configs/llama3_2/3B_qlora_single_device.
    yaml at commit 1814feb: rank 64, fused). QLoRA stores every linear layer of the layers in torchao's NF4, whose
    scales are quantised themselves; the tied embedding stays in bf16.
    """
    whole = TrainingConfig(
        batch=row["micro_batch"],
        seq=row["seq_len"],
        implementation="fused",
        kernel_choices=KernelChoices(
            attention="flash", compiled=True, cross_entropy="split", unfused_gelu=False, multiprocessors=132
        ),
    )
    if row["techniques"] == "+chunked CE":
        return whole
    assert row["techniques"] == "QLoRA", row["techniques"]
    adapters = Adapters(64, TORCHTUNE_TARGETS, dtype=BFLOAT16, base_storage="nf4-dq", library="torchtune")
    return replace(whole, recompute=RECOMPUTE_MODES["full"], offloads_activations=True, adapters=adapters)


def torchtune(row: Row) -> Outcome:
    """active_bytes.all.peak / 2**30: blocks in use."""
    found = training_memory(spec("llama3.2-3b"), torchtune_run(row), A100)
    peak = found.peak_bytes / GIB
    return Outcome(row["id"], row["measured"]["peak_active_gib"], peak, peak, note="torch.compile is an estimate")


QWEN_MODELS = {
    "Qwen-1.8B": str(DATA / "published" / "qwen-1.8b.toml"),
    "Qwen-7B": str(DATA / "published" / "qwen-7b.toml"),
    "Qwen-14B": "qwen-14b",
}
QWEN_TARGETS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
QWEN_LEFT_OUT = {
    "Q-LoRA": "the base is stored by GPTQ, whose products are not modelled",
    "Full-parameter": "the script for it runs DeepSpeed ZeRO-3: tests.frameworks.deepspeed.rows",
}


def qwen_run(row: Row) -> TrainingConfig:
    """Qwen's finetune.py with transformers' Trainer under autocast, on torch 2.0 (README.md, "Profiling of Memory").

    Rank 64 on all linear layers, dropout, checkpointed layers (reentrant, torch's default then). c_attn is one
    product. PEFT before 0.7, as today's, keeps adapters in float32 beside weights in bf16 (0.6.2, tuners/lora/layer.py,
    `update_layer`: the new layers have torch's default type). LoRA (emb) trains copies of `wte` and `lm_head`.
    """
    copies = frozenset({"embed_tokens", "lm_head"}) if row["method"] == "LoRA (emb)" else frozenset[str]()
    return TrainingConfig(
        batch=row["micro_batch"],
        seq=row["seq_len"],
        microbatches=min(2, row["grad_accum"]),  # from the second on all are alike
        recompute=RECOMPUTE_MODES["full-reentrant"],
        autocast=True,
        torch_version="2.0",
        kernel_choices=KernelChoices(attention="flash", fused_qkv=True, multiprocessors=132),
        adapters=Adapters(64, QWEN_TARGETS, dropout=True, copied_modules=copies),
    )


def qwen(row: Row) -> Outcome:
    """The source does not state the meter: between the allocator's blocks and all bytes of the device, in GB."""
    if row["method"] in QWEN_LEFT_OUT:
        return Outcome(row["id"], left_out=QWEN_LEFT_OUT[row["method"]])
    found = training_memory(spec(QWEN_MODELS[row["model"]]), qwen_run(row), A100)
    note = "from the allocator's blocks to all bytes of the device"
    return Outcome(
        row["id"], row["measured"]["total_mem_gb"], found.peak_bytes / GB, found.device_bytes / GB, note=note
    )


@cache
def spec(name: str) -> ModelSpec:
    """The model of a preset or of a description."""
    return llmcalc.load(name).model


# Servers


def servers() -> Iterator[Outcome]:
    """The caches and weights of servers."""
    for row in rows(*SERVERS):
        yield from (_weights(row) if row["kind"] == "infer_mem_breakdown" else _cache(row))


CACHED_MODELS = {
    "llmd/mistral-small-kv": "mistral-small-3.2-24b",
    "sglang#11309/ok": "deepseek-v3.2",
    "llama.cpp#11446": "deepseek-v3",
    "ik_llama#259": "deepseek-v3",
    "llama-cpp-python-jp#1": "qwen2.5-7b",
    "llama-cpp-python#66": "llama-30b",
    "gguf-parser#31": "lfm2-1.2b",
    "llama.cpp#4381": "mixtral-8x7b",
}


def _cache(row: Row) -> Iterator[Outcome]:
    """Keys and values, in the format and for the tokens that the row states; the states of convolutions are beside."""
    measured, name = row["measured"], CACHED_MODELS[row["id"]]
    stored = row.get("kv_dtype", "fp8_ds_mla")  # SGLang stores DeepSeek-V3.2 as FlashMLA reads it
    cache = llmcalc.kv(name, seq=measured.get("kv_tokens") or row["n_ctx"], dtype=stored)
    kept = sum(held.bytes for held in cache.groups if held.tokens is not None)
    if measured.get("kv_mib") is not None:
        yield Outcome(row["id"], measured["kv_mib"], kept / MIB, kept / MIB, note=stored)
    if measured.get("kv_cache_gib") is not None:
        yield Outcome(row["id"], measured["kv_cache_gib"], kept / GIB, kept / GIB, note=stored)
    if measured.get("kv_gb") is not None:
        yield Outcome(row["id"], measured["kv_gb"], kept / GIB, kept / GIB, note=f"{stored}, logged as GB")
    if measured.get("bytes_per_token") is not None:
        per_token = cache.bytes_per_token
        yield Outcome(f"{row['id']} per token", measured["bytes_per_token"], per_token, per_token, note=stored)
    if measured.get("k_mib") is not None:
        yield from _sides(row, name, stored)


def _sides(row: Row, name: str, stored: str) -> Iterator[Outcome]:
    """Keys and values apart. llama.cpp's absorbed MLA keeps rotary keys as K and latents as V."""
    (op,) = {place.node.op for place in spec(name).tree().walk() if type(place.node.op).__name__ == "KVCache"}
    layers, bits = spec(name).decoder.num_hidden_layers, {"f16": 16}[stored]  # type: ignore[union-attr]
    one, other = (heads * size * layers * row["n_ctx"] * bits // 8 / MIB for heads, size in op.vectors)
    keys, values = (other, one) if op.cache_kind == "latent_attention" else (one, other)
    yield Outcome(f"{row['id']} K", row["measured"]["k_mib"], keys, keys, note=stored)
    yield Outcome(f"{row['id']} V", row["measured"]["v_mib"], values, values, note=stored)


def _weights(row: Row) -> Iterator[Outcome]:
    """Weights per device as vLLM loads them: parameters and the table of RoPE; tensor parallelism divides them.

    Activations are left out: vLLM's profile run samples for 1,024 sequences, whose sort of all logits has the peak.
    """
    name = f"{row['id']} weights"
    if row["id"].startswith("vllm-gfx906"):
        yield Outcome(name, left_out="the row does not state which layers its AWQ checkpoint leaves in bf16")
        return
    low, high = VLLM_WEIGHTS[row["id"]]()
    devices = row["parallelism"]["tp"]
    yield Outcome(name, row["measured"]["weights_gib"], low / devices / GIB, high / devices / GIB)
    yield Outcome(f"{row['id']} activations", left_out="the sort of the dummy sampler's logits is not modelled")


def _plain(name: str, devices: int, head_dim: int, positions: int) -> tuple[float, float]:
    """bf16 weights, and on each device a table of cosines and sines (vllm rotary_embedding, `cos_sin_cache`)."""
    size = 2 * llmcalc.params(name).total + devices * 2 * head_dim * positions
    return size, size


def _fp8_dynamic(name: str) -> tuple[float, float]:
    """Linear layers in fp8 with an fp32 scale per output channel (llm-compressor's FP8-dynamic); the rest in bf16."""
    from llmcalc.ops import Linear

    size = 2 * llmcalc.params(name).total + 2 * 2 * 128 * 131_072
    for place in spec(name).tree().walk():
        op = place.node.op
        if isinstance(op, Linear) and place.node.name != "lm_head":
            size += place.copies * (4 * op.n_out - op.n_in * op.n_out)
    return size, size


def _gpt_oss() -> tuple[float, float]:
    """Experts in mxfp4 as stored, up to the padding of vLLM's Marlin layout, both sides of 2,880 to 3,072 and 2,944."""
    experts = 24 * 32 * 3 * 2880 * 2880
    stored = experts * 17 // 32  # 4 bits, and a byte per 32 of them
    size = 2 * (llmcalc.params("gpt-oss-20b").total - experts) + stored + 2 * 64 * 131_072
    return size, size + stored * (3072 * 2944 / 2880**2 - 1)


VLLM_WEIGHTS = {
    "llmd/gpt-oss-20b (MoE)/tp1": _gpt_oss,
    "llmd/Llama-3.3-70B-FP8/tp2": lambda: _fp8_dynamic("llama3.3-70b"),
    "llmd/Qwen3-0.6B/tp1": lambda: _plain("qwen3-0.6b", 1, 128, 40_960),
    "llmd/Qwen3-32B/tp2": lambda: _plain("qwen3-32b", 2, 128, 40_960),
    "vllm#10511/tp2": lambda: _plain("llama3-8b", 2, 128, 8_192),
}


def median_error(outcomes: list[Outcome]) -> float:
    """The median of the errors, without their signs, of the rows that are compared."""
    return median(abs(one.error) for one in outcomes if not one.left_out and one.note != "out of memory")


def main() -> None:
    """Prints every row."""
    for title, outcomes in (("fine-tuning", fine_tuning()), ("servers", list(servers()))):
        print(title)
        for one in outcomes:
            if one.left_out:
                print(f"  {one.id:48} left out: {one.left_out}")
            else:
                found = f"{one.low:.2f}" if one.low == one.high else f"{one.low:.2f} to {one.high:.2f}"
                error = f"{100 * one.error:+.1f} %"
                print(f"  {one.id:48} measured {one.measured:>10} computed {found:>16} {error} {one.note}")
        print(f"  median {100 * median_error(outcomes):.1f} %")


if __name__ == "__main__":
    main()
