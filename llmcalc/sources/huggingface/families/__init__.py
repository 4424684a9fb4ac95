"""The families of model types: one file per family, in folders by lineage."""
