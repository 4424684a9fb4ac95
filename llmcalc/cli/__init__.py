"""The command line: one file per command, imported when the command runs.

A command reads its options, asks a question of `questions` and shows the report.

The help text, panel and order of an option that stands here may be changed without reading elsewhere; the options of
a run and of a layout are declared in `device_memory/settings.py` and `parallel/layout_request.py`, those of `time`,
`serve` and `cost` in `questions/time_and_cost_options.py`.
"""


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

        main()
    except KeyboardInterrupt:  # before there is a command that could be interrupted
        raise SystemExit(130) from None
    finally:
        gc.freeze()  # the interpreter would look for cycles among all objects before it frees them
