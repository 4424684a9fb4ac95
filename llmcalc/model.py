"""The spec of a whole model, from which the tree of its costs and its PyTorch reference are built.

A decoder-only or encoder-only model has one stack, whose layers are at the top of the tree (`layers.0.self_attn`); an
encoder-decoder has two (`encoder.layers.0.self_attn`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from .algebra import is_zero
from .components.base import (
    Flag,
    HiddenSize,
    InnerWidth,
    ModelProperties,
    Network,
    Part,
    Positions,
    StackPosition,
    Vocab,
)
from .components.choices import Head
from .components.dropout import ATTENTION_DROPOUT, Dropout
from .components.head import LMHead
from .components.output_part import ModelOutput, OutputPart
from .components.part_choice import component_type
from .components.runtime import PassState
from .components.stack import Stack
from .components.towers import Tower, TowerName, check_projector_widths, record_towers
from .flow.axis import Axis, JoinedShapes
from .flow.record import Flow
from .flow.tree import Node, Role
from .flow.value import Value, Weight
from .optional import TOWERS
from .workload.rows import LOGITS, SOURCE_TOKENS, TOKENS, Rows

if TYPE_CHECKING:
    from fractions import Fraction

    from torch import Tensor, nn

    from .components.block_proposal import Proposal
    from .components.contact_head import ContactHead
    from .components.multi_token_prediction import MultiTokenPrediction
    from .components.pooler import Pooler
    from .components.unused_modules import UnusedEmbedding
else:
    Pooler, ContactHead = component_type("pooler:Pooler"), component_type("contact_head:ContactHead")
    Proposal = component_type("block_proposal:Proposal")
    MultiTokenPrediction = component_type("multi_token_prediction:MultiTokenPrediction")
    UnusedEmbedding = component_type("unused_modules:UnusedEmbedding")


VECTOR_HEADS = {"projection": "projection", "latents": "latent_attention"}
"""Type of an output head that returns a vector per token → the name of the head's module."""


class ModelSpec(Part):
    """The architecture of a model: all fields for counting and running the model.

    vocab_size: the size of the vocabulary.
    additional_vocab_size: the number of further rows of the embedding, of tokens that the head does not score (image
        tokens of Llama 3.2 Vision and Molmo 2, padding of MusicGen's codebooks); none by default.
    hidden_size: the width of the residual stream.
    tie_word_embeddings: whether the head uses the embedding's weight.
    embedding_size: the width of a factorized embedding, with a projection to hidden_size, and one back before whatever
        reads every token; hidden_size by default. If the stack has an input_size, only a language-model head has the
        projection back (ELECTRA, ALBERT).
    embedding_projection_bias: whether the projection to hidden_size has a bias, false by default.
    tied_projection: whether a language-model head alone has the projection back, with the weight of the projection to
        hidden_size, transposed (NeoMME); false by default.
    embedding_kernel: the number of neighbouring tokens whose embeddings the projection to hidden_size reads, an odd
        number (MobileBERT); there is no projection back then. By default it reads one token.
    max_position_embeddings: the context length that the model was trained for, if positions are not learned; none by
        default.
    shared_positions: whether both stacks of an encoder-decoder add rows of one table of learned positions (T5 in
        Megatron-LM); false by default.
    unused_embedding: a second embedding that nothing uses (BART's classes); none by default.
    encoder, decoder: the stacks of layers, one of them or both.
    dropout: the places where training drops elements; none by default.
    head: the output head, a language-model head by default.
    pooler: one vector per sequence, with optional scores of it, beside the head (BERT); none by default.
    contact_head: scores of token pairs from all attention maps (ESM); none by default.
    mtp: multi-token-prediction modules (DeepSeek-V3); none by default.
    proposal: the terms of a block draft's logits beside its head (DSpark, Domino); none by default.
    from_target: the parts of a draft of speculative decoding that are its target's, `embed_tokens`, `lm_head` or both:
        they run with the target's weights, and the draft's totals leave these out; none by default.
    towers: name → vision encoder, audio encoder or projector beside the text model; none by default. Totals exclude
        them by default.
    """

    vocab_size: Vocab
    additional_vocab_size: Vocab | None = None
    hidden_size: HiddenSize
    tie_word_embeddings: Flag
    embedding_size: InnerWidth | None = None
    embedding_projection_bias: Flag = False
    tied_projection: Flag = False
    embedding_kernel: int | None = Field(default=None, ge=1, le=63, strict=True)
    max_position_embeddings: Positions | None = None
    shared_positions: Flag = False
    unused_embedding: UnusedEmbedding | None = None
    encoder: Stack | None = None
    decoder: Stack | None = None
    dropout: Dropout | None = None
    head: Head = LMHead.model_construct()
    pooler: Pooler | None = None
    contact_head: ContactHead | None = None
    mtp: MultiTokenPrediction | None = None
    proposal: Proposal | None = None
    from_target: tuple[Literal["embed_tokens", "lm_head"], ...] = ()
    towers: dict[TowerName, Tower] = Field(default={}, max_length=100)

    renamed_fields: ClassVar[Mapping[str, str]] = {"pooler_labels": "pooler = { num_labels = … }"}

    def check_fields(self) -> None:
        if self.encoder is None and self.decoder is None:
            raise ValueError(
                "decoder: a model has a decoder, an encoder or both; expected a table [model.decoder] or "
                "[model.encoder]"
            )
        encoder_output_width = None if self.encoder is None else self._encoder_output_width(self.encoder)
        for stack_name, stack in self.stacks():
            stack_width = stack.hidden_size or self.hidden_size
            encoder_width = encoder_output_width if stack_name == "decoder" else None
            stack.check_stack_position(StackPosition(stack_name, stack_width, stack_name, source_width=encoder_width))
        if self.encoder is not None and self.decoder is not None and not self.decoder.block.reads_encoder():
            raise ValueError("decoder.block.cross_attention: an encoder-decoder needs one")
        self._check_output_stack()
        self._check_from_target()
        is_read_by_encoder = self.kind == "encoder-decoder" and not self._has_separate_encoder_input
        if self.additional_vocab_size is not None and (self.tie_word_embeddings or is_read_by_encoder):
            raise ValueError(
                "additional_vocab_size: is for an embedding that the decoder alone reads, with tie_word_embeddings = "
                "false; expected none"
            )
        self._check_embedding_kernel()
        if self.encoder is not None and self.decoder is not None:
            self._check_encoder(self.encoder)
        elif self.shared_positions:
            raise ValueError("shared_positions: a model of one stack has one table; expected false")
        if isinstance(self.head, LMHead) and self.head.clusters is not None:
            self.head.clusters.check_vocabulary(self.vocab_size)
        head_transform = self.head.transform if isinstance(self.head, LMHead) else None
        if head_transform is not None and head_transform.size is not None and self.tie_word_embeddings:
            raise ValueError(
                "head.transform.size: of a language-model head of its own; expected none, or tie_word_embeddings = "
                "false"
            )
        if self.head.type == "latents":
            if self.kind != "encoder":
                raise ValueError("head: latents are read by the hidden states of an encoder; expected [model.encoder]")
            self.head.reading.check_width("head.reading", self.hidden_size)
        model_output = ModelOutput(self.kind, self.main, self.hidden_size, self.head, self.embedding_size)
        for output_component in self.output_parts():
            output_component.check_output(model_output)
        check_projector_widths(self.towers)

    def _check_embedding_kernel(self) -> None:
        """Raises `ValueError` for a projection of neighbouring embeddings that does not fit the model."""
        embedding_kernel, head = self.embedding_kernel, self.head
        is_projected = self.embedding_size is not None and self.main.input_size is None and embedding_kernel is None
        if self.tied_projection and (not is_projected or self.kind == "encoder-decoder"):
            raise ValueError(
                "tied_projection: needs one stack and an embedding_size, without input_size or kernel; expected false"
            )
        is_supported = self.kind == "encoder" and self.embedding_size is not None and self.main.input_size is None
        if embedding_kernel is not None and (not is_supported or embedding_kernel % 2 == 0):
            raise ValueError(
                "embedding_kernel: an odd number, of an encoder with an embedding_size and no input_size; expected none"
            )
        has_narrow_embedding = self.embedding_size is not None and self.embedding_size < self.hidden_size
        if (
            isinstance(head, LMHead)
            and head.more_columns
            and not (has_narrow_embedding and embedding_kernel is not None)
        ):
            raise ValueError(
                "head.more_columns: needs an embedding_size below hidden_size and an embedding_kernel; expected false"
            )

    def _encoder_output_width(self, encoder: Stack) -> int:
        """Returns the width of the encoder's output, which cross-attention reads."""
        return encoder.output_size or encoder.hidden_size or self.hidden_size

    def _check_output_stack(self) -> None:
        """Raises `ValueError` if the output stack has fields that only a separate encoder may have."""
        if self.main.input_size not in (None, self.embedding_size):
            raise ValueError(
                f"embedding_size: {self.embedding_size} is not the stack's input_size {self.main.input_size}"
            )
        if self.main.vocab_size is not None or self.main.hidden_size is not None:
            raise ValueError(
                f"{self.kind}: a token embedding and a width of its own are for the encoder of an encoder-decoder"
            )
        output_fields = (self.main.pooler, self.main.output_positions, self.main.output_size)
        if any(output_field is not None for output_field in output_fields):
            raise ValueError(
                f"{self.kind}: a stack's pooler, output_positions and output_size are for the encoder of an "
                "encoder-decoder; expected none (model.pooler is the pooler of the model)"
            )
        stem = self.main.stem
        if stem is not None and (self.kind == "decoder" or not stem.works_without_decoder):
            stem_place = "an encoder" if stem.works_without_decoder else "the encoder of an encoder-decoder"
            raise ValueError(f"{self.kind}.stem: of type {stem.type!r} is for {stem_place}; expected none")

    def _check_from_target(self) -> None:
        """Raises `ValueError` if a model that is no draft takes its embedding or head from a target model."""
        stream_spec = None if self.decoder is None else self.decoder.streams
        if self.main.is_without_embedding and (self.from_target or self.tie_word_embeddings or self.embedding_size):
            field_name = "streams.start: 'state'" if self.main.stem is None else "stem: the input"
            raise ValueError(
                f"{field_name} is of a model without an embedding; expected no from_target, no embedding_size "
                "and tie_word_embeddings = false"
            )
        if not self.from_target:
            return
        if getattr(stream_spec, "type", "") != "target_states":
            raise ValueError(
                "from_target: only a draft takes parts of a target; expected decoder.streams of type 'target_states'"
            )
        if "lm_head" in self.from_target and (
            not isinstance(self.head, LMHead) or self.head.draft_vocab_size is not None or self.tie_word_embeddings
        ):
            raise ValueError(
                "from_target: 'lm_head' is an untied language-model head over the target's vocabulary; expected one, "
                "or from_target without it"
            )

    def _weight_role(self, weight_name: str) -> Role:
        """Returns the role of the embedding's or head's weight: `shared` for a target model's weight."""
        return "shared" if weight_name in self.from_target else "own"

    def _check_encoder(self, encoder: Stack) -> None:
        """Raises `ValueError` if the embeddings of an encoder-decoder do not fit the encoder's input."""
        has_separate_input = encoder.vocab_size is not None or encoder.stem is not None
        position_encodings = (encoder.position, None if self.decoder is None else self.decoder.position)
        if self.shared_positions and (
            position_encodings[0] != position_encodings[1] or getattr(position_encodings[0], "type", "") != "learned"
        ):
            raise ValueError("shared_positions: expected the same learned positions in encoder and decoder")
        if encoder.input_size is not None:
            raise ValueError(
                "encoder.input_size: embeddings narrower than the layers are for a model of one stack; expected none"
            )
        if self.embedding_size is not None and not has_separate_input:
            raise ValueError(
                "embedding_size: two stacks read the embedding; expected none, or an encoder.vocab_size of its own"
            )
        if encoder.hidden_size is not None and not has_separate_input:
            raise ValueError(
                "encoder.vocab_size: missing; an encoder of another width than the decoder has a token embedding "
                "of its own"
            )

    @property
    def kind(self) -> Literal["decoder", "encoder", "encoder-decoder"]:
        if self.encoder is not None:
            return "encoder" if self.decoder is None else "encoder-decoder"
        return "decoder"

    @property
    def one_pass_model_name(self) -> str:
        """The kind of a model that reads a sequence in one pass, such as `an encoder-only model`; else empty."""
        if self.kind == "encoder":
            return "an encoder-only model"
        return "" if self.main.streams is None else self.main.streams.one_pass_model_name

    @property
    def model_without_tokens(self) -> str:
        """The kind of a model that generates no tokens (`a model without a language-model head`); else empty."""
        if self.one_pass_model_name or isinstance(self.head, LMHead):
            return self.one_pass_model_name
        return "a model without a language-model head"

    def __repr__(self) -> str:
        depth_text = " + ".join(str(stack.num_hidden_layers) for _, stack in self.stacks())
        return f"<ModelSpec: {self.kind}, {depth_text} layers, hidden {self.hidden_size}>"

    __str__ = __repr__

    def stacks(self) -> list[tuple[Literal["encoder", "decoder"], Stack]]:
        """The stacks of layers in execution order."""
        optional_stacks: list[tuple[Literal["encoder", "decoder"], Stack | None]] = [
            ("encoder", self.encoder),
            ("decoder", self.decoder),
        ]
        return [(stack_name, stack) for stack_name, stack in optional_stacks if stack is not None]

    @property
    def layer_count(self) -> int:
        """The number of layers in all stacks of the model, encoder and decoder together."""
        return sum(stack.num_hidden_layers for _, stack in self.stacks())

    @property
    def has_experts(self) -> bool:
        """Whether any layer has a mixture of experts."""
        return any(
            isinstance(layer.feed_forward, Network) and layer.feed_forward.is_mixture_of_experts
            for _, stack in self.stacks()
            for _, layer, layer_count, _ in stack.layer_groups()
            if not is_zero(layer_count)
        )

    @property
    def source_tokens(self) -> int | None:
        """The fixed number of encoder positions; None if the encoder reads as many positions as source tokens."""
        encoder_stem = self.encoder.stem if self.encoder is not None else None
        return None if encoder_stem is None else encoder_stem.constant_position_count

    @property
    def main(self) -> Stack:
        """The stack of layers that computes the output: the decoder, or the encoder of an encoder-only model."""
        stack = self.decoder if self.decoder is not None else self.encoder
        assert stack is not None
        return stack

    def output_parts(self) -> list[OutputPart]:
        """The components that read the final hidden states, in addition to the output head."""
        output_parts: tuple[OutputPart | None, ...] = (self.pooler, self.contact_head, self.mtp, self.proposal)
        return [output_part for output_part in output_parts if output_part is not None]

    @property
    def projected_output_size(self) -> int | None:
        """The embedding's width if the output is projected back to it before the head, else None.

        It is None too if the head's own transform projects the output.
        """
        if self.main.keeps_embedding_width:
            return None
        if isinstance(self.head, LMHead):
            return self.embedding_size if self.head.transform is None else None
        scores_every_token = self.head.type != "classification" or self.head.over == "token"
        is_projected_back = self.main.input_size is None and self.embedding_kernel is None and not self.tied_projection
        return self.embedding_size if scores_every_token and is_projected_back else None

    def tree(self) -> Node:
        """The tree of the model's modules and operations, built from recorded operations; counts are sums over it."""
        return self.recorded_tree

    @cached_property
    def recorded_tree(self) -> Node:
        """The cached tree of the model's modules and operations, over which all counts of this model are summed."""
        return self.shared_program.node()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Returns a copy with changed fields, without the cached tree of nodes and program of operations."""
        copied_spec = super().model_copy(update=update, deep=deep)
        for cached_name in ("recorded_tree", "shared_program", "routed_experts"):
            copied_spec.__dict__.pop(cached_name, None)
        return copied_spec

    def with_dropout(self, probability: float | None) -> Self:
        """Returns the model with this dropout probability at all points; None keeps the model's probabilities."""
        if probability is None:
            return self
        dropout_places = ATTENTION_DROPOUT if self.dropout is None else self.dropout
        return self.model_copy(update={"dropout": dropout_places.with_probability(probability)})

    @cached_property
    def shared_program(self) -> Flow:
        """The model's recorded program of operations, cached for read-only use."""
        return self.program()

    @cached_property
    def routed_experts(self) -> int:
        """The largest number of routed experts in a layer; 0 without experts."""
        expert_counts = (
            operation.options["experts"].size
            for operation in self.shared_program.root.steps()
            if operation.verb == "experts"
        )
        return max(expert_counts, default=0)

    def program(self, flow: Flow | None = None) -> Flow:
        """Records the program of the model: its operations from the tokens to the output.

        flow: what records it, a new one by default.
        """
        recorder = Flow() if flow is None else flow
        recorder.dropouts = {} if self.dropout is None else self.dropout.probabilities()
        hidden_axis, vocab_axis = Axis("hidden", self.hidden_size), Axis("vocab", self.vocab_size)
        token_axis = vocab_axis
        if self.additional_vocab_size is not None:
            token_axis = Axis("vocab", self.vocab_size + self.additional_vocab_size)
        embedding_axis = hidden_axis if self.embedding_size is None else Axis("embedding", self.embedding_size)
        has_two_stacks = self.kind == "encoder-decoder"
        if has_two_stacks and self._has_separate_encoder_input:
            embedding_table = recorder.unread_table("embed_tokens", token_axis, embedding_axis, kind="embedding")
            x = Value(self._source_position_axis, (embedding_axis,))
        elif self.main.is_without_embedding:
            embedding_table = Weight("embed_tokens", (embedding_axis,), (token_axis,))
            stem = self.main.stem
            x = Value(TOKENS, (embedding_axis,), is_constant=True) if stem is None else stem.input_without_decoder()
        elif self.main.reads_no_embedding:
            embedding_table = recorder.unread_table("embed_tokens", token_axis, embedding_axis, kind="embedding")
            x = Value(TOKENS, (embedding_axis,), is_constant=True)
        else:
            source_rows = self._source_position_axis if has_two_stacks else TOKENS
            weight_role = self._weight_role("embed_tokens")
            x, embedding_table = recorder.table(
                "embed_tokens", token_axis, embedding_axis, output_rows=source_rows, kind="embedding", role=weight_role
            )
        if self.unused_embedding is not None:
            recorder.part("unused_embedding", self.unused_embedding, x, role="idle", vocab=vocab_axis)
        x = x if has_two_stacks else self._projected_embeddings(recorder, x, hidden_axis)
        for stack_name, stack in self.stacks():
            recorder.causal = stack_name == "decoder"
            if not has_two_stacks:
                has_other_input = stack.input_size is not None or stack.stem is not None
                x = stack.flow(recorder, x, hidden_axis if has_other_input else None)
                continue
            if stack_name != "encoder":
                x = self._projected_embeddings(recorder, recorder.look_up(embedding_table, TOKENS), hidden_axis)
            with recorder.scope(stack_name) as stack_scope:
                if stack_name == "encoder":
                    stack_scope.is_separate_model = True
                    stack_scope.module_argument = None if self._has_separate_encoder_input else x
                    x = recorder.encoder_output = stack_scope.output = self._encoder_output(recorder, stack, x)
                else:
                    stack_scope.module_argument = x
                    x = stack.flow(recorder, x, positions=recorder.position_table if self.shared_positions else None)
        if recorder.has_output or self.towers:
            self._record_output(recorder, x, vocab_axis, embedding_axis, embedding_table)
        return recorder

    @property
    def _has_separate_encoder_input(self) -> bool:
        """Whether the encoder has a separate stem or token embedding."""
        return self.encoder is not None and (self.encoder.stem is not None or self.encoder.vocab_size is not None)

    def _projected_embeddings(self, recorder: Flow, x: Value, hidden_axis: Axis) -> Value:
        """Returns the token embeddings, projected to the layers' width if the embedding has another width."""
        if self.embedding_size is None or self.main.input_size is not None:
            return x
        if self.embedding_kernel is not None:
            x = recorder.cat(*[x] * self.embedding_kernel, axes=(JoinedShapes((x.axes,) * self.embedding_kernel),))
            recorder.hold(neighbours=x)
        projection_weight = Weight("embed_proj", (hidden_axis,), x.axes) if self.tied_projection else None
        recorder.layer_memo["embed_proj"] = projection_weight
        return recorder.linear(
            "embed_proj",
            x,
            hidden_axis,
            bias=self.embedding_projection_bias,
            kind="embedding",
            weight=projection_weight,
        )

    @property
    def _source_position_axis(self) -> Rows:
        """Returns the axis of positions (tokens or frames) that the encoder of an encoder-decoder reads."""
        encoder_stem = None if self.encoder is None else self.encoder.stem
        return SOURCE_TOKENS if encoder_stem is None else encoder_stem.positions

    def _encoder_output(self, recorder: Flow, encoder: Stack, x: Value) -> Value:
        """Returns the output of an encoder that a decoder reads."""
        encoder_axis = None if encoder.hidden_size is None else Axis("hidden", encoder.hidden_size)
        if encoder.stem is not None:
            return encoder.flow(
                recorder,
                encoder.stem.input_frames(),
                Axis("hidden", self.hidden_size) if encoder_axis is None else encoder_axis,
            )
        return encoder.flow(recorder, x, encoder_axis)

    def _record_output(
        self, recorder: Flow, x: Value, vocab_axis: Axis, embedding_axis: Axis, embedding_table: Weight
    ) -> None:
        """Records in the program the components that read the final hidden states, and the encoders of inputs."""
        recorder.hold(x=x)
        output_values: dict[str, Value] = {}
        for component_name, component in (("pooler", self.pooler), ("contact_head", self.contact_head)):
            if component is not None:
                output_values[component_name] = recorder.part(
                    component_name, component, x, role=component.role, stack=self.main
                )
        if self.pooler is not None:
            recorder.hold(pooled=output_values["pooler"])
        output_states = x
        if self.projected_output_size is not None:
            component_kind = {"lm": "lm_head", "classification": "classifier"}.get(self.head.type, "embedding")
            head_rows = x.rows if self.head.type == "none" or self.head.type in VECTOR_HEADS else LOGITS
            projection_weight = recorder.layer_memo["embed_proj"] if self.tied_projection else None
            x = recorder.linear(
                "head_proj",
                x,
                Axis("embedding", self.projected_output_size),
                rows=head_rows,
                kind=component_kind,
                weight=projection_weight,
            )
        recorder.result = x
        if self.head.type == "classification":
            pooled_vector = output_values.get("pooler", x) if self.head.over == "sequence" else x
            recorder.result = recorder.part("classifier", self.head, pooled_vector)
        if self.head.type in VECTOR_HEADS:
            recorder.result = recorder.part(VECTOR_HEADS[self.head.type], self.head, x)
        if isinstance(self.head, LMHead):
            self._record_lm_head(recorder, self.head, x, output_states, vocab_axis, embedding_axis, embedding_table)
        if self.towers:
            with recorder.scope("towers", kind="towers", role="kept", optional=TOWERS.name, is_counted_whole=True):
                record_towers(recorder, self.towers)

    def _record_lm_head(
        self,
        recorder: Flow,
        head: LMHead,
        x: Value,
        output_states: Value,
        vocab_axis: Axis,
        embedding_axis: Axis,
        embedding_table: Weight,
    ) -> None:
        """Records in the program the language-model head, and the modules that propose or predict further tokens.

        x: what the head reads. output_states: the final hidden states, which the other parts read.
        """
        output_weight = embedding_table if self.tie_word_embeddings else None
        if self.mtp is not None and output_weight is None:
            output_weight = Weight("lm_head", (vocab_axis,), x.axes)
        weight_role = self._weight_role("lm_head")
        recorder.result = recorder.part(
            "lm_head", head, x, vocab=vocab_axis, width=embedding_axis, output_weight=output_weight, role=weight_role
        )
        if self.proposal is not None:
            draft_vocab_size = head.draft_vocab_size
            draft_vocab_axis = vocab_axis if draft_vocab_size is None else Axis("vocab", draft_vocab_size)
            recorder.part("proposal", self.proposal, output_states, vocab=vocab_axis, draft_vocab=draft_vocab_axis)
        if self.mtp is not None:
            assert output_weight is not None
            self.mtp.flow(recorder, output_states, self.main, vocab_axis, embedding_table, output_weight)

    def reference(self) -> nn.Module:
        """Builds the model as a PyTorch module with random weights, from the spec alone.

        This imports torch. Under `torch.device("meta")` the model has shapes without values.
        """
        return _reference_class()(self)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class TransposedLinear(nn.Module):
        """A linear layer that uses the transposed weight of another linear layer."""

        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.weight = linear.weight

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    class ModelReference(nn.Module):
        """The whole model. ids: [batch, tokens], or the stem's input → logits [batch, tokens, vocab_size].

        Without a head it returns hidden states.

        source: the input of an encoder-decoder's encoder, ids or frames [batch, bins, frames].
        cached_tensors: a dict for the cache; with `past` tokens in it, `ids` are the tokens that follow.
        with_mtp: whether to return (logits, [logits of each multi-token-prediction module]); of a draft, (logits,
            [states for its next pass, score of acceptance]), without those that it does not have.
        with_pooled: whether to return (logits, output of the pooler).
        mla, grouped_experts, expert_capacity: as in `PassState`.
        """

        def __init__(self, spec: ModelSpec) -> None:
            super().__init__()
            self.spec, hidden_size = spec, spec.hidden_size
            embedding_width = spec.embedding_size or hidden_size
            output_stack = spec.encoder if spec.decoder is None else spec.decoder  # the stack that computes the output
            assert output_stack is not None
            output_embedding_width = self._output_embedding_width(spec, output_stack)
            self.reads_sound = output_stack.stem is not None
            self._build_embedding(embedding_width, output_stack)
            if spec.unused_embedding is not None:
                self.unused_embedding = spec.unused_embedding.reference(
                    ModelProperties(embedding_width), spec.vocab_size
                )
            if spec.embedding_size is not None and output_stack.input_size is None:
                has_projection_bias, neighbour_count = spec.embedding_projection_bias, spec.embedding_kernel or 1
                self.embed_proj = nn.Linear(neighbour_count * embedding_width, hidden_size, bias=has_projection_bias)
            if spec.encoder is not None and spec.decoder is not None:
                self.encoder = spec.encoder.reference(
                    ModelProperties(spec.encoder.hidden_size or hidden_size, is_causal=False)
                )
                source_size = spec.encoder.output_size or spec.encoder.hidden_size
                self.decoder = spec.decoder.reference(ModelProperties(hidden_size, source_size=source_size))
                if spec.shared_positions:
                    self.decoder.embed_positions = self.encoder.embed_positions
            else:
                stack_module = output_stack.reference(ModelProperties(hidden_size, is_causal=spec.encoder is None))
                for child_name, child_module in stack_module.named_children():
                    self.add_module(child_name, child_module)
                self._only = (stack_module,)  # as a tuple: the stack's children are registered as this module's own
            for child_name, component in (("pooler", spec.pooler), ("contact_head", spec.contact_head)):
                if component is not None:
                    self.add_module(child_name, component.reference(ModelProperties(hidden_size), output_stack))
            self.scores_pooled = (
                hasattr(self, "pooler") and spec.head.type == "classification" and spec.head.over == "sequence"
            )
            if output_embedding_width is not None:
                self.head_proj = (
                    TransposedLinear(self.embed_proj)
                    if spec.tied_projection
                    else nn.Linear(hidden_size, output_embedding_width, bias=False)
                )
            if spec.head.type == "classification":
                self.classifier = spec.head.reference(ModelProperties(output_embedding_width or hidden_size))
            for head_type, module_name in (("projection", "projection"), ("latents", "latent_attention")):
                if spec.head.type == head_type:
                    self.add_module(
                        module_name, spec.head.reference(ModelProperties(output_embedding_width or hidden_size))
                    )
            if isinstance(spec.head, LMHead):
                self.lm_head = spec.head.reference(
                    ModelProperties(hidden_size),
                    spec.vocab_size,
                    2 * hidden_size
                    if output_stack.streams is not None and output_stack.streams.type == "reversible"
                    else spec.embedding_size,
                )
                output_layer: Any = getattr(self.lm_head, "decoder", self.lm_head)
                if spec.tie_word_embeddings:
                    output_layer.weight = self.embed_tokens.weight
                if spec.proposal is not None:
                    vocab_size = spec.head.draft_vocab_size or spec.vocab_size
                    self.proposal = spec.proposal.reference(ModelProperties(hidden_size), spec.vocab_size, vocab_size)
                if spec.mtp is not None:
                    prediction: Any = spec.mtp.reference(
                        ModelProperties(hidden_size), output_stack, output_layer.weight
                    )
                    self.mtp, self._reads_streams = prediction, prediction[0].reads_streams
            for child_name in spec.from_target:  # not a parameter of this model
                module: Any = self.get_submodule(child_name)
                weight = module.weight
                del module.weight
                module.weight = weight.detach().requires_grad_()
            if spec.towers:
                self.towers = nn.Module()
                for child_name, tower in spec.towers.items():
                    self.towers.add_module(child_name, tower.reference(ModelProperties(hidden_size, is_causal=False)))

        def _build_embedding(self, embedding_width: int, output_stack: Stack) -> None:
            streams = output_stack.streams
            if output_stack.stem is not None or getattr(streams, "start", "") == "state":
                return
            self.embed_tokens = nn.Embedding(
                self.spec.vocab_size + (self.spec.additional_vocab_size or 0), embedding_width
            )
            nn.init.normal_(self.embed_tokens.weight, std=0.02)

        @staticmethod
        def _output_embedding_width(spec: ModelSpec, output_stack: Stack) -> int | None:
            """Returns the embedding's width if the output is projected to the embedding's width before the head."""
            if output_stack.streams is not None and output_stack.streams.type in ("latents", "byte_patches"):
                return None
            if isinstance(spec.head, LMHead):
                return spec.embedding_size if spec.head.transform is None else None
            if spec.head.type == "classification" and spec.head.over == "sequence":
                return None
            if output_stack.input_size is not None or spec.embedding_kernel is not None or spec.tied_projection:
                return None
            return spec.embedding_size

        def repeats(self) -> dict[str, str]:
            """Returns a mapping from the path of each repeated layer to the path of the first layer of its kind."""
            only_stack: Any = self._only[0] if not hasattr(self, "encoder") else None
            stacks_by_path: dict[str, Any] = (
                {"": only_stack} if only_stack is not None else {"encoder.": self.encoder, "decoder.": self.decoder}
            )
            first_equal_layers: dict[str, str] = {}
            for stack_path, stack in stacks_by_path.items():
                for layer_index, layer_kind in enumerate(stack.layer_kinds):
                    first_index = stack.layer_kinds.index(layer_kind)
                    if first_index != layer_index:
                        first_equal_layers[f"{stack_path}layers.{layer_index}"] = f"{stack_path}layers.{first_index}"
            return first_equal_layers

        def embed(self, ids: Tensor) -> Tensor:
            if self.reads_sound:
                return ids.to(next(self.parameters()).dtype)  # samples, which the stem reads
            if not hasattr(self, "embed_tokens"):
                dtype = next(self.parameters()).dtype
                return torch.zeros(*ids.shape, self.spec.hidden_size, device=ids.device, dtype=dtype)
            x: Tensor = self.embed_tokens(ids)
            if self.spec.embedding_kernel is not None:
                embedding_kernel = self.spec.embedding_kernel
                padded_embeddings = torch.nn.functional.pad(x, (0, 0, embedding_kernel // 2, embedding_kernel // 2))
                x = torch.cat(
                    [
                        padded_embeddings[:, neighbour_offset : neighbour_offset + x.shape[1]]
                        for neighbour_offset in range(embedding_kernel)
                    ],
                    -1,
                )
            return self.embed_proj(x) if hasattr(self, "embed_proj") else x

        def hidden_states(self, ids: Tensor, source_input: Tensor | None, pass_state: PassState) -> Tensor:
            if not hasattr(self, "encoder"):
                only_stack: Tensor = self._only[0].forward(self.embed(ids), pass_state)
                return only_stack
            if source_input is not None:
                encoder_spec = self.spec.encoder
                reads_features = encoder_spec is not None and (
                    encoder_spec.stem is not None or encoder_spec.vocab_size is not None
                )
                pass_state.encoder_output = self.encoder(
                    source_input if reads_features else self.embed(source_input),
                    PassState(grouped_experts=pass_state.grouped_experts, expert_capacity=pass_state.expert_capacity),
                )
            hidden_states: Tensor = self.decoder(self.embed(ids), pass_state)
            return hidden_states

        def forward(
            self,
            ids: Tensor,
            source: Tensor | None = None,
            *,
            cached_tensors: dict[nn.Module, tuple[Tensor, ...]] | None = None,
            past: int = 0,
            last_only: bool = False,
            with_mtp: bool = False,
            with_pooled: bool = False,
            mla: str = "auto",
            grouped_experts: bool = False,
            expert_capacity: Fraction | None = None,
        ) -> Any:
            expert_options: dict[str, Any] = {"grouped_experts": grouped_experts, "expert_capacity": expert_capacity}
            keeps_streams = with_mtp and hasattr(self, "mtp") and self._reads_streams
            pass_state = PassState(
                past_tokens=past,
                cached_tensors=cached_tensors,
                token_ids=ids,
                mla_form=mla,
                keeps_streams=keeps_streams,
                **expert_options,
            )
            x = self.hidden_states(ids, source, pass_state)
            if hasattr(self, "pooler"):
                pooled_vector, pooled_scores = self.get_submodule("pooler")(x)
            model_output = self._record_output(pooled_vector if self.scores_pooled else None, x, last_only)
            if hasattr(self, "proposal"):
                proposal_logits, proposal_outputs = self.get_submodule("proposal")(
                    x[:, -1:] if last_only else x, ids[:, -model_output.shape[1] :]
                )
                model_output = model_output + proposal_logits
                return (model_output, proposal_outputs) if with_mtp else model_output
            if with_pooled:
                return model_output, pooled_scores
            if not with_mtp:
                return model_output
            mtp_input = pass_state.unmerged_streams if keeps_streams else x
            return model_output, self.mtp(mtp_input, ids, self.embed_tokens, mla, **expert_options)

        def _record_output(self, pooled_vector: Tensor | None, x: Tensor, last_only: bool) -> Tensor:
            """Returns the head's output: scores of sequences from the pooled vectors, otherwise scores of tokens."""
            if pooled_vector is not None:
                sequence_scores: Tensor = self.classifier(pooled_vector)
                return sequence_scores
            head_input = x[:, -1:] if last_only else x
            if hasattr(self, "head_proj"):
                head_input = self.head_proj(head_input)
            if hasattr(self, "classifier"):
                token_scores: Tensor = self.classifier(head_input)
                return token_scores
            for module_name in ("projection", "latent_attention"):
                if hasattr(self, module_name):
                    output_vectors: Tensor = self.get_submodule(module_name)(head_input)
                    return output_vectors
            logits: Tensor = self.lm_head(head_input) if hasattr(self, "lm_head") else head_input
            return logits

    return ModelReference
