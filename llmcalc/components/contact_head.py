"""ESM's contact head: predicts pairs of touching residues by logistic regression on all layers' attention maps.

Rao 2020 (Transformer protein language models are unsupervised structure learners). transformers: models/esm
(`EsmContactPredictionHead`). It is part of every checkpoint, and runs only when contacts are requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from ..algebra import Number
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import TORCH_WITNESS, ModelProperties, PartWitness, TokenMixer
from .output_part import ModelOutput, OutputPart

if TYPE_CHECKING:
    from torch import nn

    from ..flow.tree import Role
    from .stack import Stack


class ContactHead(OutputPart):
    """A linear layer from a token pair's attention scores to a contact score; forward passes skip the layer."""

    formula_source: ClassVar[str] = "Rao et al. 2020"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "classifier"
    role: ClassVar[Role] = "idle"

    def check_output(self, model_output: ModelOutput) -> None:
        mixer = model_output.stack.block.attention
        has_attention_maps = isinstance(mixer, TokenMixer) and mixer.head_sizes(model_output.hidden_size) is not None
        if model_output.kind != "encoder" or model_output.stack.variants or not has_attention_maps:
            raise ValueError(
                "contact_head: reads the attention maps of an encoder whose layers are alike; expected none"
            )

    def flow(self, recorder: Flow, x: Value, stack: Stack) -> Value:
        """Records the contact head's linear layer as unused. stack: the encoder with the attention maps."""
        heads: Number = stack.block.attention.head_sizes(x.width).heads
        attention_maps = Value(x.rows, (Axis("maps", stack.num_hidden_layers * heads),))
        return recorder.linear("", attention_maps, Axis("one", 1), bias=True)

    def reference(self, model_properties: ModelProperties, stack: Stack) -> nn.Module:
        """Builds a linear layer that no forward pass calls."""
        from torch import nn

        return nn.Linear(stack.num_hidden_layers * stack.block.attention.num_attention_heads, 1)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]
