"""RWKV's token shift, a mix of each token with the previous token (Peng et al. 2023, arXiv:2305.13048, §3.1.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...flow.record import Flow
from ...flow.value import Value
from ..runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor


def record_previous_tokens(recorder: Flow, x: Value) -> Value:
    """Records a shift of the sequence by one token, and the cached state that holds the last token."""
    previous_token = recorder.shift(x, state_name="shift_state")
    recorder.state("shift_state", *x.axes, state_kind="shift_state")
    return previous_token


def record_token_shift(recorder: Flow, x: Value, previous_token: Value, input_name: str) -> Value:
    """Records the computation of the mix of each token with the previous token, with a learned weight per channel.

    input_name: the end of the weight's name, `time_mix_…`.
    """
    mix_weight = recorder.vector(f"time_mix_{input_name}", *x.axes)
    return recorder.add(recorder.mul(x, mix_weight), recorder.mul(previous_token, recorder.complement(mix_weight)))


def shift_tokens(x: Tensor, pass_state: PassState, state_module: Any) -> Tensor:
    """Shifts a sequence by one token; the first row becomes zeros. x: [batch, tokens, hidden] → same shape."""
    import torch

    stored_token = state_module.load(pass_state)
    previous_row = torch.zeros_like(x[:, :1]) if stored_token is None else stored_token[0]
    state_module.keep(pass_state, x[:, -1:])
    return torch.cat([previous_row, x[:, :-1]], 1)


def mix_tokens(x: Tensor, previous_token: Tensor, mix_weight: Tensor) -> Tensor:
    """Interpolates between each token and the previous token. mix_weight: the token's weight per channel."""
    return x * mix_weight + previous_token * (1 - mix_weight)
