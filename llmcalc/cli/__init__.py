"""The command line: one file per command, imported when the command runs.

A command reads its options, asks a question of `questions` and shows the report.

The help text, panel and order of an option that stands here may be changed without reading elsewhere; the options of
a run and of a layout are declared in `device_memory/settings.py` and `parallel/layout_request.py`, those of `time`,
`serve` and `cost` in `questions/time_and_cost_options.py`.
"""

from __future__ import annotations

from collections.abc import Callable

FRAME_SLOTS = 2**14
"""Slots of the frame below which a command runs: 128 KiB, so that Python's next chunk of frames has 256 KiB."""


def call_with_reserved_stack(function: Callable[[], None]) -> None:
    """Calls a function with enough interpreter stack reserved for the frames of all nested calls.

    Python keeps frames in chunks of 16 KiB (CPython, Python/pystate.c, `push_chunk`). A call beyond the end of a chunk
    maps another one, which its return unmaps: a loop at such a depth does so in every round, and a search for layouts
    40,000 times. A frame that is larger than a chunk gets one of the next power of two, with room for further frames.
    """
    function()


call_with_reserved_stack.__code__ = call_with_reserved_stack.__code__.replace(co_stacksize=FRAME_SLOTS)


def run() -> None:
    """Runs the `llmcalc` command.

    No garbage is collected during imports, because all imported objects stay, nor at the end of the process. Installed
    packages are not searched for plugins of pydantic, which nothing here is for.
    """
    import gc
    import os

    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from .main import main

        call_with_reserved_stack(main)
    except KeyboardInterrupt:  # before there is a command that could be interrupted
        raise SystemExit(130) from None
    finally:
        gc.freeze()  # the interpreter would look for cycles among all objects before it frees them
