"""GPT and the decoders that were made beside it: learned positions or ALiBi, LayerNorm, biases."""
