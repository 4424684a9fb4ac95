"""A Perceiver resampler: learned latents that attend to patches and to one another in several layers.

Alayrac 2022 (arXiv:2204.14198, §2.1); Laurençon 2024 (arXiv:2405.02246). transformers: models/idefics2
(`Idefics2PerceiverResampler`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import IMAGES, ConcatenatedRows, MultipliedRows
from ..base import Layers, ModelProperties, StackPosition
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, vector_module
from .base import LearnedQueries

if TYPE_CHECKING:
    from torch import Tensor, nn


class Perceiver(LearnedQueries):
    """A Perceiver resampler: layers in which learned latents attend to patches and latents, then pass a network.

    num_hidden_layers: the number of layers.
    attention, feed_forward: the parts of a layer.
    norm: the norms of the patches and of the latents before each part, and of the output.
    """

    type: Literal["perceiver"] = "perceiver"
    num_hidden_layers: Layers
    attention: Attention
    feed_forward: FeedForward
    norm: Norm

    def check_fields(self) -> None:
        self.attention.check_stack_position(StackPosition("resampler.attention", self.hidden_size, "encoder"))
        self.attention.check_cross_attention()

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the resampler and returns its latents for each image. x: the patches."""
        hidden_axis = Axis("hidden", self.hidden_size)
        latents = recorder.vector("query", Axis("queries", self.queries), hidden_axis, row_count=self.queries)
        latents = latents.view(
            hidden_axis, new_rows=MultipliedRows(name="queries", source_rows=IMAGES, rows_per_source=self.queries)
        )
        layer_count = self.num_hidden_layers
        indices = range(layer_count) if isinstance(layer_count, int) else None
        latents = recorder.layers(
            latents, lambda v: self._record_layer(recorder, v, x), layer_count, indices, kind="layer"
        )
        return recorder.part("norm", self.norm, latents)

    def _record_layer(self, recorder: Flow, latents: Value, patches: Value) -> Value:
        """Records the operations of a layer of the resampler and returns the updated latents."""
        queries = recorder.part("latents_norm", self.norm, latents)
        patches = recorder.part("patches_norm", self.norm, patches)
        memory_rows = ConcatenatedRows(name="patches and latents", first_rows=patches.rows, second_rows=queries.rows)
        memory = recorder.cat(patches, queries, axes=patches.axes, rows=memory_rows)
        with recorder.separate_stack(causal=False):
            attn_output = recorder.part("self_attn", self.attention, queries, memory=memory)
        latents = recorder.add(latents, attn_output)
        return recorder.add(
            latents, recorder.part("mlp", self.feed_forward, recorder.part("mlp_pre_norm", self.norm, latents))
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
        attention = Attention(num_attention_heads=4, num_key_value_heads=2, head_dim=6)
        tower_fields: dict[str, Any] = {"attention": attention, "feed_forward": network, "norm": Norm(type="rmsnorm")}
        return [cls(queries=3, hidden_size=12, num_hidden_layers=2, **tower_fields)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class PerceiverLayer(nn.Module):
        """Runs attention to patches and latents, then a network. latents: [images, latents, hidden] → same shape."""

        def __init__(self, spec: Perceiver) -> None:
            super().__init__()
            hidden_size = spec.hidden_size
            for norm_name in ("latents_norm", "patches_norm", "mlp_pre_norm"):
                self.add_module(norm_name, spec.norm.reference(ModelProperties(hidden_size)))
            self.self_attn = spec.attention.reference(
                ModelProperties(hidden_size, is_causal=False, is_cross_attention=True)
            )
            self.mlp = spec.feed_forward.reference(ModelProperties(hidden_size))

        def forward(self, latents: Tensor, patches: Tensor) -> Tensor:
            queries = self.get_submodule("latents_norm")(latents)
            memory = torch.cat([self.get_submodule("patches_norm")(patches), queries], 1)
            latents = latents + self.self_attn(queries, PassState(encoder_output=memory))
            return latents + self.mlp(self.get_submodule("mlp_pre_norm")(latents), PassState())

    class PerceiverReference(nn.Module):
        """Reduces patches to learned latents by attention. x: [images, patches, hidden] → [images, latents, hidden]."""

        def __init__(self, spec: Perceiver) -> None:
            super().__init__()
            self.query = vector_module(torch.randn(spec.queries, spec.hidden_size) * 0.02)
            self.layers = nn.ModuleList(PerceiverLayer(spec) for _ in range(spec.num_hidden_layers))
            self.norm = spec.norm.reference(ModelProperties(spec.hidden_size))

        def forward(self, x: Tensor) -> Tensor:
            latents = self.query.weight.expand(len(x), -1, -1)
            for layer in self.layers:
                latents = layer(latents, x)
            return self.norm(latents)

    return PerceiverReference
