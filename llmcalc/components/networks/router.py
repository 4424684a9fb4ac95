"""Routers, which select the experts of each token and compute the experts' weights.

`linear`: a linear layer to one score per expert (Shazeer 2017, arXiv:1701.06538), with optional score correction
(DeepSeek-V3, arXiv:2412.19437, §2.1.2), norm before it and weight per expert (Gemma 4).
`mlp`: an MLP, which adds the features of the router in the layer below (ZAYA1: Zyphra 2025, arXiv:2511.17127;
transformers: models/zaya, `ZayaRouter`).
`token_table`: a table lists the experts of each token id; a linear layer gives the weights (DeepSeek-V4; transformers:
models/deepseek_v4).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.rows import ONE_GROUP, ExpertGroups
from ..base import TORCH_WITNESS, Flag, InnerWidth, ModelProperties, Part, PartWitness, Size, Vocab, check_divisor
from ..norm import Norm, norm_reference
from ..part_choice import PartChoice
from ..runtime import PassState, vector_module
from .feed_forward import Activation, activate

if TYPE_CHECKING:
    from torch import Tensor, nn

ScoringFunction: TypeAlias = Literal["softmax", "sigmoid", "sqrtsoftplus"]
CorrectionStorage: TypeAlias = Literal["buffer", "parameter"]
GroupCount: TypeAlias = Annotated[int, Field(ge=2, le=256, strict=True)]


class Router(Part):
    """The base class of routers, whose PyTorch submodules are siblings of the experts.

    sends_to_identities: whether the router can select identity experts (class attribute).
    reads_token_ids: whether the router reads token ids as well as hidden states (class attribute).
    scoring_func: the function from logits to scores, softmax by default; `sqrtsoftplus` is the square root of softplus.
    float32_weights: whether experts' outputs are multiplied by weights in float32, and summed in float32 (DeepSeek-V3);
        false by default, where the weights have the outputs' format. Parameters and FLOPs do not change.
    """

    noun: ClassVar[str] = "router"
    kind: ClassVar[str] = "router"
    sends_to_identities: ClassVar[bool] = False
    reads_token_ids: ClassVar[bool] = False

    scoring_func: ScoringFunction = "softmax"
    float32_weights: Flag = False

    if TYPE_CHECKING:

        @property
        def type(self) -> str: ...

    @property
    def expert_groups(self) -> ExpertGroups:
        """The groups of experts from which the best are chosen before a token's experts; one group by default."""
        return ONE_GROUP

    def check_groups(self, num_experts: int, num_experts_per_tok: int) -> None:
        """Raises `ValueError` if groups do not divide the experts evenly, or have too few experts for a token."""

    def flow(
        self, recorder: Flow, x: Value, expert_axis: Axis, top_k: Number, class_count: Number
    ) -> tuple[Value, Value]:
        """Records the operations of the routing, and returns the weights and indices of each token's experts.

        class_count: the number of experts to select from, identity experts included.
        """
        raise TypeError(f"{type(self).__name__} has no flow")

    def reference(self, model_properties: ModelProperties, expert_count: int, top_k: int, class_count: int) -> Any:
        """Builds a function: x [batch, tokens, hidden], pass_state → weights and experts [batch, tokens, top_k].

        Its `modules` are the router's modules, by their names in the mixture.
        """
        return _reference_classes()[self.type](self, model_properties, expert_count, top_k, class_count)


def _record_correction(recorder: Flow, correction_storage: CorrectionStorage | None, expert_axis: Axis) -> Value | None:
    """Records a buffer or parameter that corrects the expert scores, and returns it; None without a correction."""
    if correction_storage is None:
        return None
    if correction_storage == "buffer":
        return recorder.buffer("score_correction", expert_axis, kind="router")
    return recorder.vector("score_correction", expert_axis, kind="router", is_frozen=True)


class LinearRouter(Router):
    """A router with one linear layer that gives a logit per expert.

    bias: whether it has a bias, false by default.
    norm: the norm before it, none by default.
    score_correction: a bias per expert that affects the selection but not the weights (e_score_correction_bias):
        `buffer` if it receives no gradient (DeepSeek-V3), `parameter` if it is a parameter of the model; none by
        default.
    image_correction: whether tokens of images have a score_correction of their own (DeepSeek-V4.1), false by default;
        products are those of tokens of text.
    expert_scale: whether each expert's output has a learned weight (Gemma 4), false by default.
    float32_product: whether the logits are the product of float32 copies of the tokens and of the weight, as the class
        of DeepSeek-V3 computes them; false by default.
    n_group, topk_group: the number of equal groups of neighbouring experts, and the number of groups with the highest
        scores, from which alone a token's experts are selected (DeepSeek-V3, §2.1.2); none by default. They shorten
        the exchanges of tokens that `time` estimates. Parameters and FLOPs do not change, and memory is counted as of
        a selection among all experts.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    sends_to_identities: ClassVar[bool] = True

    type: Literal["linear"] = "linear"
    bias: Flag = False
    norm: Norm | None = None
    score_correction: CorrectionStorage | None = None
    image_correction: Flag = False
    expert_scale: Flag = False
    float32_product: Flag = False
    n_group: GroupCount | None = None
    topk_group: Size | None = None

    @property
    def expert_groups(self) -> ExpertGroups:
        return ExpertGroups(self.n_group or 1, self.topk_group or 1)

    def check_groups(self, num_experts: int, num_experts_per_tok: int) -> None:
        if (self.n_group is None) != (self.topk_group is None):
            field_name = "n_group" if self.n_group is None else "topk_group"
            raise ValueError(f"router.{field_name}: missing; expected both n_group and topk_group, or neither")
        n_group, topk_group = self.expert_groups
        check_divisor("router.n_group", n_group, "num_experts", num_experts)
        if not n_group >= topk_group >= num_experts_per_tok * n_group / num_experts:
            fewest_groups = -(-num_experts_per_tok * n_group // num_experts)
            raise ValueError(
                f"router.topk_group: {topk_group}; expected {fewest_groups} to {n_group}, because a token selects "
                f"{num_experts_per_tok} experts from {n_group} groups of {num_experts // n_group}"
            )

    def flow(
        self, recorder: Flow, x: Value, expert_axis: Axis, top_k: Number, class_count: Number
    ) -> tuple[Value, Value]:
        class_axis = Axis("classes", class_count)
        x = x if self.norm is None else recorder.part("router_norm", self.norm, x, kind="router")
        logits = recorder.linear(
            "router", x, class_axis, bias=self.bias, in_float32=self.float32_product, kind="router"
        )
        expert_scale = recorder.vector("expert_scale", expert_axis, kind="router") if self.expert_scale else None
        score_correction = _record_correction(recorder, self.score_correction, class_axis)
        if self.image_correction:
            recorder.vector("image_correction", class_axis, kind="router", is_frozen=True)
        return recorder.route(logits, top_k, self.scoring_func, score_correction, expert_scale)


class RouterMLP(Router):
    """A multi-layer router: a projection to router_hidden_size, two layers of that width, and one logit per expert.

    router_hidden_size: the width of the features.
    hidden_act: the activation after each of the two layers, `gelu` by default.
    norm: the norm on the features, an RMSNorm by default.
    adds_below: whether the features of the router in the layer below are added, with a weight per feature; false by
        default.
    skip: whether there is one more class, for no expert at all; false by default.
    score_correction: a bias per expert that affects the selection, as in a linear router; none by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["mlp"] = "mlp"
    router_hidden_size: InnerWidth
    hidden_act: Activation = "gelu"
    norm: Norm = Norm(type="rmsnorm")
    adds_below: Flag = False
    skip: Flag = False
    score_correction: CorrectionStorage | None = None

    def flow(
        self, recorder: Flow, x: Value, expert_axis: Axis, top_k: Number, class_count: Number
    ) -> tuple[Value, Value]:
        class_axis = Axis("classes", class_count + 1 if self.skip else class_count)
        feature_axis = Axis("router", self.router_hidden_size)
        with recorder.scope("router", kind="router", source="Zyphra 2025, §2"):
            router_features = recorder.linear("down_proj", x, feature_axis, bias=True)
            router_features = recorder.carry(
                "routed", router_features, recorder.vector("below_scale", feature_axis) if self.adds_below else None
            )
            router_features = recorder.part("norm", self.norm, router_features)
            router_features = recorder.act(
                recorder.linear("fc1", router_features, feature_axis, bias=True), self.hidden_act
            )
            router_features = recorder.act(
                recorder.linear("fc2", router_features, feature_axis, bias=True), self.hidden_act
            )
            logits = recorder.linear("out_proj", router_features, class_axis)
        score_correction = _record_correction(recorder, self.score_correction, class_axis)
        return recorder.route(logits, top_k, self.scoring_func, score_correction, has_skip=self.skip)


class TokenTableRouter(Router):
    """A router with a table of each token id's experts, and a linear layer that computes the experts' weights.

    vocab_size: the number of rows of the table, a buffer without gradient.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    reads_token_ids: ClassVar[bool] = True

    type: Literal["token_table"] = "token_table"
    vocab_size: Vocab

    def flow(
        self, recorder: Flow, x: Value, expert_axis: Axis, top_k: Number, class_count: Number
    ) -> tuple[Value, Value]:
        logits = recorder.linear("router", x, Axis("classes", class_count), kind="router")
        table_axes = Axis("vocab", self.vocab_size), Axis("top_k", top_k)
        token_table = recorder.buffer("token_table", *table_axes, indices=True, kind="router")
        return recorder.route(logits, top_k, self.scoring_func, table=token_table)


ROUTERS = PartChoice(
    "linear",
    {
        "linear": "networks.router:LinearRouter",
        "mlp": "networks.router:RouterMLP",
        "token_table": "networks.router:TokenTableRouter",
    },
)

if TYPE_CHECKING:
    AnyRouter: TypeAlias = LinearRouter | RouterMLP | TokenTableRouter
else:
    AnyRouter = Annotated[Part, ROUTERS]


@cache
def _reference_classes() -> dict[str, type[Any]]:
    import torch
    from torch import nn

    class ScoreCorrection(nn.Module):
        def __init__(self, expert_count: int, is_parameter: bool) -> None:
            super().__init__()
            if is_parameter:
                self.bias = nn.Parameter(torch.zeros(expert_count), requires_grad=False)
            else:
                self.register_buffer("bias", torch.zeros(expert_count))

    class TokenTable(nn.Module):
        chosen: Tensor

        def __init__(self, vocab_size: int, expert_count: int, top_k: int) -> None:
            super().__init__()
            experts_of_tokens = [torch.randperm(expert_count, device="cpu")[:top_k] for _ in range(vocab_size)]
            self.register_buffer("chosen", torch.stack(experts_of_tokens).to(torch.empty(0).device))

    class RouterNetwork(nn.Module):
        """The router's MLP. x: [batch, tokens, hidden] → logits, [batch, tokens, classes]."""

        def __init__(self, spec: RouterMLP, hidden_size: int, class_count: int) -> None:
            super().__init__()
            router_width, self.act = spec.router_hidden_size, spec.hidden_act
            self.down_proj = nn.Linear(hidden_size, router_width)
            if spec.adds_below:
                self.below_scale = vector_module(torch.ones(router_width))
            self.norm = norm_reference(spec.norm, router_width)
            self.fc1, self.fc2 = nn.Linear(router_width, router_width), nn.Linear(router_width, router_width)
            self.out_proj = nn.Linear(router_width, class_count, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            router_features = self.down_proj(x)
            if hasattr(self, "below_scale") and pass_state.router_state is not None:
                router_features = router_features + pass_state.router_state * self.below_scale.weight
            pass_state.router_state = router_features
            hidden_states = activate(self.act, self.fc2(activate(self.act, self.fc1(self.norm(router_features)))))
            return self.out_proj(hidden_states)

    class RouterModules:
        """Selects experts. x: [batch, tokens, hidden] → their weights and indices, each [batch, tokens, top_k].

        modules: its modules. It is not an nn.Module itself: a mixture registers these under their own names.
        """

        def __init__(self, spec: Router, top_k: int) -> None:
            self.scoring, self.top_k, self.float32_weights = spec.scoring_func, top_k, spec.float32_weights
            self.modules: dict[str, nn.Module] = {}

        def score_logits(self, logits: Tensor) -> Tensor:
            logits = logits.float()
            if self.scoring == "softmax":
                return logits.softmax(-1)
            return logits.sigmoid() if self.scoring == "sigmoid" else nn.functional.softplus(logits).sqrt()

        def top_experts(self, scores: Tensor) -> Tensor:
            """Returns the indices of the experts with the highest corrected scores."""
            score_correction: Any = self.modules.get("score_correction")
            return (scores if score_correction is None else scores + score_correction.bias).topk(self.top_k, -1).indices

        def weights(self, scores: Tensor, top_experts: Tensor) -> Tensor:
            chosen_scores = scores.gather(-1, top_experts)
            return chosen_scores / chosen_scores.sum(-1, keepdim=True) if self.top_k > 1 else chosen_scores

    class Float32Linear(nn.Linear):
        """A linear layer computed with float32 copies of the input and the weight."""

        def forward(self, x: Tensor) -> Tensor:
            bias = None if self.bias is None else self.bias.float()
            return nn.functional.linear(x.float(), self.weight.float(), bias)

    class LinearRouterModules(RouterModules):
        def __init__(
            self, spec: LinearRouter, model_properties: ModelProperties, expert_count: int, top_k: int, class_count: int
        ) -> None:
            super().__init__(spec, top_k)
            linear_class = Float32Linear if spec.float32_product else nn.Linear
            self.modules["router"] = linear_class(model_properties.hidden_size, class_count, bias=spec.bias)
            if spec.score_correction is not None:
                self.modules["score_correction"] = ScoreCorrection(class_count, spec.score_correction == "parameter")
            if spec.image_correction:
                self.modules["image_correction"] = ScoreCorrection(class_count, is_parameter=True)
            if spec.norm is not None:
                self.modules["router_norm"] = spec.norm.reference(model_properties)
            if spec.expert_scale:
                self.modules["expert_scale"] = vector_module(torch.ones(expert_count))

        def __call__(self, x: Tensor, pass_state: PassState | None) -> tuple[Tensor, Tensor]:
            x = self.modules["router_norm"](x) if "router_norm" in self.modules else x
            scores = self.score_logits(self.modules["router"](x))
            top_experts = self.top_experts(scores)
            expert_weights = self.weights(scores, top_experts)
            expert_scale: Any = self.modules.get("expert_scale")
            return (
                expert_weights if expert_scale is None else expert_weights * expert_scale.weight[top_experts]
            ), top_experts

    class MLPRouterModules(RouterModules):
        def __init__(
            self, spec: RouterMLP, model_properties: ModelProperties, expert_count: int, top_k: int, class_count: int
        ) -> None:
            super().__init__(spec, top_k)
            self.none_of_them = class_count if spec.skip else None
            output_count = class_count + int(spec.skip)
            self.modules["router"] = RouterNetwork(spec, model_properties.hidden_size, output_count)
            if spec.score_correction is not None:
                self.modules["score_correction"] = ScoreCorrection(output_count, spec.score_correction == "parameter")

        def __call__(self, x: Tensor, pass_state: PassState | None) -> tuple[Tensor, Tensor]:
            scores = self.score_logits(self.modules["router"](x, pass_state))
            top_experts = self.top_experts(scores)
            expert_weights = self.weights(scores, top_experts)
            if self.none_of_them is not None:  # a token without experts runs expert 0 too, with weight 0
                skips_expert = top_experts == self.none_of_them
                expert_weights, top_experts = (
                    expert_weights.masked_fill(skips_expert, 0.0),
                    top_experts.masked_fill(skips_expert, 0),
                )
            return expert_weights, top_experts

    class TableRouterModules(RouterModules):
        def __init__(
            self,
            spec: TokenTableRouter,
            model_properties: ModelProperties,
            expert_count: int,
            top_k: int,
            class_count: int,
        ) -> None:
            super().__init__(spec, top_k)
            self.modules["router"] = nn.Linear(model_properties.hidden_size, class_count, bias=False)
            self.modules["token_table"] = TokenTable(spec.vocab_size, expert_count, top_k)

        def __call__(self, x: Tensor, pass_state: PassState | None) -> tuple[Tensor, Tensor]:
            assert pass_state is not None
            assert pass_state.token_ids is not None
            expert_table: Any = self.modules["token_table"]
            scores = self.score_logits(self.modules["router"](x))
            top_experts = expert_table.chosen[pass_state.token_ids]
            return self.weights(scores, top_experts), top_experts

    return {"linear": LinearRouterModules, "mlp": MLPRouterModules, "token_table": TableRouterModules}
