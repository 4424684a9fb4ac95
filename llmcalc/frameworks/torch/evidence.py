"""Evidence for runs on several devices with torch alone: pipelines, DDP and tensor parallelism."""

from __future__ import annotations

from ...evidence import LLAMA_PARTS, FrameworkEvidence, Witness, source_code_witness
from ...parallel.layout import Layout

DTENSOR_WITNESS = Witness(
    "exact", "torch's DTensor on a fake process group", "tests/frameworks/test_serving_records.py"
)
"""Witness of passes without gradients on tensor-parallel and pipeline ranks."""

SERVING_EVIDENCE = FrameworkEvidence(
    name="torch",
    witness=DTENSOR_WITNESS,
    parts=dict.fromkeys((*LLAMA_PARTS, ("norm", "layernorm"), ("position", "learned")), DTENSOR_WITNESS),
    other_witness=source_code_witness(
        "torch/distributed/tensor/parallel/style.py", "tests/frameworks/test_serving_records.py"
    ),
)
"""Evidence for passes without gradients."""

SOURCE_CODE_WITNESS = source_code_witness(
    "torch/distributed/pipelining/stage.py, nn/parallel/distributed.py, replayed",
    "tests/frameworks/torch/test_pipeline.py",
)

TRAINING_EVIDENCE = FrameworkEvidence(name="torch", witness=SOURCE_CODE_WITNESS, other_witness=SOURCE_CODE_WITNESS)
"""Evidence for training: each part is known from source code only."""


def evidence_for(layout: Layout, is_training: bool) -> FrameworkEvidence:
    """Returns the tests and measurements behind the results for a layout. is_training: whether the run is training."""
    if is_training:
        return TRAINING_EVIDENCE
    return SERVING_EVIDENCE if layout.tp * layout.pp * layout.ep > 1 else REPLICA_EVIDENCE


REPLICA_EVIDENCE = FrameworkEvidence(name="torch", witness=DTENSOR_WITNESS, other_witness=DTENSOR_WITNESS)
"""Evidence for replicas, each of which runs the whole model like a single device."""
