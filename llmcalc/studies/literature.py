"""Findings of published studies on depth against width, with their sources and limits.

Every figure here is stated by its source: Kaplan 2020 (arXiv:2001.08361, §3.1 and Figure 5), Hoffmann 2022
(arXiv:2203.15556, §3 and Table 4), Tay 2021 (arXiv:2109.10686, its DeepNarrow recommendation), Fahim & Karim 2026
(arXiv:2601.20994, abstract and Figure 1). From the last, only its exponents and the one critical depth in its
Figure 1(b) are used, not its fitted constants.
"""

from __future__ import annotations

from dataclasses import dataclass

TOKENS_PER_PARAMETER = 20
"""Hoffmann 2022: Chinchilla was trained on 1.4 T tokens with 70 B parameters."""

KAPLAN_DEEP, KAPLAN_SHALLOW = (48, 1600), (6, 4288)
"""(layers, hidden size) of the two models whose losses are within 3 % of each other (Kaplan 2020, Figure 5)."""

TAY_LAYERS = (32, 36)
"""Range of depths, in layers, at which the gain from more layers converges (Tay 2021)."""

DEPTH_EXPONENT, WIDTH_EXPONENT, CRITICAL_EXPONENT = 0.12, 0.34, 0.44
"""Exponents of Fahim & Karim 2026: optimal depth and width against compute, critical depth against width."""

CRITICAL_ANCHOR = (16, 512)
"""(layers, hidden size) of the critical depth in Figure 1(b) of Fahim & Karim 2026."""


@dataclass(frozen=True)
class PublishedFinding:
    """The result of one study. says: the result. limits: the conditions that the study did not examine."""

    key: str
    source: str
    arxiv: str
    says: str
    limits: str


FINDINGS = (
    PublishedFinding(
        "kaplan",
        "Kaplan et al. 2020, §3.1, Figure 5",
        "2001.08361",
        "at fixed non-embedding parameters, h/L can vary by a factor of 40 with slight effect on loss; (L, h) = "
        "(6, 4288) is within 3 % of (48, 1600)",
        "pre-training loss of dense decoders of at most 1.5 B parameters; nothing on downstream tasks or on speed",
    ),
    PublishedFinding(
        "chinchilla",
        "Hoffmann et al. 2022, §3, Table 4",
        "2203.15556",
        "compute-optimal training takes about 20 tokens per parameter; Chinchilla itself has L = 80, h = 8192, "
        "h/L = 102",
        "depth against width was not fitted: the shape is what was used, not what was found best",
    ),
    PublishedFinding(
        "tay",
        "Tay et al. 2021, DeepNarrow",
        "2109.10686",
        "depth is to be raised before any other size; the gain in Pareto efficiency converges at 32 to 36 layers",
        "T5 encoder-decoders judged by fine-tuning; layers of their stacks need not compare with a decoder's",
    ),
    PublishedFinding(
        "depth_delusion",
        "Fahim & Karim 2026, The Depth Delusion, abstract, Figure 1",
        "2601.20994",
        "optimal width grows as C^0.34 and depth as C^0.12; beyond a critical depth that grows as h^0.44 more "
        "layers raise the loss",
        "one preprint, 17 M to 7 B parameters; critical depth here is its exponent from its one stated point, 16 "
        "layers at h = 512, and is extrapolated beyond",
    ),
)


def kaplan_range() -> tuple[float, float]:
    """Returns the range of hidden size over depth of the two shapes that Kaplan et al. compare: 33.3 and 714.7."""
    return KAPLAN_DEEP[1] / KAPLAN_DEEP[0], KAPLAN_SHALLOW[1] / KAPLAN_SHALLOW[0]


def critical_depth(hidden_size: int) -> float:
    """Returns the depth beyond which more layers raise the loss: 16·(h/512)^0.44 (Fahim & Karim 2026)."""
    reference_depth, reference_width = CRITICAL_ANCHOR
    return float(reference_depth * (hidden_size / reference_width) ** CRITICAL_EXPONENT)


@dataclass(frozen=True)
class StudyVerdicts:
    """The comparison of one model shape with the figures of published studies.

    in_kaplan_range: whether h/L is between those of Kaplan's two models.
    past_tay: whether the shape has more layers than the depth at which Tay's gain converges.
    critical_depth: critical depth of Fahim & Karim, in layers.
    past_critical: whether the shape is deeper than critical_depth.
    """

    in_kaplan_range: bool
    past_tay: bool
    critical_depth: float
    past_critical: bool


def compare_with_studies(hidden_size: int, num_hidden_layers: int) -> StudyVerdicts:
    """Compares a shape's width and depth with the figures of each published study."""
    lower_bound, upper_bound = kaplan_range()
    critical_depth_of_width = critical_depth(hidden_size)
    is_in_range = lower_bound <= hidden_size / num_hidden_layers <= upper_bound
    past_critical = num_hidden_layers > critical_depth_of_width
    return StudyVerdicts(is_in_range, num_hidden_layers > TAY_LAYERS[1], critical_depth_of_width, past_critical)


def scaled_optimum(hidden_size: int, num_hidden_layers: int, compute_ratio: float) -> tuple[float, float]:
    """Returns the optimal hidden size and depth at `compute_ratio` times a shape's compute (Fahim & Karim 2026).

    It assumes that the given shape is optimal at its own compute.
    """
    return hidden_size * compute_ratio**WIDTH_EXPONENT, num_hidden_layers * compute_ratio**DEPTH_EXPONENT
