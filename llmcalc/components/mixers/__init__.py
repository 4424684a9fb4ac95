"""Parts that move information between tokens, one file each."""
