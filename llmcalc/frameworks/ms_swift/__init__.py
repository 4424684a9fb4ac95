"""ms-swift: launch commands `swift sft`, `swift pt` and `megatron sft`.

All of it may be changed without reading another program; the Trainer's and Megatron-Core's runs are made elsewhere.
"""
