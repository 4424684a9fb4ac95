"""RWKV-4: time mixing instead of attention, channel mixing instead of a feed-forward network.

Peng et al. 2023 (arXiv:2305.13048).

Both interpolate between a token and the previous one with learned weights (the token shift). Time mixing is an average
of the values, weighted by exp(key) and by a learned decay per channel (§3.1.2). Its state is the numerator, the
denominator and the largest exponent. transformers: models/rwkv.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    TORCH_WITNESS,
    InnerWidth,
    ModelProperties,
    PartWitness,
    RecurrentMixer,
    SingleWidthNetwork,
    SizeSymbol,
)
from ..runtime import PassState, recurrent_state_class, vector_module
from .token_shift import mix_tokens, record_previous_tokens, record_token_shift, shift_tokens

if TYPE_CHECKING:
    from torch import Tensor, nn

AttentionWidth: TypeAlias = Annotated[int, SizeSymbol("r")]

SOURCE = "Peng et al. 2023, §3"


class RwkvTimeMix(RecurrentMixer):
    """RWKV-4's time mixing, which replaces attention and has a separate decay per channel.

    attention_hidden_size: the number of channels of the average.
    """

    formula_source: ClassVar[str] = SOURCE
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    node_name: ClassVar[str] = "time_mix"
    uncounted_operations: ClassVar[str] = "the WKV recurrence of RWKV"

    type: Literal["rwkv_time_mix"] = "rwkv_time_mix"
    attention_hidden_size: AttentionWidth

    def flow(self, recorder: Flow, x: Value) -> Value:
        channel_axis = Axis("channels", self.attention_hidden_size)
        previous_token = record_previous_tokens(recorder, x)
        key, value, receptance = (
            recorder.linear(
                projection_name, record_token_shift(recorder, x, previous_token, projection_name), channel_axis
            )
            for projection_name in ("key", "value", "receptance")
        )
        recorder.hold(previous=previous_token, k=key, v=value, r=receptance)
        gate = recorder.act(receptance, "sigmoid")
        bonus, decay = recorder.vector("time_first", channel_axis), recorder.vector("time_decay", channel_axis)
        wkv_output = recorder.scan("wkv", key, value, bonus, decay, axes=(channel_axis,))
        recorder.state("recurrent_state", JoinedShapes(((channel_axis,), (channel_axis,), (channel_axis,))), bits=32)
        return recorder.linear("output", recorder.mul(gate, wkv_output), *x.axes)

    def describe(self, hidden_size: int) -> str:
        return f"RWKV-4 {self.attention_hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["time"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(attention_hidden_size=24), cls(attention_hidden_size=16)]


class RwkvChannelMix(SingleWidthNetwork):
    """RWKV-4's channel mixing, σ(receptance) · value(relu(key)²), which replaces a feed-forward network.

    intermediate_size: the output width of key and input width of value.
    """

    formula_source: ClassVar[str] = SOURCE
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    node_name: ClassVar[str] = "channel_mix"
    kind: ClassVar[str] = "feed_forward"

    type: Literal["rwkv_channel_mix"] = "rwkv_channel_mix"
    intermediate_size: InnerWidth

    def flow(self, recorder: Flow, x: Value) -> Value:
        previous_token = record_previous_tokens(recorder, x)
        recorder.hold(previous=previous_token)
        squared_key = recorder.linear(
            "key", record_token_shift(recorder, x, previous_token, "key"), Axis("ffn", self.intermediate_size)
        )
        squared_key = recorder.act(recorder.act(squared_key, "relu"), "square")
        gate = recorder.act(
            recorder.linear("receptance", record_token_shift(recorder, x, previous_token, "receptance"), *x.axes),
            "sigmoid",
        )
        recorder.hold(inner=squared_key, open_by=gate)
        return recorder.mul(gate, recorder.linear("value", squared_key, *x.axes))

    def describe(self, hidden_size: int) -> str:
        return f"RWKV-4 {self.intermediate_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["channel"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(intermediate_size=40)]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class RwkvTimeMixReference(nn.Module):
        """RWKV-4's time mixing. x: [batch, tokens, hidden] → same shape."""

        shift_state: Any
        recurrent_state: Any

        def __init__(self, spec: RwkvTimeMix, hidden_size: int) -> None:
            super().__init__()
            heads_width = spec.attention_hidden_size
            self.time_decay = vector_module(torch.linspace(-5.0, 3.0, heads_width))
            self.time_first = vector_module(torch.linspace(-1.0, 0.5, heads_width))
            for projection_name in ("key", "value", "receptance"):
                self.add_module(f"time_mix_{projection_name}", vector_module(torch.linspace(0.1, 0.9, hidden_size)))
                self.add_module(projection_name, nn.Linear(hidden_size, heads_width, bias=False))
            self.shift_state, self.recurrent_state = recurrent_state_class()(), recurrent_state_class()()
            self.output = nn.Linear(heads_width, hidden_size, bias=False)

        def _weighted_average(self, k: Tensor, v: Tensor, pass_state: PassState) -> Tensor:
            """Computes Σ exp(k)·v / Σ exp(k) with a decay per token and a subtracted maximum."""
            bonus, decay = self.time_first.weight.float(), -self.time_decay.weight.float().exp()
            stored_state = self.recurrent_state.load(pass_state)
            zero_row = torch.zeros_like(k[:, 0])
            numerator, denominator, largest_exponent = (
                (zero_row, zero_row, zero_row - 1e30) if stored_state is None else stored_state
            )
            token_outputs = []
            for key, value in zip(k.unbind(1), v.unbind(1), strict=True):
                new_exponent = torch.maximum(largest_exponent, key + bonus)
                state_weight, token_weight = (largest_exponent - new_exponent).exp(), (key + bonus - new_exponent).exp()
                token_outputs.append(
                    (state_weight * numerator + token_weight * value) / (state_weight * denominator + token_weight)
                )
                new_exponent = torch.maximum(largest_exponent + decay, key)
                state_weight, token_weight = (largest_exponent + decay - new_exponent).exp(), (key - new_exponent).exp()
                numerator, denominator, largest_exponent = (
                    state_weight * numerator + token_weight * value,
                    state_weight * denominator + token_weight,
                    new_exponent,
                )
            self.recurrent_state.keep(pass_state, numerator, denominator, largest_exponent)
            return torch.stack(token_outputs, 1)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            previous_token = shift_tokens(x, pass_state, self.shift_state)
            k, v, receptance = (
                self.get_submodule(projection_name)(
                    mix_tokens(x, previous_token, getattr(self, f"time_mix_{projection_name}").weight)
                )
                for projection_name in ("key", "value", "receptance")
            )
            return self.output(
                receptance.sigmoid() * self._weighted_average(k.float(), v.float(), pass_state).to(x.dtype)
            )

    class RwkvChannelMixReference(nn.Module):
        """RWKV-4's channel mixing. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: RwkvChannelMix, hidden_size: int) -> None:
            super().__init__()
            self.time_mix_key = vector_module(torch.linspace(0.1, 0.9, hidden_size))
            self.time_mix_receptance = vector_module(torch.linspace(0.2, 0.8, hidden_size))
            self.shift_state = recurrent_state_class()()
            self.key = nn.Linear(hidden_size, spec.intermediate_size, bias=False)
            self.receptance = nn.Linear(hidden_size, hidden_size, bias=False)
            self.value = nn.Linear(spec.intermediate_size, hidden_size, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            previous_token = shift_tokens(x, pass_state, self.shift_state)
            squared_key = self.key(mix_tokens(x, previous_token, self.time_mix_key.weight)).relu().square()
            gate = self.receptance(mix_tokens(x, previous_token, self.time_mix_receptance.weight)).sigmoid()
            return gate * self.value(squared_key)

    return {"time": RwkvTimeMixReference, "channel": RwkvChannelMixReference}
