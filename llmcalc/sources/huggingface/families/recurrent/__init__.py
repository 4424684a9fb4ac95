"""State spaces, linear attention, and hybrids of them with softmax attention."""
