"""Studies of one or several models: comparisons, budgets, layouts, shapes of equal cost, and rules of thumb."""
