"""Checks of counts: measurements of a running model against the formulas, node by node.

A witness measures numbers by module path, without formulas. This file works with nodes and paths, whatever the origin
of either number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import units
from ..algebra import is_zero
from ..evidence import Evidence
from ..flow.tree import Node, NodePosition
from ..workload.run_config import RunConfig
from .difference_explanation import COUNTED_QUANTITIES, NamedSizes, explain_difference

QUANTITIES = ("parameters", "buffers", "forward_flops", "train_flops", "prefill_flops", "decode_flops", "cache_bytes")

MEMORY_PREFIX = "memory."
"""Prefix of the names of memory quantities, such as `memory.backward_peak_bytes`."""


LOSS_QUANTITY = "loss"
"""The name of the quantity of a loss, which is not an integer."""


@dataclass(frozen=True, slots=True)
class Check:
    """The comparison of one counted number with an independent measurement.

    node: the path of the node; empty for the whole model.
    quantity: the quantity, one of `QUANTITIES`, one that begins with `MEMORY_PREFIX`, or `LOSS_QUANTITY`.
    closed_form: the counted number.
    measured_value: the measured number; None if the witness has no module of that path.
    witness: the name of the witness.
    seq: the number of tokens per sequence, if the witness runs passes of several lengths; None otherwise.
    known_difference: the known difference closed_form − measured, with a stated reason; 0 if the two should be equal.
    tolerance: allowed relative difference from the measured number; 0 if the two should be equal.
    """

    node: str
    quantity: str
    closed_form: float
    measured_value: float | None
    witness: str
    seq: int | None = None
    known_difference: int = 0
    tolerance: float = 0.0

    @property
    def location(self) -> str:
        """The path of the checked node, and the length of the pass if passes of several lengths were measured."""
        node_path = self.node or "model"
        return node_path if self.seq is None else f"{node_path}, {self.seq:,} tokens"

    @property
    def ok(self) -> bool:
        if self.measured_value is None:
            return False
        return (
            abs(self.closed_form - self.known_difference - self.measured_value) <= self.tolerance * self.measured_value
        )

    def explanation(self, model_sizes: NamedSizes = ()) -> str:
        """Describes how the counted and measured numbers differ, and names a size of the spec that may explain it."""
        if self.measured_value is None:
            return "the witness has no such module"
        if self.measured_value == 0:
            return "the witness counted nothing"
        difference = self.measured_value - (self.closed_form - self.known_difference)
        relative_text = f", {units.signed_percent(difference / self.closed_form, 2)}" if self.closed_form else ""
        if self.quantity == LOSS_QUANTITY:
            return f"{difference:+.3g}{relative_text}"
        difference = int(difference)
        matching_size_text = explain_difference(difference, model_sizes) if self.quantity in COUNTED_QUANTITIES else ""
        bias_remark = (
            " (a bias?)" if matching_size_text and " × " not in matching_size_text and "embed" not in self.node else ""
        )
        explained_text = (
            f" beyond the explained {units.difference(-self.known_difference)}" if self.known_difference else ""
        )
        tolerance_text = f" (at most {units.percent(self.tolerance, 1)} is expected)" if self.tolerance else ""
        size_text = f" {matching_size_text}{bias_remark}" if matching_size_text else ""
        return f"{units.difference(difference)}{explained_text}{size_text}{relative_text}{tolerance_text}"

    def data(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "quantity": self.quantity,
            "closed_form": self.closed_form,
            "measured": self.measured_value,
            "witness": self.witness,
            "ok": self.ok,
            **({} if self.seq is None else {"seq": self.seq}),
            **({"explained": self.known_difference} if self.known_difference else {}),
            **({"within": self.tolerance} if self.tolerance else {}),
        }


@dataclass(frozen=True)
class ModuleCoverage:
    """The paths of leaf nodes with parameters, by the kind of comparison: alone, in a sum, or only in totals.

    compared_alone: the leaves that were compared individually.
    compared_in_sums: the leaves that were compared as part of a sum.
    compared_in_totals: the leaves that were only compared in the totals above them.
    """

    compared_alone: tuple[str, ...]
    compared_in_sums: tuple[str, ...]
    compared_in_totals: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        return {
            "alone": len(self.compared_alone),
            "summed": len(self.compared_in_sums),
            "missing": list(self.compared_in_totals),
        }


@dataclass(frozen=True)
class Verdict:
    """All checks of one model against one witness (an independent model or source).

    target: the name of the model.
    witness: the name of the witness.
    checks: the checks.
    seconds: the duration.
    info: further information for the report.
    sizes: the sizes of the spec, to explain differences.
    coverage: the coverage, for a witness with other module names; None otherwise.
    untested: parts, kernels or optimizers of the model whose memory was never measured; default none.
    """

    target: str
    witness: str
    checks: list[Check]
    seconds: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    sizes: NamedSizes = ()
    coverage: ModuleCoverage | None = None
    untested: tuple[Evidence, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is at least one check, and every check passed."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]

    def data(self) -> dict[str, Any]:
        return {
            "model": {"name": self.target}, "witness": self.witness, "ok": self.ok, "seconds": round(self.seconds, 3),
            **self.info, **({} if self.coverage is None else {"coverage": self.coverage.data()}),
            "untested": [{"kind": evidence.kind, "name": evidence.name} for evidence in self.untested],
            "checks": [check.data() for check in self.checks],
        }  # fmt: skip


def compare_nodes(
    model_tree: Node,
    quantity_name: str,
    closed_form: Callable[[NodePosition], int],
    measured_counts: Mapping[str, int],
    module_paths_run: frozenset[str],
    witness_label: str,
    run_config: RunConfig | None = None,
    included_parts: frozenset[str] = frozenset(),
) -> Iterator[Check]:
    """Yields a check for every node of the tree. included_parts: the optional parts that are checked.

    Repeats are compared individually, and reported as one check if their measurements agree.

    closed_form: the count of one repeat of a node, in the run of its place.
    measured_counts: module path → measured number; 0 for a module that is not in it.
    module_paths_run: the paths of all modules of the witness.
    """
    for positioned_node in model_tree.walk(run_config):
        if positioned_node.optional_part and positioned_node.optional_part not in included_parts:
            continue
        expected_count = closed_form(positioned_node)
        paths = module_paths(positioned_node)
        counts_by_path = {path: measured_counts.get(path, 0) if path in module_paths_run else None for path in paths}
        yield from check_repeats(
            positioned_node.path or model_tree.name, quantity_name, expected_count, counts_by_path, witness_label
        )


def check_repeats(
    node_path: str,
    quantity_name: str,
    expected_count: int,
    counts_by_path: Mapping[str, int | None],
    witness_label: str,
) -> Iterator[Check]:
    """Yields one check for all repeats of a node if their measurements agree, else one per repeat that differs.

    counts_by_path: path of a repeat → its measurement.
    """
    differing_counts = {
        path: measured_count for path, measured_count in counts_by_path.items() if measured_count != expected_count
    }
    if differing_counts and len(counts_by_path) > 1 and len(differing_counts) < len(counts_by_path):
        for path, measured_count in differing_counts.items():
            yield Check(path, quantity_name, expected_count, measured_count, witness_label)
    else:
        yield Check(
            node_path,
            quantity_name,
            expected_count,
            next(iter(differing_counts.values())) if differing_counts else expected_count,
            witness_label,
        )


def module_paths(positioned_node: NodePosition) -> list[str]:
    """Returns the paths of all modules of a node: `layers.0-31.mlp` → `layers.0.mlp`, `layers.1.mlp`, …."""
    node = positioned_node.node
    if positioned_node.parent is None:
        return [""]
    member_names = (
        [node.name] if node.indices is None else [f"{node.name}.{repeat_index}" for repeat_index in node.indices]
    )
    return [
        f"{parent_path}.{member_name}" if parent_path else member_name
        for parent_path in module_paths(positioned_node.parent)
        for member_name in member_names
    ]


def remove_zero_checks(checks: Iterator[Check]) -> Iterator[Check]:
    """Returns the checks without those in which both counts are zero, such as the FLOPs of a norm."""
    return (check for check in checks if not (is_zero(check.closed_form) and check.measured_value == 0))
