"""The time of speculative decoding: a draft model proposes tokens, and the target model verifies them in one pass.

Of K drafted tokens, each accepted with the chance a where all before it are, a step gives

    E = (1 - a^(K + 1)) / (1 - a)

tokens on average, the model's own one among them (Leviathan et al. 2023, arXiv:2211.17192, eq. 1). A step takes the
passes of the draft and one pass of the model over K + 1 tokens of each sequence.
"""

from __future__ import annotations

from ..algebra import Number
from ..costs.draft import target_state_reader
from ..errors import InputError
from ..frozen import frozen
from ..model import ModelSpec
from ..parallel.layout import Layout
from .device import Device
from .inference import forward_pass, prefill, rank_pass
from .time_estimator import SIXTEEN_BIT_FORMATS, NumberFormats
from .timing_constants import SoftwareStack

BISECTION_COUNT = 60
"""Number of halvings in the search for the acceptance chance of a drafted token."""


def expected_tokens_per_step(drafted_tokens: int, acceptance: float) -> float:
    """Returns the mean number of tokens that a decoding step generates after `drafted_tokens` drafted tokens."""
    return (1 - acceptance ** (drafted_tokens + 1)) / (1 - acceptance)


def acceptance_for_accepted_length(accepted_length: float, drafted_tokens: int) -> float:
    """Returns a drafted token's probability of acceptance, from the mean number of tokens per step.

    Engines print that number: vLLM as `Mean acceptance length`, SGLang as `accept len`.
    Raises `InputError` if that number cannot be reached with `drafted_tokens` tokens.
    """
    if accepted_length >= drafted_tokens + 1:
        raise InputError(
            f"--acceptance {accepted_length:g}: a step of {drafted_tokens} drafted tokens generates fewer than "
            f"{drafted_tokens + 1}; "
            "expected less, or more --draft-tokens"
        )
    lower_bound, upper_bound = 0.0, 1.0
    for _ in range(BISECTION_COUNT):
        middle_acceptance = (lower_bound + upper_bound) / 2
        lower_bound, upper_bound = (
            (middle_acceptance, upper_bound)
            if expected_tokens_per_step(drafted_tokens, middle_acceptance) < accepted_length
            else (lower_bound, middle_acceptance)
        )
    return lower_bound


@frozen
class Speculation:
    """A method of speculative decoding and its acceptance, with the draft model if it has one.

    drafted_tokens: tokens that are drafted in a step. acceptance: chance that a drafted token is accepted, below 1.
    draft_model: the draft model; None for the model's own modules of multi-token prediction, or without any.
    with_mtp: whether these modules draft; without them and a draft model, tokens are found in the text at no cost.
    """

    drafted_tokens: int
    acceptance: float
    draft_model: ModelSpec | None = None
    with_mtp: bool = False

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens that a step generates."""
        return expected_tokens_per_step(self.drafted_tokens, self.acceptance)

    @property
    def drafts_a_block(self) -> bool:
        """Whether the draft proposes all tokens in one pass (DFlash, DSpark) instead of one by one."""
        states_reader = None if self.draft_model is None else target_state_reader(self.draft_model)
        return states_reader is not None and states_reader.start == "embedding"

    def draft_seconds(
        self, spec: ModelSpec, device: Device, software_stack: SoftwareStack, batch: Number, cached_tokens: Number,
        layout: Layout, number_formats: NumberFormats,
    ) -> float:  # fmt: skip
        """Returns the seconds in which a step's tokens are drafted. spec, number_formats: the target model's."""
        if self.draft_model is not None:
            drafted_tokens, draft_passes = (self.drafted_tokens, 1) if self.drafts_a_block else (1, self.drafted_tokens)
            draft_pass = rank_pass(
                software_stack, _draft_layout(layout), batch, drafted_tokens, cached_tokens, "decode"
            )
            return draft_passes * float(
                forward_pass(self.draft_model, device, software_stack, draft_pass, SIXTEEN_BIT_FORMATS).seconds
            )
        if not self.with_mtp:
            return 0.0

        def kernel_seconds(extra_parts: frozenset[str]) -> float:
            decoding_pass = rank_pass(software_stack, layout, batch, 1, cached_tokens, "decode", extra_parts)
            return float(
                forward_pass(spec, device, software_stack, decoding_pass, number_formats).seconds_by_part["kernels"]
            )

        return self.drafted_tokens * (kernel_seconds(frozenset({"mtp"})) - kernel_seconds(frozenset()))

    def prompt_seconds(
        self, device: Device, software_stack: SoftwareStack, batch: Number, seq: int, layout: Layout
    ) -> float:
        """Returns the seconds in which the draft model processes the prompts; 0 without a draft model."""
        if self.draft_model is None:
            return 0.0
        return float(
            prefill(self.draft_model, device, software_stack, batch, seq, 0, None, _draft_layout(layout)).seconds
        )


def _draft_layout(layout: Layout) -> Layout:
    """Returns the draft model's layout: the target's tensor parallelism for attention, in one pipeline stage."""
    return Layout(tp=layout.tp)
