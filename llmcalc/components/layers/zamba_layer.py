"""Zamba's layer: a transformer block that several layers share, followed by a state-space mixer.

Zamba (Glorioso 2024, arXiv:2405.16712): the block reads the concatenation of the residual stream and the token
embeddings, 2 · hidden_size wide. Each layer has its own linear layer for the block's output, and adds the result to its
mixer's input. Zamba 2 (Glorioso 2024, arXiv:2411.15242): several such blocks in turn, with a low-rank adapter (LoRA)
for each layer that runs one. As in the checkpoints, all adapters of a block are stored with its weights: in the first
layer that runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.tree import Role
from ...flow.value import Value
from ..base import (
    MAX_LAYERS,
    SCALABLE_MODELS,
    TORCH_WITNESS,
    Flag,
    HeadSizes,
    InnerSize,
    ModelProperties,
    Nothing,
    Part,
    PartWitness,
    TokenMixer,
    UnscalableError,
)
from ..mixers.attention import AdapterFunction, Attention
from ..mixers.mamba import Mamba
from ..mixers.mamba2 import Mamba2
from ..networks.feed_forward import FeedForward, activate
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState
from .block import Layer, LayerSharing

if TYPE_CHECKING:
    from torch import Tensor, nn

OtherAdapters: TypeAlias = tuple[Number, Role]
"""The number and the role of the other layers' adapters that a shared block stores."""


class SharedBlock(Part):
    """The shared transformer block: a norm, attention, a norm and a gated feed-forward network, without residuals.

    attention: its attention; head_dim is 2 · hidden_size / num_attention_heads by default.
    feed_forward: its gated feed-forward network.
    adapter_rank: the rank of the adapters on the gate and up projections; none by default.
    attention_adapters: whether the query, key and value projections have adapters too, false by default.
    idle_adapters: the number of unused adapters, of other layers, in a block that no layer shares, 0 by default (Zamba
        2's classes without tied weights).
    """

    formula_source: ClassVar[str] = "Glorioso et al. 2024, §2"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = ""

    attention: Attention
    feed_forward: FeedForward
    adapter_rank: InnerSize | None = None
    attention_adapters: Flag = False
    idle_adapters: int = Field(default=0, ge=0, le=MAX_LAYERS, strict=True)

    def check_fields(self) -> None:
        feed_forward = self.feed_forward
        if not feed_forward.gated or feed_forward.sub_norm is not None or feed_forward.hidden_act == "xielu":
            raise ValueError(
                "feed_forward.gated: the shared block has a plain gated network; expected true, no sub_norm, no xielu"
            )
        if (self.attention_adapters or self.idle_adapters) and self.adapter_rank is None:
            raise ValueError("adapter_rank: missing; attention_adapters and idle_adapters need one")
        if self.attention.kv_shared or self.attention.block_indexer is not None:
            raise ValueError(
                "attention: the shared block makes keys and values of its own, and chooses none; expected no "
                "kv_shared and no block_indexer"
            )

    def flow(
        self, recorder: Flow, x: Value, norm: Norm, output_axes: Shape, other_adapters: OtherAdapters | None = None
    ) -> Value:
        """Records the operations of the shared block. x: the concatenated residual stream and token embeddings.

        norm: the layer's norm.
        output_axes: the axes of the output.
        other_adapters: number and role of other layers' adapters that are stored in the block.
        """

        def record_adapter(adapter_input: Value, adapter_axes: Shape) -> Value:
            return self._adapter_output(recorder, adapter_input, adapter_axes, other_adapters)

        recorder.hold(x=x)
        normed_x = recorder.part("self_attn_pre_norm", norm, x)
        adapter = record_adapter if self.attention_adapters else None
        attn_output = recorder.part("self_attn", self.attention, normed_x, output_axes=output_axes, adapter=adapter)
        recorder.hold(y=attn_output)
        attn_output = recorder.part("mlp_pre_norm", norm, attn_output)
        with recorder.scope("mlp", kind=self.feed_forward.kind, source=self.feed_forward.formula_source):
            return self._network_output(recorder, attn_output, None if self.adapter_rank is None else record_adapter)

    def _network_output(self, recorder: Flow, x: Value, adapter: AdapterFunction | None) -> Value:
        """Returns the output of the feed-forward network, optionally with an adapter on its gate and up projections."""
        network, ffn_axis = self.feed_forward, Axis("ffn", self.feed_forward.intermediate_size)
        gate = recorder.linear("gate_proj", x, ffn_axis, bias=network.gate_bias)
        up_projection = recorder.linear("up_proj", x, ffn_axis, bias=network.up_bias)
        recorder.hold(x=x, gate=gate, up=up_projection)
        if adapter is not None:
            gate_addition, up_addition = recorder.split(
                adapter(x, (JoinedShapes(((ffn_axis,), (ffn_axis,))),)), (ffn_axis,), (ffn_axis,)
            )
            recorder.hold(to_gate=gate_addition)
            gate, up_projection = recorder.add(gate, gate_addition), recorder.add(up_projection, up_addition)
            recorder.hold(gate=gate, up=up_projection)
        gated_units = recorder.mul(recorder.act(gate, network.hidden_act), up_projection)
        return recorder.linear("down_proj", gated_units, *x.axes, bias=network.down_bias)

    def _adapter_output(
        self, recorder: Flow, x: Value, output_axes: Shape, other_adapters: OtherAdapters | None
    ) -> Value:
        """Records the current layer's adapter as operations, and other layers' adapters as parameters only."""

        def record_projections() -> Value:
            return recorder.linear("up", recorder.linear("down", x, Axis("rank", self.adapter_rank)), *output_axes)

        node_fields: dict[str, Any] = {"kind": "adapter", "source": "Glorioso et al. 2024 (Zamba 2), §2"}
        with recorder.scope("adapters", indices=range(1), **node_fields) as adapters_scope:
            adapters_scope.has_parameters_per_layer = True
            adapter_output = record_projections()
        if other_adapters is not None:
            adapter_count, role = other_adapters
            adapter_indices = range(1, adapter_count + 1) if isinstance(adapter_count, int) else None
            with recorder.scope(
                "adapters", repeat=adapter_count, indices=adapter_indices, role=role, **node_fields
            ) as other_adapters_scope:
                other_adapters_scope.has_parameters_per_layer = role == "kept"  # the layers that run them create them
                record_projections()
        return adapter_output


class ZambaLayer(Layer):
    """A mixer layer after a shared transformer block. `Stack.shared_layers` names the layers that share a block.

    attention: the mixer.
    transformer: the shared block.
    """

    formula_source: ClassVar[str] = "Glorioso et al. 2024, §2"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    can_run_alone: ClassVar[bool] = False
    shares_all_parameters: ClassVar[bool] = False

    type: Literal["zamba"] = "zamba"
    feed_forward: Nothing = Nothing()
    transformer: SharedBlock
    norm_placement: Literal["pre"] = "pre"
    parallel: None = None
    cross_attention: None = None

    def check_fields(self) -> None:
        if isinstance(self.attention, Nothing):
            raise ValueError(
                "attention: the layer requires a mixer after the shared block; expected another type than 'none'"
            )

    def with_replaced_mixers(self, replace_mixer: Callable[[TokenMixer, int], TokenMixer], hidden_size: int) -> Self:
        attention = replace_mixer(self.transformer.attention, 2 * hidden_size)
        transformer = self.transformer.model_copy(update={"attention": attention})
        changed_block = self.model_copy(update={"transformer": transformer})
        return super(ZambaLayer, changed_block).with_replaced_mixers(replace_mixer, hidden_size)

    def scaled(
        self, hidden_size: int, heads: Callable[[HeadSizes], HeadSizes], scale_width: Callable[[int], Number]
    ) -> Self:
        raise UnscalableError(
            f"layers that share a block have no rule for its sizes at another width; {SCALABLE_MODELS}"
        )

    def check_can_share_parameters(self, layer_name: str) -> None:
        if self.transformer.idle_adapters:
            raise ValueError(
                f"shared_layers: the layers called '{layer_name}' share a block; idle_adapters stand only in blocks "
                "that no layer shares"
            )

    def mixers(self, hidden_size: int) -> list[tuple[str, Any, int]]:
        return [("transformer.attention", self.transformer.attention, 2 * hidden_size), *super().mixers(hidden_size)]

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        other_adapters: OtherAdapters | None = None
        if layer_sharing is not None and layer_sharing.is_first:
            other_adapters = layer_sharing.other_layer_count, "kept"
        elif self.transformer.idle_adapters:
            other_adapters = self.transformer.idle_adapters, "idle"
        block_role: Role = "own" if layer_sharing is None or layer_sharing.is_first else "shared"
        embedding: Value = recorder.layer_memo.get("embedded", x)  # x itself in the first layer
        block_input = recorder.cat(x, embedding, axes=(JoinedShapes((x.axes, embedding.axes)),))
        block_output = recorder.part(
            "transformer",
            self.transformer,
            block_input,
            norm=self.norm,
            output_axes=x.axes,
            other_adapters=other_adapters,
            role=block_role,
        )
        block_output = recorder.linear("linear", block_output, *x.axes, kind="attention")
        recorder.hold(added=block_output)
        normed_sum = recorder.part("mixer_pre_norm", self.norm, recorder.add(x, block_output))
        return recorder.add(x, recorder.part("mixer", self.attention, normed_sum))

    def describe(self, hidden_size: int) -> str:
        return f"shared {self.transformer.attention.describe(2 * hidden_size)}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = Attention(num_attention_heads=4)
        network = FeedForward(intermediate_size=20, hidden_act="gelu", gated=True)
        rotary_attention = attention.model_copy(update={"position": Rope()})
        shared_blocks: list[tuple[Any, SharedBlock]] = [
            (Mamba.examples()[0], SharedBlock(attention=attention, feed_forward=network)),
            (Mamba2.examples()[0], SharedBlock(attention=rotary_attention, feed_forward=network, adapter_rank=3)),
            (
                Mamba2.examples()[1],
                SharedBlock(attention=rotary_attention, feed_forward=network, adapter_rank=3, attention_adapters=True),
            ),
            (
                Mamba2.examples()[1],
                SharedBlock(
                    attention=rotary_attention,
                    feed_forward=network,
                    adapter_rank=3,
                    attention_adapters=True,
                    idle_adapters=2,
                ),
            ),
        ]
        return [cls(attention=mixer, transformer=block, norm=Norm(type="rmsnorm")) for mixer, block in shared_blocks]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class LowRankAdapter(nn.Module):
        """A low-rank adapter. x: [..., in_features] → [..., out_features]."""

        def __init__(self, in_features: int, rank: int, out_features: int) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(in_features, rank, bias=False), nn.Linear(rank, out_features, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.up(self.down(x))

    def build_adapters(spec: SharedBlock, in_features: int, out_features: int) -> nn.ModuleList:
        """Builds this layer's adapter, which runs, and the adapters of the other layers, which are only stored."""
        return nn.ModuleList(
            LowRankAdapter(in_features, spec.adapter_rank or 0, out_features) for _ in range(1 + spec.idle_adapters)
        )

    class AdaptedLinear(nn.Linear):
        """A linear layer plus the current layer's adapter; the module also stores the adapters of other layers."""

        def __init__(self, in_features: int, out_features: int, spec: SharedBlock, bias: bool) -> None:
            super().__init__(in_features, out_features, bias=bias)
            self.adapters = build_adapters(spec, in_features, out_features)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.adapters[0](x)

    class SharedBlockNetwork(nn.Module):
        def __init__(self, spec: SharedBlock, model_properties: ModelProperties) -> None:
            super().__init__()
            self.act = spec.feed_forward.hidden_act
            for child_name, child_module in spec.feed_forward.reference(model_properties).named_children():
                self.add_module(child_name, child_module)
            if spec.adapter_rank is not None:
                self.adapters = build_adapters(
                    spec, model_properties.hidden_size, 2 * spec.feed_forward.intermediate_size
                )

        def forward(self, x: Tensor) -> Tensor:
            gate, up_projection = self.get_submodule("gate_proj")(x), self.get_submodule("up_proj")(x)
            if hasattr(self, "adapters"):
                gate_addition, up_addition = self.adapters[0](x).chunk(2, -1)
                gate, up_projection = gate + gate_addition, up_projection + up_addition
            return self.get_submodule("down_proj")(activate(self.act, gate) * up_projection)

    class SharedBlockReference(nn.Module):
        """Runs the shared block on stream and embeddings, [batch, tokens, 2 · hidden] → [batch, tokens, hidden]."""

        def __init__(self, spec: ZambaLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            block, hidden_size = spec.transformer, model_properties.hidden_size
            block_properties = ModelProperties(2 * hidden_size, output_size=hidden_size)
            self.self_attn_pre_norm = spec.norm.reference(block_properties)
            self.mlp_pre_norm = spec.norm.reference(model_properties)
            self.self_attn, self.mlp = (
                block.attention.reference(block_properties),
                SharedBlockNetwork(block, model_properties),
            )
            for projection_name in ("q_proj", "k_proj", "v_proj") if block.attention_adapters else ():
                linear_module: Any = getattr(self.self_attn, projection_name)
                setattr(
                    self.self_attn,
                    projection_name,
                    AdaptedLinear(
                        linear_module.in_features, linear_module.out_features, block, linear_module.bias is not None
                    ),
                )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            attn_output = self.self_attn(self.self_attn_pre_norm(x), pass_state)
            return self.mlp(self.mlp_pre_norm(attn_output))

    class ZambaLayerReference(nn.Module):
        """Runs the shared transformer block, then the mixer. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ZambaLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.transformer = SharedBlockReference(spec, model_properties)
            self.linear = nn.Linear(model_properties.hidden_size, model_properties.hidden_size, bias=False)
            self.mixer_pre_norm = spec.norm.reference(model_properties)
            self.mixer = spec.attention.reference(model_properties)

        def share_parameters(self, first_layer: ZambaLayerReference) -> None:
            """Uses the first layer's transformer block, and stores this layer's adapters in that block."""
            if first_layer is self:
                return
            for path, module in list(self.transformer.named_modules()):
                if not path.endswith("adapters"):
                    continue
                run_adapter: Any = module.get_submodule("0")
                adapter_list: Any = first_layer.transformer.get_submodule(path)
                stored_adapter = LowRankAdapter(
                    run_adapter.down.in_features, run_adapter.down.out_features, run_adapter.up.out_features
                )
                stored_adapter.down.weight, stored_adapter.up.weight = run_adapter.down.weight, run_adapter.up.weight
                adapter_list.append(stored_adapter)
            for path, parameter in list(first_layer.transformer.named_parameters()):
                module_path, _, param_name = path.rpartition(".")
                if "adapters." not in path:
                    setattr(self.transformer.get_submodule(module_path), param_name, parameter)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            assert pass_state.first_layer_input is not None
            block_output = self.linear(self.transformer(torch.cat([x, pass_state.first_layer_input], -1), pass_state))
            return x + self.mixer(self.mixer_pre_norm(x + block_output), pass_state)

    return ZambaLayerReference
