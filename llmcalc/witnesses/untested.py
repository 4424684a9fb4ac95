"""What a model uses, or can be run with, that states no witness of its memory."""

from __future__ import annotations

from ..device_memory.evidence import evidence_of_optimizer, evidence_of_run
from ..device_memory.optimizers.registry import NAMES as OPTIMIZERS
from ..evidence import Evidence
from ..frameworks.registry import NAMES, framework
from ..model import ModelSpec
from ..optional import MTP
from ..parallel.layout import ONE_DEVICE
from ..simulator.choices import EAGER


def untested(spec: ModelSpec) -> tuple[Evidence, ...]:
    """The parts and kernels of a model, and the optimizers and frameworks it can be trained with, without a witness."""
    include = frozenset({MTP.name})
    frameworks = [found for name in NAMES for found in framework(name).evidence_for(ONE_DEVICE, True).run((), None)]
    optimizers = map(evidence_of_optimizer, OPTIMIZERS)
    everything = [*evidence_of_run(spec, EAGER, None, include), *optimizers, *frameworks]
    return tuple(dict.fromkeys(one for one in everything if one.status == "untested"))
