"""DeepSeek's latent attention (MLA) and routing, and models that use one of the two."""
