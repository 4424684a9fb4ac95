"""Mixture of experts: a router sends each token through a few of many feed-forward networks.

Shazeer 2017 (arXiv:1701.06538), Fedus 2021 (Switch), Jiang 2024 (Mixtral); shared experts from Dai 2024 (DeepSeekMoE,
arXiv:2401.06066), their gate from Qwen1.5-MoE, the score correction without auxiliary loss from DeepSeek-V3
(arXiv:2412.19437, §2.1.2), experts that compute nothing from LongCat-Flash (arXiv:2509.01322, §2.1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from ... import ops
from ...algebra import Number, add
from ...flow.axis import Axis, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Around, Experts, Flag, Network, Real, TopK, Unscalable, Vocab, Width, ZeroExperts
from ..norm import Norm
from ..runtime import Run, vector
from .feed_forward import FeedForward, activate
from .router import RouterMLP

if TYPE_CHECKING:
    from torch import Tensor, nn


class MoE(Network):
    """`num_experts` routed experts, of which each token uses `num_experts_per_tok`; shared experts see every token.

    expert: one routed expert. shared_expert: all shared experts as one feed-forward network of their total width.
    router_bias: on the router's logits. score_correction_bias: a buffer that shifts which experts are chosen, not their
    weights; it is in the checkpoint and is not a parameter, but where a model holds it as one (`parameter`).
    scoring_func: softmax or sigmoid over the logits, or the root of their softplus. token_table: experts are looked up
    by the token in a table of so many tokens, which no gradient reaches (DeepSeek-V4).
    router_norm: on what the router reads. router_mlp: the router is no single map (ZAYA1). expert_scale: a weight for
    each expert on what it gives (Gemma 4).
    moe_latent_size, latent_bias: width that the routed experts read and write, with a map into it and one out of it
    (Nemotron 3).
    output_bias: on what all experts give together (JetMoE).
    zero_expert_num: experts beside the others that hand on what they read (LongCat-Flash). How many of a token's
    experts are such depends on the data: every token is counted as if all its num_experts_per_tok were real ones, which
    is the most it can cost.
    vision_expert: one of as many experts again, with a router of their own, that tokens of images pass in place of
    those of text (ERNIE 4.5 VL).
    router_aux_loss_coef, router_z_loss_coef: training settings, recorded; they cost no parameter.
    """

    node_name: ClassVar[str] = "mlp"
    kind: ClassVar[str] = "experts"
    mixture: ClassVar[bool] = True

    type: Literal["moe"] = "moe"
    num_experts: Experts
    num_experts_per_tok: TopK
    zero_expert_num: ZeroExperts | None = None
    expert: FeedForward
    shared_expert: FeedForward | None = None
    shared_expert_gate: Flag = False
    router_bias: Flag = False
    score_correction_bias: Flag | Literal["parameter"] = False
    scoring_func: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    token_table: Vocab | None = None
    router_norm: Norm | None = None
    router_mlp: RouterMLP | None = None
    vision_expert: FeedForward | None = None
    expert_scale: Flag = False
    moe_latent_size: Width | None = None
    latent_bias: Flag = False
    output_bias: Flag = False
    router_aux_loss_coef: Real | None = None
    router_z_loss_coef: Real | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok: {self.num_experts_per_tok} is more than num_experts {self.num_experts}"
            )
        for name, expert in (("expert", self.expert), ("vision_expert", self.vision_expert)):
            if expert is not None and expert.hidden_act == "xielu":
                raise ValueError(
                    f"{name}.hidden_act: 'xielu' has weights; what is counted for experts knows none of their own"
                )
            if expert is not None and expert.sub_norm is not None:
                raise ValueError(f"{name}.sub_norm: the experts' maps stand one after the other; expected none")
        if self.router_mlp is not None and self.router_bias:
            raise ValueError("router_bias: a router_mlp has biases of its own; expected false")
        if self.zero_expert_num is not None and (self.router_mlp is not None or self.token_table is not None):
            raise ValueError(
                "zero_expert_num: neither a router_mlp nor a token_table sends tokens to such experts; expected none"
            )
        if self.shared_expert_gate and self.shared_expert is None:
            raise ValueError("shared_expert_gate: there is no shared_expert to gate")
        return self

    def activation(self) -> str:
        return self.expert.style

    def active_width(self) -> int:
        shared = 0 if self.shared_expert is None else self.shared_expert.intermediate_size
        return self.num_experts_per_tok * self.expert.intermediate_size + shared

    def widened(self, change: Callable[[int], Number]) -> Self:
        if self.moe_latent_size is not None:
            raise Unscalable(
                "experts of a latent width do not scale with hidden_size alone; expected no moe_latent_size"
            )
        networks = {name: getattr(self, name) for name in ("expert", "shared_expert", "vision_expert")}
        return self.model_copy(update={name: one.widened(change) for name, one in networks.items() if one is not None})

    def borrows(self) -> str:
        return "" if self.token_table is None else "token_table"

    def source(self) -> str:
        return "Shazeer et al. 2017, §2"

    def flow(self, f: Flow, x: Value, seen: Value | None = None) -> Value:
        """seen: what the router reads, where it is not what the experts read."""
        top_k, experts = self.num_experts_per_tok, Axis("experts", self.num_experts)
        scores = self._routed(f, x if seen is None else seen, experts)
        if self.vision_expert is not None:
            f.part("vision_experts", self._of_images(self.vision_expert), x, role="idle")
        latent = None if self.moe_latent_size is None else Axis("latent", self.moe_latent_size)
        read = x if latent is None else f.linear("latent_in", x, latent, bias=self.latent_bias)
        rows = f.dispatch(read, scores, experts, top_k)
        with f.scope("experts", kind="experts", source=self.source()):
            y = self._expert(f, rows, experts, read.axes)
        y = f.combine(y, scores, experts, top_k)
        y = y if latent is None else f.linear("latent_out", y, *x.axes, bias=self.latent_bias)
        if self.shared_expert is not None:
            y = f.add(y, self._shared(f, self.shared_expert, x))
        if self.output_bias:
            y = f.add(y, f.vector("output_bias", *x.axes, kind="experts"))
        return y

    def _routed(self, f: Flow, x: Value, experts: Axis) -> Value:
        """What sends each token to its experts."""
        seen = x if self.router_norm is None else f.part("router_norm", self.router_norm, x, kind="router")
        classes: Number = add(self.num_experts, 0 if self.zero_expert_num is None else self.zero_expert_num)
        if self.router_mlp is None:
            axis = Axis("classes", classes)
            scores = f.linear("router", seen, axis, bias=self.router_bias, kind="router")
        else:
            axis = Axis("classes", self.router_mlp.classes(self.num_experts))
            scores = f.part("router", self.router_mlp, seen, classes=axis)
        if self.expert_scale:
            f.vector("expert_scale", experts, kind="router")
        if self.token_table is not None:
            rows = Axis("vocab", self.token_table), Axis("top_k", self.num_experts_per_tok)
            f.buffer("token_table", *rows, kind="router")
        if self.score_correction_bias == "parameter":
            f.vector("score_correction", axis, kind="router")
        elif self.score_correction_bias:
            f.buffer("score_correction", axis, kind="router")
        return scores

    def _expert(self, f: Flow, rows: Value, experts: Axis, out: Shape) -> Value:
        """One routed expert's feed-forward network, of every expert at once."""
        expert, top_k, inner = self.expert, self.num_experts_per_tok, Axis("expert_ffn", self.expert.intermediate_size)
        gate = f.experts("gate_proj", rows, experts, top_k, inner, bias=expert.gate_bias) if expert.gated else None
        up = f.experts("up_proj", rows, experts, top_k, inner, bias=expert.up_bias)
        y = f.act(up if gate is None else gate, expert.hidden_act)
        y = y if gate is None else f.mul(y, up)
        y = f.experts("down_proj", y, experts, top_k, *out, bias=expert.down_bias)
        if self.zero_expert_num is not None:
            maps = tuple(s.op for s in f.here.steps() if isinstance(s.op, ops.ExpertLinear))
            identity = ops.IdentityExperts(self.zero_expert_num, maps)
            y = f.core("zero_experts", identity, y, axes=y.axes, about={"source": "LongCat-Flash 2025, §2.1"})
        return y

    def _shared(self, f: Flow, expert: FeedForward, x: Value) -> Value:
        """The expert that every token passes."""
        with f.scope("shared_expert", kind="shared_expert", source="Dai et al. 2024, §3.2"):
            y = expert.flow(f, x)
        if not self.shared_expert_gate:
            return y
        gate = f.linear("shared_expert_gate", x, Axis("one", 1), kind="shared_expert")
        return f.mul(y, f.act(gate, "sigmoid"))

    def _of_images(self, expert: FeedForward) -> MoE:
        """The experts and router that text tokens never use."""
        changes = {"expert": expert, "vision_expert": None, "shared_expert": None, "shared_expert_gate": False}
        return self.model_copy(update=changes)

    def describe(self, hidden_size: int) -> str:
        shared = f" + shared {self.shared_expert.intermediate_size}" if self.shared_expert is not None else ""
        identities = f" + {self.zero_expert_num} identities" if self.zero_expert_num is not None else ""
        return (
            f"MoE {self.num_experts_per_tok} of {self.num_experts}{identities} × "
            f"{self.expert.describe(hidden_size)}{shared}"
        )

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around)

    @classmethod
    def examples(cls) -> list[Self]:
        swiglu = FeedForward(intermediate_size=12, hidden_act="silu", gated=True)
        plain = FeedForward(intermediate_size=12, hidden_act="gelu", up_bias=True, down_bias=True)
        wide = FeedForward(intermediate_size=28, hidden_act="silu", gated=True)
        skipping = RouterMLP(router_hidden_size=7, adds_below=True, skip=True)
        return [
            cls(num_experts=6, num_experts_per_tok=2, expert=swiglu),
            cls(num_experts=4, num_experts_per_tok=1, expert=plain, router_bias=True),
            cls(num_experts=4, num_experts_per_tok=2, expert=swiglu, output_bias=True),
            cls(num_experts=5, num_experts_per_tok=3, expert=swiglu, shared_expert=wide, shared_expert_gate=True),
            cls(
                num_experts=8,
                num_experts_per_tok=2,
                expert=swiglu,
                shared_expert=wide,
                score_correction_bias=True,
                scoring_func="sigmoid",
            ),
            cls(
                num_experts=4,
                num_experts_per_tok=2,
                expert=plain,
                shared_expert=wide,
                moe_latent_size=10,
                latent_bias=True,
            ),
            cls(
                num_experts=4,
                num_experts_per_tok=2,
                expert=swiglu,
                score_correction_bias="parameter",
                scoring_func="sigmoid",
            ),
            cls(
                num_experts=4,
                num_experts_per_tok=2,
                expert=swiglu,
                shared_expert=wide,
                token_table=50,
                scoring_func="sqrtsoftplus",
            ),
            cls(
                num_experts=4, num_experts_per_tok=2, expert=swiglu, router_norm=Norm(type="rmsnorm"), expert_scale=True
            ),
            cls(num_experts=4, num_experts_per_tok=1, expert=swiglu, router_mlp=skipping, score_correction_bias=True),
            cls(
                num_experts=4,
                num_experts_per_tok=2,
                expert=swiglu,
                router_mlp=RouterMLP(router_hidden_size=6, hidden_act="silu"),
            ),
            cls(
                num_experts=4,
                num_experts_per_tok=2,
                expert=swiglu,
                shared_expert=wide,
                vision_expert=plain,
                score_correction_bias="parameter",
            ),
            cls(
                num_experts=3,
                num_experts_per_tok=2,
                zero_expert_num=5,
                expert=swiglu,
                score_correction_bias=True,
                router_bias=True,
            ),
            cls(
                num_experts=4,
                num_experts_per_tok=3,
                zero_expert_num=1,
                expert=plain,
                moe_latent_size=10,
                shared_expert=wide,
            ),
        ]


@cache
def expert_map_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ExpertMap(nn.Module):
        """x: [rows, n_in], chosen: [rows] → [rows, n_out], each row through the map of its own expert."""

        def __init__(self, experts: int, n_in: int, n_out: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(experts, n_out, n_in))
            nn.init.normal_(self.weight, std=n_in**-0.5)
            self.bias = nn.Parameter(torch.zeros(experts, n_out)) if bias else None

        def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
            if x.is_meta:  # no data to group the rows by: one product a row, of the same size in all
                out = torch.bmm(self.weight[chosen], x[:, :, None])[:, :, 0]
                return out if self.bias is None else out + self.bias[chosen]
            out = x.new_zeros(x.shape[0], self.weight.shape[1])
            for expert in chosen.unique().tolist():
                rows = (chosen == expert).nonzero()[:, 0]
                mapped = nn.functional.linear(
                    x[rows], self.weight[expert], None if self.bias is None else self.bias[expert]
                )
                out = out.index_copy(0, rows, mapped)
            return out

    return ExpertMap


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    ExpertMap = expert_map_class()

    class ExpertsReference(nn.Module):
        def __init__(self, spec: MoE, hidden: int) -> None:
            super().__init__()
            count, inner = spec.num_experts, spec.expert.intermediate_size
            self.act = spec.expert.hidden_act
            if spec.expert.gated:
                self.gate_proj = ExpertMap(count, hidden, inner, spec.expert.gate_bias)
            if spec.zero_expert_num is not None:
                self.zero_experts = nn.Identity()
            self.up_proj = ExpertMap(count, hidden, inner, spec.expert.up_bias)
            self.down_proj = ExpertMap(count, inner, hidden, spec.expert.down_bias)

        def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
            up = self.up_proj(x, chosen)
            gated = hasattr(self, "gate_proj")
            inner = activate(self.act, self.gate_proj(x, chosen)) * up if gated else activate(self.act, up)
            out: Tensor = self.down_proj(inner, chosen)
            return out

    class Correction(nn.Module):
        def __init__(self, experts: int, parameter: bool) -> None:
            super().__init__()
            if parameter:
                self.bias = nn.Parameter(torch.zeros(experts), requires_grad=False)
            else:
                self.register_buffer("bias", torch.zeros(experts))

    class TokenTable(nn.Module):
        chosen: Tensor

        def __init__(self, tokens: int, experts: int, top_k: int) -> None:
            super().__init__()
            self.register_buffer(
                "chosen",
                torch.stack([torch.randperm(experts, device="cpu")[:top_k] for _ in range(tokens)]).to(
                    torch.empty(0).device
                ),
            )

    class MoEReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: MoE, around: Around) -> None:
            super().__init__()
            hidden = around.hidden_size
            if spec.vision_expert is not None:
                changes = {
                    "expert": spec.vision_expert,
                    "vision_expert": None,
                    "shared_expert": None,
                    "shared_expert_gate": False,
                }
                self.vision_experts = MoEReference(spec.model_copy(update=changes), around)
            self.top_k, self.scoring = spec.num_experts_per_tok, spec.scoring_func
            skips = spec.router_mlp is not None and spec.router_mlp.skip
            classes = spec.num_experts + int(skips) + (spec.zero_expert_num or 0)
            self.real = spec.num_experts
            self.skipping = spec.num_experts if skips else None
            if spec.router_mlp is None:
                self.router: nn.Module = nn.Linear(hidden, classes, bias=spec.router_bias)
            else:
                self.router = spec.router_mlp.reference(around, spec.num_experts)
            self.several = spec.router_mlp is not None
            self.score_correction = (
                Correction(classes, spec.score_correction_bias == "parameter") if spec.score_correction_bias else None
            )
            if spec.token_table is not None:
                self.token_table = TokenTable(spec.token_table, spec.num_experts, spec.num_experts_per_tok)
            if spec.router_norm is not None:
                self.router_norm = spec.router_norm.reference(around)
            if spec.expert_scale:
                self.expert_scale = vector(torch.ones(spec.num_experts))
            self.experts = ExpertsReference(spec, spec.moe_latent_size or hidden)
            if spec.moe_latent_size is not None:
                self.latent_in = nn.Linear(hidden, spec.moe_latent_size, bias=spec.latent_bias)
                self.latent_out = nn.Linear(spec.moe_latent_size, hidden, bias=spec.latent_bias)
            if spec.shared_expert is not None:
                self.shared_expert = spec.shared_expert.reference(around)
            if spec.shared_expert_gate:
                self.shared_expert_gate = nn.Linear(hidden, 1, bias=False)
            if spec.output_bias:
                self.output_bias = vector(torch.zeros(hidden))

        def forward(self, x: Tensor, run: Run | None = None, seen: Tensor | None = None) -> Tensor:
            """seen: what the router reads, where it is not what the experts do."""
            flat = x.flatten(0, 1)
            read = flat if seen is None else seen.flatten(0, 1)
            read = self.router_norm(read) if hasattr(self, "router_norm") else read
            logits = (self.router(read, run) if self.several else self.router(read)).float()
            scores = {"softmax": lambda: logits.softmax(-1), "sigmoid": logits.sigmoid}.get(
                self.scoring, lambda: nn.functional.softplus(logits).sqrt()
            )()
            ranked = scores if self.score_correction is None else scores + self.score_correction.bias
            if hasattr(self, "token_table"):
                assert run is not None
                assert run.ids is not None
                chosen = self.token_table.chosen[run.ids.flatten()]
            else:
                chosen = ranked.topk(self.top_k, -1).indices
            weights = scores.gather(-1, chosen)
            if self.top_k > 1:
                weights = weights / weights.sum(-1, keepdim=True)
            if hasattr(self, "expert_scale"):
                weights = weights * self.expert_scale.weight[chosen]
            if self.skipping is not None:  # such a token passes an expert too, and nothing of it is used
                skips = chosen == self.skipping
                weights, chosen = weights.masked_fill(skips, 0.0), chosen.masked_fill(skips, 0)
            weights = weights.to(x.dtype)
            rows = (self.latent_in(flat) if hasattr(self, "latent_in") else flat).repeat_interleave(self.top_k, 0)
            if hasattr(
                self.experts, "zero_experts"
            ):  # such a token passes a real expert too, so that what runs does not depend on the data
                identity = (chosen >= self.real).flatten()
                computed = self.experts(rows, chosen.flatten().masked_fill(identity, 0))
                out = torch.where(identity[:, None], self.experts.zero_experts(rows), computed).unflatten(
                    0, (-1, self.top_k)
                )
            else:
                out = self.experts(rows, chosen.flatten()).unflatten(0, (-1, self.top_k))
            mixed = (out * weights[..., None]).sum(1)
            mixed = self.latent_out(mixed) if hasattr(self, "latent_out") else mixed
            if hasattr(self, "shared_expert"):
                shared = self.shared_expert(flat)
                mixed = mixed + (
                    self.shared_expert_gate(flat).sigmoid() * shared if hasattr(self, "shared_expert_gate") else shared
                )
            mixed = mixed + self.output_bias.weight if hasattr(self, "output_bias") else mixed
            result: Tensor = mixed.unflatten(0, x.shape[:2])
            return result

    return MoEReference
