"""slime: reinforcement learning and supervised training with Megatron-LM, beside rollouts of SGLang.

All of it may be changed without reading another program; `frameworks/megatron/named_model.py` has the run of a model
of the hub.
"""
