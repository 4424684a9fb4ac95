"""Additional outputs of a draft model: a logit bias, an acceptance score, and the input of its next step.

DSpark adds a bias of low rank that the previous token selects; Domino runs a GRU over the tokens proposed so far.
DFlash 2 scores pairs of the best tokens of neighbouring positions. Sources: specforge/modeling/draft/dspark.py,
domino.py and dflash2.py of sgl-project/SpecForge; vllm/model_executor/models/qwen3_dflash2.py of vLLM.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from .. import ops
from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows, StatesBeforeRows
from ..workload.rows import LOGITS
from .base import SINGLE_TOKEN_VOCABULARY, Flag, InnerSize, ModelProperties, Vocab
from .head import LMHead
from .output_part import ModelOutput, OutputPart
from .runtime import attention_products_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class Proposal(OutputPart):
    """A draft model's additional outputs: a bias on the logits, the acceptance score, and the next step's input.

    markov_rank: the rank of a bias that depends on the previous token (DSpark); none by default.
    markov: how the bias depends on the hidden state: not at all (`vanilla`, the default), by a gate (`gated`) or by the
        state of a recurrence (`rnn`).
    gru_size: the width of a GRU over the tokens of the block (Domino); none by default.
    gru_rank: the rank of the projection of its output and the hidden state to the vocabulary.
    confidence: whether a score says how likely a proposed token is accepted, false by default.
    confidence_reads_token: whether the score reads the previous token's row of the bias too, false by default.
    selector_rank: the rank of the scores of pairs of neighbouring tokens (DFlash 2); none by default.
    selector_top_k: the number of best tokens of a position whose pairs are scored.
    state_size: the width of a projection of the hidden states, which the draft's next pass reads in the place of the
        target's (Gemma 4); none by default.
    """

    kind: ClassVar[str] = "lm_head"

    markov_rank: InnerSize | None = None
    markov: Literal["vanilla", "gated", "rnn"] = "vanilla"
    gru_size: InnerSize | None = None
    gru_rank: InnerSize | None = None
    confidence: Flag = False
    confidence_reads_token: Flag = False
    selector_rank: InnerSize | None = None
    selector_top_k: Vocab | None = None
    state_size: InnerSize | None = None

    def check_fields(self) -> None:
        if (self.gru_size is None) != (self.gru_rank is None):
            raise ValueError("gru_size and gru_rank: a GRU has both; expected both or none")
        if (self.selector_rank is None) != (self.selector_top_k is None):
            raise ValueError("selector_rank and selector_top_k: a selector has both; expected both or none")
        if self.markov_rank is None and (self.markov != "vanilla" or self.confidence_reads_token):
            raise ValueError("markov_rank: missing; markov and confidence_reads_token are about its bias")

    def check_output(self, model_output: ModelOutput) -> None:
        if model_output.kind != "decoder" or not isinstance(model_output.head, LMHead):
            raise ValueError("proposal: stands on a decoder with a language-model head")

    @property
    def formula_source(self) -> str:
        return "SpecForge 2026" if self.state_size is None else "Gemma 4 2026"

    def flow(
        self,
        recorder: Flow,
        x: Value,
        vocab: Axis = SINGLE_TOKEN_VOCABULARY,
        draft_vocab: Axis = SINGLE_TOKEN_VOCABULARY,
    ) -> Value:
        """Records the computation of the proposal head's logit bias. x: the hidden states.

        vocab, draft_vocab: the axes of the vocabulary read and of the proposed tokens.
        """
        x = x.view(*x.axes, new_rows=LOGITS)
        token_embedding: Value | None = None
        if self.markov_rank is not None:
            token_embedding = self._record_token_bias(recorder, x, Axis("rank", self.markov_rank), vocab, draft_vocab)
        if self.gru_size is not None:
            state_axis, rank_axis = Axis("gru", self.gru_size), Axis("rank", self.gru_rank)
            gate_axes = JoinedShapes(((state_axis,), (state_axis,), (state_axis,)))
            recorder.linear("gru_input", x, gate_axes)
            recorder.linear("gru_state", Value(StatesBeforeRows(source_rows=LOGITS), (state_axis,)), gate_axes)
            gru_state = Value(LOGITS, (state_axis,))
            joined_input = recorder.cat(x, gru_state, axes=(JoinedShapes((x.axes, (state_axis,))),))
            recorder.linear(
                "gru_up", recorder.act(recorder.linear("gru_down", joined_input, rank_axis), "silu"), draft_vocab
            )
        if self.selector_rank is not None:
            self._record_pair_scores(recorder, x, vocab, draft_vocab)
        if self.confidence:
            confidence_input = x
            if self.confidence_reads_token and token_embedding is not None:
                confidence_input = recorder.cat(
                    x, token_embedding, axes=(JoinedShapes((x.axes, token_embedding.axes)),)
                )
            recorder.linear("confidence", confidence_input, Axis("score", 1), bias=True)
        if self.state_size is not None:
            recorder.linear("state_proj", x, Axis("state", self.state_size))
        return x

    def _record_pair_scores(self, recorder: Flow, x: Value, vocab: Axis, draft_vocab: Axis) -> None:
        """Records the scores of token pairs: a position's best tokens with the previous position's best tokens."""
        rank_axis, candidate_axis = Axis("rank", self.selector_rank), Axis("chosen", self.selector_top_k)
        candidate_rows = MultipliedRows(source_rows=LOGITS, rows_per_source=self.selector_top_k)
        predecessor_vector, _ = recorder.table(
            "predecessor_codebook", vocab, rank_axis, output_rows=candidate_rows, index_source="chosen"
        )
        successor_vector, _ = recorder.table(
            "successor_codebook", draft_vocab, rank_axis, output_rows=candidate_rows, index_source="chosen"
        )
        conditioned_state = recorder.mul(predecessor_vector, recorder.linear("hidden_projection", x, rank_axis))
        recorder.core(
            "pairs",
            ops.Product(1, rank_axis.size, candidate_axis.size, candidate_rows),
            conditioned_state,
            successor_vector.view(candidate_axis, rank_axis, new_rows=LOGITS),
            axes=(candidate_axis,),
        )

    def _record_token_bias(self, recorder: Flow, x: Value, rank_axis: Axis, vocab: Axis, draft_vocab: Axis) -> Value:
        """Records the computation of the logit bias from the previous token's embedding, and returns the embedding."""
        token_embedding, _ = recorder.table("markov_w1", vocab, rank_axis, output_rows=LOGITS)
        bias_input = token_embedding
        if self.markov == "gated":
            joined_input = recorder.cat(x, token_embedding, axes=(JoinedShapes((x.axes, token_embedding.axes)),))
            bias_input = recorder.mul(
                recorder.act(recorder.linear("gate_proj", joined_input, rank_axis, bias=True), "sigmoid"),
                token_embedding,
            )
        elif self.markov == "rnn":
            joined_input = recorder.cat(
                token_embedding, token_embedding, x, axes=(JoinedShapes(((rank_axis,), (rank_axis,), x.axes)),)
            )
            recorder.linear(
                "joint_proj", joined_input, JoinedShapes(((rank_axis,), (rank_axis,), (rank_axis,))), bias=True
            )
        recorder.linear("markov_w2", bias_input, draft_vocab)
        return token_embedding

    def reference(self, model_properties: ModelProperties, vocab_size: int = 1, draft_vocab: int = 1) -> nn.Module:
        """Builds the PyTorch module: hidden states [batch, tokens, hidden], ids → the logit bias."""
        return _reference_class()(self, model_properties.hidden_size, vocab_size, draft_vocab)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(markov_rank=3),
            cls(markov_rank=3, markov="gated", confidence=True),
            cls(markov_rank=4, markov="rnn", confidence=True, confidence_reads_token=True),
            cls(gru_size=6, gru_rank=5),
            cls(selector_rank=3, selector_top_k=4),
            cls(state_size=7),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ProposalReference(nn.Module):
        def __init__(self, spec: Proposal, hidden_size: int, vocab_size: int, draft_vocab: int) -> None:
            super().__init__()
            self.spec = spec
            if spec.markov_rank is not None:
                rank = spec.markov_rank
                self.markov_w1 = nn.Embedding(vocab_size, rank)
                self.markov_w2 = nn.Linear(rank, draft_vocab, bias=False)
                if spec.markov == "gated":
                    self.gate_proj = nn.Linear(hidden_size + rank, rank)
                elif spec.markov == "rnn":
                    self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)
            if spec.gru_size is not None and spec.gru_rank is not None:
                gru_size = spec.gru_size
                self.gru_input = nn.Linear(hidden_size, 3 * gru_size, bias=False)
                self.gru_state = nn.Linear(gru_size, 3 * gru_size, bias=False)
                self.gru_down = nn.Linear(hidden_size + gru_size, spec.gru_rank, bias=False)
                self.gru_up = nn.Linear(spec.gru_rank, draft_vocab, bias=False)
            if spec.selector_rank is not None:
                self.predecessor_codebook = nn.Embedding(vocab_size, spec.selector_rank)
                self.successor_codebook = nn.Embedding(draft_vocab, spec.selector_rank)
                self.hidden_projection = nn.Linear(hidden_size, spec.selector_rank, bias=False)
                self.pairs = attention_products_class()()
            if spec.confidence:
                score_width = hidden_size + (spec.markov_rank or 0) * spec.confidence_reads_token
                self.confidence = nn.Linear(score_width, 1)
            if spec.state_size is not None:
                self.state_proj = nn.Linear(hidden_size, spec.state_size, bias=False)

        def _gated_token_embedding(self, x: Tensor, token_embedding: Tensor) -> Tensor:
            """Returns the input of the bias projection, from the token's embedding through a gate or a recurrence."""
            if self.spec.markov == "gated":
                gate: Tensor = self.gate_proj(torch.cat([x, token_embedding], -1)).sigmoid()
                return gate * token_embedding
            if self.spec.markov == "vanilla":
                return token_embedding
            gru_state, token_outputs = torch.zeros_like(token_embedding[:, :1]), []
            for token_index in range(x.shape[1]):
                joint_input = torch.cat(
                    [gru_state, token_embedding[:, token_index : token_index + 1], x[:, token_index : token_index + 1]],
                    -1,
                )
                gate, candidate_state, output_gate = self.joint_proj(joint_input).chunk(3, -1)
                gru_state = gate.sigmoid() * gru_state + (1 - gate.sigmoid()) * torch.tanh(candidate_state)
                token_outputs.append(torch.tanh(output_gate))
            return torch.cat(token_outputs, 1)

        def _pair_scores(self, x: Tensor) -> Tensor:
            """Returns the scores of token pairs, with the vocabulary's first tokens in place of the best tokens."""
            token_ids = torch.arange(self.spec.selector_top_k or 0, device=x.device).expand(*x.shape[:-1], -1)
            conditioned_state = self.predecessor_codebook(token_ids) * self.hidden_projection(x)[..., None, :]
            scores: Tensor = self.pairs(conditioned_state, self.successor_codebook(token_ids).transpose(-1, -2))
            return scores

        def _run_gru(self, x: Tensor) -> Tensor:
            """Returns the states of a GRU (Cho 2014) over the rows."""
            gru_state, gru_states = x.new_zeros(x.shape[0], 1, self.spec.gru_size or 0), []
            for token_index in range(x.shape[1]):
                reset_input, update_input, candidate_input = self.gru_input(x[:, token_index : token_index + 1]).chunk(
                    3, -1
                )
                reset_state_part, update_state_part, candidate_state_part = self.gru_state(gru_state).chunk(3, -1)
                update_gate = (update_input + update_state_part).sigmoid()
                candidate_state = torch.tanh(
                    candidate_input + (reset_input + reset_state_part).sigmoid() * candidate_state_part
                )
                gru_state = update_gate * gru_state + (1 - update_gate) * candidate_state
                gru_states.append(gru_state)
            return torch.cat(gru_states, 1)

        def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
            """Returns the bias on the logits, and the other outputs: next states, pair scores, acceptance score."""
            logit_bias: Any = 0
            other_outputs: list[Tensor] = []
            if hasattr(self, "state_proj"):
                other_outputs.append(self.state_proj(x))
            if hasattr(self, "pairs"):
                other_outputs.append(self._pair_scores(x))
            token_embedding: Tensor | None = None
            if hasattr(self, "markov_w1"):
                token_embedding = self.markov_w1(ids)
                logit_bias = self.markov_w2(self._gated_token_embedding(x, token_embedding))
            if hasattr(self, "gru_input"):
                gru_states = self._run_gru(x)
                up_projection: Tensor = self.gru_up(nn.functional.silu(self.gru_down(torch.cat([x, gru_states], -1))))
                logit_bias = logit_bias + up_projection
            if not hasattr(self, "confidence"):
                return logit_bias, other_outputs
            if self.spec.confidence_reads_token and token_embedding is not None:
                x = torch.cat([x, token_embedding], -1)
            return logit_bias, [*other_outputs, self.confidence(x)]

    return ProposalReference
