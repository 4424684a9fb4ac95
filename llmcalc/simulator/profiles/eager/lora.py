"""Linear layers with frozen weights and an adapter, as peft, torchtune and LitGPT run them; weights in 4 and 8 bits, as
in bitsandbytes; and queries, keys and values as one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import Number, ceil_div, same
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.axis import extent
from ....flow.program import Step
from ....flow.tree import Use
from ....ops import Linear
from ....workload.lora import BLOCK, PROJECTIONS
from ...autograd import record
from ...lowering import Path
from ...strides import Shape, count
from ...tensor import BOOL, FLOAT16, FLOAT32, INT32, INT64, UINT8, Dtype, Gradient, Needs, Tensor, empty
from .basic import BasicKernels

TOGETHER = "qkv_proj"
"""The name of that product."""


class LoraKernels(BasicKernels):
    """Linear layers with adapters, and their quantized weights."""

    # --- weights ----------------------------------------------------------------------------------------------------

    def matrix(self, step: Step) -> Tensor:
        """Returns the weight of a linear layer; the weight is quantized if the base model is."""
        weight = step.weight
        if weight is None or not self._is_quantised(step):
            return self._trained_copy(step, super().matrix(step))
        return self._new_quantised_weight(step.name, extent(weight.out), extent(weight.ins))

    def table(self, step: Step) -> Tensor:
        return self._trained_copy(step, super().table(step))

    @compared(BY_TORCH)
    def do_table(self, step: Step) -> None:
        """Looks up embeddings; with checkpoints their output needs a gradient despite a frozen table.

        Source: transformers/modeling_utils.py, `enable_input_require_grads`.
        """
        super().do_table(step)
        adapters, by_token = self.adapters, step.options["by"] in ("ids", "known ids")
        if adapters is not None and adapters.library == "peft" and self.recompute.layers and by_token:
            rows = self.get(step.outs[0])
            rows.leaf = self.graph.enabled and rows.node is None

    def _is_quantised(self, step: Step) -> bool:
        """Whether a weight is quantised: every weight of a layer is, and on request the output head's."""
        adapters = self.adapters
        if adapters is None or adapters.base == "none":
            return False
        if any(frame.layer_index is not None for frame in self.frames):
            return True
        is_tied = ("", id(step.weight)) in self.weights
        return adapters.quantized_head and step.outs[0] is self.result and not is_tied

    def expert_weight(self, step: Step, shape: Shape) -> Tensor:
        """Returns the stacked weights of all experts, decoded where they are stored in 4 bits.

        Source: axolotl, monkeypatch/moe_quant.py; bitsandbytes/nn/parametrize.py, `Bnb4bitParametrization`.
        """
        adapters = self.adapters
        if adapters is None or not adapters.quantized_experts or adapters.base == "none":
            return super().expert_weight(step, shape)
        if adapters.base == "int8":
            raise self.unsupported("experts in 8 bits are not modelled; expected --base nf4", step.name)
        experts, rows, columns = shape
        self._new_quantised_weight(step.name, experts * rows, columns)
        return self._decode_weight(shape, self.dtype)

    def _new_quantised_weight(self, name: str, rows: Number, columns: Number) -> Tensor:
        assert self.adapters is not None
        size = self.adapters.stored_bytes(rows, columns)
        return self.parameter((*self.module_path(), f"{name}.weight"), (size,), UINT8, trained=False)

    def _trained_copy(self, step: Step, weight: Tensor) -> Tensor:
        """Returns the trained copy of a frozen weight (peft/utils/other.py, `ModulesToSaveWrapper`)."""
        if self.adapters is None or self.layer_name(step) not in self.adapters.copies:
            return weight
        key = (*self.module_path(), f"{step.name}.modules_to_save.weight")
        return self.parameter(key, weight.shape, weight.dtype, trained=True)

    def layer_name(self, step: Step) -> str:
        """Returns the name of a linear layer, or of the module that consists of it."""
        return step.name or self.frames[-1].scope.name

    def has_adapter(self, step: Step) -> bool:
        """Whether a linear layer has an adapter."""
        return self.adapters is not None and self.layer_name(step) in self.adapters.targets

    def unread_parameters(self, name: str, use: Use) -> list[Tensor]:
        """Returns unread parameters, with adapters: PEFT selects layers by name, whether they run or not."""
        adapters, tensors = self.adapters, super().unread_parameters(name, use)
        if (
            adapters is None
            or adapters.library != "peft"
            or not isinstance(use.op, Linear)
            or name not in adapters.targets
        ):
            return tensors
        shapes = (adapters.rank, use.op.n_in), (use.op.n_out, adapters.rank)
        return [*tensors, *(empty(self.graph.meter, shape, adapters.dtype, leaf=self.trained) for shape in shapes)]

    def adapter(self, name: str, shape: Shape, module: Path | None = None) -> Tensor:
        """Returns a trained adapter matrix of a module, by default the current one."""
        assert self.adapters is not None
        key = (*(self.module_path() if module is None else module), name)
        return self.parameter(key, shape, self.adapters.dtype, trained=True)

    # --- queries, keys and values as one product --------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_linear(self, step: Step) -> None:
        fused_steps = self._fused_projections(step)
        if not fused_steps:
            super().do_linear(step)
        elif step is fused_steps[0]:  # the others have their values from it
            if self._is_fused_by_its_class(step):
                self._run_as_its_class(fused_steps)
            else:
                self._run_as_one_product(fused_steps)

    def _is_fused_by_its_class(self, step: Step) -> bool:
        """Whether a class of transformers runs a projection with others as one product, without adapters."""
        return self.choices.like_classes and self.adapters is None and bool(step.options["fused"])

    def _fused_projections(self, step: Step) -> list[Step]:
        """Returns the projections fused with this step's projection, in order; none if it runs alone."""
        litgpt = self.adapters is not None and self.adapters.library == "litgpt"
        if step.name not in PROJECTIONS or not (litgpt or self.choices.fused_qkv or self._is_fused_by_its_class(step)):
            return []
        groups = [
            item
            for item in self.frames[-1].scope.items
            if isinstance(item, Step)
            and item.verb == "linear"
            and item.name in PROJECTIONS
            and item.ins[0] is step.ins[0]
        ]
        if self._is_fused_by_its_class(step) and len({bool(item.options["bias"]) for item in groups}) > 1:
            return []
        return groups if len(groups) > 1 and groups[0].name == PROJECTIONS[0] else []

    def _run_as_one_product(self, steps: list[Step]) -> None:
        x, widths = self.flat(steps[0].ins[0]), [step.outs[0].width for step in steps]
        total = sum(widths)
        biased_steps = [step for step in steps if step.options["bias"]]
        if len(biased_steps) not in (0, len(steps)):
            raise self.unsupported("one product has a bias or none; expected a bias on all projections, or on none")
        bias = self.weight(f"{TOGETHER}.bias", (total,)) if biased_steps else None
        if self._is_quantised(steps[0]):
            weight = self._new_quantised_weight(TOGETHER, total, x.shape[-1])
        else:
            weight = self.weight(f"{TOGETHER}.weight", (total, x.shape[-1]))
        product = self._with_adapters(steps, x, self.product(x, weight, bias, total), weight)
        for step, step_output in zip(steps, self.t.split(product, widths), strict=True):
            self.modules[id(step.outs[0])] = self.module_path(), step.name
            self.set(step.outs[0], step_output)

    def _run_as_its_class(self, steps: list[Step]) -> None:
        """Runs one product and splits its result. The weight is stored as the separate projections' weights.

        Source: transformers' modeling_phi3.py, whose step was measured (tests/data/gpu).
        """
        graph, x, widths = self.graph, self.flat(steps[0].ins[0]), [step.outs[0].width for step in steps]
        x = self.t.operand(x)
        weights = [self.t.operand(self.matrix(step)) for step in steps]
        biases = [
            self.t.operand(self.weight(f"{step.name}.bias", (step.outs[0].width,)))
            for step in steps
            if step.options["bias"]
        ]
        shape, weight_shapes = x.shape, [weight.shape for weight in weights]

        def backward(g: Tensor, needs_input_grad: Needs, *_: Tensor) -> Sequence[Gradient]:
            needed_gradients = needs_input_grad[1 : 1 + len(weights)]
            of_weights = [
                graph.new(of, g.dtype) if need else None
                for of, need in zip(weight_shapes, needed_gradients, strict=True)
            ]
            of_x = graph.new(shape, g.dtype) if needs_input_grad[0] else None
            of_biases = [graph.sum_to_shape((width,), self.t.slice(g, width)) for width in widths[: len(biases)]]
            return of_x, *of_weights, *of_biases

        product = record(
            graph,
            "mm",
            (x, *weights, *biases),
            lambda: graph.operation_result("mm", (*shape[:-1], sum(widths)), x.dtype),
            backward,
            *([x] if any(weight.needs_grad for weight in weights) else []),
            *(weights if x.needs_grad else []),
        )
        for step, step_output in zip(steps, self.t.split(product, widths), strict=True):
            self.modules[id(step.outs[0])] = self.module_path(), step.name
            self.set(step.outs[0], step_output)

    def _with_adapters(self, steps: list[Step], x: Tensor, product: Tensor, weight: Tensor) -> Tensor:
        adapters = self.adapters
        adapted_steps = [] if adapters is None else [step for step in steps if step.name in adapters.targets]
        if adapters is None or not adapted_steps:
            return product
        if adapters.library == "litgpt":
            return self._run_grouped_adapter(x, product, [step.outs[0].width for step in adapted_steps])
        if len(adapted_steps) < len(steps):
            names = ", ".join(step.name for step in steps)
            raise self.unsupported(f"one product has one adapter; expected all of {names} in --lora-targets, or none")
        return self._add_adapter(TOGETHER, x, product, weight)

    def _run_grouped_adapter(self, x: Tensor, pretrained_output: Tensor, widths: list[Any]) -> Tensor:
        """Runs one adapter for several fused projections (lit_gpt/lora.py, `LoRAQKVLinear.forward`, `zero_pad`)."""
        t, adapters = self.t, self.adapters
        assert adapters is not None
        total = sum(widths)
        lora_a = self.adapter(f"{TOGETHER}.lora_A", (adapters.rank * len(widths), x.shape[-1]))
        lora_b = self.adapter(f"{TOGETHER}.lora_B", (total, adapters.rank))
        after_a = t.linear(t.dropout(x) if adapters.dropout else x, lora_a)
        after_b = t.convolution(t.transpose(after_a, -1, -2), t.unsqueeze(lora_b, -1), None, x.shape[1])
        after_b = t.transpose(after_b, -1, -2)
        width = pretrained_output.shape[-1]
        lora = t.scale(after_b if same(total, width) else self._pad_adapter_output(after_b, width))
        return t.add(pretrained_output, lora)

    def _pad_adapter_output(self, x: Tensor, width: Number) -> Tensor:
        """Pads an adapter's output [batch, tokens, …] with zeros; saves a copy for the gradient's shape.

        Source: derivatives.yaml, `index_copy`.
        """
        t, graph = self.t, self.graph
        transposed_x = t.transpose(x, 0, 1)
        rows, adapter_width = transposed_x.shape[0] * transposed_x.shape[1], transposed_x.shape[2]
        result = t.new((rows, width), x.dtype)
        source, index = t.reshape(transposed_x, (rows, adapter_width)), t.new((adapter_width,), INT64)

        def backward(g: Tensor, _: Needs, *__: Tensor) -> Sequence[Gradient]:
            return (graph.new((rows, adapter_width), g.dtype),)

        result = record(graph, "index_copy", (source,), t.like(result), backward, index, source)
        del source, index
        return t.transpose(t.reshape(result, (*transposed_x.shape[:2], width)), 0, 1)

    # --- products ---------------------------------------------------------------------------------------------------

    def linear_output(self, step: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes x·Wᵀ plus the adapter's output, if the layer has an adapter."""
        width = step.outs[0].width
        if not self.has_adapter(step):
            return self.product(x, weight, bias, width)
        return self._add_adapter(step.name, x, self.product(x, weight, bias, width), weight)  # which frees the product

    def repeat_linear(self, name: str, module: Path, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        adapters = self.adapters
        if adapters is not None and adapters.library == "litgpt" and name in adapters.targets:
            raise self.unsupported("no adapters of LitGPT on a layer that runs twice", name)
        width = weight.shape[0]
        if adapters is None or name not in adapters.targets:
            return self.product(x, weight, bias, width)
        return self._add_adapter(name, x, self.product(x, weight, bias, width), weight, module)

    def _add_adapter(self, name: str, x: Tensor, result: Tensor, weight: Tensor, module: Path | None = None) -> Tensor:
        """Adds the adapter's output to a linear layer's output. module: default the current module."""
        t, adapters = self.t, self.adapters
        assert adapters is not None
        lora_a = self.adapter(f"{name}.lora_A.weight", (adapters.rank, x.shape[-1]), module)
        lora_b = self.adapter(f"{name}.lora_B.weight", (result.shape[-1], adapters.rank), module)
        if (
            adapters.library != "peft"
        ):  # torchtune/modules/peft/lora.py, `LoRALinear.forward`; lit_gpt/lora.py, `LoRALinear`
            lora_out = t.linear(t.dropout(x) if adapters.dropout else x, lora_a)
            lora_out = t.scale(t.linear(lora_out, lora_b))
            return t.add(result, lora_out)
        dtype = result.dtype
        if weight.dtype is UINT8:  # peft/tuners/lora/bnb.py, `Linear8bitLt.forward` and `Linear4bit.forward`
            if adapters.base != "int8":
                result = t.copy(result)
            adapter_input = x if self.graph.autocast is not None else t.to(x, adapters.dtype)
            output = t.scale(
                t.linear(t.linear(t.dropout(adapter_input) if adapters.dropout else adapter_input, lora_a), lora_b)
            )
            if self.graph.autocast is None:
                output = t.to(output, dtype)
            return t.add(result, output)
        adapter_input = t.to(x, adapters.dtype)  # peft/tuners/lora/layer.py, `Linear.forward`
        result = t.add(
            result,
            t.scale(
                t.linear(t.linear(t.dropout(adapter_input) if adapters.dropout else adapter_input, lora_a), lora_b)
            ),
        )
        return t.to(result, dtype)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, width: Number) -> Tensor:
        """Computes x·Wᵀ + b; a 4-bit weight is decoded first (bitsandbytes/autograd/_functions.py, `MatMul4Bit`)."""
        if weight.dtype is not UINT8:
            return super().product(x, weight, bias, width)
        assert self.adapters is not None
        if self.adapters.base == "int8":
            return self._product_in_8_bits(x, weight, width)
        graph, shape = self.graph, (width, x.shape[-1])
        input_shape, dtype = x.shape, x.dtype

        def backward(g: Tensor, _: Needs, *__: Tensor) -> Sequence[Gradient]:
            decoded_weight = self._decode_weight(shape, dtype)
            out = graph.new(input_shape, dtype)
            del decoded_weight
            return (out,)

        decoded_weight = self._decode_weight(shape, dtype)
        out = graph.new((*input_shape[:-1], width), dtype)
        del decoded_weight
        product = record(graph, "matmul_4bit", (x,), out, backward, weight)
        if self.adapters.keeps_inputs and product.node is not None:
            product.node.attributes.append(x.detached())
        return product

    def _product_in_8_bits(self, x: Tensor, weight: Tensor, width: Number) -> Tensor:
        """Computes x·Wᵀ in int8, without the columns of outliers, whose number depends on the values.

        Sources: bitsandbytes/autograd/_functions.py, `MatMul8bitLt`, which keeps its input as an attribute of the node;
        bitsandbytes/backends/cuda/ops.py, `int8_vectorwise_quant` and `int8_mm_dequant`.
        """
        t, graph, dtype, input_shape = self.t, self.graph, x.dtype, x.shape
        rows, columns = count(x.shape[:-1]), x.shape[-1]

        def backward(g: Tensor, _: Needs, *__: Tensor) -> Sequence[Gradient]:
            decoded_weight, scales = graph.new((width, columns), dtype), graph.new((width, 1), FLOAT32)
            del scales
            out = graph.new(input_shape, dtype)
            del decoded_weight
            return (out,)

        in_half = t.to(x.detached(), FLOAT16)
        row_scales, codes = t.new((rows,), FLOAT32), t.new((rows, columns), UINT8)
        magnitudes = t.like(in_half)
        is_outlier = t.new((rows, columns), BOOL)
        del magnitudes
        del is_outlier, in_half
        sums = t.new((rows, width), INT32)
        decoded = t.new((rows, width), FLOAT16)
        out = decoded if dtype is FLOAT16 else t.new((rows, width), dtype)
        del sums, decoded, codes, row_scales
        product = record(graph, "matmul_8bit", (x,), t.reshape(out, (*input_shape[:-1], width)), backward, weight)
        if product.node is not None:
            product.node.attributes.append(x.detached())
        return product

    def _decode_weight(self, shape: Shape, dtype: Dtype) -> Tensor:
        """Decodes a 4-bit weight to a number format (bitsandbytes/functional.py, `dequantize_4bit`)."""
        adapters, graph = self.adapters, self.graph
        assert adapters is not None

        def dequantized() -> Tensor:
            scales = graph.new((ceil_div(count(shape), BLOCK),), FLOAT32) if adapters.base == "nf4-dq" else None
            out = graph.new(shape, FLOAT16 if adapters.decodes_to_half else dtype)
            del scales
            return out

        return self.t.to(dequantized(), dtype)
