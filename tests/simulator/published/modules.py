"""Cases of whole modules: a norm, a published module and the residual around both, and the part that stands for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from llmcalc.components.base import ModelProperties, TokenMixer
from llmcalc.components.mixers.delta_net import DeltaNet
from llmcalc.components.mixers.gated_delta_net import GatedDeltaNet
from llmcalc.components.mixers.gated_linear_attention import GatedLinearAttention
from llmcalc.components.mixers.hgrn2 import HGRN2
from llmcalc.components.mixers.jet_block import JetBlock
from llmcalc.components.mixers.kimi_delta_attention import KimiDeltaAttention
from llmcalc.components.mixers.lightning_attention import LightningAttention
from llmcalc.components.mixers.mamba import Mamba
from llmcalc.components.mixers.mamba2 import Mamba2
from llmcalc.components.mixers.mlstm import MLSTM
from llmcalc.components.mixers.retention import Retention
from llmcalc.components.mixers.rglru import RGLRU
from llmcalc.components.mixers.rwkv4 import RwkvTimeMix
from llmcalc.components.mixers.short_conv import ShortConv
from llmcalc.components.norm import Norm, norm_reference
from llmcalc.components.runtime import PassState
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.workload.recompute import NO_RECOMPUTATION, Recompute
from tests.simulator.published.kernels import CONV, SCAN, XL_CHUNK, Of, Sizes, lightning_attn_func, published, wkv

NORM = Norm(type="rmsnorm")


@dataclass(frozen=True)
class ModuleCase:
    """A module at some sizes: B sequences of T tokens, h wide, in n layers.

    part: (sizes) → the part. make: (sizes) → the published module. choices: which kernels the profile runs.
    recompute: what runs again in the backward pass; then nothing is compared that is saved.
    """

    name: str
    sizes: Sequence[Sizes]
    part: Callable[[Any], TokenMixer]
    make: Callable[[Any], nn.Module]
    choices: KernelChoices = EAGER_CHOICES
    recompute: Recompute = NO_RECOMPUTATION


def transformers(path: str) -> Any:
    """A model's module of transformers, with the libraries' kernels in place of its own code."""
    module: Any = importlib.import_module(f"transformers.models.{path}")

    def conv(x: Any, weight: Any, bias: Any = None, activation: str | None = None, **_: Any) -> Any:
        return published(CONV)(x, weight, bias, activation=activation)

    def scan(*xs: Any, use_mambapy: Any = None, use_associative_scan: Any = None, **how: Any) -> Any:
        return published(SCAN)(*xs, **how)

    module.causal_conv1d_fn, module.mamba_selective_scan = conv, scan
    return module


def config(name: str, **fields: Any) -> Any:
    import transformers

    return getattr(transformers, f"{name}Config")(**fields)


# --- Mamba -----------------------------------------------------------------------------------------------------------

MAMBA = [
    {"h": 64, "N": 16, "R": 4, "B": 2, "T": 500, "n": 1},
    {"h": 256, "N": 16, "R": 16, "B": 1, "T": 512, "n": 2},
    {"h": 768, "N": 64, "R": 48, "B": 3, "T": 3000, "n": 1},
]


def mamba(s: Of, **how: Any) -> Mamba:
    return Mamba(intermediate_size=2 * s.h, state_size=s.N, time_step_rank=s.R, **how)


def published_mamba(s: Of, **how: Any) -> nn.Module:
    mixer: nn.Module = published("mamba_ssm.modules.mamba_simple:Mamba")(s.h, d_state=s.N, dt_rank=s.R, **how)
    return mixer


def jamba(s: Of) -> nn.Module:
    fields = {"hidden_size": s.h, "mamba_d_state": s.N, "mamba_dt_rank": s.R, "mamba_expand": 2}
    module: Any = transformers("jamba.modeling_jamba").JambaMambaMixer(config("Jamba", **fields), 0)
    module.dt_layernorm = norm_reference(NORM, s.R)
    module.b_layernorm, module.c_layernorm = norm_reference(NORM, s.N), norm_reference(NORM, s.N)
    return module  # type: ignore[no-any-return]


def zamba(s: Of) -> nn.Module:
    fields = {"hidden_size": s.h, "mamba_d_state": s.N, "mamba_dt_rank": s.R, "mamba_expand": 2}
    module = transformers("zamba.modeling_zamba")
    mixer: nn.Module = module.ZambaMambaMixer(config("Zamba", **fields, n_mamba_heads=s.H), 0)
    return mixer


def mamba2(s: Of, norm: bool = True, **how: Any) -> Mamba2:
    sizes = {"num_heads": 2 * s.h // s.P, "head_dim": s.P, "state_size": s.N, "n_groups": s.G, "chunk_size": s.c}
    return Mamba2(**sizes, norm=NORM if norm else None, **how)


def published_mamba2(s: Of, norm: bool = True, **how: Any) -> nn.Module:
    sizes = {"d_state": s.N, "headdim": s.P, "ngroups": s.G, "chunk_size": s.c}
    mixer: nn.Module = published("mamba_ssm.modules.mamba2:Mamba2")(s.h, **sizes, rmsnorm=norm, **how)
    return mixer


MAMBA2 = [
    {"h": 64, "N": 16, "P": 16, "G": 2, "c": 64, "B": 2, "T": 500, "n": 1},
    {"h": 512, "N": 64, "P": 64, "G": 2, "c": 256, "B": 2, "T": 1000, "n": 2},
    {"h": 1024, "N": 128, "P": 64, "G": 8, "c": 128, "B": 1, "T": 2048, "n": 1},
]

STATE_SPACES = [
    ModuleCase("Mamba", MAMBA, mamba, published_mamba),
    ModuleCase(
        "Mamba, projections with a bias",
        MAMBA,
        lambda s: mamba(s, use_bias=True),
        lambda s: published_mamba(s, bias=True, use_fast_path=False),
    ),
    ModuleCase(
        "Mamba, no bias of the convolution",
        MAMBA[:1],
        lambda s: mamba(s, use_conv_bias=False),
        lambda s: published_mamba(s, conv_bias=False),
    ),
    ModuleCase("Mamba with norms (Jamba)", MAMBA[:2], lambda s: mamba(s, norm=NORM), jamba),
    ModuleCase(
        "Mamba with heads (Zamba)",
        [{**MAMBA[0], "H": 4}, {**MAMBA[1], "H": 2}],
        lambda s: mamba(s, num_heads=s.H),
        zamba,
    ),
    ModuleCase("Mamba-2", MAMBA2, mamba2, published_mamba2),
    ModuleCase(
        "Mamba-2, in steps",
        MAMBA2,
        mamba2,
        lambda s: published_mamba2(s, use_mem_eff_path=False),
        choices=KernelChoices(mamba2="steps"),
    ),
    ModuleCase(
        "Mamba-2, no norm", MAMBA2[:2], lambda s: mamba2(s, norm=False), lambda s: published_mamba2(s, norm=False)
    ),
    ModuleCase(
        "Mamba-2, no norm, in steps",
        MAMBA2[:2],
        lambda s: mamba2(s, norm=False),
        lambda s: published_mamba2(s, norm=False, use_mem_eff_path=False),
        choices=KernelChoices(mamba2="steps"),
    ),
    ModuleCase(
        "Mamba-2, projections with a bias",
        MAMBA2[:1],
        lambda s: mamba2(s, use_bias=True, out_bias=True, use_conv_bias=False),
        lambda s: published_mamba2(s, bias=True, conv_bias=False),
    ),
]

# --- linear attention ------------------------------------------------------------------------------------------------

DELTA = [
    {"h": 256, "K": 64, "H": 4, "HV": 8, "V": 64, "B": 1, "T": 512, "n": 1},
    {"h": 512, "K": 128, "H": 4, "HV": 4, "V": 128, "B": 2, "T": 500, "n": 2},
    {"h": 1024, "K": 128, "H": 4, "HV": 8, "V": 256, "B": 1, "T": 2048, "n": 1},
]


def gated_delta_net(s: Of, **how: Any) -> GatedDeltaNet:
    return GatedDeltaNet(
        linear_num_key_heads=s.H,
        linear_num_value_heads=s.HV,
        linear_key_head_dim=s.K,
        linear_value_head_dim=s.V,
        **how,
    )


def published_gated_delta_net(s: Of, **how: Any) -> nn.Module:
    sizes = {"hidden_size": s.h, "head_dim": s.K, "num_heads": s.H, "num_v_heads": s.HV, "expand_v": s.V / s.K}
    mixer: nn.Module = published("fla.layers.gated_deltanet:GatedDeltaNet")(**sizes, **how)
    return mixer


WIDE = [
    {"h": 256, "H": 4, "K": 64, "V": 64, "B": 1, "T": 512, "n": 1},
    {"h": 512, "H": 4, "K": 128, "V": 256, "B": 2, "T": 500, "n": 2},
]
BRIEF = {"h": 256, "H": 4, "K": 64, "V": 64, "B": 3, "T": 40, "n": 1}


def expanded(s: Of) -> dict[str, Any]:
    """The sizes of a layer of fla whose heads divide a multiple of the model's width."""
    return {"hidden_size": s.h, "num_heads": s.H, "expand_k": s.H * s.K / s.h, "expand_v": s.H * s.V / s.h}


def delta_net(s: Of, **how: Any) -> DeltaNet:
    return DeltaNet(linear_num_heads=s.H, linear_key_head_dim=s.K, linear_value_head_dim=s.V, **how)


def published_delta_net(s: Of, **how: Any) -> nn.Module:
    mixer: nn.Module = published("fla.layers.delta_net:DeltaNet")(**expanded(s), **how)
    return mixer


def linear_sizes(s: Of) -> dict[str, int]:
    return {
        "num_attention_heads": s.H,
        "num_key_value_heads": s.G,
        "linear_key_head_dim": s.K,
        "linear_value_head_dim": s.V,
    }


def published_linear(s: Of, path: str, **how: Any) -> nn.Module:
    mixer: nn.Module = published(f"fla.layers.{path}")(**expanded(s), num_kv_heads=s.G, **how)
    return mixer


def hgrn2(s: Of, **how: Any) -> HGRN2:
    return HGRN2(num_attention_heads=s.H, linear_key_head_dim=s.K, linear_value_head_dim=s.h // s.H, **how)


class Bounded(nn.Module):
    """A layer of HGRN2 above the first, with a lower bound of its own, in float32."""

    def __init__(self, s: Of) -> None:
        super().__init__()
        self.bound = nn.Parameter(torch.zeros(s.h))
        self.attn = published_hgrn2(s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attn(x, lower_bound=self.bound.float())[0]
        return out


def published_hgrn2(s: Of) -> nn.Module:
    mixer: nn.Module = published("fla.layers.hgrn2:HGRN2Attention")(hidden_size=s.h, expand_ratio=s.K, layer_idx=1)
    return mixer


GROUPED = [{**sizes, "G": groups} for sizes, groups in zip([*WIDE, WIDE[0], BRIEF], (4, 4, 2, 4), strict=True)]


def delta_net_of_class(s: Of, path: str, name: str) -> nn.Module:
    """A class of transformers with the libraries' kernels, which are found when its module is imported."""
    fields: dict[str, Any] = {"hidden_size": s.h, "num_hidden_layers": 2}
    fields["layer_types"] = ["linear_attention", "full_attention"]
    sizes = {"num_key_heads": s.H, "num_value_heads": s.HV, "key_head_dim": s.K, "value_head_dim": s.V}
    fields |= {f"linear_{field}": size for field, size in sizes.items()} | {"linear_allow_neg_eigval": False}
    module: Any = importlib.import_module(f"transformers.models.{path}")
    mixer: nn.Module = getattr(module, f"{name}GatedDeltaNet")(getattr(module, f"{name}Config")(**fields), 0)
    return mixer


def kda_of_class(s: Of) -> nn.Module:
    fields: dict[str, Any] = {"hidden_size": s.h, "linear_num_heads": s.H, "linear_head_dim": s.K}
    fields |= {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    module: Any = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    mixer: nn.Module = module.KimiLinearDeltaAttention(module.KimiLinearConfig(**fields), 0)
    return mixer


def published_jet_block(s: Of) -> nn.Module:
    """The published block; the norm of fla takes no `autotune_interval`, which is a field of a fork."""
    jet = "jetai.modeling.hf.jet_block"
    module, norm = importlib.import_module(jet), published("fla.modules:FusedRMSNormGated")
    module.FusedRMSNormGated = lambda size, eps, **_: norm(size, eps=eps)  # type: ignore[attr-defined]
    sizes = {"num_heads": s.H, "head_dim": s.K, "expand_v": s.V / s.K, "dconv_generator_reduction": s.H * s.V // s.G}
    settings = published(f"{jet}:JetBlockConfig")(**sizes)
    mixer: nn.Module = published(f"{jet}:JetBlock")(
        hidden_size=s.h, initializer_range=0.02, layer_idx=0, jet_block_config=settings
    )
    return mixer


def published_kda(s: Of, biased: bool = False) -> nn.Module:
    """Its output gate has a bias, which Kimi Linear does not have."""
    made: Any = published("fla.layers.kda:KimiDeltaAttention")(hidden_size=s.h, head_dim=s.K, num_heads=s.H)
    if not biased:
        made.g_proj[1].bias = None
    return made  # type: ignore[no-any-return]


class Chunks(nn.Module):
    """xLSTM's backend, by the library's kernel."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(self, query: Any, key: Any, value: Any, igate: Any, fgate: Any, **_: Any) -> tuple[Any, None]:
        how = {"chunk_size": self.chunk, "autocast_kernel_dtype": torch.bfloat16}
        return published(XL_CHUNK)(query, key, value, igate, fgate, **how), None


class Flat(nn.Module):
    """The reference's norm, on heads side by side."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(x.flatten(2))
        return out


def xlstm(s: Of, biased: bool = False) -> nn.Module:
    fields = {"hidden_size": s.h, "num_heads": s.H, "chunk_size": s.c, "use_bias": biased}
    module: Any = transformers("xlstm.modeling_xlstm").xLSTMLayer(config("xLSTM", **fields))
    module.mlstm_backend = Chunks(s.c)
    module.multihead_norm = Flat(norm_reference(Norm(type="layernorm", bias=biased), module.v_dim, group_count=s.H))
    return module  # type: ignore[no-any-return]


def mlstm(s: Of, biased: bool = False) -> MLSTM:
    sizes = {"qk_head_dim": s.h // 2 // s.H, "v_head_dim": s.h // s.H}
    return MLSTM(num_heads=s.H, **sizes, chunk_size=s.c, use_bias=biased)


def lfm2(s: Of, biased: bool = False) -> nn.Module:
    fields = {"hidden_size": s.h, "conv_L_cache": s.W, "conv_bias": biased, "num_hidden_layers": 1}
    module = transformers("lfm2.modeling_lfm2")
    mixer: nn.Module = module.Lfm2ShortConv(config("Lfm2", **fields, layer_types=["conv"]), 0)
    return mixer


class Positioned(nn.Module):
    """RecurrentGemma's block, at positions from 0."""

    def __init__(self, block: nn.Module, tokens: int) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("positions", torch.zeros(1, tokens, dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x, self.positions, None, use_cache=False)[0]
        return out


def recurrent_gemma(s: Of) -> nn.Module:
    fields = {"hidden_size": s.h, "lru_width": s.W, "num_attention_heads": s.H}
    block = transformers("recurrent_gemma.modeling_recurrent_gemma").RecurrentGemmaRecurrentBlock
    return Positioned(block(config("RecurrentGemma", **fields), 0), s.T)


class Shifted(nn.Module):
    """The previous token of each token, as the reference makes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def rwkv4(s: Of) -> nn.Module:
    modeling = transformers("rwkv.modeling_rwkv")

    def average(*xs: Any, state: None = None, return_state: bool = False) -> Any:
        return wkv(*xs)

    modeling.rwkv_linear_attention = average
    module: Any = modeling.RwkvSelfAttention(config("Rwkv", hidden_size=s.h, attention_hidden_size=s.h))
    module.time_shift = Shifted()
    return module  # type: ignore[no-any-return]


class LightningAttentionCore(nn.Module):
    """The core of the reference, by the library's kernel."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: Any) -> tuple[Any, None]:
        return lightning_attn_func(q, k, v, torch.empty(q.shape[1], 1, 1, dtype=torch.float32, device="meta")), None


class Alone(nn.Module):
    """A part's reference in a forward pass without a cache."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.part(x, PassState())
        return out


def lightning(s: Of) -> LightningAttention:
    return LightningAttention(num_attention_heads=s.H, head_dim=s.K)


def lightning_with_kernel(s: Of) -> nn.Module:
    part: Any = lightning(s).reference(ModelProperties(s.h))
    part.core = LightningAttentionCore()
    return Alone(part)


LINEAR = [
    ModuleCase("HGRN2", [WIDE[0], {**WIDE[1], "V": 128}, BRIEF], hgrn2, Bounded),
    ModuleCase("HGRN2 without a lower bound", WIDE[:1], lambda s: hgrn2(s, lower_bound=False), published_hgrn2),
    ModuleCase(
        "retention",
        GROUPED,
        lambda s: Retention(**linear_sizes(s)),
        lambda s: published_linear(s, "multiscale_retention:MultiScaleRetention"),
    ),
    ModuleCase(
        "retention with a feature map, without a gate",
        GROUPED[:1],
        lambda s: Retention(**linear_sizes(s), feature_map="relu", output_gate=False),
        lambda s: published_linear(
            s, "multiscale_retention:MultiScaleRetention", feature_map="relu", use_output_gate=False
        ),
    ),
    ModuleCase(
        "gated linear attention",
        GROUPED,
        lambda s: GatedLinearAttention(**linear_sizes(s)),
        lambda s: published_linear(s, "gla:GatedLinearAttention"),
    ),
    ModuleCase(
        "gated linear attention with a feature map, without a gate",
        GROUPED[2:3],
        lambda s: GatedLinearAttention(**linear_sizes(s), feature_map="relu", output_gate=False),
        lambda s: published_linear(s, "gla:GatedLinearAttention", feature_map="relu", use_output_gate=False),
    ),
    ModuleCase("DeltaNet", [*WIDE, BRIEF], delta_net, published_delta_net),
    ModuleCase(
        "DeltaNet with a gate, negative eigenvalues",
        WIDE[:1],
        lambda s: delta_net(s, output_gate=True, linear_allow_neg_eigval=True),
        lambda s: published_delta_net(s, use_gate=True, allow_neg_eigval=True),
    ),
    ModuleCase("gated DeltaNet", DELTA, gated_delta_net, published_gated_delta_net),
    ModuleCase(
        "gated DeltaNet, negative eigenvalues",
        DELTA[:1],
        lambda s: gated_delta_net(s, linear_allow_neg_eigval=True),
        lambda s: published_gated_delta_net(s, allow_neg_eigval=True),
    ),
    ModuleCase(
        "gated DeltaNet of OLMo Hybrid's class",
        DELTA,
        gated_delta_net,
        lambda s: delta_net_of_class(s, "olmo_hybrid.modeling_olmo_hybrid", "OlmoHybrid"),
        choices=KernelChoices(matches_transformers=True),
    ),
    ModuleCase(
        "JetBlock",
        [
            {"h": 256, "H": 4, "K": 64, "V": 128, "G": 64, "B": 1, "T": 512, "n": 1},
            {"h": 512, "H": 4, "K": 96, "V": 256, "G": 128, "B": 2, "T": 500, "n": 2},
        ],
        lambda s: JetBlock(
            linear_num_value_heads=s.H, linear_key_head_dim=s.K, linear_value_head_dim=s.V, generator_size=s.G
        ),
        published_jet_block,
    ),
    ModuleCase(
        "Kimi delta attention",
        DELTA,
        lambda s: KimiDeltaAttention(linear_num_heads=s.H, linear_head_dim=s.K),
        published_kda,
    ),
    ModuleCase(
        "Kimi delta attention with a biased gate",
        DELTA[:1],
        lambda s: KimiDeltaAttention(linear_num_heads=s.H, linear_head_dim=s.K, output_gate_bias=True),
        lambda s: published_kda(s, biased=True),
    ),
    ModuleCase(
        "Kimi delta attention of Kimi Linear's class",
        DELTA,
        lambda s: KimiDeltaAttention(linear_num_heads=s.H, linear_head_dim=s.K),
        kda_of_class,
        choices=KernelChoices(matches_transformers=True),
    ),
    ModuleCase(
        "mLSTM (xLSTM)",
        [
            {"h": 256, "H": 4, "c": 64, "B": 2, "T": 512, "n": 1},
            {"h": 512, "H": 2, "c": 128, "B": 1, "T": 1024, "n": 2},
        ],
        mlstm,
        xlstm,
    ),
    ModuleCase(
        "mLSTM (xLSTM), biased",
        [{"h": 256, "H": 4, "c": 64, "B": 2, "T": 512, "n": 1}],
        lambda s: mlstm(s, biased=True),
        lambda s: xlstm(s, biased=True),
    ),
    ModuleCase(
        "short convolution (LFM2)",
        [{"h": 64, "W": 3, "B": 2, "T": 500, "n": 1}, {"h": 256, "W": 4, "B": 1, "T": 512, "n": 2}],
        lambda s: ShortConv(conv_L_cache=s.W),
        lfm2,
    ),
    ModuleCase(
        "short convolution (LFM2), biased",
        [{"h": 64, "W": 3, "B": 2, "T": 500, "n": 1}],
        lambda s: ShortConv(conv_L_cache=s.W, conv_bias=True),
        lambda s: lfm2(s, biased=True),
    ),
    ModuleCase(
        "RG-LRU (RecurrentGemma)",
        [
            {"h": 64, "W": 96, "H": 4, "B": 2, "T": 10, "n": 1},
            {"h": 64, "W": 96, "H": 4, "B": 2, "T": 4, "n": 1},
            {"h": 256, "W": 256, "H": 2, "B": 1, "T": 33, "n": 2},
            {"h": 64, "W": 256, "H": 4, "B": 3, "T": 300, "n": 2},
        ],
        lambda s: RGLRU(lru_width=s.W, num_attention_heads=s.H),
        recurrent_gemma,
    ),
]

OWN_STEPS = [
    ModuleCase(
        "lightning attention",
        [{"h": 64, "H": 2, "K": 48, "B": 2, "T": 100, "n": 1}, {"h": 256, "H": 4, "K": 128, "B": 1, "T": 512, "n": 2}],
        lightning,
        lightning_with_kernel,
    ),
    ModuleCase(
        "RWKV-4 time mixing",
        [{"h": 64, "B": 2, "T": 100, "n": 1}, {"h": 256, "B": 1, "T": 512, "n": 2}],
        lambda s: RwkvTimeMix(attention_hidden_size=s.h),
        rwkv4,
    ),
]

AGAIN = [
    ModuleCase(f"{name}, recomputed", [{**sizes, "n": 3}], part, make, recompute=Recompute(layers=True))
    for name, sizes, part, make in (
        ("Mamba", MAMBA[0], mamba, published_mamba),
        ("Mamba-2", MAMBA2[0], mamba2, published_mamba2),
        ("gated DeltaNet", DELTA[0], gated_delta_net, published_gated_delta_net),
    )
]

MODULES = {case.name: case for case in (*STATE_SPACES, *LINEAR, *OWN_STEPS, *AGAIN)}
