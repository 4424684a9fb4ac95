"""GLM, dense and with images."""
