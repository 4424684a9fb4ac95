"""Benchmarks: ratios of llmcalc's time and memory to those of the same work done otherwise. Printed, never asserted."""
