"""Published kernels of libraries: the tensors that the kernels save, and their temporary tensors.

A file for each library. `KERNELS` says where each kernel comes from and how its memory is known.

A library's file may be changed without reading the other libraries; a kernel's `known` says whether a test compares it.
"""

from __future__ import annotations

from typing import Literal

from ...frozen import frozen

Known = Literal["run on meta", "source", "untested"]
"""How the memory of a kernel is known.

run on meta: the library's own Python ran on PyTorch's meta device, with kernel launches that do nothing, and every
    allocation agrees.
source: it was read from C++ or CUDA code, and was not run.
untested: it was compared with nothing: the default of a kernel that states no other.
"""


@frozen
class Library:
    """A published library. commit: the version whose code llmcalc follows."""

    name: str
    repository: str
    commit: str


@frozen
class Kernel:
    """A published kernel with its library, its source file and the test that verifies it.

    name: its name in the library. library: the name of the library. where: its file and class.
    known: how its memory is known. note: what else a reader should know.
    """

    name: str
    library: str
    where: str
    known: Known = "untested"
    note: str = ""


LIBRARIES = {
    library.name: library
    for library in (
        Library("mamba_ssm", "state-spaces/mamba", "e9594ce1c732d97440f0332fdc43170a2294dbfa"),
        Library("causal_conv1d", "Dao-AILab/causal-conv1d", "0d2252d161f25f7907bbd05985c08ab98d255874"),
        Library("fla", "fla-org/flash-linear-attention", "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89"),
        Library("mlstm_kernels", "NX-AI/mlstm_kernels", "39d3c61741e5d2c0e6ab8922106dd236632c5139"),
        Library("lightning_attn", "OpenNLPLab/lightning-attention", "d15c38529bbd5c2c82b44ddda3cac885825aa873"),
        Library("transformers", "huggingface/transformers", "5.23.0"),
    )
}

EXTENSIONS = "its CUDA extensions: source"

KERNELS = (
    Kernel(
        "causal_conv1d_fn",
        "causal_conv1d",
        "causal_conv1d_interface.py, CausalConv1dFn",
        "run on meta",
        note=EXTENSIONS,
    ),
    Kernel(
        "causal_conv1d_cuda",
        "causal_conv1d",
        "csrc/causal_conv1d.cpp",
        "source",
        "copies a gradient that is stored in another order",
    ),
    Kernel(
        "selective_scan_fn",
        "mamba_ssm",
        "ops/selective_scan_interface.py, SelectiveScanFn",
        "run on meta",
        note=EXTENSIONS,
    ),
    Kernel(
        "mamba_inner_fn", "mamba_ssm", "ops/selective_scan_interface.py, MambaInnerFn", "run on meta", note=EXTENSIONS
    ),
    Kernel("selective_scan_cuda", "mamba_ssm", "csrc/selective_scan/selective_scan.cpp", "source"),
    Kernel(
        "mamba_chunk_scan_combined", "mamba_ssm", "ops/triton/ssd_combined.py, MambaChunkScanCombinedFn", "run on meta"
    ),
    Kernel(
        "mamba_split_conv1d_scan_combined",
        "mamba_ssm",
        "ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn",
        "run on meta",
        note=EXTENSIONS,
    ),
    Kernel("rmsnorm_fn", "mamba_ssm", "ops/triton/layernorm_gated.py, LayerNormFn", "run on meta"),
    Kernel(
        "chunk_gated_delta_rule", "fla", "ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction", "run on meta"
    ),
    Kernel("l2norm", "fla", "modules/l2norm.py, L2NormFunction", "run on meta"),
    Kernel("chunk_kda", "fla", "ops/kda/chunk.py, ChunkKDAFunction", "run on meta"),
    Kernel(
        "fused_recurrent_gated_delta_rule",
        "fla",
        "ops/gated_delta_rule/fused_recurrent.py",
        "source",
        "for prompts of up to 64 tokens; that of Kimi delta attention holds the same",
    ),
    Kernel("causal_conv1d (fla)", "fla", "modules/conv/triton/ops.py, CausalConv1dFunction", "run on meta"),
    Kernel("rms_norm_gated", "fla", "modules/fused_norm_gate.py, LayerNormGatedFunction", "run on meta"),
    Kernel("layer_norm_gated", "fla", "modules/fused_norm_gate.py, LayerNormGatedFunction", "run on meta"),
    Kernel(
        "mlstm_chunkwise__xl_chunk",
        "mlstm_kernels",
        "torch/chunkwise/triton_xl_chunk",
        "run on meta",
        note="what torch.compile fuses is counted by its results",
    ),
    Kernel(
        "mlstm_recurrent_step__triton",
        "mlstm_kernels",
        "torch/recurrent/triton_step.py",
        "source",
        "for the tokens of a prompt that fill no chunk",
    ),
    Kernel(
        "lightning_attn_func", "lightning_attn", "ops/triton/lightning_attn2.py, LightningAttention2", "run on meta"
    ),
    Kernel("RwkvLinearAttention", "transformers", "models/rwkv/modeling_rwkv.py", "run on meta"),
)
"""Every published kernel that a profile runs."""
