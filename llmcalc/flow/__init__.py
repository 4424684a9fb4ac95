"""What a model computes, and the tree of named nodes that is seen of it from above."""
