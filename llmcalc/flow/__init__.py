"""The program that a model computes, and the tree of named nodes derived from it."""
