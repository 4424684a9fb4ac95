from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import InputError, MissingExtra
from .shared_options import OfflineOption
from .tools import all_tools, answer_of_tool

if TYPE_CHECKING:
    from mcp.server import Server

INSTRUCTIONS = (
    "Exact parameters, FLOPs, cache and memory of language models, and estimates of time with ranges. Every answer is "
    "a JSON document in base units (bytes, FLOPs, seconds) whose notes state its conventions and how sure it is."
)
"""The description of the server that a client of the Model Context Protocol gives its language model."""


def command(offline: OfflineOption = False) -> None:
    """Answers as tools for language models: a server of the Model Context Protocol on standard input and output.
    Its tools are params, flops, kv, memory, fit, plan, time, serve, cost and compare, with the options of the commands.
    They only read, and use the network only for a hub id.
    """
    mcp_server = tool_server()
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (input_stream, output_stream):
            await mcp_server.run(input_stream, output_stream, mcp_server.create_initialization_options())

    anyio.run(run)


def tool_server() -> Server[Any]:
    """Returns the MCP server of llmcalc's tools, without a transport. Raises `InputError` without the extra `mcp`."""
    try:
        from anyio import CapacityLimiter, to_thread
        from mcp import types
        from mcp.server import Server
    except ImportError:
        raise MissingExtra("mcp", "the package mcp", "mcp") from None
    from .. import __version__

    single_call_limiter = CapacityLimiter(1)
    read_only_hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=tool.name, description=tool.description, input_schema=tool.schema, annotations=read_only_hints
            )
            for tool in all_tools()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, call_params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer_document = await to_thread.run_sync(
                answer_of_tool, call_params.name, call_params.arguments or {}, limiter=single_call_limiter
            )
        except InputError as error:
            return types.CallToolResult(content=[types.TextContent(text=f"error: {error}")], is_error=True)
        tool_answer = types.TextContent(text=json.dumps(answer_document, ensure_ascii=False))
        structured_content = answer_document if isinstance(answer_document, dict) else {"documents": answer_document}
        return types.CallToolResult(content=[tool_answer], structured_content=structured_content)

    return Server(
        "llmcalc", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )
