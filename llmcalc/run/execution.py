"""How a run is executed: choices that change what is computed for one and the same model and workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..algebra import is_zero
from .workload import Workload

AttentionBackward: TypeAlias = Literal["eager", "flash"]
Recompute: TypeAlias = Literal["none", "full"]
LatentForm: TypeAlias = Literal["auto", "expanded", "absorbed"]


def _reads_a_cache(w: Workload) -> bool:
    return w.phase == "decode" or not is_zero(w.context)


def _decodes(w: Workload) -> bool:
    return w.phase == "decode"


FORMS: Mapping[str, Callable[[Workload], bool]] = {
    "absorbed": _decodes,
    "by_token": _reads_a_cache,
    "step": _decodes,
}
"""Forms of a step that run only in some workloads: their name, and when they run by default.

absorbed: latent attention over the cached latents themselves (DeepSeek-V2, arXiv:2405.04434, §2.1.2). `Execution.mla`
    can ask for it, or against it, in any workload.
by_token: a recurrence over tokens one by one wherever it continues from a state (Lightning attention).
step: one token of a recurrence after others, in place of a chunk of tokens.
"""


@dataclass(frozen=True, slots=True)
class Execution:
    """attention_backward: `eager` computes dQ, dK, dP and dV; `flash` computes the scores once more.
    recompute: `full` runs every layer's forward a second time before its backward.
    mla: the form of latent attention. `expanded` makes keys and values of each head of every latent that is read, those
        of earlier tokens again; `absorbed` attends to the latents. `auto` is `absorbed` in decode and `expanded`
        elsewhere.
    """

    attention_backward: AttentionBackward = "eager"
    recompute: Recompute = "none"
    mla: LatentForm = "auto"

    def form(self, forms: Iterable[str], w: Workload) -> str:
        """Which of the alternative forms of one step runs; the first is the one that runs where no other does."""
        first, *others = forms
        return next((name for name in others if self._runs(name, w)), first)

    def _runs(self, form: str, w: Workload) -> bool:
        if form == "absorbed" and self.mla != "auto":
            return self.mla == "absorbed"
        return FORMS[form](w)


EAGER = Execution()
"""As PyTorch runs a model without a compiler."""
