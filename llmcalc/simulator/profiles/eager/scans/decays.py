"""Recurrences of a state that decays: lightning attention, retention, gated linear attention, mLSTM, RWKV-4."""

from __future__ import annotations

from typing import Any

from .....algebra import are_equal, exact_div
from .....components.base import PUBLISHED_KERNELS_WITNESS
from .....evidence import kernels_compared
from .....flow.program import Step
from .....ops import DecayScan, LightningAttentionCore, LinearAttentionCore, MatrixMemory
from ....published import fla, lightning_attn, mlstm_kernels, rwkv
from ....tensor import FLOAT32, INT64, Tensor
from ..attention import AttentionKernels
from .module_steps import ModuleSteps
from .modules import ScanModuleKernels


@kernels_compared(PUBLISHED_KERNELS_WITNESS, unchecked_kernels=("decode_tokens",))
class DecayScanKernels(AttentionKernels, ScanModuleKernels):
    """Kernels of lightning attention, retention, gated linear attention, mLSTM and RWKV-4."""

    def module_LightningAttentionCore(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs a lightning attention layer like the reference, but with the authors' training kernel."""
        aten, op = self.aten, module_steps.op("core", LightningAttentionCore)
        if self.has_earlier_tokens:
            return self.decode_tokens(module_steps, x)
        q, k, v = self._project_lightning_heads(module_steps, x, op.key_dim)
        output = lightning_attn.lightning_attn_func(aten, q, k, v, aten.new_tensor((op.heads, 1, 1), FLOAT32))
        if self.cached_tensors_by_path is not None:  # the kernel returns no state
            self.state_tensors(module_steps["recurrent_state"], (op.heads, op.key_dim, op.key_dim))
            _state = aten.matmul(aten.transpose(aten.new_like(k), -1, -2), v)
            del _state
        normed_output = self._normalize_with(module_steps["norm"], aten.flatten(aten.transpose(output, 1, 2), 2))
        gate = aten.elementwise_function("sigmoid", self.project(module_steps["g_proj"], x))
        return self.project(module_steps["o_proj"], aten.mul(gate, normed_output))

    def _project_lightning_heads(self, module_steps: ModuleSteps, x: Tensor, head_dim: Any) -> list[Tensor]:
        """Returns queries, keys and values of lightning attention, [batch, heads, tokens, head_dim]."""
        projections = {
            projection_letter: self.project(module_steps[f"{projection_letter}_proj"], x) for projection_letter in "qkv"
        }
        rope_operations = dict(
            zip("qk", (operation for operation in module_steps.steps if operation.verb == "rope"), strict=False)
        )
        activated_heads = []
        for projection_letter, projected_x in projections.items():
            projected_heads = self.split_heads(projected_x, head_dim)
            if f"{projection_letter}_norm" in module_steps:
                projected_heads = self._normalize_with(module_steps[f"{projection_letter}_norm"], projected_heads)
            projected_heads = self.aten.transpose(projected_heads, 1, 2)
            if projection_letter in rope_operations:
                projected_heads = self.rotate(projected_heads, rope_operations[projection_letter])
            activated_heads.append(self.apply_activation(projected_heads, module_steps.activation_names[0]))
        return activated_heads

    def decode_tokens(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs tokens in sequence from a state (LightningReference.forward)."""
        aten, op = self.aten, module_steps.op("core", DecayScan)
        _cached_state = self.cached_tensors("recurrent_state")
        q, k, v = self._project_lightning_heads(module_steps, x, op.key_dim)
        output, next_state = self._decode_from_state(q, k, v)
        self.store_in_cache("recurrent_state", next_state)
        normed_output = self._normalize_with(module_steps["norm"], aten.flatten(aten.transpose(output, 1, 2), 2))
        gate = aten.elementwise_function("sigmoid", self.project(module_steps["g_proj"], x))
        gate = aten.mul(gate, normed_output)
        return self.project(module_steps["o_proj"], gate)

    def _decode_from_state(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Runs lightning attention token by token from the cached state, as the reference's Core.forward does.

        The outputs of all but the last token are one tensor here.
        """
        aten, (batch, heads, token_count, head_size) = self.aten, q.shape
        decay_slope = self._decay_slopes(heads)
        cached_state = self.cached_tensors("recurrent_state")
        assert cached_state is not None
        state, outputs = cached_state[0], []
        q, k, v = (aten.slice(tensor, 1, 2) for tensor in (q, k, v))
        if token_count > 1:
            outputs.append(aten.new_tensor((batch, heads, token_count - 1, head_size), q.dtype))
        for _ in range(min(token_count, 2)):
            decayed_state = aten.mul(aten.to(aten.exp(aten.scale(decay_slope, "neg")), q.dtype), state)
            state = aten.add(decayed_state, aten.matmul(aten.transpose(k, -1, -2), v))
            del decayed_state
        outputs.append(aten.matmul(q, state))
        return aten.cat(outputs, 2), state

    def _decay_slopes(self, heads: Any) -> Tensor:
        return self.aten.new_like(
            self.aten.unsqueeze(self.aten.unsqueeze(self.aten.new_tensor((heads,), INT64), 1), 2), dtype=FLOAT32
        )

    def module_LinearAttentionCore(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs retention or gated linear attention as fla does (fla/layers/multiscale_retention.py and gla.py)."""
        if "f_proj" in module_steps:
            return self.hgrn2(module_steps, x)
        aten, op = self.aten, module_steps.op("core", LinearAttentionCore)
        q, k, v = (self.project(module_steps[f"{projection_letter}_proj"], x) for projection_letter in "qkv")
        log_decay = None
        if "gk_b_proj" in module_steps:
            log_decay = self.project(module_steps["gk_b_proj"], self.project(module_steps["gk_a_proj"], x))
            q = self.split_heads(q, op.key_dim)
            k, log_decay = (
                self._repeat_heads(self.split_heads(tensor, op.key_dim), op.heads) for tensor in (k, log_decay)
            )
        else:
            q, k = self._retention_heads(module_steps, self.split_heads(q, op.key_dim), self.split_heads(k, op.key_dim))
        v = self._repeat_heads(self.split_heads(v, op.value_dim), op.heads)
        if log_decay is not None:
            log_decay = aten.scale(aten.elementwise_function("logsigmoid", log_decay), "div")
            q, k = self.feature_map(module_steps, q), self.feature_map(module_steps, k)
        _state = self.final_state(module_steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        if x.shape[1] <= fla.LONGEST_RECURRENT_SEQUENCE:
            output = fla.fused_recurrent_decay(aten, q, k, v, log_decay)
        else:
            output = (
                fla.chunk_retention(aten, q, k, v) if log_decay is None else fla.chunk_gla(aten, q, k, v, log_decay)
            )
        weight = self.weight("norm.weight", (op.value_dim,))
        if "g_proj" in module_steps:
            output_gate = self.split_heads(self.project(module_steps["g_proj"], x), op.value_dim)
            output = fla.rms_norm_gated(aten, output, output_gate, weight, self.accelerator)
        else:
            output = fla.rms_norm(aten, output, weight, self.accelerator)
        output = aten.flatten(output, 2)
        return self.project(module_steps["o_proj"], output)

    def hgrn2(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs HGRN2 as fla does (fla/layers/hgrn2.py, `HGRN2Attention.forward`)."""
        aten, op = self.aten, module_steps.op("core", LinearAttentionCore)
        q, forget_logits, v = (
            self.project(module_steps[f"{projection_letter}_proj"], x) for projection_letter in "qfi"
        )
        q = aten.elementwise_function("silu", q)
        log_decay = self._log_forget_gate(module_steps, forget_logits)
        k = aten.scale(aten.exp(log_decay), "rsub")
        q, k, log_decay = (self.split_heads(tensor, op.key_dim) for tensor in (q, aten.to(k, v.dtype), log_decay))
        v = self.split_heads(v, op.value_dim)
        _state = self.final_state(module_steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        output = (fla.fused_recurrent_decay if x.shape[1] <= fla.LONGEST_RECURRENT_SEQUENCE else fla.chunk_gla)(
            aten, q, k, v, log_decay
        )
        output = aten.flatten(output, 2)
        weight = self.unadapted_weight(module_steps["o_proj"])
        return fla.rms_norm_linear(
            aten, output, self.weight("norm.weight", output.shape[-1:]), weight, self.accelerator
        )

    def _log_forget_gate(self, module_steps: ModuleSteps, logits: Tensor) -> Tensor:
        """Computes the logarithm of each channel's forget gate, in float32 if the gate has a lower bound."""
        aten = self.aten
        if "lower_bound" not in module_steps:
            return aten.elementwise_function("logsigmoid", logits)
        lower_bound = self.weight("lower_bound", logits.shape[-1:])
        if any(operation.verb == "sub" for operation in module_steps.steps):  # the first layer's bound is 0
            return aten.elementwise_function("logsigmoid", aten.add(logits, aten.sub(lower_bound, lower_bound)))
        log_gate, lower_bound = aten.elementwise_function("logsigmoid", logits), aten.to(lower_bound, FLOAT32)
        log_scaled_gate = aten.add(aten.elementwise_function("log1p", aten.scale(lower_bound, "neg")), log_gate)
        return aten.logaddexp(aten.elementwise_function("log", lower_bound), log_scaled_gate)

    def feature_map(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Returns queries or keys after the optional feature map."""
        feature_map_names = [
            activation_name for activation_name in module_steps.activation_names if activation_name != "logsigmoid"
        ][: -1 if "g_proj" in module_steps else None]
        return self.apply_activation(x, feature_map_names[0]) if feature_map_names else x

    def _retention_heads(self, module_steps: ModuleSteps, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Returns queries and keys with RoPE. In training each module computes cosines and sines once."""
        aten, (_batch, token_count, heads, head_size) = self.aten, q.shape
        q, k = self.feature_map(module_steps, q), self.feature_map(module_steps, k)
        cos_key, sin_key = ((*self.module_path(), table_name) for table_name in ("cos", "sin"))
        if cos_key not in self.persistent_tensors or not are_equal(
            self.persistent_tensors[cos_key].shape[0], token_count
        ):
            cos, sin = fla.rotary_tables(aten, token_count, head_size, q)
            if self.cached_tensors_by_path is None:
                self.persistent_tensors[cos_key], self.persistent_tensors[sin_key] = cos, sin
        else:
            cos, sin = self.persistent_tensors[cos_key], self.persistent_tensors[sin_key]
        q, k = fla.rotary_embedding(aten, q, cos, sin), fla.rotary_embedding(aten, k, cos, sin)
        return q, self._repeat_heads(k, heads)

    def _repeat_heads(self, x: Tensor, heads: Any) -> Tensor:
        """Repeats keys, values or decays [batch, tokens, heads, size] to the number of query heads."""
        return x if are_equal(x.shape[2], heads) else self.aten.repeat_interleave(x, exact_div(heads, x.shape[2]), 2)

    def module_MatrixMemory(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs an mLSTM layer as transformers does (`xLSTMLayer.forward`), with a kernel of mlstm_kernels."""
        aten, op = self.aten, module_steps.op("core", MatrixMemory)
        chunk_rows = x.shape[1] if self.cached_tensors_by_path is None else op.chunk_size
        if not mlstm_kernels.supports_token_counts(chunk_rows, op.chunk_size):
            lengths_text = f"chunks of {op.chunk_size} tokens in sequences of {x.shape[1]}"
            smallest_chunk = mlstm_kernels.LEAST_CHUNK_TOKENS
            raise self.unsupported(
                f"mlstm_kernels has no kernel for {lengths_text}; expected powers of two from {smallest_chunk}", "core"
            )
        q, k, v = (self.project(module_steps[operation_name], x) for operation_name in "qkv")
        output_gate = self.project(module_steps["ogate"], x)
        input_gate, forget_gate = (
            self._soft_cap_scores(self.project(module_steps[gate_name], x)) for gate_name in ("igate", "fgate")
        )
        q, k = (aten.transpose(self.split_heads(tensor, op.key_dim), 1, 2) for tensor in (q, k))
        v = aten.transpose(self.split_heads(v, op.value_dim), 1, 2)
        input_gate, forget_gate = aten.transpose(input_gate, 1, 2), aten.transpose(forget_gate, 1, 2)
        if self.cached_tensors_by_path is None:
            memory_output = mlstm_kernels.mlstm_chunkwise(aten, q, k, v, input_gate, forget_gate, op.chunk_size)
        else:
            memory_output, _states = mlstm_kernels.mlstm_with_states(
                aten,
                q,
                k,
                v,
                input_gate,
                forget_gate,
                op.chunk_size,
                self._memory_states(module_steps["recurrent_state"]),
            )
            self.state_tensors(module_steps["recurrent_state"], *self.memory_state_shapes(op))
        memory_output = aten.transpose(memory_output, 1, 2)
        norm_step = module_steps["norm"]
        normed_output = self.norm(
            aten.flatten(memory_output, 2),
            norm_step.options["spec"],
            norm_step.name,
            (op.heads * op.value_dim,),
            op.heads,
        )
        output = aten.mul(aten.elementwise_function("sigmoid", output_gate), normed_output)
        return self.project(module_steps["out_proj"], output)

    def memory_state_shapes(self, op: MatrixMemory) -> tuple[Any, ...]:
        """Returns the shapes of each head's matrix memory, normalizer and largest exponent."""
        return (op.heads, op.key_dim, op.value_dim), (op.heads, op.key_dim), (op.heads, 1)

    def _memory_states(self, state_step: Step) -> list[Tensor] | None:
        """Returns the cached states in float32; None for the first tokens of a sequence."""
        cached_states = self.cached_tensors(state_step.name)
        return None if cached_states is None else [self.aten.to(x, FLOAT32) for x in cached_states]

    def _soft_cap_scores(self, x: Tensor) -> Tensor:
        """Computes cap · tanh(x / cap)."""
        return self.aten.scale(self.aten.elementwise_function("tanh", self.aten.scale(x, "div")))

    def scan_wkv(self, operation: Step) -> None:
        key, value, time_first, decay = map(self.tensor_of, operation.input_values)
        state_step, head_size = self.step_of_running_module("recurrent_state"), key.shape[-1:]
        self.state_tensors(state_step, head_size, head_size, head_size)
        has_cache = self.cached_tensors_by_path is not None
        self.store_tensor(
            operation.output_values[0], rwkv.rwkv_linear_attention(self.aten, decay, time_first, key, value, has_cache)
        )
