"""BERT and later encoders."""
