"""Cases of single kernels: the published function, and that of `llmcalc.simulator.published` that stands for it."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmcalc.simulator.aten import Aten
from llmcalc.simulator.published import causal_conv1d, fla, jet_nemotron, lightning_attn, mamba_ssm, mlstm_kernels, rwkv
from llmcalc.simulator.tensor import FLOAT32, Tensor

Sizes = dict[str, int]
Input = tuple[tuple[int, ...], str]
BF16, F32 = "bfloat16", "float32"


@dataclass(frozen=True)
class KernelCase:
    """A kernel at some sizes.

    inputs: (sizes) → the shape and type of each input; all are trained.
    ours: (t, sizes, *inputs) → the result. theirs: the same on torch's tensors, with `published` inside.
    """

    name: str
    sizes: Sequence[Sizes]
    inputs: Callable[[Any], list[Input]]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]


def published(path: str) -> Any:
    """A function of a library: `module:name`."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


class Of(types.SimpleNamespace):
    """Sizes by name."""


def bf16(*shapes: tuple[int, ...]) -> list[Input]:
    return [(shape, BF16) for shape in shapes]


def f32(*shapes: tuple[int, ...]) -> list[Input]:
    return [(shape, F32) for shape in shapes]


# --- causal_conv1d and the selective scan ----------------------------------------------------------------------------

CONV, SCAN = "causal_conv1d:causal_conv1d_fn", "mamba_ssm.ops.selective_scan_interface:selective_scan_fn"
INNER = "mamba_ssm.ops.selective_scan_interface:mamba_inner_fn"
MAMBA = [
    {"B": 2, "T": 500, "h": 64, "I": 128, "N": 16, "R": 4},
    {"B": 1, "T": 512, "h": 64, "I": 128, "N": 16, "R": 8},
    {"B": 3, "T": 4096, "h": 32, "I": 64, "N": 8, "R": 2},
]


def scan_inputs(s: Of) -> list[Input]:
    u, state, inner = (s.B, s.I, s.T), (s.B, s.N, s.T), (s.I,)
    return [*bf16(u, u), *f32((s.I, s.N)), *bf16(state, state), *f32(inner, inner)]


def turned_inputs(s: Of) -> list[Input]:
    u, state, inner = (s.B, s.T, s.I), (s.B, s.T, 2, s.N), (s.I,)
    return [*bf16(u, u), *f32((s.I, s.N)), *bf16(state, state), *f32(inner, inner), *bf16(u)]


def turned_scan(t: Aten, s: Of, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, *rest: Tensor) -> Tensor:
    d, bias, z = rest
    b, c = (t.transpose(t.transpose(x, 1, 2), 2, 3) for x in (b, c))
    return mamba_ssm.selective_scan_with_states(
        t, t.transpose(u, 1, 2), t.transpose(dt, 1, 2), a, b, c, d, t.transpose(z, 1, 2), bias
    )[0]


def published_turned_scan(s: Of, u: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, bias: Any, z: Any) -> Any:
    return published(SCAN)(
        u.transpose(1, 2),
        dt.transpose(1, 2),
        a,
        b.permute(0, 2, 3, 1),
        c.permute(0, 2, 3, 1),
        d,
        z=z.transpose(1, 2),
        delta_bias=bias,
        delta_softplus=True,
    )


def inner_inputs(s: Of, xz: tuple[int, ...], biased: bool = True) -> list[Input]:
    conv = ((s.I, 1, 4), (s.I,)) if biased else ((s.I, 1, 4),)
    return [
        *bf16(xz, *conv, (s.R + 2 * s.N, s.I), (s.I, s.R), (s.h, s.I)),
        *f32((s.I, s.N), (s.I,), (s.I,)),
    ]


def published_inner(xz: Any, conv: Any, bias: Any, x: Any, dt: Any, out: Any, a: Any, d: Any, dt_bias: Any) -> Any:
    how = {"delta_bias": dt_bias, "delta_softplus": True}
    return published(INNER)(xz, conv, bias, x, dt, out, None, a, None, None, d, **how)


SELECTIVE = [
    KernelCase(
        "causal_conv1d_fn",
        MAMBA,
        lambda s: bf16((s.B, s.I, s.T), (s.I, 4), (s.I,)),
        lambda t, s, x, w, b: causal_conv1d.causal_conv1d_fn(t, x, w, b),
        lambda s, x, w, b: published(CONV)(x, w, b, activation="silu"),
    ),
    KernelCase(
        "causal_conv1d_fn, channels last",
        MAMBA,
        lambda s: bf16((s.B, s.T, s.I), (s.I, 3)),
        lambda t, s, x, w: causal_conv1d.causal_conv1d_fn(t, t.transpose(x, 1, 2), w),
        lambda s, x, w: published(CONV)(x.transpose(1, 2), w),
    ),
    KernelCase(
        "causal_conv1d_fn, a gradient in another order",
        MAMBA[:1],
        lambda s: bf16((s.B, s.T, s.I), (s.I, 4)),
        lambda t, s, x, w: t.contiguous(causal_conv1d.causal_conv1d_fn(t, t.transpose(x, 1, 2), w)),
        lambda s, x, w: published(CONV)(x.transpose(1, 2), w).contiguous(),
    ),
    KernelCase(
        "selective_scan_fn",
        MAMBA,
        scan_inputs,
        lambda t, s, *xs: mamba_ssm.selective_scan_with_states(t, *xs[:6], None, xs[6])[0],
        lambda s, *xs: published(SCAN)(*xs[:6], delta_bias=xs[6], delta_softplus=True),
    ),
    KernelCase(
        "selective_scan_fn, z",
        MAMBA,
        lambda s: [*scan_inputs(s), *bf16((s.B, s.I, s.T))],
        lambda t, s, *xs: mamba_ssm.selective_scan_with_states(t, *xs[:6], xs[7], xs[6])[0],
        lambda s, *xs: published(SCAN)(*xs[:6], z=xs[7], delta_bias=xs[6], delta_softplus=True),
    ),
    KernelCase("selective_scan_fn, z, groups, tokens first", MAMBA, turned_inputs, turned_scan, published_turned_scan),
    KernelCase(
        "mamba_inner_fn",
        MAMBA,
        lambda s: inner_inputs(s, (s.B, 2 * s.I, s.T)),
        lambda t, s, *xs: mamba_ssm.mamba_inner_fn(t, *xs),
        lambda s, *xs: published_inner(*xs),
    ),
    KernelCase(
        "mamba_inner_fn, channels first",
        MAMBA,
        lambda s: inner_inputs(s, (2 * s.I, s.B * s.T)),
        lambda t, s, xz, *xs: mamba_ssm.mamba_inner_fn(t, mamba_ssm.split_tokens(t, xz, s.B), *xs),
        lambda s, xz, *xs: published_inner(xz.unflatten(1, (s.B, s.T)).transpose(0, 1), *xs),
    ),
    KernelCase(
        "mamba_inner_fn, no bias of the convolution",
        MAMBA[:1],
        lambda s: inner_inputs(s, (s.B, 2 * s.I, s.T), biased=False),
        lambda t, s, xz, w, *xs: mamba_ssm.mamba_inner_fn(t, xz, w, None, *xs),
        lambda s, xz, w, *xs: published_inner(xz, w, None, *xs),
    ),
]

# --- the chunked scan of Mamba-2 -------------------------------------------------------------------------------------

COMBINED = "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined"
SPLIT = "mamba_ssm.ops.triton.ssd_combined:mamba_split_conv1d_scan_combined"
GATED_NORM = "mamba_ssm.ops.triton.layernorm_gated:rmsnorm_fn"
MAMBA2 = [
    {"B": 2, "T": 500, "h": 64, "H": 4, "P": 16, "G": 2, "N": 32, "c": 64},
    {"B": 1, "T": 512, "h": 64, "H": 8, "P": 32, "G": 1, "N": 64, "c": 256},
    {"B": 3, "T": 1000, "h": 32, "H": 16, "P": 64, "G": 8, "N": 128, "c": 128},
    {"B": 16, "T": 2048, "h": 256, "H": 32, "P": 64, "G": 1, "N": 16, "c": 100},
]


def combined_inputs(s: Of, d: str = BF16) -> list[Input]:
    x, dt, b = (s.B, s.T, s.H, s.P), (s.B, s.T, s.H), (s.B, s.T, s.G, s.N)
    return [*bf16(x, dt), *f32((s.H,)), *bf16(b, b), ((s.H,), d), *bf16((s.H,))]


def split_inputs(s: Of, normed: bool = True) -> list[Input]:
    inner, shared = s.H * s.P, 2 * s.G * s.N
    first = (s.B, s.T, 2 * inner + shared + s.H), (inner + shared, 4), (inner + shared,), (s.H,)
    last = ((inner,), (s.h, inner), (s.h,)) if normed else ((s.h, inner),)
    return [*bf16(*first), *f32((s.H,)), *bf16((s.H,), *last)]


def published_combined(s: Of, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, bias: Any, z: Any = None) -> Any:
    return published(COMBINED)(x, dt, a, b, c, s.c, D=d, z=z, dt_bias=bias, dt_softplus=True)


def published_split(
    s: Of, zx: Any, conv: Any, bias: Any, dt: Any, a: Any, d: Any, norm: Any, out: Any, ob: Any, first: bool = False
) -> Any:
    how = {"rmsnorm_weight": norm, "outproj_weight": out, "outproj_bias": ob, "headdim": s.P, "ngroups": s.G}
    return published(SPLIT)(zx, conv, bias, dt, a, d, s.c, **how, norm_before_gate=first)


def our_split(t: Aten, s: Of, *xs: Any) -> Tensor:
    return mamba_ssm.mamba_split_conv1d_scan_combined(t, *xs[:6], s.c, s.P, s.G, *xs[6:])


CHUNKED = [
    KernelCase(
        "mamba_chunk_scan_combined",
        MAMBA2,
        combined_inputs,
        lambda t, s, *xs: mamba_ssm.mamba_chunk_scan_with_state(t, *xs[:5], s.c, xs[5], None, xs[6])[0],
        published_combined,
    ),
    KernelCase(
        "mamba_chunk_scan_combined, z, D in float32",
        MAMBA2,
        lambda s: [*combined_inputs(s, F32), *bf16((s.B, s.T, s.H, s.P))],
        lambda t, s, *xs: mamba_ssm.mamba_chunk_scan_with_state(t, *xs[:5], s.c, xs[5], xs[7], xs[6])[0],
        published_combined,
    ),
    KernelCase("mamba_split_conv1d_scan_combined", MAMBA2, split_inputs, our_split, published_split),
    KernelCase(
        "mamba_split_conv1d_scan_combined, the norm before the gate",
        MAMBA2[:1],
        split_inputs,
        our_split,
        lambda s, *xs: published_split(s, *xs, first=True),
    ),
    KernelCase(
        "mamba_split_conv1d_scan_combined, no norm",
        MAMBA2,
        lambda s: split_inputs(s, normed=False),
        lambda t, s, *xs: our_split(t, s, *xs[:6], None, xs[6], None),
        lambda s, *xs: published_split(s, *xs[:6], None, xs[6], None),
    ),
    KernelCase(
        "rmsnorm_fn",
        MAMBA2,
        lambda s: bf16((s.B, s.T, s.H * s.P), (s.H * s.P,)),
        lambda t, s, x, w: mamba_ssm.rmsnorm_fn(t, x, w, None, s.G),
        lambda s, x, w: published(GATED_NORM)(x, w, None, group_size=s.H * s.P // s.G),
    ),
    KernelCase(
        "rmsnorm_fn, z",
        MAMBA2,
        lambda s: bf16((s.B, s.T, s.H * s.P), (s.H * s.P,), (s.B, s.T, s.H * s.P)),
        lambda t, s, x, w, z: mamba_ssm.rmsnorm_fn(t, x, w, z, s.G),
        lambda s, x, w, z: published(GATED_NORM)(x, w, None, z=z, group_size=s.H * s.P // s.G, norm_before_gate=False),
    ),
]

# --- fla -------------------------------------------------------------------------------------------------------------

GDN, KDA = "fla.ops.gated_delta_rule.chunk:chunk_gated_delta_rule", "fla.ops.kda.chunk:chunk_kda"
DYNAMIC_CONV = "jetai.modeling.hf.dconv_fwdbwd:dynamic_conv_triton_autograd"
FLA_CONV, FLA_NORM = "fla.modules.conv.causal_conv1d:causal_conv1d", "fla.modules.fused_norm_gate:rms_norm_gated"
IN_KERNEL = {
    "use_qk_l2norm_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
    "state_v_first": True,
}
DELTA = [
    {"B": 2, "T": 500, "H": 4, "HV": 4, "K": 64, "V": 64},
    {"B": 1, "T": 1000, "H": 2, "HV": 6, "K": 128, "V": 256},
    {"B": 3, "T": 64, "H": 8, "HV": 8, "K": 256, "V": 512},
    {"B": 2, "T": 130, "H": 2, "HV": 4, "K": 48, "V": 80},
]


LINEAR = [
    {"B": 2, "T": 500, "H": 4, "K": 64, "V": 64},
    {"B": 1, "T": 1000, "H": 2, "K": 128, "V": 256},
    {"B": 2, "T": 130, "H": 2, "K": 48, "V": 80},
    {"B": 1, "T": 256, "H": 2, "K": 512, "V": 1024},
]
SHORT = [{"B": 2, "T": 60, "H": 4, "K": 64, "V": 64}, {"B": 3, "T": 7, "H": 2, "K": 192, "V": 80}]
DELTA_RULE = "fla.ops.delta_rule.chunk:chunk_delta_rule"
RECURRENT_DELTA_RULE = "fla.ops.delta_rule.fused_recurrent:fused_recurrent_delta_rule"


RETENTION, GLA = "fla.ops.retention.chunk:chunk_retention", "fla.ops.gla.chunk:chunk_gla"
RECURRENT_GLA = "fla.ops.gla.fused_recurrent:fused_recurrent_gla"
RECURRENT_RETENTION = "fla.ops.retention.fused_recurrent:fused_recurrent_retention"


def linear_inputs(s: Of) -> list[Input]:
    """The inputs of linear attention with a decay per key channel."""
    k = s.B, s.T, s.H, s.K
    return bf16(k, k, (s.B, s.T, s.H, s.V), k)


def delta_rule_inputs(s: Of) -> list[Input]:
    k = s.B, s.T, s.H, s.K
    return bf16(k, k, (s.B, s.T, s.H, s.V), (s.B, s.T, s.H))


def delta_inputs(s: Of, by_channel: bool = False) -> list[Input]:
    k, v, g = (s.B, s.T, s.H, s.K), (s.B, s.T, s.HV, s.V), (s.B, s.T, s.HV)
    gate, bias = ((*g, s.K), (s.HV * s.K,)) if by_channel else (g, (s.HV,))
    return bf16(k, k, v, gate, g, (s.HV,), bias)


def parts_of(s: Of) -> list[int]:
    return [s.H * s.K, s.H * s.K, s.HV * s.V]


def delta_of_parts(t: Aten, s: Of, x: Tensor, *rest: Tensor) -> Tensor:
    q, k, v = t.split(x, parts_of(s))
    q, k = t.unflatten(q, -1, (s.H, s.K)), t.unflatten(k, -1, (s.H, s.K))
    return fla.chunk_gated_delta_rule(t, q, k, t.unflatten(v, -1, (s.HV, s.V)), *rest)


def published_delta(s: Of, q: Any, k: Any, v: Any, g: Any, beta: Any, a: Any, bias: Any, path: str = GDN) -> Any:
    return published(path)(q, k, v, g, beta, A_log=a, dt_bias=bias, **IN_KERNEL)[0]


def published_delta_of_parts(s: Of, x: Any, *rest: Any) -> Any:
    q, k, v = x.split(parts_of(s), -1)
    q, k = q.unflatten(-1, (s.H, s.K)), k.unflatten(-1, (s.H, s.K))
    return published_delta(s, q, k, v.unflatten(-1, (s.HV, s.V)), *rest)


FLA = [
    KernelCase(
        "chunk_gated_delta_rule",
        DELTA,
        delta_inputs,
        lambda t, s, *xs: fla.chunk_gated_delta_rule(t, *xs),
        published_delta,
    ),
    KernelCase(
        "chunk_gated_delta_rule, parts of a projection",
        DELTA,
        lambda s: [*bf16((s.B, s.T, sum(parts_of(s)))), *delta_inputs(s)[3:]],
        delta_of_parts,
        published_delta_of_parts,
    ),
    KernelCase(
        "chunk_kda",
        DELTA,
        lambda s: delta_inputs(s, by_channel=True),
        lambda t, s, *xs: fla.chunk_kda(t, *xs),
        lambda s, *xs: published_delta(s, *xs, path=KDA),
    ),
    KernelCase(
        "causal_conv1d (fla)",
        DELTA,
        lambda s: bf16((s.B, s.T, s.H * s.K), (s.H * s.K, 4)),
        lambda t, s, x, w: fla.causal_conv1d(t, x, w),
        lambda s, x, w: published(FLA_CONV)(x, w, activation="silu")[0],
    ),
    KernelCase(
        "causal_conv1d (fla), a bias and no activation",
        DELTA[:1],
        lambda s: bf16((s.B, s.T, s.H * s.K), (s.H * s.K, 4), (s.H * s.K,)),
        lambda t, s, x, w, b: fla.causal_conv1d(t, x, w, b, has_activation=False),
        lambda s, x, w, b: published(FLA_CONV)(x, w, b)[0],
    ),
    KernelCase(
        "rms_norm_gated",
        DELTA,
        lambda s: bf16((s.B, s.T, s.HV, s.V), (s.B, s.T, s.HV, s.V), (s.V,)),
        lambda t, s, x, g, w: fla.rms_norm_gated(t, x, g, w),
        lambda s, x, g, w: published(FLA_NORM)(x, g, w, None),
    ),
    KernelCase(
        "layer_norm_gated",
        DELTA[:2],
        lambda s: bf16((s.B, s.T, s.HV, s.V), (s.B, s.T, s.HV, s.V), (s.V,), (s.V,)),
        lambda t, s, x, g, w, b: fla.layer_norm_gated(t, x, g, w, b),
        lambda s, x, g, w, b: published(FLA_NORM.replace("rms", "layer"))(x, g, w, b),
    ),
    KernelCase(
        "chunk_gated_delta_rule, alone",
        DELTA,
        lambda s: [*delta_inputs(s)[:3], *f32((s.B, s.T, s.HV)), *bf16((s.B, s.T, s.HV))],
        lambda t, s, *xs: fla.chunk_gated_delta_rule_without_norms(t, *xs),
        lambda s, q, k, v, g, beta: published(GDN)(q, k, v, g, beta)[0],
    ),
    KernelCase(
        "chunk_delta_rule",
        LINEAR[:3],
        delta_rule_inputs,
        lambda t, s, *xs: fla.chunk_delta_rule(t, *xs),
        lambda s, *xs: published(DELTA_RULE)(*xs, use_qk_l2norm_in_kernel=True)[0],
    ),
    KernelCase(
        "fused_recurrent_delta_rule",
        SHORT,
        delta_rule_inputs,
        lambda t, s, *xs: fla.fused_recurrent_delta_rule(t, *xs),
        lambda s, *xs: published(RECURRENT_DELTA_RULE)(*xs, use_qk_l2norm_in_kernel=True)[0],
    ),
    KernelCase(
        "chunk_retention",
        LINEAR,
        lambda s: linear_inputs(s)[:3],
        lambda t, s, *xs: fla.chunk_retention(t, *xs),
        lambda s, *xs: published(RETENTION)(*xs)[0],
    ),
    KernelCase(
        "chunk_gla",
        LINEAR,
        linear_inputs,
        lambda t, s, *xs: fla.chunk_gla(t, *xs),
        lambda s, *xs: published(GLA)(*xs, state_v_first=True)[0],
    ),
    KernelCase(
        "chunk_gla, decays in float32",
        LINEAR[:1],
        lambda s: [*linear_inputs(s)[:3], *f32((s.B, s.T, s.H, s.K))],
        lambda t, s, *xs: fla.chunk_gla(t, *xs),
        lambda s, *xs: published(GLA)(*xs, state_v_first=True)[0],
    ),
    KernelCase(
        "fused_recurrent_decay",
        SHORT,
        linear_inputs,
        lambda t, s, *xs: fla.fused_recurrent_decay(t, *xs),
        lambda s, q, k, v, g: published(RECURRENT_GLA)(q, k, v, gk=g, state_v_first=True)[0],
    ),
    KernelCase(
        "fused_recurrent_decay, fixed decays",
        SHORT,
        lambda s: linear_inputs(s)[:3],
        lambda t, s, *xs: fla.fused_recurrent_decay(t, *xs),
        lambda s, *xs: published(RECURRENT_RETENTION)(*xs)[0],
    ),
    KernelCase(
        "rotary_embedding (fla)",
        LINEAR[:3],
        lambda s: bf16((s.B, s.T, s.H, s.K), (s.T, s.K // 2), (s.T, s.K // 2)),
        lambda t, s, *xs: fla.rotary_embedding(t, *xs),
        lambda s, *xs: published("fla.modules.rotary:rotary_embedding")(*xs),
    ),
    KernelCase(
        "rms_norm_linear",
        LINEAR,
        lambda s: bf16((s.B, s.T, s.V), (s.V,), (s.K, s.V)),
        lambda t, s, x, norm, w: fla.rms_norm_linear(t, x, norm, w),
        lambda s, x, norm, w: published("fla.modules.layernorm:rms_norm_linear")(x, norm, None, w, None),
    ),
    KernelCase(
        "rms_norm (fla)",
        LINEAR,
        lambda s: bf16((s.B, s.T, s.H, s.V), (s.V,)),
        lambda t, s, x, w: fla.rms_norm(t, x, w),
        lambda s, x, w: published("fla.modules.layernorm:rms_norm")(x, w, None),
    ),
]

# --- mLSTM, lightning attention, RWKV-4 ------------------------------------------------------------------------------

XL_CHUNK = "mlstm_kernels.torch.chunkwise.triton_xl_chunk:mlstm_chunkwise__xl_chunk"
PAD = "mlstm_kernels.torch.kernel_wrappers:wrap_chunkwise__pad_zeros"
MEMORY = [
    {"B": 2, "T": 500, "H": 4, "K": 64, "V": 64, "c": 64},
    {"B": 1, "T": 1024, "H": 2, "K": 128, "V": 256, "c": 64},
    {"B": 1, "T": 1024, "H": 2, "K": 128, "V": 256, "c": 128},
    {"B": 3, "T": 7, "H": 8, "K": 32, "V": 64, "c": 128},
    {"B": 1, "T": 96, "H": 2, "K": 192, "V": 100, "c": 64},
    {"B": 2, "T": 50, "H": 2, "K": 64, "V": 64, "c": 16},
    {"B": 2, "T": 150, "H": 2, "K": 64, "V": 64, "c": 32},
]


def published_memory(s: Of, q: Any, k: Any, v: Any, i: Any, f: Any) -> Any:
    return published(PAD)(published(XL_CHUNK), q=q, k=k, v=v, i=i, f=f, chunk_size=s.c)


def our_lightning(t: Aten, s: Of, *xs: Tensor) -> Tensor:
    slopes = t.new_tensor((s.H, 1, 1), FLOAT32)
    q, k, v = (t.transpose(x, 1, 2) for x in xs)
    return lightning_attn.lightning_attn_func(t, q, k, v, slopes)


def lightning_attn_func(*xs: Any) -> Any:
    """The library's function; its `__init__` binds the names of kernels to modules."""
    interface = importlib.import_module("lightning_attn.ops.lightning_attn_interface")
    interface.lightning_attn2 = published("lightning_attn.ops.triton.lightning_attn2:lightning_attn2")
    return interface.lightning_attn_func(*xs)


def published_lightning(s: Of, *xs: Any) -> Any:
    import torch

    q, k, v = (x.transpose(1, 2) for x in xs)
    return lightning_attn_func(q, k, v, torch.empty(s.H, 1, 1, device="meta"))


def wkv(*xs: Any) -> Any:
    """`RwkvLinearAttention`, which asks for CUDA tensors: its source runs with that word replaced."""
    modeling = importlib.import_module("transformers.models.rwkv.modeling_rwkv")
    names = dict(vars(modeling))
    nothing = {name: lambda *_: None for name in ("forward", "forward_bf16", "backward", "backward_bf16")}
    names["rwkv_cuda_kernel"] = types.SimpleNamespace(max_seq_length=1 << 30, **nothing)
    exec(inspect.getsource(modeling.RwkvLinearAttention).replace('"cuda"', '"meta"'), names)
    return names["RwkvLinearAttention"].apply(*xs)


OTHERS = [
    KernelCase(
        "dynamic_conv_triton_autograd",
        DELTA[:2],
        lambda s: bf16((s.B, s.T, s.HV * s.V), (s.B, s.T, s.HV * s.V * 4)),
        lambda t, s, x, filters: jet_nemotron.dynamic_conv(t, x, filters),
        lambda s, x, filters: published(DYNAMIC_CONV)(x, filters.unflatten(-1, (s.HV * s.V, 4))),
    ),
    KernelCase(
        "mlstm_chunkwise__xl_chunk",
        MEMORY,
        lambda s: bf16(*[(s.B, s.H, s.T, n) for n in (s.K, s.K, s.V)], (s.B, s.H, s.T), (s.B, s.H, s.T)),
        lambda t, s, *xs: mlstm_kernels.mlstm_chunkwise(t, *xs, chunk_size=s.c),
        published_memory,
    ),
    KernelCase(
        "mlstm_chunkwise__xl_chunk, tokens first",
        MEMORY,
        lambda s: bf16(*[(s.B, s.T, s.H, n) for n in (s.K, s.K, s.V)], (s.B, s.T, s.H), (s.B, s.T, s.H)),
        lambda t, s, *xs: mlstm_kernels.mlstm_chunkwise(t, *[t.transpose(x, 1, 2) for x in xs], chunk_size=s.c),
        lambda s, *xs: published_memory(s, *[x.transpose(1, 2) for x in xs]),
    ),
    KernelCase(
        "lightning_attn_func",
        MEMORY,
        lambda s: bf16(*[(s.B, s.T, s.H, n) for n in (s.K, s.K, s.V)]),
        our_lightning,
        published_lightning,
    ),
    KernelCase(
        "RwkvLinearAttention",
        [{"B": 2, "T": 500, "C": 64}, {"B": 1, "T": 1024, "C": 128}],
        lambda s: bf16((s.C,), (s.C,), (s.B, s.T, s.C), (s.B, s.T, s.C)),
        lambda t, s, *xs: rwkv.rwkv_linear_attention(t, *xs),
        lambda s, *xs: wkv(*xs)[0],
    ),
]

KERNELS = {case.name: case for case in (*SELECTIVE, *CHUNKED, *FLA, *OTHERS)}
