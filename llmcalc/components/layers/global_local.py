"""An encoder with global tokens: text attends to its block and global tokens, and global tokens attend to all tokens.

PEGASUS-X (Phang et al. 2022, arXiv:2208.04347, §3): in every other layer the blocks are staggered by half a block, so
that information crosses their borders. transformers: models/pegasus_x (`PegasusXEncoderLayer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import ConcatenatedRows, PaddedRows
from ...workload.rows import FixedRows
from ..base import ChunkSize, Flag, Heads, HeadSizes, LayerProtocol, ModelProperties, StackPosition, UnscalableError
from ..mixers.grouped_query import EqualHeadsMixer, record_queries_keys_values
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..residual_streams import ResidualStreams
from ..runtime import PassState, apply_dropout, project_to_heads
from .block import LayerSharing
from .whole_layer import PreNormLayer

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_GLOBAL_TOKENS = 2**20
"""The largest number of global tokens."""


def _global_tokens_field() -> Any:
    return Field(ge=1, le=MAX_GLOBAL_TOKENS, strict=True)


class GlobalTokens(ResidualStreams):
    """Learned global tokens before the text; the text is padded to whole blocks.

    num_global_tokens: the number of global tokens.
    block_size: the number of tokens in a block.
    """

    formula_source: ClassVar[str] = "Phang et al. 2022, §3"

    type: Literal["global_tokens"] = "global_tokens"
    num_global_tokens: int = _global_tokens_field()
    block_size: ChunkSize

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        required_fields = _required_stack_fields(self)
        if any(layer.required_stack_fields().get("streams") != required_fields for layer in layers.values()):
            raise ValueError(
                "streams: those of type 'global_tokens' stand where every layer is of type 'global_local' with their "
                "num_global_tokens and block_size, and nowhere else"
            )

    def check_stack_position(self, stack_position: StackPosition) -> None:
        if stack_position.stack_name != "encoder":
            raise ValueError(f"{stack_position.error_path}: global tokens see later tokens; expected an encoder")

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        return recorder.part("global_tokens", self, x)

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        assert isinstance(x.rows, ConcatenatedRows)
        assert isinstance(x.rows.second_rows, PaddedRows)
        return recorder.resized(x, x.rows.second_rows.source_rows)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the concatenation of the learned global tokens and the text. x: the token embeddings."""
        global_rows = FixedRows("global tokens", length=self.num_global_tokens)
        token_table = recorder.unread_table("", Axis("table", self.num_global_tokens), *x.axes)
        text_rows = PaddedRows(source_rows=x.rows, block_rows=self.block_size)
        return recorder.prefixed(x, token_table, ConcatenatedRows(first_rows=global_rows, second_rows=text_rows))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["tokens"](self, model_properties.hidden_size)


def _required_stack_fields(component: Any) -> Mapping[str, Any]:
    return {
        "type": "global_tokens",
        "num_global_tokens": component.num_global_tokens,
        "block_size": component.block_size,
    }


class GlobalLocalAttention(EqualHeadsMixer):
    """Multi-head attention where global tokens attend to all tokens, and text attends to its block and global tokens.

    num_attention_heads: the number of heads. The projections have no biases.
    num_global_tokens: the number of global tokens, in front of the text.
    block_size: the number of tokens in a block.
    staggered: whether the blocks begin half a block before the text, false by default.
    """

    formula_source: ClassVar[str] = "Phang et al. 2022, §3"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["global_local"] = "global_local"
    num_attention_heads: Heads
    num_global_tokens: int = _global_tokens_field()
    block_size: ChunkSize
    staggered: Flag = False

    def check_fields(self) -> None:
        if self.staggered and self.block_size % 2:
            raise ValueError(
                f"block_size: {self.block_size} has no half; expected an even number, or staggered = false"
            )

    def cost_thresholds(self) -> tuple[int, ...]:
        return (self.block_size,)

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"streams": _required_stack_fields(self)}

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        raise UnscalableError("attention to global tokens is for encoders; expected a decoder")

    def flow(self, recorder: Flow, x: Value) -> Value:
        head_sizes = self.head_sizes(x.width)
        heads, head_dim = Axis("heads", head_sizes.heads), Axis("head_dim", head_sizes.head_dim)
        assert isinstance(x.rows, ConcatenatedRows)
        assert isinstance(x.rows.second_rows, PaddedRows)
        token_rows, text_rows = x.rows, x.rows.second_rows
        if self.staggered:
            wider_rows = PaddedRows(
                source_rows=text_rows.source_rows, block_rows=text_rows.block_rows, extra_rows=self.block_size
            )
            x = recorder.resized(x, ConcatenatedRows(first_rows=token_rows.first_rows, second_rows=wider_rows))
            recorder.hold(x=x)
        q, k, v = record_queries_keys_values(recorder, x, heads, head_dim)
        recorder.hold(q=q, k=k, v=v)
        key_limits: dict[str, Any] = {
            "block": self.block_size,
            "global_tokens": self.num_global_tokens,
            "staggered": self.staggered,
        }
        attn_output = recorder.attention("core", q, k, v, causal=False, core=ops.GlobalLocalAttentionCore, **key_limits)
        recorder.hold(out=attn_output)
        attn_output = recorder.linear("o_proj", attn_output, *x.axes)
        return recorder.resized(attn_output, token_rows) if self.staggered else attn_output

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads}, blocks of {self.block_size}, {self.num_global_tokens} global tokens"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["attention"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        default_spec = cls(num_attention_heads=4, num_global_tokens=3, block_size=4)
        return [default_spec, default_spec.model_copy(update={"staggered": True})]


class GlobalLocalLayer(PreNormLayer):
    """Pre-norm attention with global tokens, and a feed-forward network; global tokens have a separate first norm."""

    formula_source: ClassVar[str] = "Phang et al. 2022, §3"
    can_run_alone: ClassVar[bool] = False

    type: Literal["global_local"] = "global_local"
    attention: GlobalLocalAttention
    feed_forward: FeedForward

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        assert isinstance(x.rows, ConcatenatedRows)
        text_states = recorder.part("self_attn_pre_norm", self.norm, recorder.resized(x, x.rows.second_rows))
        global_tokens = recorder.part("global_pre_norm", self.norm, recorder.resized(x, x.rows.first_rows))
        attention_input = recorder.cat(global_tokens, text_states, axes=x.axes, rows=x.rows)
        recorder.hold(x=x, read=attention_input)
        sublayer_output = recorder.part("self_attn", self.attention, attention_input)
        x = recorder.add(x, recorder.dropout(sublayer_output, "attention_output", ends_sublayer=True))
        recorder.hold(x=x)
        sublayer_output = self._record_sublayer(recorder, "mlp", self.feed_forward, x)
        return recorder.add(x, recorder.dropout(sublayer_output, "feed_forward", ends_sublayer=True))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["layer"](self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="gelu", up_bias=True, down_bias=True)
        attentions = GlobalLocalAttention.examples()
        return [cls(attention=attention, feed_forward=network, norm=Norm(type="layernorm")) for attention in attentions]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class GlobalTokensReference(nn.Module):
        """Puts global tokens before the text: [batch, tokens, hidden] → [batch, global tokens and blocks, hidden]."""

        def __init__(self, spec: GlobalTokens, hidden_size: int) -> None:
            super().__init__()
            self.count, self.block, self.tokens = spec.num_global_tokens, spec.block_size, 0
            self.global_tokens = nn.Embedding(spec.num_global_tokens, hidden_size)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            self.tokens = pass_state.shared_values["text tokens"] = x.shape[1]
            text_states = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.block))
            global_tokens = self.global_tokens(torch.arange(self.count, device=x.device))
            return torch.cat([global_tokens.expand(x.shape[0], -1, -1), text_states], 1)

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return x[:, self.count : self.count + self.tokens]

    class GlobalLocalCore(nn.Module):
        """Attention of global tokens to all tokens, and of text blocks to themselves and global tokens.

        q, k, v: [batch, heads, global tokens and text, d] → same shape.
        is_text_token: whether a text token is not padding.
        """

        def __init__(self, spec: GlobalLocalAttention) -> None:
            super().__init__()
            self.count, self.block = spec.num_global_tokens, spec.block_size

        def forward(self, q: Tensor, k: Tensor, v: Tensor, is_text_token: Tensor) -> Tensor:
            score_scale, global_count = q.shape[-1] ** -0.5, self.count
            global_mask = is_text_token.new_ones(global_count)
            scores = q[:, :, :global_count] @ k.transpose(-1, -2) * score_scale
            scores = scores.masked_fill(~torch.cat([global_mask, is_text_token]), float("-inf"))
            global_output = self._softmax_weights(scores) @ v
            blocked_qkv = [x[:, :, global_count:].unflatten(2, (-1, self.block)) for x in (q, k, v)]
            global_scores = blocked_qkv[0] @ k[:, :, None, :global_count].transpose(-1, -2)
            block_scores = blocked_qkv[0] @ blocked_qkv[1].transpose(-1, -2)
            block_mask = is_text_token.unflatten(0, (-1, self.block))
            mask = torch.cat([global_mask.expand(len(block_mask), -1), block_mask], -1)[:, None]
            scores = torch.cat([global_scores, block_scores], -1) * score_scale
            attn_weights = self._softmax_weights(scores.masked_fill(~mask, float("-inf")))
            text_output = (
                attn_weights[..., :global_count] @ v[:, :, None, :global_count]
                + attn_weights[..., global_count:] @ blocked_qkv[2]
            )
            return torch.cat([global_output, text_output.flatten(2, 3)], 2)

        def _softmax_weights(self, scores: Tensor) -> Tensor:
            return apply_dropout(self, "attention", torch.softmax(scores.float(), -1).to(scores.dtype))

    class GlobalLocalAttentionReference(nn.Module):
        """Attends within blocks and to global tokens. x: [batch, global tokens and blocks, hidden] → same shape."""

        def __init__(self, spec: GlobalLocalAttention, hidden_size: int) -> None:
            super().__init__()
            self.heads, self.count = spec.num_attention_heads, spec.num_global_tokens
            self.shift = spec.block_size // 2 if spec.staggered else 0
            for projection_name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                self.add_module(projection_name, nn.Linear(hidden_size, hidden_size, bias=False))
            self.core = GlobalLocalCore(spec)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            text_token_count, padding_widths = pass_state.shared_values["text tokens"], (self.shift, self.shift)
            text_states = nn.functional.pad(x[:, self.count :], (0, 0, *padding_widths))
            is_text_token = torch.arange(x.shape[1] - self.count, device=x.device) < text_token_count
            padded_rows = torch.cat([x[:, : self.count], text_states], 1)
            q, k, v = (
                project_to_heads(self, projection_name, padded_rows)
                for projection_name in ("q_proj", "k_proj", "v_proj")
            )
            attn_output = (
                self.core(q, k, v, nn.functional.pad(is_text_token, padding_widths)).transpose(1, 2).flatten(2)
            )
            attn_output = self.get_submodule("o_proj")(attn_output)
            text_rows = attn_output[:, self.count + self.shift : self.count + self.shift + x.shape[1] - self.count]
            return torch.cat([attn_output[:, : self.count], text_rows], 1)

    class GlobalLocalLayerReference(nn.Module):
        """Runs attention and a network. x: [batch, global tokens and blocks, hidden] → same shape."""

        def __init__(self, spec: GlobalLocalLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.count = spec.attention.num_global_tokens
            for norm_name in ("self_attn_pre_norm", "global_pre_norm", "mlp_pre_norm"):
                self.add_module(norm_name, spec.norm.reference(model_properties))
            self.self_attn = spec.attention.reference(model_properties)
            self.mlp = spec.feed_forward.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            global_tokens = self.get_submodule("global_pre_norm")(x[:, : self.count])
            text_states = self.get_submodule("self_attn_pre_norm")(x[:, self.count :])
            attn_output = self.self_attn(torch.cat([global_tokens, text_states], 1), pass_state)
            x = x + apply_dropout(self, "attention_output", attn_output)
            return x + apply_dropout(self, "feed_forward", self.mlp(self.get_submodule("mlp_pre_norm")(x), pass_state))

    return {
        "tokens": GlobalTokensReference,
        "attention": GlobalLocalAttentionReference,
        "layer": GlobalLocalLayerReference,
    }
