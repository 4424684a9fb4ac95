"""Encoders with a decoder: T5, BART, Whisper, and the mixtures of experts built on them."""
