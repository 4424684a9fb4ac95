"""Compares the total number of parameters with the exact count that the publisher states."""

from __future__ import annotations

from ..costs.params import params
from ..errors import InputError
from ..sources.preset import Preset
from .checks import Check, Verdict
from .difference_explanation import list_named_sizes

WITNESS_NAME = "published"


def verify_published(named_model: Preset) -> Verdict:
    """Compares the total number of parameters with the published count; the preset may explain a difference.

    Raises `InputError` if no exact count was published, because a rounded figure proves nothing.
    """
    published_figures = named_model.published
    if published_figures.parameters is None:
        raise InputError("no exact parameter count was published")
    counted_params, explained_difference = params(named_model.model).total, published_figures.parameters_difference
    parameter_check = Check(
        "model",
        "parameters",
        counted_params,
        published_figures.parameters,
        WITNESS_NAME,
        known_difference=explained_difference,
    )
    verdict_info = {"difference": published_figures.parameters_difference, "note": published_figures.parameters_note}
    return Verdict(
        named_model.name,
        WITNESS_NAME,
        [parameter_check],
        0.0,
        verdict_info if published_figures.parameters_difference else {},
        list_named_sizes(named_model.model),
    )
