"""The class `Flow`, which records operations: a component's `flow` calls it once per operation, in forward order.

Every verb takes values and returns values; its `name` is the module with the operation's weights. The cost of a step is
an op, built from the axes of its inputs and outputs. Nothing here depends on a workload, a phase, a dtype or a
framework, and a part only needs the sizes of its own axes.
"""

from __future__ import annotations

from .verbs.caches import CacheVerbs
from .verbs.distances import DistanceVerbs
from .verbs.elementwise import ElementwiseVerbs
from .verbs.experts import ExpertVerbs
from .verbs.mixing import MixingVerbs
from .verbs.weights import WeightVerbs


class Flow(WeightVerbs, MixingVerbs, CacheVerbs, DistanceVerbs, ExpertVerbs, ElementwiseVerbs):
    """Records the operations of a model's components in a compute graph; each operation is a method (`flow/verbs`)."""
