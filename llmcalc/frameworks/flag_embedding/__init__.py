"""FlagEmbedding's training of embeddings and rerankers (BGE), which runs the Trainer.

All of it may be changed without reading another program; a run is arguments of the Trainer.
"""
