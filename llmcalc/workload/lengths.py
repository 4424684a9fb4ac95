"""Default numbers of tokens per sequence."""

DEFAULT_TOKENS = 2048
"""Default tokens per sequence in a pass, and the default context of a model that states no context length."""

DEFAULT_TRAINING_TOKENS = 4096
"""Default tokens per sequence of a training run that costs money: what most pre-training runs since Llama 2 start with.
"""

LARGEST_DEFAULT_CONTEXT = 2**15
"""Largest default context, in tokens, for models with a longer context length. Half of the published decoders state
32,768 or less, and a conversation with a document fills as much. A default of a million tokens would answer a question
that few users ask, and a default of one token would hide the cache.
"""
