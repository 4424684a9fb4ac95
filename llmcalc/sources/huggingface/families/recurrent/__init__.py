"""State-space models, linear attention, and hybrids with softmax attention."""
