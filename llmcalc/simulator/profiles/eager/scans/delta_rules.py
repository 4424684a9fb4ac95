"""The delta rules: DeltaNet, gated DeltaNet (Yang 2024, arXiv:2412.06464) and Kimi delta attention."""

from __future__ import annotations

from typing import Any

from .....components.base import PUBLISHED_KERNELS_WITNESS
from .....evidence import compared
from .....flow.program import Step
from .....ops import DeltaRule
from ....published import fla, jet_nemotron
from ....tensor import FLOAT32, Tensor
from .module_steps import ModuleSteps
from .modules import ScanModuleKernels


class DeltaRuleKernels(ScanModuleKernels):
    """Kernels of DeltaNet, gated DeltaNet and Kimi delta attention."""

    def keeps_float32_weights(self, module_steps: ModuleSteps) -> bool:
        """Whether weights stay in float32 under autocast, as in a gated DeltaNet that runs like transformers' class.

        Autocast casts the projections. The kernel of the convolution takes filters in another format than its input
        (csrc/causal_conv1d.cpp, `weight_type`), and the gates and the norm are torch's.
        """
        core = module_steps["core"].op if "core" in module_steps else None
        is_gated_delta = isinstance(core, DeltaRule) and not core.decays_by_channel and "A_log" in module_steps
        return is_gated_delta and "conv1d" in module_steps and self._runs_like_transformers(module_steps)

    def _runs_like_transformers(self, module_steps: ModuleSteps) -> bool:
        """Whether a layer runs with the operations of its transformers class, including torch's norm."""
        return self.choices.matches_transformers and module_steps["norm"].options["spec"].type == "rmsnorm"

    @compared(PUBLISHED_KERNELS_WITNESS)
    def module_DeltaRule(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        assert isinstance(module_steps["core"].op, DeltaRule)
        if "conv1d" not in module_steps:
            return self.jet_block(module_steps, x)
        if "A_log" not in module_steps:
            return self.delta_net(module_steps, x)
        runs_like_transformers = self._runs_like_transformers(module_steps)
        if module_steps["core"].op.decays_by_channel:
            return (self.kimi_delta_of_transformers if runs_like_transformers else self.kimi_delta)(module_steps, x)
        return (self.gated_delta_of_transformers if runs_like_transformers else self.gated_delta)(module_steps, x)

    def gated_delta(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a gated DeltaNet layer as fla does (fla/layers/gated_deltanet.py:190, `GatedDeltaNet.forward`)."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        if self.cached_tensors_by_path is None:
            projections = [
                self.project(module_steps[projection_name], x) for projection_name in ("q_proj", "k_proj", "v_proj")
            ]
            projection_widths = [projection.shape[-1] for projection in projections]
            qkv = aten.cat(projections)
            del projections
            kernel_size = module_steps["conv1d"].options["kernel"]
            qkv_weight = aten.cat(
                [
                    self._convolution_weight(operation_name, part_width, kernel_size)
                    for operation_name, part_width in zip("qkv", projection_widths, strict=True)
                ],
                0,
            )
            qkv = fla.causal_conv1d(aten, qkv, qkv_weight)
            q, k, v = aten.split(qkv, projection_widths)
        else:
            self._cache_convolution_inputs(module_steps)
            q, k, v = (self._convolve_by_name(operation_name, module_steps, x) for operation_name in "qkv")
        q, k, v = self.split_heads(q, op.key_dim), self.split_heads(k, op.key_dim), self.split_heads(v, op.value_dim)
        beta = self.project(module_steps["b_proj"], x)
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads,))
        decay_logits = self.project(module_steps["a_proj"], x)
        _state = self.final_state(module_steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        if self.cached_tensors_by_path is not None and x.shape[1] <= fla.LONGEST_RECURRENT_SEQUENCE:
            output = fla.fused_recurrent(aten, v)
        else:
            output = fla.chunk_gated_delta_rule(aten, q, k, v, decay_logits, beta, a_log, dt_bias, self.accelerator)
        if self.cached_tensors_by_path is None:
            del decay_logits
        output_gate = self.split_heads(self.project(module_steps["g_proj"], x), op.value_dim)
        has_bias = module_steps["norm"].options["spec"].has_bias
        weight = self.weight("norm.weight", (op.value_dim,))
        bias = self.weight("norm.bias", (op.value_dim,)) if has_bias else None
        output = fla.layer_norm_gated(aten, output, output_gate, weight, bias, self.accelerator)
        output = aten.flatten(output, 2)
        return self.project(module_steps["o_proj"], output)

    def delta_net(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a DeltaNet layer as fla does (fla/layers/delta_net.py, `DeltaNet.forward`)."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        self._cache_convolution_inputs(module_steps)
        q, k, v = (self._convolve_by_name(operation_name, module_steps, x) for operation_name in "qkv")
        q, k, v = self.split_heads(q, op.key_dim), self.split_heads(k, op.key_dim), self.split_heads(v, op.value_dim)
        beta = aten.elementwise_function("sigmoid", self.project(module_steps["b_proj"], x))
        if any(operation.verb == "scale" for operation in module_steps.steps):
            beta = aten.scale(beta)
        _state = self.final_state(module_steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        delta_rule = (
            fla.fused_recurrent_delta_rule if x.shape[1] <= fla.LONGEST_RECURRENT_SEQUENCE else fla.chunk_delta_rule
        )
        output = delta_rule(aten, q, k, v, beta)
        weight = self.weight("norm.weight", (op.value_dim,))
        if "g_proj" in module_steps:
            output_gate = self.split_heads(self.project(module_steps["g_proj"], x), op.value_dim)
            output = fla.rms_norm_gated(aten, output, output_gate, weight, self.accelerator)
        else:
            output = fla.rms_norm(aten, output, weight, self.accelerator)
        output = aten.flatten(output, 2)
        return self.project(module_steps["o_proj"], output)

    def refuse_dynamic_filters(self, module_steps: ModuleSteps) -> None:
        """Raises `UnsupportedKernel` for values with per-token convolution filters (JetBlock) in a cached pass."""
        if "conv1d" not in module_steps:
            raise self.unsupported(
                "the memory of a convolution with filters of each token (jet_block) is modelled in training alone; "
                "params, flops and kv count this model",
                "convolution",
            )

    def gated_delta_of_transformers(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a gated DeltaNet layer as transformers does (modeling_olmo_hybrid.py, `OlmoHybridGatedDeltaNet`).

        The classes of Qwen3-Next and Qwen3.5 differ in which projections are one product. Convolution and delta rule
        are kernels of causal-conv1d and fla; the gates and the norm are torch's.
        """
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        q, k, v = self._convolved_heads(module_steps, x)
        output, _log_decay = self._delta_rule_with_gates(module_steps, x, q, k, v)
        gate = self.split_heads(self.project(module_steps["g_proj"], x), op.value_dim)
        return self.project(
            module_steps["o_proj"], aten.flatten(self._gated_norm(module_steps["norm"], output, gate), 2)
        )

    def kimi_delta_of_transformers(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs Kimi delta attention as transformers does (modeling_kimi_linear.py, `KimiLinearDeltaAttention`)."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        q, k, v = self._convolved_heads(module_steps, x)
        log_decay = self._channel_decays(module_steps, x)
        beta = self.apply_activation(self.project(module_steps["b_proj"], x), "sigmoid")
        _state = self.final_state(module_steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        output = fla.chunk_kda(aten, q, k, v, log_decay, beta)
        gate = self.split_heads(self._gate_projection("g", module_steps, x), op.value_dim)
        output = aten.flatten(self._gated_float32_norm(module_steps["norm"], output, gate), 2)
        return self.project(module_steps["o_proj"], output)

    def _channel_decays(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Computes the log decay of each channel in one product (`KimiLinearForgetGate.forward`)."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        log_decay = aten.to(self._gate_projection("f", module_steps, x), FLOAT32)
        log_decay = self.split_heads(aten.add(log_decay, self.weight("dt_bias", (op.heads * op.key_dim,))), op.key_dim)
        decay_rate = aten.unsqueeze(aten.exp(aten.to(self.weight("A_log", (op.heads,)), FLOAT32)), -1)
        if "softplus" not in module_steps.activation_names:
            log_decay = aten.scale(aten.elementwise_function("sigmoid", aten.mul(decay_rate, log_decay)))
        elif "f_proj" in module_steps:
            log_decay = aten.mul(aten.scale(decay_rate, "neg"), aten.elementwise_function("softplus", log_decay))
        else:
            exceeds_threshold = aten.compare(log_decay)
            log_decay = aten.where(
                exceeds_threshold, log_decay, aten.elementwise_function("log", aten.add_number(aten.exp(log_decay)))
            )
            log_decay = aten.mul(aten.scale(decay_rate, "neg"), log_decay)
        return aten.to(log_decay, x.dtype) if "f_proj" in module_steps else log_decay

    def _gated_float32_norm(self, norm_step: Step, x: Tensor, gate: Tensor) -> Tensor:
        """Runs a norm in float32, multiplied by the sigmoid of a gate (`KimiLinearRMSNormGated.forward`)."""
        aten, spec = self.aten, norm_step.options["spec"].model_copy(update={"float32_product": True})
        normed_x = self._normalize(x, spec, 1)
        _variance = aten.new_tensor((*x.shape[:-1], 1), FLOAT32)
        normed_x = aten.mul(aten.to(self.weight(f"{norm_step.name}.weight", x.shape[-1:]), FLOAT32), normed_x)
        normed_x = aten.mul(normed_x, aten.elementwise_function("sigmoid", aten.to(gate, FLOAT32)))
        return aten.to(normed_x, x.dtype)

    def _convolved_heads(self, module_steps: ModuleSteps, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values by head, computed by one convolution of causal-conv1d."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        projections = [self.project(module_steps[f"{proj_name}_proj"], x) for proj_name in "qkv"]
        projection_widths = [projection.shape[-1] for projection in projections]
        qkv = aten.transpose(aten.cat(projections), 1, 2)
        del projections
        qkv = aten.transpose(self.convolve_after_cached_inputs(module_steps, qkv, "silu"), 1, 2)
        q, k, v = aten.split(qkv, projection_widths)
        return self.split_heads(q, op.key_dim), self.split_heads(k, op.key_dim), self.split_heads(v, op.value_dim)

    def _gated_norm(self, norm_step: Step, x: Tensor, gate: Tensor) -> Tensor:
        """Runs a norm whose output is multiplied by SiLU of a gate in float32 (`OlmoHybridRMSNormGated.forward`).

        The class names the variance until it returns.
        """
        aten = self.aten
        normed_x = self._normalize_with(norm_step, x)
        _variance = aten.new_tensor((*x.shape[:-1], 1), FLOAT32)
        normed_x = aten.mul(normed_x, self.apply_activation(aten.to(gate, FLOAT32), "silu"))
        return aten.to(normed_x, x.dtype)

    def jet_block(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a JetBlock layer in training (`JetBlock.forward`).

        Source: NVlabs/Jet-Nemotron at 94cbd12, jetai/modeling/hf/jet_block.py.
        """
        if self.cached_tensors_by_path is not None:
            self.refuse_dynamic_filters(module_steps)
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        q, k = (self.apply_activation(self.project(module_steps[f"{proj_name}_proj"], x), "silu") for proj_name in "qk")
        v = self.project(module_steps["v_proj"], x)
        filters = self.project(module_steps["w2"], self.apply_activation(self.project(module_steps["w1"], x), "silu"))
        v = self.apply_activation(jet_nemotron.dynamic_conv(aten, v, filters), "silu")
        q, k, v = self.split_heads(q, op.key_dim), self.split_heads(k, op.key_dim), self.split_heads(v, op.value_dim)
        output, _log_decay = self._delta_rule_with_gates(module_steps, x, q, k, v)
        gate = self.split_heads(self.project(module_steps["g_proj"], x), op.value_dim)
        weight = self.weight("norm.weight", (op.value_dim,))
        output = fla.rms_norm_gated(aten, output, gate, weight, self.accelerator)
        return self.project(module_steps["o_proj"], aten.flatten(output, 2))

    def _delta_rule_with_gates(
        self, module_steps: ModuleSteps, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes β and log decay with torch, and runs the delta rule. Returns its output and the log decay."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        beta = self.apply_activation(self.project(module_steps["b_proj"], x), "sigmoid")
        decay = self.state_decay((op.heads,))
        time_step = aten.to(self.project(module_steps["a_proj"], x), FLOAT32)
        time_step = aten.add(time_step, self.weight("dt_bias", (op.heads,)))
        log_decay = aten.mul(decay, self.apply_activation(time_step, "softplus"))
        _state = self.final_state(module_steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        return fla.chunk_gated_delta_rule(aten, q, k, v, log_decay, beta, accelerator=self.accelerator), log_decay

    def _cache_convolution_inputs(self, module_steps: ModuleSteps) -> None:
        """Caches the last inputs of a layer's three convolutions in one tensor."""
        conv_step = module_steps["conv1d"]
        self.state_tensors(module_steps["conv_state"], (conv_step.output_values[0].width, conv_step.options["kernel"]))

    def _convolution_weight(self, proj_name: str, channel_count: Any, kernel_size: Any) -> Tensor:
        """Returns the weight of one of a layer's three convolutions."""
        return self.aten.reshape(
            self.weight(f"{proj_name}_conv1d.weight", (channel_count, 1, kernel_size)), (channel_count, kernel_size)
        )

    def kimi_delta(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a Kimi delta attention layer as fla does (fla/layers/kda.py:186, `KimiDeltaAttention.forward`)."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        self._cache_convolution_inputs(module_steps)
        q, k, v = (self._convolve_by_name(operation_name, module_steps, x) for operation_name in "qkv")
        decay_logits = self._gate_projection("f", module_steps, x)
        beta = self.project(module_steps["b_proj"], x)
        q, k, v, decay_logits = (self.split_heads(tensor, op.key_dim) for tensor in (q, k, v, decay_logits))
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads * op.key_dim,))
        _state = self.final_state(module_steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        runs_recurrently = self.cached_tensors_by_path is not None and x.shape[1] <= fla.LONGEST_RECURRENT_SEQUENCE
        output = (
            fla.fused_recurrent(aten, v)
            if runs_recurrently
            else fla.chunk_kda(aten, q, k, v, decay_logits, beta, a_log, dt_bias)
        )
        weight = self.weight("norm.weight", (op.value_dim,))
        output = fla.rms_norm_gated(
            aten,
            output,
            self.split_heads(self._gate_projection("g", module_steps, x), op.value_dim),
            weight,
            self.accelerator,
        )
        output = aten.flatten(output, 2)
        return self.project(module_steps["o_proj"], output)

    def _convolve_by_name(self, proj_name: str, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        projected_x = self.project(module_steps[f"{proj_name}_proj"], x)
        return fla.causal_conv1d(
            self.aten,
            projected_x,
            self._convolution_weight(proj_name, projected_x.shape[-1], module_steps["conv1d"].options["kernel"]),
        )

    def _gate_projection(self, proj_name: str, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Computes the logits of a gate by one linear layer, or by two layers with a low rank between them."""
        if f"{proj_name}_proj" in module_steps:
            return self.project(module_steps[f"{proj_name}_proj"], x)
        return self.project(module_steps[f"{proj_name}_b_proj"], self.project(module_steps[f"{proj_name}_a_proj"], x))
