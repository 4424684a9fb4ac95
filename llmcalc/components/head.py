"""Output heads: hidden states → logits over the vocabulary, tied to the input embedding or not, or over a few labels.

Tying: Press & Wolf 2017 (arXiv:1608.05859). BERT's head first transforms the hidden states (Devlin 2019,
`BertLMPredictionHead`). BERT's classifier reads one vector per sequence (Devlin 2019, §4.1); a decoder's classifier in
`transformers` reads every token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..workload.rows import LOGITS, SEQUENCES, Rows
from .base import BY_TORCH, Component, Context, Flag, Labels, Part, PartWitness, Real, Vocab, Width
from .networks.feed_forward import Activation, activate
from .norm import Norm

if TYPE_CHECKING:
    from torch import Tensor, nn


ONE = Axis("vocab", 1)
"""The vocabulary axis of a head that is recorded alone."""


class Transform(Part):
    """BERT's masked-language-model transform before the vocabulary: a linear layer, an activation, a norm.

    hidden_act: the activation, gelu by default.
    bias: whether the linear layer has a bias, true by default.
    size: the output width; by default the width of the embedding. Only an untied head can differ (RemBERT).
    norm: the norm, a LayerNorm by default.
    bottleneck_size: the width of another linear layer with its activation before the linear layer (Ultrabert); none by
        default.
    """

    witness: ClassVar[PartWitness] = BY_TORCH

    hidden_act: Activation = "gelu"
    bias: Flag = True
    size: Width | None = None
    norm: Norm | None = Norm(type="layernorm")
    bottleneck_size: Width | None = None


class LMHead(Component):
    """A language-model head: logits = x·Wᵀ (+ b) at every requested position.

    bias: whether it has a bias, tied or not (GPT-J, BERT); false by default.
    draft_vocab_size: the number of tokens that a draft can propose, the most frequent ones of the target's vocabulary
        (EAGLE-3); by default all of the model's.
    transform: the layers before the vocabulary (BERT); none by default.
    float32_loss: whether the loss is computed of a float32 copy of the logits, true by default; of the logits as they
        are otherwise (BERT, BART, T5).
    logit_softcapping: the soft cap of the logits before the loss (Gemma 2), whose tanh the backward pass keeps; none by
        default. Counts do not change.
    more_columns: whether the output projection reads the whole width of the layers, with the embedding's weight for
        the first part of it and one of its own for the rest (MobileBERT); it needs a transform, and an embedding that
        is narrower than the layers. False by default.
    """

    witness: ClassVar[PartWitness] = BY_TORCH
    noun: ClassVar[str] = "head"
    kind: ClassVar[str] = "lm_head"

    type: Literal["lm"] = "lm"
    bias: Flag = False
    draft_vocab_size: Vocab | None = None
    transform: Transform | None = None
    float32_loss: Flag = True
    logit_softcapping: Real | None = Field(default=None, gt=0)
    more_columns: Flag = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.more_columns and (self.transform is None or self.transform.size is not None):
            raise ValueError("more_columns: needs a transform without a size; expected false")
        return self

    def source(self) -> str:
        return "" if self.transform is None else "Devlin et al. 2019, §3.1"

    def flow(
        self, f: Flow, x: Value, vocab: Axis = ONE, width: Axis | None = None, output: Weight | None = None
    ) -> Value:
        """Records the head. width: the embedding's width where it differs from x's.

        output: the weight that gives the logits, the embedding's if the head is tied; a separate weight by default.
        """
        vocab = vocab if self.draft_vocab_size is None else Axis("vocab", self.draft_vocab_size)
        if self.transform is None:
            if output is not None and output.is_counted:
                f.here.about["source"] = "Press & Wolf 2017"
            return f.linear("", x, vocab, bias=self.bias, weight=output, rows=LOGITS)
        change, dense_axes = self.transform, (x.axes if width is None or self.more_columns else (width,))
        if change.size is not None:
            dense_axes = (Axis("transform", change.size),)
        if change.bottleneck_size is not None:
            bottleneck = Axis("bottleneck", change.bottleneck_size)
            x = f.act(f.linear("bottleneck", x, bottleneck, bias=change.bias, rows=LOGITS), change.hidden_act)
            f.hold(x=x)
        y = f.act(f.linear("dense", x, *dense_axes, bias=change.bias, rows=LOGITS), change.hidden_act)
        f.hold(x=y)
        if change.norm is not None:
            y = f.norm("norm", y, change.norm)
            f.hold(x=y)
        if not self.more_columns:
            return f.linear("decoder", y, vocab, bias=self.bias, weight=output, rows=LOGITS)
        first = x.axes if width is None else (width,)
        embedded, other_features = f.split(y, first, (Axis("rest", x.width - f.n(first)),))
        logits = f.linear("decoder", embedded, vocab, bias=self.bias, weight=output, rows=LOGITS)
        return f.add(logits, f.linear("more_columns", other_features, vocab, rows=LOGITS))

    def reference(self, context: Context, vocab_size: int = 1, width: int | None = None) -> nn.Module:
        """Builds a head with separate weights; a model that ties them replaces `output.weight`."""
        return _reference()(self, context, self.draft_vocab_size or vocab_size, width or context.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(),
            cls(bias=True),
            cls(bias=True, transform=Transform()),
            cls(transform=Transform(norm=None, bias=False)),
            cls(transform=Transform(size=7)),
            cls(draft_vocab_size=5),
            cls(transform=Transform(bottleneck_size=9, bias=False, norm=None)),
        ]


class Classifier(Component):
    """A classifier: one score for each of `num_labels` labels.

    num_labels: the number of labels.
    bias: whether the output layer has a bias, true by default.
    over: `sequence` (default) reads one vector per sequence, the pooler's output or else the first token. `token`
        reads every token (a decoder's score, of which the last is used; ELECTRA's discriminator).
    transform: a linear layer, an activation and perhaps a norm before it; none by default.
    """

    witness: ClassVar[PartWitness] = BY_TORCH
    noun: ClassVar[str] = "head"
    kind: ClassVar[str] = "classifier"

    type: Literal["classification"] = "classification"
    num_labels: Labels
    bias: Flag = True
    over: Literal["sequence", "token"] = "sequence"
    transform: Transform | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.transform is not None and self.transform.size is not None:
            raise ValueError("transform.size: only an untied language-model head can have one; expected none")
        if self.transform is not None and self.transform.bottleneck_size is not None:
            raise ValueError("transform.bottleneck_size: only a language-model head can have one; expected none")
        return self

    def source(self) -> str:
        return "Devlin et al. 2019, §4.1"

    def flow(self, f: Flow, x: Value) -> Value:
        change, rows = self.transform, self._rows()
        y = x.view(*x.axes, rows=rows)
        if change is not None:
            y = f.act(f.linear("dense", y, *x.axes, bias=change.bias), change.hidden_act)
            y = y if change.norm is None else f.part("norm", change.norm, y)
        return f.linear("out_proj", y, Axis("labels", self.num_labels), bias=self.bias)

    def _rows(self) -> Rows:
        return SEQUENCES if self.over == "sequence" else LOGITS

    def reference(self, context: Context) -> nn.Module:
        return _classifier()(self, context)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_labels=3, over="token", bias=False),
            cls(num_labels=1, over="token", transform=Transform(norm=None)),
            cls(num_labels=4),
            cls(num_labels=2, transform=Transform(bias=False, norm=Norm(type="layernorm", bias=False))),
        ]


class NoHead(Part):
    """No head: the model's output is its hidden states."""

    type: Literal["none"] = "none"


@cache
def _reference() -> Callable[..., nn.Module]:
    from torch import nn

    class LMHeadReference(nn.Module):
        """The language-model head. x: [batch, positions, hidden] → [batch, positions, vocab_size]."""

        def __init__(self, spec: LMHead, context: Context, vocab_size: int, width: int) -> None:
            super().__init__()
            assert spec.transform is not None
            self.act, width = spec.transform.hidden_act, spec.transform.size or width
            self.embedded, other_features = width, context.hidden_size - width
            if spec.more_columns:
                self.more_columns = nn.Linear(other_features, vocab_size, bias=False)
            inner = context.hidden_size if spec.more_columns else width
            bottleneck, bias = spec.transform.bottleneck_size, spec.transform.bias
            if bottleneck is not None:
                self.bottleneck = nn.Linear(context.hidden_size, bottleneck, bias=bias)
            self.dense = nn.Linear(bottleneck or context.hidden_size, inner, bias=bias)
            if spec.transform.norm is not None:
                self.norm = spec.transform.norm.reference(Context(inner))
            self.decoder = nn.Linear(width, vocab_size, bias=spec.bias)

        def forward(self, x: Tensor) -> Tensor:
            x = activate(self.act, self.bottleneck(x)) if hasattr(self, "bottleneck") else x
            x = activate(self.act, self.dense(x))
            x = self.norm(x) if hasattr(self, "norm") else x
            if hasattr(self, "more_columns"):
                embedded, other_features = x.split((self.embedded, x.shape[-1] - self.embedded), -1)
                logits: Tensor = self.decoder(embedded) + self.more_columns(other_features)
            else:
                logits = self.decoder(x)
            return logits

    def build(spec: LMHead, context: Context, vocab_size: int, width: int) -> nn.Module:
        return (
            nn.Linear(width, vocab_size, bias=spec.bias)
            if spec.transform is None
            else LMHeadReference(spec, context, vocab_size, width)
        )

    return build


@cache
def _classifier() -> type[nn.Module]:
    from torch import nn

    class ClassifierReference(nn.Module):
        """The classifier. x: [batch, positions, hidden] → [batch, positions, num_labels].

        Only the first position is classified if `over` is `sequence`.
        """

        def __init__(self, spec: Classifier, context: Context) -> None:
            super().__init__()
            self.spec, hidden = spec, context.hidden_size
            if spec.transform is not None:
                self.dense = nn.Linear(hidden, hidden, bias=spec.transform.bias)
                if spec.transform.norm is not None:
                    self.norm = spec.transform.norm.reference(context)
            self.out_proj = nn.Linear(hidden, spec.num_labels, bias=spec.bias)

        def forward(self, x: Tensor) -> Tensor:
            x = x[:, :1] if self.spec.over == "sequence" else x
            if self.spec.transform is not None:
                x = activate(self.spec.transform.hidden_act, self.dense(x))
                x = self.norm(x) if hasattr(self, "norm") else x
            scores: Tensor = self.out_proj(x)
            return scores

    return ClassifierReference
