"""Evidence for DeepSpeed runs: comparisons with the tensor storages of real DeepSpeed processes."""

from __future__ import annotations

from ...evidence import LLAMA_PARTS, FrameworkEvidence, Witness, source_code_witness
from ...parallel.layout import Layout

PROCESS_WITNESS = Witness(
    "exact", "deepspeed's own processes: every storage", "tests/frameworks/deepspeed/test_deepspeed.py"
)
"""The witness of the runs that were measured: a Llama with AdamW."""

EVIDENCE = FrameworkEvidence(
    name="deepspeed",
    witness=PROCESS_WITNESS,
    parts=dict.fromkeys(LLAMA_PARTS, PROCESS_WITNESS),
    optimizers={"adamw": PROCESS_WITNESS},
    other_witness=source_code_witness(
        "deepspeed/runtime/zero, which treats all parameters alike", "tests/frameworks/deepspeed/test_deepspeed.py"
    ),
)


def evidence_for(layout: Layout, is_training: bool) -> FrameworkEvidence:
    """Returns the evidence (tests and measurements) for results with this layout."""
    return EVIDENCE
