"""The model components that Megatron-LM supports, and the tests and measurements of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakSet

from ...components.evidence import evidence_of_parts, nested_components
from ...components.norm import Norm
from ...errors import InputError
from ...evidence import LLAMA_PARTS, UNTESTED, FrameworkEvidence, Witness, parts_of_kinds, source_code_witness
from ...flow.record import Flow
from ...model import ModelSpec
from ...optional import MTP
from ...parallel.layout import Layout

CODE = "Megatron-LM and TransformerEngine, read"

MEASURED = source_code_witness(f"{CODE}; peaks of published runs", "tests/frameworks/megatron/test_megatron.py")
"""The witness of what ran on GPUs whose peaks are published."""

DELTA = source_code_witness(f"{CODE}; sizes by hand", "tests/frameworks/megatron/test_megatron_delta.py")
SPARSE = source_code_witness(f"{CODE}; sizes by hand", "tests/frameworks/megatron/test_megatron_sparse.py")
BY_HAND = source_code_witness(f"{CODE}; sizes by hand", "tests/frameworks/megatron/test_megatron.py")

PARTS: Mapping[tuple[str, str], Witness] = {
    **dict.fromkeys(
        (
            *LLAMA_PARTS,
            *parts_of_kinds(
                mixer="mla mamba2",
                network="moe",
                router="linear",
                norm="layernorm",
                position="learned",
                part="transform pooler token_types multi_token_prediction",
            ),
        ),
        MEASURED,
    ),
    ("mixer", "gated_delta_net"): DELTA,
    ("part", "output_gate"): DELTA,
    ("part", "indexer"): SPARSE,
    ("part", "qk_norm"): BY_HAND,
    ("part", "latent"): UNTESTED,
    ("head", "classification"): BY_HAND,
}
"""(kind, name) of a part that Megatron-LM has → what its runs were compared with."""

EVIDENCE = FrameworkEvidence(
    name="megatron",
    witness=MEASURED,
    parts=PARTS,
    optimizers={"adamw": MEASURED, "muon": BY_HAND, "sgd": UNTESTED},
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
        if (model_component.kind, model_component.name) not in PARTS:
            supported_parts = sorted(part_type for part_kind, part_type in PARTS if part_kind == model_component.kind)
            supported_text = f" (it has {', '.join(supported_parts)})" if model_component.kind != "part" else ""
            raise InputError(
                f"--framework megatron: Megatron-LM has no {model_component.kind} "
                f"'{model_component.name}'{supported_text}; expected a model without it, or --framework torch or fsdp2"
            )
    if any(
        isinstance(component_node, Norm) and component_node.gate_rank is not None
        for component_node in nested_components(spec, frozenset({MTP.name}))
    ):
        raise InputError(
            "norms with a gate (gate_rank) are not modelled with --framework megatron; expected --framework fsdp2 or "
            "torch"
        )
    _checked_programs.add(spec.shared_program)


_checked_programs: WeakSet[Flow] = WeakSet()
"""The programs of the models that have been checked: a search checks one model for each of thousands of ranks."""
