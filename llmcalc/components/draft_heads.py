"""Draft heads that read the target model's last hidden state, each of which predicts one token further ahead.

Medusa (Cai 2024, arXiv:2401.10774): medusa/model/medusa_model.py of FasterDecoding/Medusa, vllm/model_executor/models
of vLLM (`Medusa`). The MLP speculator (Wertheimer 2024, arXiv:2404.19124): fms_extras/models/speculator.py of
foundation-model-stack/fms-extras, `MLPSpeculator` of vLLM.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import Rows
from .base import Flag, InnerSize, ModelProperties, Part
from .norm import Norm

if TYPE_CHECKING:
    from torch import Tensor, nn


class DraftHeads(Part):
    """The base class of draft models with several language-model heads, whose logits are concatenated by position.

    num_heads: the number of heads.
    """

    kind: ClassVar[str] = "lm_head"

    num_heads: int = Field(ge=1, le=64, strict=True)

    def flow(self, recorder: Flow, x: Value, vocab: Axis, draft_vocab: Axis, rows: Rows) -> Value:
        """Records the operations of all heads. x: hidden states.

        vocab: the axis of the input tokens' vocabulary. draft_vocab: that of the vocabulary from which heads propose.
        """
        logits = self._record_logits(recorder, x.view(*x.axes, new_rows=rows), vocab, draft_vocab)
        if len(logits) == 1:
            return logits[0]
        recorder.hold(**{f"logits{head_index}": head_logits for head_index, head_logits in enumerate(logits)})
        return recorder.cat(
            *logits, axes=(draft_vocab,), rows=MultipliedRows(source_rows=rows, rows_per_source=self.num_heads)
        )

    def _record_logits(self, recorder: Flow, x: Value, vocab: Axis, draft_vocab: Axis) -> list[Value]:
        raise TypeError(f"{type(self).__name__} has no flow")

    def describe(self) -> str:
        """Returns a short description of the draft heads for reports."""
        raise TypeError(f"{type(self).__name__} has no description")


class MedusaHeads(DraftHeads):
    """Heads of residual layers, x + silu(W·x), and a projection to the vocabulary (Medusa).

    num_layers: the number of residual layers of each head.
    bias: whether the residual layers have a bias, false by default.
    shared_projection: whether all heads have the same projection to the vocabulary, false by default.
    """

    type: Literal["medusa"] = "medusa"
    num_layers: int = Field(ge=1, le=64, strict=True)
    bias: Flag = False
    shared_projection: Flag = False

    def _record_logits(self, recorder: Flow, x: Value, vocab: Axis, draft_vocab: Axis) -> list[Value]:
        head_states = [self._record_residual_layers(recorder, x, head_index) for head_index in range(self.num_heads)]
        if not self.shared_projection:
            return [recorder.linear(f"lm_heads_{index}", state, draft_vocab) for index, state in enumerate(head_states)]
        total_rows = MultipliedRows(source_rows=x.rows, rows_per_source=self.num_heads)
        first_logits = recorder.linear("lm_heads_0", head_states[0], draft_vocab, counted_rows=total_rows)
        return [first_logits, *(recorder.apply_again(head_state, first_logits) for head_state in head_states[1:])]

    def describe(self) -> str:
        return f"{self.num_heads} Medusa heads of {self.num_layers} layer{'s' * (self.num_layers > 1)}"

    def _record_residual_layers(self, recorder: Flow, x: Value, head_index: int) -> Value:
        """Records the operations of the residual layers of a head and returns their output."""
        for layer_index in range(self.num_layers):
            projected_x = recorder.linear(f"blocks_{head_index}_{layer_index}", x, *x.axes, bias=self.bias)
            x = recorder.add(x, recorder.act(projected_x, "silu"))
        return x

    def reference(self, model_properties: ModelProperties, vocab_size: int, draft_vocab: int) -> nn.Module:
        return _reference_classes()[0](self, model_properties.hidden_size, draft_vocab)


class SpeculatorHeads(DraftHeads):
    """Draft stages in sequence: state = gelu(norm(W·state + previous token's embedding)), projected to the vocabulary.

    The state of the first stage is the target's last hidden state, that of each further stage the one before it.

    inner_size: the width of a stage.
    tied: whether all stages have the same weights, but for the projection of the first (MLP speculator); false by
        default.
    norm: the norm of each stage, an RMSNorm with a shift by default.
    input_norm: the norm of the target's hidden state, whose output is divided by √2; none by default.
    """

    type: Literal["mlp_speculator"] = "mlp_speculator"
    inner_size: InnerSize
    tied: Flag = False
    norm: Norm = Norm(type="rmsnorm", bias=True, eps=1e-6)
    input_norm: Norm | None = None

    def _record_logits(self, recorder: Flow, x: Value, vocab: Axis, draft_vocab: Axis) -> list[Value]:
        inner_axis = Axis("inner", self.inner_size)
        head_state = (
            x if self.input_norm is None else recorder.scale(recorder.norm("ln0", x, self.input_norm), 0.5**0.5)
        )
        recorder.hold(state=head_state)
        logits: list[Value] = []
        shared_weights: dict[str, Value] = {}
        token_table: Weight | None = None
        for head_index in range(self.num_heads):
            if token_table is not None and self.tied:
                token_vector = recorder.look_up(token_table, x.rows, index_source="chosen")
            else:
                token_vector, token_table = recorder.table(
                    f"emb_{head_index}", vocab, inner_axis, output_rows=x.rows, index_source="chosen", kind="embedding"
                )
            recorder.hold(token=token_vector)
            with recorder.function():
                head_state = self._next_state(recorder, head_index, head_state, token_vector, shared_weights)
            recorder.hold(state=head_state)
            if head_index and self.tied:
                logits.append(recorder.apply_again(head_state, logits[0]))
                continue
            counted_rows = MultipliedRows(source_rows=x.rows, rows_per_source=self.num_heads) if self.tied else None
            logits.append(recorder.linear(f"head_{head_index}", head_state, draft_vocab, counted_rows=counted_rows))
        return logits

    def _next_state(
        self, recorder: Flow, head_index: int, head_state: Value, token_vector: Value, shared_weights: dict[str, Value]
    ) -> Value:
        """Records the operations of a stage; returns its state. shared_weights: first uses of shared weights."""
        if head_index > 1 and self.tied:
            projected_state = recorder.apply_again(head_state, shared_weights["proj"])
        else:
            counted_rows = None
            if self.tied and head_index:
                counted_rows = MultipliedRows(source_rows=head_state.rows, rows_per_source=self.num_heads - 1)
            projected_state = recorder.linear(
                f"proj_{head_index}", head_state, *token_vector.axes, counted_rows=counted_rows
            )
            shared_weights["proj"] = projected_state
        recorder.hold(projected=projected_state)
        state_weight = 0.5 ** (0.5 / self.num_heads)
        token_weight = ((1 - state_weight**2) * self.inner_size / 2) ** 0.5
        state_token_sum = recorder.add(
            recorder.scale(projected_state, state_weight), recorder.scale(token_vector, token_weight)
        )
        recorder.hold(joined=state_token_sum)
        if head_index and self.tied:
            return recorder.act(
                recorder.normalized(state_token_sum, self.norm, weight_owner=shared_weights["ln"]), "gelu"
            )
        shared_weights["ln"] = recorder.norm(f"ln_{head_index}", state_token_sum, self.norm)
        return recorder.act(shared_weights["ln"], "gelu")

    def describe(self) -> str:
        return f"{self.num_heads} {'tied ' * self.tied}stages of an MLP speculator, {self.inner_size} wide"

    def reference(self, model_properties: ModelProperties, vocab_size: int, draft_vocab: int) -> nn.Module:
        return _reference_classes()[1](self, model_properties.hidden_size, vocab_size, draft_vocab)


@cache
def _reference_classes() -> tuple[type[nn.Module], type[nn.Module]]:
    import torch
    from torch import nn

    class MedusaReference(nn.Module):
        """Runs Medusa's heads on every position. x: [batch, positions, hidden] → [batch, heads · positions, tokens]."""

        def __init__(self, spec: MedusaHeads, hidden_size: int, draft_vocab: int) -> None:
            super().__init__()
            self.heads, self.layers, self.spec = spec.num_heads, spec.num_layers, spec
            for head_index in range(spec.num_heads):
                for layer_index in range(spec.num_layers):
                    self.add_module(
                        f"blocks_{head_index}_{layer_index}", nn.Linear(hidden_size, hidden_size, bias=spec.bias)
                    )
            for head_index in range(1 if spec.shared_projection else spec.num_heads):
                self.add_module(f"lm_heads_{head_index}", nn.Linear(hidden_size, draft_vocab, bias=False))

        def _logits_of_head(self, head_index: int, x: Tensor) -> Tensor:
            for layer_index in range(self.layers):
                x = x + nn.functional.silu(self.get_submodule(f"blocks_{head_index}_{layer_index}")(x))
            logits: Tensor = self.get_submodule(f"lm_heads_{0 if self.spec.shared_projection else head_index}")(x)
            return logits

        def forward(self, x: Tensor) -> Tensor:
            logits = [self._logits_of_head(head_index, x) for head_index in range(self.heads)]
            return logits[0] if self.heads == 1 else torch.cat(logits, 1)

    class SpeculatorReference(nn.Module):
        """Runs an MLP speculator's stages. x: [batch, positions, hidden] → [batch, stages · positions, tokens].

        The first token is 0, and each further one that of the highest score in the stage before.
        """

        def __init__(self, spec: SpeculatorHeads, hidden_size: int, vocab_size: int, draft_vocab: int) -> None:
            super().__init__()
            self.stages, self.tied = spec.num_heads, spec.tied
            inner_width = spec.inner_size
            self.state_weight = 0.5 ** (0.5 / spec.num_heads)
            self.token_weight = ((1 - self.state_weight**2) * inner_width / 2) ** 0.5
            if spec.input_norm is not None:
                self.ln0 = spec.input_norm.reference(ModelProperties(hidden_size))
            for head_index in range(spec.num_heads):
                if head_index < 2 or not spec.tied:
                    self.add_module(
                        f"proj_{head_index}",
                        nn.Linear(inner_width if head_index else hidden_size, inner_width, bias=False),
                    )
                if head_index == 0 or not spec.tied:
                    self.add_module(f"emb_{head_index}", nn.Embedding(vocab_size, inner_width))
                    self.add_module(f"ln_{head_index}", spec.norm.reference(ModelProperties(inner_width)))
                    self.add_module(f"head_{head_index}", nn.Linear(inner_width, draft_vocab, bias=False))

        def _next_state(self, head_index: int, head_state: Tensor, token_vector: Tensor) -> Tensor:
            projected_state = self.get_submodule(f"proj_{min(head_index, 1) if self.tied else head_index}")(head_state)
            state_token_sum = projected_state * self.state_weight + token_vector * self.token_weight
            return nn.functional.gelu(self.get_submodule(f"ln_{0 if self.tied else head_index}")(state_token_sum))

        def forward(self, x: Tensor) -> Tensor:
            head_state = self.ln0(x) * 0.5**0.5 if hasattr(self, "ln0") else x
            logits: list[Tensor] = []
            for head_index in range(self.stages):
                stage_index = 0 if self.tied else head_index
                table_module = self.get_submodule(f"emb_{stage_index}")
                token_vector = table_module(
                    logits[-1].argmax(-1) if logits else x.new_zeros(x.shape[:-1], dtype=torch.long)
                )
                head_state = self._next_state(head_index, head_state, token_vector)
                logits.append(self.get_submodule(f"head_{stage_index}")(head_state))
            return logits[0] if self.stages == 1 else torch.cat(logits, 1)

    return MedusaReference, SpeculatorReference
