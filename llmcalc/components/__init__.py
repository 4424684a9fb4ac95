"""The parts of an architecture, one file each; `choices` lists them. A new part is its file and its line there."""
