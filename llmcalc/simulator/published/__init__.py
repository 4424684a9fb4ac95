"""Published library kernels, with the tensors that they save and the temporary tensors that they allocate.

A file for each library. `KERNELS` says where each kernel comes from and how its memory is known.

A library's file may be changed without reading the other libraries; a kernel's `known` says whether a test compares it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ...frozen import frozen

MemorySource = Literal["run on meta", "source", "untested"]
"""How the memory of a kernel is known.

run on meta: the library's own Python ran on PyTorch's meta device, with kernel launches that do nothing, and every
    allocation agrees.
source: it was read from C++ or CUDA code, and was not run.
untested: it was compared with nothing.
"""


@frozen
class PublishedLibrary:
    """A library whose kernels the simulator follows. commit: the version of its code."""

    name: str
    repository: str
    commit: str


@frozen
class PublishedKernel:
    """A published kernel with library, source file and verifying test.

    name: the kernel's name in the library. library: the library's name. source_location: file and class.
    memory_source: how its memory is known. note: what else a reader should know.
    """

    name: str
    library: str
    source_location: str
    memory_source: MemorySource
    note: str


LIBRARIES = {
    library.name: library
    for library in (
        PublishedLibrary("mamba_ssm", "state-spaces/mamba", "e9594ce1c732d97440f0332fdc43170a2294dbfa"),
        PublishedLibrary("causal_conv1d", "Dao-AILab/causal-conv1d", "0d2252d161f25f7907bbd05985c08ab98d255874"),
        PublishedLibrary("fla", "fla-org/flash-linear-attention", "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89"),
        PublishedLibrary("mlstm_kernels", "NX-AI/mlstm_kernels", "39d3c61741e5d2c0e6ab8922106dd236632c5139"),
        PublishedLibrary(
            "lightning_attn", "OpenNLPLab/lightning-attention", "d15c38529bbd5c2c82b44ddda3cac885825aa873"
        ),
        PublishedLibrary("jetai", "NVlabs/Jet-Nemotron", "94cbd12404637950722a09f70c8649ff1b1f2793"),
        PublishedLibrary("transformers", "huggingface/transformers", "5.23.0"),
    )
}

EXTENSIONS_REMARK = "its CUDA extensions: source"

RUN_ON_META: MemorySource = "run on meta"
SOURCE_CODE: MemorySource = "source"

_KERNELS_OF_LIBRARIES: Mapping[str, Sequence[tuple[str, str, MemorySource, str]]] = {
    "causal_conv1d": [
        ("causal_conv1d_fn", "causal_conv1d_interface.py, CausalConv1dFn", RUN_ON_META, EXTENSIONS_REMARK),
        (
            "causal_conv1d_cuda",
            "csrc/causal_conv1d.cpp",
            SOURCE_CODE,
            "copies a gradient that is stored in another order",
        ),
    ],
    "mamba_ssm": [
        ("selective_scan_fn", "ops/selective_scan_interface.py, SelectiveScanFn", RUN_ON_META, EXTENSIONS_REMARK),
        ("mamba_inner_fn", "ops/selective_scan_interface.py, MambaInnerFn", RUN_ON_META, EXTENSIONS_REMARK),
        ("selective_scan_cuda", "csrc/selective_scan/selective_scan.cpp", SOURCE_CODE, ""),
        ("mamba_chunk_scan_combined", "ops/triton/ssd_combined.py, MambaChunkScanCombinedFn", RUN_ON_META, ""),
        (
            "mamba_split_conv1d_scan_combined",
            "ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn",
            RUN_ON_META,
            EXTENSIONS_REMARK,
        ),
        ("rmsnorm_fn", "ops/triton/layernorm_gated.py, LayerNormFn", RUN_ON_META, ""),
    ],
    "fla": [
        ("chunk_gated_delta_rule", "ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction", RUN_ON_META, ""),
        ("chunk_kda", "ops/kda/chunk.py, ChunkKDAFunction", RUN_ON_META, ""),
        (
            "fused_recurrent_gated_delta_rule",
            "ops/gated_delta_rule/fused_recurrent.py",
            SOURCE_CODE,
            "for prompts of up to 64 tokens; that of Kimi delta attention holds the same",
        ),
        ("chunk_delta_rule", "ops/delta_rule/chunk.py, ChunkDeltaRuleFunction", RUN_ON_META, ""),
        (
            "fused_recurrent_delta_rule",
            "ops/delta_rule/fused_recurrent.py, FusedRecurrentFunction",
            RUN_ON_META,
            "for sequences of up to 64 tokens",
        ),
        ("chunk_retention", "ops/simple_gla/chunk.py, ChunkSimpleGLAFunction", RUN_ON_META, ""),
        ("chunk_gla", "ops/gla/chunk.py, ChunkGLAFunction", RUN_ON_META, ""),
        (
            "fused_recurrent_decay",
            "ops/common/fused_recurrent.py, FusedRecurrentFunction",
            RUN_ON_META,
            "for sequences of up to 64 tokens",
        ),
        ("rotary_embedding (fla)", "modules/rotary.py, RotaryEmbeddingFunction", RUN_ON_META, ""),
        ("causal_conv1d (fla)", "modules/conv/triton/ops.py, CausalConv1dFunction", RUN_ON_META, ""),
        ("rms_norm_gated", "modules/fused_norm_gate.py, LayerNormGatedFunction", RUN_ON_META, ""),
        ("rms_norm_linear", "modules/layernorm.py, LayerNormLinearFunction", RUN_ON_META, ""),
        ("rms_norm (fla)", "modules/layernorm.py, LayerNormFunction", RUN_ON_META, ""),
        ("layer_norm_gated", "modules/fused_norm_gate.py, LayerNormGatedFunction", RUN_ON_META, ""),
    ],
    "mlstm_kernels": [
        (
            "mlstm_chunkwise__xl_chunk",
            "torch/chunkwise/triton_xl_chunk",
            RUN_ON_META,
            "what torch.compile fuses is counted by its results",
        ),
        (
            "mlstm_recurrent_step__triton",
            "torch/recurrent/triton_step.py",
            SOURCE_CODE,
            "for the tokens of a prompt that fill no chunk",
        ),
    ],
    "lightning_attn": [("lightning_attn_func", "ops/triton/lightning_attn2.py, LightningAttention2", RUN_ON_META, "")],
    "jetai": [
        (
            "dynamic_conv_triton_autograd",
            "jetai/modeling/hf/dconv_fwdbwd.py, DynamicConvTritonFunc",
            RUN_ON_META,
            "in training; prompts and tokens are not modelled",
        )
    ],
    "transformers": [("RwkvLinearAttention", "models/rwkv/modeling_rwkv.py", RUN_ON_META, "")],
}
"""Library → (name, file and class, source of its memory, remark for readers) of each kernel."""

KERNELS = [
    PublishedKernel(name, library, path, evidence, remark)
    for library, rows in _KERNELS_OF_LIBRARIES.items()
    for name, path, evidence, remark in rows
]
"""All published kernels that a profile runs."""
