"""Activation checkpointing: the parts of the forward pass that the backward pass recomputes.

Chen et al. 2016 (arXiv:1604.06174); of attention alone: Korthikanti et al. 2022 (arXiv:2205.05198, §5).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InputError, suggest
from ..frozen import frozen

SDPA_KERNELS = ("efficient_attention", "cudnn_attention")
"""Names of the kernels of scaled_dot_product_attention other than flash attention."""

SAVED_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "grouped_mm", "flash_attention", *SDPA_KERNELS})
"""Operations whose results torch's selective checkpointing keeps under `attention+matmuls`: matrix products, and
attention as one kernel. Everything else in a layer runs again.
"""


@frozen
class Recompute:
    """Which parts of the forward pass the backward pass recomputes, because they are not stored.

    layers: whether whole layers do.
    every: of the layers, every how many-th does, beginning with the first; 1 by default.
    spares: whether every how many-th layer does not, and all others do; false by default.
    core: whether the attention scores do, by themselves.
    reentrant: whether the older form of checkpointing runs, which runs all of a layer again.
    saved_operations: operations in a layer whose results are saved, none by default.
    alternate: of these, those of which a layer saves every other result, beginning with the first; none by default.
    nodes: paths of modules below a layer (`self_attn`, `mlp.shared_expert`), each of which runs again by itself; none
        by default.
    modules: the same by Megatron-Core's names, of `NAMED_MODULES`; none by default.
    """

    layers: bool = False
    every: int = 1
    core: bool = False
    reentrant: bool = False
    saved_operations: frozenset[str] = frozenset()
    alternate: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    spares: bool = False
    modules: frozenset[str] = frozenset()

    def includes_layer(self, layer_index: int) -> bool:
        """Whether the backward pass recomputes the whole layer of this index."""
        return self.layers and (layer_index % self.every == 0) is not self.spares

    @property
    def recomputed_layer_fraction(self) -> float:
        """The fraction of layers that are recomputed as a whole."""
        return (1 - 1 / self.every if self.spares else 1 / self.every) if self.layers else 0.0


NO_RECOMPUTATION = Recompute()

RECOMPUTE_MODES = {
    "none": NO_RECOMPUTATION,
    "full": Recompute(layers=True),
    "full-reentrant": Recompute(layers=True, reentrant=True),
    "selective": Recompute(core=True),
    "attention": Recompute(core=True),
    "attention+matmuls": Recompute(layers=True, saved_operations=SAVED_PRODUCTS),
}
"""Value of `--recompute` → the parts of the forward pass that run again.

none: nothing runs again. full: every layer (`use_reentrant=False`). full-reentrant: every layer (`use_reentrant=True`).
selective: what a framework calls so (`Framework.selective_recompute`), and without one the same as attention.
attention: the attention scores alone, of every layer. attention+matmuls: every layer, but for its matrix products and
its attention kernels, whose results are kept (`create_selective_checkpoint_contexts`).
"""

SELECTIVE_MODE = "selective"
"""The value of `--recompute` whose meaning depends on the framework."""

TRAINER_MODES = {
    "selective-op": Recompute(
        layers=True,
        saved_operations=frozenset({"mm", "flash_attention", *SDPA_KERNELS, "reduce_scatter"}),
        alternate=frozenset({"mm"}),
    )
}
"""Recomputation mode in launch files → the parts of the forward pass that run again.

selective-op: every layer, but for attention as one kernel, sums of which a rank gets a part, and every other matrix
product without a bias (torchtitan, distributed/activation_checkpoint.py, `_apply_op_sac`).
"""

NAMED_MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Megatron-Core's `--recompute-modules` whose memory and time are counted."""

EXPECTED_VALUES = (
    f"{', '.join(RECOMPUTE_MODES)}, every:N (every N-th layer), nodes:A,B (modules of every layer, such as self_attn) "
    "or modules:A,B (by names such as moe_act)"
)


def parse_recompute(option_text: str) -> Recompute:
    """Parses a value of `--recompute`: a name in `RECOMPUTE_MODES`, `every:N`, `nodes:A,B` or `modules:A,B`.

    Launch files have `but-every:N` too: all layers but every N-th. Raises `InputError` for any other text.
    """
    granularity, _, interval_text = option_text.partition(":")
    if option_text in RECOMPUTE_MODES or option_text in TRAINER_MODES:
        return RECOMPUTE_MODES.get(option_text) or TRAINER_MODES[option_text]
    if (
        granularity in ("every", "but-every")
        and interval_text.isascii()
        and interval_text.isdigit()
        and len(interval_text) < 20
        and int(interval_text) > (granularity == "but-every")
    ):
        return Recompute(layers=True, every=int(interval_text), spares=granularity == "but-every")
    if granularity == "nodes" and all(interval_text.split(",")):
        node_names = frozenset(interval_text.split(","))
        for node_path in node_names:
            outer_path = next(
                (module_path for module_path in node_names if node_path.startswith(f"{module_path}.")), None
            )
            if outer_path is not None:
                raise InputError(
                    f"--recompute {option_text}: {node_path} is inside {outer_path}; expected one of the two"
                )
        return Recompute(nodes=node_names)
    if granularity == "modules":
        unknown_names = [unknown_name for unknown_name in interval_text.split(",") if unknown_name not in NAMED_MODULES]
        if unknown_names:
            raise InputError(
                f"--recompute {option_text}: {unknown_names[0] or 'an empty name'} is not known; expected some of "
                f"{', '.join(NAMED_MODULES)}"
            )
        return Recompute(modules=frozenset(interval_text.split(",")))
    raise InputError(f"--recompute {option_text}: not known; expected {EXPECTED_VALUES}")


def check_node_names(node_names: Iterable[str], model_node_names: Iterable[str]) -> None:
    """Raises `InputError` for a module name that no layer has. model_node_names: the names that exist."""
    existing_names = list(dict.fromkeys(model_node_names))
    for node_name in sorted(node_names):
        if node_name not in existing_names:
            raise InputError(
                f"--recompute nodes:{node_name}: no layer has that module; expected some of "
                f"{', '.join(existing_names)}.{suggest(node_name, existing_names)}"
            )
