"""Block attention residuals around sublayers that each pass a short convolution over the last tokens.

Each sum of a block is normalized, without weights, before it is scored and added up. Queries, keys and values of
attention may have an input each. transformers: models/inkling2 (`Inkling2SlidingDecoderLayer`,
`Inkling2FullDecoderLayer`, `Inkling2BlockAttentionResidual`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import Flag, KernelSize, ModelProperties
from ..mixers.gated_profile_attention import GatedProfileAttention
from ..norm import Norm
from ..residual_convolution import record_residual_convolution, residual_convolution_class
from ..runtime import PassState
from .block import LayerSharing
from .block_residual import BlockResidualLayer, block_residual_reference_classes, record_block_sum_mixing
from .whole_layer import example_sublayers

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTLESS_NORM = Norm(type="rmsnorm", weight=False, eps=1e-6)
"""The norm on the sums of blocks."""


class ConvolvedResidualLayer(BlockResidualLayer):
    """A layer whose sublayers read sums of earlier blocks of layers. Each output passes a convolution.

    conv_kernel_size: the width in tokens of both convolutions.
    separate_inputs: whether queries, keys and values read a sum and a norm each, false by default.
    """

    formula_source: ClassVar[str] = "Inkling 2 2026"
    can_run_alone: ClassVar[bool] = False

    type: Literal["convolved_residual"] = "convolved_residual"  # type: ignore[assignment]
    conv_kernel_size: KernelSize
    separate_inputs: Flag = False

    def check_fields(self) -> None:
        super().check_fields()
        if self.separate_inputs and not isinstance(self.attention, GatedProfileAttention):
            raise ValueError("separate_inputs: needs attention of type 'gated_profile'; expected false")

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        kernel_size, attention, network = self.conv_kernel_size, self.attention, self.feed_forward
        query_input, *kv_inputs = self._sublayer_inputs(
            recorder, "self_attn", x, self.attention_blocks, 3 if self.separate_inputs else 1
        )
        named_inputs = zip(("key", "value"), kv_inputs, strict=False)
        kv_inputs = [
            recorder.part(f"self_attn_{input_name}_norm", self.norm, kv_input) for input_name, kv_input in named_inputs
        ]
        kv_arguments: dict[str, Any] = dict(zip(("key_input", "value_input"), kv_inputs, strict=False))
        attn_output = recorder.part(
            "self_attn", attention, recorder.part("self_attn_pre_norm", self.norm, query_input), **kv_arguments
        )
        attn_output = record_residual_convolution(recorder, "self_attn_conv", attn_output, kernel_size)
        x = attn_output if self.starts_block else recorder.add(x, attn_output)
        recorder.hold(x=x)
        (network_input,) = self._sublayer_inputs(recorder, "mlp", x, self.feed_forward_blocks, 1)
        network_output = self._record_sublayer(recorder, "mlp", network, network_input)
        x = recorder.add(x, record_residual_convolution(recorder, "mlp_conv", network_output, kernel_size))
        recorder.hold(x=x)
        return x

    def _sublayer_inputs(
        self, recorder: Flow, sublayer_name: str, x: Value, block_count: int, query_count: int
    ) -> list[Value]:
        return record_block_sum_mixing(
            recorder,
            f"{sublayer_name}_residual",
            x,
            block_count,
            WEIGHTLESS_NORM,
            normed_values=True,
            query_count=query_count,
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)


def convolved_residual_example(**layer_fields: Any) -> ConvolvedResidualLayer:
    """Returns a small layer for the contract tests, by default a stack's first. layer_fields: fields to change."""
    attention = GatedProfileAttention(
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        relative_rank=3,
        relative_extent=7,
        conv_kernel_size=3,
        dynamic_convolutions=True,
    )
    default_fields = {
        **example_sublayers(),
        "attention": attention,
        "attention_blocks": 0,
        "feed_forward_blocks": 1,
        "starts_block": True,
        "conv_kernel_size": 3,
        "separate_inputs": True,
    }
    return ConvolvedResidualLayer(**{**default_fields, **layer_fields})


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    mix_class = block_residual_reference_classes()["mix"]

    class ConvolvedResidualReference(nn.Module):
        """Runs convolved sublayers on residual sums. x: the running sum, [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ConvolvedResidualLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, query_count = spec, 3 if spec.separate_inputs else 1
            norm_without_weights = Norm(type="rmsnorm", weight=False, eps=1e-6)
            for sublayer_name, component, block_count, sublayer_query_count in (
                ("self_attn", spec.attention, spec.attention_blocks, query_count),
                ("mlp", spec.feed_forward, spec.feed_forward_blocks, 1),
            ):
                if block_count:
                    self.add_module(
                        f"{sublayer_name}_residual",
                        mix_class(norm_without_weights, model_properties, True, sublayer_query_count),
                    )
                self.add_module(f"{sublayer_name}_pre_norm", spec.norm.reference(model_properties))
                self.add_module(sublayer_name, component.reference(model_properties))
                convolution = residual_convolution_class()(model_properties.hidden_size, spec.conv_kernel_size)
                self.add_module(f"{sublayer_name}_conv", convolution)
            for sublayer_name in ("key", "value") if spec.separate_inputs else ():
                self.add_module(f"self_attn_{sublayer_name}_norm", spec.norm.reference(model_properties))

        def _attention_output(self, block_sums: list[Tensor], x: Tensor, pass_state: PassState) -> Tensor:
            """Returns the output of attention. block_sums: the residual sums of finished blocks of layers."""
            has_separate_inputs, get_submodule = self.spec.separate_inputs, self.get_submodule
            attention_inputs = (
                get_submodule("self_attn_residual")(block_sums, x)
                if block_sums
                else (x,) * (3 if has_separate_inputs else 1)
            )
            query_input, *kv_inputs = attention_inputs
            kv_inputs = [
                get_submodule(f"self_attn_{input_name}_norm")(kv_input)
                for input_name, kv_input in zip(("key", "value"), kv_inputs, strict=False)
            ]
            return get_submodule("self_attn")(get_submodule("self_attn_pre_norm")(query_input), pass_state, *kv_inputs)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec, get_submodule = self.spec, self.get_submodule
            block_sums = pass_state.shared_values["block_sums"][: spec.attention_blocks]
            attn_output = get_submodule("self_attn_conv")(self._attention_output(block_sums, x, pass_state), pass_state)
            if spec.starts_block:
                pass_state.shared_values["block_sums"] = [*block_sums, x]
            x = attn_output if spec.starts_block else x + attn_output
            (mixed_sum,) = get_submodule("mlp_residual")(
                pass_state.shared_values["block_sums"][: spec.feed_forward_blocks], x
            )
            network_output = get_submodule("mlp")(get_submodule("mlp_pre_norm")(mixed_sum), pass_state)
            return x + get_submodule("mlp_conv")(network_output, pass_state)

    return ConvolvedResidualReference
