"""Configs of compressed-tensors (llm-compressor) and ModelOpt (NVIDIA): groups of modules, each with its own format.

The layouts are in `formats`. compressed-tensors: compressors/*, quantization/lifecycle/initialize.py at 0.20
(`weight_g_idx`, for actorder "group", at 0.10). ModelOpt stores fp32 `weight_scale_2` and `input_scale` for NVFP4, and
`weight_scale` and `input_scale` for FP8.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError, shown
from .base import Scheme
from .fields import Fields
from .formats import FP4, FP8, LinearFormat, PackedInt, Static, Whole, WholeInt
from .linear import Group, LinearScheme
from .patterns import Named

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp8-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
KV = "the config quantises the KV cache, too: give --kv-dtype; scales of it are not counted"
ARGUMENTS = ("observer", "observer_kwargs", "dynamic", "actorder", "scale_dtype", "zp_dtype", "is_mse")
"""Fields that every scheme has for weights or activations; some of them are checked below."""


def compressed_tensors(c: Fields) -> Scheme:
    """Reads a compressed-tensors config: the groups of `config_groups`, in their order."""
    c.ignore("version")
    for name in ("sparsity_config", "transform_config"):
        c.must(name, None, {})
    overall = c.get("format")
    groups_table = c.table("config_groups")
    if groups_table is None or not groups_table.data:
        raise c.wrong("config_groups", None, "a table of groups")
    groups, labels = [], []
    for name in groups_table.data:
        one = groups_table.table(name)
        if one is None:
            raise groups_table.wrong(name, None, "how a group of modules is quantised")
        group, label = _group(one, overall)
        groups.append(group)
        labels.append(label)
    kept = Named(c.texts("ignore"), "compressed-tensors", "ignore")
    remarks = (
        ["scales in the model's own number format"]
        if any(isinstance(g.format, PackedInt | WholeInt) for g in groups)
        else []
    )
    if c.get("kv_cache_scheme"):
        remarks.append(KV)
    return LinearScheme(
        "+".join(dict.fromkeys(labels)),
        "compressed-tensors",
        tuple(remarks),
        tuple(groups),
        head=True,
        everywhere=True,
        kept=kept,
    )


def _group(c: Fields, overall: Any) -> tuple[Group, str]:
    c.must("output_activations", None)
    targets = c.texts("targets")
    weights, inputs = c.table("weights"), c.table("input_activations")
    layout = c.get("format") or overall
    c.all_read()
    if weights is None:
        raise c.wrong("weights", None, "how weights are quantised")
    if not targets:
        raise c.wrong("targets", targets, "module names or Linear")
    named = None if "Linear" in targets else Named(targets, "compressed-tensors", "targets")
    stored, label = _format(weights, layout, _static(inputs))
    return Group(stored, named), label


def _static(inputs: Fields | None) -> Static:
    """The stored scales of activations: none if they are dynamic, one if only the scales of groups are dynamic."""
    if inputs is None:
        return Static()
    inputs.ignore("num_bits", "type", "group_size", "block_structure", *ARGUMENTS)
    dynamic, strategy, symmetric = inputs.get("dynamic", False), inputs.get("strategy"), inputs.get("symmetric", True)
    inputs.all_read()
    inputs.one_of("dynamic", dynamic, True, False, "local")
    inputs.one_of("symmetric", symmetric, True, False)
    if dynamic is False:
        inputs.one_of("strategy", strategy, "tensor", None)
    return Static() if dynamic is True else Static(1, 0 if symmetric else 1)


def _format(w: Fields, layout: Any, static: Static) -> tuple[LinearFormat, str]:
    w.ignore(*ARGUMENTS)
    w.must("dynamic", False, None)
    kind, bits, group, symmetric = (
        w.get("type", "int"),
        w.get("num_bits"),
        w.group("group_size"),
        w.get("symmetric", True),
    )
    strategy = w.get("strategy") or ("tensor" if group is None else "group")
    blocks = w.pair("block_structure")
    w.all_read()
    w.one_of("strategy", strategy, "tensor", "channel", "group", "block", "tensor_group")
    w.one_of("symmetric", symmetric, True, False)
    w.one_of("type", kind, "int", "float")
    if strategy in ("group", "tensor_group") and group is None:
        raise w.wrong("group_size", group, "a positive whole number for that strategy")
    if layout is None or not isinstance(layout, str) or layout not in FORMATS:
        raise w.wrong("format", layout, "one of " + ", ".join(FORMATS))
    if kind == "float" and bits == 4:
        w.one_of("symmetric", symmetric, True)
        if strategy == "tensor_group" and layout == "nvfp4-pack-quantized":
            return FP4(group or 16, 1, static.scales), "nvfp4"
        if strategy == "group" and layout == "mxfp4-pack-quantized":
            return FP4(group or 32, 0), "mxfp4-linear"
        raise w.wrong(
            "format",
            layout,
            "nvfp4-pack-quantized with tensor_group or mxfp4-pack-quantized with group, for 4-bit floats",
        )
    if kind == "float":
        w.one_of("num_bits", bits, 8)
        w.one_of("symmetric", symmetric, True)
        w.one_of("strategy", strategy, "tensor", "channel", "block", "group")
        if strategy == "block" and blocks is None:
            raise w.wrong("block_structure", blocks, "two positive whole numbers")
        over: tuple[int, int] | Whole = "tensor" if strategy == "tensor" else "row"
        if strategy in ("block", "group"):
            over = blocks if strategy == "block" and blocks is not None else (1, group or 32)
        if layout == "mxfp8-quantized":
            w.one_of("strategy", strategy, "group")
        return FP8(over, 1 if layout == "mxfp8-quantized" else None, static.scales, static.zeros), "fp8"
    if layout == "pack-quantized":
        w.one_of("num_bits", bits, 2, 3, 4, 5, 6, 7, 8)
        w.one_of("strategy", strategy, "tensor", "channel", "group")
        indexed = w.get("actorder") in ("group", True)
        packed = PackedInt(bits, group if strategy == "group" else None, symmetric, indexed, whole=strategy == "tensor")
        return packed, f"w{bits}a16" + (f"-g{group}" if strategy == "group" else "")
    w.one_of("num_bits", bits, 2, 3, 4, 5, 6, 7, 8)  # each code takes one byte
    w.one_of("strategy", strategy, "channel", "tensor", "group")
    shared: int | Whole = (
        "tensor" if strategy == "tensor" else "row" if strategy == "channel" or group is None else group
    )
    return WholeInt(shared, symmetric, static), f"w{bits}a8" if bits != 8 else "w8a8"


def modelopt(c: Fields) -> Scheme:
    """Reads a ModelOpt config: NVFP4 or FP8 for all linear layers that the config does not exclude."""
    c.ignore("config_groups", "group_size", "version")
    algorithm = c.get("quant_algo")
    remarks = (KV,) if any([c.get("kv_cache_scheme"), c.get("kv_cache_quant_algo")]) else ()
    names = c.texts("ignore", "exclude_modules")
    kept = Named(names, "modelopt", "ignore")
    if algorithm == "NVFP4":
        group = c.group("group_size", 16)
        return LinearScheme(
            "nvfp4", "ModelOpt", remarks, (Group(FP4(group or 16, 1, 1)),), head=True, everywhere=True, kept=kept
        )
    if algorithm == "FP8":
        return LinearScheme(
            "fp8", "ModelOpt", remarks, (Group(FP8("tensor", 4, 1)),), head=True, everywhere=True, kept=kept
        )
    raise InputError(f"quantization_config: quant_algo: {shown(algorithm)}; expected NVFP4 or FP8")
