"""Learned prompt tokens before a decoder's text, for which no logits are computed: soft prompts (CPM-Ant).

Lester et al. 2021 (arXiv:2104.08691, §2). transformers: models/cpmant.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import PromptedRows
from .base import ModelProperties, StackPosition
from .residual_streams import ResidualStreams
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_PROMPTS = 2**20
"""The largest number of prompts, and of tokens in one."""


class PromptTokens(ResidualStreams):
    """A learned prompt before the text, selected from several prompts; the cache includes the prompt's keys and values.

    prompt_types: the number of prompts.
    prompt_length: the number of tokens in a prompt.
    """

    formula_source: ClassVar[str] = "Lester et al. 2021, §2"

    type: Literal["prompt_tokens"] = "prompt_tokens"
    prompt_types: int = Field(ge=1, le=MAX_PROMPTS, strict=True)
    prompt_length: int = Field(ge=1, le=MAX_PROMPTS, strict=True)

    def check_stack_position(self, stack_position: StackPosition) -> None:
        if stack_position.stack_name != "decoder":
            raise ValueError(
                f"{stack_position.error_path}: prompt tokens stand before generated text; expected a decoder"
            )

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        return recorder.part("embed_prompts", self, x)

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        assert isinstance(x.rows, PromptedRows)
        return recorder.resized(x, x.rows.source_rows)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the concatenation of the learned prompt and the text. x: the token embeddings."""
        prompt_table = recorder.unread_table("", Axis("table", self.prompt_types * self.prompt_length), *x.axes)
        return recorder.prefixed(x, prompt_table, PromptedRows(source_rows=x.rows, prompt_rows=self.prompt_length))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class PromptTokensReference(nn.Module):
        """Puts a prompt before the text: [batch, tokens, hidden] → [batch, prompt_length + tokens, hidden]."""

        def __init__(self, spec: PromptTokens, hidden_size: int) -> None:
            super().__init__()
            self.length = spec.prompt_length
            self.embed_prompts = nn.Embedding(spec.prompt_types * spec.prompt_length, hidden_size)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            if pass_state.past_tokens:
                return x
            prompt = self.embed_prompts(torch.arange(self.length, device=x.device))
            return torch.cat([prompt.expand(x.shape[0], -1, -1), x], 1)

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return x if pass_state.past_tokens else x[:, self.length :]

    return PromptTokensReference
