"""The tools as a server of the package `mcp`, for any transport."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from perfd import __version__
from perfd.errors import PerfdError
from perfd.mcp import report_prompt
from perfd.mcp.parameters import schema_of
from perfd.mcp.quantities import SENTENCE_CHARS, plain
from perfd.mcp.tools import NOTE, TOOLS, ToolContext, ToolDescription, answer

log = logging.getLogger(__name__)

MayCapture = Callable[[Any], bool]
"""Whether a request, as its transport hands it over, may start captures."""
_INSTRUCTIONS = (
    "perfd finds what slows GPU jobs. Begin with list_jobs, then get_summary and get_findings of a job."
    f" Each number has its unit and source. {NOTE}"
)


def build_server(context: ToolContext, may_capture: MayCapture) -> Server[dict[str, Any]]:
    """A server whose tools answer from `context`; those that start captures only if a request may."""

    async def list_tools(
        request: ServerRequestContext[dict[str, Any]], _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_listed(tool) for tool in _offered(request)])

    async def call_tool(
        request: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = next((tool for tool in _offered(request) if tool.name == params.name), None)
        if tool is None:
            return _refusal(f"There is no tool {plain(params.name, 60)} for this client.")
        try:
            # The aggregator is asked over blocking sockets.
            found = await anyio.to_thread.run_sync(answer, tool, context, params.arguments or {})
        except PerfdError as error:
            return _refusal(str(error))
        except Exception:  # An aggregator of another version: one answer fails, not the server.
            log.exception("A tool failed.", extra={"tool": tool.name})
            return _refusal("The aggregator's answer is not as this perfd expects: use the same version.")
        return _result(found)

    async def list_prompts(
        _request: ServerRequestContext[dict[str, Any]], _: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        arguments = [
            types.PromptArgument(name=one.name, description=one.description, required=one.required)
            for one in report_prompt.PARAMETERS
        ]
        prompt = types.Prompt(
            name=report_prompt.NAME, description=report_prompt.DESCRIPTION, arguments=arguments
        )
        return types.ListPromptsResult(prompts=[prompt])

    async def get_prompt(
        _: ServerRequestContext[dict[str, Any]], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        if params.name != report_prompt.NAME:
            raise MCPError(types.INVALID_PARAMS, f"There is no prompt {plain(params.name, 60)}.")
        try:
            text = report_prompt.report_prompt(params.arguments or {})
        except PerfdError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=report_prompt.DESCRIPTION, messages=[message])

    def _offered(request: ServerRequestContext[dict[str, Any]]) -> list[ToolDescription]:
        capturing = may_capture(request.request)
        return [tool for tool in TOOLS if capturing or not tool.captures]

    return Server(
        "perfd",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def serve_stdio(server: Server[dict[str, Any]]) -> None:
    """Serve one client on standard input and output until it closes them."""

    async def serve() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(serve)


def _listed(tool: ToolDescription) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=schema_of(tool.parameters),
        annotations=types.ToolAnnotations(
            read_only_hint=not tool.captures, destructive_hint=False, open_world_hint=False
        ),
    )


def _result(found: dict[str, Any]) -> types.CallToolResult:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=found)


def _refusal(sentence: str) -> types.CallToolResult:
    text = plain(sentence, SENTENCE_CHARS)
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
