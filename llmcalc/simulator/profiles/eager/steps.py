"""Decoding of one token by a recurrence from its state, line by line as the references do.

A method `decode_<Op>` runs a whole module. Its local variables stand for those of the reference's forward pass; one
whose name begins with an underscore is only held.
"""

from __future__ import annotations

from typing import Any

from ....algebra import exact_div
from ....evidence import by_torch, compared
from ....flow.program import Step
from ....ops import BlockLinear, ChunkedScan, DeltaRule, MatrixMemory, SelectiveScan
from ...tensor import FLOAT32, Tensor
from .scans import ScanKernels
from .scans.mamba import NORMS
from .scans.module_steps import Steps

DECODED = by_torch("tests/simulator/test_inference.py")
"""The witness of decoding steps."""


class StepKernels(ScanKernels):
    """Kernels that decode one token of a recurrence."""

    def state_before(self, name: str) -> Tensor:
        """Returns the single tensor of a recurrent state."""
        cached_states = self.cached(name)
        assert cached_states is not None
        return cached_states[0]

    def norm_output(self, steps: Steps, x: Tensor, width: Any) -> Tensor:
        """Runs a norm on a module's output, by groups if the norm has groups."""
        norm = steps["norm"]
        groups = norm.options.get("groups")
        return self.norm(x, norm.options["spec"], norm.name, (width,), 1 if groups is None else groups.size)

    # --- Mamba --------------------------------------------------------------------------------------------------------

    @compared(DECODED)
    def decode_SelectiveScan(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs MambaReference.forward."""
        t, op, kind = self.t, steps["scan"].op, steps.acts[0]
        assert isinstance(op, SelectiveScan)
        by_head = steps["x_proj"].verb == "experts"
        heads = steps["x_proj"].options["experts"].size if by_head else 1
        inner_states, gate = t.split(self.project(steps["in_proj"], x), [op.inner, op.inner])
        inner_states = self.conv_with_state(steps["conv1d"], t.transpose(inner_states, 1, 2), "conv_state")
        inner_states = t.transpose(self.apply_activation(inner_states, kind), 1, 2)
        projected_width = steps["x_proj"].outs[0].width
        rank = projected_width - 2 * op.state
        dt_b_c = (
            self._head_map(steps["x_proj"], inner_states, heads, projected_width)
            if by_head
            else self.project(steps["x_proj"], inner_states)
        )
        step, b, c = t.split(t.unflatten(dt_b_c, -1, (heads, projected_width)), [rank, op.state, op.state])
        del dt_b_c
        if "dt_norm" in steps:
            step, b, c = (self._normalize_with(steps[name], y) for name, y in zip(NORMS, (step, b, c), strict=True))
        step = t.function("softplus", self._time_step(steps["dt_proj"], t.flatten(step, 2), heads, by_head))
        shape = (heads, exact_div(op.inner, heads), op.state) if by_head else (op.inner, op.state)
        _cached_state = self.cached("ssm_state")
        y, last_state = self._decode_scan(
            inner_states, step, t.repeat_interleave(b, exact_div(op.inner, heads), 2), c, shape
        )
        self.keep("ssm_state", last_state)
        return self.project(steps["out_proj"], t.mul(y, self.apply_activation(gate, kind)))

    def _time_step(self, step: Step, x: Tensor, heads: Any, by_head: bool) -> Tensor:
        """Projects to the time step Δ."""
        return self._head_map(step, x, heads, step.outs[0].width) if by_head else self.project(step, x)

    def _head_map(self, step: Step, x: Tensor, heads: Any, output_width: Any) -> Tensor:
        """Runs HeadMap.forward."""
        t, width = self.t, exact_div(x.shape[-1], heads)
        weight = self.weight(f"{step.name}.weight", (heads, output_width, width))
        y = t.matmul(t.transpose(t.unflatten(x, -1, (heads, width)), 1, 2), t.transpose(weight, -1, -2))
        if step.options["bias"]:
            y = t.add(y, t.unsqueeze(self.weight(f"{step.name}.bias", (heads, output_width)), 1))
        return t.flatten(t.transpose(y, 1, 2), 2)

    def _decode_scan(self, x: Tensor, step: Tensor, b: Tensor, c: Tensor, shape: Any) -> tuple[Tensor, Tensor]:
        """Runs Scan.forward."""
        t, previous_state = self.t, self.state_before("ssm_state")
        decay = t.exp(
            t.mul(t.unsqueeze(t.to(step, FLOAT32), -1), t.reshape(self.decay(shape), previous_state.shape[1:]))
        )
        state = t.mul(t.unsqueeze(t.to(t.mul(step, x), FLOAT32), -1), t.to(b, FLOAT32))
        first_state = t.add(t.slice(state, 1, 1), t.mul(t.slice(decay, 1, 1), t.unsqueeze(previous_state, 1)))
        state = t.cat([first_state, t.slice(state, 0, 1)], 1)
        state_copy = t.to(state, x.dtype)
        y = t.matmul(
            t.unflatten(state_copy, 2, (c.shape[2], exact_div(state_copy.shape[2], c.shape[2]))), t.unsqueeze(c, -1)
        )
        del state_copy
        y = t.flatten(y, 2)
        skip_output = t.mul(t.reshape(self.weight("D", shape[:-1]), (previous_state.shape[1],)), x)
        return t.add(y, skip_output), t.select(state, 1)

    # --- Mamba-2 ------------------------------------------------------------------------------------------------------

    @compared(DECODED)
    def decode_ChunkedScan(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs Mamba2Reference.forward."""
        t, op, kind = self.t, steps["scan"].op, steps.acts[0]
        assert isinstance(op, ChunkedScan)
        inner_width = op.heads * op.head_dim
        group_width = exact_div(steps["conv1d"].outs[0].width - inner_width, 2)
        groups = exact_div(group_width, op.state)
        gate, conv_input, step = t.split(
            self.project(steps["in_proj"], x), [inner_width, inner_width + 2 * group_width, op.heads]
        )
        conv_input = self.conv_with_state(steps["conv1d"], t.transpose(conv_input, 1, 2), "conv_state")
        conv_input = t.transpose(self.apply_activation(conv_input, kind), 1, 2)
        x, b, c = t.split(conv_input, [inner_width, group_width, group_width])
        b, c = (t.repeat_interleave(self.by_head(y, op.state), exact_div(op.heads, groups), 2) for y in (b, c))
        _cached_state = self.cached("ssm_state")
        y, last_state = self._decode_chunked_scan(self.by_head(x, op.head_dim), step, b, c)
        self.keep("ssm_state", last_state)
        return self.project(steps["out_proj"], self._gated(steps, t.flatten(y, 2), gate, kind, inner_width))

    def _decode_chunked_scan(self, x: Tensor, step: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Runs ChunkedScan.forward of Mamba-2's reference."""
        t, heads = self.t, x.shape[2:3]
        step = t.to(t.function("softplus", t.add(step, self.weight("dt_bias", heads))), FLOAT32)
        log = t.mul(step, self.decay(heads))
        scaled_input = t.mul(t.to(x, FLOAT32), t.unsqueeze(step, -1))
        y, last_state = self._chunked_scan_step(scaled_input, log, t.to(b, FLOAT32), t.to(c, FLOAT32))
        skipped_to = t.to(y, x.dtype)
        return t.add(skipped_to, t.mul(t.unsqueeze(self.weight("D", heads), 1), x)), last_state

    def _chunked_scan_step(self, x: Tensor, log: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Runs ChunkedScan._decode_step."""
        t, previous_state = self.t, self.state_before("ssm_state")
        decayed_state = t.mul(previous_state, t.unsqueeze(t.unsqueeze(t.select(t.exp(log), 1), -1), -1))
        state = t.add(decayed_state, t.mul(t.unsqueeze(t.select(x, 1), -1), t.unsqueeze(t.select(b, 1), -2)))
        del decayed_state
        return t.unsqueeze(t.select(t.matmul(state, t.unsqueeze(t.select(c, 1), -1)), -1), 1), state

    def _gated(self, steps: Steps, y: Tensor, gate: Tensor, kind: str, inner_width: Any) -> Tensor:
        """Runs Mamba2Reference._gated_output."""
        activated_gate = self.apply_activation(gate, kind)
        for step in steps.all:
            if step.verb == "mul":
                y = self.t.mul(y, activated_gate)
            if step.verb == "norm":
                y = self.norm_output(steps, y, inner_width)
        return y

    # --- the delta rules ----------------------------------------------------------------------------------------------

    @compared(DECODED)
    def decode_DeltaRule(self, steps: Steps, x: Tensor) -> Tensor:
        assert isinstance(steps["core"].op, DeltaRule)
        return (self._decode_kimi_delta if steps["core"].op.by_channel else self._decode_gated_delta)(steps, x)

    def _decode_gated_delta(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs GatedDeltaNetReference.forward."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, DeltaRule)
        qkv = t.transpose(t.cat([self.project(steps[name], x) for name in ("q_proj", "k_proj", "v_proj")]), 1, 2)
        convolved_qkv = t.function("silu", self.conv_with_state(steps["conv1d"], qkv, "conv_state"))
        convolved_qkv = t.transpose(convolved_qkv, 1, 2)
        widths = [steps[name].outs[0].width for name in ("q_proj", "k_proj", "v_proj")]
        q, k, v = t.split(convolved_qkv, widths)
        group = exact_div(op.heads * op.key_dim, widths[0])
        q, k = (self._split_and_repeat_heads(y, op.key_dim, group) for y in (q, k))
        speed = t.scale(t.exp(t.to(self.weight("A_log", (op.heads,)), FLOAT32)), "neg")
        raw_decay = t.to(self.project(steps["a_proj"], x), FLOAT32)
        raw_decay = t.add(raw_decay, t.to(self.weight("dt_bias", (op.heads,)), FLOAT32))
        raw_decay = t.function("softplus", raw_decay)
        decay = t.mul(speed, raw_decay)
        del speed, raw_decay
        beta = t.scale(t.function("sigmoid", self.project(steps["b_proj"], x)))
        v = t.transpose(self.by_head(v, op.value_dim), 1, 2)
        decay, beta = t.unsqueeze(t.transpose(decay, 1, 2), -1), t.transpose(beta, 1, 2)
        out = self._delta_rule(q, k, v, decay, beta)
        gate = t.function("silu", self.by_head(self.project(steps["g_proj"], x), op.value_dim))
        normed = t.mul(self._normalize_with(steps["norm"], t.to(t.transpose(out, 1, 2), x.dtype)), gate)
        return self.project(steps["o_proj"], t.flatten(normed, 2))

    def _split_and_repeat_heads(self, x: Tensor, size: Any, group: Any) -> Tensor:
        return self.t.repeat_interleave(self.t.transpose(self.by_head(x, size), 1, 2), group, 1)

    def _decode_kimi_delta(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs KimiDeltaAttentionReference.forward."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, DeltaRule)
        qkv = t.transpose(t.cat([self.project(steps[name], x) for name in ("q_proj", "k_proj", "v_proj")]), 1, 2)
        convolved_qkv = t.function("silu", self.conv_with_state(steps["conv1d"], qkv, "conv_state"))
        width = op.heads * op.key_dim
        q, k, v = t.split(t.transpose(convolved_qkv, 1, 2), [width, width, width])
        del convolved_qkv
        beta = t.transpose(t.function("sigmoid", self.project(steps["b_proj"], x)), 1, 2)
        q_heads, k_heads, v_heads = (t.transpose(self.by_head(y, op.key_dim), 1, 2) for y in (q, k, v))
        out = self._delta_rule(q_heads, k_heads, v_heads, self._log_decay(steps, x), beta)
        normed = self._normalize_with(steps["norm"], t.to(t.transpose(out, 1, 2), x.dtype))
        normed = t.mul(t.flatten(normed, 2), t.function("sigmoid", self._gate_projection("g", steps, x)))
        return self.project(steps["o_proj"], normed)

    def _log_decay(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs KimiDeltaAttentionReference._log_decay."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, DeltaRule)
        raw_decay, bias = self._gate_projection("f", steps, x), self.weight("dt_bias", (op.heads * op.key_dim,))
        float_gate = t.to(raw_decay, FLOAT32)
        del raw_decay
        speed = t.transpose(self.by_head(t.add(float_gate, t.to(bias, FLOAT32)), op.key_dim), 1, 2)
        del float_gate
        negative_a = t.exp(t.to(self.weight("A_log", (op.heads,)), FLOAT32))
        negative_a = t.unsqueeze(t.unsqueeze(negative_a, -1), -1)
        if "softplus" in steps.acts:
            return t.mul(t.scale(negative_a, "neg"), t.function("softplus", speed))
        return t.scale(t.function("sigmoid", t.mul(negative_a, speed)))

    def _delta_rule(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """Runs DeltaRule.forward of both references."""
        t = self.t
        q, k, v, g, beta = [t.to(x, FLOAT32) for x in (q, k, v, g, beta)]
        q_unit = t.scale(self._unit_length(q))
        q, k = q_unit, self._unit_length(k)
        del q_unit
        out, next_state = self._delta_rule_step(q, k, v, g, beta, self.state_before("recurrent_state"))
        self.keep("recurrent_state", next_state)
        return out

    def _unit_length(self, x: Tensor) -> Tensor:
        t = self.t
        return t.mul(x, t.rsqrt(t.add_number(t.sum(t.square(x), keep=True))))

    def _delta_rule_step(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Runs DeltaRule._run_token."""
        t = self.t
        state = t.mul(state, t.exp(t.unsqueeze(t.select(g, 2), -1)))
        predicted_values = t.sum(t.mul(state, t.unsqueeze(t.select(k, 2), -1)), -2)
        correction = t.mul(t.sub(t.select(v, 2), predicted_values), beta)
        state = t.add(state, t.mul(t.unsqueeze(t.select(k, 2), -1), t.unsqueeze(correction, -2)))
        return t.unsqueeze(t.sum(t.mul(state, t.unsqueeze(t.select(q, 2), -1)), -2), 2), state

    # --- lightning attention, mLSTM, RWKV-4 ---------------------------------------------------------------------------

    @compared(DECODED)
    def decode_LightningCore(self, steps: Steps, x: Tensor) -> Tensor:
        return self.decode_tokens(steps, x)

    @compared(DECODED)
    def decode_MatrixMemory(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs MLSTMReference.forward."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, MatrixMemory)
        q, k, v = (self._float_heads(steps[name], x, op.heads) for name in "qkv")
        cached_states = self.cached("recurrent_state")
        assert cached_states is not None
        h, state = self._decode_memory_token(
            q,
            k,
            v,
            self._float_gate(steps["igate"], x, op.heads),
            self._float_gate(steps["fgate"], x, op.heads),
            [t.to(y, FLOAT32) for y in cached_states],
        )
        state_copies = [t.to(y, x.dtype) for y in state]
        self.keep("recurrent_state", *state_copies)
        del state_copies
        flat_output = t.to(t.flatten(t.transpose(h, 1, 2), 2), x.dtype)
        normed = self.norm_output(steps, flat_output, op.heads * op.value_dim)
        del flat_output
        out = t.mul(t.function("sigmoid", self.project(steps["ogate"], x)), normed)
        return self.project(steps["out_proj"], out)

    def _float_heads(self, step: Step, x: Tensor, heads: Any) -> Tensor:
        """Runs MLSTMReference._split_heads."""
        t = self.t
        y = t.to(self.project(step, x), FLOAT32)
        return t.transpose(t.unflatten(y, -1, (heads, exact_div(y.shape[-1], heads))), 1, 2)

    def _float_gate(self, step: Step, x: Tensor, heads: Any) -> Tensor:
        """Runs MLSTMReference._gate."""
        scaled_gate = self.t.scale(self.t.select(self._float_heads(step, x, heads), -1), "div")
        scaled_gate = self.t.function("tanh", scaled_gate)
        return self.t.scale(scaled_gate)

    def _decode_memory_token(
        self, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs Core.forward of mLSTM's reference, for one token."""
        t = self.t
        log_f, q = self._log_sigmoid(f), t.scale(q)
        h, next_states = self._matrix_memory_step(q, k, v, i, log_f, states)
        return t.cat([h], 2), next_states

    def _log_sigmoid(self, x: Tensor) -> Tensor:
        """Computes the log-sigmoid, which allocates and frees a temporary buffer."""
        out, _buffer = self.t.like(x), self.t.like(x)
        return out

    def _matrix_memory_step(
        self, q: Tensor, k: Tensor, v: Tensor, i: Tensor, log_f: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs Core._run_token."""
        t = self.t
        memory, norm, largest_exponent = states
        next_exponent = t.like(t.add(log_f, largest_exponent), i)
        decay = t.exp(t.sub(t.add(log_f, largest_exponent), next_exponent))
        write = t.exp(t.sub(i, next_exponent))
        decayed_memory = t.mul(t.unsqueeze(decay, -1), memory)
        memory = t.add(decayed_memory, t.mul(t.unsqueeze(write, -1), t.matmul(t.transpose(k, -1, -2), v)))
        del decayed_memory
        decayed_memory = t.mul(decay, norm)
        norm = t.add(decayed_memory, t.mul(write, t.select(k, 2)))
        del decayed_memory
        denominator = t.select(t.matmul(q, t.unsqueeze(norm, -1)), -1)
        numerator = t.matmul(q, memory)
        denominator_bound = t.like(t.function("abs", denominator), t.exp(t.scale(next_exponent, "neg")))
        denominator_bound = t.add_number(denominator_bound)
        return t.div(numerator, t.unsqueeze(denominator_bound, -1)), [memory, norm, next_exponent]

    @compared(DECODED)
    def next_wkv(self, step: Step) -> None:
        self.set(step.outs[0], self._average(*map(self.get, step.ins)))

    def _average(self, key: Tensor, value: Tensor, time_first: Tensor, decay: Tensor) -> Tensor:
        """Runs TimeMixReference._weighted_average."""
        t, dtype = self.t, key.dtype
        key, value = t.to(key, FLOAT32), t.to(value, FLOAT32)
        time_first, decay = t.to(time_first, FLOAT32), t.scale(t.exp(t.to(decay, FLOAT32)), "neg")
        cached_states = self.cached("recurrent_state")
        assert cached_states is not None
        _zero, (numerator, denominator, largest_exponent) = t.like(t.select(key, 1)), cached_states
        k, v = t.select(key, 1), t.select(value, 1)
        peak = t.like(largest_exponent, t.add(k, time_first))
        past = t.exp(t.sub(largest_exponent, peak))
        current_weight = t.exp(t.sub(t.add(k, time_first), peak))
        out = [
            t.div(
                self._weighted_sum(past, numerator, current_weight, v), t.add(t.mul(past, denominator), current_weight)
            )
        ]
        peak = t.like(t.add(largest_exponent, decay), k)
        past_next = t.exp(t.sub(t.add(largest_exponent, decay), peak))
        now_next = t.exp(t.sub(k, peak))
        past, current_weight = past_next, now_next
        del past_next, now_next
        numerator = self._weighted_sum(past, numerator, current_weight, v)
        denominator = t.add(t.mul(past, denominator), current_weight)
        largest_exponent = peak
        self.keep("recurrent_state", numerator, denominator, largest_exponent)
        average = t.stack(out, 1)
        del (
            out,
            past,
            current_weight,
            numerator,
            denominator,
            largest_exponent,
            peak,
            time_first,
            decay,
            k,
            v,
            key,
            value,
            _zero,
            cached_states,
        )
        return t.to(average, dtype)

    def _weighted_sum(self, past_weight: Tensor, past_sum: Tensor, current_weight: Tensor, value: Tensor) -> Tensor:
        """Computes past_weight · past_sum + current_weight · value."""
        return self.t.add(self.t.mul(past_weight, past_sum), self.t.mul(current_weight, value))

    # --- RG-LRU -------------------------------------------------------------------------------------------------------

    @compared(DECODED)
    def decode_rglru(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs RGLRUReference.forward."""
        t, conv = self.t, steps["conv_1d"]
        gate = self.apply_activation(self.project(steps["linear_y"], x), steps.acts[0])
        u = t.transpose(self.project(steps["linear_x"], x), 1, 2)
        u = t.transpose(self.conv_with_state(conv, u, "conv_state", conv.options["kernel"] - 1), 1, 2)
        speed = t.to(t.function("sigmoid", self._block_linear(steps["recurrent_gate"], u)), FLOAT32)
        speed = t.scale(speed)
        param = self.weight("recurrent_param", (u.shape[-1],))
        log_a = t.mul(speed, t.function("softplus", t.to(param, FLOAT32)))
        del speed
        _is_first_token = t.compare(t.unsqueeze(self.span(x.shape[1]), 1))
        decay = t.like(log_a)
        saved_gates = t.like(_is_first_token, decay, t.sqrt(t.scale(t.expm1(t.scale(log_a)), "neg")), dtype=FLOAT32)
        del decay
        gated_input = t.mul(t.to(t.mul(u, self._sigmoid_gate(steps["input_gate"], u)), FLOAT32), saved_gates)
        _cached_state = self.cached("recurrent_state")
        states = self._recurrence_step(t.exp(log_a), gated_input, self.state_before("recurrent_state"))
        self.keep("recurrent_state", t.select(states, 1))
        return self.project(steps["linear_out"], t.mul(t.to(states, x.dtype), gate))

    def _sigmoid_gate(self, step: Step, x: Tensor) -> Tensor:
        return self.t.function("sigmoid", self._block_linear(step, x))

    def _block_linear(self, step: Step, x: Tensor) -> Tensor:
        """Runs BlockMap.forward."""
        t, op = self.t, step.op
        assert isinstance(op, BlockLinear)
        size = exact_div(x.shape[-1], op.blocks)
        weight = self.weight(f"{step.name}.weight", (op.blocks, size, size))
        bias = self.weight(f"{step.name}.bias", (op.blocks, size))
        input_blocks = t.transpose(t.flatten(t.unflatten(x, -1, (op.blocks, size)), 0, 1), 0, 1)
        out = t.baddbmm(t.unsqueeze(bias, 1), input_blocks, t.transpose(weight, 1, 2))
        return t.unflatten(t.flatten(t.transpose(out, 0, 1), 1), 0, x.shape[:2])

    def _recurrence_step(self, a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        """Computes a·h + b."""
        t = self.t
        next_state = t.add(t.slice(b, 1, 1), t.mul(t.slice(a, 1, 1), t.unsqueeze(h, 1)))
        return t.cat([next_state, t.slice(b, 0, 1)], 1)
