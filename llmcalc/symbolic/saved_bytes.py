"""The bytes that a training pass saves for backward, by module.

The forward pass runs without values, by the kernels that `llmcalc memory` runs. Sizes may be integers or integers that
know their formula, so formulas and bytes come from the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ..algebra import Number
from ..flow.program import ModuleScope, Step
from ..flow.value import Value
from ..model import ModelSpec
from ..simulator.autograd import AutogradGraph
from ..simulator.checkpoint import RegionFunction
from ..simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from ..simulator.lowering import ModuleFrame
from ..simulator.profiles.eager import EagerKernels
from ..simulator.tensor import BFLOAT16, INT64, Dtype, Tensor, count_storages_as, empty
from ..workload.recompute import NO_RECOMPUTATION, Recompute
from ..workload.rows import SOURCE_TOKENS, TOKENS
from ..workload.run_config import RunConfig
from ..workload.workload import Workload

LabelledPath: TypeAlias = tuple[tuple[str, str], ...]
"""A path in the model's tree: (name, label of the layer's kind) of each node, from the top down."""

PathNames: TypeAlias = tuple[str, ...]
"""The names of the nodes on a path, without labels."""

LOSS_PATH: LabelledPath = (("loss", ""),)
"""The path that stands for the loss, which is not a node of the model."""


class StorageLocation(NamedTuple):
    """The node of the model's tree whose module is running when a tensor is allocated, saved or freed.

    path: path of the node.
    depth: number of its names that are the path of the layer; 0 outside of layers.
    layer_index: index of the layer in the run; -1 outside of layers.
    """

    path: LabelledPath = ()
    depth: int = 0
    layer_index: int = -1

    @property
    def layer_path(self) -> LabelledPath:
        """The path of the enclosing layer; empty outside of layers."""
        return self.path[: self.depth]

    @property
    def stack_path(self) -> PathNames:
        """The module names on the path of the enclosing layer, without labels of layer kinds."""
        return tuple(stack_name for stack_name, _ in self.layer_path)


class SavedBlock:
    """The memory block of a tensor storage, with the nodes that save it for the backward pass.

    kind: its kind when it was created.
    creator_location: the node that created it.
    saving_nodes: the nodes that saved it for the backward pass, in order.
    shared_layer_ends: number of layers at whose end it was among the values that layers share.
    """

    __slots__ = ("bytes", "creator_location", "kind", "saving_nodes", "shared_layer_ends")

    def __init__(self, byte_count: Number, tensor_kind: str, creator_location: StorageLocation) -> None:
        self.bytes: Number = byte_count
        self.kind: str = tensor_kind
        self.creator_location: StorageLocation = creator_location
        self.saving_nodes: list[StorageLocation] = []
        self.shared_layer_ends: int = 0

    @property
    def location(self) -> StorageLocation:
        """The first node that saves the block; if none does, the node that created it."""
        return self.saving_nodes[0] if self.saving_nodes else self.creator_location

    @property
    def is_shared(self) -> bool:
        """Whether several layers save the same block, such as a table of angles or an encoder's output."""
        layers = {(location.stack_path, location.layer_index) for location in self.saving_nodes if location.depth}
        if any(stack_path == self.creator_location.stack_path for stack_path, _ in layers) or not layers:
            return self.shared_layer_ends > 1 and len(layers) != 1
        return len(layers) > 1


class SavedStorages:
    """A meter that also lists the live storages of a training pass, with the nodes that save them."""

    def __init__(self) -> None:
        self.kind: str = "temporary"
        self.place: StorageLocation = StorageLocation()
        self.parameter_path: None = None
        self.stream: int = 0
        self.live_blocks: dict[int, SavedBlock] = {}

    def allocate(self, byte_count: Number) -> SavedBlock:
        memory_block = SavedBlock(byte_count, self.kind, self.place)
        self.live_blocks[id(memory_block)] = memory_block
        return memory_block

    def free(self, block: SavedBlock) -> None:
        del self.live_blocks[id(block)]

    def reclassify(self, block: SavedBlock, tensor_kind: str) -> None:
        block.saving_nodes.append(self.place)


class NodeTrackingEager(EagerKernels):
    """Eager kernels that tell the meter which module is running."""

    @property
    def place(self) -> Any:
        return self.location(self.frames[1:])

    def location(self, frames: Sequence[ModuleFrame]) -> StorageLocation:
        """Returns the location of the module in the innermost of these frames."""
        named_frames = [frame for frame in frames if frame.scope.name]
        layer_frames = [
            (frame_index + 1, frame.layer_index)
            for frame_index, frame in enumerate(named_frames)
            if frame.scope.first_input is not None
        ]
        depth, layer_index = layer_frames[0] if layer_frames else (0, -1)
        return StorageLocation(
            tuple(_node_name_and_label(frame.scope) for frame in named_frames),
            depth,
            -1 if layer_index is None else layer_index,
        )

    def run_step(self, step: Step) -> None:
        memory_meter = self.graph.meter
        outer_location, location = memory_meter.place, self.location(self.frames[1:])
        memory_meter.place = (
            location._replace(path=(*location.path, _node_name_and_label(step))) if step.name else location
        )
        super().run_step(step)
        memory_meter.place = outer_location

    def run_layer(self, frame: ModuleFrame, x: Tensor) -> Tensor:
        memory_meter = self.graph.meter
        outer_location, memory_meter.place = memory_meter.place, self.location([*self.frames[1:], frame])
        layer_output = super().run_layer(frame, x)
        memory_meter.place = outer_location
        for memory_block in {
            id(tensor.storage.block): tensor.storage.block for tensor in _tensors_inside(self.pass_memo.values())
        }.values():
            memory_block.shared_layer_ends += 1
        return layer_output

    def layer_runner(self, frame: ModuleFrame, layer_input: Value, layer_output: Value) -> RegionFunction:
        for read_value in self.read_storage_ids[id(frame.scope)]:
            if read_value in self.tensors_by_value:
                self.graph.meter.reclassify(self.tensors_by_value[read_value].storage.block, "activations")
        return super().layer_runner(frame, layer_input, layer_output)


def _node_name_and_label(scope_or_step: ModuleScope | Step) -> tuple[str, str]:
    return scope_or_step.name, scope_or_step.node_fields.get("label", "")


def _tensors_inside(nested_values: Any) -> Iterator[Tensor]:
    for nested_value in nested_values:
        if isinstance(nested_value, Tensor):
            yield nested_value
        elif isinstance(nested_value, tuple | list):
            yield from _tensors_inside(nested_value)


@dataclass(frozen=True)
class RecordedPass:
    """The settings of a training pass that is simulated: batch, sequence length, number format and kernels.

    batch: sequences.
    seq: tokens per sequence, also of an encoder.
    dtype: number format of weights and activations.
    kernel_choices, recompute, included_parts: see `Lowering`.
    layer_repeats: index of a stack → number of repeats of its pattern that run; default all.
    """

    batch: Number
    seq: Number
    dtype: Dtype = BFLOAT16
    kernel_choices: KernelChoices = EAGER_CHOICES
    recompute: Recompute = NO_RECOMPUTATION
    included_parts: frozenset[str] = frozenset()
    layer_repeats: Mapping[int, int] = field(default_factory=dict)


def saved_blocks(
    spec: ModelSpec, training_pass: RecordedPass, kernel_profile: type[NodeTrackingEager] = NodeTrackingEager
) -> list[SavedBlock]:
    """Returns every storage that a training pass saves for backward, without weights and inputs.

    Raises `UnsupportedKernel` for a step of the model without kernels.
    """
    meter = SavedStorages()
    program = spec.program()
    run_config = RunConfig(Workload(training_pass.batch, training_pass.seq, source=training_pass.seq, phase="training"))
    lowering = kernel_profile(
        AutogradGraph(meter),
        run_config,
        training_pass.dtype,
        recompute=training_pass.recompute,
        included_parts=training_pass.included_parts,
        choices=training_pass.kernel_choices,
    )
    lowering.run_repeats_by_stack = dict(training_pass.layer_repeats)
    with count_storages_as(meter, "input"):
        token_ids = lowering.inputs[TOKENS] = lowering.inputs[SOURCE_TOKENS] = empty(
            meter, (training_pass.batch, training_pass.seq), INT64
        )
        lowering.create_input_frames(program)
        labels = lowering.aten.flatten(token_ids)
    model_output = lowering.run(program)
    if spec.head.type == "lm":
        meter.place = StorageLocation(LOSS_PATH)
        model_output = lowering.logits_for_loss(model_output)
        model_output = lowering.losses(model_output, labels)
    output_node = model_output.node
    del model_output
    lowering.persistent_tensors.clear()  # states that modules keep for a next pass
    memory_blocks = [memory_block for memory_block in meter.live_blocks.values() if memory_block.kind == "temporary"]
    del output_node  # whose graph keeps them
    return memory_blocks
