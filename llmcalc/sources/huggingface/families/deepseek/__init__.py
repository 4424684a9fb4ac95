"""DeepSeek's latent attention and its routing, and the models that took over either."""
