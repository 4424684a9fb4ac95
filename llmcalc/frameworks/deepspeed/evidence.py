"""Evidence for DeepSpeed runs: comparisons with the tensor storages of real DeepSpeed processes."""

from __future__ import annotations

from ...evidence import LLAMA_PARTS, FrameworkEvidence, Witness, source_code_witness
from ...parallel.layout import Layout

PROCESSES = Witness("exact", "deepspeed's own processes: every storage", "tests/frameworks/deepspeed/test_deepspeed.py")
"""The witness of the runs that were measured: a Llama with AdamW."""

EVIDENCE = FrameworkEvidence(
    name="deepspeed",
    witness=PROCESSES,
    parts=dict.fromkeys(LLAMA_PARTS, PROCESSES),
    optimizers={"adamw": PROCESSES},
    other_witness=source_code_witness(
        "deepspeed/runtime/zero, which treats all parameters alike", "tests/frameworks/deepspeed/test_deepspeed.py"
    ),
)


def evidence_for(layout: Layout, is_training: bool) -> FrameworkEvidence:
    """Returns the tests and measurements behind the results for a layout."""
    return EVIDENCE
