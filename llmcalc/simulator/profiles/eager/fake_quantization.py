"""Linear layers that round input and weight before their product: quantization-aware training with torchao.

Source: torchao 0.18.0, quantization/qat/linear.py (`FakeQuantizedLinear.forward`), qat/fake_quantizer.py
(`IntxFakeQuantizer`), quant_primitives.py (`choose_qparams_affine`, `_fake_quantize_affine`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ....flow.program import Step
from ....ops import Linear
from ...autograd import record
from ...module_frame import ModulePath
from ...strides import Shape
from ...tensor import FLOAT32, UINT8, NeedsInputGrad, OptionalGradient, Tensor
from .basic import BasicKernels


class FakeQuantizationKernels(BasicKernels):
    """Kernels that round the operands of linear layers, and keep their number format."""

    def fake_quantized_operands(
        self, operation: Step, x: Tensor, weight: Tensor, has_adapter: bool
    ) -> tuple[Tensor, Tensor]:
        """Returns a linear layer's input, rounded per token, and its weight, rounded per group of each weight row.

        Both are unchanged for a layer that rounds nothing, as are beside adapters all layers without an adapter
        (torchtune/training/quantization.py, `swap_lora_linear_with_qat`; modules/peft/lora.py, `QATLoRALinear`).
        """
        qat_scheme = self.choices.fake_quantization
        if qat_scheme is None or (self.adapters is not None and not has_adapter):
            return x, weight
        if qat_scheme.skips_tied and isinstance(operation.op, Linear) and operation.op.is_tied:
            return x, weight
        if weight.dtype is UINT8:
            raise self.unsupported("--fake-quantize rounds no quantized weights; expected --base none", operation.name)
        row_count, column_count = weight.shape
        if column_count % qat_scheme.group_size:
            return x, weight
        group_size, scale_path = qat_scheme.group_size, (*self.module_path(), operation.name)
        x = self._round_by_groups(x, x.shape, (*scale_path, "activation_fake_quantizer"), is_symmetric=False)
        grouped_shape: Shape = (row_count, column_count)
        if group_size != column_count:
            grouped_shape = (row_count, column_count // group_size, group_size)
        return x, self._round_by_groups(
            weight, grouped_shape, (*scale_path, "weight_fake_quantizer"), is_symmetric=True
        )

    def _round_by_groups(
        self, x: Tensor, grouped_shape: Shape, quantizer_path: ModulePath, is_symmetric: bool
    ) -> Tensor:
        """Returns x quantized and dequantized per group (last axis of `grouped_shape`), and keeps the scales."""
        scales = self._allocate_scales(x, grouped_shape[:-1], is_symmetric)
        self.scales_of_quantizers[quantizer_path] = scales
        scale, zero_point = (self.aten.unsqueeze(tensor, -1) for tensor in scales)
        codes = self._quantized_codes(x, grouped_shape, scale, zero_point)
        return self._decode_codes(codes, grouped_shape, scale, zero_point, x)

    def _allocate_scales(self, x: Tensor, shape: Shape, is_symmetric: bool) -> tuple[Tensor, Tensor]:
        """Returns scale and zero point of each group in float32 (`_choose_qparams_affine`)."""
        aten = self.aten
        with self.graph.no_grad():
            smallest_values, largest_values = aten.new_tensor(shape, x.dtype), aten.new_tensor(shape, x.dtype)
            lower_bound = aten.new_like(smallest_values, aten.new_like(smallest_values))
            upper_bound = aten.new_like(largest_values, aten.new_like(largest_values))
            if is_symmetric:
                upper_bound = aten.new_like(aten.new_like(lower_bound), upper_bound)
                scale = aten.new_like(upper_bound)
                zero_point = aten.new_like(scale)
                scale = aten.new_like(scale)
            else:
                scale = aten.new_like(aten.new_like(upper_bound, lower_bound))
                scale = aten.new_like(scale)
                zero_point = aten.new_like(aten.new_like(aten.new_like(lower_bound, scale)))
                zero_point = aten.new_like(zero_point)
            return aten.to(scale, FLOAT32), aten.to(zero_point, FLOAT32)

    def _quantized_codes(self, x: Tensor, grouped_shape: Shape, scale: Tensor, zero_point: Tensor) -> Tensor:
        """Returns the integers of x, in float32 (`_quantize_affine_no_dtype_cast`)."""
        aten = self.aten
        codes = aten.clamp(
            aten.add(
                self._round_to_integers(aten.mul(aten.reshape(x, grouped_shape), aten.new_like(scale))), zero_point
            ),
            has_both_limits=True,
        )
        return aten.reshape(codes, x.shape)

    def _decode_codes(
        self, codes: Tensor, grouped_shape: Shape, scale: Tensor, zero_point: Tensor, template: Tensor
    ) -> Tensor:
        """Returns the values of the integers `codes`, dequantized (`_dequantize_affine_no_dtype_check`)."""
        aten = self.aten
        grouped_codes = aten.reshape(codes, grouped_shape)
        decoded_x = (
            aten.copy(grouped_codes) if codes.dtype is template.dtype else aten.to(grouped_codes, template.dtype)
        )
        decoded_x = aten.sub(decoded_x, aten.to(zero_point, template.dtype))
        decoded_x = aten.mul(decoded_x, scale)
        return aten.to(aten.reshape(decoded_x, template.shape), template.dtype)

    def _round_to_integers(self, x: Tensor) -> Tensor:
        """Rounds x; the gradient of x equals the gradient of the result (`_Round`)."""

        def backward(output_gradient: Tensor, _: NeedsInputGrad) -> Sequence[OptionalGradient]:
            return (output_gradient,)

        return record(self.graph, "round", (x,), lambda: self.aten.new_like(x), backward)
