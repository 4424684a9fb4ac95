"""The evidence for FSDP2 runs: comparisons with FSDPMemTracker and with torch's pipeline of wrapped stages."""

from __future__ import annotations

from collections.abc import Iterable

from ...evidence import LLAMA_PARTS, FrameworkEvidence, Witness, by_source
from ...parallel.layout import Layout


def _evidence_by_test(
    measurement: str, test: str, parts: Iterable[tuple[str, str]], optimizers: Iterable[str], source: str
) -> FrameworkEvidence:
    """Returns evidence for runs that a test compares with a measurement.

    source: torch's code, the evidence for other runs.
    """
    witness = Witness("exact", measurement, test)
    return FrameworkEvidence(
        name="fsdp2",
        witness=witness,
        parts=dict.fromkeys(parts, witness),
        optimizers=dict.fromkeys(optimizers, witness),
        rest=by_source(source, test),
    )


SHARDED = _evidence_by_test(
    "torch's FSDPMemTracker on a fake process group",
    "tests/frameworks/fsdp2/test_fsdp2.py",
    (
        *LLAMA_PARTS,
        ("part", "block_indexer"),
        ("part", "convolution"),
        ("part", "entry_indexer"),
        ("part", "identity_experts"),
        ("part", "indexer"),
        ("part", "latent"),
        ("part", "output_gate"),
        ("part", "per_layer_embedding"),
        ("part", "per_layer_gate"),
        ("part", "pooler"),
        ("part", "qk_norm"),
        ("part", "relative_bias"),
        ("part", "relative_embedding"),
        ("part", "side_convolution"),
        ("part", "token_types"),
        ("part", "transform"),
        ("streams", "altup"),
        ("streams", "hyper"),
        ("layer", "altup"),
        ("layer", "gated_norm"),
        ("layer", "hyper"),
        ("layer", "shortcut"),
        ("mixer", "cca"),
        ("mixer", "compressed"),
        ("mixer", "differential"),
        ("mixer", "dynamic_mask"),
        ("mixer", "local"),
        ("mixer", "merged"),
        ("mixer", "mixture_of_attention"),
        ("mixer", "mla"),
        ("mixer", "relative"),
        ("mixer", "short_conv"),
        ("network", "moe"),
        ("network", "product_key_moe"),
        ("network", "rwkv_channel_mix"),
        ("router", "linear"),
        ("router", "mlp"),
        ("router", "token_table"),
        ("norm", "affine"),
        ("norm", "layernorm"),
        ("position", "alibi"),
        ("position", "disentangled"),
        ("position", "learned"),
        ("position", "relative_bias"),
        ("position", "sinusoidal"),
        ("position", "transformer_xl"),
        ("head", "classification"),
    ),
    ("adamw", "sgd"),
    "torch/distributed/fsdp/_fully_shard",
)
"""Evidence for runs with sharded weights."""

PIPED = _evidence_by_test(
    "torch's PipelineStage under fully_shard on a fake process group",
    "tests/frameworks/fsdp2/test_fsdp2_pipeline.py",
    LLAMA_PARTS,
    ("adamw",),
    "torch/distributed/pipelining/stage.py and fsdp/_fully_shard",
)
"""Evidence for ranks of a pipeline."""

DIVIDED = _evidence_by_test(
    "torch's FSDPMemTracker on a fake process group",
    "tests/frameworks/fsdp2/test_two_dimensions.py",
    (*LLAMA_PARTS, ("part", "qk_norm")),
    ("adamw",),
    "torch/distributed/tensor and fsdp/_fully_shard",
)
"""Evidence for ranks of tensor parallelism."""


def evidence_for(layout: Layout, trains: bool) -> FrameworkEvidence:
    """Returns the tests and measurements behind the results for a layout."""
    if layout.pp > 1:
        return PIPED
    return DIVIDED if layout.tp > 1 else SHARDED
