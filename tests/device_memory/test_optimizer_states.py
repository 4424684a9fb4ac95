"""Optimizer states: closed forms against the allocations of real torch optimizers, and against hand arithmetic."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import llmcalc
from llmcalc.components.base import Component
from llmcalc.components.multi_token_prediction import MultiTokenPrediction
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.costs.params import params
from llmcalc.costs.trained_tensors import trained_tensors
from llmcalc.device_memory.optimizers.registry import optimizer
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.static import memory
from llmcalc.flow.tree import Node
from llmcalc.model import ModelSpec
from llmcalc.ops import Linear, ParamTensor
from tests.contracts.test_parts import EXAMPLES, around_a_model, decoder
from tests.simulator.compare import is_untested

MIXTURE = decoder(
    feed_forward=MoE.examples()[3], tie_word_embeddings=True, mtp=MultiTokenPrediction(num_nextn_predict_layers=2)
)
WITH_MTP = frozenset({"mtp"})
FLOATS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

COMPARED = [example for example in EXAMPLES if not is_untested(example)]


def state_bytes(*optimizers: torch.optim.Optimizer) -> dict[str, int]:
    """Returns the bytes of the optimizers by the name of the state; a state that is not a tensor counts 0."""
    found: Counter[str] = Counter()
    for one in optimizers:
        for state in one.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    found[name] += value.untyped_storage().nbytes()
    return dict(found)


def with_gradients(net: nn.Module) -> list[nn.Parameter]:
    every = list(net.parameters())
    for parameter in every:
        parameter.grad = torch.randn_like(parameter)
    return every


def held(states: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in states.items() if size}


# The tensors that optimizers have states for


@pytest.mark.parametrize("example", COMPARED)
def test_tensors_add_up_to_the_parameters(example: Component) -> None:
    for place in around_a_model(example).tree().walk():
        if place.counted_op is not None:
            assert sum(t.size for t in place.counted_op.tensors()) == place.counted_op.params(), place.path


@pytest.mark.parametrize("example", COMPARED)
def test_tensors_have_the_shapes_of_the_reference(example: Component) -> None:
    check_shapes(around_a_model(example))


def test_tied_and_optional_tensors_have_the_shapes_of_the_reference() -> None:
    check_shapes(MIXTURE)
    check_shapes(decoder(embedding_size=16, embedding_projection_bias=True))


def check_shapes(spec: ModelSpec) -> None:
    with torch.device("meta"):
        net = spec.reference()
    expected: Counter[tuple[int, ...]] = Counter()
    for one in trained_tensors(spec.tree(), WITH_MTP):
        expected[one.tensor.shape] += one.copies
    assert expected == Counter(tuple(p.shape) for p in net.parameters())


def test_every_preset_has_tensors_for_all_its_parameters() -> None:
    for name in ("gpt2", "deepseek-v3", "gpt-oss-20b", "mixtral-8x7b"):
        spec = llmcalc.load(name).model
        assert sum(one.tensor.size * one.copies for one in trained_tensors(spec.tree())) == params(spec).total


# Optimizer state against torch


def steps(name: str, net: nn.Module, momentum: bool = False) -> list[torch.optim.Optimizer]:
    """Returns the torch optimizers of that name over a module with gradients, after one step."""
    every = list(net.parameters())
    match name:
        case "adamw":
            made: list[torch.optim.Optimizer] = [torch.optim.AdamW(every, foreach=False)]
        case "sgd":
            made = [torch.optim.SGD(every, momentum=0.9 if momentum else 0.0)]
        case "adafactor":
            made = [torch.optim.Adafactor(every)]
        case _:
            made = muon_and_adamw(net)
    for one in made:
        one.step()
    return made


def muon_and_adamw(net: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the weights of linear layers inside layers; AdamW for the rest, and for stacks, which Muon refuses."""
    hidden = {
        id(module.weight): module.weight
        for path, module in net.named_modules()
        if isinstance(module, nn.Linear) and "layers" in path.split(".")
    }
    rest = [p for p in net.parameters() if id(p) not in hidden]
    return [torch.optim.Muon(list(hidden.values())), torch.optim.AdamW(rest, foreach=False)]


@pytest.mark.parametrize("example", COMPARED)
@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor", "muon"])
def test_state_is_what_torch_allocates(example: Component, name: str) -> None:
    spec = around_a_model(example)
    net = spec.reference()
    with_gradients(net)
    state = optimizer(name).state(list(trained_tensors(spec.tree(), WITH_MTP)), "float32", has_momentum=name == "sgd")
    assert held(state.states) == state_bytes(*steps(name, net, momentum=True))


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor", "muon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_step_of_training(name: str, dtype: torch.dtype) -> None:
    """Weights, gradients and states of a mixture of experts after a backward pass and an optimizer step."""
    torch.manual_seed(0)
    net = MIXTURE.reference().to(dtype)
    ids = torch.randint(0, MIXTURE.vocab_size, (2, 40))
    logits, ahead = net(ids, with_mtp=True)
    torch.stack(
        [
            nn.functional.cross_entropy(out[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
            for out in (logits, *ahead)
        ]
    ).sum().backward()
    stepped = steps(name, net, momentum=True)

    setup = Settings(
        "training", precision="bf16", dtype=FLOATS[dtype], optimizer=name, momentum=True if name == "sgd" else None
    )
    use = memory(MIXTURE, setup, extra_parts=WITH_MTP)
    assert use.weights == sum(p.untyped_storage().nbytes() for p in net.parameters())
    assert use.gradients == sum(p.grad.untyped_storage().nbytes() for p in net.parameters() if p.grad is not None)
    assert use.optimizer is not None
    assert held(use.optimizer.states) == state_bytes(*stepped)
    assert use.total_bytes == use.weights + use.gradients + sum(state_bytes(*stepped).values())


def test_sgd_without_momentum_keeps_nothing() -> None:
    net = MIXTURE.reference()
    with_gradients(net)
    assert state_bytes(*steps("sgd", net)) == {}
    assert optimizer("sgd").state(list(trained_tensors(MIXTURE.tree())), "float32").bytes == 0


def test_the_comparison_with_torch_bites() -> None:
    """One column mean too few is detected."""
    spec = decoder()
    net = spec.reference()
    with_gradients(net)
    measured = state_bytes(*steps("adafactor", net))
    state = optimizer("adafactor").state(list(trained_tensors(decoder(vocab_size=51).tree())), "float32")
    assert held(state.states) != measured


# Hand arithmetic


def test_adafactor_by_hand() -> None:
    """W [3, 5]: 3 + 5 numbers; b [3]: 3 numbers; two steps of 4 bytes."""
    tree = Node("model", Linear(5, 3, bias=True))
    assert optimizer("adafactor").state(list(trained_tensors(tree)), "bfloat16").states == {
        "row_var": 2 * 3,
        "col_var": 2 * 5,
        "variance": 2 * 3,
        "step": 8,
    }


@pytest.mark.parametrize(
    ("rows", "columns", "state", "scales", "maps"),
    [
        (4095, 1, 4 * 4095, 0, 0),  # under 4096 elements: fp32
        (64, 64, 4096, 4 * 16, 2048),  # 4096 / 256 blocks
        (4097, 1, 4097, 4 * 17, 2048),  # one element in a 17th block
    ],
)
def test_adam8bit_by_hand(rows: int, columns: int, state: int, scales: int, maps: int) -> None:
    """From the allocation in bitsandbytes (bitsandbytes/optim/optimizer.py, Optimizer2State.init_state), not checked by
    running it.
    """
    states = optimizer("adam8bit").state(list(trained_tensors(Node("model", Linear(columns, rows)))), "float32").states
    assert states == {"state1": state, "state2": state, "absmax1": scales, "absmax2": scales, "qmaps": maps}


def test_shapes_of_stacks() -> None:
    assert ParamTensor((3, 4, 5), "matrix").size == 60
    stacked = MoE(num_experts=3, num_experts_per_tok=1, expert=FeedForward(intermediate_size=4, hidden_act="relu"))
    shapes = [
        one.tensor.shape for one in trained_tensors(decoder(feed_forward=stacked).tree()) if len(one.tensor.shape) == 3
    ]
    assert shapes == [(3, 4, 24), (3, 24, 4)]
