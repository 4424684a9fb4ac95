"""The command line: one file a command, loaded when it is asked for.
Each parses, calls the library once and shows a view.
"""


def run() -> None:
    """The `llmcalc` command, started fast: nothing is collected while it is imported, for all of that stays, and the
    installed packages are not searched for plugins of pydantic, which nothing here is for.
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
