"""Low-rank adapters of frozen weights: LoRA (Hu et al. 2021) and QLoRA (Dettmers et al. 2023).

Sources: arXiv:2106.09685, arXiv:2305.14314.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ..algebra import Number
from ..frozen import frozen
from ..workload.lora import FrozenWeightFormat, Library, stored_bytes, stored_tensors
from .tensor import BFLOAT16, FLOAT32, UINT8, Dtype
from .versions import is_older_version

FREES_INPUTS_SINCE = (0, 43, 2)
"""First version of bitsandbytes whose products with 4-bit weights do not keep inputs (#1270, July 2024)."""

KEEPS_DTYPE_SINCE = (0, 43, 0)
"""First version of bitsandbytes that decodes weights to the original weights' format, not always to float16 (#970)."""


@frozen
class Adapters:
    """The low-rank adapters that are trained in addition to frozen weights.

    rank: the width of each adapter. targets: names of the linear layers that have one (`q_proj`).
    dropout: whether its input passes dropout. dtype: the number format of adapters and of their computation.
    base_storage: how the frozen matrices of the layers are stored.
    library: whose adapters run. `peft` (default) casts an adapter's input to the adapter's type, and the sum back
        (peft/tuners/lora/layer.py); `torchtune` casts nothing (torchtune/modules/peft/lora.py); `litgpt` neither, and
        has one adapter for queries, keys and values together (lit_gpt/lora.py, `LoRAQKVLinear`).
    copied_modules: names of modules of which a copy is trained in full beside the frozen original (`modules_to_save` of
        PEFT), none by default.
    quantized_head: whether a quantised base includes the output head: false by default, as in transformers; Lightning
        Fabric stores every linear layer so.
    bitsandbytes: the version of bitsandbytes whose products run, such as `0.41.1`; the newest by default.
    quantized_experts: whether a base in 4 bits includes routed experts, which are decoded whole in each pass (axolotl's
        monkeypatch/moe_quant.py, bitsandbytes/nn/parametrize.py); false by default.
    adapts_experts: whether routed experts have adapters (peft/tuners/lora/layer.py, `ParamWrapper`); false by default.
    has_dora_magnitudes: whether an adapter trains the magnitude of each output, too (DoRA); false by default.
    joined_layers: (module, projection) → the layer that has it and its neighbours in the model's class, with one
        adapter; none by default.
    """

    rank: int
    targets: frozenset[str]
    dropout: bool = False
    dtype: Dtype = FLOAT32
    base_storage: FrozenWeightFormat = "none"
    library: Library = "peft"
    copied_modules: frozenset[str] = frozenset()
    quantized_head: bool = False
    bitsandbytes: str = ""
    quantized_experts: bool = False
    adapts_experts: bool = False
    has_dora_magnitudes: bool = False
    joined_layers: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def keeps_inputs(self) -> bool:
        """Whether a linear layer with a 4-bit weight keeps the input until the whole graph is freed.

        Such a version stores it as an attribute of the node (`ctx.tensors`), which no checkpointing removes.
        """
        return is_older_version(self.bitsandbytes, FREES_INPUTS_SINCE)

    @property
    def decodes_to_float16(self) -> bool:
        """Whether a 4-bit weight is first decoded to float16, and then copied to the compute format."""
        return is_older_version(self.bitsandbytes, KEEPS_DTYPE_SINCE)

    def stored_bytes(self, row_count: Number, column_count: Number) -> Number:
        """Returns the bytes of a quantized matrix with scales."""
        return stored_bytes(self.base_storage, row_count, column_count)

    def stored_tensors(self, row_count: Number, column_count: Number) -> dict[str, tuple[Number, Dtype]]:
        """Returns elements and number format of a quantized matrix's tensors, by name suffix; the codes come first."""
        tensors = stored_tensors(self.base_storage, row_count, column_count)
        return {
            tensor_suffix: (element_count, UINT8 if element_bytes == 1 else FLOAT32)
            for tensor_suffix, (element_count, element_bytes) in tensors.items()
        }

    def computing_format(self, input_format: Dtype) -> Dtype:
        """Returns the number format of products with 4-bit weights, which may differ from the input's format.

        bitsandbytes casts inputs in float32 to `bnb_4bit_compute_dtype`, which is bfloat16 in QLoRA's recipes.
        """
        return BFLOAT16 if self.library == "peft" and input_format is FLOAT32 else input_format
