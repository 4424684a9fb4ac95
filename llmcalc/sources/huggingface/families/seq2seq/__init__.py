"""Encoder-decoders: T5, BART, Whisper, and mixtures of experts built on them."""
