"""The model components that Megatron-LM supports, and the tests and measurements of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakSet

from ...components.evidence import evidence_of_parts, nested_components
from ...components.norm import Norm
from ...errors import InputError
from ...evidence import LLAMA_PARTS, UNTESTED, FrameworkEvidence, Witness, kind_and_name_pairs, source_code_witness
from ...flow.record import Flow
from ...model import ModelSpec
from ...optional import MTP
from ...parallel.layout import Layout

SOURCE_CODE = "Megatron-LM and TransformerEngine, read"

MEASURED_WITNESS = source_code_witness(
    f"{SOURCE_CODE}; peaks of published runs", "tests/frameworks/megatron/test_megatron.py"
)
"""The witness for what ran on GPUs whose measured peaks are published."""

DELTA_WITNESS = source_code_witness(f"{SOURCE_CODE}; sizes by hand", "tests/frameworks/megatron/test_megatron_delta.py")
SPARSE_ATTENTION_WITNESS = source_code_witness(
    f"{SOURCE_CODE}; sizes by hand", "tests/frameworks/megatron/test_megatron_sparse.py"
)
HAND_COUNTED_WITNESS = source_code_witness(
    f"{SOURCE_CODE}; sizes by hand", "tests/frameworks/megatron/test_megatron.py"
)

WITNESS_BY_PART: Mapping[tuple[str, str], Witness] = {
    **dict.fromkeys(
        (
            *LLAMA_PARTS,
            *kind_and_name_pairs(
                mixer="mla mamba2",
                network="moe",
                router="linear",
                norm="layernorm",
                position="learned",
                part="transform pooler token_types multi_token_prediction",
            ),
        ),
        MEASURED_WITNESS,
    ),
    ("mixer", "gated_delta_net"): DELTA_WITNESS,
    ("part", "output_gate"): DELTA_WITNESS,
    ("part", "indexer"): SPARSE_ATTENTION_WITNESS,
    ("part", "qk_norm"): HAND_COUNTED_WITNESS,
    ("part", "latent"): UNTESTED,
    ("head", "classification"): HAND_COUNTED_WITNESS,
}
"""(kind, name) of a component that Megatron-LM supports → the witness that it was compared with."""

EVIDENCE = FrameworkEvidence(
    name="megatron",
    witness=MEASURED_WITNESS,
    parts=WITNESS_BY_PART,
    optimizers={"adamw": MEASURED_WITNESS, "muon": HAND_COUNTED_WITNESS, "sgd": UNTESTED},
    has_own_kernels=True,
)


def evidence_for(layout: Layout, is_training: bool) -> FrameworkEvidence:
    """Returns the tests and measurements behind Megatron-LM's results, which are equal for all layouts."""
    return EVIDENCE


def check_components(spec: ModelSpec) -> None:
    """Raises `InputError` for a model component that Megatron-LM lacks, and lists the supported ones of its kind."""
    if spec.shared_program in _checked_programs:
        return
    for model_component in evidence_of_parts(spec, frozenset({MTP.name})):
        if (model_component.kind, model_component.name) not in WITNESS_BY_PART:
            supported_parts = sorted(part_type for kind, part_type in WITNESS_BY_PART if kind == model_component.kind)
            supported_text = f" (it has {', '.join(supported_parts)})" if model_component.kind != "part" else ""
            raise InputError(
                f"--framework megatron: Megatron-LM has no {model_component.kind} "
                f"'{model_component.name}'{supported_text}; expected a model without it, or --framework torch or fsdp2"
            )
    if any(
        isinstance(node, Norm) and node.gate_rank is not None for node in nested_components(spec, frozenset({MTP.name}))
    ):
        raise InputError(
            "norms with a gate (gate_rank) are not modelled with --framework megatron; expected --framework fsdp2 or "
            "torch"
        )
    _checked_programs.add(spec.shared_program)


_checked_programs: WeakSet[Flow] = WeakSet()
"""Programs of the models that have been checked, because a search asks about one model for thousands of ranks."""
