"""Runs a model whose layers are wrapped by `fully_shard`, each by itself, and then the model around them.

The hooks of a group stand around its module: outside of a checkpoint in it, as in torchtitan
(torchtitan/models/llama3/infra/parallelize.py). What a layer reads beside its input passes no hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...components.norm import Norm
from ...flow.program import Scope, Step
from ...flow.record import Flow
from ...simulator.liveness import unused
from ...simulator.lowering import ENTRY, Frame, Path
from ...simulator.meter import Place
from ...simulator.profiles.context_parallel import RingAttention
from ...simulator.strides import Shape
from ...simulator.tensor import FLOAT8, Dtype, Tensor, empty
from .param_groups import Group, Parameter, Traffic


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


IN_TITAN = {
    "q_proj": "attention.wq",
    "k_proj": "attention.wk",
    "v_proj": "attention.wv",
    "o_proj": "attention.wo",
    "gate_proj": "feed_forward.w1",
    "down_proj": "feed_forward.w2",
    "up_proj": "feed_forward.w3",
    "lm_head": "output",
}
"""A linear layer → its name in torchtitan, with that of its module, as jobs name layers (models/llama3/model.py)."""

SHARED_LAYERS = "FSDP2 of layers that share parameters is not modelled"


class Sharded(RingAttention):
    """Runs a program whose parameters are in groups.

    traffic: what the groups share; None in a run that only finds the parameters.
    layer_paths: of each stack, the path of its layers. splits: whether embedding and head are groups of their own.
    groups: the group of each layer, and those around them; that of the model first.
    sharded: the parameters by their paths, in the order in which the program uses them.
    """

    traffic: Traffic | None = None
    layer_paths: Collection[str] = ()
    splits = False

    def shard(self, traffic: Traffic, layer_paths: Collection[str], splits: bool) -> None:
        """From here on parameters are sharded. splits: whether embedding and head are groups of their own."""
        self.traffic, self.layer_paths, self.splits = traffic, layer_paths, splits
        self.groups: dict[Layer, Group] = {MODEL: Group(traffic, "", reshards=False)}
        self.sharded: dict[Path, Parameter] = {}

    # --- parameters -------------------------------------------------------------------------------------------------

    def prepare(self, program: Flow) -> None:
        super().prepare(program)
        late = norms_of_layers(program)
        for group in self.groups.values():
            group.parameters.sort(key=in_group_order([one.path for one in group.parameters], late))
        if not self.groups[MODEL].parameters:
            del self.groups[MODEL]
        self.in_head = [item.name for item in program.root.items if isinstance(item, Scope) and item.name in IN_HEAD]

    def made_parameter(self, key: Path, like: Tensor) -> Tensor:
        """The gathered form of a parameter, whose shard is made; a buffer is whole on every rank."""
        assert self.traffic is not None
        how = self.traffic.how
        if key in self.buffers:
            stored = how.frozen or how.dtype
            return empty(self.graph.meter, like.shape, stored if like.dtype is self.dtype else like.dtype)
        if not like.shape:
            raise self.unsupported("fully_shard takes no parameter without rows", self.name_of(key))
        layer = self.layer_of(key)
        width = FLOAT8.bytes if self.gathers_narrow(key, like) else how.gathered.bytes
        made = self.sharded[key] = Parameter(self.graph.meter, key, like, how, width, self.gets_partial_sums(key))
        if layer not in self.groups:
            name = layer.path if layer.turn < 0 else f"{layer.path}.{layer.turn}"
            self.groups[layer] = Group(self.traffic, name, reshards=layer != HEAD)
        self.groups[layer].parameters.append(made)
        return made.whole

    def gathers_narrow(self, key: Path, like: Tensor) -> bool:
        """Whether a parameter is gathered in 8 bits: the matrix of a linear layer that runs in 8 bits."""
        assert self.traffic is not None
        float8 = self.traffic.how.float8
        if float8 is None or not float8.gathers or len(like.shape) != 2:
            return False
        name = self.name_of(key).removesuffix(".weight")
        if name == EMBEDDING.path:
            return False
        rows, columns = self.whole_shape(key, like.shape)
        return float8.converts(name_in_titan(name), rows, columns)

    def whole_shape(self, key: Path, shape: Shape) -> Shape:
        """The shape of a parameter before tensor parallelism divides it."""
        return shape

    def gets_partial_sums(self, key: Path) -> bool:
        """Whether the gradient that a rank has of a whole parameter is a part of a sum over its tensor group."""
        return False

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
                raise self.unsupported(SHARED_LAYERS, self.name_of(key))
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
            elif ".".join(names) in self.layer_paths:
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
            if frame.turn is not None and ".".join(names) in self.layer_paths:
                return Layer(".".join(names), frame.turn)
        return MODEL

    def norm(self, x: Tensor, spec: Norm, name: str, shape: Any, groups: Any = 1, module: Path | None = None) -> Tensor:
        """A norm. torchtitan compiles each layer by itself, and no norm outside of them (`apply_compile`)."""
        choices = self.choices
        if choices.compiled and self.running == MODEL:
            self.choices = replace(choices, compiled=False)
        try:
            return super().norm(x, spec, name, shape, groups, module)
        finally:
            self.choices = choices

    def run(self, program: Flow) -> Tensor:
        if self.traffic is None:
            return super().run(program)
        group = self.groups.get(MODEL)
        if group is not None:
            entry = self.given.get(ENTRY) if program.entry is not None else None
            passed = group.pre_forward(entry)
            if passed is not None:
                self.given[ENTRY] = passed
            del entry, passed
        out = super().run(program)
        if group is not None:
            group.post_forward([out, *self.further], last=True)
        self.traffic.gathered = None  # the last gathering of the forward pass
        return out

    def step(self, step: Step) -> None:
        is_embedding = len(self.frames) <= 1 and step.name == EMBEDDING.path and bool(step.outs)
        if self.traffic is None or not self.splits or not is_embedding:
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
        if scope.name == self.in_head[0]:
            passed = group.pre_forward(self.get(scope.reads))
            assert passed is not None
            self.values[id(scope.reads)] = passed
        super().module(frame)
        if scope.name == self.in_head[-1]:
            group.post_forward([self.get(scope.gives)])

    def layer(self, frame: Frame, x: Tensor) -> Tensor:
        turn = -1 if frame.turn is None else frame.turn
        path = ".".join(filter(None, (self.path, frame.scope.name)))
        if self.traffic is None or path not in self.layer_paths:
            return super().layer(frame, x)
        group, meter = self.groups.get(Layer(path, turn)), self.graph.meter
        if group is None:
            raise self.unsupported(SHARED_LAYERS, frame.scope.name)
        outside, meter.place = meter.place, Place(meter.place.phase, turn, path)
        passed = group.pre_forward(x)
        assert passed is not None
        out = super().layer(frame, passed)
        frame.named.clear()  # the variables of its forward pass
        group.post_forward([out])
        meter.place = outside
        return out


def name_in_titan(name: str) -> str:
    """The path of a linear layer in torchtitan's models; of one that is not known, as it is."""
    *above, last = name.split(".")
    return ".".join((*above[:-1], IN_TITAN[last])) if last in IN_TITAN else name


def norms_of_layers(program: Flow) -> frozenset[str]:
    """The names of norms that stand right below a layer."""
    layers = (scope for scope in program.root.scopes() if scope.takes is not None)
    below = (item for scope in layers for item in scope.items if isinstance(item, Scope))
    return frozenset(item.name for item in below if item.about.get("kind") == "norm")


def in_group_order(paths: Sequence[Path], late: Collection[str]) -> Callable[[Parameter], tuple[bool, int, bool]]:
    """A key by which a group's parameters have the order of `nn.Module.named_parameters` (`_get_managed_states`).

    The program has them in the order in which they are used. A module has its weight before its bias, and a layer has
    its sublayers before its own norms, as in transformers, torchtitan and the reference. This matters for the last
    gradient of a group, which lives longer than the others.

    late: the names of these norms.
    """
    first: dict[Path, int] = {}
    for path in paths:
        first.setdefault(_module_of(path), len(first))

    def key(one: Parameter) -> tuple[bool, int, bool]:
        turn = next((i for i, part in enumerate(one.path) if type(part) is int), len(one.path))
        is_late = one.path[turn + 1 : turn + 2] != () and one.path[turn + 1] in late
        return is_late, first[_module_of(one.path)], str(one.path[-1]).endswith("bias")

    return key


def _module_of(path: Path) -> Path:
    """The path of the module that has a parameter."""
    *above, last = path
    return (*above, str(last).rpartition(".")[0])
