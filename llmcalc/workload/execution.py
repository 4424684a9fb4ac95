"""Execution choices of a run: different computations with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

from ..algebra import is_zero
from ..frozen import frozen
from .recompute import NO_RECOMPUTATION, Recompute
from .workload import Workload

LatentForm: TypeAlias = Literal["auto", "expanded", "absorbed"]
AttentionImplementation: TypeAlias = Literal["eager", "sdpa", "sdpa-math", "flash"]
NormImplementation: TypeAlias = Literal["eager", "fused"]
NormKernels: TypeAlias = Literal["eager", "fused", "liger"]
"""Kernels of norms; `liger`: fused norms, and gated activations that save only gate and up projection (Liger-Kernel).
"""
CrossEntropy: TypeAlias = Literal[
    "eager",
    "fused",
    "native",
    "chunked",
    "split",
    "recomputed",
    "flash",
    "flash-in-place",
    "selective",
    "selective-chunked",
]
CHUNKED_LOSSES = ("chunked", "split", "recomputed")
"""Values of `CrossEntropy` that run the output head for a chunk of tokens at a time, over all labels."""
LOSSES_WITH_HEAD = (*CHUNKED_LOSSES, "selective-chunked")
"""Values of `CrossEntropy` that run the output head themselves, so that no tensor has all logits."""
SHIFTED_LOSSES = ("recomputed", "selective", "selective-chunked")
"""Values of `CrossEntropy` that leave out each sequence's last token, which has no next one."""
FRAMEWORK_LOSSES = ("native",)
"""Values of `CrossEntropy` that only a framework's own library has (`Framework.losses`)."""
OptimizerImplementation: TypeAlias = Literal["foreach", "fused", "loop"]
"""The implementation of an optimizer's step: `foreach`, each operation over all tensors of one type at once; `fused`,
one kernel for all operations; `loop`, tensor after tensor.
"""
Mamba2Implementation: TypeAlias = Literal["combined", "steps"]


def _reads_cached_tokens(workload: Workload) -> bool:
    return workload.phase == "decode" or not is_zero(workload.context)


def _is_decoding(workload: Workload) -> bool:
    return workload.phase == "decode"


DEFAULT_FORM_TESTS: Mapping[str, Callable[[Workload], bool]] = {
    "absorbed": _is_decoding,
    "by_token": _reads_cached_tokens,
    "step": _is_decoding,
}
"""Alternative forms of a step: name → whether it runs in a workload by default.

absorbed: latent attention over the cached latents themselves (DeepSeek-V2, arXiv:2405.04434, §2.1.2). `Execution.mla`
    can force or forbid it in any workload.
by_token: a recurrence that runs token by token where it continues from a state (Lightning attention).
step: one decoding step of a recurrence, instead of a chunk of tokens.
"""


@frozen(slots=True)
class Execution:
    """The choice among equivalent computations: of attention, of recomputation and of latent attention.

    attention: how attention runs. The backward pass of `eager` (default) and `sdpa-math` computes dQ, dK, dP and dV;
        those of `flash` and `sdpa` also compute the scores again.
    recompute: what runs again in the backward pass; nothing by default.
    mla: the form of latent attention. `expanded` computes each head's keys and values from every latent that is read,
        again for earlier tokens; `absorbed` attends to the latents; `auto` (default) is `absorbed` in decode and
        `expanded` elsewhere.
    """

    attention: AttentionImplementation = "eager"
    recompute: Recompute = NO_RECOMPUTATION
    mla: LatentForm = "auto"

    def choose_form(self, form_names: Iterable[str], workload: Workload) -> str:
        """Returns which of the allowed `form_names` of a computation runs; by default the first."""
        default_form, *other_forms = form_names
        return next((form_name for form_name in other_forms if self._is_form_used(form_name, workload)), default_form)

    def _is_form_used(self, form_name: str, workload: Workload) -> bool:
        if form_name == "absorbed" and self.mla != "auto":
            return self.mla == "absorbed"
        return DEFAULT_FORM_TESTS[form_name](workload)


EAGER_EXECUTION = Execution()
"""The execution choices of PyTorch without a compiler."""
