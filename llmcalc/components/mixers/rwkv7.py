"""RWKV-7: time mixing with a generalized delta rule, and channel mixing (Peng et al. 2025, arXiv:2503.14456).

S ← S·(diag(w) − κ̂ᵀ(a ⊙ κ̂)) + vᵀk̃, o = S·r (§4.1), with a decay w and a rate a per channel, both made by low-rank
projections, like the gate. Layers above the first mix their values with those of the first layer.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...evidence import UNTESTED
from ...flow.axis import Axis, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import TransitionScan
from ..base import FiniteNumber, Flag, HeadDim, Heads, InnerWidth, ModelProperties, PartWitness, RecurrentMixer
from ..norm import Norm, norm_reference
from ..runtime import PassState, recurrent_state_class, vector_module
from .rwkv4 import RwkvChannelMix
from .token_shift import mix_tokens, record_previous_tokens, record_token_shift, shift_tokens

if TYPE_CHECKING:
    from torch import Tensor, nn

INPUT_NAMES = ("r", "w", "k", "v", "a", "g")
"""Names of the mixed inputs: of the receptance, the decay, the keys, the values, the rate and the gate."""

SOURCE = "Peng et al. 2025, §4.1"


class Rwkv7TimeMix(RecurrentMixer):
    """RWKV-7's time mixing, which replaces attention: a generalized delta rule with low-rank projections.

    num_heads: the number of heads, each with a state of head_dim × head_dim.
    head_dim: the size of a head.
    decay_rank, rate_rank, value_rank, gate_rank: the ranks of the projections that give the decay, the rate of the
        delta rule, the share of the first layer's values and the gate.
    first: whether it is the first layer's, whose values are not mixed; false by default.
    norm_eps: the ε of the norm of each head, 6.4e-4 by default.
    """

    formula_source: ClassVar[str] = SOURCE
    node_name: ClassVar[str] = "time_mix"
    uncounted_operations: ClassVar[str] = "the decays and outer products of RWKV-7's states"

    type: Literal["rwkv7_time_mix"] = "rwkv7_time_mix"
    num_heads: Heads
    head_dim: HeadDim
    decay_rank: InnerWidth
    rate_rank: InnerWidth
    value_rank: InnerWidth
    gate_rank: InnerWidth
    first: Flag = False
    norm_eps: FiniteNumber = Field(default=6.4e-4, ge=0)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim = Axis("heads", self.num_heads), Axis("head_dim", self.head_dim)
        head_axes: Shape = (heads, head_dim)
        previous_token = record_previous_tokens(recorder, x)
        mixed_inputs = {
            input_name: record_token_shift(recorder, x, previous_token, input_name) for input_name in INPUT_NAMES
        }
        recorder.hold(previous=previous_token)
        receptance, key, value = (
            recorder.linear(f"{input_name}_proj", mixed_inputs[input_name], *head_axes)
            for input_name in ("r", "k", "v")
        )
        decay = recorder.act(
            self._low_rank_output(recorder, "w_lora", mixed_inputs["w"], self.decay_rank, head_axes, "tanh"), "sigmoid"
        )
        learning_rate = recorder.act(
            self._low_rank_output(recorder, "a_lora", mixed_inputs["a"], self.rate_rank, head_axes), "sigmoid"
        )
        if not self.first:
            mix_weight = recorder.act(
                self._low_rank_output(recorder, "v_lora", mixed_inputs["v"], self.value_rank, head_axes), "sigmoid"
            )
            value = recorder.mul(value, mix_weight)  # the first layer's values are as large
        gate = self._low_rank_output(
            recorder, "g_lora", mixed_inputs["g"], self.gate_rank, head_axes, "sigmoid", bias=False
        )
        removed_key = recorder.mul(key, recorder.vector("k_k", *head_axes))
        key = recorder.mul(key, recorder.mul(learning_rate, recorder.vector("k_a", *head_axes)))
        scan_op = TransitionScan(receptance.axes[0].size, head_dim.size, head_dim.size, x.rows)
        wkv_output = recorder.core(
            "wkv", scan_op, receptance, decay, key, value, removed_key, learning_rate, axes=head_axes
        )
        recorder.state("recurrent_state", heads, head_dim, head_dim, bits=32)
        wkv_output = recorder.norm("g_norm", wkv_output, Norm(type="layernorm", eps=self.norm_eps), groups=heads)
        wkv_output = recorder.add(
            wkv_output, recorder.mul(value, recorder.mul(key, recorder.vector("r_k", *head_axes)))
        )
        return recorder.linear("o_proj", recorder.mul(wkv_output, gate), *x.axes)

    def _low_rank_output(
        self,
        recorder: Flow,
        module_name: str,
        x: Value,
        rank: Any,
        axes: Shape,
        activation_name: str = "",
        bias: bool = True,
    ) -> Value:
        """Records two linear layers, only the second with a bias, and the activation between; returns the output."""
        low_rank_x = recorder.linear(f"{module_name}_a", x, Axis(f"{module_name}_rank", rank))
        return recorder.linear(
            f"{module_name}_b",
            recorder.act(low_rank_x, activation_name) if activation_name else low_rank_x,
            *axes,
            bias=bias,
        )

    def describe(self, hidden_size: int) -> str:
        return f"RWKV-7 {self.num_heads} × {self.head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["time"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        ranks: dict[str, Any] = {"decay_rank": 5, "rate_rank": 4, "value_rank": 3, "gate_rank": 7}
        return [cls(num_heads=4, head_dim=6, **ranks), cls(num_heads=3, head_dim=8, **ranks, first=True)]


class Rwkv7ChannelMix(RwkvChannelMix):
    """RWKV-7's channel mixing, value(relu(key)²), which replaces a feed-forward network."""

    formula_source: ClassVar[str] = SOURCE
    witness: ClassVar[PartWitness] = UNTESTED

    type: Literal["rwkv7_channel_mix"] = "rwkv7_channel_mix"  # type: ignore[assignment]

    def flow(self, recorder: Flow, x: Value) -> Value:
        previous_token = record_previous_tokens(recorder, x)
        recorder.hold(previous=previous_token)
        key = recorder.linear(
            "key", record_token_shift(recorder, x, previous_token, "k"), Axis("ffn", self.intermediate_size)
        )
        squared_key = recorder.act(recorder.act(key, "relu"), "square")
        recorder.hold(inner=squared_key)
        return recorder.linear("value", squared_key, *x.axes)

    def describe(self, hidden_size: int) -> str:
        return f"RWKV-7 {self.intermediate_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["channel"](self, model_properties.hidden_size)


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    projection_letters = "rwkvag"

    class WkvRecurrence(nn.Module):
        """Runs S ← S·(diag(w) − κ̂ᵀ(a ⊙ κ̂)) + vᵀk, o = S·r. All: [batch, tokens, heads, d] → (o, last state)."""

        def forward(
            self,
            receptance: Tensor,
            decay: Tensor,
            k: Tensor,
            v: Tensor,
            removal_key: Tensor,
            learning_rate: Tensor,
            stored_state: Any,
        ) -> tuple[Tensor, Tensor]:
            receptance, k, v, removal_key, learning_rate = (
                tensor.float() for tensor in (receptance, k, v, removal_key, learning_rate)
            )
            if stored_state is None:
                wkv_state = receptance.new_zeros(receptance.shape[0], *receptance.shape[2:], receptance.shape[-1])
            else:
                wkv_state = stored_state[0]
            token_outputs = []
            for token in range(receptance.shape[1]):
                removed_value = wkv_state @ -removal_key[:, token, :, :, None]
                state_correction = removed_value * (removal_key * learning_rate)[:, token, :, None, :]
                state_update = v[:, token, :, :, None] * k[:, token, :, None, :]
                wkv_state = wkv_state * decay[:, token, :, None, :] + state_update + state_correction
                token_outputs.append((wkv_state @ receptance[:, token, :, :, None])[..., 0])
            return torch.stack(token_outputs, 1), wkv_state

    class Rwkv7TimeMixReference(nn.Module):
        """RWKV-7's time mixing. x: [batch, tokens, hidden] → same shape.

        A layer above the first mixes its values with themselves, in the place of the first layer's.
        """

        def __init__(self, spec: Rwkv7TimeMix, hidden_size: int) -> None:
            super().__init__()
            self.spec = spec
            heads_width = spec.num_heads * spec.head_dim
            for input_name in projection_letters:
                self.add_module(f"time_mix_{input_name}", vector_module(torch.linspace(0.1, 0.9, hidden_size)))
            for input_name in ("r", "k", "v"):
                self.add_module(f"{input_name}_proj", nn.Linear(hidden_size, heads_width, bias=False))
            for input_name, rank in self._projection_ranks().items():
                self.add_module(f"{input_name}_lora_a", nn.Linear(hidden_size, rank, bias=False))
                self.add_module(f"{input_name}_lora_b", nn.Linear(rank, heads_width, bias=input_name != "g"))
            self.k_k, self.k_a, self.r_k = (vector_module(torch.full((heads_width,), 0.5)) for _ in range(3))
            self.wkv = WkvRecurrence()
            self.shift_state: Any = recurrent_state_class()()
            self.recurrent_state: Any = recurrent_state_class()()
            self.g_norm = norm_reference(
                Norm(type="layernorm", eps=spec.norm_eps), heads_width, group_count=spec.num_heads
            )
            self.o_proj = nn.Linear(heads_width, hidden_size, bias=False)

        def _projection_ranks(self) -> dict[str, int]:
            """Returns the rank of each pair of low-rank projections."""
            spec = self.spec
            ranks = {"w": spec.decay_rank, "a": spec.rate_rank, "g": spec.gate_rank}
            return ranks if spec.first else {**ranks, "v": spec.value_rank}

        def _low_rank_output(self, input_name: str, x: Tensor) -> Tensor:
            """Runs a pair of low-rank projections with the activation between them. x: [batch, tokens, hidden]."""
            low_rank_x = self.get_submodule(f"{input_name}_lora_a")(x)
            low_rank_x = (
                low_rank_x.tanh() if input_name == "w" else low_rank_x.sigmoid() if input_name == "g" else low_rank_x
            )
            return self.get_submodule(f"{input_name}_lora_b")(low_rank_x)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            previous_token = shift_tokens(x, pass_state, self.shift_state)
            mix_weights: dict[str, Any] = {
                input_name: self.get_submodule(f"time_mix_{input_name}").weight for input_name in projection_letters
            }
            mixed_inputs = {
                input_name: mix_tokens(x, previous_token, mix_weight) for input_name, mix_weight in mix_weights.items()
            }
            receptance, k, v = (
                self.get_submodule(f"{input_name}_proj")(mixed_inputs[input_name]) for input_name in ("r", "k", "v")
            )
            decay = torch.exp(-0.6065 * self._low_rank_output("w", mixed_inputs["w"]).float().sigmoid())
            learning_rate = self._low_rank_output("a", mixed_inputs["a"]).sigmoid()
            if not self.spec.first:
                v = torch.lerp(v, v, self._low_rank_output("v", mixed_inputs["v"]).sigmoid())
            removed_key = nn.functional.normalize(self._split_heads(k * self.k_k.weight), dim=-1)
            k = k * (1 + (learning_rate - 1) * self.k_a.weight)
            wkv_output, wkv_state = self.wkv(
                *(self._split_heads(tensor) for tensor in (receptance, decay, k, v)),
                removed_key,
                self._split_heads(learning_rate),
                self.recurrent_state.load(pass_state),
            )
            self.recurrent_state.keep(pass_state, wkv_state)
            bonus = (self._split_heads(receptance) * self._split_heads(k * self.r_k.weight)).sum(
                -1, keepdim=True
            ) * self._split_heads(v)
            wkv_output = self.g_norm(wkv_output.flatten(2).to(x.dtype)) + bonus.flatten(2)
            return self.o_proj(wkv_output * self._low_rank_output("g", mixed_inputs["g"]))

        def _split_heads(self, x: Tensor) -> Tensor:
            """Splits the last axis into heads. [.., heads · d] → [.., heads, d]."""
            return x.unflatten(-1, (self.spec.num_heads, -1))

    class Rwkv7ChannelMixReference(nn.Module):
        """RWKV-7's channel mixing. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: Rwkv7ChannelMix, hidden_size: int) -> None:
            super().__init__()
            self.time_mix_k = vector_module(torch.linspace(0.1, 0.9, hidden_size))
            self.shift_state: Any = recurrent_state_class()()
            self.key = nn.Linear(hidden_size, spec.intermediate_size, bias=False)
            self.value = nn.Linear(spec.intermediate_size, hidden_size, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            previous_token = shift_tokens(x, pass_state, self.shift_state)
            return self.value(self.key(mix_tokens(x, previous_token, self.time_mix_k.weight)).relu().square())

    return {"time": Rwkv7TimeMixReference, "channel": Rwkv7ChannelMixReference}
