"""Parts that work on each token by itself, one file each."""
