"""GLM, dense and with vision."""
