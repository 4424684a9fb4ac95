"""A server with separate replicas for prompts and for decoding (DistServe, arXiv:2401.09670).

No step mixes prompts and decoding sequences, so that a token takes as long as if no prompt arrived. The cache of a
prompt goes from the replica that computed it to the one that decodes: every device sends its part over its network, as
vLLM's connectors, SGLang's `--disaggregation-mode` and TensorRT-LLM's disaggregated servers do. With P replicas for
prompts of p seconds each, t seconds of sending, and D replicas that decode c sequences each in steps of d(c) seconds,

    TTFT = p + t,   TPOT = d(c),   requests/s X = D c / ((O - 1) d(c)), at most P / p,   concurrency = D c + X (p + t)

(Little's law for each side). Beyond X = P / p, requests wait for a prompt's replica.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil
from typing import Self

from ..errors import InputError
from ..frozen import frozen
from .batching import LoadLatencies, Replica
from .inference import rank_pass
from .work_recorder import rank_work

ITERATION_COUNT = 12
"""Number of iterations of the search for the number of decoding sequences at a concurrency."""

MAX_DECODING_REPLICAS = 8
"""Largest number of decoding replicas in a group, if llmcalc chooses the ratio."""


@frozen
class DisaggregatedServer:
    """Replicas of one layout, of which some process prompts and the others decode.

    replica: any of them. prefill_replicas, decode_replicas: numbers of replicas for prompts, and of those that decode.
    """

    replica: Replica
    prefill_replicas: int
    decode_replicas: int

    @classmethod
    def balanced_group(cls, replica: Replica, sequence_count: float, replica_count: int | None = None) -> Self:
        """Returns the group in which prompt and decoding replicas are best balanced.

        sequence_count: number of sequences that a decoding replica runs at once.
        replica_count: number of prompt and decoding replicas together; None for the fewest that come within a tenth of
        the most requests per second and replica.
        """
        replica_pair = cls(replica, 1, 1)
        prompts_per_decoder = replica_pair._decoded_requests_per_second(sequence_count) * replica_pair.busy_seconds
        if replica_count is not None:
            candidate_groups = [
                cls(replica, prefill_replicas, replica_count - prefill_replicas)
                for prefill_replicas in range(1, replica_count)
            ]
        else:
            replica_counts = range(1, MAX_DECODING_REPLICAS + 1)
            candidate_groups = [
                cls(replica, max(1, ceil(prompts_per_decoder * decode_replicas)), decode_replicas)
                for decode_replicas in replica_counts
            ]
            candidate_groups += [
                cls(replica, prefill_replicas, 1) for prefill_replicas in range(1, ceil(prompts_per_decoder))
            ]
        rates_per_replica = [
            group._most_requests_per_second(sequence_count) / (group.prefill_replicas + group.decode_replicas)
            for group in candidate_groups
        ]
        least_rate_share = 0.9 if replica_count is None else 1.0
        best_groups = [
            candidate_group
            for candidate_group, rate_per_replica in zip(candidate_groups, rates_per_replica, strict=True)
            if rate_per_replica >= least_rate_share * max(rates_per_replica)
        ]
        return min(best_groups, key=lambda group: group.prefill_replicas + group.decode_replicas)

    @property
    def replicas(self) -> int:
        """The number of all replicas: those for prompts plus those for decoding."""
        return self.prefill_replicas + self.decode_replicas

    @cached_property
    def busy_seconds(self) -> float:
        """The seconds that a prompt replica works per prompt if every step processes as many prompts as possible."""
        replica = self.replica
        return (
            float(replica.pass_of_equal_prompts(replica.max_prompts_per_step).seconds)
            / replica.max_prompts_per_step
            / replica.batch_count
        )

    @cached_property
    def sent_bytes(self) -> float:
        """The bytes of a prompt's KV cache on one device, which are sent to a decoding replica."""
        replica = self.replica
        layout, cached_tokens = replica.layout, replica.requests.input_tokens
        prompt_work = rank_work(replica.spec, rank_pass(replica.stack, layout, 1, 1, cached_tokens - 1, "decode"))
        return float(prompt_work.cache_elements) * replica.number_formats.cache_bits / 8 / layout.pp

    @property
    def transfer_seconds(self) -> float:
        """The seconds to send a prompt's KV cache; all devices of a replica send at once."""
        replica = self.replica
        layout = replica.layout
        sending_devices = layout.tp * layout.pp * layout.dp * self.replicas
        return float(replica.device.stage_send_seconds(self.sent_bytes, sending_devices))

    @property
    def first_token_seconds(self) -> float:
        """The seconds to the first token of a request that does not wait."""
        return self.replica.prompt_seconds + self.transfer_seconds

    def token_seconds(self, sequence_count: float) -> float:
        """Returns the seconds per decoded token on a replica that decodes this many sequences."""
        return float(self.replica.decoding_pass(sequence_count).seconds) / self.replica.tokens_per_step

    def _decoded_requests_per_second(self, sequence_count: float) -> float:
        """Returns the requests per second that one decoding replica completes."""
        return sequence_count / ((self.replica.requests.output_tokens - 1) * self.token_seconds(sequence_count))

    def _most_requests_per_second(self, sequence_count: float) -> float:
        return min(
            self.prefill_replicas / self.busy_seconds,
            self.decode_replicas * self._decoded_requests_per_second(sequence_count),
        )

    def latencies(self, concurrency: float) -> LoadLatencies:
        """Returns the latencies at the whole group's concurrency. Raises `InputError` for less than one request."""
        output_tokens, first_token_seconds = self.replica.requests.output_tokens, self.first_token_seconds
        if concurrency < 1:
            raise InputError(f"--concurrency {concurrency:g}: expected at least 1 request at any time")
        tpot = self.token_seconds(1)
        for _ in range(ITERATION_COUNT):
            requests_per_second = min(
                concurrency / (first_token_seconds + (output_tokens - 1) * tpot),
                self.prefill_replicas / self.busy_seconds,
            )
            tpot = self.token_seconds(max(1.0, requests_per_second * (output_tokens - 1) * tpot / self.decode_replicas))
        waiting_seconds = max(0.0, concurrency / requests_per_second - first_token_seconds - (output_tokens - 1) * tpot)
        burst_seconds = first_token_seconds + max(
            waiting_seconds, (concurrency / self.prefill_replicas - 1) / 2 * self.busy_seconds
        )
        return LoadLatencies(
            concurrency, output_tokens, first_token_seconds + waiting_seconds, tpot, burst_seconds, tpot
        )
