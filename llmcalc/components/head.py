"""The language-model head: hidden states → logits over the vocabulary, tied to the input embedding or not.

Tying: Press & Wolf 2017 (arXiv:1608.05859). BERT's head first transforms the hidden states (Devlin 2019,
`BertLMPredictionHead`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import LOGITS, SEQUENCES, Rows
from .base import (
    SINGLE_TOKEN_VOCABULARY,
    TORCH_WITNESS,
    Component,
    FiniteNumber,
    Flag,
    ModelProperties,
    PartWitness,
    Vocab,
)
from .networks.feed_forward import activate
from .part_choice import component_type

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .draft_heads import MedusaHeads, SpeculatorHeads
    from .head_clusters import Clusters
    from .head_transform import Transform
else:
    Transform, Clusters = (component_type("head_transform:Transform"), component_type("head_clusters:Clusters"))
    MedusaHeads = component_type("draft_heads:MedusaHeads")
    SpeculatorHeads = component_type("draft_heads:SpeculatorHeads")


class LMHead(Component):
    """A language-model head: logits = x·Wᵀ (+ b) at every requested position.

    bias: whether it has a bias, tied or not (GPT-J, BERT); false by default.
    draft_vocab_size: the number of tokens that a draft can propose, the most frequent ones of the target's vocabulary
        (EAGLE-3); by default all of the model's.
    transform: the layers before the vocabulary (BERT); none by default.
    float32_loss: whether the loss is computed of a float32 copy of the logits, true by default; of the logits as they
        are otherwise (BERT, BART, T5).
    logit_scale: the factor of the logits before the loss (Cohere's models); none by default. Counts do not change.
    logit_softcapping: the soft cap of the logits before the loss (Gemma 2), whose tanh the backward pass keeps; none by
        default. Counts do not change.
    more_columns: whether the output projection reads the whole width of the layers, with the embedding's weight for
        the first part of it and one of its own for the rest (MobileBERT); it needs a transform, and an embedding that
        is narrower than the layers. False by default.
    clusters: the clusters of tokens, of which the best are scored alone (Gemma 4's drafts); none by default.
    medusa: the heads of a draft of Medusa in the place of one head; none by default.
    mlp_speculator: the stages of an MLP speculator in the place of one head; none by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    noun: ClassVar[str] = "head"
    kind: ClassVar[str] = "lm_head"

    type: Literal["lm"] = "lm"
    bias: Flag = False
    draft_vocab_size: Vocab | None = None
    transform: Transform | None = None
    float32_loss: Flag = True
    logit_scale: FiniteNumber | None = Field(default=None, gt=0)
    logit_softcapping: FiniteNumber | None = Field(default=None, gt=0)
    more_columns: Flag = False
    clusters: Clusters | None = None
    medusa: MedusaHeads | None = None
    mlp_speculator: SpeculatorHeads | None = None

    def check_fields(self) -> None:
        if self.more_columns and (self.transform is None or self.transform.size is not None):
            raise ValueError("more_columns: needs a transform without a size; expected false")
        if self.clusters is not None and (self.bias or self.transform is not None or self.draft_vocab_size is not None):
            raise ValueError("clusters: are of a plain head; expected no bias, no transform and no draft_vocab_size")
        head_parts = (self.transform, self.clusters, self.medusa, self.mlp_speculator, self.bias or None)
        if self.draft_heads is not None and sum(head_part is not None for head_part in head_parts) > 1:
            raise ValueError(
                "medusa, mlp_speculator: stand alone; expected one of them, without bias, transform and clusters"
            )

    @property
    def draft_heads(self) -> MedusaHeads | SpeculatorHeads | None:
        """The heads of a draft model that has several language-model heads; None if there is only one head."""
        return self.mlp_speculator if self.medusa is None else self.medusa

    @property
    def formula_source(self) -> str:
        if self.medusa is not None:
            return "Cai et al. 2024 (Medusa), §2.1"
        if self.mlp_speculator is not None:
            return "Wertheimer et al. 2024, §3"
        return "" if self.transform is None else "Devlin et al. 2019, §3.1"

    def flow(
        self,
        recorder: Flow,
        x: Value,
        vocab: Axis = SINGLE_TOKEN_VOCABULARY,
        width: Axis | None = None,
        output_weight: Weight | None = None,
    ) -> Value:
        """Records the operations of the output head in the compute graph. width: the embedding's; default x's width.

        output_weight: the weight of the logits: the tied embedding's, or by default a separate one.
        """
        logit_rows: Rows = LOGITS
        target_vocab, vocab = vocab, vocab if self.draft_vocab_size is None else Axis("vocab", self.draft_vocab_size)
        if self.draft_heads is not None:
            return self.draft_heads.flow(recorder, x, target_vocab, vocab, logit_rows)
        if isinstance(x.rows, MultipliedRows):  # output queries, or each predict stream
            logit_rows = x.rows if x.rows.source_rows is SEQUENCES else replace(x.rows, source_rows=LOGITS)
        if self.clusters is not None:
            return self.clusters.flow(recorder, x, vocab, output_weight, logit_rows)
        if self.transform is None:
            if output_weight is not None and output_weight.is_counted:
                recorder.current_scope.node_fields["source"] = "Press & Wolf 2017"
            return recorder.linear("", x, vocab, bias=self.bias, weight=output_weight, rows=logit_rows)
        transform, dense_axes = self.transform, (x.axes if width is None or self.more_columns else (width,))
        if transform.size is not None:
            dense_axes = (Axis("transform", transform.size),)
        if transform.bottleneck_size is not None:
            bottleneck_axis = Axis("bottleneck", transform.bottleneck_size)
            x = recorder.act(
                recorder.linear("bottleneck", x, bottleneck_axis, bias=transform.bias, rows=logit_rows),
                transform.hidden_act,
            )
            recorder.hold(x=x)
        transformed_x = recorder.act(
            recorder.linear("dense", x, *dense_axes, bias=transform.bias, rows=logit_rows), transform.hidden_act
        )
        recorder.hold(x=transformed_x)
        if transform.norm is not None:
            transformed_x = recorder.norm("norm", transformed_x, transform.norm)
            recorder.hold(x=transformed_x)
        if not self.more_columns:
            return recorder.linear(
                "decoder", transformed_x, vocab, bias=self.bias, weight=output_weight, rows=logit_rows
            )
        input_axes = x.axes if width is None else (width,)
        embedding_features, remaining_features = recorder.split(
            transformed_x, input_axes, (Axis("rest", x.width - recorder.element_count(input_axes)),)
        )
        logits = recorder.linear(
            "decoder", embedding_features, vocab, bias=self.bias, weight=output_weight, rows=logit_rows
        )
        return recorder.add(logits, recorder.linear("more_columns", remaining_features, vocab, rows=logit_rows))

    def reference(self, model_properties: ModelProperties, vocab_size: int = 1, width: int | None = None) -> nn.Module:
        """Builds a head with a separate weight; a model with tied embeddings replaces `output.weight`."""
        return _reference_class()(
            self,
            model_properties,
            vocab_size,
            self.draft_vocab_size or vocab_size,
            width or model_properties.hidden_size,
        )

    @classmethod
    def examples(cls) -> list[Self]:
        from .head_transform import Transform

        return [
            cls(),
            cls(bias=True),
            cls(bias=True, transform=Transform()),
            cls(transform=Transform(norm=None, bias=False)),
            cls(transform=Transform(size=7)),
            cls(draft_vocab_size=5),
            cls(transform=Transform(bottleneck_size=9, bias=False, norm=None)),
        ]


@cache
def _reference_class() -> Callable[..., nn.Module]:
    from torch import nn

    class LMHeadReference(nn.Module):
        """Computes the logits of the vocabulary. x: [batch, positions, hidden] → [batch, positions, vocab_size]."""

        def __init__(self, spec: LMHead, model_properties: ModelProperties, vocab_size: int, width: int) -> None:
            super().__init__()
            assert spec.transform is not None
            self.act, width = spec.transform.hidden_act, spec.transform.size or width
            self.embedded, remaining_features = width, model_properties.hidden_size - width
            if spec.more_columns:
                self.more_columns = nn.Linear(remaining_features, vocab_size, bias=False)
            inner_width = model_properties.hidden_size if spec.more_columns else width
            bottleneck_width, bias = spec.transform.bottleneck_size, spec.transform.bias
            if bottleneck_width is not None:
                self.bottleneck = nn.Linear(model_properties.hidden_size, bottleneck_width, bias=bias)
            self.dense = nn.Linear(bottleneck_width or model_properties.hidden_size, inner_width, bias=bias)
            if spec.transform.norm is not None:
                self.norm = spec.transform.norm.reference(ModelProperties(inner_width))
            self.decoder = nn.Linear(width, vocab_size, bias=spec.bias)

        def forward(self, x: Tensor) -> Tensor:
            x = activate(self.act, self.bottleneck(x)) if hasattr(self, "bottleneck") else x
            x = activate(self.act, self.dense(x))
            x = self.norm(x) if hasattr(self, "norm") else x
            if hasattr(self, "more_columns"):
                embedding_features, remaining_features = x.split((self.embedded, x.shape[-1] - self.embedded), -1)
                logits: Tensor = self.decoder(embedding_features) + self.more_columns(remaining_features)
            else:
                logits = self.decoder(x)
            return logits

    def build_head(
        spec: LMHead, model_properties: ModelProperties, target_vocab_size: int, vocab_size: int, width: int
    ) -> nn.Module:
        draft_heads = spec.mlp_speculator if spec.medusa is None else spec.medusa
        if draft_heads is not None:
            return draft_heads.reference(model_properties, target_vocab_size, vocab_size)
        if spec.clusters is not None:
            return spec.clusters.reference(model_properties, vocab_size)
        if spec.transform is None:
            return nn.Linear(width, vocab_size, bias=spec.bias)
        return LMHeadReference(spec, model_properties, vocab_size, width)

    return build_head
