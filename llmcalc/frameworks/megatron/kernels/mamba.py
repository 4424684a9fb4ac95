"""The kernels of Mamba-2 on a rank: Megatron-Core's mixer with the kernels of mamba_ssm.

Source: Megatron-LM, megatron/core/ssm/mamba_mixer.py, `_ssm_training`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....algebra import Number, exact_div
from ....flow.program import AlternativeBranches, ModuleScope, Step
from ....ops import ChunkedScan
from ....parallel.layout import ImpossibleLayout
from ....simulator.published import mamba_ssm
from ....simulator.strides import Shape
from ....simulator.tensor import FLOAT32, Tensor
from .lowering import operations_by_name
from .mla import LatentAttentionKernels


class MambaKernels(LatentAttentionKernels):
    """Kernels of Mamba-2, with one function for convolution, scan and gate, and another for the norm."""

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        """Returns the kernel that runs a Mamba-2 mixer."""
        branch_items = [item for item in module_scope.items if isinstance(item, AlternativeBranches)]
        branch_steps = [operation for item in branch_items for operation in next(iter(item.branches.values())).steps()]
        scan_step = next((operation for operation in branch_steps if isinstance(operation.op, ChunkedScan)), None)
        if scan_step is None:
            return super().module_kernel(module_scope)
        return lambda: self._run_mixer(module_scope, scan_step)

    def _run_mixer(self, module_scope: ModuleScope, scan_step: Step) -> None:
        """Runs Megatron-Core's Mamba-2 mixer: projection, convolution, scan, gate and norm (`_ssm_training`)."""
        aten, scan_op = self.aten, scan_step.op
        assert isinstance(scan_op, ChunkedScan)
        named_operations = operations_by_name(module_scope)
        input_projection = named_operations["in_proj"]
        output_projection = named_operations["out_proj"]
        convolution_step = named_operations["conv1d"]
        self.do_linear(input_projection)
        projected_value = input_projection.output_values[0]
        zxbcdt = self.tensor_of(projected_value)
        self.free_value(projected_value.storage)
        batch_size, cp_size = self.run_config.batch, self.rank_choices.cp
        inner_width, conv_channels = scan_op.heads * scan_op.head_dim, convolution_step.output_values[0].width
        group_count = exact_div(exact_div(conv_channels - inner_width, 2), scan_op.state)
        copies_per_group = max(1, cp_size // group_count)
        local_groups = max(1, group_count // cp_size)  # copies of a group; groups of this rank
        if scan_op.heads % cp_size or max(group_count, cp_size) % min(group_count, cp_size):
            raise ImpossibleLayout(
                f"--cp {cp_size}: its ranks do not divide a rank's {scan_op.heads} heads and {group_count} groups of "
                "Mamba-2; expected fewer"
            )
        if cp_size > 1:
            part_widths = (
                inner_width,
                inner_width,
                group_count * scan_op.state,
                group_count * scan_op.state,
                scan_op.heads,
            )
            zxbcdt = self.exchange_to_heads(zxbcdt, part_widths, copies_per_group)
        row_count, projected_width = zxbcdt.shape
        zxbcdt = aten.reshape(
            self.swap_batch_and_tokens(zxbcdt), (batch_size, row_count // batch_size, projected_width)
        )
        conv_filters = self.weight("conv1d.weight", (conv_channels, 1, convolution_step.options["kernel"]))
        conv_bias = self.weight("conv1d.bias", (conv_channels,)) if convolution_step.options["bias"] else None
        dt_bias, a_log, d_skip = (
            self.weight(weight_name, (scan_op.heads,)) for weight_name in ("dt_bias", "A_log", "D")
        )
        if cp_size > 1:
            local_channels = exact_div(inner_width, cp_size) + 2 * local_groups * scan_op.state
            conv_filters = self.parameter_shard(conv_filters, (local_channels, 1, convolution_step.options["kernel"]))
            conv_bias = None if conv_bias is None else self.parameter_shard(conv_bias, (local_channels,))
            dt_bias, a_log, d_skip = (
                self.parameter_shard(x, (scan_op.heads // cp_size,)) for x in (dt_bias, a_log, d_skip)
            )
        dt_bias_fp32 = aten.to(dt_bias, FLOAT32)
        negative_decay = aten.scale(aten.exp(aten.to(a_log, FLOAT32)), "neg")
        scan_output = mamba_ssm.mamba_split_conv1d_scan_combined(
            aten,
            zxbcdt,
            conv_filters,
            conv_bias,
            dt_bias_fp32,
            negative_decay,
            d_skip,
            scan_op.chunk,
            scan_op.head_dim,
            local_groups,
            None,
            None,
            None,
        )
        del zxbcdt
        scan_output = self.swap_batch_and_tokens(
            aten.reshape(scan_output, (row_count, exact_div(inner_width, cp_size)))
        )
        if cp_size > 1:
            scan_output = self.exchange_to_tokens(scan_output, inner_width)
        if "norm" in named_operations:
            scan_output = mamba_ssm.rmsnorm_fn(
                aten, scan_output, self.weight("norm.weight", (inner_width,)), None, group_count
            )
        assert module_scope.output is not None or output_projection.output_values
        self.store_without_reshape(output_projection.output_values[0], self.row_linear(output_projection, scan_output))

    def exchange_to_heads(self, x: Tensor, part_widths: Sequence[Number], copies_per_group: int) -> Tensor:
        """Returns a tensor with all tokens and a shard of the heads, from a shard of tokens (`pre_conv_ssm`).

        Groups read by several ranks are repeated (mamba_context_parallel.py).
        """
        cp_size, row_count = self.rank_choices.cp, x.shape[0]
        tensor_parts = self.aten.split(x, part_widths, 1)
        del x
        exchanged_parts: list[Tensor] = []
        for i, tensor_part in enumerate(tensor_parts):
            part_width = part_widths[i] * (copies_per_group if i in (2, 3) else 1)
            if part_width != part_widths[i]:
                tensor_part = self.copy_reordered("repeat", tensor_part, (row_count, part_width))
            reordered_part = self.copy_reordered(
                "cat", tensor_part, (row_count * cp_size, exact_div(part_width, cp_size))
            )
            exchanged_parts.append(self.copy_reordered("all_to_all", reordered_part, reordered_part.shape))
            del tensor_part, reordered_part
        del tensor_parts
        concatenated_parts = self.aten.cat(exchanged_parts, 1)
        del exchanged_parts
        return self.copy_reordered("balance", concatenated_parts, concatenated_parts.shape)

    def exchange_to_tokens(self, x: Tensor, row_width: Number) -> Tensor:
        """Returns a tensor with all heads and a shard of the tokens, from a shard of heads (`post_conv_ssm`)."""
        reordered_heads = self.copy_reordered("balance", x, x.shape)
        del x
        exchanged_tokens = self.copy_reordered("all_to_all", reordered_heads, reordered_heads.shape)
        del reordered_heads
        return self.copy_reordered(
            "cat", exchanged_tokens, (exchanged_tokens.shape[0] // self.rank_choices.cp, row_width)
        )

    def parameter_shard(self, x: Tensor, shard_shape: Shape) -> Tensor:
        """Returns this rank's shard of a parameter, whose gradient covers the full parameter."""
        return self.copy_reordered("slice", x, shard_shape)

    def swap_batch_and_tokens(self, x: Tensor) -> Tensor:
        """Swaps the axes of batch and tokens by a copy; does nothing for a batch of one."""
        return x if self.run_config.batch == 1 else self.dense_copy(x)
