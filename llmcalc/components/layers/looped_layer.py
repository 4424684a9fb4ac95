"""A layer that runs in two loops with the same weights; both loops attend globally to the first loop's keys.

LoopCoder (IQuest-Coder-V1 2026, §2): the first loop is a pre-norm layer. In the second one a query attends to the keys
and values of the first loop, and to nearby keys and values of its own; a gate per head, computed from the query, mixes
both outputs. Source: mlx_lm/models/iquestloopcoder.py of ml-explore/mlx-lm, and vllm/model_executor/models/
iquest_loopcoder.py of vllm-project/vllm.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.tree import Role
from ...flow.value import Value
from ..base import Flag, HeadDim, Heads, KVHeads, ModelProperties, Window, check_kv_heads
from ..mixers.compressed_kv import grouped_linear_class
from ..mixers.grouped_query import GroupedQueryMixer, grouped_reference_class
from ..networks.feed_forward import FeedForward
from ..rope import Rope
from ..runtime import PassState, attention_mask, share_tensors, softmax_core_class, tensor_cache_class, vector_module
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn

FIRST_LOOP_KEYS_AND_VALUES = "keys and values of the first loop"


class LoopedAttention(GroupedQueryMixer):
    """Grouped-query attention of a layer that runs in two loops; outside of a 'looped' layer the attention runs once.

    num_attention_heads: the number of query heads, each with a gate in the second loop.
    num_key_value_heads: the number of key and value heads.
    head_dim: the size of a head.
    loop_window_size: the number of tokens, the token itself included, whose keys of the second loop a token attends to.
    attention_bias: whether the projections have a bias, false by default; the gate has one.
    position: RoPE on queries and keys.
    """

    formula_source: ClassVar[str] = "IQuest-Coder-V1 2026, §2"

    type: Literal["looped"] = "looped"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    loop_window_size: Window
    attention_bias: Flag = False
    position: Rope = Rope()

    def check_fields(self) -> None:
        check_kv_heads(self.num_attention_heads, self.num_key_value_heads)
        self.position.check_rotary_size(self.head_dim)

    def cost_thresholds(self) -> tuple[int, ...]:
        return (self.loop_window_size,)

    def flow(self, recorder: Flow, x: Value, is_second_loop: bool = False) -> Value:
        """Records the operations of attention. is_second_loop: whether this is the second loop, which has the gate."""
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim = Axis("head_dim", self.head_dim)
        projection_role: Role = "shared" if is_second_loop else "own"
        q = recorder.rope(self._project(recorder, "q_proj", x, projection_role, heads, head_dim), self.position)
        k = recorder.rope(self._project(recorder, "k_proj", x, projection_role, kv_heads, head_dim), self.position)
        v = self._project(recorder, "v_proj", x, projection_role, kv_heads, head_dim)
        if is_second_loop:
            attn_output = self._mixed_attention(recorder, q, k, v)
        else:
            k, v = recorder.cache("cache", "full_attention", k, v)
            recorder.layer_memo[FIRST_LOOP_KEYS_AND_VALUES] = k, v
            recorder.mask(q, k, causal=True)
            attn_output = self._attend(recorder, "core", q, k, v)
        recorder.hold(out=attn_output)
        return self._project(recorder, "o_proj", attn_output, projection_role, *x.axes)

    def _project(
        self, recorder: Flow, projection_name: str, x: Value, projection_role: Role, *output_axes: Axis | JoinedShapes
    ) -> Value:
        with recorder.scope(projection_name, role=projection_role):
            return recorder.linear("", x, *output_axes, bias=self.attention_bias)

    def _attend(self, recorder: Flow, core_name: str, q: Value, k: Value, v: Value, window: int | None = None) -> Value:
        heads = q.axes[0]
        recorder.hold(q=q, k=k, v=v)
        assert isinstance(heads, Axis)
        k, v = recorder.repeat(k, heads), recorder.repeat(v, heads)
        recorder.hold(k=k, v=v)
        return recorder.attention(core_name, q, k, v, causal=True, window=window)

    def _mixed_attention(self, recorder: Flow, q: Value, k: Value, v: Value) -> Value:
        """Records the second loop's attention to both loops' keys, and the gate between the results."""
        heads, window = q.axes[0], self.loop_window_size
        empty_keys_and_values = Value(k.rows, k.axes, is_constant=True), Value(v.rows, v.axes, is_constant=True)
        first_keys, first_values = recorder.layer_memo.get(FIRST_LOOP_KEYS_AND_VALUES, empty_keys_and_values)
        assert isinstance(heads, Axis)
        scores = recorder.per_group("loop_gate", q, heads, Axis("gate", 1)).view(heads)
        gate = recorder.act(recorder.add(scores, recorder.vector("loop_gate_bias", heads)), "sigmoid")
        recorder.hold(gate=gate)
        recorder.mask(q, first_keys, causal=True)
        global_output = self._attend(recorder, "global_core", q, first_keys, first_values)
        k, v = recorder.cache("loop_cache", "sliding_attention", k, v, token_limit=window)
        recorder.mask(q, k, causal=True, window=window)
        local_output = self._attend(recorder, "core", q, k, v, window)
        return recorder.add(recorder.mul(global_output, gate), recorder.mul(local_output, recorder.complement(gate)))

    def describe(self, hidden_size: int) -> str:
        return f"looped GQA {self.num_attention_heads}/{self.num_key_value_heads} × {self.head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["attention"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=6, loop_window_size=4),
            cls(num_attention_heads=4, num_key_value_heads=4, head_dim=8, loop_window_size=3, attention_bias=True),
        ]


class LoopedLayer(PreNormLayer):
    """A pre-norm layer of a model that runs its layers twice, where each loop has its own layers with shared weights.

    attention: its attention, of type 'looped'.
    feed_forward: its feed-forward network.
    """

    formula_source: ClassVar[str] = "IQuest-Coder-V1 2026, §2"
    can_run_alone: ClassVar[bool] = False
    shares_all_parameters: ClassVar[bool] = False

    type: Literal["looped"] = "looped"

    def check_fields(self) -> None:
        super().check_fields()
        if not isinstance(self.attention, LoopedAttention) or not isinstance(self.feed_forward, FeedForward):
            raise ValueError("attention, feed_forward: expected attention of type 'looped' and a network of type 'mlp'")

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        is_second_loop = layer_sharing is not None and not layer_sharing.is_first
        sublayer_role: Role = "shared" if is_second_loop else "own"
        assert isinstance(self.attention, LoopedAttention)
        assert isinstance(self.feed_forward, FeedForward)
        recorder.hold(x=x)
        branch = recorder.part("self_attn_pre_norm", self.norm, x, role=sublayer_role)
        branch = recorder.part("self_attn", self.attention, branch, is_second_loop=is_second_loop)
        x = recorder.add(x, recorder.dropout(branch, "attention_output"))
        recorder.hold(x=x)
        branch = recorder.part("mlp_pre_norm", self.norm, x, role=sublayer_role)
        return recorder.add(
            x,
            recorder.dropout(recorder.part("mlp", self.feed_forward, branch, role=sublayer_role), "feed_forward"),
        )

    def describe(self, hidden_size: int) -> str:
        return self.attention.describe(hidden_size)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["layer"](self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(**{**example_sublayers(), "attention": LoopedAttention.examples()[0]})]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch

    class LoopedAttentionReference(grouped_reference_class()):  # type: ignore[misc]
        """Computes the first or the second loop's attention. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: LoopedAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size, spec.attention_bias)
            self.core, self.cache = softmax_core_class()(), tensor_cache_class()()
            self.first_loop: list[nn.Module] = []

        def turn_into_second_loop(self, first_attention: LoopedAttentionReference) -> None:
            """Gives this attention the second loop's gate and window cache, and access to the first loop's keys."""
            self.first_loop = [first_attention]  # a list, so that it is not registered as a submodule
            self.loop_gate = grouped_linear_class()(self.spec.num_attention_heads, self.spec.head_dim, 1)
            self.loop_gate_bias = vector_module(torch.zeros(self.spec.num_attention_heads))
            self.global_core = softmax_core_class()()
            del self.cache
            self.loop_cache = tensor_cache_class()(self.spec.loop_window_size)

        def _attend(
            self, attention_core: nn.Module, q: Tensor, k: Tensor, v: Tensor, pass_state: PassState, window: int | None
        ) -> Tensor:
            mask = attention_mask(pass_state, q, k, causal=True, window=window)
            return attention_core(q, *self._repeat_for_query_heads(k, v), mask)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            q, k, v = (self._split_heads(projection_letter, x) for projection_letter in "qkv")
            q, k = (spec.position.rotate_heads(heads, pass_state, pass_state.past_tokens) for heads in (q, k))
            if self.first_loop:
                scores = self.loop_gate(q.transpose(1, 2).flatten(2).unflatten(-1, (spec.num_attention_heads, -1)))
                gate = (scores[..., 0] + self.loop_gate_bias.weight).sigmoid().transpose(1, 2)[..., None]
                first_k, first_v = pass_state.shared_values[self.first_loop[0]]
                global_output = self._attend(self.global_core, q, first_k, first_v, pass_state, None)
                k, v = self.loop_cache(pass_state, k, v)
                attn_output = gate * global_output + (1 - gate) * self._attend(
                    self.core, q, k, v, pass_state, spec.loop_window_size
                )
            else:
                k, v = pass_state.shared_values[self] = self.cache(pass_state, k, v)
                attn_output = self._attend(self.core, q, k, v, pass_state, None)
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    class LoopedLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs attention and a network in one of the model's two loops. x: [batch, tokens, hidden] → same shape."""

        has_equal_repeats = False

        def share_parameters(self, first_layer: LoopedLayerReference) -> None:
            """Shares the first loop's weights with the second loop."""
            if first_layer is self:
                return
            share_tensors(first_layer, self)
            attention: Any = self.self_attn
            attention.turn_into_second_loop(first_layer.self_attn)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = x + self._sublayer_output("self_attn", x, pass_state)
            return x + self._sublayer_output("mlp", x, pass_state)

    return {"attention": LoopedAttentionReference, "layer": LoopedLayerReference}
