"""The compute graph of a model, called its program, and the tree of named nodes that is built from it.

How a program is stored and walked may be changed here without reading the parts; the signature of a verb may not, for
every part calls it and every profile of `simulator` has a method for it.
"""
