"""Published library kernels, with the tensors that they save and the temporary tensors that they allocate.

A file for each library. `KERNELS` says where each kernel comes from and how its memory is known.

A library's file may be changed without reading the other libraries; a kernel's `known` says whether a test compares it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ...frozen import frozen

Known = Literal["run on meta", "source", "untested"]
"""How the memory of a kernel is known.

run on meta: the library's own Python ran on PyTorch's meta device, with kernel launches that do nothing, and every
    allocation agrees.
source: it was read from C++ or CUDA code, and was not run.
untested: it was compared with nothing.
"""


@frozen
class PublishedLibrary:
    """A published library. commit: the version whose code llmcalc follows."""

    name: str
    repository: str
    commit: str


@frozen
class PublishedKernel:
    """A published kernel with library, source file and verifying test.

    name: its name in the library. library: the name of the library. source_location: its file and class.
    memory_source: how its memory is known. note: what else a reader should know.
    """

    name: str
    library: str
    source_location: str
    memory_source: Known
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

EXTENSIONS = "its CUDA extensions: source"

RUN: Known = "run on meta"
SOURCE: Known = "source"

_KERNELS_OF_LIBRARIES: Mapping[str, Sequence[tuple[str, str, Known, str]]] = {
    "causal_conv1d": [
        ("causal_conv1d_fn", "causal_conv1d_interface.py, CausalConv1dFn", RUN, EXTENSIONS),
        ("causal_conv1d_cuda", "csrc/causal_conv1d.cpp", SOURCE, "copies a gradient that is stored in another order"),
    ],
    "mamba_ssm": [
        ("selective_scan_fn", "ops/selective_scan_interface.py, SelectiveScanFn", RUN, EXTENSIONS),
        ("mamba_inner_fn", "ops/selective_scan_interface.py, MambaInnerFn", RUN, EXTENSIONS),
        ("selective_scan_cuda", "csrc/selective_scan/selective_scan.cpp", SOURCE, ""),
        ("mamba_chunk_scan_combined", "ops/triton/ssd_combined.py, MambaChunkScanCombinedFn", RUN, ""),
        (
            "mamba_split_conv1d_scan_combined",
            "ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn",
            RUN,
            EXTENSIONS,
        ),
        ("rmsnorm_fn", "ops/triton/layernorm_gated.py, LayerNormFn", RUN, ""),
    ],
    "fla": [
        ("chunk_gated_delta_rule", "ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction", RUN, ""),
        ("chunk_kda", "ops/kda/chunk.py, ChunkKDAFunction", RUN, ""),
        (
            "fused_recurrent_gated_delta_rule",
            "ops/gated_delta_rule/fused_recurrent.py",
            SOURCE,
            "for prompts of up to 64 tokens; that of Kimi delta attention holds the same",
        ),
        ("chunk_delta_rule", "ops/delta_rule/chunk.py, ChunkDeltaRuleFunction", RUN, ""),
        (
            "fused_recurrent_delta_rule",
            "ops/delta_rule/fused_recurrent.py, FusedRecurrentFunction",
            RUN,
            "for sequences of up to 64 tokens",
        ),
        ("chunk_retention", "ops/simple_gla/chunk.py, ChunkSimpleGLAFunction", RUN, ""),
        ("chunk_gla", "ops/gla/chunk.py, ChunkGLAFunction", RUN, ""),
        (
            "fused_recurrent_decay",
            "ops/common/fused_recurrent.py, FusedRecurrentFunction",
            RUN,
            "for sequences of up to 64 tokens",
        ),
        ("rotary_embedding (fla)", "modules/rotary.py, RotaryEmbeddingFunction", RUN, ""),
        ("causal_conv1d (fla)", "modules/conv/triton/ops.py, CausalConv1dFunction", RUN, ""),
        ("rms_norm_gated", "modules/fused_norm_gate.py, LayerNormGatedFunction", RUN, ""),
        ("rms_norm_linear", "modules/layernorm.py, LayerNormLinearFunction", RUN, ""),
        ("rms_norm (fla)", "modules/layernorm.py, LayerNormFunction", RUN, ""),
        ("layer_norm_gated", "modules/fused_norm_gate.py, LayerNormGatedFunction", RUN, ""),
    ],
    "mlstm_kernels": [
        (
            "mlstm_chunkwise__xl_chunk",
            "torch/chunkwise/triton_xl_chunk",
            RUN,
            "what torch.compile fuses is counted by its results",
        ),
        (
            "mlstm_recurrent_step__triton",
            "torch/recurrent/triton_step.py",
            SOURCE,
            "for the tokens of a prompt that fill no chunk",
        ),
    ],
    "lightning_attn": [("lightning_attn_func", "ops/triton/lightning_attn2.py, LightningAttention2", RUN, "")],
    "jetai": [
        (
            "dynamic_conv_triton_autograd",
            "jetai/modeling/hf/dconv_fwdbwd.py, DynamicConvTritonFunc",
            RUN,
            "in training; prompts and tokens are not modelled",
        )
    ],
    "transformers": [("RwkvLinearAttention", "models/rwkv/modeling_rwkv.py", RUN, "")],
}
"""Library → (name, file and class, how its memory is known, what else a reader should know) of each kernel."""

KERNELS = [
    PublishedKernel(name, library, path, evidence, remark)
    for library, rows in _KERNELS_OF_LIBRARIES.items()
    for name, path, evidence, remark in rows
]
"""Every published kernel that a profile runs."""
