"""Parts that work on each token separately, one file each: feed-forward networks, experts, routers."""
