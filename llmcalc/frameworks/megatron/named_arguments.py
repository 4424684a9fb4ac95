"""Arguments of Megatron-Core in a run of a named model, apart from their reading, which imports those of trainers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...device_memory.settings import Settings
    from ...model import ModelSpec


@dataclass(frozen=True)
class NamedModelArguments:
    """Arguments of Megatron-Core of a named model's run that no option of llmcalc states.

    recompute_modules: modules of selective recomputation; None (default) for those of `--recompute`.
    uses_hybridep, uses_deepep: whether experts' tokens are sent by HybridEP, or by DeepEP, whose memory is counted as
        all-to-all's; by all-to-all as a default.
    has_layer_graphs: whether CUDA graphs launch layers or their modules; default false.
    fuses_activation: whether one kernel computes an activation and its product with the gate; None for what
        Megatron-Bridge chooses for the model's class; default true.
    fp8_arguments: fields of `MegatronSettings` about products in 8 bits, with `--precision fp8`; none by default.
    """

    recompute_modules: tuple[str, ...] | None = None
    uses_hybridep: bool = False
    uses_deepep: bool = False
    has_layer_graphs: bool = False
    fuses_activation: bool | None = True
    fp8_arguments: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, options: Settings, has_experts: bool, spec: ModelSpec) -> dict[str, Any]:
        """Returns the fields of `MegatronSettings` to set. options: of the run, whose `--recompute` comes first."""
        arguments: dict[str, Any] = dict(self.fp8_arguments) if options.precision == "fp8" else {}
        if self.recompute_modules is not None and options.recompute is None:
            arguments |= {"recompute_granularity": "selective", "recompute_modules": self.recompute_modules}
        if self.uses_hybridep and has_experts:
            arguments |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
        if not (bridge_fuses_activation(spec) if self.fuses_activation is None else self.fuses_activation):
            arguments |= {"no_bias_swiglu_fusion": True, "no_bias_gelu_fusion": True}
        return arguments


FUSED_CLASSES = frozenset({"llama", "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", ""})
"""Model types, and models of no known class, for which Megatron-Bridge sets `bias_activation_fusion`.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, models/*/*_bridge.py and *_provider.py; Megatron-Core's default is false.
Kimi-K2 and GLM-4.7-Flash have the architecture of `deepseek_v3`; models with encoders have none here, and most of their
providers set it. Mistral's bridge does not, and its models of the architecture of `llama` are counted as that.
"""


def bridge_fuses_activation(spec: ModelSpec) -> bool:
    """Whether Megatron-Bridge's class for a model fuses activations where no file states it."""
    from ...sources.to_hf import find_config

    return (find_config(spec) or {}).get("model_type", "") in FUSED_CLASSES
