"""Where a class of `transformers` holds what a node of the tree counts: its modules go by other names than the
reference's.

A node's place is found by name alone, never by number: a part of a layer is one of a few names that classes give it
(`PARTS`), and what is below a part is a module of the node's own name, where the class has one. Of what stands several
times, each is the module of its place among those of a numbered list that hold anything. A node that is not found is
not compared by itself; it is in the total of the layer that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ..flow.tree import Node

Found: TypeAlias = dict[str, tuple[str, ...]]
"""A node's path as the reference names it → the modules of the class that together are the node."""

PARTS: dict[str, tuple[str, ...]] = {
    "self_attn": (
        "norm_attn_norm.attn",
        "layer.0.SelfAttention",
        "layer.0.LocalSelfAttention",
        "layer.0.TransientGlobalSelfAttention",
        "attention.self + attention.output.dense",
        "rel_attn - rel_attn.layer_norm",
        "attention.attn",
        "attention.attention",
        "temporal_block",
        "self_attn",
        "attn",
        "self_attention",
        "attention",
        "multi_head_attention",
        "mixer",
    ),
    "cross_attn": ("layer.1.EncDecAttention", "encoder_attn", "cross_attention", "cross_attn"),
    "mlp": (
        "layer.2.DenseReluDense",
        "layer.1.DenseReluDense",
        "layer.2.mlp",
        "layer.1.mlp",
        "intermediate.dense + output.dense",
        "fc1 + fc2",
        "feed_forward",
        "ffn",
        "ff - ff.layer_norm",
        "block_sparse_moe + shared_mlp",
        "block_sparse_moe",
        "shared_mlp",
        "router + experts",
        "mlp_block",
        "mlp - mlp.post_mlp_layernorm",
        "mlp",
        "mixer",
    ),
    "dense": ("mlps", "mlp"),
    "linear_attn": ("linear_attn", "self_attn"),
    "mamba": ("mamba", "mixer"),
    "state_space": ("mamba",),
    "conv": ("conv",),
    "recurrent": ("temporal_block",),
    "time_mix": ("attention",),
    "channel_mix": ("feed_forward",),
    "mlstm": ("mlstm_layer",),
    "laurel": ("laurel",),
    "transformer": ("shared_transformer", "shared_transf"),
    "linear": ("linear",),
    "mixer": ("mamba_decoder.mamba",),
    "self_attn_pre_norm_gate": ("input_layernorm.mlp",),
    "mlp_pre_norm_gate": ("post_attention_layernorm.mlp",),
    "per_layer_input": ("per_layer_input_gate + per_layer_projection + post_per_layer_input_norm",),
}
"""A layer's part → where classes hold it below the layer, the first that a class has;
`+` joins modules, `-` leaves one out.
"""

IN_THE_LAYER = frozenset({"predict", "correct", "self_attn_connection", "mlp_connection"})
"""Parts with products that classes compute in the layer itself, for all of which no module stands."""

OF_THE_STACK = (".relative_attention_bias", ".global_relative_attention_bias")
"""The modules that hold T5's one table of all layers, and LongT5's second one, inside the first of them."""

OTHER_NAMES = {"mlp": "feed_forward", "adapters": "gate_up_proj_adapter_list"}
"""What a class calls a node below a part where it has none of the node's own name (Zamba)."""

NAMESAKES = frozenset(
    {
        "self_attn.compressor",
        "transformer.self_attn.q_proj",
        "transformer.self_attn.k_proj",
        "transformer.self_attn.v_proj",
    }
)
"""What a class calls by a name of the tree, and which holds more (DeepSeek-V4's indexer) or less (Zamba 2's adapters).
"""

HOLDS = {"q_proj": "gate_proj"}
"""A map with which a class makes one of what the tree has as two:
where it has no module for the second, the first holds both.
"""


def places(tree: Node, held: Mapping[str, int], kind: str) -> Found:
    """Where the class has the layers of the tree and what is below them. held: parameters by module path.
    kind: of the spec.
    """
    found: Found = {}
    sides = (
        {child.name: child for child in tree.children if child.is_stack} if kind == "encoder-decoder" else {"": tree}
    )
    for side, stack in sides.items():
        layers = [child for child in stack.children if child.kind == "layer" and child.indices is not None]
        depth = 1 + max((max(child.indices) for child in layers if child.indices), default=-1)
        prefix = _numbered(held, depth, side)
        if prefix is None:
            continue
        for layer in layers:
            for i in layer.indices or ():
                found |= _layer(f"{side}.layers.{i}".lstrip("."), layer, f"{prefix}.{i}", held)
    return found


def _numbered(held: Mapping[str, int], depth: int, side: str) -> str | None:
    """The path of the numbered list that has exactly as many modules as the stack has layers:
    the one with the most parameters.
    """
    lists = {path.rpartition(".")[0] for path in held if path.endswith(".0")}
    fitting = [
        p for p in lists if side in [*p.split("."), ""] and f"{p}.{depth - 1}" in held and f"{p}.{depth}" not in held
    ]
    return min(fitting, key=lambda p: (-held[p], p), default=None)


def _layer(path: str, layer: Node, where: str, held: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The layer itself, its parts by name, and below each part what has the same name."""
    yield path, (where,)
    for part in layer.children:
        for names in PARTS.get(part.name, ()):
            modules = tuple(_at(where, name) for name in names.replace(" - ", " + -").split(" + "))
            if all(module.removeprefix("-") in held for module in modules):
                for place, standing in _places_of(f"{path}.{part.name}", part, modules, held):
                    yield from _below(place, part, standing, held)
                break


def _at(where: str, name: str) -> str:
    return f"-{where}.{name[1:]}" if name.startswith("-") else f"{where}.{name}"


def _places_of(
    path: str, node: Node, modules: tuple[str, ...], held: Mapping[str, int]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Where the node stands: once, or as often as it is repeated,
    each in its place of the list that the one module is.
    """
    if node.indices is None:
        yield path, modules
        return
    members = sorted(
        int(name)
        for name in (p.removeprefix(f"{modules[0]}.") for p in held if p.startswith(f"{modules[0]}."))
        if name.isdigit()
    )
    for i in node.indices:
        if i < len(members):
            yield f"{path}.{i}", (f"{modules[0]}.{members[i]}",)


def _below(
    path: str, node: Node, modules: tuple[str, ...], held: Mapping[str, int]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield path, modules
    names = {child.name for child in node.children}
    for child in node.children:
        own, another = (
            [at for m in modules if (at := f"{m}.{name}") in held]
            for name in (child.name, OTHER_NAMES.get(child.name, child.name))
        )
        inside = own or another
        second = HOLDS.get(child.name)
        both = second in names and not any(f"{module}.{second}" in held for module in modules)
        other = any(f"{path}.{child.name}".endswith("." + name) for name in NAMESAKES)
        if len(inside) == 1 and not other and not both:
            for place, standing in _places_of(f"{path}.{child.name}", child, (inside[0],), held):
                yield from _below(place, child, standing, held)


def of_nodes(found: Found, measured: Mapping[str, int]) -> dict[str, int]:
    """What the class's modules measured, by the nodes' paths."""
    return {
        path: sum(-measured.get(m[1:], 0) if m.startswith("-") else measured.get(m, 0) for m in modules)
        for path, modules in found.items()
    }


def run_by_themselves(found: Found, ran: frozenset[str]) -> Found:
    """The nodes whose modules were all called:
    the work of another (a convolution whose weights are used by name) is its holder's.
    """
    return {path: modules for path, modules in found.items() if all(m.startswith("-") or m in ran for m in modules)}


def without_shared_table(tree: Node, held: Mapping[str, int]) -> dict[str, int]:
    """Parameters by module path; without the table of positions in the first layer, where it belongs to the stack."""
    own = dict(held)
    stacks = (tree, *(child for child in tree.children if child.is_stack))
    if not any(child.name == "relative_bias" for stack in stacks for child in stack.children):
        return own
    for path, size in held.items():
        above = path if path.endswith(OF_THE_STACK) else ""
        while above:
            own[above] -= size
            above = above.rpartition(".")[0]
    return own
