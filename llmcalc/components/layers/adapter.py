"""A layer with a small network per language after its feed-forward network, of which one runs.

X-MOD (Pfeiffer et al. 2022, arXiv:2205.06266, §3.1): all languages share attention and the feed-forward network, and
each has an adapter, a bottleneck with a residual connection. transformers: models/xmod (`XmodLayer`, `XmodOutput`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...flow.record import Flow
from ...flow.value import Value
from ..base import UNTESTED, Component, Context, Flag, PartWitness
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import Run, apply_dropout
from .block import Block, Sharing
from .block import _reference_class as _block_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_LANGUAGES = 10_000
"""The largest number of adapters in a layer."""


class AdapterLayer(Block):
    """Attention and a feed-forward network, with a norm before or after each, and an adapter after the network.

    adapter: the adapter of one language.
    languages: the number of adapters; the tokens of a sequence pass one of them.
    adapter_norm: the norm of the adapter's input: `separate` has weights of its own, `shared` those of the norm around
        the feed-forward network; none by default.
    normed_residual: whether the adapter's output is added to its normed input, and not to the input itself; true by
        default.
    """

    witness: ClassVar[PartWitness] = UNTESTED
    plain: ClassVar[bool] = False

    type: Literal["adapter"] = "adapter"  # type: ignore[assignment]
    adapter: FeedForward
    languages: int = Field(ge=1, le=MOST_LANGUAGES, strict=True)
    adapter_norm: Literal["separate", "shared"] | None = None
    normed_residual: Flag = True

    @model_validator(mode="after")
    def _check_adapter(self) -> Self:
        unusual_fields = (self.parallel, self.input_norm, self.residual_scale or None)
        if self.norm_placement not in ("pre", "post") or self.without_norms or any(unusual_fields):
            raise ValueError(
                "norm_placement: an 'adapter' layer has the norms of 'pre' or 'post', all of them, and no parallel, "
                "input_norm or residual_scale"
            )
        if not isinstance(self.attention, Attention) or not isinstance(self.feed_forward, FeedForward):
            raise ValueError("attention, feed_forward: an 'adapter' layer has both; expected 'attention' and 'mlp'")
        return self

    def source(self) -> str:
        return "Pfeiffer et al. 2022, §3.1"

    def flow(self, f: Flow, x: Value, sharing: Sharing | None = None) -> Value:
        for name, part in self.sublayers():
            if name == "cross_attn" and self.idle_cross_attention:
                self._record_idle(f, name, part, x)
                continue
            f.hold(x=x)
            y = normed = x if self.norm_placement == "post" else self._normalize(f, f"{name}_pre_norm", x)
            y = f.part(name, part, y, **self._cross_arguments(f, name))
            is_network = part is self.feed_forward
            y = f.dropout(y, "feed_forward" if is_network else "attention_output", ends_sublayer=True)
            x = f.add(x, y)
            f.hold(x=x)
            if is_network:
                return self._adapted(f, x, normed)
            x = self._normalize(f, f"{name}_post_norm", x) if self.norm_placement == "post" else x
        raise AssertionError("the last sublayer is the feed-forward network")

    def _adapted(self, f: Flow, x: Value, normed: Value) -> Value:
        """Returns the layer's output. x: the residual stream after the network. normed: the network's normed input."""
        is_post, adapter_input = self.norm_placement == "post", x
        shares_norm = self.adapter_norm == "shared"
        if self.adapter_norm == "separate":
            adapter_input = f.part("adapter_norm", self.norm, x)
        elif shares_norm and is_post:
            adapter_input = normed = self._normalize(f, "mlp_post_norm", x)
        elif shares_norm:
            adapter_input = f.normalized(x, self.norm, like=normed)
        f.hold(x=x, read=adapter_input)
        with f.scope("adapters", kind="feed_forward"):
            y = f.part("adapter", self.adapter, adapter_input)
            if self.languages > 1:
                others = self.languages - 1
                f.layers(x, lambda v: self.adapter.flow(f, v), others, range(others), "others", role="idle")
        y = f.dropout(y, "feed_forward", ends_sublayer=True)
        x = f.add(y, adapter_input if self.normed_residual else x)
        f.hold(x=x)
        if not is_post:
            return x
        return f.normalized(x, self.norm, like=normed) if shares_norm else self._normalize(f, "mlp_post_norm", x)

    def reference(self, context: Context) -> nn.Module:
        return _reference_class()(self, context)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=40, hidden_act="gelu", up_bias=True, down_bias=True)
        layer = cls(
            attention=Attention(num_attention_heads=4, q_bias=True),
            feed_forward=network,
            norm=Norm(type="layernorm"),
            norm_placement="post",
            adapter=FeedForward(intermediate_size=8, hidden_act="gelu", up_bias=True, down_bias=True),
            languages=3,
            adapter_norm="shared",
        )
        return [
            layer,
            layer.model_copy(update={"norm_placement": "pre"}),
            layer.model_copy(update={"adapter_norm": "separate", "normed_residual": False}),
            layer.model_copy(update={"adapter_norm": None, "languages": 1}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class Adapters(nn.Module):
        """The adapters of all languages, of which the first runs. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, adapter: Component, context: Context, languages: int) -> None:
            super().__init__()
            self.adapter = adapter.reference(context)
            self.others = nn.ModuleList(adapter.reference(context) for _ in range(languages - 1))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.adapter(x)
            return out

    class AdapterReference(_block_reference_class()):  # type: ignore[misc]
        """The layer with adapters. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: AdapterLayer, context: Context) -> None:
            super().__init__(spec, context)
            self.adapter_norm_kind, self.adds_normed = spec.adapter_norm, spec.normed_residual
            if spec.adapter_norm == "separate":
                self.adapter_norm = spec.norm.reference(context)
            self.adapters = Adapters(spec.adapter, context, spec.languages)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            for name in self.order:
                y = self.get_submodule(name)(self._normalize(f"{name}_pre_norm", x), run)
                is_network = name == self.network
                x = x + apply_dropout(self, "feed_forward" if is_network else "attention_output", y)
                x = self._adapted(x) if is_network else x
                x = self._normalize(f"{name}_post_norm", x)
            return x

        def _adapted(self, x: Tensor) -> Tensor:
            """Returns the residual stream after the adapter."""
            adapter_input = self._normalize("adapter_norm", x)
            if self.adapter_norm_kind == "shared":
                adapter_input = self._normalize("mlp_pre_norm", self._normalize("mlp_post_norm", x))
            y = apply_dropout(self, "feed_forward", self.adapters(adapter_input))
            return y + (adapter_input if self.adds_normed else x)

    return AdapterReference
