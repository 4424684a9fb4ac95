"""An output head that attends from every token's hidden state to learned latent vectors (NV-Embed).

Lee et al. 2024 (arXiv:2405.17428), §3.1. Source: nvidia/NV-Embed-v2 modeling_nvembed.py (`LatentAttentionModel`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import SEQUENCES
from .base import Component, ModelProperties
from .latents import MAX_LATENTS
from .reading import Reading
from .runtime import vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class LatentHead(Component):
    """A head of cross-attention from hidden states to learned latent vectors of the same width, and a network.

    num_latents: the number of latents, which every sequence reads.
    reading: the attention, its norms and the network.
    """

    formula_source: ClassVar[str] = "Lee et al. 2024, §3.1"
    noun: ClassVar[str] = "head"
    kind: ClassVar[str] = "latent_attention"

    type: Literal["latents"] = "latents"
    num_latents: int = Field(ge=1, le=MAX_LATENTS, strict=True)
    reading: Reading

    def flow(self, recorder: Flow, x: Value) -> Value:
        latents = recorder.vector(
            "latents", Axis("latents", self.num_latents), *x.axes, row_count=self.num_latents, kind=self.kind
        )
        rows = MultipliedRows("latents", source_rows=SEQUENCES, rows_per_source=self.num_latents)
        return recorder.part("reading", self.reading, x, memory=latents.view(*x.axes, new_rows=rows))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[LatentHead]:
        reading_layer = {
            "attention": {"num_attention_heads": 2, "head_dim": 6},
            "norm": {"type": "layernorm"},
            "feed_forward": {"intermediate_size": 20, "hidden_act": "gelu", "gated": True},
        }
        return [cls.model_validate({"num_latents": 5, "reading": reading_layer})]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class LatentHeadReference(nn.Module):
        """Attends from hidden states to latents. x: [batch, tokens, hidden] → [batch, tokens, hidden]."""

        def __init__(self, spec: LatentHead, hidden_size: int) -> None:
            super().__init__()
            self.latents = vector_module(torch.randn(spec.num_latents, hidden_size) * 0.02)
            self.reading = spec.reading.reference(hidden_size, hidden_size)

        def forward(self, x: Tensor) -> Tensor:
            attended_states: Tensor = self.reading(x, self.latents.weight.repeat(len(x), 1, 1))
            return attended_states

    return LatentHeadReference
