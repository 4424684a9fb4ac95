"""Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): a recurrence with one decay per head.

It is computed in chunks, like attention without a softmax.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import Number, exact_div
from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops.recurrent import ChunkedScan, HeadScan
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    ChunkSize,
    Flag,
    HeadDim,
    Heads,
    HeadSizes,
    KernelSize,
    ModelProperties,
    PartWitness,
    StateGroups,
    StateSize,
    TokenMixer,
    check_divisor,
)
from ..networks.feed_forward import Activation, activate
from ..norm import Norm, norm_reference
from ..residual_convolution import record_causal_convolution
from ..runtime import PassState, causal_conv_class, recurrent_state_class
from .mamba import STATE_BITS

if TYPE_CHECKING:
    from torch import Tensor, nn


class Mamba2(TokenMixer):
    """The Mamba-2 state-space mixer; each head has a state of [head_dim, state_size].

    num_heads: the number of heads, which correspond to attention's value heads (§7.2).
    head_dim: the number of channels per head.
    state_size: the number of state elements per channel.
    n_groups: the number of groups of heads that share B and C, which correspond to keys and queries (§7.2); 1 by
        default.
    conv_kernel: the kernel size of the convolution, 4 by default.
    chunk_size: the number of tokens that a full pass computes at once, 256 by default.
    use_bias, out_bias: whether the input and the output projection has a bias, false by default.
    use_conv_bias: whether the convolution has a bias, true by default.
    hidden_act: the activation after the convolution and on the gate, silu by default.
    norm: the norm on the gated output, separate for each group, an RMSNorm by default; None for no norm.
    norm_before_gate: whether the norm comes before the gate, false by default.
    """

    formula_source: ClassVar[str] = "Dao & Gu 2024, §7"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    kernel_packages: ClassVar[tuple[str, ...]] = ("mamba-ssm", "causal-conv1d")
    node_name: ClassVar[str] = "mamba"
    kind: ClassVar[str] = "state_space"
    uncounted_operations: ClassVar[str] = "the decays of Mamba-2's scan, and in decode its state update"

    type: Literal["mamba2"] = "mamba2"
    num_heads: Heads
    head_dim: HeadDim
    state_size: StateSize
    n_groups: StateGroups = 1
    conv_kernel: KernelSize = 4
    chunk_size: ChunkSize = 256
    use_bias: Flag = False
    out_bias: Flag = False
    use_conv_bias: Flag = True
    hidden_act: Activation = "silu"
    norm: Norm | None = Norm(type="rmsnorm")
    norm_before_gate: Flag = False

    def check_fields(self) -> None:
        check_divisor("n_groups", self.n_groups, "num_heads", self.num_heads)

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.num_heads, self.n_groups, self.head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads = Axis("heads", self.num_heads)
        head_dim = Axis("head_dim", self.head_dim)
        group_axis = Axis("groups", self.n_groups)
        state_axis = Axis("state", self.state_size)
        inner_axes: Shape = (heads, head_dim)
        # the gate and Δ skip the convolution
        conv_axes = JoinedShapes((inner_axes, (group_axis, state_axis), (group_axis, state_axis)))
        gate, inner_x, time_step = recorder.split(
            recorder.linear("in_proj", x, JoinedShapes((inner_axes, (conv_axes,), (heads,))), bias=self.use_bias),
            inner_axes,
            (conv_axes,),
            (heads,),
        )
        inner_x = record_causal_convolution(
            recorder, "conv1d", inner_x, conv_axes, kernel_size=self.conv_kernel, bias=self.use_conv_bias
        )
        inner_x, b, c = recorder.split(recorder.act(inner_x, self.hidden_act), *conv_axes.shapes)
        scan_inputs = inner_x, time_step, recorder.repeat(b, heads), recorder.repeat(c, heads)
        scan_sizes = time_step.width, self.head_dim, self.state_size, x.rows
        groups = exact_div(b.width, self.state_size)
        scan_output = recorder.alternatives(
            chunked=lambda: recorder.core(
                "scan", ChunkedScan(*scan_sizes, self.chunk_size, groups), *scan_inputs, axes=inner_axes
            ),
            step=lambda: recorder.core("scan", HeadScan(*scan_sizes), *scan_inputs, axes=inner_axes),
        )
        recorder.state("ssm_state", *inner_axes, state_axis, bits=STATE_BITS)
        return recorder.linear(
            "out_proj",
            self._gated_output(recorder, scan_output, recorder.act(gate, self.hidden_act), group_axis),
            *x.axes,
            bias=self.out_bias,
        )

    def _gated_output(self, recorder: Flow, scan_output: Value, gate: Value, group_axis: Axis) -> Value:
        """Returns the scan's output after the gate and the norm, in the order that the spec states."""
        if self.norm is None:
            return recorder.mul(scan_output, gate)
        if self.norm_before_gate:
            return recorder.mul(recorder.norm("norm", scan_output, self.norm, groups=group_axis), gate)
        return recorder.norm("norm", recorder.mul(scan_output, gate), self.norm, groups=group_axis)

    def describe(self, hidden_size: int) -> str:
        return f"Mamba-2 {self.num_heads} × {self.head_dim} × {self.state_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        default_spec: dict[str, Any] = {
            "num_heads": 4,
            "head_dim": 6,
            "state_size": 5,
            "chunk_size": 4,
        }  # 11 and 13 tokens do not fill a chunk
        return [
            cls(**default_spec),
            cls(**default_spec, n_groups=2, use_bias=True, out_bias=True, use_conv_bias=False, conv_kernel=3),
            cls(**{**default_spec, "chunk_size": 32}, norm=None),
            cls(
                **default_spec,
                n_groups=4,
                norm=Norm(type="rmsnorm"),
                norm_before_gate=True,
                hidden_act="gelu",
                out_bias=True,
            ),
        ]


@cache
def chunked_scan_module_class() -> type[nn.Module]:
    """Returns the PyTorch reference class of Mamba-2's scan, with the parameters A, D and the bias of Δ."""
    import torch
    from torch import nn

    def pairwise_decays(log_decay: Tensor) -> Tensor:
        """Computes the fraction of step j's input that remains after step i, for all pairs i ≥ j.

        log_decay: the log decay of each step, [..., n] → [..., n, n].
        """
        cumulative_decay = log_decay.cumsum(-1)
        pair_log_decay = cumulative_decay[..., :, None] - cumulative_decay[..., None, :]
        causal = torch.ones(log_decay.shape[-1], log_decay.shape[-1], dtype=torch.bool, device=log_decay.device).tril()
        return torch.exp(pair_log_decay.masked_fill(~causal, float("-inf")))

    class ChunkedScan(nn.Module):
        """Runs Mamba-2's scan in chunks. x: [batch, tokens, heads, d] → (x's shape, last state).

        Δ: [batch, tokens, heads], B, C: [batch, tokens, heads, n].
        """

        def __init__(self, heads: int, chunk_size: int) -> None:
            super().__init__()
            self.chunk = chunk_size
            self.A_log = nn.Parameter(
                torch.log(torch.arange(1, heads + 1, dtype=torch.float32)).to(torch.get_default_dtype())
            )
            self.D, self.dt_bias = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.zeros(heads))

        def forward(
            self, x: Tensor, time_step: Tensor, b: Tensor, c: Tensor, old_state: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            time_step = nn.functional.softplus(time_step + self.dt_bias).float()
            log_decay, scaled_x = time_step * -torch.exp(self.A_log.float()), x.float() * time_step[..., None]
            if old_state is not None and x.shape[1] == 1:
                scan_output, last_state = self._decode_step(scaled_x, log_decay, b.float(), c.float(), old_state)
            else:
                scan_output, last_state = self._run_chunks(scaled_x, log_decay, b.float(), c.float(), old_state)
            return scan_output.to(x.dtype) + self.D[:, None] * x, last_state

        def _decode_step(
            self, x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, old_state: Tensor
        ) -> tuple[Tensor, Tensor]:
            """Runs one decoding step. old_state: [batch, heads, d, n]."""
            new_state = old_state * log_decay.exp()[:, 0, :, None, None] + x[:, 0, :, :, None] * b[:, 0, :, None, :]
            return (new_state @ c[:, 0, :, :, None])[..., 0][:, None], new_state

        def _run_chunks(
            self, x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, old_state: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            token_count, padding_tokens = x.shape[1], -x.shape[1] % self.chunk

            def split_into_chunks(tensor: Tensor) -> Tensor:
                """Splits tokens into padded chunks: [.., tokens, heads, ...] → [.., heads, chunks, chunk, ...]."""
                padded_chunks = nn.functional.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, padding_tokens))
                return padded_chunks.unflatten(1, (-1, self.chunk)).movedim(3, 1)

            x, log_decay, b, c = (
                split_into_chunks(x),
                split_into_chunks(log_decay),
                split_into_chunks(b),
                split_into_chunks(c),
            )
            cumulative_decay = log_decay.cumsum(-1)
            chunk_output = (c @ b.transpose(-1, -2) * pairwise_decays(log_decay)) @ x
            chunk_states = (x * torch.exp(cumulative_decay[..., -1:] - cumulative_decay)[..., None]).transpose(
                -1, -2
            ) @ b  # by each chunk, at its end
            start_state = torch.zeros_like(chunk_states[:, :, :1]) if old_state is None else old_state[:, :, None]
            # over whole chunks, from the start
            chunk_decays = pairwise_decays(nn.functional.pad(cumulative_decay[..., -1], (1, 0)))
            chunk_start_states = (chunk_decays @ torch.cat([start_state, chunk_states], 2).flatten(3)).unflatten(
                3, chunk_states.shape[3:]
            )
            state_output = (c @ chunk_start_states[:, :, :-1].transpose(-1, -2)) * torch.exp(cumulative_decay)[
                ..., None
            ]
            scan_output = (chunk_output + state_output).movedim(1, 3).flatten(1, 2)[:, :token_count]
            return scan_output, chunk_start_states[:, :, -1]

    return ChunkedScan


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class Mamba2Reference(nn.Module):
        """Runs the Mamba-2 mixer: a scan with one decay per head. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: Mamba2, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec = spec
            inner_width, bc_width = spec.num_heads * spec.head_dim, 2 * spec.n_groups * spec.state_size
            self.in_proj = nn.Linear(
                model_properties.hidden_size, 2 * inner_width + bc_width + spec.num_heads, bias=spec.use_bias
            )
            conv: Any = causal_conv_class()
            self.conv1d = conv(inner_width + bc_width, spec.conv_kernel, spec.use_conv_bias)
            self.conv_state: Any = recurrent_state_class()()
            self.ssm_state: Any = recurrent_state_class()()
            scan_module_class: Any = chunked_scan_module_class()
            self.scan = scan_module_class(spec.num_heads, spec.chunk_size)
            if spec.norm is not None:
                self.norm = norm_reference(spec.norm, inner_width, group_count=spec.n_groups)
            self.out_proj = nn.Linear(inner_width, model_properties.hidden_size, bias=spec.out_bias)

        def _gated_output(self, scan_output: Tensor, gate: Tensor) -> Tensor:
            gate_values = activate(self.spec.hidden_act, gate)
            if not hasattr(self, "norm"):
                return scan_output * gate_values
            if not self.spec.norm_before_gate:
                scan_output = scan_output * gate_values
            scan_output = self.norm(scan_output)
            return scan_output * gate_values if self.spec.norm_before_gate else scan_output

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            inner_width, group_width = spec.num_heads * spec.head_dim, spec.n_groups * spec.state_size
            gate, convolution_output, time_step = self.in_proj(x).split(
                [inner_width, inner_width + 2 * group_width, spec.num_heads], -1
            )
            convolution_output = activate(
                spec.hidden_act, self.conv1d(convolution_output.transpose(1, 2), pass_state, self.conv_state)
            ).transpose(1, 2)
            x, b, c = convolution_output.split([inner_width, group_width, group_width], -1)
            heads_per_group = spec.num_heads // spec.n_groups
            b, c = (
                tensor.unflatten(-1, (spec.n_groups, -1)).repeat_interleave(heads_per_group, 2) for tensor in (b, c)
            )
            stored_state = self.ssm_state.single_tensor(pass_state)
            scan_output, last_state = self.scan(x.unflatten(-1, (spec.num_heads, -1)), time_step, b, c, stored_state)
            self.ssm_state.keep(pass_state, last_state)
            return self.out_proj(self._gated_output(scan_output.flatten(2), gate))

    return Mamba2Reference
