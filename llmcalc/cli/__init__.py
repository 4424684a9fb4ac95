"""The command line: one module per command, imported when the command runs.

A module parses the options, calls the library once and prints the report.
"""


def run() -> None:
    """Starts the `llmcalc` command.

    For a fast start, the garbage collector is off during imports, and pydantic does not search for plugins.
    """
    import gc
    import os

    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from .main import main

        main()
    except KeyboardInterrupt:  # before there is a command that could be interrupted
        raise SystemExit(130) from None
