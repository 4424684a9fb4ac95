"""A server under load by continuous batching: decoding steps that also process chunks of prompts.

`concurrency` requests are in a replica at any time; when one ends, the next takes its place. With C requests of O
output tokens, d seconds of a step that decodes C sequences, p seconds of a request's own prompt with the steps that it
waits for, and e seconds by which the prompt of another request makes the steps of all longer:

    round = p + (C - 1) e + (O - 1) d            in one round every other request has one prompt
    W = (C - 1) e · p / (p + (O - 1) d)          these prompts are spread evenly over a request's own work
    TTFT = p + W,   TPOT = d + ((C - 1) e - W) / (O - 1),   tokens/s = C O / round

The last one is Little's law (Operations Research 9(3), 1961). It does not depend on W, which only divides the round
between the first token and the others. For one request these are the seconds of a prompt and of a token.

A request that follows another one's end arrives when the next step has begun, and waits for all of it; one that arrives
at any time waits for half of a step. An engine whose scheduler works beside the device has planned the step after that
too (`SoftwareStack.steps_ahead`). The stages of a pipeline start a batch in turn; the next batch takes the prompt.

Where all requests arrive at once (`LoadLatencies.latencies_in_waves`), W is half of the other prompts, in steps that
are full of them, or half of the prompts of a step that takes several: equal requests of a benchmark stay together from
answer to answer, because steps with prompts are so much longer than others. Their round has e of such a step
throughout, which is less than that of spread prompts.

At most (O - 1) steps of a request's life have prompts of others. Beyond the concurrency at which all of them have, new
requests wait until a prompt can start: tokens/s and TPOT stay, and TTFT grows by the wait.

A step with a prompt and decoding sequences reads the weights once for all of its tokens (Orca, OSDI 2022; chunks of
prompts: Sarathi, arXiv:2308.16369), so e is less than the seconds of the prompt alone. An engine that runs prompts in
steps of their own (`SoftwareStack.mixed_steps`) does not save that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from ..errors import InputError
from ..frozen import frozen
from ..model import ModelSpec
from ..parallel.layout import ONE_DEVICE, Layout
from .device import Device
from .inference import (
    MAX_CHUNKS,
    InferencePass,
    forward_pass,
    graph_prompt_tokens,
    prefill,
    rank_pass,
    seconds_without_graphs,
)
from .speculation import Speculation
from .time_estimator import SIXTEEN_BIT_FORMATS, NumberFormats, TimedOperation
from .timing_constants import SoftwareStack

PER_SEQUENCE_KERNELS = frozenset({"attention", "state"})
"""Kinds of kernels that run separately for each sequence, whatever else the step computes."""

SHARED_WEIGHT_KERNELS = frozenset({"product", "experts"})
"""Kinds of kernels with weights, which a step reads once for all tokens."""


@frozen
class RequestSizes:
    """The sizes of equal requests: tokens of prompt and answer.

    input_tokens, output_tokens: tokens of a prompt and of an answer.
    cached_tokens: tokens of the prompt that an earlier request left in the cache; default 0.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """The number of a prompt's tokens that are computed, not read from the cache: at least the last token."""
        return max(1, self.input_tokens - self.cached_tokens)

    @property
    def mean_context(self) -> int:
        """The mean number of a sequence's tokens in the cache while its answer is decoded."""
        return self.input_tokens + self.output_tokens // 2

    @property
    def total_tokens(self) -> int:
        """The number of tokens of a sequence at the end of its answer."""
        return self.input_tokens + self.output_tokens


@frozen
class LoadLatencies:
    """The latencies of a replica in seconds, at a constant number of concurrent requests.

    concurrency: number of requests. output_tokens: tokens of an answer.
    ttft: seconds to the first token, with the wait for the prompts of others, where arrivals are spread.
    tpot: seconds of each further token.
    ttft_of_burst, tpot_of_burst: the means of the same where all requests arrive at once, as equal ones in a benchmark
        do, whose prompts fill steps.
    """

    concurrency: float
    output_tokens: int
    ttft: float
    tpot: float
    ttft_of_burst: float
    tpot_of_burst: float

    @property
    def end_to_end_seconds(self) -> float:
        """The seconds of a request from arrival to last token."""
        return self.ttft + (self.output_tokens - 1) * self.tpot

    @property
    def latencies_in_waves(self) -> LoadLatencies:
        """The latencies if requests arrive in waves: all at once, and again when all have ended."""
        return replace(self, ttft=self.ttft_of_burst, tpot=self.tpot_of_burst)

    @property
    def requests_per_second(self) -> float:
        """The number of requests that complete per second (Little's law)."""
        return self.concurrency / self.end_to_end_seconds

    @property
    def output_tokens_per_second(self) -> float:
        """The number of output tokens per second, of all requests."""
        return self.output_tokens * self.requests_per_second


@frozen
class Replica:
    """One copy of a model that serves requests.

    spec, device, stack: the model and what runs it.
    requests: the requests. layout: of this replica. number_formats: number formats.
    step_tokens: most tokens of a step, by which prompts are cut into chunks; None for whole prompts.
    speculation: what drafts tokens; None (default) for nothing.
    graph_batches: batches for which a graph of the decoding step is captured, in ascending order; a smaller batch is
        padded to the next of them. Empty (default) where every batch has a graph of its own.
    waited_step_share: share of the running step for which a new request waits: 1 (default) where it follows the end of
        another one, 0.5 where requests arrive at any time.
    """

    spec: ModelSpec
    device: Device
    stack: SoftwareStack
    requests: RequestSizes
    layout: Layout = ONE_DEVICE
    number_formats: NumberFormats = SIXTEEN_BIT_FORMATS
    step_tokens: int | None = None
    speculation: Speculation | None = None
    graph_batches: tuple[int, ...] = ()
    waited_step_share: float = 1.0

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens per sequence and decoding step; 1 without speculative decoding."""
        return 1.0 if self.speculation is None else self.speculation.tokens_per_step

    @property
    def step_tokens_per_sequence(self) -> int:
        """The number of tokens that a decoding step computes per sequence: one, plus the drafted tokens."""
        return 1 if self.speculation is None else 1 + self.speculation.drafted_tokens

    @property
    def steps_after_first_token(self) -> float:
        """The number of decoding steps of a request after its first token."""
        return (self.requests.output_tokens - 1) / self.tokens_per_step

    @property
    def steps_ahead(self) -> int:
        """The number of decoding steps that are scheduled before the running step ends; 0 in a pipeline."""
        return 0 if self.layout.pp > 1 else self.stack.steps_ahead

    @property
    def steps_before_prompt(self) -> float:
        """The number of other requests' decoding steps that a request waits for before its first prompt step."""
        return self.waited_step_share / self.layout.pp + self.steps_ahead

    @property
    def batch_count(self) -> int:
        """The number of concurrent batches: one per pipeline stage and data-parallel attention rank."""
        return self.layout.pp * self.layout.dp

    @property
    def chunk_tokens(self) -> int | None:
        """The number of tokens in a prompt chunk; None if a step processes whole prompts."""
        if self.step_tokens is None or self.step_tokens >= self.requests.computed_tokens:
            return None
        return max(self.step_tokens, -(-self.requests.computed_tokens // MAX_CHUNKS))

    def decoding_pass(self, concurrency: float) -> InferencePass:
        """Returns the estimated decoding step of all sequences, without any prompt.

        Sequences that pad a batch have no cache to read.
        """
        sequences_per_batch, mean_context = (
            _int_if_whole(max(1.0, concurrency / self.batch_count)),
            self.requests.mean_context,
        )
        graph_batch = next(
            (captured_batch for captured_batch in self.graph_batches if captured_batch >= sequences_per_batch),
            sequences_per_batch,
        )
        return self.batch_pass(
            graph_batch,
            mean_context
            if graph_batch == sequences_per_batch
            else max(1, round(mean_context * sequences_per_batch / graph_batch)),
        )

    def batch_pass(self, batch: float, cached_tokens: float) -> InferencePass:
        """Returns the estimated decoding step of a batch, including the draft model's passes.

        cached_tokens: cached tokens per sequence.
        """
        batch_rank_pass = rank_pass(
            self.stack, self.layout, batch, self.step_tokens_per_sequence, cached_tokens, "decode"
        )
        target_pass = forward_pass(
            self.spec, self.device, self.stack, batch_rank_pass, self.number_formats, self.layout.pp
        )
        if self.speculation is None:
            return target_pass
        draft_seconds = self.speculation.draft_seconds(
            self.spec, self.device, self.stack, batch, cached_tokens, self.layout, self.number_formats
        )
        return target_pass.with_part("draft", draft_seconds)

    def pass_of_equal_prompts(self, prompt_count: float, has_server_delay: bool = False) -> InferencePass:
        """Returns the estimated step in which several prompts are processed at once.

        has_server_delay: whether a server's time before the first token counts.
        """
        whole_prompt_count, request_sizes = _int_if_whole(prompt_count), self.requests
        if whole_prompt_count not in self._timed_prompts:
            cached_tokens = min(request_sizes.cached_tokens, request_sizes.input_tokens - 1)
            self._timed_prompts[whole_prompt_count] = self.prompt_pass(
                whole_prompt_count, request_sizes.computed_tokens, cached_tokens, self.chunk_tokens
            )
        prompt_pass = self._timed_prompts[whole_prompt_count]
        return prompt_pass.with_part("server", self.stack.first_token_seconds) if has_server_delay else prompt_pass

    @cached_property
    def _timed_prompts(self) -> dict[float, InferencePass]:
        """The estimated steps by number of prompts, cached."""
        return {}

    def prompt_pass(
        self, prompt_count: float, prompt_tokens: int, cached_tokens: int, chunk: int | None = None
    ) -> InferencePass:
        """Returns the estimated pass over prompts of new and cached tokens, including the draft model's pass.

        chunk: tokens of each prompt in one pass; None for all.
        """
        layout, number_formats = self.layout, self.number_formats
        timed_pass = prefill(
            self.spec,
            self.device,
            self.stack,
            prompt_count,
            prompt_tokens,
            cached_tokens,
            chunk,
            layout,
            number_formats,
        )
        if self.speculation is None:
            return timed_pass
        draft_seconds = self.speculation.prompt_seconds(self.device, self.stack, prompt_count, prompt_tokens, layout)
        return timed_pass.with_part("draft", draft_seconds)

    @cached_property
    def prompt_seconds(self) -> float:
        """The seconds of one prompt on an idle server."""
        return float(self.pass_of_equal_prompts(1, has_server_delay=True).seconds)

    @property
    def max_prompts_per_step(self) -> float:
        """The most prompts that a step processes; a long prompt takes several steps."""
        return 1.0 if self.step_tokens is None else max(1.0, self.step_tokens / self.requests.computed_tokens)

    @property
    def graph_tokens(self) -> int:
        """The most prompt tokens of a step that a captured CUDA graph can launch; 0 without such graphs."""
        return graph_prompt_tokens(self.spec, self.stack, self.layout.pp)

    def uncaptured_prompt_share(self, concurrency: float) -> float:
        """The fraction of prompts in steps that have too many tokens for a captured CUDA graph.

        The tokens of decoding sequences count, as do those of the prompts that a step has by chance (Poisson).
        """
        if not self.graph_tokens:
            return 0.0
        tokens_of_prompt = self.chunk_tokens or self.requests.computed_tokens
        step_tokens_per_sequence = self.step_tokens_per_sequence if self.stack.mixed_steps else 0
        free_tokens = self.graph_tokens - step_tokens_per_sequence * (concurrency / self.batch_count - 1)
        other_prompt_count = math.floor(
            (free_tokens - tokens_of_prompt) / max(1, tokens_of_prompt - step_tokens_per_sequence)
        )
        mean_other_prompt_count = (concurrency - 1) / self.batch_count / max(1.0, self.steps_after_first_token)
        return 1.0 - _poisson_probability(other_prompt_count, min(mean_other_prompt_count, self.max_prompts_per_step))

    @cached_property
    def saturation_concurrency(self) -> float:
        """The concurrency from which on every step processes prompts, so that more requests only wait."""
        step_count = len(self.pass_of_equal_prompts(1).timed_passes)
        return 1 + self.steps_after_first_token * self.max_prompts_per_step * self.batch_count / step_count

    def latencies(self, concurrency: float) -> LoadLatencies:
        """Returns the latencies at a concurrency. Raises `InputError` for less than one request."""
        if concurrency < 1:
            raise InputError(f"--concurrency {concurrency:g}: expected at least 1 request at any time")
        load_below_saturation = self._load_below_saturation(min(concurrency, self.saturation_concurrency))
        waiting_seconds = (concurrency - load_below_saturation.concurrency) / load_below_saturation.requests_per_second
        if not waiting_seconds:
            return load_below_saturation
        ttft = load_below_saturation.ttft + waiting_seconds
        ttft_of_burst = max(ttft, load_below_saturation.ttft_of_burst)
        return replace(load_below_saturation, concurrency=concurrency, ttft=ttft, ttft_of_burst=ttft_of_burst)

    def _load_below_saturation(self, concurrency: float) -> LoadLatencies:
        """Returns the latencies at a concurrency at which some steps only decode, because no prompt is waiting."""
        other_requests, steps_after_first_token = concurrency - 1, self.steps_after_first_token
        decoding_pass = self.decoding_pass(concurrency)
        step_seconds = float(decoding_pass.seconds)
        if not other_requests:
            tpot = step_seconds / self.tokens_per_step
            return LoadLatencies(
                concurrency, self.requests.output_tokens, self.prompt_seconds, tpot, self.prompt_seconds, tpot
            )
        token_seconds_beside_prompts = seconds_added_to_prompt_step(decoding_pass) if self.stack.mixed_steps else 0.0
        saved_seconds = step_seconds - token_seconds_beside_prompts if self.stack.mixed_steps else 0.0
        uncaptured_prompt_share = self.uncaptured_prompt_share(concurrency)

        def added_launch_seconds(prompt_count: float) -> float:
            """Returns the mean seconds that steps without CUDA graphs wait for the host, beyond prompts alone."""
            if not uncaptured_prompt_share:
                return 0.0
            prompt_pass = self.pass_of_equal_prompts(prompt_count)
            return uncaptured_prompt_share * seconds_without_graphs(
                prompt_pass, self.stack, self.number_formats, self.graph_tokens
            )

        def added_seconds_per_prompt(prompt_count: float) -> float:
            """Returns the seconds that each prompt adds to a step with `prompt_count` prompts."""
            prompt_pass = self.pass_of_equal_prompts(prompt_count)
            pass_seconds = float(prompt_pass.seconds) + added_launch_seconds(prompt_count)
            return (
                max(0.0, pass_seconds - len(prompt_pass.timed_passes) * saved_seconds) / prompt_count / self.batch_count
            )

        prompts_per_step = max(
            1.0, min(self.max_prompts_per_step, concurrency / self.batch_count / steps_after_first_token)
        )
        seconds_per_prompt, steps_per_prompt = (
            added_seconds_per_prompt(prompts_per_step),
            len(self.pass_of_equal_prompts(1).timed_passes),
        )
        prompt_step_seconds = (
            self.prompt_seconds + added_launch_seconds(1) + steps_per_prompt * token_seconds_beside_prompts
        )
        busy_prompt_seconds = prompt_step_seconds + min(1.0, other_requests) * self.steps_before_prompt * step_seconds
        prompt_wait_seconds = max(
            other_requests
            * seconds_per_prompt
            * busy_prompt_seconds
            / (busy_prompt_seconds + steps_after_first_token * step_seconds),
            (prompts_per_step - 1) * seconds_per_prompt,
        )
        tpot = (
            step_seconds + (other_requests * seconds_per_prompt - prompt_wait_seconds) / steps_after_first_token
        ) / self.tokens_per_step
        prompts_in_step = min(self.max_prompts_per_step, concurrency)
        burst_seconds_per_prompt = added_seconds_per_prompt(prompts_in_step)
        burst_wait_seconds = (other_requests + prompts_in_step - 1) / 2 * burst_seconds_per_prompt
        ttft = busy_prompt_seconds + prompt_wait_seconds
        ttft_of_burst = max(ttft, prompt_step_seconds + burst_wait_seconds)
        burst_round_seconds = (
            prompt_step_seconds + other_requests * burst_seconds_per_prompt + steps_after_first_token * step_seconds
        )
        tpot_of_burst = max(
            step_seconds / self.tokens_per_step,
            (burst_round_seconds - ttft_of_burst) / (self.requests.output_tokens - 1),
        )
        return LoadLatencies(concurrency, self.requests.output_tokens, ttft, tpot, ttft_of_burst, tpot_of_burst)


def seconds_added_to_prompt_step(token_pass: InferencePass) -> float:
    """Returns the seconds that decoding adds to a prompt step, which reads the weights in any case.

    A draft's passes add all of their time.
    """
    timed_pass = token_pass.timed_passes[0]
    return float(token_pass.seconds_by_part.get("draft", 0.0)) + sum(
        float(operation.runs_per_layer * timed_pass.rank_work.layer_count(operation.layer_kind_index))
        * _added_operation_seconds(operation)
        for operation in timed_pass.operations
    )


def _added_operation_seconds(operation: TimedOperation) -> float:
    """Returns the seconds that a decoding operation adds to a step with prompts."""
    if operation.is_message:
        return 0.0
    if operation.kind in SHARED_WEIGHT_KERNELS:
        return float(operation.compute)
    return float(
        max(operation.compute, operation.memory) if operation.kind in PER_SEQUENCE_KERNELS else operation.memory
    )


def _poisson_probability(maximum: int, mean: float) -> float:
    """Returns the probability that a Poisson variable is at most `maximum`."""
    if maximum < 0:
        return 0.0
    term_probability = cumulative_probability = math.exp(-mean)
    for event_count in range(1, maximum + 1):
        term_probability *= mean / event_count
        cumulative_probability += term_probability
    return min(1.0, cumulative_probability)


def _int_if_whole(number: float) -> float:
    """Returns a number, converted to an integer if it is whole."""
    return int(number) if number == int(number) else number
