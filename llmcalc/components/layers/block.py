"""The standard layer: attention, optional cross-attention and a feed-forward network, with residual connections.

Placement of the norms:
- `post`: after the residual addition (Vaswani 2017);
- `pre`: before each sublayer (Baevski & Auli 2018; Xiong 2020, arXiv:2002.04745);
- `sandwich`: before each sublayer and on its output (CogView: Ding 2021, arXiv:2105.13290; Gemma 2; named Peri-LN in
  Kim 2025, arXiv:2502.02732);
- `output`: on the sublayer's output only, before the residual addition (OLMo 2, arXiv:2501.00656; as res-post-norm in
  Swin Transformer V2: Liu 2021, arXiv:2111.09883).
In a `parallel` block, attention and feed-forward read the same input, through one shared norm (GPT-J; PaLM, Falcon-7B,
Command-R) or through one norm each (GPT-NeoX: Black 2022, arXiv:2204.06745; Falcon-40B). A layer of a recurrence alone
is that of the recurrence's paper (Mamba), and so is one with two parts of one paper (RWKV).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.tree import Role
from ...flow.value import Value
from ...frozen import frozen
from ...workload.rows import SOURCE_TOKENS
from ..base import (
    TORCH_WITNESS,
    Component,
    Flag,
    HeadSizes,
    InnerWidth,
    ModelProperties,
    Network,
    Nothing,
    PartWitness,
    StackPosition,
    TokenMixer,
    UnscalableError,
)
from ..choices import ChannelMixer, Mixer
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState, apply_dropout, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn

AFFINE_NORM, SCALE_NORM = Norm.model_construct(type="affine"), Norm.model_construct(type="affine", bias=False)

SUBLAYERS = ("attention", "cross_attention", "feed_forward")
"""The fields of a layer that are sublayers, in the order they run."""


PLACEMENT_SOURCES: Mapping[str, str] = {
    "post": "Vaswani et al. 2017, §3.1",
    "pre": "Xiong et al. 2020",
    "sandwich": "Ding et al. 2021 (CogView)",
    "output": "Walsh et al. 2025 (OLMo 2)",
}
"""Placement of the norms → its source."""

PARALLEL_SOURCES: Mapping[str, str] = {"shared": "Wang & Komatsuzaki 2021", "separate": "Black et al. 2022"}
"""Norms of a parallel layer → its source."""

SCALE_SOURCES: Mapping[bool | str, str] = {
    "residual": "Shi et al. 2024 (Doge)",
    "output": "Touvron et al. 2021",
    "gate": "Alayrac et al. 2022, §2.2",
}
"""Value of `Block.residual_scale`, which says what a pre-norm layer scales → its source; ZAYA1's scales have none."""


@frozen(slots=True)
class LayerSharing:
    """How a layer shares its parameters: whether it is the first layer that uses them, and the number of the others.

    is_first: whether it is the first of them, which has the parameters.
    other_layer_count: the number of other layers that use them.
    """

    is_first: bool
    other_layer_count: Number


class Layer(Component):
    """The base class of all types of layers, with the fields that reports and counts need.

    attention: the token mixer: attention, state-space or linear attention; `{ type = "none" }` without one.
    feed_forward: the part that works on each token separately; `{ type = "none" }` without one.
    cross_attention: attention to an encoder's output, in the kinds of layers that have it; none by default.
    norm: the norm around each sublayer.
    norm_placement: the placement of the norms, `pre`, `post`, `sandwich` or `output`.
    parallel: `shared` or `separate` norms where sublayers run in parallel; by default they run in sequence.
    without_norms: norms that the placement implies and this layer lacks, by their names in the tree (ModernBERT's first
        layer); none by default.
    is_plain_transformer_layer: whether it runs attention and feed_forward once each and nothing else, as rules of thumb
        assume (class attribute).
    can_run_alone: whether the layer can run outside its stack, because it needs only its input (class attribute).
    shares_all_parameters: whether layers of this kind that share parameters share all of them (class attribute).
    """

    noun: ClassVar[str] = "layer"
    is_plain_transformer_layer: ClassVar[bool] = True
    can_run_alone: ClassVar[bool] = True
    shares_all_parameters: ClassVar[bool] = True

    attention: Mixer
    feed_forward: ChannelMixer
    norm: Norm
    norm_placement: Literal["pre", "post", "sandwich", "output"]
    parallel: Literal["shared", "separate"] | None = None
    without_norms: tuple[str, ...] = ()

    def with_replaced_mixers(self, replace_mixer: Callable[[TokenMixer, int], TokenMixer], hidden_size: int) -> Self:
        """Returns the layer with `replace_mixer` applied to all its token mixers. hidden_size: the layer's width."""
        mixers = {
            mixer_field: getattr(self, mixer_field)
            for mixer_field in ("attention", "cross_attention")
            if hasattr(self, mixer_field)
        }
        changed_mixers = {
            field_name: replace_mixer(component, hidden_size)
            for field_name, component in mixers.items()
            if isinstance(component, TokenMixer)
        }
        return self.model_copy(update=changed_mixers)

    def scaled(
        self, hidden_size: int, heads: Callable[[HeadSizes], HeadSizes], scale_width: Callable[[int], Number]
    ) -> Self:
        """Returns the layer scaled to another width. hidden_size: the old width. heads, scale_width: old → new sizes.

        Raises `UnscalableError`, with the reason, where the layer cannot be scaled that way.
        """
        mixer, network = self.attention, self.feed_forward
        if not isinstance(mixer, TokenMixer) or not isinstance(network, Network):
            raise UnscalableError(
                "expected a decoder whose layers all have attention and a feed-forward network or experts"
            )
        head_sizes = mixer.head_sizes(hidden_size)
        attention = mixer.with_heads(HeadSizes(1, 1, 1) if head_sizes is None else heads(head_sizes))
        return self.model_copy(update={"attention": attention, "feed_forward": network.with_scaled_widths(scale_width)})

    def networks(self) -> list[Any]:
        """The layer's networks, which process each token separately; the feed-forward network is first."""
        return [self.feed_forward]

    def mixers(self, hidden_size: int) -> list[tuple[str, Any, int]]:
        """The token mixers of a layer of this width: (field, mixer, width of the mixer's input)."""
        return [("attention", self.attention, hidden_size)]

    def check_stack_position(self, stack_position: StackPosition) -> None:
        """Raises `ValueError` if the layer cannot be used at this position of the model."""
        for field_name, component, width in self.mixers(stack_position.width):
            error_path = f"{stack_position.error_path}.{field_name}"
            component.check_stack_position(replace(stack_position, error_path=error_path, width=width))

    def reads_encoder(self) -> bool:
        """Whether the layer attends to an encoder's output."""
        return isinstance(self.attention, TokenMixer) and self.attention.reads_encoder

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return self.attention.required_stack_fields() if isinstance(self.attention, Component) else {}

    def check_can_share_parameters(self, layer_name: str) -> None:
        """Raises `ValueError` if layers of this type cannot share parameters. layer_name: the type in words."""

    def dependency_field(self) -> str:
        if not self.can_run_alone:
            return f"type '{type(self).model_fields['type'].default}'"
        return self.sublayer_dependency_field()

    def sublayer_dependency_field(self) -> str:
        """The field that makes a sublayer depend on another layer or on the model; empty for independent sublayers."""
        for field_name, component in (("attention", self.attention), ("feed_forward", self.feed_forward)):
            dependency_field = component.dependency_field() if isinstance(component, Component) else ""
            if dependency_field:
                return f"{field_name}.{dependency_field}"
        return ""

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        """Records the operations of the layer's attention, networks, norms and residual sums.

        layer_sharing: its position among the layers that share parameters; None without sharing.
        """
        raise TypeError(f"{type(self).__name__} has no flow")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds the layer as a module: forward(x [batch, tokens, hidden], pass_state) → same shape."""
        raise TypeError(f"{type(self).__name__} has no reference")

    @classmethod
    def examples(cls) -> list[Self]:
        """Returns the default examples if the layer can run outside a stack, else no examples."""
        return super().examples() if cls.can_run_alone else []


class Block(Layer):
    """The standard layer: sublayers in sequence or in parallel, each around the residual stream.

    input_norm: the norm on the residual stream before anything else (RWKV's first layer); none by default.
    cross_attention: attention to an encoder's output; none by default.
    residual_scale: true scales and shifts the sublayer's output and the residual before adding them (ZAYA1). `residual`
        only scales the residual (Doge). `output` only scales the sublayer's output (LayerScale: Touvron 2021,
        arXiv:2103.17239; InternVL), `gate` by the tanh of one number (Llama 3.2 Vision's encoder). False by default.
    idle_cross_attention: whether cross-attention has parameters but never runs, for lack of an encoder (the decoders of
        BART and related models alone); false by default.
    idle_source_size: the width of what idle cross-attention would read, by default the layer's (BLIP's decoder, whose
        source is an image).
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["block"] = "block"
    input_norm: Norm | None = None
    cross_attention: Attention | None = None
    residual_scale: Flag | Literal["residual", "output", "gate"] = False
    idle_cross_attention: Flag = False
    idle_source_size: InnerWidth | None = None

    def check_fields(self) -> None:
        if self.parallel is not None and (self.norm_placement != "pre" or self.cross_attention is not None):
            raise ValueError("parallel: a parallel block has norm_placement = 'pre' and no cross_attention")
        if self.parallel is not None and (
            isinstance(self.attention, Nothing) or isinstance(self.feed_forward, Nothing)
        ):
            raise ValueError("parallel: a parallel block has both attention and feed_forward")
        if self.residual_scale and (self.norm_placement != "pre" or self.parallel is not None):
            raise ValueError("residual_scale: requires norm_placement = 'pre' and a layer that is not parallel")
        if self.idle_cross_attention and self.cross_attention is None:
            raise ValueError("idle_cross_attention: there is no cross_attention to hold")
        if self.idle_source_size is not None and not self.idle_cross_attention:
            raise ValueError("idle_source_size: only idle cross-attention has one; expected none")
        if self.cross_attention is not None:
            self.cross_attention.check_cross_attention()
        norm_names = [
            f"{sublayer_name_with_norm}_{norm_place}_norm"
            for sublayer_name_with_norm, _ in self.sublayers()
            for norm_place in ("pre", "post")
        ]
        for sublayer_name in self.without_norms:
            if sublayer_name not in norm_names:
                raise ValueError(
                    f"without_norms: there is no '{sublayer_name}'; expected some of {', '.join(norm_names)}"
                )

    def mixers(self, hidden_size: int) -> list[tuple[str, Any, int]]:
        cross_attention = self.cross_attention
        return [
            *super().mixers(hidden_size),
            *([] if cross_attention is None else [("cross_attention", cross_attention, hidden_size)]),
        ]

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        has_encoder, is_idle = stack_position.source_width is not None, self.idle_cross_attention
        if is_idle and (has_encoder or stack_position.stack_name == "encoder"):
            raise ValueError(
                f"{stack_position.error_path}.idle_cross_attention: there is an encoder to attend to; expected false"
            )
        if self.cross_attention is not None and not is_idle and not has_encoder:
            raise ValueError(
                f"{stack_position.error_path}.cross_attention: only the decoder of an encoder-decoder has one"
            )
        if self.cross_attention is not None and super().reads_encoder():
            raise ValueError(
                f"{stack_position.error_path}.cross_attention: the layer's attention reads the encoder; expected none"
            )

    def reads_encoder(self) -> bool:
        return super().reads_encoder() or (self.cross_attention is not None and not self.idle_cross_attention)

    def sublayers(self) -> list[tuple[str, Component]]:
        """The sublayers in execution order: (name in the model's tree, component)."""
        components: list[Any] = [getattr(self, field_name) for field_name in SUBLAYERS]
        sublayer_names = (
            "cross_attn" if sublayer_index == 1 else getattr(component, "node_name", "")
            for sublayer_index, component in enumerate(components)
        )
        return [
            (sublayer_name, component)
            for sublayer_name, component in zip(sublayer_names, components, strict=True)
            if isinstance(component, Component)
        ]

    @property
    def formula_source(self) -> str:
        mixer = self.attention
        if isinstance(mixer, TokenMixer) and mixer.kind != "attention":
            feed_forward = self.feed_forward
            network = feed_forward.formula_source if isinstance(feed_forward, Component) else mixer.formula_source
            if network == mixer.formula_source:
                return network
        if self.parallel is not None:
            return PARALLEL_SOURCES[self.parallel]
        return SCALE_SOURCES.get(self.residual_scale) or PLACEMENT_SOURCES[self.norm_placement]

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        x = x if self.input_norm is None else recorder.part("input_norm", self.input_norm, x)
        layer_input = x
        recorder.hold(x=x, start=x)
        shared_input = recorder.part("pre_norm", self.norm, x) if self.parallel == "shared" else None
        if shared_input is not None:
            recorder.hold(shared=shared_input)
        for sublayer_name, component in self.sublayers():
            if sublayer_name == "cross_attn" and self.idle_cross_attention:
                self._record_idle_sublayer(recorder, sublayer_name, component, x)
                continue
            branch = layer_input if self.parallel else x
            if shared_input is not None:
                branch = shared_input
            elif self.norm_placement in ("pre", "sandwich"):
                branch = self._normalize(recorder, f"{sublayer_name}_pre_norm", branch)
            branch = recorder.part(
                sublayer_name, component, branch, **self._encoder_output_argument(recorder, sublayer_name)
            )
            branch = recorder.dropout(
                branch,
                "feed_forward" if component is self.feed_forward else "attention_output",
                ends_sublayer=True,
            )
            recorder.hold(y=branch)
            x = self._residual_sum(recorder, sublayer_name, x, branch)
            recorder.hold(x=x, y=x)
        return x

    def _encoder_output_argument(self, recorder: Flow, sublayer_name: str) -> dict[str, Any]:
        """Returns a sublayer's keyword arguments: the encoder's output for cross-attention, otherwise none."""
        return {"memory": recorder.encoder_output, "kind": "cross_attention"} if sublayer_name == "cross_attn" else {}

    def _normalize(self, recorder: Flow, norm_name: str, x: Value, norm_role: Role = "own") -> Value:
        return x if norm_name in self.without_norms else recorder.part(norm_name, self.norm, x, role=norm_role)

    def _residual_sum(self, recorder: Flow, sublayer_name: str, x: Value, sublayer_output: Value) -> Value:
        """Returns the residual stream x plus a sublayer's output, with the norms and scales of the sum."""
        if self.norm_placement == "post":
            return self._normalize(recorder, f"{sublayer_name}_post_norm", recorder.add(x, sublayer_output))
        if self.norm_placement != "pre":
            sublayer_output = self._normalize(recorder, f"{sublayer_name}_post_norm", sublayer_output)
        scale_kind = AFFINE_NORM if self.residual_scale is True else SCALE_NORM
        if self.residual_scale in (True, "output"):
            sublayer_output = recorder.part(f"{sublayer_name}_out_scale", scale_kind, sublayer_output)
        if self.residual_scale == "gate":
            gate = recorder.vector(f"{sublayer_name}_out_gate", Axis("gate", 1))
            sublayer_output = recorder.mul(sublayer_output, recorder.act(gate, "tanh"))
        if self.residual_scale in (True, "residual"):
            x = recorder.part(f"{sublayer_name}_residual_scale", scale_kind, x)
        return recorder.add(x, sublayer_output)

    def _record_idle_sublayer(self, recorder: Flow, sublayer_name: str, component: Component, x: Value) -> None:
        """Records the parameters of a sublayer, and of the sublayer's norms, that no forward pass runs."""
        if self.norm_placement in ("pre", "sandwich"):
            self._normalize(recorder, f"{sublayer_name}_pre_norm", x, "idle")
        source_axes = x.axes if self.idle_source_size is None else (Axis("source", self.idle_source_size),)
        memory = Value(SOURCE_TOKENS, source_axes) if recorder.encoder_output is None else recorder.encoder_output
        recorder.part(sublayer_name, component, x, role="idle", memory=memory, kind="cross_attention")
        if self.norm_placement != "pre":
            self._normalize(recorder, f"{sublayer_name}_post_norm", x, "idle")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope())
        ungated_network = FeedForward(intermediate_size=40, hidden_act="gelu", up_bias=True, down_bias=True)
        rmsnorm, layernorm = Norm(type="rmsnorm"), Norm(type="layernorm")
        base_block = cls(attention=attention, feed_forward=ungated_network, norm=rmsnorm, norm_placement="pre")
        layernorm_block = base_block.model_copy(update={"norm": layernorm})
        cross_attention = Attention(num_attention_heads=2, q_bias=True)
        return [
            base_block,
            layernorm_block.model_copy(update={"norm_placement": "post"}),
            base_block.model_copy(update={"norm_placement": "sandwich"}),
            base_block.model_copy(update={"norm_placement": "output"}),
            base_block.model_copy(update={"without_norms": ("self_attn_pre_norm",)}),
            base_block.model_copy(update={"residual_scale": True}),
            base_block.model_copy(update={"residual_scale": "residual"}),
            base_block.model_copy(update={"residual_scale": "output"}),
            base_block.model_copy(update={"input_norm": layernorm}),
            base_block.model_copy(update={"attention": Nothing()}),
            base_block.model_copy(update={"feed_forward": Nothing()}),
            base_block.model_copy(
                update={"norm_placement": "sandwich", "cross_attention": attention, "idle_cross_attention": True}
            ),
            layernorm_block.model_copy(update={"parallel": "shared"}),
            layernorm_block.model_copy(update={"parallel": "separate"}),
            base_block.model_copy(
                update={"cross_attention": attention, "idle_cross_attention": True, "idle_source_size": 24}
            ),
            base_block.model_copy(update={"residual_scale": "gate"}),
            layernorm_block.model_copy(update={"norm_placement": "post", "cross_attention": cross_attention}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ResidualScaling(nn.Module):
        """Scales x elementwise: weight · x, plus an optional bias."""

        def __init__(self, hidden_size: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden_size))
            self.bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

        def forward(self, x: Tensor) -> Tensor:
            scaled_x = x * self.weight
            return scaled_x if self.bias is None else scaled_x + self.bias

    class BlockReference(nn.Module):
        """Runs attention, then a feed-forward network, or both in parallel. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: Block, model_properties: ModelProperties) -> None:
            super().__init__()
            if spec.input_norm is not None:
                self.input_norm = spec.input_norm.reference(model_properties)
            self.placement, self.parallel, self.order = spec.norm_placement, spec.parallel, []
            self.network = getattr(spec.feed_forward, "node_name", "")
            for component, part_properties in (
                (spec.attention, model_properties),
                (
                    spec.cross_attention,
                    ModelProperties(
                        model_properties.hidden_size,
                        model_properties.is_causal,
                        is_cross_attention=True,
                        source_size=model_properties.source_size or spec.idle_source_size,
                    ),
                ),
                (spec.feed_forward, model_properties),
            ):
                if isinstance(component, Component):
                    sublayer_name = "cross_attn" if part_properties.is_cross_attention else component.node_name
                    self.add_module(sublayer_name, component.reference(part_properties))
                    self.order.append(sublayer_name)
            if spec.parallel == "shared":
                self.pre_norm = spec.norm.reference(model_properties)
                return
            for sublayer_name in self.order if spec.residual_scale else ():
                hidden_size, has_scale_bias = model_properties.hidden_size, spec.residual_scale is True
                if has_scale_bias or spec.residual_scale == "output":
                    self.add_module(f"{sublayer_name}_out_scale", ResidualScaling(hidden_size, bias=has_scale_bias))
                if spec.residual_scale == "gate":
                    self.add_module(f"{sublayer_name}_out_gate", vector_module(torch.ones(1)))
                if has_scale_bias or spec.residual_scale == "residual":
                    self.add_module(
                        f"{sublayer_name}_residual_scale", ResidualScaling(hidden_size, bias=has_scale_bias)
                    )
            for sublayer_name in self.order:
                norm_positions = {"pre": ["pre"], "sandwich": ["pre", "post"]}.get(spec.norm_placement, ["post"])
                for norm_name in (f"{sublayer_name}_{norm_place}_norm" for norm_place in norm_positions):
                    if norm_name not in spec.without_norms:
                        self.add_module(norm_name, spec.norm.reference(model_properties))
            if spec.idle_cross_attention:
                self.order.remove("cross_attn")

        def _normalize(self, norm_name: str, x: Tensor) -> Tensor:
            """Applies the named norm to x; returns x unchanged if the layer does not have the norm."""
            return getattr(self, norm_name)(x) if hasattr(self, norm_name) else x

        def _residual_sum(self, sublayer_name: str, x: Tensor, sublayer_output: Tensor) -> Tensor:
            """Returns the residual stream x plus a sublayer's output, with the norms and scales of the sum."""
            sublayer_output = self._normalize(
                f"{sublayer_name}_out_scale", self._normalize(f"{sublayer_name}_post_norm", sublayer_output)
            )
            if hasattr(self, f"{sublayer_name}_out_gate"):
                sublayer_output = sublayer_output * getattr(self, f"{sublayer_name}_out_gate").weight.tanh()
            return self._normalize(f"{sublayer_name}_residual_scale", x) + sublayer_output

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = self._normalize("input_norm", x)
            layer_input, shared_input = x, self._normalize("pre_norm", x) if self.parallel == "shared" else None
            for sublayer_name in self.order:
                branch_input = layer_input if self.parallel else x
                sublayer_output = self.get_submodule(sublayer_name)(
                    self._normalize(f"{sublayer_name}_pre_norm", branch_input)
                    if shared_input is None
                    else shared_input,
                    pass_state,
                )
                sublayer_output = apply_dropout(
                    self, "feed_forward" if sublayer_name == self.network else "attention_output", sublayer_output
                )
                if self.placement == "post":
                    x = self._normalize(f"{sublayer_name}_post_norm", x + sublayer_output)
                else:
                    x = self._residual_sum(sublayer_name, x, sublayer_output)
                del sublayer_output  # the classes of transformers give the sum the same name
            return x

    return BlockReference
