"""Pictures of answers, drawn with matplotlib."""
