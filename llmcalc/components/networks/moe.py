"""Mixture of experts: a router sends each token to a few of many feed-forward networks.

Shazeer 2017 (arXiv:1701.06538), Fedus 2021 (Switch), Jiang 2024 (Mixtral). Shared experts are from Dai 2024
(DeepSeekMoE, arXiv:2401.06066), their gate from Qwen1.5-MoE, the expert score-correction bias without an auxiliary loss
from DeepSeek-V3 (arXiv:2412.19437, §2.1.2), zero-computation experts from LongCat-Flash (arXiv:2509.01322, §2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...algebra import Number, add
from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    TORCH_WITNESS,
    Experts,
    FiniteNumber,
    Flag,
    InnerWidth,
    ModelProperties,
    Network,
    Part,
    PartWitness,
    TopK,
    UnscalableError,
    ZeroExperts,
    check_top_k,
)
from ..norm import Norm
from ..runtime import PassState, apply_dropout, vector_module
from .expert_dispatch import capacity_dispatch_class, expert_dispatch_class, expert_group_ends, expert_map_class
from .feed_forward import FeedForward, activate, record_up_activation
from .router import AnyRouter, LinearRouter, RouterMLP, TokenTableRouter
from .shared_scores import SharedScores

if TYPE_CHECKING:
    from torch import Tensor, nn


class IdentityExperts(Part):
    """Experts without weights that return their input unchanged (LongCat-Flash).

    zero_expert_num: the number of identity experts. How many of a token's experts are identity experts depends on the
        data. Every token is counted as if all of its num_experts_per_tok were real experts, which is the upper bound.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    zero_expert_num: ZeroExperts

    def flow(self, recorder: Flow, x: Value, expert_sum: Value) -> Value:
        """Records the identity experts' operations. x: all experts' input. expert_sum: the other experts' output."""
        expert_ops = tuple(
            recorded_step.op
            for recorded_step in recorder.current_scope.steps()
            if isinstance(recorded_step.op, ops.ExpertLinear)
        )
        identity_op = ops.IdentityExperts(self.zero_expert_num, expert_ops)
        return recorder.core(
            "zero_experts",
            identity_op,
            x,
            expert_sum,
            axes=expert_sum.axes,
            node_fields={"source": "LongCat-Flash 2025, §2.1"},
        )

    def reference(self) -> nn.Module:
        from torch import nn

        return nn.Identity()


class Latent(Part):
    """A smaller width in which routed experts run, between a down and an up projection (Nemotron 3, Kimi K3).

    moe_latent_size: the latent width.
    bias: whether both projections have a bias, false by default.
    norm: the norm of the latent vector that the experts read, none by default.
    expert_norm: the norm of each expert's output, with one weight for all experts; none by default.
    output_norm: the norm of the weighted sum of the experts' outputs, none by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    moe_latent_size: InnerWidth
    bias: Flag = False
    norm: Norm | None = None
    expert_norm: Norm | None = None
    output_norm: Norm | None = None

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the projection to the latent width, with its norm."""
        latent_input = recorder.linear("latent_in", x, Axis("latent", self.moe_latent_size), bias=self.bias)
        return latent_input if self.norm is None else recorder.part("latent_norm", self.norm, latent_input)

    def normed_output(self, recorder: Flow, latent_output: Value) -> Value:
        """Records the optional norm on each expert's output. latent_output: one vector per token and expert."""
        return (
            latent_output if self.expert_norm is None else recorder.part("expert_norm", self.expert_norm, latent_output)
        )

    def project_to_model_width(self, recorder: Flow, latent_output: Value, output_axes: Shape) -> Value:
        """Records the optional norm on the sum of expert outputs, and the projection back to the model's width."""
        if self.output_norm is not None:
            latent_output = recorder.part("latent_output_norm", self.output_norm, latent_output)
        recorder.hold(y=latent_output)
        return recorder.linear("latent_out", latent_output, *output_axes, bias=self.bias)

    def reference(self, model_properties: ModelProperties) -> Mapping[str, nn.Module]:
        """Builds the projections to and from the latent width, with the optional norms, as named modules."""
        from torch import nn

        hidden_size, latent_size = model_properties.hidden_size, self.moe_latent_size
        norms = {"latent_norm": self.norm, "expert_norm": self.expert_norm, "latent_output_norm": self.output_norm}
        return {
            "latent_in": nn.Linear(hidden_size, latent_size, bias=self.bias),
            "latent_out": nn.Linear(latent_size, hidden_size, bias=self.bias),
            **{
                norm_name: norm.reference(ModelProperties(latent_size))
                for norm_name, norm in norms.items()
                if norm is not None
            },
        }


class VisionExperts(Part):
    """A second set of num_experts experts with a separate router, for image tokens only (ERNIE 4.5 VL).

    expert: the feed-forward network of one expert.
    router: the router, linear by default.
    """

    formula_source: ClassVar[str] = "Shazeer et al. 2017, §2"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "experts"

    expert: FeedForward
    router: AnyRouter = LinearRouter()

    def check_fields(self) -> None:
        check_expert(self.expert)

    def flow(self, recorder: Flow, x: Value, expert_axis: Axis, top_k: Number) -> Value:
        expert_weights, top_experts = self.router.flow(recorder, x, expert_axis, top_k, expert_axis.size)
        routed_rows = recorder.dispatch(x, top_experts, expert_axis, top_k, self.router.expert_groups)
        with recorder.scope("experts", kind="experts", source=self.formula_source):
            expert_outputs = record_expert_networks(recorder, self.expert, routed_rows, expert_axis, top_k, x.axes)
        return recorder.combine(
            expert_outputs, expert_weights, expert_axis, top_k, in_float32=self.router.float32_weights
        )

    def with_scaled_widths(self, scale_width: Callable[[int], Number]) -> Self:
        return self.model_copy(update={"expert": self.expert.with_scaled_widths(scale_width)})

    def reference(self, model_properties: ModelProperties, expert_count: int, top_k: int) -> nn.Module:
        return _vision_experts_class()(self, model_properties, expert_count, top_k)


class MoE(Network):
    """A mixture of `num_experts` routed experts; each token is routed to `num_experts_per_tok` of them.

    num_experts: the number of routed experts.
    num_experts_per_tok: the number of experts per token.
    expert: the feed-forward network of one routed expert.
    identity_experts: additional experts that return their input unchanged, none by default.
    shared_expert: all shared experts, which every token uses, as one network of their total width; none by default.
    shared_expert_gate: whether the shared expert's output has a sigmoid gate, one value per token; false by default.
    router: the part that selects the experts of each token; a linear layer with a softmax by default.
    vision_experts: a second set of experts for image tokens; none by default.
    latent: a latent width of the routed experts, used instead of hidden_size; none by default.
    shared_expert_mix: whether two learned scores, whose softmax weights the outputs of the routed experts and of the
        shared expert, are computed of the input by a linear layer with a bias (Klear); false by default.
    shared_scores: the scores that weigh the shared experts (Inkling), none by default.
    expert_loop: whether its class of transformers runs one expert after another (DBRX, Switch Transformers), where
        others run one product of all experts' rows; false by default. Counts do not change. Memory is counted as
        of one product, so that of the class is an estimate.
    sliced_experts: whether that loop reads the weights of each expert as slices of the tensors of all experts (DBRX,
        LongCat-Flash), of which every gradient has the size of the whole tensor; false by default.
    output_bias: whether there is a bias on the output of all experts (JetMoE), false by default.
    router_aux_loss_coef, router_z_loss_coef: training settings without effect on counts, none by default.
    """

    formula_source: ClassVar[str] = "Shazeer et al. 2017, §2"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    node_name: ClassVar[str] = "mlp"
    kind: ClassVar[str] = "experts"
    is_mixture_of_experts: ClassVar[bool] = True
    renamed_fields: ClassVar[Mapping[str, str]] = {
        "router_bias": "router = { bias = … }",
        "score_correction_bias": 'router = { score_correction = "buffer" } or "parameter"',
        "scoring_func": "router = { scoring_func = … }",
        "router_norm": "router = { norm = { … } }",
        "expert_scale": "router = { expert_scale = … }",
        "router_mlp": 'router = { type = "mlp", … }',
        "token_table": 'router = { type = "token_table", vocab_size = … }',
        "vision_expert": "vision_experts = { expert = … }",
        "moe_latent_size": "latent = { moe_latent_size = … }",
        "latent_bias": "latent = { bias = … }",
        "zero_expert_num": "identity_experts = { zero_expert_num = … }",
    }

    type: Literal["moe"] = "moe"
    num_experts: Experts
    num_experts_per_tok: TopK
    expert: FeedForward
    identity_experts: IdentityExperts | None = None
    shared_expert: FeedForward | None = None
    shared_expert_gate: Flag = False
    shared_expert_mix: Flag = False
    shared_scores: SharedScores | None = None
    router: AnyRouter = LinearRouter()
    vision_experts: VisionExperts | None = None
    latent: Latent | None = None
    expert_loop: Flag = False
    sliced_experts: Flag = False
    output_bias: Flag = False
    router_aux_loss_coef: FiniteNumber | None = None
    router_z_loss_coef: FiniteNumber | None = None

    def check_fields(self) -> None:
        check_top_k(self.num_experts, self.num_experts_per_tok)
        for router in (self.router, *(() if self.vision_experts is None else (self.vision_experts.router,))):
            router.check_groups(self.num_experts, self.num_experts_per_tok)
        check_expert(self.expert)
        if self.identity_experts is not None and not self.router.sends_to_identities:
            raise ValueError(
                f"identity_experts: a router of type '{self.router.type}' sends no tokens to them; expected none"
            )
        if self.sliced_experts and not self.expert_loop:
            raise ValueError("sliced_experts: a loop over experts reads slices; expected expert_loop = true, too")
        if self.shared_expert_gate and self.shared_expert is None:
            raise ValueError("shared_expert_gate: there is no shared_expert to gate")
        if self.shared_expert_mix and (self.shared_expert is None or self.shared_expert_gate):
            raise ValueError("shared_expert_mix: weights a shared_expert; expected one, and no shared_expert_gate")
        self._check_shared_scores()

    def _check_shared_scores(self) -> None:
        """Raises `ValueError` if `shared_scores` cannot weight this shared expert, such as an expert with biases."""
        scores, shared_expert = self.shared_scores, self.shared_expert
        if scores is not None and (
            shared_expert is None
            or self.shared_expert_gate
            or self.shared_expert_mix
            or not shared_expert.gated
            or shared_expert.gate_bias
            or shared_expert.up_bias
            or shared_expert.down_bias
            or shared_expert.sub_norm is not None
            or shared_expert.intermediate_size % scores.shared_experts
        ):
            raise ValueError(
                "shared_scores: weighs equal parts of a gated shared_expert without biases; expected one whose "
                f"intermediate_size {scores.shared_experts} divides, and no other weight of it"
            )

    def activation(self) -> str:
        return self.expert.usual_name

    def active_width(self) -> int:
        shared_width = 0 if self.shared_expert is None else self.shared_expert.intermediate_size
        return self.num_experts_per_tok * self.expert.intermediate_size + shared_width

    def with_scaled_widths(self, scale_width: Callable[[int], Number]) -> Self:
        if self.latent is not None:
            raise UnscalableError("experts of a latent width do not scale with hidden_size alone; expected no latent")
        networks_by_field = {
            "expert": self.expert,
            "shared_expert": self.shared_expert,
            "vision_experts": self.vision_experts,
        }
        return self.model_copy(
            update={
                field_name: network.with_scaled_widths(scale_width)
                for field_name, network in networks_by_field.items()
                if network is not None
            }
        )

    def dependency_field(self) -> str:
        return f"router.type '{self.router.type}'" if self.router.reads_token_ids else ""

    def flow(self, recorder: Flow, x: Value, router_input: Value | None = None) -> Value:
        """Records the operations of router and experts. router_input: the router's input, if not the experts'."""
        top_k, expert_axis = self.num_experts_per_tok, Axis("experts", self.num_experts)
        identity_count = 0 if self.identity_experts is None else self.identity_experts.zero_expert_num
        class_count = add(self.num_experts, identity_count)
        expert_weights, top_experts = self.router.flow(
            recorder, x if router_input is None else router_input, expert_axis, top_k, class_count
        )
        if self.vision_experts is not None:
            recorder.part("vision_experts", self.vision_experts, x, role="idle", expert_axis=expert_axis, top_k=top_k)
        expert_input = x if self.latent is None else self.latent.flow(recorder, x)
        recorder.hold(weights=expert_weights, chosen=top_experts, y=expert_input)
        routed_rows = recorder.dispatch(expert_input, top_experts, expert_axis, top_k, self.router.expert_groups)
        with recorder.scope("experts", kind="experts", source=self.formula_source):
            recorder.hold(x=routed_rows)
            has_identities = self.identity_experts is not None
            expert_outputs = record_expert_networks(
                recorder,
                self.expert,
                routed_rows,
                expert_axis,
                top_k,
                expert_input.axes,
                has_identities,
                self.sliced_experts,
            )
            if self.identity_experts is not None:
                expert_outputs = self.identity_experts.flow(recorder, routed_rows, expert_outputs)
        if self.latent is not None:
            expert_outputs = self.latent.normed_output(recorder, expert_outputs)
        expert_outputs = recorder.combine(
            expert_outputs, expert_weights, expert_axis, top_k, in_float32=self.router.float32_weights
        )
        recorder.hold(y=expert_outputs)
        if self.latent is not None:
            expert_outputs = self.latent.project_to_model_width(recorder, expert_outputs, x.axes)
            recorder.hold(y=expert_outputs)
        if self.shared_expert is not None:
            shared_output = self._shared_expert_output(recorder, self.shared_expert, x)
            if self.shared_expert_mix:
                scores = recorder.linear("shared_expert_mix", x, Axis("outputs", 2), bias=True, kind="shared_expert")
                routed_weight, shared_expert_weight = recorder.split(
                    recorder.act(scores, "softmax"), *[(Axis("one", 1),)] * 2
                )
                expert_outputs, shared_output = (
                    recorder.mul(routed_weight, expert_outputs, expert_outputs.axes),
                    recorder.mul(shared_expert_weight, shared_output, expert_outputs.axes),
                )
            expert_outputs = recorder.add(expert_outputs, shared_output)
            recorder.hold(y=expert_outputs)
        if self.output_bias:
            expert_outputs = recorder.add(expert_outputs, recorder.vector("output_bias", *x.axes, kind="experts"))
        return expert_outputs

    def _shared_expert_output(self, recorder: Flow, expert: FeedForward, x: Value) -> Value:
        """Returns the shared expert's output for every token."""
        if self.shared_scores is not None:
            shared_output = self.shared_scores.flow(recorder, expert, x)
            recorder.hold(shared=shared_output)
            return shared_output
        with recorder.scope("shared_expert", kind="shared_expert", source="Dai et al. 2024, §3.2"):
            shared_output = expert.flow(recorder, x)
        recorder.hold(shared=shared_output)
        if not self.shared_expert_gate:
            return shared_output
        gate = recorder.linear("shared_expert_gate", x, Axis("one", 1), kind="shared_expert")
        return recorder.mul(recorder.act(gate, "sigmoid"), shared_output, shared_output.axes)

    def describe(self, hidden_size: int) -> str:
        shared_text = f" + shared {self.shared_expert.intermediate_size}" if self.shared_expert is not None else ""
        identity_experts = self.identity_experts
        identities_text = f" + {identity_experts.zero_expert_num} identities" if identity_experts is not None else ""
        return (
            f"MoE {self.num_experts_per_tok} of {self.num_experts}{identities_text} × "
            f"{self.expert.describe(hidden_size)}{shared_text}"
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        swiglu = FeedForward(intermediate_size=16, hidden_act="silu", gated=True)
        ungated_network = FeedForward(intermediate_size=16, hidden_act="gelu", up_bias=True, down_bias=True)
        shared_network = FeedForward(intermediate_size=28, hidden_act="silu", gated=True)
        skipping_router = RouterMLP(router_hidden_size=7, adds_below=True, skip=True, score_correction="buffer")
        corrected_router = LinearRouter(score_correction="buffer", scoring_func="sigmoid")
        router_with_trained_correction = LinearRouter(score_correction="parameter", scoring_func="sigmoid")
        vision_experts = VisionExperts(expert=ungated_network, router=LinearRouter(score_correction="parameter"))
        expert_counts = {"num_experts": 4, "num_experts_per_tok": 2}

        def build_moe(**moe_fields: Any) -> Any:
            return cls(**{**expert_counts, "expert": swiglu, **moe_fields})

        router = LinearRouter(score_correction="parameter")
        latent = Latent(moe_latent_size=8, bias=True)
        return [
            build_moe(num_experts=6),
            build_moe(num_experts_per_tok=1, expert=ungated_network, router=LinearRouter(bias=True)),
            build_moe(output_bias=True),
            build_moe(num_experts=5, num_experts_per_tok=3, shared_expert=shared_network, shared_expert_gate=True),
            build_moe(num_experts=8, shared_expert=shared_network, router=corrected_router),
            build_moe(expert=ungated_network, shared_expert=shared_network, latent=latent),
            build_moe(router=router_with_trained_correction),
            build_moe(
                shared_expert=shared_network, router=TokenTableRouter(vocab_size=50, scoring_func="sqrtsoftplus")
            ),
            build_moe(router=LinearRouter(norm=Norm(type="rmsnorm"), expert_scale=True)),
            build_moe(num_experts_per_tok=1, router=skipping_router),
            build_moe(router=RouterMLP(router_hidden_size=6, hidden_act="silu")),
            build_moe(shared_expert=shared_network, vision_experts=vision_experts, router=router),
            build_moe(
                num_experts=3,
                identity_experts=IdentityExperts(zero_expert_num=5),
                router=LinearRouter(score_correction="buffer", bias=True),
            ),
            build_moe(
                num_experts_per_tok=3,
                identity_experts=IdentityExperts(zero_expert_num=1),
                expert=ungated_network,
                latent=Latent(moe_latent_size=8),
                shared_expert=shared_network,
            ),
            build_moe(latent=Latent(moe_latent_size=8, norm=Norm(type="rmsnorm"), expert_norm=Norm(type="rmsnorm"))),
            build_moe(latent=Latent(moe_latent_size=8, output_norm=Norm(type="rmsnorm"))),
            build_moe(shared_expert=shared_network, shared_expert_mix=True),
            build_moe(shared_expert=shared_network, shared_scores=SharedScores(shared_experts=2)),
            build_moe(router=LinearRouter(float32_product=True, bias=True)),
            build_moe(num_experts=5, num_experts_per_tok=3, router=LinearRouter(float32_weights=True)),
        ]


def check_expert(expert: FeedForward) -> None:
    """Raises `ValueError` if the expert has fields that a routed expert cannot have."""
    if expert.hidden_act == "xielu":
        raise ValueError(
            "expert.hidden_act: 'xielu' has parameters, which are not supported in experts; expected another one"
        )
    if expert.fused_gate:
        raise ValueError("expert.fused_gate: is that of all experts' classes; expected false")
    if expert.sub_norm is not None:
        raise ValueError("expert.sub_norm: is not supported in experts; expected none")


def record_expert_networks(
    recorder: Flow,
    expert: FeedForward,
    routed_rows: Value,
    expert_axis: Axis,
    top_k: Number,
    output_axes: Shape,
    has_identities: bool = False,
    is_sliced: bool = False,
) -> Value:
    """Records the operations of all experts' networks at once. has_identities, is_sliced: as in `Flow.experts`."""
    ffn_axis = Axis("expert_ffn", expert.intermediate_size)

    def record_linear(projection_name: str, x: Value, *axes: Axis | JoinedShapes, bias: bool) -> Value:
        return recorder.experts(
            projection_name,
            x,
            expert_axis,
            top_k,
            *axes,
            bias=bias,
            has_identities=has_identities,
            slices_weight=is_sliced,
        )

    if expert.gated:
        hidden_units = recorder.act(
            record_linear("gate_proj", routed_rows, ffn_axis, bias=expert.gate_bias), expert.hidden_act
        )
        recorder.hold(y=hidden_units)
        hidden_units = recorder.mul(
            hidden_units,
            record_up_activation(
                recorder, expert.up_act, record_linear("up_proj", routed_rows, ffn_axis, bias=expert.up_bias)
            ),
        )
    else:
        hidden_units = recorder.act(
            record_linear("up_proj", routed_rows, ffn_axis, bias=expert.up_bias), expert.hidden_act
        )
    hidden_units = recorder.dropout(hidden_units, "activation")
    recorder.hold(y=hidden_units)
    hidden_units = record_linear("down_proj", hidden_units, *output_axes, bias=expert.down_bias)
    recorder.hold(y=hidden_units)
    return hidden_units


@cache
def routed_experts_reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    ExpertMap = expert_map_class()

    class RoutedExpertNetworks(nn.Module):
        """Runs each row through the row's expert. x: [rows, width], row_experts: [rows] → [rows, width].

        is_grouped: whether rows are sorted by expert.

        Where all experts have as many rows, x and the output are [experts, rows, width], and `expert` is None.
        """

        def __init__(
            self, expert: FeedForward, expert_count: int, input_width: int, identity_experts: IdentityExperts | None
        ) -> None:
            super().__init__()
            ffn_width, self.count = expert.intermediate_size, expert_count
            self.act, self.up_act = expert.hidden_act, expert.up_act
            if expert.gated:
                self.gate_proj = ExpertMap(expert_count, input_width, ffn_width, expert.gate_bias)
            self.up_proj = ExpertMap(expert_count, input_width, ffn_width, expert.up_bias)
            self.down_proj = ExpertMap(expert_count, ffn_width, input_width, expert.down_bias)
            if identity_experts is not None:
                self.zero_experts = identity_experts.reference()

        def forward(self, x: Tensor, row_experts: Tensor | None, is_grouped: bool) -> Tensor:
            has_gate, is_identity = hasattr(self, "gate_proj"), None
            if hasattr(self, "zero_experts"):
                assert row_experts is not None, "identity experts have no capacity"
                # rows of identity experts run the last real expert too, so that the computation does not depend on data
                is_identity = row_experts >= self.count
                row_experts = row_experts.masked_fill(is_identity, self.count - 1)
            group_ends = expert_group_ends(row_experts, self.count) if is_grouped and row_experts is not None else None
            hidden_units = activate(
                self.act, (self.gate_proj if has_gate else self.up_proj)(x, row_experts, group_ends)
            )
            hidden_units = (
                hidden_units * activate(self.up_act, self.up_proj(x, row_experts, group_ends))
                if has_gate
                else hidden_units
            )
            hidden_units = apply_dropout(self, "activation", hidden_units)
            hidden_units = self.down_proj(hidden_units, row_experts, group_ends)
            if is_identity is None:
                return hidden_units
            return torch.where(is_identity[:, None], self.zero_experts(x), hidden_units)

    class RoutedExperts(nn.Module):
        """A router with its experts; the router's submodules are children of this module, next to the experts."""

        def __init__(
            self,
            router_module: Any,
            expert: FeedForward,
            expert_count: int,
            input_width: int,
            identities: IdentityExperts | None = None,
        ) -> None:
            super().__init__()
            self.routing = router_module
            self.experts = RoutedExpertNetworks(expert, expert_count, input_width, identities)
            for module_name, module in router_module.modules.items():
                self.add_module(module_name, module)

        def dispatch(self, expert_weights: Tensor, top_experts: Tensor, pass_state: PassState | None) -> Any:
            """Returns the assignment of tokens to their experts, with rows grouped by expert."""
            if pass_state is not None and pass_state.expert_capacity is not None:
                return capacity_dispatch_class()(
                    expert_weights, top_experts, self.experts.count, pass_state.expert_capacity
                )
            is_grouped = pass_state is not None and pass_state.grouped_experts
            return expert_dispatch_class()(top_experts, is_grouped, self.routing.float32_weights)

    return RoutedExperts


@cache
def _vision_experts_class() -> type[nn.Module]:
    class VisionExpertsReference(routed_experts_reference_class()):  # type: ignore[misc]
        """Routes image tokens to the vision experts. x: [batch, tokens, hidden] → same shape."""

        def __init__(
            self, spec: VisionExperts, model_properties: ModelProperties, expert_count: int, top_k: int
        ) -> None:
            super().__init__(
                spec.router.reference(model_properties, expert_count, top_k, expert_count),
                spec.expert,
                expert_count,
                model_properties.hidden_size,
            )

        def forward(self, x: Tensor, pass_state: PassState | None = None) -> Tensor:
            expert_weights, top_experts = self.routing(x, pass_state)
            dispatcher = self.dispatch(expert_weights, top_experts, pass_state)
            return dispatcher.combine_outputs(
                self.experts(dispatcher.copy_rows_to_experts(x), dispatcher.expert, dispatcher.is_grouped),
                expert_weights,
            )

    return VisionExpertsReference


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class MoEReference(routed_experts_reference_class()):  # type: ignore[misc]
        """Routes each token to experts, and sums their outputs. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: MoE, model_properties: ModelProperties) -> None:
            hidden_size, expert_count, top_k = model_properties.hidden_size, spec.num_experts, spec.num_experts_per_tok
            identity_experts = spec.identity_experts
            class_count = expert_count if identity_experts is None else expert_count + identity_experts.zero_expert_num
            expert_width = hidden_size if spec.latent is None else spec.latent.moe_latent_size
            super().__init__(
                spec.router.reference(model_properties, expert_count, top_k, class_count),
                spec.expert,
                expert_count,
                expert_width,
                identity_experts,
            )
            if spec.vision_experts is not None:
                self.vision_experts = spec.vision_experts.reference(model_properties, expert_count, top_k)
            if spec.latent is not None:
                for module_name, module in spec.latent.reference(model_properties).items():
                    self.add_module(module_name, module)
            if spec.shared_scores is not None:
                for module_name, module in spec.shared_scores.reference(model_properties).items():
                    self.add_module(module_name, module)
            if spec.shared_expert is not None:
                self.shared_expert = spec.shared_expert.reference(model_properties)
            if spec.shared_expert_gate:
                self.shared_expert_gate = nn.Linear(hidden_size, 1, bias=False)
            if spec.shared_expert_mix:
                self.shared_expert_mix = nn.Linear(hidden_size, 2)
            if spec.output_bias:
                self.output_bias = vector_module(torch.zeros(hidden_size))

        def forward(self, x: Tensor, pass_state: PassState | None = None, router_input: Tensor | None = None) -> Tensor:
            """Runs the mixture of experts. router_input: the router's input, if different from the experts'."""
            weights, top_experts = self.routing(x if router_input is None else router_input, pass_state)
            routed_features = self.latent_in(x) if hasattr(self, "latent_in") else x
            routed_features = self.latent_norm(routed_features) if hasattr(self, "latent_norm") else routed_features
            dispatcher = self.dispatch(weights, top_experts, pass_state)
            norm_output = getattr(self, "expert_norm", lambda outputs: outputs)  # no name may keep the outputs alive
            routed_features = dispatcher.combine_outputs(
                norm_output(
                    self.experts(
                        dispatcher.copy_rows_to_experts(routed_features), dispatcher.expert, dispatcher.is_grouped
                    )
                ),
                weights,
            )
            routed_features = (
                self.latent_output_norm(routed_features) if hasattr(self, "latent_output_norm") else routed_features
            )
            routed_features = self.latent_out(routed_features) if hasattr(self, "latent_out") else routed_features
            if hasattr(self, "shared_expert"):
                if hasattr(self, "shared_router"):
                    expert_weights = self.shared_router(x).sigmoid() * self.shared_scale.weight
                    shared_output = self.shared_expert(x, pass_state, expert_weights)
                else:
                    shared_output = self.shared_expert(x)
                if hasattr(self, "shared_expert_mix"):
                    expert_weights = self.shared_expert_mix(x).softmax(-1)
                    routed_features, shared_output = (
                        expert_weights[..., :1] * routed_features,
                        expert_weights[..., 1:] * shared_output,
                    )
                has_gate = hasattr(self, "shared_expert_gate")
                routed_features = routed_features + (
                    self.shared_expert_gate(x).sigmoid() * shared_output if has_gate else shared_output
                )
            return routed_features + self.output_bias.weight if hasattr(self, "output_bias") else routed_features

    return MoEReference
