"""GPT and similar early decoders: learned positions or ALiBi, LayerNorm, biases."""
