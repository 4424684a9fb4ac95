"""The components, kernels, optimizers and frameworks whose memory was never compared with a measurement."""

from __future__ import annotations

from ..device_memory.evidence import evidence_of_optimizer, evidence_of_run
from ..device_memory.optimizers.registry import OPTIMIZER_NAMES as OPTIMIZERS
from ..evidence import Evidence
from ..frameworks.registry import FRAMEWORK_NAMES, framework
from ..model import ModelSpec
from ..optional import MTP
from ..parallel.layout import ONE_DEVICE
from ..simulator.kernel_choices import EAGER_CHOICES


def untested_parts(spec: ModelSpec) -> tuple[Evidence, ...]:
    """Returns the components, kernels, optimizers and frameworks for a model whose memory was never measured."""
    included_parts = frozenset({MTP.name})
    frameworks = [
        evidence
        for framework_name in FRAMEWORK_NAMES
        for evidence in framework(framework_name).evidence_for(ONE_DEVICE, True).run((), None)
    ]
    optimizers = map(evidence_of_optimizer, OPTIMIZERS)
    all_evidence = [*evidence_of_run(spec, EAGER_CHOICES, None, included_parts), *optimizers, *frameworks]
    return tuple(dict.fromkeys(evidence for evidence in all_evidence if evidence.status == "untested"))
