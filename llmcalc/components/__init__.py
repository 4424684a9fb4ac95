"""The parts of an architecture, one file each. `choices` lists them: a new part is a new file and a line there."""
