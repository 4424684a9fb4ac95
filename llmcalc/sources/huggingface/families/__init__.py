"""How each `model_type` is read: a file for each family, in folders by lineage."""
