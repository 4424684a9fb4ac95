"""A stack of layers, with position embeddings, an embedding norm and a final norm.

Layers may differ. `variants` are layers that differ from `block` in some fields. `first_layers` lists the kinds of the
bottom layers, and `pattern` is repeated for the rest (Gemma 2: sliding, full; DeepSeek-V3: three dense layers, then
mixture-of-experts).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from ..algebra import Number, ceil_div
from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..workload.rows import FixedRows
from .added_position import LearnedPositions
from .base import (
    TORCH_WITNESS,
    Component,
    Flag,
    HiddenSize,
    InnerWidth,
    Layers,
    ModelProperties,
    PartWitness,
    StackPart,
    StackPosition,
    TokenMixer,
    Vocab,
)
from .choices import LAYERS, AnyLayer, AnyStem, Streams
from .layers.block import Block, Layer, LayerSharing
from .mixers.attention import Attention
from .networks.feed_forward import FeedForward
from .norm import Norm
from .part_choice import component_type
from .rope import Position, Rope
from .runtime import PassState, apply_dropout, share_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .disentangled import RelativeEmbedding, SideConvolution
    from .distance_bias import RelativeBias
    from .entities import Entities
    from .input_features import InputFeatures
    from .layers.per_layer_embeddings import PerLayerEmbedding
    from .ngram_embedding import NgramEmbedding
    from .pooler import Pooler
    from .relative_keys import RelativeKeys
    from .token_types import TokenTypes
    from .unused_modules import SecondStream
else:
    PerLayerEmbedding = component_type("layers.per_layer_embeddings:PerLayerEmbedding")
    TokenTypes = component_type("token_types:TokenTypes")
    RelativeEmbedding = component_type("disentangled:RelativeEmbedding")
    SideConvolution = component_type("disentangled:SideConvolution")
    SecondStream, Entities = component_type("unused_modules:SecondStream"), component_type("entities:Entities")
    InputFeatures = component_type("input_features:InputFeatures")
    NgramEmbedding = component_type("ngram_embedding:NgramEmbedding")
    RelativeKeys = component_type("relative_keys:RelativeKeys")
    RelativeBias, Pooler = component_type("distance_bias:RelativeBias"), component_type("pooler:Pooler")

BASE_LAYER_NAME = "block"
"""The name that stands for the field `block` in a layer pattern."""

MAX_VARIANTS = 256
"""The largest number of variants in one stack."""

SHARED_LABEL_SUFFIX = ", shared"
"""The label suffix of layers that reuse the parameters of the first layer of the same kind."""


class Stack(Component):
    """A stack of `num_hidden_layers` layers, each of which is `block` unless a layer pattern names variants.

    num_hidden_layers: the number of layers.
    block: the base layer.
    variants: name → layer that differs from `block` in the given fields; none by default.
    first_layers: the kinds of the bottom layers, one by one; none by default.
    pattern: the kinds of the layers above them, repeated; `block` alone by default.
    shared_layers: the kinds whose layers all use the parameters of the first of them (ALBERT); none by default.
    stem: the part that replaces the token embedding of an encoder, which then reads sound; none by default.
    vocab_size: the vocabulary of an encoder with its own token embedding; none by default.
    hidden_size: the width of an encoder that differs from the decoder's (T5Gemma); the model's by default.
    input_features: further features of each token, joined to its embedding (RoCBERT); none by default.
    ngram_embedding: the embeddings of n-grams, averaged with each token's (LongCat-Flash-Lite); none by default.
    position: positions added to the input; none by default.
    token_types: segment and task embeddings added to the input (BERT, ERNIE); none by default.
    embedding_norm: the norm on the sum of the embeddings; none by default.
    input_size: the width of the embeddings if a projection to hidden_size follows (ELECTRA, ALBERT); none by default.
    relative_bias: the bias that every layer adds to its scores (T5); none by default.
    relative_keys: the table of keys by distance that every layer reads (SpeechT5); none by default.
    relative_embedding: the table of relative positions that every layer projects (DeBERTa); none by default.
    side_convolution: the convolution beside the first layer (DeBERTa); none by default.
    per_layer_embedding: the embedding that gives every layer a small vector per token (Gemma 3n); none by default.
    streams: the part that splits the residual stream into several and merges them (AltUp, hyper-connections), or
        starts it from the hidden states of a target model (drafts of speculative decoding); none by default.
    second_stream: XLNet's initial query-stream vector; none by default.
    entities: the tables and the head of entities, which plain text does not use (LUKE); none by default.
    final_norm: the norm on the last layer's output; none by default.
    pooler: BERT's pooler on the output of the encoder of an encoder-decoder, whose vector nothing reads; none by
        default.
    output_positions: learned positions that are added to the output of the encoder of an encoder-decoder (Moonshine
        streaming); none by default.
    output_size: the width that a projection gives the output of the encoder of an encoder-decoder; none by default.
    output_bias: whether that projection has a bias, true by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    num_hidden_layers: Layers
    block: AnyLayer
    variants: dict[str, AnyLayer] = Field(default={}, max_length=MAX_VARIANTS)
    first_layers: tuple[str, ...] = ()
    pattern: tuple[str, ...] = (BASE_LAYER_NAME,)
    shared_layers: tuple[str, ...] = ()
    stem: AnyStem | None = None
    vocab_size: Vocab | None = None
    hidden_size: HiddenSize | None = None
    input_features: InputFeatures | None = None
    ngram_embedding: NgramEmbedding | None = None
    position: Position | None = None
    token_types: TokenTypes | None = None
    embedding_norm: Norm | None = None
    input_size: InnerWidth | None = None
    relative_bias: RelativeBias | None = None
    relative_keys: RelativeKeys | None = None
    relative_embedding: RelativeEmbedding | None = None
    side_convolution: SideConvolution | None = None
    per_layer_embedding: PerLayerEmbedding | None = None
    streams: Streams | None = None
    second_stream: SecondStream | None = None
    entities: Entities | None = None
    final_norm: Norm | None = None
    pooler: Pooler | None = None
    output_positions: LearnedPositions | None = None
    output_size: InnerWidth | None = None
    output_bias: Flag = True

    renamed_fields: ClassVar[Mapping[str, str]] = {
        "type_vocab_size": "token_types = { type_vocab_size = … }",
        "task_type_vocab_size": "token_types = { task_type_vocab_size = … }",
        "hyper_streams": 'streams = { type = "hyper", hc_mult = … }',
    }

    @model_validator(mode="before")
    @classmethod
    def _fill_variants(cls, stack_table: Any) -> Any:
        """Fills fields that a layer variant does not set from the stack's `block`."""
        variants, block = (
            (stack_table.get("variants"), stack_table.get("block")) if isinstance(stack_table, dict) else (None, None)
        )
        if not isinstance(variants, dict) or not isinstance(block, dict):
            return stack_table
        completed_variants = {
            variant_name: _table_with_block_fields(block, variant_table)
            if isinstance(variant_table, dict)
            else variant_table
            for variant_name, variant_table in variants.items()
        }
        return {**stack_table, "variants": completed_variants}

    def check_fields(self) -> None:
        if BASE_LAYER_NAME in self.variants:
            raise ValueError(
                f"variants.{BASE_LAYER_NAME}: 'block' is the name of the base layer; expected another name"
            )
        layer_kinds = dict.fromkeys((BASE_LAYER_NAME, *self.variants))
        for pattern_field in ("first_layers", "pattern", "shared_layers"):
            for layer_name in getattr(self, pattern_field):
                if layer_name not in layer_kinds:
                    raise ValueError(
                        f"{pattern_field}: there is no layer called '{layer_name}'; "
                        f"expected one of {', '.join(layer_kinds)}"
                    )
        if not self.pattern:
            raise ValueError("pattern: is empty; expected at least one name of a layer")
        self._check_sharing()
        slots, layers = self.components_by_field(), self.layers_by_kind()
        stack_layers = {layer_name: layers[layer_name] for layer_name in (*self.first_layers, *self.pattern)}
        for component in slots.values():
            component.check_layers(stack_layers)
        for layer_name, layer in layers.items():
            for slot_name, slot_fields in layer.required_stack_fields().items():
                if slot_name not in slots:
                    requirement = ", ".join(
                        f"{required_field} = {required_value!r}"
                        for required_field, required_value in slot_fields.items()
                    )
                    raise ValueError(
                        f"{slot_name}: missing; the layers called '{layer_name}' need one with {requirement}"
                    )

    def _check_sharing(self) -> None:
        """Raises `ValueError` if layers cannot share parameters, or reuse a result that no lower layer computes."""
        for layer_name in self.shared_layers:
            self.layer(layer_name).check_can_share_parameters(layer_name)
        shared_results = {
            layer_name: layer.attention.shared_result_fields()
            for layer_name, layer in self.layers_by_kind().items()
            if isinstance(layer.attention, TokenMixer)
        }
        if self.reads_no_embedding or not any(
            sharing_field for field_by_key in shared_results.values() for sharing_field in field_by_key.values()
        ):
            return
        layers_with_scores: set[object] = set()
        for layer_name in self.layer_names():
            for result_kind, field_name in shared_results.get(layer_name, {}).items():
                if field_name and result_kind not in layers_with_scores:
                    raise ValueError(
                        f"{field_name}: no layer below '{layer_name}' attends alike and makes what it would share; "
                        "expected a layer below that does"
                    )
                if not field_name:
                    layers_with_scores.add(result_kind)

    @property
    def reads_no_embedding(self) -> bool:
        """Whether the stack reads a target model's hidden states or keys and values instead of token embeddings."""
        return self.streams is not None and self.streams.from_target

    @property
    def is_without_embedding(self) -> bool:
        """Whether the model neither reads nor stores a token embedding."""
        return self.stem is not None or (self.streams is not None and self.streams.starts_without_embedding)

    @property
    def keeps_embedding_width(self) -> bool:
        """Whether the stack's input and output keep the embeddings' width although the layers have another width."""
        return self.streams is not None and self.streams.embedding_width() is not None

    def layers_by_kind(self) -> dict[str, Layer]:
        """Returns the layer of each name that the layer pattern can contain."""
        return {BASE_LAYER_NAME: self.block, **self.variants}

    def components_by_field(self) -> dict[str, StackPart]:
        """Returns the stack's components other than layers, such as positions and norms, keyed by field."""
        stack_parts: dict[str, StackPart | None] = {
            "input_features": self.input_features,
            "ngram_embedding": self.ngram_embedding,
            "token_types": self.token_types,
            "relative_bias": self.relative_bias,
            "relative_keys": self.relative_keys,
            "relative_embedding": self.relative_embedding,
            "side_convolution": self.side_convolution,
            "per_layer_embedding": self.per_layer_embedding,
            "streams": self.streams,
            "second_stream": self.second_stream,
            "entities": self.entities,
        }
        return {slot_name: component for slot_name, component in stack_parts.items() if component is not None}

    def check_stack_position(self, stack_position: StackPosition) -> None:
        """Raises `ValueError` for a layer or component that cannot be used at its position in the stack."""
        for layer_name, layer in self.layers_by_kind().items():
            error_path = (
                f"{stack_position.error_path}."
                f"{BASE_LAYER_NAME if layer_name == BASE_LAYER_NAME else f'variants.{layer_name}'}"
            )
            layer.check_stack_position(replace(stack_position, error_path=error_path))
        for layer_name, component in self.components_by_field().items():
            component.check_stack_position(
                replace(stack_position, error_path=f"{stack_position.error_path}.{layer_name}")
            )
        input_width = self.input_size or stack_position.width
        if self.streams is not None and self.streams.embedding_width() not in (None, input_width):
            raise ValueError(
                f"{stack_position.error_path}.streams.query_size: expected {input_width}, the embeddings' width"
            )

    def layer_names(self) -> list[str]:
        """Returns the pattern name of each layer, such as `sliding` or `full`, in execution order."""
        repeated_layers = max(0, self.num_hidden_layers - len(self.first_layers))
        repeated_pattern = self.pattern * (repeated_layers // len(self.pattern) + 1)
        return [*self.first_layers, *repeated_pattern][: self.num_hidden_layers]

    def layer(self, layer_name: str) -> Layer:
        """Returns the layer that has this name in the layer pattern."""
        return self.block if layer_name == BASE_LAYER_NAME else self.variants[layer_name]

    def layer_groups(self) -> Iterator[tuple[str, Layer, Number, list[int] | range | None]]:
        """Yields (name, layer, layer count, layer indices) per distinct layer; no indices for a symbolic depth."""
        stack_depth: Number = self.num_hidden_layers
        if not self.first_layers and len(set(self.pattern)) == 1:
            layer_name = self.pattern[0]
            yield (
                layer_name,
                self.layer(layer_name),
                stack_depth,
                range(stack_depth) if isinstance(stack_depth, int) else None,
            )
            return
        if isinstance(stack_depth, int):
            indices_by_name: dict[str, list[int]] = {}
            for layer_index, layer_name in enumerate(self.layer_names()):
                indices_by_name.setdefault(layer_name, []).append(layer_index)
            for layer_name, layer_indices in indices_by_name.items():
                yield layer_name, self.layer(layer_name), len(layer_indices), layer_indices
            return
        repeated_layers, pattern_length = stack_depth - len(self.first_layers), len(self.pattern)
        for layer_name in dict.fromkeys((*self.first_layers, *self.pattern)):
            repeat_count = sum(
                ceil_div(repeated_layers - layer_index, pattern_length)
                for layer_index, pattern_name in enumerate(self.pattern)
                if pattern_name == layer_name
            )
            yield layer_name, self.layer(layer_name), self.first_layers.count(layer_name) + repeat_count, None

    def flow(
        self,
        recorder: Flow,
        x: Value,
        width: Axis | None = None,
        positions: Weight | None = None,
        keeps_first_input: bool = True,
    ) -> Value:
        """Records the operations of the whole stack. x: token embeddings, or the input of the stem or embedding.

        width: the width of the layers where it differs from x's. positions: the table of learned positions of another
        stack, in the place of its own. keeps_first_input: whether the forward pass keeps the first layer's input until
        its end; false only for layers that do not read it again.
        """
        hidden_axes: Shape = x.axes if width is None else (width,)
        embedding_axes = hidden_axes if self.input_size is None else (Axis("embedding", self.input_size),)
        with recorder.separate_stack(recorder.causal, recorder.encoder_output), recorder.function():
            recorder.layer_memo["hidden"] = hidden_axes
            recorder.layer_memo["keeps_first_input"] = keeps_first_input
            return self._record_layer_groups(
                recorder, self._record_first_layer_input(recorder, x, hidden_axes, embedding_axes, positions)
            )

    def _record_layer_groups(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the layers and final norm, and returns the output. x: the first layer's input."""
        slots: tuple[tuple[str, StackPart | None, dict[str, Any]], ...] = (
            ("relative_bias", self.relative_bias, {}),
            ("relative_keys", self.relative_keys, {}),
            ("relative_embedding", self.relative_embedding, {}),
            ("per_layer_embedding", self.per_layer_embedding, {"layer_count": self.num_hidden_layers}),
        )
        for slot_name, component, arguments in slots:
            if component is not None:  # from here on, every layer reads it under the field's name
                recorder.layer_memo[slot_name] = recorder.part(slot_name, component, x, **arguments)
            if slot_name == "relative_bias" and component is not None:
                for layer in self.layers_by_kind().values():
                    layer.attention.record_shared_bias(recorder, x)
        if self.second_stream is not None:
            recorder.part("second_stream", self.second_stream, x, role="idle")
        if self.entities is not None:
            recorder.part("entities", self.entities, x, role="idle")
        mixers = [layer.attention for layer in self.layers_by_kind().values()]
        recorder.layer_memo["lends"] = any(getattr(mixer, "kv_shared", False) for mixer in mixers)
        recorder.layer_memo["lends_selection"] = any(
            getattr(getattr(mixer, "indexer", None), "shared", False) for mixer in mixers
        )
        recorder.layer_memo["embedded"] = x
        if recorder.layer_memo["keeps_first_input"]:
            recorder.keep(embedded=x)
            recorder.hold(x=x)
        x = x.view(*x.axes)  # layers that read the embeddings again tell them from their input
        x = x if self.streams is None else self.streams.record_stream_split(recorder, x)
        if self.side_convolution is not None:
            recorder.part("side_convolution", self.side_convolution, x, first_layer_output=Value(x.rows, x.axes))
        for kind_name, block, layer_count, layer_indices in self.layer_groups():
            x = self._record_layers(recorder, x, kind_name, block, layer_count, layer_indices)
        recorder.hold(x=x, y=x)
        if self.streams is not None:
            recorder.streams = x
            x = self.streams.record_stream_merge(recorder, x)
            recorder.hold(x=x)
        x = x if self.final_norm is None else recorder.part("norm", self.final_norm, x)
        x = recorder.dropout(x, "final")
        if self.pooler is not None:
            recorder.hold(x=x)
            recorder.part("pooler", self.pooler, x, role="no_grad", rows=FixedRows("sequences of the source"))
        if self.output_positions is not None:
            x = recorder.add(x, recorder.in_format_of(x, recorder.part("output_positions", self.output_positions, x)))
        if self.output_size is None:
            return x
        return recorder.linear("output_proj", x, Axis("hidden", self.output_size), bias=self.output_bias)

    def _record_first_layer_input(
        self, recorder: Flow, x: Value, hidden_axes: Shape, embedding_axes: Shape, positions: Weight | None
    ) -> Value:
        """Returns the first layer's input: the embeddings after position vectors, norms and other input components."""
        if self.stem is not None:
            x = recorder.part("stem", self.stem, x, width=hidden_axes)
        if self.vocab_size is not None:
            x, _ = recorder.table(
                "embed_tokens", Axis("vocab", self.vocab_size), *hidden_axes, output_rows=x.rows, kind="embedding"
            )
        x = x.view(*embedding_axes)
        x = x if self.input_features is None else recorder.part("input_features", self.input_features, x)
        x = x if self.ngram_embedding is None else recorder.part("ngram_embedding", self.ngram_embedding, x)
        if positions is not None:
            with recorder.function():
                position_vector = recorder.look_up(positions, x.rows, index_source="positions")
            x = recorder.add(x, recorder.in_format_of(x, position_vector))
        elif self.position is not None:
            x = recorder.add(x, recorder.in_format_of(x, recorder.part("embed_positions", self.position, x)))
        if self.token_types is not None:
            recorder.hold(x=x)
            with recorder.function():
                x = self.token_types.flow(recorder, x)
            recorder.hold(x=x)
        x = x if self.embedding_norm is None else recorder.part("embed_norm", self.embedding_norm, x)
        x = recorder.dropout(x, "embedding")
        if recorder.layer_memo["keeps_first_input"]:
            recorder.hold(x=x)
        if self.input_size is None or self.keeps_embedding_width:
            return x
        return recorder.linear("input_proj", x, *hidden_axes, bias=True, kind="embedding")

    def _record_layers(
        self, recorder: Flow, x: Value, kind_name: str, layer: Layer, layer_count: Number, layer_indices: Any
    ) -> Value:
        """Records the operations of all layers with one pattern name. If they share weights, the first has them."""
        shown_label = "" if kind_name == BASE_LAYER_NAME else kind_name
        node_fields = {"kind": "layer", "source": layer.formula_source}
        if kind_name not in self.shared_layers:
            return recorder.layers(
                x, lambda v: layer.flow(recorder, v), layer_count, layer_indices, label=shown_label, **node_fields
            )
        first_indices, later_indices = (None, None) if layer_indices is None else (layer_indices[:1], layer_indices[1:])
        has_single_layer = isinstance(layer_count, int) and layer_count == 1
        other_layer_count = 0 if has_single_layer else layer_count - 1
        layer_sharing = None if has_single_layer else LayerSharing(is_first=True, other_layer_count=other_layer_count)
        x = recorder.layers(
            x, lambda v: layer.flow(recorder, v, layer_sharing), 1, first_indices, label=shown_label, **node_fields
        )
        if has_single_layer:
            return x
        role_field = {"role": "shared"} if layer.shares_all_parameters else {}
        shared_label = (shown_label or BASE_LAYER_NAME) + SHARED_LABEL_SUFFIX
        later_layer_sharing = LayerSharing(is_first=False, other_layer_count=other_layer_count)
        return recorder.layers(
            x,
            lambda v: layer.flow(recorder, v, later_layer_sharing),
            other_layer_count,
            later_indices,
            label=shared_label,
            **node_fields,
            **role_field,
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        from .layers.altup_layer import AltUp, AltUpLayer
        from .layers.block_residual import BlockResiduals, block_residual_example
        from .layers.convolved_residual import convolved_residual_example
        from .layers.delayed_hyper import DelayedHyperStreams, delayed_hyper_example
        from .layers.draft_layer import draft_example
        from .layers.gated_streams import GatedStreams, gated_streams_example
        from .layers.gemma4_layer import Gemma4Layer
        from .layers.grouped_conv import grouped_conv_example
        from .layers.hyper_layer import HyperStreams, hyper_example
        from .layers.per_layer_embeddings import PerLayerEmbedding, PerLayerGate
        from .mixers.qk_norm import QKNorm
        from .mixers.shared_entries import shared_entry_examples
        from .ngram_input import NgramInput
        from .self_conditioning import SelfConditioning
        from .target_states import TargetStates

        block = Block.examples()[0]
        wide = block.model_copy(update={"feed_forward": FeedForward(intermediate_size=56, hidden_act="relu")})
        layers_by_kind: dict[str, AnyLayer] = {"wide": wide}
        rmsnorm, dense_network = Norm(type="rmsnorm"), FeedForward(intermediate_size=20, hidden_act="gelu", gated=True)
        grouped_attention = Attention(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            sliding_window=5,
            qk_norm=QKNorm(norm=rmsnorm),
            position=Rope(),
        )
        shared_entry_layers = shared_entry_examples()
        ngrams = NgramInput(ngram_rows=40, ngram_heads=4, ngram_head_dim=3, streams=3, norm=rmsnorm)
        ngram_input_by_layer_kind = {
            "finding": ngrams,
            "local": ngrams.model_copy(update={"conv_kernel_size": 3, "dilation": 2}),
        }
        gate = PerLayerGate(hidden_size_per_layer_input=6, hidden_act="gelu")
        gemma_layer = Gemma4Layer(
            attention=grouped_attention, feed_forward=dense_network, norm=rmsnorm, per_layer_input=gate
        )
        shares = gemma_layer.model_copy(update={"attention": grouped_attention.model_copy(update={"kv_shared": True})})
        sharing_layers: dict[str, AnyLayer] = {"shares": shares}
        embedding_table = PerLayerEmbedding(vocab_size_per_layer_input=40, hidden_size_per_layer_input=6, norm=rmsnorm)
        altup = AltUpLayer(
            attention=grouped_attention,
            feed_forward=dense_network,
            norm=rmsnorm,
            per_layer_input=gate,
            laurel_rank=5,
            altup_num_inputs=3,
        )

        def build_stack(layer_count: int, layer: AnyLayer, **stack_fields: Any) -> Any:
            return cls(num_hidden_layers=layer_count, block=layer, **stack_fields)

        unweighted_rms = Norm(type="rmsnorm", weight=False)
        residual_layers = {
            "first": block_residual_example(),
            "second": block_residual_example(attention_blocks=1, feed_forward_blocks=2),
            "last": block_residual_example(attention_blocks=2, feed_forward_blocks=2, starts_block=False),
        }
        convolved_layers = {
            "second": convolved_residual_example(attention_blocks=1, starts_block=False),
            "last": convolved_residual_example(attention_blocks=1, feed_forward_blocks=2, separate_inputs=False),
        }
        delayed_layers = {
            layer_name: delayed_hyper_example(attention=mixer, ngram_input=ngram_input_by_layer_kind.get(layer_name))
            for layer_name, mixer in shared_entry_layers.items()
        }
        pattern = (BASE_LAYER_NAME, BASE_LAYER_NAME, "wide")
        streams = TargetStates(states=2, start="embedding", output_norm=rmsnorm)
        per_layer_embedding = PerLayerEmbedding(hidden_size_per_layer_input=6, norm=rmsnorm)
        return [
            build_stack(
                2, altup, per_layer_embedding=embedding_table, streams=AltUp(altup_num_inputs=3), final_norm=rmsnorm
            ),
            build_stack(
                4,
                gemma_layer,
                variants=sharing_layers,
                first_layers=(BASE_LAYER_NAME, BASE_LAYER_NAME),
                pattern=("shares",),
                per_layer_embedding=embedding_table,
            ),
            build_stack(2, block, final_norm=rmsnorm),
            build_stack(2, hyper_example(), streams=HyperStreams(hc_mult=3), final_norm=rmsnorm),
            build_stack(2, hyper_example(hc_sinkhorn_iters=None, hc_magnitude=1.5), streams=HyperStreams(hc_mult=3)),
            build_stack(2, hyper_example(), streams=HyperStreams(hc_mult=3, merge="mean")),
            build_stack(2, block, streams=SelfConditioning(feed_forward=dense_network, norm=rmsnorm)),
            build_stack(2, block, streams=TargetStates(states=1, start="joined", bias=True)),
            build_stack(2, grouped_conv_example(), streams=streams, final_norm=rmsnorm),
            build_stack(
                1, draft_example(), streams=TargetStates(states=3, size=12, state_norm=rmsnorm), final_norm=rmsnorm
            ),
            build_stack(
                3,
                block,
                variants={"first": draft_example(norm_before_residual=True)},
                first_layers=("first",),
                streams=TargetStates(states=2, joined_norm=rmsnorm, masked=True),
                final_norm=rmsnorm,
            ),
            build_stack(3, block, shared_layers=(BASE_LAYER_NAME,), embedding_norm=Norm(type="layernorm")),
            build_stack(5, block, variants=layers_by_kind, pattern=pattern, shared_layers=(BASE_LAYER_NAME, "wide")),
            build_stack(
                4,
                block_residual_example(attention_blocks=1, starts_block=False),
                variants=residual_layers,
                first_layers=("first", BASE_LAYER_NAME, "second", "last"),
                streams=BlockResiduals(blocks=2, norm=rmsnorm),
                final_norm=rmsnorm,
            ),
            build_stack(
                3,
                gated_streams_example(),
                variants={"ngrams": gated_streams_example(ngram_input=ngram_input_by_layer_kind["local"])},
                first_layers=(BASE_LAYER_NAME, "ngrams"),
                streams=GatedStreams(hc_mult=3, hc_lowrank=5, norm=rmsnorm),
            ),
            build_stack(
                5,
                delayed_hyper_example(attention=shared_entry_layers["reusing"]),
                variants=delayed_layers,
                first_layers=("finding", "scoring", BASE_LAYER_NAME, "local", "computing"),
                streams=DelayedHyperStreams(hc_mult=3),
            ),
            build_stack(
                3,
                convolved_residual_example(),
                variants=convolved_layers,
                first_layers=(BASE_LAYER_NAME, "second", "last"),
                streams=BlockResiduals(blocks=2, norm=unweighted_rms, normed_values=True),
                final_norm=rmsnorm,
            ),
            build_stack(2, gemma_layer, per_layer_embedding=per_layer_embedding),
        ]


def _table_with_block_fields(block: dict[str, Any], variant_table: dict[str, Any]) -> dict[str, Any]:
    """Returns a variant's table with missing fields taken from the block, as far as the variant's class has them."""
    layer_type = variant_table.get("type")
    if layer_type in LAYERS.class_paths and layer_type != block.get("type", LAYERS.default):
        layer_fields = LAYERS.load_component(layer_type).model_fields
        block = {field_name: field_value for field_name, field_value in block.items() if field_name in layer_fields}
    return merge_tables(block, variant_table)


def merge_tables(base_table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns a TOML table updated recursively with `changes`; a table with another `type` replaces the old one."""
    changed_table = dict(base_table)
    for changed_key, changed_value in changes.items():
        base_value = changed_table.get(changed_key)
        if (
            isinstance(changed_value, dict)
            and isinstance(base_value, dict)
            and changed_value.get("type", base_value.get("type")) == base_value.get("type")
        ):
            changed_table[changed_key] = merge_tables(base_value, changed_value)
        else:
            changed_table[changed_key] = changed_value
    return changed_table


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class StackReference(nn.Module):
        """Runs a stack of layers. Token embeddings [batch, tokens, hidden] → hidden states of the same shape."""

        def __init__(self, spec: Stack, model_properties: ModelProperties) -> None:
            super().__init__()
            embedding_properties = ModelProperties(
                spec.input_size or model_properties.hidden_size, model_properties.is_causal
            )
            if spec.vocab_size is not None:
                self.embed_tokens = nn.Embedding(spec.vocab_size, model_properties.hidden_size)
            self._token_types = self._optional_modules(spec.token_types, embedding_properties)
            is_projected = spec.streams is None or spec.streams.type not in ("latents", "byte_patches")
            if spec.input_size is not None and is_projected:
                self.input_proj = nn.Linear(spec.input_size, model_properties.hidden_size)
            for slot_name, component, *arguments in (
                ("stem", spec.stem, model_properties),
                ("input_features", spec.input_features, embedding_properties),
                ("ngram_embedding", spec.ngram_embedding, embedding_properties),
                ("embed_positions", spec.position, embedding_properties),
                ("embed_norm", spec.embedding_norm, embedding_properties),
                ("relative_bias", spec.relative_bias, model_properties),
                ("relative_keys", spec.relative_keys, model_properties),
                ("relative_embedding", spec.relative_embedding, model_properties),
                ("per_layer_embedding", spec.per_layer_embedding, model_properties, spec.num_hidden_layers),
                ("side_convolution", spec.side_convolution, model_properties),
                ("second_stream", spec.second_stream, model_properties),
                ("entities", spec.entities, model_properties),
                ("norm", spec.final_norm, model_properties),
                ("pooler", spec.pooler, model_properties),
                ("output_positions", spec.output_positions, model_properties),
            ):
                if component is not None:
                    self.add_module(slot_name, component.reference(*arguments))
            self._streams = self._optional_modules(spec.streams, model_properties)
            repeated_pattern = spec.pattern * spec.num_hidden_layers
            layer_names = (*spec.first_layers, *repeated_pattern)[: spec.num_hidden_layers]
            layers_by_kind = {BASE_LAYER_NAME: spec.block, **spec.variants}
            self.lends = any(
                getattr(layers_by_kind[layer_kind_name].attention, "kv_shared", False)
                for layer_kind_name in layer_names
            )
            self.layers = nn.ModuleList(
                layers_by_kind[layer_kind_name].reference(model_properties) for layer_kind_name in layer_names
            )
            self.layer_kinds = [
                f"{layer_kind_name}, again"
                if layer_names.index(layer_kind_name) < layer_index_in_pattern
                and not getattr(self.layers[layer_index_in_pattern], "has_equal_repeats", True)
                else layer_kind_name
                for layer_index_in_pattern, layer_kind_name in enumerate(layer_names)
            ]
            for layer_index, slot_name in enumerate(layer_names):
                if slot_name in spec.shared_layers:
                    self._share_parameters(self.layers[layer_names.index(slot_name)], self.layers[layer_index])
            if spec.output_size is not None:
                self.output_proj = nn.Linear(model_properties.hidden_size, spec.output_size, bias=spec.output_bias)

        def _optional_modules(self, component: Component | None, model_properties: ModelProperties) -> tuple[Any, ...]:
            """Returns the component's module in a tuple, or an empty tuple if there is no component.

            torch does not register modules in a tuple.
            """
            if component is None:
                return ()
            component_module = component.reference(model_properties)
            for child_name, child_module in component_module.named_children():
                self.add_module(child_name, child_module)
            return (component_module,)

        def _share_parameters(self, first_layer: nn.Module, layer: nn.Module) -> None:
            """Ties a layer's parameters and buffers to those of the first layer with the same pattern name."""
            share_parameters: Any = getattr(layer, "share_parameters", None)
            if share_parameters is not None:  # a layer that shares only a part of itself
                share_parameters(first_layer)
                return
            share_tensors(first_layer, layer)

        def _optional_module_output(self, module_name: str, x: Tensor) -> Tensor:
            """Returns the named module's output for x; returns x itself if the stack has no such module."""
            optional_module: Any = getattr(self, module_name, None)
            return x if optional_module is None else optional_module(x)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            for module_name in ("stem", "embed_tokens", "input_features", "ngram_embedding"):
                x = self._optional_module_output(module_name, x)
            if hasattr(self, "embed_positions"):
                x = x + self.get_submodule("embed_positions")(
                    torch.arange(pass_state.past_tokens, pass_state.past_tokens + x.shape[1], device=x.device)
                ).to(x.dtype)
            for type_table in self._token_types:
                x = type_table(x)
            x = apply_dropout(self, "embedding", self._optional_module_output("embed_norm", x))
            x = self._optional_module_output("input_proj", x)
            pass_state.score_bias = getattr(self, "relative_bias", None)
            if pass_state.score_bias is not None:  # no layer owns what all of them add
                for layer_module in self.layers.modules():
                    share_bias: Any = getattr(layer_module, "compute_shared_bias", None)
                    if share_bias is not None:
                        share_bias(x, pass_state)
            if hasattr(self, "relative_keys"):
                pass_state.shared_values["relative_keys"] = self.get_submodule("relative_keys")(x)
            if hasattr(self, "relative_embedding"):
                pass_state.shared_values["relative_embedding"] = self.get_submodule("relative_embedding")()
            if hasattr(self, "per_layer_embedding"):
                pass_state.per_layer_embeddings = self.get_submodule("per_layer_embedding")(x, pass_state)
            pass_state.first_layer_input, pass_state.returns_keys_and_values = x, self.lends
            for streams in self._streams:
                x = streams.split_streams(x, pass_state)
            for layer_index, layer in enumerate(self.layers):
                pass_state.layer_index = layer_index
                layer_output = layer(x, pass_state)
                if layer_index == 0 and hasattr(self, "side_convolution"):
                    layer_output = self.get_submodule("side_convolution")(x, layer_output)
                x = layer_output
            for streams in self._streams:
                pass_state.unmerged_streams = x if pass_state.keeps_streams else None
                x = streams.merge_streams(x, pass_state)
            x = apply_dropout(self, "final", self._optional_module_output("norm", x))
            if hasattr(self, "pooler"):
                self.get_submodule("pooler")(x.detach())
            if hasattr(self, "output_positions"):
                x = x + self.get_submodule("output_positions")(torch.arange(x.shape[1], device=x.device)).to(x.dtype)
            return self._optional_module_output("output_proj", x)

    return StackReference
