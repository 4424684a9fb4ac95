"""Mamba (Gu & Dao 2023, arXiv:2312.00752) and Mamba-2 (Dao & Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from typing import Any

from .....algebra import exact_div
from .....components.base import PUBLISHED_KERNELS_WITNESS
from .....components.norm import Norm
from .....evidence import compared
from .....flow.program import Step
from .....ops import ChunkedScan, SelectiveScan
from ....published import mamba_ssm
from ....tensor import FLOAT32, Tensor
from .module_steps import ModuleSteps
from .modules import ScanModuleKernels

NORM_NAMES = "dt_norm", "b_norm", "c_norm"
"""Names of the norms on Δ, B and C."""


class MambaKernels(ScanModuleKernels):
    """Kernels of Mamba and Mamba-2."""

    @compared(PUBLISHED_KERNELS_WITNESS)
    def module_SelectiveScan(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        if module_steps["x_proj"].verb == "experts":
            return self.mamba_with_heads(module_steps, x)
        has_fused_kernel = (
            2 <= module_steps["conv1d"].options["kernel"] <= 4 and module_steps.activation_names[0] == "silu"
        )
        if has_fused_kernel and "dt_norm" not in module_steps:
            return self.mamba(module_steps, x)
        return self.mamba_step_by_step(module_steps, x)

    def mamba(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a Mamba layer as mamba_ssm does (mamba_ssm/modules/mamba_simple.py:119, `Mamba.forward`)."""
        aten = self.aten
        op = module_steps.op("scan", SelectiveScan)
        conv_step = module_steps["conv1d"]
        out_proj_step = module_steps["out_proj"]
        batch_size = x.shape[0]
        hidden_columns = aten.flatten(aten.transpose(aten.transpose(x, 1, 2), 0, 1), 1, 2)
        xz = mamba_ssm.split_tokens(
            aten, aten.mm(self.unadapted_weight(module_steps["in_proj"]), hidden_columns), batch_size
        )
        del hidden_columns
        bias = self.bias(module_steps["in_proj"])
        if bias is not None:
            xz = aten.add(xz, aten.unsqueeze(bias, 1))
        a = self.state_decay((op.inner, op.state))
        d, dt_bias = self.weight("D", (op.inner,)), self.bias(module_steps["dt_proj"])
        assert dt_bias is not None
        if self.bias(out_proj_step) is None and self.cached_tensors_by_path is None:
            return mamba_ssm.mamba_inner_fn(
                aten,
                xz,
                self.convolution_filters(conv_step),
                self.bias(conv_step),
                self.unadapted_weight(module_steps["x_proj"]),
                self.unadapted_weight(module_steps["dt_proj"]),
                self.unadapted_weight(out_proj_step),
                a,
                aten.to(d, FLOAT32),
                aten.to(dt_bias, FLOAT32),
            )
        scan_input, gate = mamba_ssm.split_halves(aten, xz)
        self.cache_last_inputs(module_steps["conv_state"], scan_input)
        scan_input = self.causal_conv(conv_step, scan_input)
        x_dbl = self.project(module_steps["x_proj"], mamba_ssm.tokens_first(aten, scan_input))
        dt, b, c = aten.split(x_dbl, [module_steps["x_proj"].output_values[0].width - 2 * op.state, op.state, op.state])
        dt = aten.mm(self.unadapted_weight(module_steps["dt_proj"]), aten.transpose(dt, 0, 1))
        dt = mamba_ssm.split_tokens(aten, dt, batch_size)
        b, c = self._copy_reordered(b, batch_size), self._copy_reordered(c, batch_size)
        d, dt_bias = aten.to(d, FLOAT32), aten.to(dt_bias, FLOAT32)
        scan_output, _last_state = mamba_ssm.selective_scan_with_states(aten, scan_input, dt, a, b, c, d, gate, dt_bias)
        del d, dt_bias
        if self.cached_tensors_by_path is None:
            del _last_state
        self.state_tensors(module_steps["ssm_state"], (op.inner, op.state))
        scan_output = aten.transpose(scan_output, 1, 2)
        return self.project(out_proj_step, scan_output)

    def _copy_reordered(self, x: Tensor, batch_size: Any) -> Tensor:
        """Reorders and copies a tensor: rearrange(x, "(b l) dstate -> b dstate l").contiguous()."""
        return self.aten.contiguous(
            self.aten.transpose(self.aten.unflatten(x, 0, (batch_size, exact_div(x.shape[0], batch_size))), 1, 2)
        )

    def mamba_step_by_step(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a Mamba layer with norms on Δ, B and C as Jamba does (`JambaMambaMixer.forward`, modeling_jamba.py).

        An activation that the kernels do not have runs after them.
        """
        aten, op, activation_name = self.aten, module_steps.op("scan", SelectiveScan), module_steps.activation_names[0]
        projected_input = aten.transpose(self.project(module_steps["in_proj"], x), 1, 2)
        a = self.state_decay((op.inner, op.state))
        scan_input, gate = mamba_ssm.split_halves(aten, projected_input)
        scan_input = aten.transpose(self.convolve_after_cached_inputs(module_steps, scan_input, activation_name), 1, 2)
        dt_rank = module_steps["x_proj"].output_values[0].width - 2 * op.state
        dt, b, c = aten.split(self.project(module_steps["x_proj"], scan_input), [dt_rank, op.state, op.state])
        if "dt_norm" in module_steps:
            dt, b, c = (
                self._normalize_with(module_steps[norm_name], tensor)
                for norm_name, tensor in zip(NORM_NAMES, (dt, b, c), strict=True)
            )
        dt_bias = self.bias(module_steps["dt_proj"])
        assert dt_bias is not None
        # `_is_quantized`: the layer, less its bias
        if self.adapters is not None and self.adapters.base_storage != "none":
            dt = aten.add(self.project(module_steps["dt_proj"], dt), dt_bias)
        else:
            dt = aten.linear(dt, self.unadapted_weight(module_steps["dt_proj"]))
        dt = aten.contiguous(aten.transpose(dt, 1, 2))
        dt_bias = aten.to(dt_bias, FLOAT32)
        d = aten.to(self.weight("D", (op.inner,)), FLOAT32)
        scan_input, b, c = aten.transpose(scan_input, 1, 2), aten.transpose(b, 1, 2), aten.transpose(c, 1, 2)
        scan_output, _last_state = mamba_ssm.selective_scan_with_states(
            aten, scan_input, dt, a, b, c, d, gate if activation_name == "silu" else None, dt_bias
        )
        if self.cached_tensors_by_path is None:
            del _last_state
        self.state_tensors(module_steps["ssm_state"], (op.inner, op.state))
        if activation_name != "silu":
            scan_output = aten.mul(scan_output, self.apply_activation(gate, activation_name))
        return self.project(module_steps["out_proj"], aten.transpose(scan_output, 1, 2))

    def mamba_with_heads(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a Mamba layer with one scan per head as Zamba does (`ZambaMambaMixer.forward`, modeling_zamba.py)."""
        aten, op, activation_name = self.aten, module_steps.op("scan", SelectiveScan), module_steps.activation_names[0]
        heads = module_steps["x_proj"].options["experts"].size
        (batch_size, token_count), head_width = x.shape[:2], exact_div(op.inner, heads)
        dt_rank = module_steps["x_proj"].output_values[0].width - 2 * op.state
        projected_input = aten.transpose(self.project(module_steps["in_proj"], x), 1, 2)
        scan_input, gate = aten.split(aten.unflatten(projected_input, 1, (op.inner, 2)), [1, 1], 2)
        scan_input = aten.contiguous(aten.reshape(scan_input, (batch_size, op.inner, token_count)))
        gate = aten.transpose(aten.reshape(gate, (batch_size, heads, head_width, token_count)), 0, 1)
        scan_input = self.convolve_after_cached_inputs(module_steps, scan_input, activation_name)
        scan_input = aten.transpose(aten.reshape(scan_input, (batch_size, heads, head_width, token_count)), 0, 1)
        x_proj = self.weight("x_proj.weight", (heads, dt_rank + 2 * op.state, head_width))
        dt_b_c = aten.transpose(aten.matmul(aten.unsqueeze(x_proj, 1), scan_input), 2, 3)
        dt, b, c = aten.split(dt_b_c, [dt_rank, op.state, op.state])
        dt_proj = self.weight("dt_proj.weight", (heads, head_width, dt_rank))
        dt = aten.matmul(aten.unsqueeze(dt_proj, 1), aten.transpose(dt, 2, 3))
        dt_bias = aten.to(self.weight("dt_proj.bias", (heads, head_width)), FLOAT32)
        a, d = self.state_decay((heads, head_width, op.state)), self.weight("D", (heads, head_width))
        outputs, _states = [], []
        for _ in range(heads):
            scan_output, last_state = mamba_ssm.selective_scan_with_states(
                aten,
                aten.select(scan_input, 0),
                aten.select(dt, 0),
                aten.select(a, 0),
                aten.transpose(aten.select(b, 0), 1, 2),
                aten.transpose(aten.select(c, 0), 1, 2),
                aten.to(aten.select(d, 0), FLOAT32),
                aten.select(gate, 0) if activation_name == "silu" else None,
                aten.select(dt_bias, 0),
            )
            outputs.append(
                scan_output
                if activation_name == "silu"
                else aten.mul(scan_output, self.apply_activation(aten.select(gate, 0), activation_name))
            )
            if self.cached_tensors_by_path is not None:
                _states.append(last_state)
            del last_state
        scan_output = aten.cat(outputs, 1)
        self.state_tensors(module_steps["ssm_state"], (op.inner, op.state))
        return self.project(module_steps["out_proj"], aten.transpose(scan_output, 1, 2))

    # --- Mamba-2 ------------------------------------------------------------------------------------------------------

    @compared(PUBLISHED_KERNELS_WITNESS)
    def module_ChunkedScan(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        spec: Norm | None = module_steps["norm"].options["spec"] if "norm" in module_steps else None
        has_fused_norm = spec is None or (spec.type == "rmsnorm" and spec.weight and not spec.has_bias)
        has_fused_kernel = (
            2 <= module_steps["conv1d"].options["kernel"] <= 4 and module_steps.activation_names[0] == "silu"
        )
        return (self.mamba2 if has_fused_norm and has_fused_kernel else self.mamba2_step_by_step)(module_steps, x)

    @compared(PUBLISHED_KERNELS_WITNESS, mamba2="steps")
    def mamba2(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a Mamba-2 layer as mamba_ssm does (mamba_ssm/modules/mamba2.py:154, `Mamba2.forward`)."""
        aten = self.aten
        op = module_steps.op("scan", ChunkedScan)
        conv_step = module_steps["conv1d"]
        out_proj_step = module_steps["out_proj"]
        inner_width, heads = op.heads * op.head_dim, (op.heads,)
        all_group_width = exact_div(conv_step.output_values[0].width - inner_width, 2)
        group_count = exact_div(all_group_width, op.state)
        zxbcdt = self.project(module_steps["in_proj"], x)
        a, d, dt_bias = self.state_decay(heads), self.weight("D", heads), self.weight("dt_bias", heads)
        norm_weight = self.weight("norm.weight", (inner_width,)) if "norm" in module_steps else None
        if self.choices.mamba2 == "combined" and self.cached_tensors_by_path is None:
            return mamba_ssm.mamba_split_conv1d_scan_combined(
                aten,
                zxbcdt,
                self.convolution_filters(conv_step),
                self.bias(conv_step),
                dt_bias,
                a,
                d,
                op.chunk,
                op.head_dim,
                group_count,
                norm_weight,
                self._weight_read_by_kernel(out_proj_step),
                self.bias(out_proj_step),
                self.accelerator,
            )
        gate, xbc, dt = aten.split(zxbcdt, [inner_width, inner_width + 2 * all_group_width, op.heads])
        self.cache_last_inputs(module_steps["conv_state"], aten.transpose(xbc, 1, 2))
        xbc = aten.transpose(self.causal_conv(conv_step, aten.transpose(xbc, 1, 2)), 1, 2)
        x, b, c = aten.split(xbc, [inner_width, all_group_width, all_group_width])
        scan_output, _last_state = mamba_ssm.mamba_chunk_scan_with_state(
            aten,
            self.split_heads(x, op.head_dim),
            dt,
            a,
            self.split_heads(b, op.state),
            self.split_heads(c, op.state),
            op.chunk,
            d,
            self.split_heads(gate, op.head_dim) if norm_weight is None else None,
            dt_bias,
            self.accelerator,
        )
        if self.cached_tensors_by_path is None:
            del _last_state
        self.state_tensors(module_steps["ssm_state"], (op.heads, op.head_dim, op.state))
        scan_output = aten.flatten(scan_output, 2)
        if norm_weight is not None:
            scan_output = mamba_ssm.rmsnorm_fn(aten, scan_output, norm_weight, gate, group_count, self.accelerator)
        return self.project(out_proj_step, scan_output)

    def _weight_read_by_kernel(self, operation: Step) -> Tensor:
        """Returns the weight that the kernel reads without calling its linear layer, whose adapter is thus unused.

        Source: peft/tuners/tuners_utils.py, `BaseTunerLayer.weight`, which is the frozen layer's.
        """
        adapters = self.adapters
        is_bypassed = adapters is not None and adapters.library == "peft" and not adapters.has_dora_magnitudes
        if adapters is None or not is_bypassed or operation.name not in adapters.targets:
            return self.unadapted_weight(operation)
        weight = self.linear_weight(operation)
        shapes = {"lora_A": (adapters.rank, weight.shape[-1]), "lora_B": (weight.shape[0], adapters.rank)}
        for matrix_name, shape in shapes.items():
            self.adapter_matrix(f"{operation.name}.{matrix_name}.weight", shape)
        return weight

    def mamba2_step_by_step(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a Mamba-2 layer like the reference, but with the convolution and the scan of the libraries."""
        aten = self.aten
        op = module_steps.op("scan", ChunkedScan)
        conv_step = module_steps["conv1d"]
        activation_name = module_steps.activation_names[0]
        inner_width, heads = op.heads * op.head_dim, (op.heads,)
        all_group_width = exact_div(conv_step.output_values[0].width - inner_width, 2)
        gate, xbc, dt = aten.split(
            self.project(module_steps["in_proj"], x), [inner_width, inner_width + 2 * all_group_width, op.heads]
        )
        self.cache_last_inputs(module_steps["conv_state"], aten.transpose(xbc, 1, 2))
        xbc = aten.transpose(self.causal_conv(conv_step, aten.transpose(xbc, 1, 2), activation_name), 1, 2)
        x, b, c = aten.split(xbc, [inner_width, all_group_width, all_group_width])
        x, b, c = self.split_heads(x, op.head_dim), self.split_heads(b, op.state), self.split_heads(c, op.state)
        a, d, dt_bias = self.state_decay(heads), self.weight("D", heads), self.weight("dt_bias", heads)
        scan_output, _last_state = mamba_ssm.mamba_chunk_scan_with_state(
            aten, x, dt, a, b, c, op.chunk, d, None, dt_bias, self.accelerator
        )
        if self.cached_tensors_by_path is None:
            del _last_state
        self.state_tensors(module_steps["ssm_state"], (op.heads, op.head_dim, op.state))
        scan_output = aten.flatten(scan_output, 2)
        activated_gate = self.apply_activation(gate, activation_name)
        for operation in module_steps.steps:
            if operation.verb == "mul":
                scan_output = aten.mul(scan_output, activated_gate)
            if operation.verb == "norm":
                scan_output = self.norm(
                    scan_output,
                    operation.options["spec"],
                    operation.name,
                    (inner_width,),
                    exact_div(all_group_width, op.state),
                )
        return self.project(module_steps["out_proj"], scan_output)
