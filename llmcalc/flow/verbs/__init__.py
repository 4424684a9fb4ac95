"""The verbs of the recorder, by topic: a part's flow calls one per operation."""
