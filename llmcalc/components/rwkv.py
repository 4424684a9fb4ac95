"""RWKV-4 (Peng et al. 2023, arXiv:2305.13048): time mixing in place of attention, channel mixing in place of a
feed-forward network.

Both look at the token before through an interpolation with learned weights (the token shift). Time mixing is an average
of the values, weighted by exp(key) and by a learned decay of each channel (§3.1.2): numerator, denominator and largest
exponent are all that it keeps. transformers: models/rwkv.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from .. import ops
from ..flow.tree import Node
from .base import Around, Component, Width, size_named
from .runtime import Run, state_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    AttentionWidth: TypeAlias = int
else:
    AttentionWidth = size_named("r")

SOURCE = "Peng et al. 2023, §3"


class RwkvTimeMix(Component):
    """attention_hidden_size: channels of the average."""

    node_name: ClassVar[str] = "time_mix"

    type: Literal["rwkv_time_mix"] = "rwkv_time_mix"
    attention_hidden_size: AttentionWidth

    def anatomy(self, name: str, around: Around) -> Node:
        h, r = around.hidden_size, self.attention_hidden_size
        parts = (
            Node("time_decay", ops.Weight(r)),
            Node("time_first", ops.Weight(r)),
            Node("time_mix_key", ops.Weight(h)),
            Node("time_mix_value", ops.Weight(h)),
            Node("time_mix_receptance", ops.Weight(h)),
            Node("shift_state", ops.State(h, "shift_state")),
            Node("key", ops.Linear(h, r)),
            Node("value", ops.Linear(h, r)),
            Node("receptance", ops.Linear(h, r)),
            Node("recurrent_state", ops.State(3 * r, bits=32)),
            Node("output", ops.Linear(r, h)),
        )
        return Node(name, children=parts, kind="linear_attention", source=SOURCE)

    def describe(self, hidden_size: int) -> str:
        return f"RWKV-4 {self.attention_hidden_size}"

    def reference(self, around: Around) -> nn.Module:
        return _references()["time"](self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(attention_hidden_size=24), cls(attention_hidden_size=16)]


class RwkvChannelMix(Component):
    """σ(receptance) · value(relu(key)²), over the token and the one before."""

    node_name: ClassVar[str] = "channel_mix"

    type: Literal["rwkv_channel_mix"] = "rwkv_channel_mix"
    intermediate_size: Width

    def anatomy(self, name: str, around: Around) -> Node:
        h, f = around.hidden_size, self.intermediate_size
        parts = (
            Node("time_mix_key", ops.Weight(h)),
            Node("time_mix_receptance", ops.Weight(h)),
            Node("shift_state", ops.State(h, "shift_state")),
            Node("key", ops.Linear(h, f)),
            Node("receptance", ops.Linear(h, h)),
            Node("value", ops.Linear(f, h), gated=True),
        )
        return Node(name, children=parts, kind="feed_forward", source=SOURCE)

    def describe(self, hidden_size: int) -> str:
        return f"RWKV-4 {self.intermediate_size}"

    def reference(self, around: Around) -> nn.Module:
        return _references()["channel"](self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(intermediate_size=40)]


@cache
def _references() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    def shifted(x: Tensor, run: Run, state: Any) -> Tensor:
        """Each token's predecessor; zeros before the first."""
        held = state.held(run)
        before = torch.zeros_like(x[:, :1]) if held is None else held[0]
        state.keep(run, x[:, -1:])
        return torch.cat([before, x[:, :-1]], 1)

    def mixed(x: Tensor, previous: Tensor, share: Tensor) -> Tensor:
        return x * share + previous * (1 - share)

    class TimeMixReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        shift_state: Any
        recurrent_state: Any

        def __init__(self, spec: RwkvTimeMix, hidden: int) -> None:
            super().__init__()
            width = spec.attention_hidden_size
            self.time_decay, self.time_first = (
                vector(torch.linspace(-5.0, 3.0, width)),
                vector(torch.linspace(-1.0, 0.5, width)),
            )
            for name in ("key", "value", "receptance"):
                self.add_module(f"time_mix_{name}", vector(torch.linspace(0.1, 0.9, hidden)))
                self.add_module(name, nn.Linear(hidden, width, bias=False))
            self.shift_state, self.recurrent_state = state_class()(), state_class()()
            self.output = nn.Linear(width, hidden, bias=False)

        def _average(self, k: Tensor, v: Tensor, run: Run) -> Tensor:
            """Σ exp(k)·v / Σ exp(k), decayed by the token;
            all exponents less the largest one, so that none overflows.
            """
            first, decay = self.time_first.weight.float(), -self.time_decay.weight.float().exp()
            held = self.recurrent_state.held(run)
            zero = torch.zeros_like(k[:, 0])
            top, bottom, largest = (zero, zero, zero - 1e30) if held is None else held
            out = []
            for key, value in zip(k.unbind(1), v.unbind(1), strict=True):
                peak = torch.maximum(largest, key + first)
                past, now = (largest - peak).exp(), (key + first - peak).exp()
                out.append((past * top + now * value) / (past * bottom + now))
                peak = torch.maximum(largest + decay, key)
                past, now = (largest + decay - peak).exp(), (key - peak).exp()
                top, bottom, largest = past * top + now * value, past * bottom + now, peak
            self.recurrent_state.keep(run, top, bottom, largest)
            return torch.stack(out, 1)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            previous = shifted(x, run, self.shift_state)
            k, v, r = (
                self.get_submodule(name)(mixed(x, previous, getattr(self, f"time_mix_{name}").weight))
                for name in ("key", "value", "receptance")
            )
            out: Tensor = self.output(r.sigmoid() * self._average(k.float(), v.float(), run).to(x.dtype))
            return out

    class ChannelMixReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: RwkvChannelMix, hidden: int) -> None:
            super().__init__()
            self.time_mix_key, self.time_mix_receptance = (
                vector(torch.linspace(0.1, 0.9, hidden)),
                vector(torch.linspace(0.2, 0.8, hidden)),
            )
            self.shift_state = state_class()()
            self.key = nn.Linear(hidden, spec.intermediate_size, bias=False)
            self.receptance = nn.Linear(hidden, hidden, bias=False)
            self.value = nn.Linear(spec.intermediate_size, hidden, bias=False)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            previous = shifted(x, run, self.shift_state)
            inner = self.key(mixed(x, previous, self.time_mix_key.weight)).relu().square()
            open_by = self.receptance(mixed(x, previous, self.time_mix_receptance.weight)).sigmoid()
            out: Tensor = open_by * self.value(inner)
            return out

    return {"time": TimeMixReference, "channel": ChannelMixReference}
