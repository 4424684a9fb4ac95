"""Counts the kernels that transformers launches for an elementwise step; fused software launches one."""

from __future__ import annotations

from ..flow.program import Step


def eager_kernel_key(operation: Step) -> str:
    """Returns the key in `SoftwareStack.kernels` of an elementwise step's number of kernels."""
    if operation.verb == "norm" and operation.options["spec"].type == "layernorm":
        is_stepwise = operation.options["spec"].float32_product and operation.options["spec"].weight
        return "stepwise_layernorm" if is_stepwise else "layernorm"
    if operation.verb == "act" and operation.options.get("kind") == "gelu_new":
        return "gelu_new"  # step by step, as `NewGELUActivation` of transformers
    return operation.verb


def eager_kernel_repeats(operation: Step) -> int:
    """Returns the number of runs of a step's kernels: one, or for Sinkhorn one per normalization of rows or columns."""
    return 2 * int(operation.options["steps"]) - 1 if operation.verb == "sinkhorn" else 1
