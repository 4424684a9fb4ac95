"""The evidence for FSDP2 runs: comparisons with FSDPMemTracker and with torch's pipeline of wrapped stages."""

from __future__ import annotations

from collections.abc import Iterable

from ...evidence import LLAMA_PARTS, FrameworkEvidence, Witness, kind_and_name_pairs, source_code_witness
from ...parallel.layout import Layout


def _evidence_by_test(
    measurement: str,
    test_name: str,
    part_names: Iterable[tuple[str, str]],
    optimizer_names: Iterable[str],
    source_text: str,
) -> FrameworkEvidence:
    """Returns the evidence for runs that a test compares with a measurement.

    source_text: torch's code, the evidence for other runs.
    """
    witness = Witness("exact", measurement, test_name)
    return FrameworkEvidence(
        name="fsdp2",
        witness=witness,
        parts=dict.fromkeys(part_names, witness),
        optimizers=dict.fromkeys(optimizer_names, witness),
        other_witness=source_code_witness(source_text, test_name),
    )


SHARDED_EVIDENCE = _evidence_by_test(
    "torch's FSDPMemTracker on a fake process group",
    "tests/frameworks/fsdp2/test_fsdp2.py",
    (
        *LLAMA_PARTS,
        *kind_and_name_pairs(
            part="block_indexer compressed_kv_indexer contact_head convolution identity_experts indexer latent "
            "output_gate per_layer_embedding per_layer_gate pooler qk_norm relative_bias relative_embedding "
            "second_stream side_convolution token_types transform unused_embedding",
            streams="altup hyper",
            layer="altup gated_cross gated_norm hyper shortcut",
            mixer="cca compressed differential dynamic_mask local merged mixture_of_attention mla relative short_conv",
            network="moe product_key_moe rwkv_channel_mix",
            router="linear mlp token_table",
            norm="affine layernorm",
            position="alibi disentangled learned relative_bias sinusoidal transformer_xl",
            head="classification",
        ),
    ),
    ("adamw", "sgd"),
    "torch/distributed/fsdp/_fully_shard",
)
"""Evidence for runs with sharded weights."""

PIPELINE_EVIDENCE = _evidence_by_test(
    "torch's PipelineStage under fully_shard on a fake process group",
    "tests/frameworks/fsdp2/test_fsdp2_pipeline.py",
    LLAMA_PARTS,
    ("adamw",),
    "torch/distributed/pipelining/stage.py and fsdp/_fully_shard",
)
"""Evidence for ranks of a pipeline."""

TENSOR_PARALLEL_EVIDENCE = _evidence_by_test(
    "torch's FSDPMemTracker on a fake process group",
    "tests/frameworks/fsdp2/test_two_dimensions.py",
    (*LLAMA_PARTS, ("part", "qk_norm")),
    ("adamw",),
    "torch/distributed/tensor and fsdp/_fully_shard",
)
"""Evidence for ranks of tensor parallelism."""


def evidence_for(layout: Layout, is_training: bool) -> FrameworkEvidence:
    """Returns the evidence (tests and measurements) for results with this layout."""
    if layout.pp > 1:
        return PIPELINE_EVIDENCE
    return TENSOR_PARALLEL_EVIDENCE if layout.tp > 1 else SHARDED_EVIDENCE
