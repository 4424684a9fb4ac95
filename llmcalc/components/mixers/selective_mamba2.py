"""Mamba-2's scan with Mamba's projections: Δ, B and C are projections of the convolution's output (PLaMo 2).

Preferred Networks 2025 (arXiv:2509.04897, §2). The scan is that of Dao & Gu 2024 (arXiv:2405.21060), with one group.
vLLM: models/plamo2.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import Number
from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops.recurrent import ProjectedChunkedScan, ProjectedHeadScan
from ..base import ChunkSize, HeadDim, Heads, HeadSizes, KernelSize, ModelProperties, StateSize, StepRank, TokenMixer
from ..norm import Norm, norm_reference
from ..residual_convolution import record_causal_convolution
from ..runtime import PassState, causal_conv_class, recurrent_state_class
from .mamba import STATE_BITS
from .mamba2 import chunked_scan_module_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class SelectiveMamba2(TokenMixer):
    """A multi-head state-space mixer whose step sizes, B and C are projections of the convolved channels.

    num_heads: the number of heads.
    head_dim: the number of channels per head.
    state_size: the number of state elements per channel.
    time_step_rank: the rank of the projection to Δ.
    conv_kernel: the kernel size of the convolution, which has no bias, 4 by default.
    chunk_size: the number of tokens that a full pass computes at once, 256 by default.
    norm: the norm on Δ, B and C, an RMSNorm by default.
    """

    formula_source: ClassVar[str] = "Preferred Networks 2025 (arXiv:2509.04897), §2"
    node_name: ClassVar[str] = "mamba"
    kind: ClassVar[str] = "state_space"
    uncounted_operations: ClassVar[str] = "the decays of Mamba-2's scan, and in decode its state update"

    type: Literal["selective_mamba2"] = "selective_mamba2"
    num_heads: Heads
    head_dim: HeadDim
    state_size: StateSize
    time_step_rank: StepRank
    conv_kernel: KernelSize = 4
    chunk_size: ChunkSize = 256
    norm: Norm = Norm(type="rmsnorm")

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.num_heads, 1, self.head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads = Axis("heads", self.num_heads)
        head_dim = Axis("head_dim", self.head_dim)
        state_axis = Axis("state", self.state_size)
        inner_axes: Shape = (heads, head_dim)
        gate, inner_x = recorder.split(
            recorder.linear("in_proj", x, JoinedShapes((inner_axes, inner_axes))), inner_axes, inner_axes
        )
        channels = JoinedShapes((inner_axes,))
        inner_x = record_causal_convolution(recorder, "conv1d", inner_x, channels, kernel_size=self.conv_kernel)
        inner_x = recorder.act(inner_x, "silu").view(*inner_axes)
        split_shapes: tuple[Shape, ...] = ((state_axis,), (state_axis,), (Axis("time_step_rank", self.time_step_rank),))
        b, c, time_step = recorder.split(
            recorder.linear("bcdt_proj", inner_x, JoinedShapes(split_shapes)), *split_shapes
        )
        time_step = recorder.linear("dt_proj", recorder.norm("dt_norm", time_step, self.norm), heads)
        scan_inputs = inner_x, time_step, recorder.norm("b_norm", b, self.norm), recorder.norm("c_norm", c, self.norm)
        scan_sizes = time_step.width, self.head_dim, self.state_size, x.rows
        scan_output = recorder.alternatives(
            chunked=lambda: recorder.core(
                "scan", ProjectedChunkedScan(*scan_sizes, self.chunk_size), *scan_inputs, axes=inner_axes
            ),
            step=lambda: recorder.core("scan", ProjectedHeadScan(*scan_sizes), *scan_inputs, axes=inner_axes),
        )
        recorder.state("ssm_state", *inner_axes, state_axis, bits=STATE_BITS)
        return recorder.linear("out_proj", recorder.mul(scan_output, recorder.act(gate, "silu")), *x.axes)

    def describe(self, hidden_size: int) -> str:
        return f"Mamba-2 {self.num_heads} × {self.head_dim} × {self.state_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        spec_fields: dict[str, Any] = {"num_heads": 4, "head_dim": 6, "state_size": 5, "time_step_rank": 7}
        norm = Norm(type="rmsnorm", weight=False)
        return [cls(**spec_fields, chunk_size=4), cls(**spec_fields, conv_kernel=3, norm=norm)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class SelectiveMamba2Reference(nn.Module):
        """Computes PLaMo 2's state-space mixer. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: SelectiveMamba2, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec = spec
            heads_width, rank, state_size = spec.num_heads * spec.head_dim, spec.time_step_rank, spec.state_size
            self.in_proj = nn.Linear(model_properties.hidden_size, 2 * heads_width, bias=False)
            conv: Any = causal_conv_class()
            self.conv1d = conv(heads_width, spec.conv_kernel, False)
            self.conv_state: Any = recurrent_state_class()()
            self.ssm_state: Any = recurrent_state_class()()
            self.bcdt_proj = nn.Linear(heads_width, 2 * state_size + rank, bias=False)
            self.dt_proj = nn.Linear(rank, spec.num_heads, bias=False)
            self.dt_norm = norm_reference(spec.norm, rank)
            self.b_norm, self.c_norm = norm_reference(spec.norm, state_size), norm_reference(spec.norm, state_size)
            scan_module_class: Any = chunked_scan_module_class()
            self.scan = scan_module_class(spec.num_heads, spec.chunk_size)
            self.out_proj = nn.Linear(heads_width, model_properties.hidden_size, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            gate, inner_x = self.in_proj(x).chunk(2, -1)
            inner_x = nn.functional.silu(self.conv1d(inner_x.transpose(1, 2), pass_state, self.conv_state)).transpose(
                1, 2
            )
            b, c, time_step = self.bcdt_proj(inner_x).split([spec.state_size, spec.state_size, spec.time_step_rank], -1)
            time_step = self.dt_proj(self.dt_norm(time_step))
            b, c = (
                tensor[:, :, None].expand(-1, -1, spec.num_heads, -1) for tensor in (self.b_norm(b), self.c_norm(c))
            )
            stored_state = self.ssm_state.single_tensor(pass_state)
            scan_output, last_state = self.scan(
                inner_x.unflatten(-1, (spec.num_heads, -1)), time_step, b, c, stored_state
            )
            self.ssm_state.keep(pass_state, last_state)
            return self.out_proj(scan_output.flatten(2) * nn.functional.silu(gate))

    return SelectiveMamba2Reference
