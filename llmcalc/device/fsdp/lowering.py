"""Runs a model whose layers are wrapped by `fully_shard`, each by itself, and then the model around them.

The hooks of a group stand around its module: outside of a checkpoint in it, as in torchtitan
(torchtitan/models/llama3/infra/parallelize.py). What a layer reads beside its input passes no hooks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ...flow.record import Flow
from ...kernels.layout import Shape
from ...kernels.lowering import Frame, Path, unused
from ...kernels.meter import Place
from ...kernels.profiles.eager import Eager
from ...kernels.tensor import Dtype, Tensor, empty
from .groups import Group, Parameter, Traffic, in_group_order


class Layer(NamedTuple):
    """A layer. path: that of the layers of its stack. turn: its index."""

    path: str
    turn: int


MODEL = Layer("", -1)
"""What is in no other group."""

EMBEDDING, HEAD = Layer("embed_tokens", -1), Layer("norm, lm_head", -1)
"""The embedding, and the last norm with the output layer: groups of their own in torchtitan since 2025-07-28."""

IN_HEAD = ("norm", "lm_head")
"""The modules of `HEAD`, of which a model has one or both."""


class Sharded(Eager):
    """Runs a program whose parameters are in groups.

    traffic: what the groups share; None in a run that only finds the parameters.
    stacks: the paths of the layers of each stack.
    groups: the group of each layer, and that of the model around them.
    sharded: the parameters by their paths, in the order in which the program uses them.
    """

    traffic: Traffic | None = None
    stacks: Collection[str] = ()
    splits = False

    def shard(self, traffic: Traffic, stacks: Collection[str], splits: bool) -> None:
        """From here on parameters are sharded. splits: whether embedding and head are groups of their own."""
        self.traffic, self.stacks, self.splits = traffic, stacks, splits
        self.groups: dict[Layer, Group] = {MODEL: Group(traffic, "", reshards=False)}
        self.sharded: dict[Path, Parameter] = {}

    # --- parameters -------------------------------------------------------------------------------------------------

    def prepare(self, program: Flow) -> None:
        super().prepare(program)
        for group in self.groups.values():
            group.parameters = in_group_order(group.parameters)

    def made_parameter(self, key: Path, like: Tensor) -> Tensor:
        """The gathered form of a parameter, whose shard is made; a buffer is whole on every rank."""
        assert self.traffic is not None
        how = self.traffic.how
        if key in self.buffers:
            return empty(self.graph.meter, like.shape, how.dtype if like.dtype is self.dtype else like.dtype)
        if not like.shape:
            raise self.unsupported("fully_shard takes no parameter without rows", self.name_of(key))
        made = self.sharded[key] = Parameter(self.graph.meter, key, like, how)
        layer = self.layer_of(key)
        if layer not in self.groups:
            name = layer.path if layer.turn < 0 else f"{layer.path}.{layer.turn}"
            self.groups[layer] = Group(self.traffic, name, reshards=layer != HEAD)
        self.groups[layer].parameters.append(made)
        return made.whole

    def prepare_unread(self, program: Flow) -> None:
        for name, use, _ in unused(program.root):
            if use.tensors():
                raise self.unsupported("FSDP2 of parameters that no pass reads is not modelled", name)

    @property
    def parameters(self) -> list[tuple[Any, Tensor]]:
        """This rank's rows of every trained parameter, with its path."""
        return [(path, one.own) for path, one in self.sharded.items() if one.own.leaf]

    def parameter(self, key: Path, shape: Shape, dtype: Dtype, trained: bool) -> Tensor:
        if self.traffic is not None and key in self.sharded:
            layer = self.layer_of(key)
            if layer.turn >= 0 and layer != self.running:
                raise self.unsupported("fully_shard of layers that share parameters is not modelled", self.name_of(key))
        return super().parameter(key, shape, dtype, trained)

    def layer_of(self, key: Path) -> Layer:
        """The group that a parameter is in."""
        if self.splits and len(key) > 1:
            own = str(key[1]).partition(".")[0]
            if own == EMBEDDING.path or own in IN_HEAD:
                return EMBEDDING if own == EMBEDDING.path else HEAD
        names: list[str] = []
        for part in key[1:]:
            if type(part) is not int:
                names += [part] if part else []
            elif ".".join(names) in self.stacks:
                return Layer(".".join(names), part)
        return MODEL

    def name_of(self, key: Path) -> str:
        """The path of a parameter in one string."""
        return ".".join(str(part).strip(".") for part in key[1:] if part != "")

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> Layer:
        """The layer that runs."""
        names: list[str] = []
        for frame in self.frames[1:]:
            names += [frame.scope.name] if frame.scope.name else []
            if frame.turn is not None and ".".join(names) in self.stacks:
                return Layer(".".join(names), frame.turn)
        return MODEL

    def run(self, program: Flow) -> Tensor:
        if self.traffic is None:
            return super().run(program)
        group = self.groups[MODEL]
        group.pre_forward(None)
        out = super().run(program)
        group.post_forward([out, *self.further], last=True)
        return out

    def step(self, step: Step) -> None:
        if self.traffic is None or not self.splits or len(self.frames) > 1 or step.name != EMBEDDING.path:
            super().step(step)
            return
        group = self.groups[EMBEDDING]
        group.pre_forward(None)
        super().step(step)
        group.post_forward([self.get(step.outs[0])])

    def module(self, frame: Frame) -> None:
        scope = frame.scope
        if self.traffic is None or not self.splits or len(self.frames) != 1 or scope.name not in IN_HEAD:
            super().module(frame)
            return
        assert scope.reads is not None
        assert scope.gives is not None
        group = self.groups[HEAD]
        first, last = (end in (IN_HEAD[index], *self.of_head[index:][:1]) for index, end in ((0, ""), (1, "")))
        super().module(frame)

    def layer(self, frame: Frame, x: Tensor) -> Tensor:
        turn = -1 if frame.turn is None else frame.turn
        path = ".".join(filter(None, (self.path, frame.scope.name)))
        if self.traffic is None or path not in self.stacks:
            return super().layer(frame, x)
        group, meter = self.groups[Layer(path, turn)], self.graph.meter
        outside, meter.place = meter.place, Place(meter.place.phase, turn, path)
        passed = group.pre_forward(x)
        assert passed is not None
        out = super().layer(frame, passed)
        frame.named.clear()  # the variables of its forward pass
        group.post_forward([out])
        meter.place = outside
        return out
