from __future__ import annotations

import json

from .shared_options import OutputOption, open_output


def command(output: OutputOption = None) -> None:
    """JSON Schema of native descriptions.
    With it, editors check and complete TOML.
    """
    from ..sources.json_schema import description_schema

    with open_output(output) as output_stream:
        output_stream.write(json.dumps(description_schema(), indent=1) + "\n")
