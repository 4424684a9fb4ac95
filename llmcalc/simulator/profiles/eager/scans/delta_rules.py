"""The delta rules: gated DeltaNet (Yang 2024, arXiv:2412.06464) and Kimi delta attention."""

from __future__ import annotations

from typing import Any

from .....components.base import PUBLISHED
from .....evidence import compared
from .....ops import DeltaRule
from ....published import fla
from ....tensor import Tensor
from .module_steps import Steps
from .modules import ScanModules


class DeltaRuleKernels(ScanModules):
    """Kernels of gated DeltaNet and Kimi delta attention."""

    @compared(PUBLISHED)
    def module_DeltaRule(self, operations: Steps, x: Tensor) -> Tensor:
        assert isinstance(operations["core"].op, DeltaRule)
        self.refuse_dynamic_filters(operations)
        return (self.kimi_delta if operations["core"].op.by_channel else self.gated_delta)(operations, x)

    def refuse_dynamic_filters(self, operations: Steps) -> None:
        """Raises `Unsupported` for values with per-token convolution filters (JetBlock)."""
        if "conv1d" not in operations:
            raise self.unsupported(
                "the memory of a convolution with filters of each token (jet_block) is not modelled; params, flops and "
                "kv count this model",
                "convolution",
            )

    def gated_delta(self, operations: Steps, x: Tensor) -> Tensor:
        """Runs fla/layers/gated_deltanet.py:190 (`GatedDeltaNet.forward`)."""
        aten, op = self.t, operations.op("core", DeltaRule)
        if self.store is None:
            projections = [
                self.project(operations[operation_name], x) for operation_name in ("q_proj", "k_proj", "v_proj")
            ]
            widths = [projection.shape[-1] for projection in projections]
            qkv = aten.cat(projections)
            del projections
            kernel = operations["conv1d"].options["kernel"]
            qkv_weight = aten.cat(
                [
                    self._convolution_weight(operation_name, n, kernel)
                    for operation_name, n in zip("qkv", widths, strict=True)
                ],
                0,
            )
            qkv = fla.causal_conv1d(aten, qkv, qkv_weight)
            q, k, v = aten.split(qkv, widths)
        else:
            self._keep_convolved(operations)
            q, k, v = (self._convolve_by_name(operation_name, operations, x) for operation_name in "qkv")
        q, k, v = self.by_head(q, op.key_dim), self.by_head(k, op.key_dim), self.by_head(v, op.value_dim)
        beta = self.project(operations["b_proj"], x)
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads,))
        gate = self.project(operations["a_proj"], x)
        _state = self.final_state(operations["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        if self.store is not None and x.shape[1] <= fla.FEW:
            o = fla.fused_recurrent(aten, v)
        else:
            o = fla.chunk_gated_delta_rule(aten, q, k, v, gate, beta, a_log, dt_bias, self.accelerator)
        if self.store is None:
            del gate
        g = self.by_head(self.project(operations["g_proj"], x), op.value_dim)
        has_bias = operations["norm"].options["spec"].has_bias
        weight = self.weight("norm.weight", (op.value_dim,))
        bias = self.weight("norm.bias", (op.value_dim,)) if has_bias else None
        o = fla.layer_norm_gated(aten, o, g, weight, bias, self.accelerator)
        o = aten.flatten(o, 2)
        return self.project(operations["o_proj"], o)

    def _keep_convolved(self, operations: Steps) -> None:
        """Caches the last inputs of a layer's three convolutions in one tensor."""
        conv = operations["conv1d"]
        self.states(operations["conv_state"], (conv.outs[0].width, conv.options["kernel"]))

    def _convolution_weight(self, name: str, width: Any, kernel: Any) -> Tensor:
        """Returns the weight of one of a layer's three convolutions."""
        return self.t.reshape(self.weight(f"{name}_conv1d.weight", (width, 1, kernel)), (width, kernel))

    def kimi_delta(self, operations: Steps, x: Tensor) -> Tensor:
        """Runs fla/layers/kda.py:186 (`KimiDeltaAttention.forward`)."""
        aten, op = self.t, operations.op("core", DeltaRule)
        self._keep_convolved(operations)
        q, k, v = (self._convolve_by_name(operation_name, operations, x) for operation_name in "qkv")
        g = self._gate_projection("f", operations, x)
        beta = self.project(operations["b_proj"], x)
        q, k, v, g = (self.by_head(tensor, op.key_dim) for tensor in (q, k, v, g))
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads * op.key_dim,))
        _state = self.final_state(operations["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        runs_recurrently = self.store is not None and x.shape[1] <= fla.FEW
        o = fla.fused_recurrent(aten, v) if runs_recurrently else fla.chunk_kda(aten, q, k, v, g, beta, a_log, dt_bias)
        weight = self.weight("norm.weight", (op.value_dim,))
        o = fla.rms_norm_gated(
            aten, o, self.by_head(self._gate_projection("g", operations, x), op.value_dim), weight, self.accelerator
        )
        o = aten.flatten(o, 2)
        return self.project(operations["o_proj"], o)

    def _convolve_by_name(self, name: str, operations: Steps, x: Tensor) -> Tensor:
        y = self.project(operations[f"{name}_proj"], x)
        return fla.causal_conv1d(
            self.t, y, self._convolution_weight(name, y.shape[-1], operations["conv1d"].options["kernel"])
        )

    def _gate_projection(self, name: str, operations: Steps, x: Tensor) -> Tensor:
        """Projects to a gate, by one linear layer or two low-rank layers."""
        if f"{name}_proj" in operations:
            return self.project(operations[f"{name}_proj"], x)
        return self.project(operations[f"{name}_b_proj"], self.project(operations[f"{name}_a_proj"], x))
