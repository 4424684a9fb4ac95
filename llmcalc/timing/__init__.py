"""Time estimates: the exact work of a rank's pass, the seconds per kernel, and the seconds of a step or pass.

The functions that answer a question (of scalars, or of arrays with an element per layout):

    device.device_of(hardware, nic=None) -> Device      nic: bytes/s of a device, in place of the record's
    stack.find_stack(name) -> Stack                     stack.stack_names() lists them
    price.Formats(dtype="bf16", weight_bits=16, cache_bits=16)
        dtype: bf16, fp8, fp4, int8, or quantized (weights that a kernel decodes to 16 bits: AWQ, GGUF)
    step.StepPlan.from_layout(layout, micro_batch, micro_batches, seq, dtype="bf16", recompute=0.0)
    step.training_step(spec, device, stack, plan) -> Step
        .seconds, .parts {work, bubble, data, update}, .timed_pass
    inference.prefill(spec, device, stack, batch, seq, cached_tokens=0, chunk=None, layout=ONE_DEVICE,
        formats=Formats(), server=False) -> InferencePass
        .seconds, .parts {kernels, host, hops, server}, .timed_passes
    inference.decode(spec, device, stack, batch, cached_tokens, layout=ONE_DEVICE, formats=Formats()) -> InferencePass
    spread.expected_range(seconds, phase, device, stack, spec) -> Range     .low, .estimate, .high, .tested

A constant in `presets/timing` may be changed without reading elsewhere; a term of `price`, `step` or `inference` stays
if it lowers the error of a measured set that it was not found on.
"""
