"""BERT and the encoders after it."""
