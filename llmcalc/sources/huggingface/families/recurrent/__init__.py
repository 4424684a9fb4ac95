"""State-space models, linear attention, and hybrids of them with softmax attention."""
