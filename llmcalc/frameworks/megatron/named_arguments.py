"""Arguments of Megatron-Core in a run of a named model, apart from their reading, which imports those of trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NamedModelArguments:
    """Arguments of Megatron-Core of a named model's run that no option of llmcalc states.

    recompute_modules: modules of selective recomputation; None (default) for those of `--recompute`.
    uses_hybridep, uses_deepep: whether experts' tokens are sent by HybridEP, or by DeepEP, whose memory is counted as
        all-to-all's; by all-to-all as a default.
    has_layer_graphs: whether CUDA graphs launch layers or their modules; default false.
    """

    recompute_modules: tuple[str, ...] | None = None
    uses_hybridep: bool = False
    uses_deepep: bool = False
    has_layer_graphs: bool = False

    def arguments(self, recompute_option: str | None, has_experts: bool) -> dict[str, Any]:
        """Returns the fields of `MegatronSettings` to set. recompute_option: `--recompute`, which comes first."""
        arguments: dict[str, Any] = {}
        if self.recompute_modules is not None and recompute_option is None:
            arguments |= {"recompute_granularity": "selective", "recompute_modules": self.recompute_modules}
        if self.uses_hybridep and has_experts:
            arguments |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
        return arguments
