"""The program of a model, and the tree of named nodes from the program.

How a program is stored and walked may be changed here without reading the parts; the signature of a verb may not, for
every part calls it and every profile of `simulator` has a method for it.
"""
