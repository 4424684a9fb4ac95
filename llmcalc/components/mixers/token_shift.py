"""RWKV's token shift, a mix of a token with the previous one (Peng et al. 2023, arXiv:2305.13048, §3.1.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...flow.record import Flow
from ...flow.value import Value
from ..runtime import Run

if TYPE_CHECKING:
    from torch import Tensor


def previous_tokens(f: Flow, x: Value) -> Value:
    """Records the previous token of each token, and the state with the last one."""
    previous_token = f.shift(x, state="shift_state")
    f.state("shift_state", *x.axes, kind="shift_state")
    return previous_token


def token_shift(f: Flow, x: Value, previous_token: Value, name: str) -> Value:
    """Records the mix of each token with the previous one, with a learned weight per channel.

    name: the end of the weight's name, `time_mix_…`.
    """
    share = f.vector(f"time_mix_{name}", *x.axes)
    return f.add(f.mul(x, share), f.mul(previous_token, f.complement(share)))


def shifted(x: Tensor, run: Run, state: Any) -> Tensor:
    """Returns the previous token of each token; zeros for the first. x: [batch, tokens, hidden] → same shape."""
    import torch

    stored_token = state.load(run)
    first_row = torch.zeros_like(x[:, :1]) if stored_token is None else stored_token[0]
    state.keep(run, x[:, -1:])
    return torch.cat([first_row, x[:, :-1]], 1)


def mixed_with(x: Tensor, previous_token: Tensor, share: Tensor) -> Tensor:
    """Interpolates between each token and the previous one. share: the weight of the token, per channel."""
    return x * share + previous_token * (1 - share)
