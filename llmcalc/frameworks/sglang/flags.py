"""The flags of `sglang.launch_server`: flags that change memory, and other flags.

They are those of python/sglang/srt/server_args.py, `ServerArgs.add_cli_args`, in SGLang 0.4.9, 0.5.5 and 0.5.10;
`newer_flags.py` has those of later versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, short_repr
from ..engines.flags import Flag, memory_neutral_flags, memory_neutral_flags_of_engine, refused_flags
from .newer_flags import NEWER_FLAGS

SCHEME_BY_QUANTIZATION = {"fp8": "fp8-dynamic", "awq": "awq-int4-g128", "gptq": "gptq-int4-g128", "mxfp4": "mxfp4"}
"""Value of `--quantization` → weight scheme, for a checkpoint that states no scheme."""

QUANTIZATION_WORDS = (
    *SCHEME_BY_QUANTIZATION, "awq_marlin", "gptq_marlin", "marlin", "bitsandbytes", "gguf", "modelopt", "modelopt_fp8",
    "modelopt_fp4", "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "qoq", "w4afp8", "compressed-tensors",
    "auto-round", "quark",
    "nvfp4", "mxfp8", "none",
)  # fmt: skip

GRAPH_CONFIG = "--cuda-graph-config"
"""Flag whose JSON value configures CUDA graphs, `{"decode": {"max_bs": 8}, "prefill": {"backend": "disabled"}}`."""

GRAPH_SETTINGS = {
    ("decode", "backend"): "--cuda-graph-backend-decode", ("decode", "max_bs"): "--cuda-graph-max-bs",
    ("decode", "bs"): "--cuda-graph-bs", ("prefill", "backend"): "--cuda-graph-backend-prefill",
    ("prefill", "max_bs"): "--piecewise-cuda-graph-max-tokens", ("prefill", "bs"): "--piecewise-cuda-graph-tokens",
}  # fmt: skip
"""Phase and key in the value of `GRAPH_CONFIG` → the flag for the same setting."""

NEUTRAL_GRAPH_SETTINGS = (("prefill", "tc_compiler"),)
"""Phases and keys in the value of `GRAPH_CONFIG` that do not change memory: the compiler of piecewise prompt graphs."""

GRAPH_BACKENDS = ("full", "breakable", "tc_piecewise", "disabled")
"""Methods by which CUDA graphs are captured."""

EXPERT_EXCHANGES = ("deepep", "mooncake", "nixl", "mori")
"""Libraries that send tokens to experts and divide the experts over all tensor-parallel ranks."""

FLAGS = (
    Flag(("--tp-size", "--tp", "--tensor-parallel-size"), "number", maximum=1024),
    Flag(("--pp-size", "--pp", "--pipeline-parallel-size"), "number", maximum=1024),
    Flag(("--dp-size", "--dp", "--data-parallel-size"), "number", maximum=1024),
    Flag(("--ep-size", "--ep", "--expert-parallel-size"), "number", maximum=1024),
    Flag(("--enable-dp-attention",), "switch"),
    Flag(("--enable-dp-lm-head",), "switch"),
    Flag(("--mem-fraction-static",), "share"),
    Flag(("--context-length",), "tokens"),
    Flag(("SGLANG_PP_LAYER_PARTITION",), "text"),
    Flag(("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",), "word", ("0", "1", "false", "true")),
    Flag(("--max-total-tokens",), "tokens"),
    Flag(("--max-running-requests",), "number"),
    Flag(("--chunked-prefill-size",), "tokens", ("-1",)),
    Flag(("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"), "number"),
    Flag(("--cuda-graph-bs", "--cuda-graph-bs-decode"), "numbers"),
    Flag(("--disable-cuda-graph", "--disable-decode-cuda-graph"), "switch"),
    Flag(("--cuda-graph-backend-decode",), "word", GRAPH_BACKENDS),
    Flag(("--cuda-graph-backend-prefill",), "word", GRAPH_BACKENDS),
    Flag((GRAPH_CONFIG,), "table"),
    Flag(("--kv-cache-dtype",), "word", ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2")),
    Flag(("--dtype",), "word", ("auto", "bfloat16", "half", "float16", "float", "float32")),
    Flag(("--page-size",), "number", maximum=4096),
    Flag(("--swa-full-tokens-ratio",), "share"),
    Flag(("--mamba-full-memory-ratio",), "ratio"),
    Flag(("--max-mamba-cache-size",), "number"),
    Flag(("--mamba-ssm-dtype",), "word", ("float32", "bfloat16", "float16")),
    Flag(
        ("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy"),
        "word",
        ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
    ),
    Flag(("--disable-radix-cache",), "switch"),
    Flag(("--disable-overlap-schedule",), "switch"),
    Flag(("--attention-backend",)),
    Flag(("--nsa-prefill-backend", "--dsa-prefill-backend")),
    Flag(("--nsa-decode-backend", "--dsa-decode-backend")),
    Flag(("--disable-hybrid-swa-memory",), "switch"),
    Flag(("--quantization",), "word", QUANTIZATION_WORDS),
    Flag(("--device",), "word", ("auto", "cuda"), is_memory_neutral=True),
    Flag(("--disaggregation-mode",), "word", ("null", "prefill", "decode")),
    Flag(("--moe-a2a-backend",), "word", ("none", *EXPERT_EXCHANGES)),
    Flag(("--moe-runner-backend",)),
    Flag(
        ("--speculative-algorithm", "--speculative-algo"),
        "word",
        ("eagle", "eagle3", "nextn", "standalone", "ngram", "dflash", "dspark"),
    ),
    Flag(("--speculative-draft-model-path", "--speculative-draft-model", "--speculative-draft")),
    Flag(("--speculative-num-steps",), "number", maximum=1000),
    Flag(("--speculative-num-draft-tokens",), "number", maximum=1000),
    Flag(("--speculative-dflash-block-size",), "number", maximum=1000),
    Flag(("--speculative-dspark-block-size",), "number", maximum=1000),
    *memory_neutral_flags(
        """
        --speculative-eagle-topk --speculative-attention-mode --speculative-draft-attention-backend
        --speculative-draft-load-format --speculative-draft-model-quantization --speculative-ngram-capacity
        --speculative-ngram-branch-length --speculative-ngram-match-type --speculative-ngram-max-bfs-breadth
        --speculative-ngram-max-match-window-size --speculative-ngram-max-trie-depth
        --speculative-ngram-min-bfs-breadth --speculative-ngram-min-match-window-size
        --speculative-draft-model-revision --speculative-token-map --speculative-moe-runner-backend
        --speculative-moe-a2a-backend --speculative-accept-threshold-single --speculative-accept-threshold-acc
        """
    ),
    Flag(("--enable-lora",), "switch"),
    Flag(("--lora-paths",), "list"),
    Flag(("--lora-target-modules",), "list"),
    Flag(("--max-lora-rank",), "number", maximum=10**4),
    Flag(("--max-loras-per-batch",), "number", maximum=10**4),
    Flag(("--max-loaded-loras",), "number", is_memory_neutral=True),
    Flag(("--kt-weight-path", "--kt-amx-weight-path")),
    Flag(("--kt-num-gpu-experts",), "number", minimum=0, maximum=10**6),
    Flag(("--kt-gpu-experts-ratio",), "share"),
    Flag(("--kt-gpu-prefill-token-threshold",), "tokens", minimum=0),
    *memory_neutral_flags(
        """
        --kt-method --kt-amx-method --kt-cpuinfer --kt-threadpool-count --kt-max-deferred-experts-per-token
        --kt-expert-placement-strategy
        """
    ),
    Flag(("--kt-numa-nodes",), "list", is_memory_neutral=True),
    Flag(("--kt-enable-dynamic-expert-update",), "switch", is_memory_neutral=True),
    *refused_flags("adapters of experts", "--kt-expert-lora-path"),
    *refused_flags(
        "offloading",
        """
        --cpu-offload-gb --offload-group-size --offload-num-in-group --offload-prefetch-step --offload-mode
        """,
    ),
    Flag(("--ep-num-redundant-experts",), "number", minimum=0, maximum=10**5),
    Flag(("--enable-eplb",), "switch", is_memory_neutral=True),  # experts are exchanged in place
    *refused_flags("the load balancing of experts", switch_names="--enable-elastic-expert-backup"),
    Flag(("--enable-ep-moe",), "switch"),
    Flag(("--enable-deepep-moe",), "switch"),
    # two halves of a batch run beside each other; the cache is sized before any runs (`_profile_available_bytes`)
    Flag(("--enable-two-batch-overlap",), "switch", is_memory_neutral=True),
    *refused_flags("dual batches", switch_names="--enable-pdmux"),
    *refused_flags(
        "context parallelism",
        "--attention-context-parallel-size --attn-cp-size",
        switch_names="--enable-nsa-prefill-context-parallel --enable-prefill-context-parallel",
    ),
    Flag(("--moe-dense-tp-size",), "number", maximum=1),
    *refused_flags("another division of the layers", "--moe-data-parallel-size --moe-dp-size"),
    *refused_flags(
        "sparse attention",
        """
        --ds-channel-config-path --ds-heavy-channel-num --ds-heavy-channel-type --ds-heavy-token-num
        --ds-sparse-decode-threshold --hierarchical-sparse-attention-extra-config --hisparse-config
        """,
        switch_names="--enable-double-sparsity --enable-hisparse",
    ),
    *refused_flags("an online scheme", "--torchao-config --modelopt-quant", switch_names="--quantize-and-serve"),
    *refused_flags("a size of states", "--int8-mamba-ckpt-size"),
    *refused_flags("a pool of that ratio", "--hybrid-kvcache-ratio --num-reserved-decode-tokens"),
    Flag(("--is-embedding",), "switch"),  # the class that generates ends with a pooler (models/qwen3.py)
    *refused_flags(
        "such a model",
        "--dllm-algorithm",
        switch_names="""
        --encoder-only --language-only --enable-multi-layer-eagle
        --enable-draft-weights-cpu-backup --mm-enable-dp-encoder
        """,
    ),
    Flag(("--piecewise-cuda-graph-max-tokens", "--cuda-graph-max-bs-prefill"), "number"),
    Flag(("--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph"), "switch"),
    Flag(("--piecewise-cuda-graph-tokens", "--cuda-graph-bs-prefill"), "numbers"),
    *memory_neutral_flags("--enable-piecewise-cuda-graph --enable-memory-saver", "switch"),
    Flag(("--enable-torch-compile",), "switch"),
    Flag(("--enable-hierarchical-cache",), "switch"),
    Flag(("--enable-deterministic-inference",), "switch"),
    Flag(("--enable-symm-mem",), "switch"),
    Flag(("--json-model-override-args",), "table"),
    *memory_neutral_flags_of_engine(__file__),
    *NEWER_FLAGS,
)


def graph_config_flags(graph_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns field name → value of the settings in `--cuda-graph-config`, which override separate flags.

    Raises `InputError` for other phases and keys.
    """
    flags_by_name = {flag_name: flag for flag in FLAGS for flag_name in flag.names}
    phases = {phase for phase, _ in GRAPH_SETTINGS}
    flag_values: dict[str, Any] = {}
    for phase, settings in graph_config.items():
        if settings is None and phase in phases:
            continue
        for setting_key, setting_value in (settings if isinstance(settings, Mapping) else {"": settings}).items():
            flag_name = GRAPH_SETTINGS.get((phase, setting_key))
            if flag_name is not None and setting_value is not None:
                graph_flag = flags_by_name[flag_name]
                typed_flag = graph_flag._replace(names=(f"{GRAPH_CONFIG}: {phase}.{setting_key}",))
                flag_values[graph_flag.field_name] = typed_flag.read_value(setting_value)
            elif flag_name is None and (phase, setting_key) not in NEUTRAL_GRAPH_SETTINGS:
                raise InputError(
                    f"{GRAPH_CONFIG}: {short_repr('.'.join(filter(None, (str(phase), str(setting_key)))))} "
                    "is not modelled; "
                    f"expected {', '.join('.'.join(setting_path) for setting_path in GRAPH_SETTINGS)}"
                )
    return flag_values


def flags() -> tuple[Flag, ...]:
    """Returns all command-line flags of SGLang."""
    return FLAGS
