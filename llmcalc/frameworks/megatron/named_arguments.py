"""The Megatron-Core arguments that no llmcalc option sets, for named models; this file imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...device_memory.settings import Settings
    from ...model import ModelSpec


@dataclass(frozen=True)
class NamedModelArguments:
    """The Megatron-Core arguments that no llmcalc option sets, for a model that is given by name instead of by flags.

    recompute_modules: modules of selective recomputation; None (default) for those of `--recompute`.
    uses_hybridep, uses_deepep: whether experts' tokens are sent by HybridEP, or by DeepEP, whose memory is counted as
        all-to-all's; by all-to-all as a default.
    has_layer_graphs: whether CUDA graphs launch layers or their modules; default false.
    fuses_activation: whether one kernel computes an activation and its product with the gate, or the model types with
        which it does, where the model's class decides; default true.
    fp8_arguments: fields of `MegatronSettings` about products in 8 bits, with `--precision fp8`; none by default.
    """

    recompute_modules: tuple[str, ...] | None = None
    uses_hybridep: bool = False
    uses_deepep: bool = False
    has_layer_graphs: bool = False
    fuses_activation: bool | frozenset[str] = True
    fp8_arguments: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, options: Settings, has_experts: bool, spec: ModelSpec) -> dict[str, Any]:
        """Returns the `MegatronSettings` fields to set. options: the run's options; `--recompute` takes precedence."""
        arguments: dict[str, Any] = dict(self.fp8_arguments) if options.precision == "fp8" else {}
        if self.recompute_modules is not None and options.recompute is None:
            arguments |= {"recompute_granularity": "selective", "recompute_modules": self.recompute_modules}
        if self.uses_hybridep and has_experts:
            arguments |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
        fuses_activation = self.fuses_activation
        if isinstance(fuses_activation, frozenset):
            fuses_activation = class_fuses_activation(spec, fuses_activation)
        if not fuses_activation:
            arguments |= {"no_bias_swiglu_fusion": True, "no_bias_gelu_fusion": True}
        return arguments


def class_fuses_activation(spec: ModelSpec, fused_model_types: frozenset[str]) -> bool:
    """Whether the model's type is among those whose activation a library computes in a fused kernel."""
    from ...sources.to_hf import find_config

    return (find_config(spec) or {}).get("model_type", "") in fused_model_types
