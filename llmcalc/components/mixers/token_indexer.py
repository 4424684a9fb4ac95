"""DeepSeek sparse attention's indexer for grouped-query attention: selects single earlier tokens (Naive-N0.5-Flash).

As in `indexer`, small heads score one key per token, with queries from the layer's input. Every attention head reads
the keys and values of the same selected tokens.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    TORCH_WITNESS,
    AttentionProtocol,
    HeadDim,
    Heads,
    ModelProperties,
    Part,
    PartWitness,
    StackPosition,
    TopK,
)
from ..rope import Rope
from ..runtime import PassState, attention_mask
from .block_indexer import refuse_limited_attention, require_decoder
from .indexer import Indexer, indexer_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class TokenIndexer(Part):
    """Small query heads that score one key per token, and select tokens for all attention heads.

    index_n_heads: the number of small query heads, whose weighted scores are summed.
    index_head_dim: the size of a query and of a key.
    index_topk: the number of selected tokens.
    rotary_dim: the number of dimensions of a query and of a key that RoPE rotates; all by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["token_indexer"] = "token_indexer"
    index_n_heads: Heads
    index_head_dim: HeadDim
    index_topk: TopK
    rotary_dim: HeadDim | None = None

    def check_attention(self, attention: AttentionProtocol) -> None:
        """Raises `ValueError` if the indexer is incompatible with the attention's fields."""
        refuse_limited_attention(attention)
        Rope(rotary_dim=self.rotary_dim).check_rotary_size(self.index_head_dim, "block_indexer.index_head_dim")

    def check_stack_position(self, stack_position: StackPosition) -> None:
        """Raises `ValueError` if attention with an indexer cannot be used at this position of the model.

        stack_position: of the attention.
        """
        require_decoder(stack_position)

    @property
    def selected_token_count(self) -> int:
        """The largest number of tokens that a token attends to."""
        return self.index_topk

    def flow(
        self, recorder: Flow, x: Value, position: Rope, keys: Value, values: Value
    ) -> tuple[Value, Value, dict[str, Any]]:
        """Records the selection of tokens. Returns the keys and values to read, and arguments of the attention.

        position: RoPE on queries and keys. keys, values: those of each head of the attention.
        """
        rotation = position.model_copy(update={"rotary_dim": self.rotary_dim})
        indexer = Indexer.model_construct(  # its sizes may be symbols
            index_n_heads=self.index_n_heads, index_head_dim=self.index_head_dim, index_topk=self.index_topk
        )
        recorder.part("indexer", indexer, x, query_latent=x, position=rotation, role="no_grad")
        selection_mask, keys, values = recorder.selected(x, keys, values)
        recorder.hold(k=keys, v=values, mask=selection_mask)
        return keys, values, {"selected_keys": self.index_topk, "selection": selection_mask}

    def reference(self, model_properties: ModelProperties, theta: float) -> nn.Module:
        hidden_size, rotary_dim = model_properties.hidden_size, self.rotary_dim or self.index_head_dim
        indexer = Indexer(
            index_n_heads=self.index_n_heads, index_head_dim=self.index_head_dim, index_topk=self.index_topk
        )
        return _reference_class()(indexer, hidden_size, hidden_size, rotary_dim, theta)


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    indexer_reference: Any = indexer_reference_class()

    class TokenIndexerReference(indexer_reference):  # type: ignore[misc]
        """Selects tokens by an indexer, for attention with separate keys and values per head."""

        def selected_keys_and_values(
            self, x: Tensor, k: Tensor, v: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor, Tensor]:
            """Returns the keys and values to read, and their mask. k, v: [batch, heads, keys, d]."""
            mask = attention_mask(pass_state, x, k, causal=True)
            pass_state.selected_tokens = selected_tokens = self(x, x, mask, pass_state)
            if pass_state.past_tokens and x.shape[1] == 1:
                gather_index = selected_tokens[:, 0, None, :, None].expand(-1, k.shape[1], -1, -1)
                k, v = (tensor.gather(2, gather_index.expand(-1, -1, -1, tensor.shape[-1])) for tensor in (k, v))
                return k, v, torch.ones(1, k.shape[2], dtype=torch.bool, device=x.device)
            mask = mask & torch.zeros_like(mask).expand(x.shape[0], -1, -1).scatter(-1, selected_tokens, True)
            return k, v, mask[:, None]

    return TokenIndexerReference
