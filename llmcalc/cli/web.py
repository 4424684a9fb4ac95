from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from .output import print_line, print_remarks, store_remark
from .shared_options import value_option


def command(
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="Port to serve on; 0: any free port.", min=0, max=65535)
    ] = 0,
    export: Annotated[
        Path | None, value_option("--export", "DIR", "Write the page into a new folder, for any static server.")
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the page anew, after a change.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Serve or export the page: the same counts in a browser.
    It is built from a checkout, with Node and npm, and served to this machine only.
    """
    from ..page_server import PageServer, build_page, check_export, export_page

    if export is not None:
        check_export(export)
    page_folder, build_remark = build_page(rebuild)
    if build_remark:
        store_remark(build_remark)
    if export is not None:
        export_page(page_folder, export)
        store_remark(f"wrote {export}")
        return
    server = PageServer(page_folder, port)
    print_remarks()
    print_line(f"the page is at {server.address} (Ctrl+C ends it)")
    if browser:
        webbrowser.open(server.address)
    server.run()
