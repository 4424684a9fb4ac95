"""Parallel layouts: the program of a rank, where its values lie, what ranks send each other, pipelines' schedules."""
