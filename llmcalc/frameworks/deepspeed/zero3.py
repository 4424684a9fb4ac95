"""Training steps of one rank under ZeRO's stage 3, replayed.

Every rank keeps an equal part of each parameter, of its gradient and of the optimizer's states. Parameters are whole
while modules run (`coordinator`); gradients are summed as soon as a bucket is full.

Each method allocates and frees what the method that it names does, in the same order. Source:
deepspeed/runtime/zero/stage3.py of 0.19.8 (`DeepSpeedZeroOptimizer_Stage3`).
"""

from __future__ import annotations

from collections.abc import Callable

from ...device_memory.optimizers.run_step import run_step
from ...device_memory.optimizers.step import Trained
from ...device_memory.training import Training
from ...errors import InputError
from ...model import ModelSpec
from ...simulator.meter import Meter, Place
from ...simulator.tensor import FLOAT32, Storage, Tensor, counted_as, empty
from .lowering import Gathered
from .param_coordinator import Coordinator, Parameter
from .partitions import in_module_order
from .settings import DeepSpeedSettings
from .zero import DOUBLE, ZeroRun

NORM_BUFFER = 250_000_000
"""Elements whose norm is computed at once (`_constant_buffered_norm2`)."""


class GatheredRun(ZeroRun):
    """Replays steps of one rank. ranks: over which everything is divided; all of them hold as much."""

    profile = Gathered
    lowering: Gathered

    def __init__(
        self,
        spec: ModelSpec,
        training: Training,
        settings: DeepSpeedSettings,
        ranks: int,
        workspace: int = 0,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(spec, training, settings, ranks, workspace, meter)
        if training.choices.cross_entropy in ("chunked", "split"):
            raise InputError(
                f"--cross-entropy {training.choices.cross_entropy}: with stage 3 of ZeRO it is not modelled; "
                "expected eager or fused"
            )
        self.coordinator = Coordinator(self.meter, settings, ranks)
        self.lowering.gather_with(self.coordinator)
        self.bucket: list[Parameter] = []
        self.elements = 0
        self.buffer: Storage | None = None

    # --- set-up -----------------------------------------------------------------------------------------------------

    def prepare_training(self) -> None:
        """The rank's parts: of parameters, in float32, of gradients; and the buffer of a bucket."""
        coordinator, meter, width = self.coordinator, self.meter, self.dtype.bytes
        by_path = {one.path: one for one in coordinator.parameters}
        coordinator.parameters = [by_path[path] for path in in_module_order(list(by_path))]
        coordinator.mark_persistent()
        trained = [one for one in coordinator.parameters if one.whole.leaf]
        frozen = [one for one in coordinator.parameters if not one.whole.leaf]
        self.groups = self._sub_groups(trained)
        self.parameters = [one.whole for one in trained]
        total = sum(one.part for one in trained)
        with counted_as(meter, "weights"):
            self.kept: list[Storage] = []
            if self.settings.offload_param == "none":
                self.kept = [Storage(meter, one.part * one.whole.dtype.bytes) for one in frozen]
                self.kept.append(Storage(meter, total * width))  # lp_param_buffer
        self.trained = []
        if not self.offloads:
            self._create_fp32_partitions()
        if self.settings.contiguous_gradients:
            with counted_as(meter, "communication"):
                self.buffer = Storage(meter, self.most * self.sends.bytes)
        self.grad_partitions_flat_buffer: Storage | None = None
        if not self.offloads:
            with counted_as(meter, "gradients"):
                self.grad_partitions_flat_buffer = Storage(meter, total * self.sums_in.bytes)

    @property
    def offloads(self) -> bool:
        """Whether the optimizer's states and the rank's gradients are on the host."""
        return self.settings.offload_optimizer != "none"

    def _create_fp32_partitions(self) -> None:
        """The copies in float32 that the optimizer updates."""
        meter = self.meter
        for group in self.groups:  # _create_fp32_partitions
            size = sum(one.part for one in group)
            converted = Storage(meter, size * FLOAT32.bytes)
            with counted_as(meter, "optimizer"):
                self.trained.append(Trained(empty(meter, (size,), FLOAT32)))
            del converted
        largest = max(sum(one.part for one in group) for group in self.groups)
        gradient_buffer = Storage(meter, largest * FLOAT32.bytes)  # initialize_optimizer_states
        del gradient_buffer

    def _sub_groups(self, trained: list[Parameter]) -> list[list[Parameter]]:
        """`_create_fp16_sub_groups`."""
        groups: list[list[Parameter]] = [[]]
        for one in trained:
            if groups[-1] and sum(each.part for each in groups[-1]) >= self.settings.sub_group_size:
                groups.append([])
            groups[-1].append(one)
        return groups

    # --- passes -----------------------------------------------------------------------------------------------------

    def forward(self) -> Tensor:
        self.coordinator.reset_step()
        return super().forward()

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.meter.place = Place("backward")
        self.reduce()
        for module in list(self.coordinator.in_backward):
            self.coordinator.after_backward(module)

    @property
    def on_gradient(self) -> Callable[[Tensor], None]:
        return self.reduce_independent

    def reduce_independent(self, weight: Tensor) -> None:
        """The hook of a parameter (`reduce_independent_p_g_buckets_and_remove_grads`)."""
        one = self.coordinator.by_tensor.get(id(weight))
        if one is None:  # an input of a part that runs again
            return
        if self.elements + one.count > self.most and self.elements > 0:
            self.reduce()
        if self.buffer is not None and self.elements + one.count <= self.most:
            weight.grad = Tensor(weight.shape, self.dtype, self.buffer)
        self.bucket.append(one)
        self.elements += one.count
        module = self.coordinator.modules[one.module]
        if all(each.whole.grad is not None or each in self.bucket or not each.whole.leaf for each in module):
            self.coordinator.after_backward(one.module)

    def reduce(self) -> None:
        """Sums a bucket over ranks, and adds this rank's parts to those that it keeps."""
        if not self.bucket:
            return
        settings = self.settings
        with self.beside():
            if settings.contiguous_gradients and self.elements <= self.most and not settings.reduce_scatter:
                grad_partitions = self._avg_scatter_contiguous_grads()
            else:
                grad_partitions = self._avg_scatter_grads()
            for one in self.bucket:
                if self.offloads:
                    self._copy_to_host(one)
                one.whole.grad = None
            del grad_partitions
        self.bucket, self.elements = [], 0

    def _copy_to_host(self, one: Parameter) -> None:
        """`partition_grads`: the sum of a part comes back, to add to it; at last its norm and a copy in float32."""
        grad_buffer = Storage(self.meter, one.part * self.sums_in.bytes)
        if not self.boundary:
            return
        in_double = Storage(self.meter, min(one.part, NORM_BUFFER) * DOUBLE)
        self.norms[id(one)] = Storage(self.meter, DOUBLE)
        del in_double
        if self.sums_in is not FLOAT32:
            converted = Storage(self.meter, one.part * FLOAT32.bytes)
            del converted
        del grad_buffer

    def _avg_scatter_contiguous_grads(self) -> list[Storage]:
        """Every rank gets the sums of all; `mul` copies them. Returns the storages of this rank's parts."""
        sent = summed = None
        if self.sends is not self.dtype:
            sent = Storage(self.meter, self.elements * self.sends.bytes)
        if self.ranks > 1:
            summed = Storage(self.meter, self.elements * self.sends.bytes)
        sent = None
        if self.sends is not self.sums_in:
            sent, summed = Storage(self.meter, self.elements * self.sums_in.bytes), None
        padded = [Storage(self.meter, one.part * self.sums_in.bytes) for one in self.bucket if one.count % self.ranks]
        return [*padded, *(one for one in (sent, summed) if one is not None)]

    def _avg_scatter_grads(self) -> list[Storage]:
        """`reduce_scatter_coalesced`: the gradients are copied side by side, but for a single one without padding.

        Returns the storages of this rank's parts.
        """
        casts: list[Storage] = []
        if self.sends is not self.dtype:
            casts = [Storage(self.meter, one.count * self.sends.bytes) for one in self.bucket]
        padded = sum(one.part for one in self.bucket) * self.ranks
        flat: list[Storage] = []
        if len(self.bucket) > 1 or padded > self.elements:
            flat = [Storage(self.meter, padded * self.sends.bytes)]
        if self.sends is self.sums_in:
            return flat or casts
        casts = []
        return [Storage(self.meter, one.part * self.sums_in.bytes) for one in self.bucket]

    # --- the step ---------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """`step`. The optimizer updates one sub-group after the other."""
        self.meter.place = Place("step")
        training = self.training
        self.coordinator.release_all()
        if self.offloads:
            self.norms = {}
            self.coordinator.gather_persistent()
            return
        for group in self.groups:  # get_grad_norm_direct
            for one in group:
                in_double = Storage(self.meter, one.part * DOUBLE)
                del in_double
        for group, updated in zip(self.groups, self.trained, strict=True):
            with counted_as(self.meter, "gradients"):
                updated.gradient = self._single_grad_partition(group)
            with self.graph.no_grad():
                run_step(
                    self.graph,
                    training.optimizer,
                    [updated],
                    training.implementation,
                    training.momentum,
                    training.state_dtype,
                    training.torch,
                )
            updated.gradient = None
        self.coordinator.gather_persistent()

    def _single_grad_partition(self, group: list[Parameter]) -> Tensor:
        """The gradients of a sub-group, side by side in float32 (`_prepare_fp32_grad_for_sub_group`)."""
        size = sum(one.part for one in group)
        flat = self.grad_partitions_flat_buffer
        assert flat is not None
        if len(group) > 1:
            flat = Storage(self.meter, size * self.sums_in.bytes)
        if self.sums_in is FLOAT32:
            return Tensor((size,), FLOAT32, flat)
        return empty(self.meter, (size,), FLOAT32)
