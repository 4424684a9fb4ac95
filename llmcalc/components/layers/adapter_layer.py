"""A layer with one small adapter network per language after the feed-forward network; a single adapter runs.

X-MOD (Pfeiffer et al. 2022, arXiv:2205.06266, §3.1): all languages share attention and the feed-forward network, and
each has an adapter, a bottleneck with a residual connection. transformers: models/xmod (`XmodLayer`, `XmodOutput`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from ...evidence import UNTESTED
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.tree import Role
from ...flow.value import Value
from ..base import Flag, InnerWidth, ModelProperties, PartWitness
from ..mixers.attention import Attention
from ..networks.feed_forward import Activation, FeedForward, activate
from ..norm import Norm
from ..runtime import PassState, apply_dropout
from .block import Block, LayerSharing
from .block import _reference_class as _block_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_LANGUAGES = 1000
"""The largest number of adapters in a layer."""

LanguageCode: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,30}$")]
"""The code of a language, such as `en_XX`."""


class AdapterLayer(Block):
    """Attention and a feed-forward network with a norm before or after each, and an adapter after the network.

    adapter_size: the width of an adapter between its two projections, which have biases.
    adapter_act: the activation between them.
    languages: the languages, each with an adapter.
    default_language: the language whose adapter runs, by default the first.
    adapter_norm: the norm of the adapter's input: `separate` has weights of its own, `shared` those of the norm around
        the feed-forward network; none by default.
    normed_residual: whether the adapter's output is added to its normed input, and not to the input itself; true by
        default.
    """

    formula_source: ClassVar[str] = "Pfeiffer et al. 2022, §3.1"
    witness: ClassVar[PartWitness] = UNTESTED
    is_plain_transformer_layer: ClassVar[bool] = False

    type: Literal["adapter"] = "adapter"  # type: ignore[assignment]
    adapter_size: InnerWidth
    adapter_act: Activation
    languages: tuple[LanguageCode, ...] = Field(min_length=1, max_length=MAX_LANGUAGES)
    default_language: LanguageCode | None = None
    adapter_norm: Literal["shared", "separate"] | None = None
    normed_residual: Flag = True

    def check_fields(self) -> None:
        super().check_fields()
        unusual_fields = (self.parallel, self.input_norm, self.residual_scale or None)
        if self.norm_placement not in ("pre", "post") or self.without_norms or any(unusual_fields):
            raise ValueError(
                "norm_placement: an 'adapter' layer has the norms of 'pre' or 'post', all of them, and no parallel, "
                "input_norm or residual_scale"
            )
        if not isinstance(self.attention, Attention) or not isinstance(self.feed_forward, FeedForward):
            raise ValueError("attention, feed_forward: an 'adapter' layer has both; expected 'attention' and 'mlp'")
        if len({*self.languages}) < len(self.languages):
            raise ValueError("languages: one is listed twice; expected different codes")
        if self.default_language not in (None, *self.languages):
            raise ValueError(
                f"default_language: '{self.default_language}' is not among languages; expected one of them"
            )

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        for sublayer_name, component in self.sublayers():
            if sublayer_name == "cross_attn" and self.idle_cross_attention:
                self._record_idle_sublayer(recorder, sublayer_name, component, x)
                continue
            recorder.hold(x=x)
            branch = normed_x = (
                x if self.norm_placement == "post" else self._normalize(recorder, f"{sublayer_name}_pre_norm", x)
            )
            branch = recorder.part(
                sublayer_name, component, branch, **self._encoder_output_argument(recorder, sublayer_name)
            )
            is_feed_forward = component is self.feed_forward
            branch = recorder.dropout(
                branch, "feed_forward" if is_feed_forward else "attention_output", ends_sublayer=True
            )
            x = recorder.add(x, branch)
            recorder.hold(x=x)
            if is_feed_forward:
                return self._add_adapter_output(recorder, x, normed_x)
            x = self._normalize(recorder, f"{sublayer_name}_post_norm", x) if self.norm_placement == "post" else x
        raise AssertionError("the last sublayer is the feed-forward network")

    def _add_adapter_output(self, recorder: Flow, x: Value, normed_x: Value) -> Value:
        """Records the adapters' operations and returns the layer's output. x: the stream after the network.

        normed_x: the network's input.
        """
        has_post_norm, adapter_input, adapter_output = self.norm_placement == "post", x, x
        shares_norm = self.adapter_norm == "shared"
        if self.adapter_norm == "separate":
            adapter_input = recorder.part("adapter_norm", self.norm, x)
        elif shares_norm and has_post_norm:
            adapter_input = normed_x = self._normalize(recorder, "mlp_post_norm", x)
        elif shares_norm:
            adapter_input = recorder.normalized(x, self.norm, weight_owner=normed_x)
        recorder.hold(x=x, read=adapter_input)
        default_language = self.default_language or self.languages[0]
        bottleneck_axis = Axis("adapter", self.adapter_size)
        with recorder.scope("adapters", kind="feed_forward"):
            for language in self.languages:
                adapter_role: Role = "own" if language == default_language else "idle"
                with recorder.scope(language, role=adapter_role):
                    bottleneck_output = recorder.act(
                        recorder.linear("adapter_up_proj", adapter_input, bottleneck_axis, bias=True), self.adapter_act
                    )
                    output = recorder.linear("adapter_down_proj", bottleneck_output, *x.axes, bias=True)
                adapter_output = output if language == default_language else adapter_output
        adapter_output = recorder.dropout(adapter_output, "feed_forward", ends_sublayer=True)
        x = recorder.add(adapter_output, adapter_input if self.normed_residual else x)
        recorder.hold(x=x)
        if not has_post_norm:
            return x
        if shares_norm:
            return recorder.normalized(x, self.norm, weight_owner=normed_x)
        return self._normalize(recorder, "mlp_post_norm", x)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=40, hidden_act="gelu", up_bias=True, down_bias=True)
        layer = cls(
            attention=Attention(num_attention_heads=4, q_bias=True),
            feed_forward=network,
            norm=Norm(type="layernorm"),
            norm_placement="post",
            adapter_size=8,
            adapter_act="gelu",
            languages=("en_XX", "de_DE", "fr_XX"),
            adapter_norm="shared",
        )
        return [
            layer,
            layer.model_copy(update={"norm_placement": "pre", "default_language": "de_DE"}),
            layer.model_copy(update={"adapter_norm": "separate", "normed_residual": False}),
            layer.model_copy(update={"adapter_norm": None, "languages": ("en_XX",)}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class BottleneckAdapter(nn.Module):
        """The bottleneck adapter of one language. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: AdapterLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.act = spec.adapter_act
            self.adapter_up_proj = nn.Linear(model_properties.hidden_size, spec.adapter_size)
            self.adapter_down_proj = nn.Linear(spec.adapter_size, model_properties.hidden_size)

        def forward(self, x: Tensor) -> Tensor:
            return self.adapter_down_proj(activate(self.act, self.adapter_up_proj(x)))

    class LanguageAdapters(nn.ModuleDict):
        """The adapters of all languages; each pass runs one adapter. x: [batch, tokens, hidden] → same shape."""

        def forward(self, x: Tensor, language: str) -> Tensor:
            return self[language](x)

    class AdapterLayerReference(_block_reference_class()):  # type: ignore[misc]
        """Runs attention, a network and one language's adapter. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: AdapterLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            self.adapter_norm_kind, self.adds_normed = spec.adapter_norm, spec.normed_residual
            if spec.adapter_norm == "separate":
                self.adapter_norm = spec.norm.reference(model_properties)
            self.language = spec.default_language or spec.languages[0]
            self.adapters = LanguageAdapters(
                {language: BottleneckAdapter(spec, model_properties) for language in spec.languages}
            )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            for sublayer_name in self.order:
                sublayer_output = self.get_submodule(sublayer_name)(
                    self._normalize(f"{sublayer_name}_pre_norm", x), pass_state
                )
                is_feed_forward = sublayer_name == self.network
                x = x + apply_dropout(self, "feed_forward" if is_feed_forward else "attention_output", sublayer_output)
                x = self._add_adapter_output(x) if is_feed_forward else x
                x = self._normalize(f"{sublayer_name}_post_norm", x)
            return x

        def _add_adapter_output(self, x: Tensor) -> Tensor:
            """Returns the sum of the residual stream x and the adapter's output."""
            adapter_input = self._normalize("adapter_norm", x)
            if self.adapter_norm_kind == "shared":
                adapter_input = self._normalize("mlp_pre_norm", self._normalize("mlp_post_norm", x))
            adapter_output = apply_dropout(self, "feed_forward", self.adapters(adapter_input, self.language))
            return adapter_output + (adapter_input if self.adds_normed else x)

    return AdapterLayerReference
