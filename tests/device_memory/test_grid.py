"""Training steps of a seeded sample of the grid: every part meets every value of every option that torch can run."""

from __future__ import annotations

import pytest

from tests.comparisons import Thing, compares, of_run
from tests.device_memory.grid import Case, cases, models, training, wanted
from tests.device_memory.steps import by_torch, replayed
from tests.samples import sampled


def things(case: Case) -> set[Thing]:
    """What a case runs."""
    spec = models()[case.model]
    training_config = training(spec, dict(case.values))
    return of_run(spec, training_config.kernel_choices, training_config.optimizer, training_config.include)


def causes(case: Case) -> set[tuple[str, ...]]:
    """Each model, and each value of every option. In simulator/ each attention meets each part (test_sdpa.py,
    test_attention_variants.py), and adapters do (test_lora.py, test_profiler.py).
    """
    values = dict(case.values)
    return {(case.model,), *case.values, ("steps", values["--optimizer"], values["--optimizer-impl"])}


@compares(things)
@pytest.mark.parametrize("case", sampled({str(case): case for case in cases()}, causes))
def test_steps_hold_what_torch_holds(case: Case) -> None:
    spec = models()[case.model]
    training_config = training(spec, dict(case.values))
    assert replayed(spec, training_config, case.steps) == by_torch(spec, training_config, number=case.steps)


def test_the_sample_covers_what_torch_can_run() -> None:
    assert len(wanted()) > 1300
