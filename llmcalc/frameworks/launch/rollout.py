"""The rollout engine and the models that share devices with the trained model in reinforcement learning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias

from ...frozen import frozen

ModelLocation: TypeAlias = Literal["none", "device", "host"]
"""The place of a model: nowhere, always on the devices, or on the host except during its own pass."""

ModelState: TypeAlias = Literal["weights", "gradients", "optimizer", "reference"]


def with_arguments_for_flags(error_text: str, argument_by_engine_flag: Mapping[str, str]) -> str:
    """Returns an engine's error message in which the launch file's arguments replace the engine's flags."""
    return re.sub(
        r"--[a-z][a-z0-9-]*", lambda flag_match: argument_by_engine_flag.get(flag_match[0], flag_match[0]), error_text
    )


@frozen
class AdditionalModel:
    """An additional model on the training devices, such as the reference model.

    weights_location: location of the weights.
    bytes_per_weight: bytes of an element of its weights.
    rank_count: number of ranks that divide its weights.
    parameter_count: number of its parameters; 0 (default) for as many as the trained model has.
    """

    weights_location: ModelLocation = "none"
    bytes_per_weight: int = 2
    rank_count: int = 1
    parameter_count: int = 0


@frozen
class Rollout:
    """The rollout engine and the additional models that share the training devices.

    source: the files that say so.
    engine: its name, as of `--engine`; empty for an engine on devices of its own.
    flags: values of its flags, by their names.
    argument_by_engine_flag: flag of the engine → the file's own argument, for errors; none by default.
    engine_sleeps_while_idle: whether the engine frees weights and cache while it does not generate.
    shares_weights: whether the trained model's frozen weights are the engine's own tensors, which then stay; its budget
        is a share of the device, and its cache what the weights leave of it. False by default.
    memory_fractions_by_capacity: for an engine that shares weights, (GiB of a device, share) from the largest: the
        share of the first that the device has replaces `gpu_memory_utilization`. Empty (default) for the flag.
    has_separate_process: whether the engine is a separate process with a separate CUDA context.
    offloaded_states: states of the trained model that are on the host while another phase runs; `reference`: the
        reference model is there during rollouts.
    reference_model: the reference model.
    reward_model: the reward model; default none.
    critic_location: location of the critic and its states.
    critic_bytes: their bytes on a device; 0 (default) for as many as of the trained model.
    sequence_count, tokens_per_sequence: of a micro-batch that computes log-probabilities: sequences, and tokens of
        each.
    logit_tokens_per_sequence: tokens of each whose logits are computed.
    bytes_per_logit: bytes per logit at the peak of that pass.
    has_log_probabilities: whether log-probabilities are computed in passes of their own, without gradients; true by
        default.
    weight_transfer_bytes: bytes of weights that are sent to the engine at a time; 0 for those of the largest matrix.
    """

    source: str
    engine: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    argument_by_engine_flag: Mapping[str, str] = field(default_factory=dict)
    engine_sleeps_while_idle: bool = False
    shares_weights: bool = False
    memory_fractions_by_capacity: tuple[tuple[int, float], ...] = ()
    has_separate_process: bool = False
    offloaded_states: frozenset[ModelState] = frozenset()
    reference_model: AdditionalModel = AdditionalModel()
    reward_model: AdditionalModel = AdditionalModel()
    critic_location: ModelLocation = "none"
    critic_bytes: int = 0
    sequence_count: int = 1
    tokens_per_sequence: int = 1
    logit_tokens_per_sequence: int = 1
    bytes_per_logit: int = 2
    has_log_probabilities: bool = True
    weight_transfer_bytes: int = 0

    def json_data(self) -> dict[str, Any]:
        """Returns the rollout settings as a part of a JSON document."""
        return {
            "engine": self.engine or None,
            "flags": dict(self.flags),
            "sleeps": self.engine_sleeps_while_idle,
            "shares_weights": self.shares_weights,
            "offloaded": sorted(self.offloaded_states),
            "reference": self.reference_model.weights_location,
            "reward": self.reward_model.weights_location,
            "critic": self.critic_location,
        }
