"""Values of a model spec, such as its first attention or its windows, from which config fields are written.

Spec fields have the names that most configs use. So a config field is the first value of that name in the spec. The
properties here are for values with another name in the spec, or values that are calculated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

from ...components.added_position import LearnedPositions
from ...components.base import AttentionPosition, Part, TokenMixer
from ...components.layers.block import Layer
from ...components.mixers.attention import Attention
from ...components.mixers.mla import MLA
from ...components.networks.feed_forward import FeedForward
from ...components.networks.moe import MoE
from ...components.rope import Rope
from ...components.stack import Stack
from ...model import ModelSpec
from ..huggingface.absent_value import AbsentValue, require_present

FoundPart = TypeVar("FoundPart", bound=Part)

LINEAR_ATTENTION_TYPES = ("gated_delta_net", "kimi_delta_attention", "lightning")
STATE_SPACE_TYPES = ("mamba", "mamba2")


class ConfigValues:
    """The values of one model from which config fields are computed. Raises `AbsentValue` for missing ones.

    fields: usual name of a config field → the function that gets it from a spec.
    """

    def __init__(self, spec: ModelSpec, field_functions: Mapping[str, Callable[[ConfigValues], Any]]) -> None:
        self.spec: ModelSpec = spec
        self.fields: Mapping[str, Callable[[ConfigValues], Any]] = field_functions
        self.main_stack: Stack = spec.main
        self.first_stack: Stack = spec.encoder if spec.encoder is not None else spec.main

    def of_spec(self, spec: ModelSpec) -> ConfigValues:
        """Returns the `ConfigValues` of another model, with the same functions for fields."""
        return ConfigValues(spec, self.fields)

    def usual_value(self, field_name: str) -> Any:
        """Returns the value of a config field, by the field's usual name."""
        return self.fields[field_name](self)

    @cached_property
    def layers(self) -> list[Layer]:
        """The layers of the first stack, bottom first."""
        return [self.first_stack.layer(layer_kind) for layer_kind in self.first_stack.layer_names()]

    @cached_property
    def parts(self) -> list[Part]:
        """Every component of the text model: a component before those inside it, layers in execution order."""
        parts: list[Part] = [self.spec]
        for _, stack in self.spec.stacks():
            layers_by_id = {id(layer): layer for layer in map(stack.layer, stack.layer_names())}
            parts += [
                stack,
                *(inner_part for layer in layers_by_id.values() for inner_part in _nested_components(layer)),
            ]
            parts += [
                inner_part
                for field_name in type(stack).model_fields
                if field_name not in ("block", "variants")
                for inner_part in _nested_components(getattr(stack, field_name))
            ]
        return [*parts, *_nested_components(self.spec.head), *_nested_components(self.spec.mtp)]

    @cached_property
    def _first_values(self) -> dict[str, Any]:
        """Returns field name → the first value that is not None among all components; None if all values are."""
        value_by_field: dict[str, Any] = {}
        for spec_part in self.parts:
            for field_name in type(spec_part).model_fields:
                if value_by_field.get(field_name) is None:
                    value_by_field[field_name] = getattr(spec_part, field_name)
        return value_by_field

    def first_value(self, field_name: str) -> Any:
        """Returns a field's first value that is not None among all components; None if all values are."""
        if field_name not in self._first_values:
            raise AbsentValue
        return self._first_values[field_name]

    def find_part(
        self, cls: type[FoundPart], *, matches_part: Callable[[FoundPart], bool] = lambda spec_part: True
    ) -> FoundPart:
        """Returns the first component of a class for which `matches_part` is true."""
        return require_present(
            next((part for part in self.parts if isinstance(part, cls) and matches_part(part)), None)
        )

    def part_of_type(self, *part_types: str) -> Any:
        """Returns the first component whose `type` is among `part_types`."""
        return require_present(next((part for part in self.parts if getattr(part, "type", None) in part_types), None))

    @property
    def head(self) -> Any:
        return self.spec.head

    @property
    def full_attention(self) -> Attention:
        """The first attention without a window, else the first attention."""
        with suppress(AbsentValue):
            return self.find_part(Attention, matches_part=lambda spec_part: spec_part.sliding_window is None)
        return self.find_part(Attention)

    @property
    def sliding_mixer(self) -> Any:
        """The first token mixer with a sliding window, in the order of the layers."""
        return require_present(
            next(
                (
                    token_mixer
                    for token_mixer, window_size in zip(self.mixers, self.windows, strict=True)
                    if window_size
                ),
                None,
            )
        )

    @cached_property
    def mixers(self) -> list[Any]:
        return [layer.attention for layer in self.layers]

    @cached_property
    def windows(self) -> list[int | None]:
        """The window of each layer in tokens, as in `TokenMixer.window_size`."""
        return [
            token_mixer.window_size() if isinstance(token_mixer, TokenMixer) else None for token_mixer in self.mixers
        ]

    @cached_property
    def positions(self) -> list[AttentionPosition | None]:
        """The position encoding of each layer's attention."""
        return [
            token_mixer.score_position_encoding() if isinstance(token_mixer, TokenMixer) else None
            for token_mixer in self.mixers
        ]

    @cached_property
    def networks(self) -> list[Any]:
        return [layer.feed_forward for layer in self.layers]

    @property
    def mla(self) -> MLA:
        return self.find_part(MLA)

    @property
    def moe(self) -> MoE:
        return self.find_part(MoE)

    @property
    def dense_network(self) -> FeedForward:
        """The FFN of a layer without experts, else the shared expert."""
        layers = map(self.first_stack.layer, dict.fromkeys(self.first_stack.layer_names()))
        layer_ffns = (ffn for layer in layers for ffn in layer.networks())
        return require_present(next((ffn for ffn in layer_ffns if isinstance(ffn, FeedForward)), None))

    @property
    def network(self) -> FeedForward:
        """The common FFN of all layers: the dense FFN if there is one, otherwise an expert."""
        with suppress(AbsentValue):
            return self.dense_network
        return self.moe.expert

    @property
    def shared_expert(self) -> FeedForward:
        return require_present(self.moe.shared_expert)

    @property
    def rotary_position(self) -> Rope:
        """The rotary position encoding, of a layer without a window if layers differ."""
        windows_and_positions = sorted(
            zip(self.windows, self.positions, strict=True), key=lambda layer: layer[0] is not None
        )
        return require_present(
            next((position for _, position in windows_and_positions if isinstance(position, Rope)), None)
        )

    @property
    def position_rows(self) -> int:
        """The number of rows of the position embedding, or the context length."""
        position = self.first_stack.position
        return require_present(
            position.max_position_embeddings
            if isinstance(position, LearnedPositions)
            else self.spec.max_position_embeddings
        )

    @property
    def window(self) -> int | None:
        return next((window_size for window_size in self.windows if window_size is not None), None)

    @property
    def head_dim(self) -> int:
        """The size of a query head, of the first layer if layers differ."""
        mixers_with_heads = (
            token_mixer for token_mixer in self.mixers if getattr(token_mixer, "num_attention_heads", None) is not None
        )
        token_mixer = require_present(next(mixers_with_heads, None))
        head_dim: int | None = getattr(token_mixer, "head_dim", None)
        hidden_size: int = (self.first_stack.hidden_size or self.spec.hidden_size) // token_mixer.num_attention_heads
        return hidden_size if head_dim is None else head_dim

    @property
    def rotary_size(self) -> int:
        """The number of rotary dimensions of a head."""
        return self.rotary_position.rotary_size(self.head_dim)

    def dense_layers(self) -> list[int]:
        """The indices of layers without experts."""
        return [layer_index for layer_index, ffn in enumerate(self.networks) if not isinstance(ffn, MoE)]

    def expert_layers(self) -> list[int]:
        """The indices of layers with experts."""
        return [layer_index for layer_index, ffn in enumerate(self.networks) if isinstance(ffn, MoE)]

    def layers_before_experts(self) -> int:
        """The number of layers below the first layer with experts."""
        return next(
            (layer_index for layer_index, ffn in enumerate(self.networks) if isinstance(ffn, MoE)), len(self.layers)
        )

    def layer_kinds(self, **family_words: str) -> list[str]:
        """Returns each layer's kind as in `layer_types`. family_words: a family's names for the kinds."""
        return [family_words.get(layer_kind, layer_kind) for layer_kind in self._layer_kind_names]

    @cached_property
    def _layer_kind_names(self) -> list[str]:
        return [usual_layer_kind(token_mixer) for token_mixer in self.mixers]


def usual_layer_kind(mixer: Any) -> str:
    """Returns the name that most configs use for a layer with this mixer."""
    layer_kind = getattr(mixer, "type", "attention")
    if layer_kind in LINEAR_ATTENTION_TYPES:
        return "linear_attention"
    if layer_kind in STATE_SPACE_TYPES:
        return "mamba"
    if layer_kind in ("short_conv", "rglru", "none"):
        return {"short_conv": "conv", "rglru": "recurrent", "none": "none"}[layer_kind]
    if isinstance(mixer, Attention) and mixer.attention_chunk_size is not None:
        return "chunked_attention"
    has_window = isinstance(mixer, TokenMixer) and mixer.window_size() is not None
    return "sliding_attention" if has_window else "full_attention"


def _nested_components(part_container: Any) -> Iterator[Part]:
    """Yields a component, and all components nested in it."""
    if isinstance(part_container, Part):
        yield part_container
        for field_name in type(part_container).model_fields:
            yield from _nested_components(getattr(part_container, field_name))
