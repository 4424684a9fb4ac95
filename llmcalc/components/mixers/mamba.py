"""Mamba: a gated linear recurrence whose steps depend on the input (Gu & Dao 2023, arXiv:2312.00752).

Norms on Δ, B and C are from Jamba (Lieber 2024, arXiv:2403.19887) and Falcon Mamba, several heads from Zamba (Glorioso
2024, arXiv:2405.16712). The recurrence is elementwise. Its state and the state of the convolution before it do not grow
with the number of tokens.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import exact_div
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...ops.recurrent import SelectiveScan
from ...workload.rows import RoutedRows
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    Flag,
    Heads,
    InnerSize,
    KernelSize,
    ModelProperties,
    PartWitness,
    StateSize,
    StepRank,
    TokenMixer,
    check_divisor,
)
from ..networks.feed_forward import Activation, activate
from ..norm import Norm, norm_reference
from ..residual_convolution import record_causal_convolution
from ..runtime import PassState, causal_conv_class, recurrent_state_class

if TYPE_CHECKING:
    from torch import Tensor, nn

STATE_BITS = 32
"""The recurrent state is stored in fp32."""

SCAN_OUTPUT = "output of the scan"
"""The storage name of the recurrence output that a layer shares with higher layers."""


class Mamba(TokenMixer):
    """The Mamba selective state-space mixer.

    intermediate_size: the number of channels of the recurrence (expand × hidden_size).
    state_size: the number of state elements per channel.
    time_step_rank: the rank of the projection to Δ.
    conv_kernel: the kernel size of the convolution, 4 by default.
    num_heads: the number of heads with separate projections to Δ, B and C (Zamba); one by default. They are parts of
        one recurrence without queries and keys, so `head_sizes` returns None.
    use_bias: whether the input and output projections have a bias, false by default.
    use_conv_bias: whether the convolution has a bias, true by default.
    hidden_act: the activation after the convolution and on the gate, silu by default.
    norm: the norm on Δ, B and C, none by default.
    lends_output: whether higher layers of type 'memory_gate' read the output of the recurrence before the gate, false
        by default.
    """

    formula_source: ClassVar[str] = "Gu & Dao 2023, §3.4"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    kernel_packages: ClassVar[tuple[str, ...]] = ("mamba-ssm", "causal-conv1d")
    node_name: ClassVar[str] = "mamba"
    kind: ClassVar[str] = "state_space"
    uncounted_operations: ClassVar[str] = "the state update of Mamba's scan"

    type: Literal["mamba"] = "mamba"
    intermediate_size: InnerSize
    state_size: StateSize
    time_step_rank: StepRank
    conv_kernel: KernelSize = 4
    num_heads: Heads | None = None
    use_bias: Flag = False
    use_conv_bias: Flag = True
    hidden_act: Activation = "silu"
    norm: Norm | None = None
    lends_output: Flag = False

    def check_fields(self) -> None:
        if self.num_heads is not None:
            check_divisor("num_heads", self.num_heads, "intermediate_size", self.intermediate_size)
        if self.num_heads is not None and self.norm is not None:
            raise ValueError("norm: only supported for a single head; expected no num_heads, or no norm")

    def flow(self, recorder: Flow, x: Value) -> Value:
        inner_axis = Axis("inner", self.intermediate_size)
        state_axis = Axis("state", self.state_size)
        projected_x = recorder.linear("in_proj", x, JoinedShapes(((inner_axis,), (inner_axis,))), bias=self.use_bias)
        inner_x, gate = recorder.split(projected_x, (inner_axis,), (inner_axis,))
        inner_x = record_causal_convolution(
            recorder, "conv1d", inner_x, inner_axis, kernel_size=self.conv_kernel, bias=self.use_conv_bias
        )
        inner_x = recorder.act(inner_x, self.hidden_act)
        time_step, b, c = self._project_scan_inputs(recorder, inner_x, inner_axis, state_axis)
        op = SelectiveScan(inner_x.width, self.state_size, inner_x.rows)
        scan_output = recorder.core("scan", op, inner_x, recorder.act(time_step, "softplus"), b, c, axes=(inner_axis,))
        recorder.state("ssm_state", inner_axis, state_axis, bits=STATE_BITS)
        if self.lends_output:
            recorder.layer_memo[SCAN_OUTPUT] = scan_output
            recorder.keep(scan_output=scan_output)
        return recorder.linear(
            "out_proj", recorder.mul(scan_output, recorder.act(gate, self.hidden_act)), *x.axes, bias=self.use_bias
        )

    def _project_scan_inputs(
        self, recorder: Flow, inner_x: Value, inner_axis: Axis, state_axis: Axis
    ) -> tuple[Value, Value, Value]:
        """Returns the step size Δ per channel, and B and C per head, from projections that all tokens pass through."""
        num_heads, rank_axis = self.num_heads, Axis("time_step_rank", self.time_step_rank)
        split_shapes = (rank_axis,), (state_axis,), (state_axis,)
        if num_heads is None:
            time_step, b, c = recorder.split(
                recorder.linear("x_proj", inner_x, JoinedShapes(split_shapes)), *split_shapes
            )
            if self.norm is not None:
                time_step = recorder.norm("dt_norm", time_step, self.norm)
                b = recorder.norm("b_norm", b, self.norm)
                c = recorder.norm("c_norm", c, self.norm)
            return recorder.linear("dt_proj", time_step, inner_axis, bias=True), b, c
        heads, channel_axis = Axis("heads", num_heads), Axis("channels", exact_div(self.intermediate_size, num_heads))
        head_rows = inner_x.view(channel_axis, new_rows=RoutedRows(source_rows=inner_x.rows, top_k=num_heads))
        time_step, b, c = recorder.split(
            recorder.experts("x_proj", head_rows, heads, num_heads, JoinedShapes(split_shapes)), *split_shapes
        )
        time_step = recorder.experts("dt_proj", time_step, heads, num_heads, channel_axis, bias=True)
        return (
            time_step.view(inner_axis, new_rows=inner_x.rows),
            b.view(heads, state_axis, new_rows=inner_x.rows),
            c.view(heads, state_axis, new_rows=inner_x.rows),
        )

    def describe(self, hidden_size: int) -> str:
        heads_text = "" if self.num_heads is None else f", {self.num_heads} heads"
        return f"Mamba {self.intermediate_size} × {self.state_size}{heads_text}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        default_spec: dict[str, Any] = {"intermediate_size": 40, "state_size": 6, "time_step_rank": 3}
        return [
            cls(**default_spec),
            cls(**default_spec, use_bias=True, use_conv_bias=False, conv_kernel=3),
            cls(**default_spec, norm=Norm(type="rmsnorm")),
            cls(**default_spec, norm=Norm(type="rmsnorm", weight=False)),
            cls(**default_spec, num_heads=2),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class HeadwiseLinear(nn.Module):
        """A separate linear layer per head. x: [batch, tokens, heads · in_features] → [.., heads · out_features]."""

        def __init__(self, heads: int, in_features: int, out_features: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(heads, out_features, in_features))
            nn.init.normal_(self.weight, std=in_features**-0.5)
            self.bias = nn.Parameter(torch.zeros(heads, out_features)) if bias else None

        def forward(self, x: Tensor) -> Tensor:
            head_outputs = x.unflatten(-1, (self.weight.shape[0], -1)).transpose(1, 2) @ self.weight.transpose(-1, -2)
            head_outputs = head_outputs if self.bias is None else head_outputs + self.bias[:, None]
            return head_outputs.transpose(1, 2).flatten(2)

    class SelectiveScanModule(nn.Module):
        """Runs Mamba's selective scan. x, Δ: [batch, tokens, inner] → ([batch, tokens, inner], last state).

        B, C: [batch, tokens, inner or 1, state].
        """

        def __init__(self, inner_width: int, state_size: int) -> None:
            super().__init__()
            self.A_log = nn.Parameter(
                torch.log(torch.arange(1, state_size + 1, dtype=torch.float32))
                .repeat(inner_width, 1)
                .to(torch.get_default_dtype())
            )
            self.D = nn.Parameter(torch.ones(inner_width))

        def forward(
            self, x: Tensor, time_step: Tensor, b: Tensor, c: Tensor, old_state: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            decay = torch.exp(time_step.float()[..., None] * -torch.exp(self.A_log.float()))
            scan_states = (time_step * x).float()[..., None] * b.float()
            if old_state is not None:
                first_state = scan_states[:, :1] + decay[:, :1] * old_state[:, None]
                scan_states = torch.cat([first_state, scan_states[:, 1:]], 1)
            covered_steps = 1  # doubles each round: the number of earlier steps that a state covers
            while covered_steps < x.shape[1]:
                scan_states = torch.cat(
                    [
                        scan_states[:, :covered_steps],
                        scan_states[:, covered_steps:] + decay[:, covered_steps:] * scan_states[:, :-covered_steps],
                    ],
                    1,
                )
                decay = torch.cat([decay[:, :covered_steps], decay[:, covered_steps:] * decay[:, :-covered_steps]], 1)
                covered_steps *= 2
            scan_output = _read_states(scan_states.to(x.dtype), c)
            return scan_output + self.D * x, scan_states[:, -1]

    def _read_states(scan_states: Tensor, c: Tensor) -> Tensor:
        """Computes state · C. scan_states: [batch, tokens, inner, state], c: [batch, tokens, heads, state]."""
        heads: Tensor = scan_states.unflatten(2, (c.shape[2], -1)) @ c[..., None]
        return heads.flatten(2)

    class MambaReference(nn.Module):
        """Runs the Mamba mixer: a gated selective scan. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: Mamba, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec = spec
            hidden_size = model_properties.hidden_size
            inner_width = spec.intermediate_size
            rank = spec.time_step_rank
            heads = spec.num_heads or 1
            self.in_proj = nn.Linear(hidden_size, 2 * inner_width, bias=spec.use_bias)
            conv_class: Any = causal_conv_class()
            self.conv1d = conv_class(inner_width, spec.conv_kernel, spec.use_conv_bias)
            self.conv_state: Any = recurrent_state_class()()
            self.ssm_state: Any = recurrent_state_class()()
            projected_width = rank + 2 * spec.state_size
            if spec.num_heads is None:
                self.x_proj: Any = nn.Linear(inner_width, projected_width, bias=False)
                self.dt_proj: Any = nn.Linear(rank, inner_width)
            else:
                self.x_proj = HeadwiseLinear(heads, inner_width // heads, projected_width, False)
                self.dt_proj = HeadwiseLinear(heads, rank, inner_width // heads, True)
            if spec.norm is not None:
                self.dt_norm = norm_reference(spec.norm, rank)
                self.b_norm = norm_reference(spec.norm, spec.state_size)
                self.c_norm = norm_reference(spec.norm, spec.state_size)
            self.scan = SelectiveScanModule(inner_width, spec.state_size)
            self.out_proj = nn.Linear(inner_width, hidden_size, bias=spec.use_bias)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec, heads = self.spec, self.spec.num_heads or 1
            inner_x, gate = self.in_proj(x).chunk(2, -1)
            inner_x = activate(
                spec.hidden_act, self.conv1d(inner_x.transpose(1, 2), pass_state, self.conv_state)
            ).transpose(1, 2)
            split_widths = [spec.time_step_rank, spec.state_size, spec.state_size]
            time_step, b, c = self.x_proj(inner_x).unflatten(-1, (heads, -1)).split(split_widths, -1)
            if spec.norm is not None:
                time_step, b, c = self.dt_norm(time_step), self.b_norm(b), self.c_norm(c)
            time_step = nn.functional.softplus(self.dt_proj(time_step.flatten(2)))
            stored_state = self.ssm_state.single_tensor(pass_state)
            scan_output, last_state = self.scan(
                inner_x, time_step, b.repeat_interleave(inner_x.shape[-1] // heads, 2), c, stored_state
            )
            self.ssm_state.keep(pass_state, last_state)
            if spec.lends_output:
                pass_state.shared_values["scan output"] = scan_output
            return self.out_proj(scan_output * activate(spec.hidden_act, gate))

    return MambaReference
