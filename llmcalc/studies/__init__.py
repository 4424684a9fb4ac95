"""Studies of one model or several: comparison, shapes of equal cost, and rules of thumb."""
