"""Decodes one token by a recurrence from a cached state, operation by operation as in the references.

A method `decode_<Op>` runs a whole module. Its local variables stand for those of the reference's forward pass; one
whose name begins with an underscore is only held.
"""

from __future__ import annotations

from typing import Any

from ....algebra import are_equal, exact_div
from ....evidence import kernels_compared, torch_witness
from ....flow.program import Step
from ....ops import BlockLinear, ChunkedScan, DeltaRule, LinearAttentionCore, MatrixMemory, SelectiveScan
from ...tensor import FLOAT32, Tensor
from .scans import ScanKernels
from .scans.mamba import NORM_NAMES
from .scans.module_steps import ModuleSteps

QKV = ("q_proj", "k_proj", "v_proj")
"""Names of the delta rule's projections whose outputs one convolution reads."""

DECODING_WITNESS = torch_witness("tests/simulator/test_inference.py")
"""Witness of decoding steps."""


@kernels_compared(DECODING_WITNESS)
class DecodeStepKernels(ScanKernels):
    """Kernels for decoding one token of a recurrence."""

    def cached_state(self, state_name: str) -> Tensor:
        """Returns the tensor of a cached recurrent state with a single tensor."""
        cached_states = self.cached_tensors(state_name)
        assert cached_states is not None
        return cached_states[0]

    def normalize_output(self, module_steps: ModuleSteps, x: Tensor, output_width: Any) -> Tensor:
        """Runs a norm on a module's output, group by group if the norm has groups."""
        norm_step = module_steps["norm"]
        group_count = norm_step.options.get("groups")
        return self.norm(
            x,
            norm_step.options["spec"],
            norm_step.name,
            (output_width,),
            1 if group_count is None else group_count.size,
        )

    # --- Mamba --------------------------------------------------------------------------------------------------------

    def decode_SelectiveScan(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of Mamba, as MambaReference.forward does."""
        aten, op, activation_name = self.aten, module_steps.op("scan", SelectiveScan), module_steps.activation_names[0]
        has_heads = module_steps["x_proj"].verb == "experts"
        heads = module_steps["x_proj"].options["experts"].size if has_heads else 1
        inner_states, gate = aten.split(self.project(module_steps["in_proj"], x), [op.inner, op.inner])
        inner_states = self.convolve_after_state(
            module_steps["conv1d"], aten.transpose(inner_states, 1, 2), "conv_state"
        )
        inner_states = aten.transpose(self.apply_activation(inner_states, activation_name), 1, 2)
        projected_width = module_steps["x_proj"].output_values[0].width
        dt_rank = projected_width - 2 * op.state
        if has_heads:
            dt_b_c = self._project_per_head(module_steps["x_proj"], inner_states, heads, projected_width)
        else:
            dt_b_c = self.project(module_steps["x_proj"], inner_states)
        time_step, b, c = aten.split(
            aten.unflatten(dt_b_c, -1, (heads, projected_width)), [dt_rank, op.state, op.state]
        )
        del dt_b_c
        if "dt_norm" in module_steps:
            time_step, b, c = (
                self._normalize_with(module_steps[norm_name], tensor)
                for norm_name, tensor in zip(NORM_NAMES, (time_step, b, c), strict=True)
            )
        time_step = aten.elementwise_function(
            "softplus", self._project_time_step(module_steps["dt_proj"], aten.flatten(time_step, 2), heads, has_heads)
        )
        shape = (heads, exact_div(op.inner, heads), op.state) if has_heads else (op.inner, op.state)
        _cached_state = self.cached_tensors("ssm_state")
        scan_output, last_state = self._decode_scan(
            inner_states, time_step, aten.repeat_interleave(b, exact_div(op.inner, heads), 2), c, shape
        )
        self.store_in_cache("ssm_state", last_state)
        return self.project(
            module_steps["out_proj"], aten.mul(scan_output, self.apply_activation(gate, activation_name))
        )

    def _project_time_step(self, operation: Step, x: Tensor, heads: Any, is_per_head: bool) -> Tensor:
        """Projects to the time step Δ, in total or per head."""
        if is_per_head:
            return self._project_per_head(operation, x, heads, operation.output_values[0].width)
        return self.project(operation, x)

    def _project_per_head(self, operation: Step, x: Tensor, heads: Any, output_width: Any) -> Tensor:
        """Applies one linear layer per head, as HeadwiseLinear.forward does."""
        aten, head_width = self.aten, exact_div(x.shape[-1], heads)
        weight = self.weight(f"{operation.name}.weight", (heads, output_width, head_width))
        projected_heads = aten.matmul(
            aten.transpose(aten.unflatten(x, -1, (heads, head_width)), 1, 2), aten.transpose(weight, -1, -2)
        )
        if operation.options["bias"]:
            projected_heads = aten.add(
                projected_heads, aten.unsqueeze(self.weight(f"{operation.name}.bias", (heads, output_width)), 1)
            )
        return aten.flatten(aten.transpose(projected_heads, 1, 2), 2)

    def _decode_scan(self, x: Tensor, time_step: Tensor, b: Tensor, c: Tensor, shape: Any) -> tuple[Tensor, Tensor]:
        """Runs Mamba's scan for one token, as Scan.forward does."""
        aten, previous_state = self.aten, self.cached_state("ssm_state")
        decay = aten.exp(
            aten.mul(
                aten.unsqueeze(aten.to(time_step, FLOAT32), -1),
                aten.reshape(self.state_decay(shape), previous_state.shape[1:]),
            )
        )
        next_state = aten.mul(aten.unsqueeze(aten.to(aten.mul(time_step, x), FLOAT32), -1), aten.to(b, FLOAT32))
        first_state = aten.add(
            aten.slice(next_state, 1, 1), aten.mul(aten.slice(decay, 1, 1), aten.unsqueeze(previous_state, 1))
        )
        next_state = aten.cat([first_state, aten.slice(next_state, 0, 1)], 1)
        state_copy = aten.to(next_state, x.dtype)
        state_output = aten.matmul(
            aten.unflatten(state_copy, 2, (c.shape[2], exact_div(state_copy.shape[2], c.shape[2]))),
            aten.unsqueeze(c, -1),
        )
        del state_copy
        state_output = aten.flatten(state_output, 2)
        skip_output = aten.mul(aten.reshape(self.weight("D", shape[:-1]), (previous_state.shape[1],)), x)
        return aten.add(state_output, skip_output), aten.select(next_state, 1)

    # --- Mamba-2 ------------------------------------------------------------------------------------------------------

    def decode_ChunkedScan(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of Mamba-2, as Mamba2Reference.forward does."""
        aten, op, activation_name = self.aten, module_steps.op("scan", ChunkedScan), module_steps.activation_names[0]
        inner_width = op.heads * op.head_dim
        group_width = exact_div(module_steps["conv1d"].output_values[0].width - inner_width, 2)
        group_count = exact_div(group_width, op.state)
        gate, conv_input, time_step = aten.split(
            self.project(module_steps["in_proj"], x), [inner_width, inner_width + 2 * group_width, op.heads]
        )
        conv_input = self.convolve_after_state(module_steps["conv1d"], aten.transpose(conv_input, 1, 2), "conv_state")
        conv_input = aten.transpose(self.apply_activation(conv_input, activation_name), 1, 2)
        x, b, c = aten.split(conv_input, [inner_width, group_width, group_width])
        b, c = (
            aten.repeat_interleave(self.split_heads(tensor, op.state), exact_div(op.heads, group_count), 2)
            for tensor in (b, c)
        )
        _cached_state = self.cached_tensors("ssm_state")
        scan_output, last_state = self._decode_chunked_scan(self.split_heads(x, op.head_dim), time_step, b, c)
        self.store_in_cache("ssm_state", last_state)
        return self.project(
            module_steps["out_proj"],
            self._gate_output(module_steps, aten.flatten(scan_output, 2), gate, activation_name, inner_width),
        )

    def _decode_chunked_scan(self, x: Tensor, time_step: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Runs Mamba-2's scan with time step and skip connection for one token, as ChunkedScan.forward does."""
        aten, heads = self.aten, x.shape[2:3]
        time_step = aten.to(
            aten.elementwise_function("softplus", aten.add(time_step, self.weight("dt_bias", heads))), FLOAT32
        )
        log_decay = aten.mul(time_step, self.state_decay(heads))
        scaled_input = aten.mul(aten.to(x, FLOAT32), aten.unsqueeze(time_step, -1))
        state_output, last_state = self._chunked_scan_step(
            scaled_input, log_decay, aten.to(b, FLOAT32), aten.to(c, FLOAT32)
        )
        scan_output = aten.to(state_output, x.dtype)
        return aten.add(scan_output, aten.mul(aten.unsqueeze(self.weight("D", heads), 1), x)), last_state

    def _chunked_scan_step(self, x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Updates Mamba-2's state by one token, and returns the output and the state (ChunkedScan._decode_step)."""
        aten, previous_state = self.aten, self.cached_state("ssm_state")
        decayed_state = aten.mul(
            previous_state, aten.unsqueeze(aten.unsqueeze(aten.select(aten.exp(log_decay), 1), -1), -1)
        )
        next_state = aten.add(
            decayed_state, aten.mul(aten.unsqueeze(aten.select(x, 1), -1), aten.unsqueeze(aten.select(b, 1), -2))
        )
        del decayed_state
        return aten.unsqueeze(
            aten.select(aten.matmul(next_state, aten.unsqueeze(aten.select(c, 1), -1)), -1), 1
        ), next_state

    def _gate_output(
        self, module_steps: ModuleSteps, scan_output: Tensor, gate: Tensor, activation_name: str, inner_width: Any
    ) -> Tensor:
        """Multiplies Mamba-2's output by its activated gate, as Mamba2Reference._gated_output does."""
        activated_gate = self.apply_activation(gate, activation_name)
        for operation in module_steps.steps:
            if operation.verb == "mul":
                scan_output = self.aten.mul(scan_output, activated_gate)
            if operation.verb == "norm":
                scan_output = self.normalize_output(module_steps, scan_output, inner_width)
        return scan_output

    # --- the delta rules ----------------------------------------------------------------------------------------------

    def decode_DeltaRule(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        assert isinstance(module_steps["core"].op, DeltaRule)
        self.refuse_dynamic_filters(module_steps)
        if "A_log" not in module_steps:
            return self._decode_delta_net(module_steps, x)
        return (self._decode_kimi_delta if module_steps["core"].op.decays_by_channel else self._decode_gated_delta)(
            module_steps, x
        )

    def _decode_gated_delta(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of Gated DeltaNet, as GatedDeltaNetReference.forward does."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        _qkv, convolved_qkv = self._joined_and_convolved_qkv(module_steps, x)
        convolved_qkv = aten.transpose(convolved_qkv, 1, 2)
        projection_widths = [module_steps[operation_name].output_values[0].width for operation_name in QKV]
        q, k, v = aten.split(convolved_qkv, projection_widths)
        heads_per_group = exact_div(op.heads * op.key_dim, projection_widths[0])
        q, k = (self._split_and_repeat_heads(tensor, op.key_dim, heads_per_group) for tensor in (q, k))
        decay_rate = aten.scale(aten.exp(aten.to(self.weight("A_log", (op.heads,)), FLOAT32)), "neg")
        raw_decay = aten.to(self.project(module_steps["a_proj"], x), FLOAT32)
        raw_decay = aten.add(raw_decay, aten.to(self.weight("dt_bias", (op.heads,)), FLOAT32))
        raw_decay = aten.elementwise_function("softplus", raw_decay)
        decay = aten.mul(decay_rate, raw_decay)
        del decay_rate, raw_decay
        beta = aten.scale(aten.elementwise_function("sigmoid", self.project(module_steps["b_proj"], x)))
        v = aten.transpose(self.split_heads(v, op.value_dim), 1, 2)
        decay, beta = aten.unsqueeze(aten.transpose(decay, 1, 2), -1), aten.transpose(beta, 1, 2)
        output = self._delta_rule(q, k, v, decay, beta)
        gate = aten.elementwise_function(
            "silu", self.split_heads(self.project(module_steps["g_proj"], x), op.value_dim)
        )
        normed_output = aten.mul(
            self._normalize_with(module_steps["norm"], aten.to(aten.transpose(output, 1, 2), x.dtype)), gate
        )
        return self.project(module_steps["o_proj"], aten.flatten(normed_output, 2))

    def _decode_delta_net(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of DeltaNet, as DeltaNetReference.forward does."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        _qkv, convolved_qkv = self._joined_and_convolved_qkv(module_steps, x)
        convolved_qkv = aten.transpose(convolved_qkv, 1, 2)
        q, k, v = aten.split(
            convolved_qkv, [module_steps[operation_name].output_values[0].width for operation_name in QKV]
        )
        beta = aten.transpose(aten.elementwise_function("sigmoid", self.project(module_steps["b_proj"], x)), 1, 2)
        beta = aten.scale(beta) if any(operation.verb == "scale" for operation in module_steps.steps) else beta
        q, k = (aten.transpose(self.split_heads(tensor, op.key_dim), 1, 2) for tensor in (q, k))
        v = aten.transpose(self.split_heads(v, op.value_dim), 1, 2)
        output = self._delta_rule(q, k, v, None, beta)
        normed_output = self._normalize_with(module_steps["norm"], aten.to(aten.transpose(output, 1, 2), x.dtype))
        normed_output = aten.flatten(normed_output, 2)
        if "g_proj" in module_steps:
            normed_output = aten.mul(
                normed_output, aten.elementwise_function("silu", self.project(module_steps["g_proj"], x))
            )
        return self.project(module_steps["o_proj"], normed_output)

    def _joined_and_convolved_qkv(self, module_steps: ModuleSteps, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns concatenated queries, keys and values [batch, channels, tokens] and their convolution."""
        qkv = self.aten.transpose(self.aten.cat([self.project(module_steps[proj_name], x) for proj_name in QKV]), 1, 2)
        return qkv, self.aten.elementwise_function(
            "silu", self.convolve_after_state(module_steps["conv1d"], qkv, "conv_state")
        )

    def _split_and_repeat_heads(self, x: Tensor, head_size: Any, heads_per_group: Any) -> Tensor:
        return self.aten.repeat_interleave(
            self.aten.transpose(self.split_heads(x, head_size), 1, 2), heads_per_group, 1
        )

    def _decode_kimi_delta(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of Kimi Delta Attention, as KimiDeltaAttentionReference.forward does."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        _qkv, convolved_qkv = self._joined_and_convolved_qkv(module_steps, x)
        channel_count = op.heads * op.key_dim
        q, k, v = aten.split(aten.transpose(convolved_qkv, 1, 2), [channel_count, channel_count, channel_count])
        del convolved_qkv
        beta = aten.transpose(aten.elementwise_function("sigmoid", self.project(module_steps["b_proj"], x)), 1, 2)
        q_heads, k_heads, v_heads = (aten.transpose(self.split_heads(tensor, op.key_dim), 1, 2) for tensor in (q, k, v))
        output = self._delta_rule(q_heads, k_heads, v_heads, self._log_decay(module_steps, x), beta)
        normed_output = self._normalize_with(module_steps["norm"], aten.to(aten.transpose(output, 1, 2), x.dtype))
        normed_output = aten.mul(
            aten.flatten(normed_output, 2),
            aten.elementwise_function("sigmoid", self._gate_projection("g", module_steps, x)),
        )
        return self.project(module_steps["o_proj"], normed_output)

    def _log_decay(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Computes the logarithm of each channel's decay, as KimiDeltaAttentionReference._log_decay does."""
        aten, op = self.aten, module_steps.op("core", DeltaRule)
        raw_decay, bias = self._gate_projection("f", module_steps, x), self.weight("dt_bias", (op.heads * op.key_dim,))
        float_gate = aten.to(raw_decay, FLOAT32)
        del raw_decay
        gate_logits = aten.transpose(self.split_heads(aten.add(float_gate, aten.to(bias, FLOAT32)), op.key_dim), 1, 2)
        del float_gate
        negative_a = aten.exp(aten.to(self.weight("A_log", (op.heads,)), FLOAT32))
        negative_a = aten.unsqueeze(aten.unsqueeze(negative_a, -1), -1)
        if "softplus" in module_steps.activation_names:
            return aten.mul(aten.scale(negative_a, "neg"), aten.elementwise_function("softplus", gate_logits))
        return aten.scale(aten.elementwise_function("sigmoid", aten.mul(negative_a, gate_logits)))

    def _delta_rule(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor) -> Tensor:
        """Runs the delta rule for one token, as DeltaRule.forward does."""
        aten = self.aten
        q, k, v, beta = [aten.to(x, FLOAT32) for x in (q, k, v, beta)]
        log_decay = None if log_decay is None else aten.to(log_decay, FLOAT32)
        q_unit = aten.scale(self._scale_to_unit_length(q))
        q, k = q_unit, self._scale_to_unit_length(k)
        del q_unit
        output, next_state = self._delta_rule_step(q, k, v, log_decay, beta, self.cached_state("recurrent_state"))
        self.store_in_cache("recurrent_state", next_state)
        return output

    def _scale_to_unit_length(self, x: Tensor) -> Tensor:
        aten = self.aten
        return aten.mul(x, aten.rsqrt(aten.add_number(aten.sum(aten.square(x), keepdim=True))))

    def _delta_rule_step(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Updates the delta rule's state, as DeltaRule._run_token does."""
        aten = self.aten
        if log_decay is not None:
            state = aten.mul(state, aten.exp(aten.unsqueeze(aten.select(log_decay, 2), -1)))
        predicted_values = aten.sum(aten.mul(state, aten.unsqueeze(aten.select(k, 2), -1)), -2)
        value_correction = aten.mul(aten.sub(aten.select(v, 2), predicted_values), beta)
        state = aten.add(state, aten.mul(aten.unsqueeze(aten.select(k, 2), -1), aten.unsqueeze(value_correction, -2)))
        return aten.unsqueeze(aten.sum(aten.mul(state, aten.unsqueeze(aten.select(q, 2), -1)), -2), 2), state

    # --- lightning attention, mLSTM, RWKV-4 ---------------------------------------------------------------------------

    def decode_LightningAttentionCore(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        return self.decode_tokens(module_steps, x)

    def decode_LinearAttentionCore(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of linear attention with a decay, as LinearAttentionReference.forward does."""
        if "f_proj" in module_steps:
            return self._decode_hgrn2(module_steps, x)
        aten, op = self.aten, module_steps.op("core", LinearAttentionCore)
        rope_operations = [operation for operation in module_steps.steps if operation.verb == "rope"]
        q, k = (
            self._mapped_heads(
                module_steps, f"{projection_letter}_proj", x, op.key_dim, rope_operations[rope_index : rope_index + 1]
            )
            for rope_index, projection_letter in enumerate("qk")
        )
        k = self._repeat_for_query_heads(k, op.heads)
        v = aten.transpose(self.split_heads(self.project(module_steps["v_proj"], x), op.value_dim), 1, 2)
        v = self._repeat_for_query_heads(v, op.heads)
        log_decay = self._linear_attention_decay(module_steps, x)
        output = self._linear_attention_step(q, k, v, log_decay)
        del log_decay
        normed_output = self._normalize_with(module_steps["norm"], aten.to(aten.transpose(output, 1, 2), x.dtype))
        normed_output = aten.flatten(normed_output, 2)
        if "g_proj" in module_steps:
            normed_output = aten.mul(
                normed_output, aten.elementwise_function("silu", self.project(module_steps["g_proj"], x))
            )
        return self.project(module_steps["o_proj"], normed_output)

    def _decode_hgrn2(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of HGRN2, as HGRN2Reference.forward does."""
        aten, op = self.aten, module_steps.op("core", LinearAttentionCore)
        q = aten.elementwise_function("silu", self.project(module_steps["q_proj"], x))
        forget_gate = self._forget_gate(module_steps, self.project(module_steps["f_proj"], x))
        v = self.project(module_steps["i_proj"], x)
        k, log_decay = aten.scale(forget_gate, "rsub"), aten.elementwise_function("log", forget_gate)
        q_heads, k_heads, decay_heads = (
            aten.transpose(self.split_heads(tensor, op.key_dim), 1, 2) for tensor in (q, k, log_decay)
        )
        v_heads = aten.transpose(self.split_heads(v, op.value_dim), 1, 2)
        output = self._linear_attention_step(q_heads, k_heads, v_heads, decay_heads)
        del k, log_decay, k_heads, decay_heads
        normed_output = self._normalize_with(
            module_steps["norm"], aten.to(aten.flatten(aten.transpose(output, 1, 2), 2), x.dtype)
        )
        return self.project(module_steps["o_proj"], normed_output)

    def _forget_gate(self, module_steps: ModuleSteps, forget_logits: Tensor) -> Tensor:
        """Computes the share of the state that each channel retains, as HGRN2Reference._retained does."""
        aten = self.aten
        gate = aten.elementwise_function("sigmoid", aten.to(forget_logits, FLOAT32))
        if "lower_bound" not in module_steps:
            return gate
        lower_bound = aten.to(self.weight("lower_bound", gate.shape[-1:]), FLOAT32)
        if any(operation.verb == "sub" for operation in module_steps.steps):
            lower_bound = aten.sub(lower_bound, lower_bound)
        return aten.add(aten.mul(gate, aten.scale(lower_bound, "rsub")), lower_bound)

    def _mapped_heads(
        self, module_steps: ModuleSteps, projection_name: str, x: Tensor, head_size: Any, rope_operations: list[Step]
    ) -> Tensor:
        """Projects to queries or keys, splits heads and applies the feature map, as LinearAttentionReference does."""
        heads = self.aten.transpose(self.split_heads(self.project(module_steps[projection_name], x), head_size), 1, 2)
        mapped_heads = self.feature_map(module_steps, heads)
        return self.rotate(mapped_heads, rope_operations[0]) if rope_operations else mapped_heads

    def _repeat_for_query_heads(self, x: Tensor, heads: Any) -> Tensor:
        return x if are_equal(x.shape[1], heads) else self.aten.repeat_interleave(x, exact_div(heads, x.shape[1]), 1)

    def _linear_attention_decay(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Computes the log decay, as the references' _log_decay does."""
        aten, op = self.aten, module_steps.op("core", LinearAttentionCore)
        if "gk_b_proj" in module_steps:
            logits = self.project(module_steps["gk_b_proj"], self.project(module_steps["gk_a_proj"], x))
            logits = aten.transpose(self.split_heads(logits, op.key_dim), 1, 2)
            return self._repeat_for_query_heads(aten.scale(self._log_sigmoid(logits), "div"), op.heads)
        head_indices = aten.new_tensor((op.heads,), FLOAT32)
        log_decay = aten.new_like(aten.new_like(aten.new_like(aten.new_like(head_indices))))
        log_decay = aten.unsqueeze(aten.unsqueeze(log_decay, -1), -1)
        return aten.expand(log_decay, (x.shape[0], op.heads, x.shape[1], 1))

    def _linear_attention_step(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
        """Runs linear attention for one token, as LinearAttention.forward does."""
        aten = self.aten
        q, k, v, log_decay = [aten.to(tensor, FLOAT32) for tensor in (q, k, v, log_decay)]
        q = aten.scale(q)
        state = self.cached_state("recurrent_state")
        decayed_state = aten.mul(state, aten.transpose(aten.exp(log_decay), -1, -2))
        next_state = aten.add(decayed_state, aten.matmul(aten.transpose(k, -1, -2), v))
        del decayed_state
        output = aten.matmul(q, next_state)
        self.store_in_cache("recurrent_state", next_state)
        return output

    def decode_MatrixMemory(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of mLSTM, as MLSTMReference.forward does."""
        aten, op = self.aten, module_steps.op("core", MatrixMemory)
        q, k, v = (self._split_float32_heads(module_steps[operation_name], x, op.heads) for operation_name in "qkv")
        cached_states = self.cached_tensors("recurrent_state")
        assert cached_states is not None
        memory_output, new_states = self._decode_memory_token(
            q,
            k,
            v,
            self._float32_gate(module_steps["igate"], x, op.heads),
            self._float32_gate(module_steps["fgate"], x, op.heads),
            [aten.to(tensor, FLOAT32) for tensor in cached_states],
        )
        state_copies = [aten.to(tensor, x.dtype) for tensor in new_states]
        self.store_in_cache("recurrent_state", *state_copies)
        del state_copies
        flat_output = aten.to(aten.flatten(aten.transpose(memory_output, 1, 2), 2), x.dtype)
        normed_output = self.normalize_output(module_steps, flat_output, op.heads * op.value_dim)
        del flat_output
        output = aten.mul(aten.elementwise_function("sigmoid", self.project(module_steps["ogate"], x)), normed_output)
        return self.project(module_steps["out_proj"], output)

    def _split_float32_heads(self, operation: Step, x: Tensor, heads: Any) -> Tensor:
        """Splits a projection's output into heads in float32, as MLSTMReference._split_heads does."""
        aten = self.aten
        projected_x = aten.to(self.project(operation, x), FLOAT32)
        return aten.transpose(aten.unflatten(projected_x, -1, (heads, exact_div(projected_x.shape[-1], heads))), 1, 2)

    def _float32_gate(self, operation: Step, x: Tensor, heads: Any) -> Tensor:
        """Computes a gate in float32, as MLSTMReference._gate does."""
        scaled_gate = self.aten.scale(self.aten.select(self._split_float32_heads(operation, x, heads), -1), "div")
        scaled_gate = self.aten.elementwise_function("tanh", scaled_gate)
        return self.aten.scale(scaled_gate)

    def _decode_memory_token(
        self, q: Tensor, k: Tensor, v: Tensor, input_gate: Tensor, forget_gate: Tensor, matrix_states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs mLSTM's matrix memory for one token, as Core.forward of the reference does."""
        aten = self.aten
        log_forget_gate, q = self._log_sigmoid(forget_gate), aten.scale(q)
        memory_output, next_states = self._matrix_memory_step(q, k, v, input_gate, log_forget_gate, matrix_states)
        return aten.cat([memory_output], 2), next_states

    def _log_sigmoid(self, x: Tensor) -> Tensor:
        """Computes the log-sigmoid, which allocates and frees a temporary buffer."""
        output, _buffer = self.aten.new_like(x), self.aten.new_like(x)
        return output

    def _matrix_memory_step(
        self, q: Tensor, k: Tensor, v: Tensor, input_gate: Tensor, log_forget_gate: Tensor, matrix_states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Updates mLSTM's matrix memory, as Core._run_token does."""
        aten = self.aten
        matrix_memory, normalizer, largest_exponent = matrix_states
        next_exponent = aten.new_like(aten.add(log_forget_gate, largest_exponent), input_gate)
        decay = aten.exp(aten.sub(aten.add(log_forget_gate, largest_exponent), next_exponent))
        input_weight = aten.exp(aten.sub(input_gate, next_exponent))
        decayed_memory = aten.mul(aten.unsqueeze(decay, -1), matrix_memory)
        matrix_memory = aten.add(
            decayed_memory, aten.mul(aten.unsqueeze(input_weight, -1), aten.matmul(aten.transpose(k, -1, -2), v))
        )
        del decayed_memory
        decayed_memory = aten.mul(decay, normalizer)
        normalizer = aten.add(decayed_memory, aten.mul(input_weight, aten.select(k, 2)))
        del decayed_memory
        denominator = aten.select(aten.matmul(q, aten.unsqueeze(normalizer, -1)), -1)
        numerator = aten.matmul(q, matrix_memory)
        denominator_bound = aten.new_like(
            aten.elementwise_function("abs", denominator), aten.exp(aten.scale(next_exponent, "neg"))
        )
        denominator_bound = aten.add_number(denominator_bound)
        return aten.div(numerator, aten.unsqueeze(denominator_bound, -1)), [matrix_memory, normalizer, next_exponent]

    def next_wkv(self, operation: Step) -> None:
        self.store_tensor(
            operation.output_values[0], self._weighted_average(*map(self.tensor_of, operation.input_values))
        )

    def _weighted_average(self, key: Tensor, value: Tensor, time_first: Tensor, decay: Tensor) -> Tensor:
        """Computes RWKV's weighted average, as TimeMixReference._weighted_average does."""
        aten, dtype = self.aten, key.dtype
        key, value = aten.to(key, FLOAT32), aten.to(value, FLOAT32)
        time_first, decay = aten.to(time_first, FLOAT32), aten.scale(aten.exp(aten.to(decay, FLOAT32)), "neg")
        cached_states = self.cached_tensors("recurrent_state")
        assert cached_states is not None
        _zero, (numerator, denominator, largest_exponent) = aten.new_like(aten.select(key, 1)), cached_states
        k, v = aten.select(key, 1), aten.select(value, 1)
        new_exponent = aten.new_like(largest_exponent, aten.add(k, time_first))
        past_weight = aten.exp(aten.sub(largest_exponent, new_exponent))
        current_weight = aten.exp(aten.sub(aten.add(k, time_first), new_exponent))
        outputs = [
            aten.div(
                self._weighted_sum(past_weight, numerator, current_weight, v),
                aten.add(aten.mul(past_weight, denominator), current_weight),
            )
        ]
        new_exponent = aten.new_like(aten.add(largest_exponent, decay), k)
        next_past_weight = aten.exp(aten.sub(aten.add(largest_exponent, decay), new_exponent))
        next_current_weight = aten.exp(aten.sub(k, new_exponent))
        past_weight, current_weight = next_past_weight, next_current_weight
        del next_past_weight, next_current_weight
        numerator = self._weighted_sum(past_weight, numerator, current_weight, v)
        denominator = aten.add(aten.mul(past_weight, denominator), current_weight)
        largest_exponent = new_exponent
        self.store_in_cache("recurrent_state", numerator, denominator, largest_exponent)
        weighted_average = aten.stack(outputs, 1)
        del (
            outputs,
            past_weight,
            current_weight,
            numerator,
            denominator,
            largest_exponent,
            new_exponent,
            time_first,
            decay,
        )
        del k, v, key, value, _zero, cached_states
        return aten.to(weighted_average, dtype)

    def _weighted_sum(self, past_weight: Tensor, past_sum: Tensor, current_weight: Tensor, value: Tensor) -> Tensor:
        """Computes past_weight · past_sum + current_weight · value."""
        return self.aten.add(self.aten.mul(past_weight, past_sum), self.aten.mul(current_weight, value))

    # --- RG-LRU -------------------------------------------------------------------------------------------------------

    def decode_rglru(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Decodes one token of RG-LRU, as RGLRUReference.forward does."""
        aten, conv_step = self.aten, module_steps["conv_1d"]
        gate = self.apply_activation(self.project(module_steps["linear_y"], x), module_steps.activation_names[0])
        recurrence_input = aten.transpose(self.project(module_steps["linear_x"], x), 1, 2)
        recurrence_input = aten.transpose(
            self.convolve_after_state(conv_step, recurrence_input, "conv_state", conv_step.options["kernel"] - 1), 1, 2
        )
        recurrent_gate = aten.to(
            aten.elementwise_function("sigmoid", self._block_linear(module_steps["recurrent_gate"], recurrence_input)),
            FLOAT32,
        )
        recurrent_gate = aten.scale(recurrent_gate)
        recurrent_param = self.weight("recurrent_param", (recurrence_input.shape[-1],))
        log_a = aten.mul(recurrent_gate, aten.elementwise_function("softplus", aten.to(recurrent_param, FLOAT32)))
        del recurrent_gate
        _is_first_token = aten.compare(aten.unsqueeze(self.token_positions(x.shape[1]), 1))
        decay = aten.new_like(log_a)
        input_multiplier = aten.new_like(
            _is_first_token, decay, aten.sqrt(aten.scale(aten.expm1(aten.scale(log_a)), "neg")), dtype=FLOAT32
        )
        del decay
        gated_input = aten.mul(
            aten.to(
                aten.mul(recurrence_input, self._sigmoid_gate(module_steps["input_gate"], recurrence_input)), FLOAT32
            ),
            input_multiplier,
        )
        _cached_state = self.cached_tensors("recurrent_state")
        next_states = self._recurrence_step(aten.exp(log_a), gated_input, self.cached_state("recurrent_state"))
        self.store_in_cache("recurrent_state", aten.select(next_states, 1))
        return self.project(module_steps["linear_out"], aten.mul(aten.to(next_states, x.dtype), gate))

    def _sigmoid_gate(self, operation: Step, x: Tensor) -> Tensor:
        return self.aten.elementwise_function("sigmoid", self._block_linear(operation, x))

    def _block_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Applies a block-diagonal linear layer, as BlockDiagonalLinear.forward does."""
        aten, op = self.aten, operation.op
        assert isinstance(op, BlockLinear)
        block_width = exact_div(x.shape[-1], op.block_count)
        weight = self.weight(f"{operation.name}.weight", (op.block_count, block_width, block_width))
        bias = self.weight(f"{operation.name}.bias", (op.block_count, block_width))
        input_blocks = aten.transpose(aten.flatten(aten.unflatten(x, -1, (op.block_count, block_width)), 0, 1), 0, 1)
        output = aten.baddbmm(aten.unsqueeze(bias, 1), input_blocks, aten.transpose(weight, 1, 2))
        return aten.unflatten(aten.flatten(aten.transpose(output, 0, 1), 1), 0, x.shape[:2])

    def _recurrence_step(self, a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        """Computes one step a·h + b of a linear recurrence."""
        aten = self.aten
        next_state = aten.add(aten.slice(b, 1, 1), aten.mul(aten.slice(a, 1, 1), aten.unsqueeze(h, 1)))
        return aten.cat([next_state, aten.slice(b, 0, 1)], 1)
