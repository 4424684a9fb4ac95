"""Quantization-aware training: linear layers that round their operands, against torch with torchao's formula.

The modules are written after torchao 0.18.0, quantization/qat and quantization/quant_primitives.py, whose own
`FakeQuantizedLinear` had the same bytes in full training with the eager loss, without adapters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import llmcalc
from llmcalc.errors import InputError
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.tensor import BFLOAT16
from llmcalc.witnesses import kernel_variants
from llmcalc.workload.fake_quantization import FakeQuantizationOptions
from tests.simulator import models
from tests.simulator.test_adapter_libraries import ALL, Plain, spec


class Round(torch.autograd.Function):
    """Rounds a tensor, whose gradient is that of the result."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@torch.no_grad()
def scales(x: Any, least: int, most: int, symmetric: bool) -> tuple[Any, Any]:
    """Scale and zero point of each row of the last axis (`_choose_qparams_affine`)."""
    smallest, largest = torch.amin(x, dim=[-1]), torch.amax(x, dim=[-1])
    lower, upper = torch.min(smallest, torch.zeros_like(smallest)), torch.max(largest, torch.zeros_like(largest))
    if symmetric:
        upper = torch.max(-lower, upper)
        scale = upper / (float(most - least) / 2)
        zero_point = torch.full_like(scale, 0)
        scale = torch.clamp(scale, min=1e-9)
    else:
        scale = (upper - lower) / float(most - least)
        scale = torch.clamp(scale, min=1e-9)
        zero_point = least - Round.apply(lower / scale)
        zero_point = torch.clamp(zero_point, least, most)
    return scale.to(torch.float32), zero_point.to(torch.float32)


class Quantizer(nn.Module):
    """Rounds a tensor and keeps its scales (`IntxFakeQuantizer`, `_fake_quantize_affine`)."""

    def __init__(self, bits: int, group_size: int | None) -> None:
        super().__init__()
        self.least, self.most, self.group_size = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, group_size

    def codes(self, x: Any, shape: Any, scale: Any, zero_point: Any) -> Any:
        x_rows = x.view(shape)
        return torch.clamp(Round.apply(x_rows * (1.0 / scale)) + zero_point, self.least, self.most).view(x.shape)

    def decoded(self, codes: Any, shape: Any, scale: Any, zero_point: Any, dtype: torch.dtype) -> Any:
        values = codes.view(shape).to(dtype, copy=True)
        values = values - zero_point.to(dtype)
        values = values * scale
        return values.view(codes.shape).to(dtype)

    def forward(self, x: Any) -> Any:
        shape = x.shape if self.group_size in (None, x.shape[-1]) else (*x.shape[:-1], -1, self.group_size)
        self.scale, self.zero_point = scales(x.view(shape), self.least, self.most, self.group_size is not None)
        scale, zero_point = self.scale.unsqueeze(-1), self.zero_point.unsqueeze(-1)
        codes = self.codes(x, shape, scale, zero_point)
        return self.decoded(codes, shape, scale, zero_point, x.dtype)


class QuantizedLinear(nn.Module):
    """A linear layer that rounds input and weight (`FakeQuantizedLinear.forward`)."""

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.of_input, self.of_weight = Quantizer(8, None), Quantizer(4, group_size)

    def forward(self, x: Any) -> Any:
        x = self.of_input(x)
        weight = self.of_weight(self.weight)
        return nn.functional.linear(x, weight, self.bias)


class Fresh(models.EagerKernels):
    """A run whose pass without gradients, which makes the weights, leaves no scales, as torch's run has none."""

    def run(self, program: Any) -> Any:
        result = super().run(program)
        if not self.graph.is_grad_enabled:
            self.scales_of_quantizers.clear()
        return result


@pytest.fixture(autouse=True)
def rounds_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's run has the modules above, in place of all linear layers or of those below adapters."""
    apply_kernel_choices = kernel_variants.apply_kernel_choices

    def replaced(module: Any, choices: KernelChoices, recompute: Any, adapters: Any, device: str) -> None:
        scheme = choices.fake_quantization
        assert scheme is not None
        apply_kernel_choices(module, replace(choices, fake_quantization=None), recompute, adapters, device)
        for name, layer in [*module.named_modules()]:
            is_rounded = adapters is None or name.endswith("base_layer")
            if choices.cross_entropy == "split" and name == "lm_head" and is_rounded:
                head = QuantizedLinear(layer, scheme.group_size)
                monkeypatch.setattr(kernel_variants, "logits_of_chunk", lambda _, chunk, head=head: head(chunk))
            elif isinstance(layer, nn.Linear) and is_rounded and layer.in_features % scheme.group_size == 0:
                parent, _, child = name.rpartition(".")
                setattr(module.get_submodule(parent), child, QuantizedLinear(layer, scheme.group_size))

    monkeypatch.setattr(kernel_variants, "apply_kernel_choices", replaced)
    monkeypatch.setattr(kernel_variants, "Lora", Plain)
    monkeypatch.setattr(models, "EagerKernels", Fresh)


ADAPTERS = Adapters(3, ALL, dropout=True, dtype=BFLOAT16, library="torchtune")


@pytest.mark.parametrize(
    ("number", "group_size", "dtype", "cross_entropy", "adapters"),
    [
        (0, 2, "bfloat16", "eager", None),
        (2, 4, "bfloat16", "eager", None),
        (12, 4, "float32", "eager", None),
        (0, 7, "bfloat16", "eager", None),
        (0, 4, "bfloat16", "split", None),
        (0, 4, "bfloat16", "eager", ADAPTERS),
        (0, 4, "bfloat16", "split", ADAPTERS),
    ],
)
def test_bytes_equal_those_of_torch(
    number: int, group_size: int, dtype: str, cross_entropy: Any, adapters: Adapters | None
) -> None:
    choices = KernelChoices(cross_entropy=cross_entropy, fake_quantization=FakeQuantizationOptions(group_size))
    with_rounding, plain = (
        models.without_values(spec(number), choices=run, dtype=dtype, adapters=adapters)
        for run in (choices, replace(choices, fake_quantization=None))
    )
    expected = models.by_torch(spec(number), choices=choices, dtype=dtype, adapters=adapters)
    assert with_rounding == expected
    assert (with_rounding.saved > plain.saved) == (group_size != 7)  # 7 divides no layer's rows


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("llama3.2-1b", {"fake_quantize": "int4"}, "'int4' is not a scheme; expected int8-int4:GROUP"),
        ("llama3.2-1b", {"fake_quantize": "int8-int4:1"}, "'int8-int4:1' is not a scheme"),
        ("llama3.2-1b", {"phase": "prefill"}, "--fake-quantize: it is not for the phase prefill"),
        ("llama3.2-1b", {"compile": True}, "expected no --compile"),
        ("llama3.2-1b", {"lora_rank": 8, "base": "nf4"}, "rounds no quantized weights; expected --base none"),
        ("llama3.2-1b", {"cross_entropy": "chunked"}, "expected no --fake-quantize beside it"),
        ("llama3.2-1b", {"zero": 3, "devices": 2, "framework": "deepspeed"}, "with DeepSpeed it is not modelled"),
        ("llama3.2-1b", {"tp": 2}, "--fake-quantize"),
        ("phi3-mini", {}, "not modelled for projections that are one product"),
    ],
)
def test_what_is_not_modelled_is_refused(model: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        _ = llmcalc.memory(
            model, **{"phase": "training", "fake_quantize": "int8-int4:32", "seq": 64} | options
        ).document
    assert said in str(stop.value)


def test_an_answer_names_the_scheme_and_its_source() -> None:
    """A layer keeps 6 bytes a weight until its backward pass: the rounded weight, and what rounding it saves."""
    options = {"phase": "training", "precision": "bf16", "seq": 64}
    plain, rounded = (
        llmcalc.memory("llama3.2-1b", **options, fake_quantize=scheme).document for scheme in (None, "int8-int4:32")
    )
    assert rounded["execution"]["fake_quantize"] == "int8-int4:32"
    term = rounded["memory"]["terms"][0]
    assert (term["status"], "_fake_quantize_affine" in term["witness"]) == ("source", True)
    matrices = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)
    plain_bytes, rounded_bytes = (answer["memory"]["by_phase"]["forward"]["activations"] for answer in (plain, rounded))
    assert 6 * matrices < rounded_bytes - plain_bytes < 6 * 1.3 * matrices  # with those of the head, and of inputs
