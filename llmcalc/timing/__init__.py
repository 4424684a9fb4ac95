"""Time estimates: the exact work of a rank's pass, the seconds per kernel, and the seconds of a step or pass.

`device.device_of` and `stack.find_stack` return what a run is priced with. `step.training_step`, `inference.prefill`
and `inference.decode` return seconds with their parts, of scalars or of arrays with an element per layout, and
`time_ranges.expected_range` the range of an estimate.

A constant in `presets/timing` may be changed without reading elsewhere; a term of `time_estimator`, `step` or
`inference` stays if it lowers the error of a measured set that it was not found on.
"""
