"""Evidence for runs on several devices with torch alone: pipelines, DDP and tensor parallelism."""

from __future__ import annotations

from ...evidence import LLAMA_PARTS, FrameworkEvidence, Witness, source_code_witness
from ...parallel.layout import Layout

DTENSOR = Witness("exact", "torch's DTensor on a fake process group", "tests/frameworks/test_serving_records.py")
"""The witness of passes without gradients on ranks of tensor parallelism and of a pipeline."""

SERVING = FrameworkEvidence(
    name="torch",
    witness=DTENSOR,
    parts=dict.fromkeys((*LLAMA_PARTS, ("norm", "layernorm"), ("position", "learned")), DTENSOR),
    other_witness=source_code_witness(
        "torch/distributed/tensor/parallel/style.py", "tests/frameworks/test_serving_records.py"
    ),
)
"""Passes without gradients."""

REPLAYED = source_code_witness(
    "torch/distributed/pipelining/stage.py, nn/parallel/distributed.py, replayed",
    "tests/frameworks/torch/test_pipeline.py",
)

TRAINING = FrameworkEvidence(name="torch", witness=REPLAYED, other_witness=REPLAYED)
"""Training: no part is known better than by the source."""


def evidence_for(layout: Layout, is_training: bool) -> FrameworkEvidence:
    """Returns the tests and measurements behind the results for a layout. is_training: whether the run is training."""
    if is_training:
        return TRAINING
    return SERVING if layout.tp * layout.pp * layout.ep > 1 else ALONE


ALONE = FrameworkEvidence(name="torch", witness=DTENSOR, other_witness=DTENSOR)
"""Replicas, each of which runs the whole model as one device does."""
