"""The command line: one file a command, loaded when it is asked for.
Each parses, calls the library once and shows a view.
"""


def run() -> None:
    """The `llmcalc` command. Nothing is collected while it is imported, for all of that stays."""
    import gc

    gc.disable()
    from .main import main

    main()
