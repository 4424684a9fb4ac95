"""RWKV-5 and RWKV-6: time mixing whose state is one matrix per head (Peng et al. 2024, arXiv:2404.05892).

S ← w·S + kᵀv, o = r·(S + u·kᵀv), with a learned bonus u and a decay w per channel; then a norm of each head and a gate.
RWKV-6 makes the decay and the shares of the token shift from the tokens, with low-rank projections (§4).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import DecayScan
from ..base import FiniteNumber, HeadDim, Heads, InnerWidth, ModelProperties, RecurrentMixer
from ..norm import Norm, norm_reference
from ..runtime import PassState, recurrent_state_class, vector_module
from .token_shift import mix_tokens, record_previous_tokens, record_token_shift, shift_tokens

if TYPE_CHECKING:
    from torch import Tensor, nn

INPUT_NAMES = ("w", "k", "v", "r", "g")
"""Names of the mixed inputs: of the decay, the keys, the values, the receptance and the gate."""


class RwkvHeadMix(RecurrentMixer):
    """The time mixing of RWKV-5, and of RWKV-6, which adds low-rank projections.

    num_heads: the number of heads, each with a state of head_dim × head_dim.
    head_dim: the size of a head.
    shift_rank: the rank of the projections that give the shares of the token shift (RWKV-6); learned shares by default.
    decay_rank: the rank of the projections that give the decay (RWKV-6); a learned decay by default.
    norm_eps: the ε of the norm of each head, 1e-5 by default.
    """

    formula_source: ClassVar[str] = "Peng et al. 2024, §4"
    node_name: ClassVar[str] = "time_mix"
    uncounted_operations: ClassVar[str] = "the decays of RWKV's states"

    type: Literal["rwkv_head_mix"] = "rwkv_head_mix"
    num_heads: Heads
    head_dim: HeadDim
    shift_rank: InnerWidth | None = None
    decay_rank: InnerWidth | None = None
    norm_eps: FiniteNumber = Field(default=1e-5, ge=0)

    def check_fields(self) -> None:
        if (self.shift_rank is None) != (self.decay_rank is None):
            raise ValueError("decay_rank: RWKV-6 has it with shift_rank, RWKV-5 has neither; expected both or none")

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim = Axis("heads", self.num_heads), Axis("head_dim", self.head_dim)
        head_axes: Shape = (heads, head_dim)
        previous_token = record_previous_tokens(recorder, x)
        mixed_inputs = self._mixed_inputs(recorder, x, previous_token)
        recorder.hold(previous=previous_token)
        receptance, key, value = (
            recorder.linear(projection_name, mixed_inputs[projection_name[0]], *head_axes)
            for projection_name in ("receptance", "key", "value")
        )
        gate = recorder.act(recorder.linear("gate", mixed_inputs["g"], *head_axes), "silu")
        scan_inputs = [receptance, key, value, recorder.vector("time_first", *head_axes)]
        decay = recorder.vector("time_decay", *head_axes)
        if self.decay_rank is not None:
            rank_axis = Axis("decay_rank", self.decay_rank)
            low_rank_x = recorder.act(recorder.linear("decay_a", mixed_inputs["w"], rank_axis), "tanh")
            decay = recorder.add(recorder.linear("decay_b", low_rank_x, *head_axes), decay)
        scan_op = DecayScan(receptance.axes[0].size, head_dim.size, head_dim.size, x.rows)
        wkv_output = recorder.core("wkv", scan_op, *scan_inputs, recorder.act(decay, "exp"), axes=head_axes)
        recorder.state("recurrent_state", heads, head_dim, head_dim, bits=32)
        wkv_output = recorder.norm("ln_x", wkv_output, Norm(type="layernorm", eps=self.norm_eps), groups=heads)
        return recorder.linear("output", recorder.mul(wkv_output, gate), *x.axes)

    def _mixed_inputs(self, recorder: Flow, x: Value, previous_token: Value) -> dict[str, Value]:
        """Returns, per name in `INPUT_NAMES`, a weighted mix of each token's vector with the previous token's."""
        if self.shift_rank is None:
            return {
                input_name: record_token_shift(recorder, x, previous_token, input_name)
                for input_name in INPUT_NAMES[1:]
            }
        ranks: list[Shape] = [(Axis(f"rank_{input_name}", self.shift_rank),) for input_name in INPUT_NAMES]
        low_rank_x = recorder.act(
            recorder.linear(
                "shift_a", record_token_shift(recorder, x, previous_token, "x"), JoinedShapes(tuple(ranks))
            ),
            "tanh",
        )
        mixed_inputs = {}
        for input_name, low_rank_input in zip(INPUT_NAMES, recorder.split(low_rank_x, *ranks), strict=True):
            mix_weight = recorder.add(
                recorder.linear(f"shift_b_{input_name}", low_rank_input, *x.axes),
                recorder.vector(f"time_mix_{input_name}", *x.axes),
            )
            mixed_inputs[input_name] = recorder.add(
                recorder.mul(x, mix_weight), recorder.mul(previous_token, recorder.complement(mix_weight))
            )
        return mixed_inputs

    def describe(self, hidden_size: int) -> str:
        return f"RWKV-{5 if self.shift_rank is None else 6} {self.num_heads} × {self.head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_heads=4, head_dim=6), cls(num_heads=3, head_dim=8, shift_rank=5, decay_rank=7)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    projection_letters = "wkvrg"

    class WkvRecurrence(nn.Module):
        """S ← w·S + kᵀv, o = r·(S + u·kᵀv). u: [heads · d], others: [batch, tokens, heads, d] → (o, the last state)."""

        def forward(
            self, receptance: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, stored_state: Any
        ) -> tuple[Tensor, Tensor]:
            if stored_state is None:
                wkv_state = receptance.new_zeros(receptance.shape[0], *receptance.shape[2:], receptance.shape[-1])
            else:
                wkv_state = stored_state[0]
            token_outputs, bonus = [], bonus.float().unflatten(-1, (receptance.shape[2], -1))[..., None]
            for token in range(receptance.shape[1]):
                state_update = k[:, token, :, :, None] @ v[:, token, :, None, :]
                token_outputs.append((receptance[:, token, :, None, :] @ (wkv_state + bonus * state_update))[..., 0, :])
                wkv_state = decay[:, token, :, :, None] * wkv_state + state_update
            return torch.stack(token_outputs, 1), wkv_state

    class RwkvHeadMixReference(nn.Module):
        """Time mixing of RWKV-5 and RWKV-6. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: RwkvHeadMix, hidden_size: int) -> None:
            super().__init__()
            self.spec = spec
            heads_width = spec.num_heads * spec.head_dim
            has_low_ranks = spec.shift_rank is not None and spec.decay_rank is not None
            for input_name in projection_letters if has_low_ranks else projection_letters[1:]:
                self.add_module(f"time_mix_{input_name}", vector_module(torch.linspace(0.1, 0.9, hidden_size)))
            if spec.shift_rank is not None and spec.decay_rank is not None:
                self.time_mix_x = vector_module(torch.linspace(0.1, 0.9, hidden_size))
                self.shift_a = nn.Linear(hidden_size, len(projection_letters) * spec.shift_rank, bias=False)
                for input_name in projection_letters:
                    self.add_module(f"shift_b_{input_name}", nn.Linear(spec.shift_rank, hidden_size, bias=False))
                self.decay_a = nn.Linear(hidden_size, spec.decay_rank, bias=False)
                self.decay_b = nn.Linear(spec.decay_rank, heads_width, bias=False)
            for input_name in ("receptance", "key", "value", "gate"):
                self.add_module(input_name, nn.Linear(hidden_size, heads_width, bias=False))
            self.time_decay = vector_module(torch.linspace(-5, 1, heads_width))
            self.time_first = vector_module(torch.zeros(heads_width))
            self.wkv = WkvRecurrence()
            self.shift_state: Any = recurrent_state_class()()
            self.recurrent_state: Any = recurrent_state_class()()
            self.ln_x = norm_reference(
                Norm(type="layernorm", eps=spec.norm_eps), heads_width, group_count=spec.num_heads
            )
            self.output = nn.Linear(heads_width, hidden_size, bias=False)

        def _mixed_inputs(self, x: Tensor, pass_state: PassState) -> dict[str, Tensor]:
            previous_token = shift_tokens(x, pass_state, self.shift_state)
            mix_weights: dict[str, Any] = {
                input_name: self.get_submodule(f"time_mix_{input_name}").weight
                for input_name in projection_letters
                if hasattr(self, f"time_mix_{input_name}")
            }
            if self.spec.shift_rank is not None:
                low_rank_x = self.shift_a(mix_tokens(x, previous_token, self.time_mix_x.weight)).tanh()
                for input_name, low_rank_input in zip(
                    projection_letters, low_rank_x.chunk(len(projection_letters), -1), strict=True
                ):
                    mix_weights[input_name] = (
                        self.get_submodule(f"shift_b_{input_name}")(low_rank_input) + mix_weights[input_name]
                    )
            return {
                input_name: mix_tokens(x, previous_token, mix_weight) for input_name, mix_weight in mix_weights.items()
            }

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            mixed_inputs = self._mixed_inputs(x, pass_state)
            receptance, k, v = (
                self.get_submodule(projection_name)(mixed_inputs[projection_name[0]])
                .unflatten(-1, (spec.num_heads, -1))
                .float()
                for projection_name in ("receptance", "key", "value")
            )
            decay = self.time_decay.weight.expand(*x.shape[:2], -1)
            if spec.decay_rank is not None:
                decay = decay + self.decay_b(self.decay_a(mixed_inputs["w"]).tanh())
            decay = torch.exp(-torch.exp(decay.float())).unflatten(-1, (spec.num_heads, -1))
            wkv_output, wkv_state = self.wkv(
                receptance, k, v, decay, self.time_first.weight, self.recurrent_state.load(pass_state)
            )
            self.recurrent_state.keep(pass_state, wkv_state)
            wkv_output = self.ln_x(wkv_output.flatten(2).to(x.dtype))
            return self.output(wkv_output * nn.functional.silu(self.get_submodule("gate")(mixed_inputs["g"])))

    return RwkvHeadMixReference
