"""ms-swift: launch commands `swift sft`, `swift pt` and `megatron sft`."""
