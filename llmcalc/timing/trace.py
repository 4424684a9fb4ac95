"""Simulates a replica that serves the requests of a trace with continuous batching, event by event.

A step computes a token of every decoding sequence and, up to `Replica.step_tokens`, tokens of prompts in the order of
their arrival (Orca, OSDI 2022; chunks of prompts: Sarathi, arXiv:2308.16369). A request starts when the cache has room
for all of its tokens and the engine for one more sequence, after the steps that are planned when it arrives. Steps
between two events (an arrival, an end) are alike and are taken together. Seconds of a step are those of `batching.py`,
between sizes in proportion; `batching.py` has the same server in closed form, for equal requests that arrive evenly.

The stages of a pipeline, and ranks with attention of their own, each have a batch, to which requests go in turn.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from ..errors import InputError
from ..frozen import frozen
from .batching import Replica, seconds_added_to_prompt_step
from .inference import InferencePass, seconds_without_graphs

MAX_PROMPT_SIZES = 2**20
"""Largest number of prompt tokens in a step for which seconds are tabulated."""


MAX_STEPS = 400_000
"""Largest number of simulated steps of a question, over all servers; equal steps between two events count as one."""


@dataclass
class StepBudget:
    """The number of steps that the simulations for one command may still take."""

    remaining_steps: int = MAX_STEPS

    def spend_step(self) -> None:
        """Counts one step. Raises `InputError` if no step is left."""
        self.remaining_steps -= 1
        if self.remaining_steps < 0:
            raise InputError(
                f"--trace: its servers take more than {MAX_STEPS:,} steps to simulate; expected fewer requests, or "
                "--tp and --devices for fewer servers"
            )


@frozen
class TracedRequest:
    """A request of a traffic trace: arrival time, and tokens of prompt and answer.

    arrival_seconds: when it arrives. input_tokens, output_tokens: tokens of the prompt and of the answer.
    """

    arrival_seconds: float
    input_tokens: int
    output_tokens: int


@frozen
class ServedRequest:
    """The latencies of a served request in seconds, and the time of its last token.

    ttft: from its arrival to its first token. tpot: of each further token; None for an answer of one token.
    end_seconds: when its last token is there.
    """

    ttft: float
    tpot: float | None
    end_seconds: float


SecondsFunction: TypeAlias = Callable[[float, float], float]


@frozen
class StepSeconds:
    """The seconds of a replica's steps, tabulated by batch size and context.

    decoding_seconds: (sequences, mean tokens in their caches) → of a step that decodes.
    added_decoding_seconds: the same → of what decoding adds to a step with prompts.
    prompt_seconds: (tokens of prompts, mean tokens of theirs in the cache) → of a step with prompts.
    server_seconds: of the server before a first token.
    tokens_per_step: tokens that a decoding step gives each sequence.
    step_tokens_per_sequence: tokens that a decoding step computes of each sequence, the drafted ones too.
    graph_tokens: most tokens of a step with prompts whose kernels captured graphs launch; 0 (default) for none.
    added_launch_seconds: (tokens of prompts, mean tokens of theirs in the cache) → of what the host's launches add to a
        step whose prompts would fit into a graph without the decoding sequences.
    """

    decoding_seconds: SecondsFunction
    added_decoding_seconds: SecondsFunction
    prompt_seconds: SecondsFunction
    server_seconds: float
    tokens_per_step: float = 1.0
    step_tokens_per_sequence: int = 1
    graph_tokens: int = 0
    added_launch_seconds: SecondsFunction = lambda *_: 0.0

    def mixed_seconds(
        self, token_count: int, earlier_tokens: float, sequence_count: int, cached_tokens: float
    ) -> float:
        """Returns the seconds of a step that processes prompts and decodes other sequences.

        token_count, earlier_tokens: of prompts, and their mean number of tokens in the cache.
        sequence_count, cached_tokens: that decode in the step, and their mean number of tokens in the cache.
        """
        seconds = self.prompt_seconds(token_count, earlier_tokens)
        if not sequence_count:
            return seconds
        if token_count + sequence_count * self.step_tokens_per_sequence > self.graph_tokens >= token_count:
            seconds += self.added_launch_seconds(token_count, earlier_tokens)
        return seconds + self.added_decoding_seconds(sequence_count, cached_tokens)

    @classmethod
    def tabulate(
        cls, replica: Replica, sequence_count: int, longest_request: int, mean_input_tokens: int
    ) -> StepSeconds:
        """Tabulates the seconds of a replica's steps by batch size and context.

        sequence_count: most sequences of a batch. longest_request: its tokens.
        mean_input_tokens: tokens of a usual prompt.
        """
        mean_prompt_tokens = max(1, mean_input_tokens)
        context_lengths = sorted({0, mean_prompt_tokens, max(mean_prompt_tokens + 1, longest_request)})
        most_tokens = min(
            replica.step_tokens or longest_request, max(longest_request, mean_input_tokens), MAX_PROMPT_SIZES
        )
        batch_seconds = cache(replica.batch_pass)

        @cache
        def time_prompt(prompt_tokens: int, earlier_tokens: int) -> InferencePass:
            prompt_count = max(1.0, prompt_tokens / mean_input_tokens)
            prompt_length = max(1, round(prompt_tokens / prompt_count))
            return replica.prompt_pass(prompt_count, prompt_length, earlier_tokens)

        def exact_launch_seconds(prompt_tokens: int, earlier_tokens: int) -> float:
            prompt_pass = time_prompt(prompt_tokens, earlier_tokens)
            return seconds_without_graphs(prompt_pass, replica.stack, replica.number_formats, replica.graph_tokens)

        return cls(
            _tabulated_seconds(lambda *sizes: float(batch_seconds(*sizes).seconds), sequence_count, context_lengths),
            _tabulated_seconds(
                lambda *sizes: seconds_added_to_prompt_step(batch_seconds(*sizes)), sequence_count, context_lengths
            ),
            _tabulated_seconds(lambda *sizes: float(time_prompt(*sizes).seconds), most_tokens, context_lengths),
            replica.stack.first_token_seconds,
            replica.tokens_per_step,
            replica.step_tokens_per_sequence,
            replica.graph_tokens,
            _tabulated_seconds(exact_launch_seconds, min(most_tokens, max(1, replica.graph_tokens)), context_lengths),
        )


def _tabulated_seconds(
    exact_seconds: Callable[[int, int], float], largest_batch: int, context_lengths: Sequence[int]
) -> SecondsFunction:
    """Returns a function that interpolates seconds between batch sizes (powers of two) and context lengths.

    exact_seconds: (size of the batch, tokens in the cache) → seconds.
    """
    batch_sizes = [
        *(2**exponent for exponent in range(max(1, largest_batch).bit_length()) if 2**exponent < largest_batch),
        max(1, largest_batch),
    ]
    seconds_table = [
        [exact_seconds(tabulated_batch, cached_tokens) for cached_tokens in context_lengths]
        for tabulated_batch in batch_sizes
    ]

    def seconds(batch_size: float, cached_tokens: float) -> float:
        row_index, row_fraction = _index_and_fraction(batch_sizes, batch_size)
        column_index, column_fraction = _index_and_fraction(context_lengths, cached_tokens)
        upper_row, lower_row = seconds_table[row_index], seconds_table[min(row_index + 1, len(seconds_table) - 1)]
        seconds_of_rows = [
            row_values[column_index] + (row_values[column_index + 1] - row_values[column_index]) * column_fraction
            for row_values in (upper_row, lower_row)
        ]
        return seconds_of_rows[0] + (seconds_of_rows[1] - seconds_of_rows[0]) * row_fraction

    return seconds


def _index_and_fraction(sorted_values: Sequence[int], coordinate: float) -> tuple[int, float]:
    """Returns the index of the value below a coordinate, and the fraction of the way to the next value."""
    if len(sorted_values) == 1:
        return 0, 0.0
    lower_index = min(max(0, bisect_right(sorted_values, coordinate) - 1), len(sorted_values) - 2)
    return lower_index, (coordinate - sorted_values[lower_index]) / (
        sorted_values[lower_index + 1] - sorted_values[lower_index]
    )


@dataclass
class ServedBatch:
    """The requests that one replica serves in one batch, step by step.

    step_seconds: seconds of its steps. most_sequences, cache_tokens: most sequences, and tokens that its caches hold.
    most_step_tokens: most tokens of a step. mixes_prompts: whether a step with prompts decodes too.
    seconds_scale: factor of all seconds, 1 by default. steps_ahead: steps that are planned after the one that runs;
        default 0.
    """

    step_seconds: StepSeconds
    most_sequences: int
    cache_tokens: int
    most_step_tokens: int
    mixes_prompts: bool
    seconds_scale: float = 1.0
    steps_ahead: int = 0

    def serve_requests(
        self, requests: Sequence[TracedRequest], cached_share: float = 0.0, step_budget: StepBudget | None = None
    ) -> list[ServedRequest]:
        """Serves requests in order of arrival, and returns their times in the same order.

        cached_share: of each prompt, that an earlier request left in the cache; default none.
        step_budget: the steps that may be simulated; default those of a question.
        """
        step_budget = step_budget or StepBudget()
        current_time, finished_step_count, context_token_sum = 0.0, 0, 0.0
        reserved_tokens, next_request_index = 0, 0
        decoding_requests: list[tuple[int, int]] = []  # (step at which it ends, request)
        waiting_prompts: deque[list[int]] = deque()  # [request, tokens that are computed, tokens to compute]
        first_token_times: dict[int, float] = {}
        end_times: dict[int, float] = {}
        while len(end_times) < len(requests):
            step_budget.spend_step()
            sequence_count = len(decoding_requests)
            mean_cached_tokens = context_token_sum / sequence_count if sequence_count else 0.0
            planned_seconds = self._scheduled_seconds(sequence_count, mean_cached_tokens)
            while (
                next_request_index < len(requests)
                and requests[next_request_index].arrival_seconds + planned_seconds <= current_time
            ):
                traced_request = requests[next_request_index]
                request_tokens = traced_request.input_tokens + traced_request.output_tokens
                if (
                    len(decoding_requests) + len(waiting_prompts) >= self.most_sequences
                    or reserved_tokens + request_tokens > self.cache_tokens
                ):
                    break
                cached_tokens = min(int(cached_share * traced_request.input_tokens), traced_request.input_tokens - 1)
                waiting_prompts.append([next_request_index, cached_tokens, traced_request.input_tokens - cached_tokens])
                reserved_tokens += request_tokens
                next_request_index += 1
            if waiting_prompts:
                decoding_count = sequence_count if self.mixes_prompts else 0
                finished_prompts, prompt_tokens, mean_context = self._take_prompts(waiting_prompts, decoding_count)
                current_time += self.seconds_scale * self.step_seconds.mixed_seconds(
                    prompt_tokens, mean_context, decoding_count, mean_cached_tokens
                )
                if decoding_count:
                    finished_step_count += 1
                    context_token_sum += sequence_count * self.step_seconds.tokens_per_step
                for request_index in finished_prompts:
                    first_token_times[request_index] = (
                        current_time + self.step_seconds.server_seconds * self.seconds_scale
                    )
                    if requests[request_index].output_tokens > 1:
                        heapq.heappush(
                            decoding_requests,
                            (
                                finished_step_count + self._steps_after_first_token(requests[request_index]),
                                request_index,
                            ),
                        )
                        context_token_sum += requests[request_index].input_tokens + 1
                    else:
                        end_times[request_index] = first_token_times[request_index]
                        reserved_tokens -= requests[request_index].input_tokens + 1
            elif sequence_count:
                equal_step_count = self._equal_step_count(
                    requests,
                    next_request_index,
                    current_time,
                    decoding_requests[0][0] - finished_step_count,
                    sequence_count,
                    mean_cached_tokens,
                    reserved_tokens,
                )
                mean_context = mean_cached_tokens + equal_step_count * self.step_seconds.tokens_per_step / 2
                current_time += (
                    equal_step_count
                    * self.seconds_scale
                    * self.step_seconds.decoding_seconds(sequence_count, mean_context)
                )
                finished_step_count += equal_step_count
                context_token_sum += equal_step_count * sequence_count * self.step_seconds.tokens_per_step
            else:
                current_time = max(current_time, requests[next_request_index].arrival_seconds)
            while decoding_requests and decoding_requests[0][0] <= finished_step_count:
                _, request_index = heapq.heappop(decoding_requests)
                traced_request = requests[request_index]
                end_times[request_index] = max(current_time, first_token_times[request_index])
                context_token_sum -= (
                    traced_request.input_tokens
                    + 1
                    + self._steps_after_first_token(traced_request) * self.step_seconds.tokens_per_step
                )
                reserved_tokens -= traced_request.input_tokens + traced_request.output_tokens
        return [
            ServedRequest(
                first_token_times[arrival_index] - traced_request.arrival_seconds,
                (end_times[arrival_index] - first_token_times[arrival_index]) / (traced_request.output_tokens - 1)
                if traced_request.output_tokens > 1
                else None,
                end_times[arrival_index],
            )
            for arrival_index, traced_request in enumerate(requests)
        ]

    def _scheduled_seconds(self, sequence_count: int, cached_tokens: float) -> float:
        """Returns the seconds of the steps that are already scheduled when a request arrives; 0 if nothing decodes."""
        if not self.steps_ahead or not sequence_count:
            return 0.0
        return self.seconds_scale * self.steps_ahead * self.step_seconds.decoding_seconds(sequence_count, cached_tokens)

    def _steps_after_first_token(self, traced_request: TracedRequest) -> int:
        """Returns the number of decoding steps of a request after its first token."""
        return math.ceil((traced_request.output_tokens - 1) / self.step_seconds.tokens_per_step)

    def _take_prompts(self, waiting_prompts: deque[list[int]], decoding_count: int) -> tuple[list[int], int, float]:
        """Adds prompt tokens to a step. Returns the completed prompts, the prompt tokens, and their mean context.

        decoding_count: sequences that decode in the step.
        """
        token_budget = max(1, self.most_step_tokens - decoding_count)
        finished_prompts, prompt_tokens, cached_token_sum = [], 0, 0.0
        while waiting_prompts and prompt_tokens < token_budget:
            first_prompt = waiting_prompts[0]
            computed_tokens = min(first_prompt[2], token_budget - prompt_tokens)
            cached_token_sum += computed_tokens * first_prompt[1]
            prompt_tokens += computed_tokens
            first_prompt[1], first_prompt[2] = first_prompt[1] + computed_tokens, first_prompt[2] - computed_tokens
            if not first_prompt[2]:
                finished_prompts.append(waiting_prompts.popleft()[0])
        return finished_prompts, prompt_tokens, cached_token_sum / prompt_tokens

    def _equal_step_count(
        self,
        requests: Sequence[TracedRequest],
        next_request_index: int,
        current_time: float,
        max_steps: int,
        sequence_count: int,
        cached_tokens: float,
        reserved_tokens: int,
    ) -> int:
        """Returns the number of equal steps until a sequence ends or a new request can start."""
        if next_request_index == len(requests):
            return max_steps
        traced_request = requests[next_request_index]
        if (
            sequence_count >= self.most_sequences
            or reserved_tokens + traced_request.input_tokens + traced_request.output_tokens > self.cache_tokens
        ):
            return max_steps
        step_seconds = self.seconds_scale * self.step_seconds.decoding_seconds(sequence_count, cached_tokens)
        idle_seconds = (
            traced_request.arrival_seconds + self._scheduled_seconds(sequence_count, cached_tokens) - current_time
        )
        return max(1, min(max_steps, int(idle_seconds / step_seconds) + 1))


def serve_trace(
    replica: Replica,
    step_seconds: StepSeconds,
    replica_count: int,
    requests: Sequence[TracedRequest],
    sequence_count: int,
    cache_tokens: int,
    cached_share: float = 0.0,
    seconds_scale: float = 1.0,
    budget: StepBudget | None = None,
) -> list[ServedRequest]:
    """Serves a trace's requests on equal replicas, to which they are assigned in turn.

    step_seconds: seconds of the replica's steps. requests: in the order of their arrival.
    sequence_count, cache_tokens: of one replica. cached_share, budget: as of `ServedBatch.serve_requests`.
    seconds_scale: factor of all seconds of steps.
    Returns the times of the requests, batch by batch.
    """
    budget = budget or StepBudget()
    longest_request = max(traced_request.input_tokens + traced_request.output_tokens for traced_request in requests)
    served_batch = ServedBatch(
        step_seconds,
        max(1, sequence_count // replica.batch_count),
        max(longest_request, cache_tokens // replica.batch_count),
        replica.step_tokens or longest_request,
        replica.stack.mixed_steps,
        seconds_scale,
        replica.steps_ahead,
    )
    batches_of_requests = [
        requests[batch_index :: replica.batch_count * replica_count]
        for batch_index in range(replica.batch_count * replica_count)
    ]
    return [
        served_request
        for requests_of_batch in batches_of_requests
        if requests_of_batch
        for served_request in served_batch.serve_requests(requests_of_batch, cached_share, budget)
    ]
