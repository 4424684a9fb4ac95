"""DeepSeek's latent attention (MLA) and routing, and models with either."""
