"""The hidden states of a target model, which a draft model of speculative decoding reads in addition to tokens.

EAGLE (Li 2024, arXiv:2401.15077, §4.1) projects the last hidden state beside the token embedding; EAGLE-3 (Li 2025,
arXiv:2503.01840, §3) projects the states of several layers. Sources: eagle/model/cnets1.py and cnets.py of
SafeAILab/EAGLE; specforge/modeling/draft of sgl-project/SpecForge.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value
from .base import Flag, InnerWidth, LayerProtocol, ModelProperties
from .norm import Norm, norm_reference
from .residual_streams import ResidualStreams
from .runtime import PassState, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn

EAGLE_SOURCE, EAGLE_3_SOURCE = "Li et al. 2024 (EAGLE), §4.1", "Li et al. 2025 (EAGLE-3), §3"
DFLASH_SOURCE, MEDUSA_SOURCE = "Chen et al. 2026 (DFlash)", "Cai et al. 2024 (Medusa), §2.1"


class TargetStates(ResidualStreams):
    """The projection of a target model's hidden states to the first input of a draft model's residual stream.

    start: what the residual stream starts from. `joined`: the projection of the token embedding beside the states
        (EAGLE). `states`: the projection of the states (EAGLE-3); the first layer, of type `draft`, reads the
        embedding. `embedding`: the embedding; attention of type `context` reads the projection of the states (DFlash).
        `state`: the last hidden state itself, without a projection (Medusa).
        `target`: the projection of the states, one of which is the target's embedding of the token; no layer reads an
        embedding, and attention with `kv_shared` reads the target's cached keys and values (Gemma 4).
    states: the number of hidden states of a token, of as many layers of the target.
    size: the width of one state, hidden_size by default.
    bias: whether the projection has a bias, false by default.
    state_norm: the norm of each state before the projection (EAGLE-3.1), none by default.
    joined_norm: the norm of all states of a token together, none by default.
    output_norm: the norm of the projection, none by default.
    masked: whether a learned vector stands for the states of tokens that are not verified yet (P-EAGLE); false by
        default.
    """

    type: Literal["target_states"] = "target_states"
    start: Literal["joined", "states", "embedding", "target", "state"] = "states"
    states: int = Field(ge=1, le=256, strict=True)
    size: InnerWidth | None = None
    bias: Flag = False
    state_norm: Norm | None = None
    joined_norm: Norm | None = None
    output_norm: Norm | None = None
    masked: Flag = False

    def check_fields(self) -> None:
        if self.state_norm is not None and self.joined_norm is not None:
            raise ValueError("state_norm and joined_norm: the states have one or the other; expected one of them")
        has_projection = any((self.size, self.bias, self.state_norm, self.joined_norm, self.output_norm, self.masked))
        if self.start == "state" and (self.states > 1 or has_projection):
            raise ValueError("start: 'state' is one state without a projection; expected states = 1 and no other field")

    @property
    def from_target(self) -> bool:
        return self.start in ("target", "state")

    @property
    def starts_without_embedding(self) -> bool:
        return self.start == "state"

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        stream_starts = {
            layer.required_stack_fields()["streams"].get("start")
            for layer in layers.values()
            if "streams" in layer.required_stack_fields()
        }
        if stream_starts != ({self.start} - {"joined", "target", "state"}):
            raise ValueError(
                f"streams.start: '{self.start}' does not fit the layers; expected 'states' for layers of type 'draft', "
                "'embedding' for attention of type 'context', 'joined', 'target' or 'state' for others"
            )

    @property
    def formula_source(self) -> str:
        source_of_kind = {
            "joined": EAGLE_SOURCE,
            "states": EAGLE_3_SOURCE,
            "embedding": DFLASH_SOURCE,
            "target": "Gemma 4 2026",
            "state": MEDUSA_SOURCE,
        }
        return source_of_kind[self.start]

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        if self.start == "state":
            return recorder.received(x, *x.axes)
        projected_states = recorder.part("target_states", self, x)
        if self.from_target:
            recorder.layer_memo["from_target"] = True
        if self.start != "embedding":
            return projected_states
        recorder.layer_memo["target_states"] = projected_states
        recorder.keep(target_states=projected_states)
        return x

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the projection of the target's hidden states. x: the token embeddings."""
        hidden_axis = x.axes[-1]
        state_axis = Axis("states", self.states)
        width_axis = hidden_axis if self.size is None else Axis("target", self.size)
        target_states = recorder.received(x, state_axis, width_axis)
        if self.masked:
            recorder.vector("mask_hidden", state_axis, width_axis, role="kept")
        recorder.hold(states=target_states)
        if self.state_norm is not None:
            target_states = recorder.norm("state_norm", target_states, self.state_norm, (width_axis,), state_axis)
        elif self.joined_norm is not None:
            target_states = recorder.norm("joined_norm", target_states, self.joined_norm)
        projected_states = target_states
        if self.start == "joined":
            projected_states = recorder.cat(x, target_states, axes=(JoinedShapes((x.axes, target_states.axes)),))
        recorder.hold(states=target_states, joined=projected_states)
        projected_x = recorder.linear("fc", projected_states, hidden_axis, bias=self.bias)
        return projected_x if self.output_norm is None else recorder.part("output_norm", self.output_norm, projected_x)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        """Returns no examples, because the stack's examples already include this component."""
        return []


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class StateProjection(nn.Module):
        """Projects a target model's states (zeros here). Token embeddings [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: TargetStates, model_properties: ModelProperties) -> None:
            super().__init__()
            hidden_size = model_properties.hidden_size
            self.states, self.size, self.joins = spec.states, spec.size or hidden_size, spec.start == "joined"
            if spec.masked:
                self.mask_hidden = vector_module(torch.zeros(self.states * self.size))
            if spec.state_norm is not None:
                self.state_norm = norm_reference(spec.state_norm, self.states, self.size)
            if spec.joined_norm is not None:
                self.joined_norm = spec.joined_norm.reference(ModelProperties(self.states * self.size))
            states_width = self.states * self.size + (hidden_size if self.joins else 0)
            self.fc = nn.Linear(states_width, hidden_size, bias=spec.bias)
            if spec.output_norm is not None:
                self.output_norm = spec.output_norm.reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            target_states = x.new_zeros(*x.shape[:-1], self.states * self.size)
            if hasattr(self, "state_norm"):
                target_states = self.state_norm(target_states.unflatten(-1, (self.states, self.size))).flatten(-2)
            if hasattr(self, "joined_norm"):
                target_states = self.joined_norm(target_states)
            projected_states: Tensor = self.fc(torch.cat([x, target_states], -1) if self.joins else target_states)
            return self.output_norm(projected_states) if hasattr(self, "output_norm") else projected_states

    class TargetStatesReference(nn.Module):
        """Projects the target model's states before the first layer, in the module that splits residual streams."""

        def __init__(self, spec: TargetStates, model_properties: ModelProperties) -> None:
            super().__init__()
            self.start = spec.start
            if spec.start != "state":
                self.target_states = StateProjection(spec, model_properties)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            if self.start == "state":
                return x
            projected_states: Tensor = self.target_states(x)
            pass_state.shared_values["target_states"] = projected_states
            return x if self.start == "embedding" else projected_states

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return x

    return TargetStatesReference
