"""Which kernels the classes of transformers launch for a step that fused software runs as one."""

from __future__ import annotations

from ..flow.program import Step


def eager_verb(step: Step) -> str:
    """Returns the verb by which a stack counts the kernels of an element-wise step (`Stack.kernels`)."""
    if step.verb == "norm" and step.options["spec"].type == "layernorm":
        is_stepwise = step.options["spec"].float32_product and step.options["spec"].weight
        return "stepwise_layernorm" if is_stepwise else "layernorm"
    if step.verb == "act" and step.options.get("kind") == "gelu_new":
        return "gelu_new"  # step by step, as `NewGELUActivation` of transformers
    return step.verb


def eager_repeats(step: Step) -> int:
    """Returns how often the kernels of a step run: once for each division of rows or columns by their sums."""
    return 2 * int(step.options["steps"]) - 1 if step.verb == "sinkhorn" else 1
