"""GPT and decoders of its time: learned positions or ALiBi, LayerNorm, biases."""
