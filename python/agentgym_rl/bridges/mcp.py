"""`mcp:COMMAND` with `--tasks FILE`: the tools of an MCP server that the command starts on standard input and output.

An action is the JSON object of a call, `{"name": "…", "arguments": {…}}`, anywhere in the text; `answer` ends the task.
The file has a line per task, `{"prompt": "…", "answer": "…"}`; the reward is 1 for that answer. Each task has a fresh server.
"""

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any, ClassVar

from ..environment import Environment
from ..errors import AgentgymError, imported, short
from . import subclass
from .background import Background


def environment(command: str, tasks: str | None) -> type[Environment]:
    """The class for a command line."""
    words = shlex.split(command)
    package = imported("mcp", "mcp", f"mcp:{command}")
    if tasks is None:
        raise AgentgymError('mcp needs --tasks FILE with a line per task: {"prompt": "…", "answer": "…"}')
    rows = read_tasks(tasks)
    kind = subclass(Path(words[0]).name if len(words) == 1 else words[-1], Mcp, package=package, words=words, rows=rows)
    tried: Any = kind()
    try:
        tried.start()
        tools = tried.loop.call(tried.client.list_tools()).tools
    except Exception as error:
        raise AgentgymError(f"mcp: {command!r} starts no MCP server on standard input and output: {short(error)}") from error
    finally:
        tried.close()
    shapes = [tool.model_dump(by_alias=True, exclude_none=True) for tool in tools]
    listed = "\n".join(f"{it['name']}: {it.get('description', '')} {json.dumps(it['inputSchema'].get('properties', {}))}" for it in shapes)
    kind.instruction = f'Tools:\n{listed}\nCall one with {{"name": "<tool>", "arguments": {{…}}}}; end with {{"name": "answer", "arguments": {{"text": "<answer>"}}}}.'
    kind.probe = '{"name": "", "arguments": {}}'
    kind.spec = {"parser": "raw", "items": {"wrapping": len(rows)}, "rounds_max": 10, "creates_at_once": 2}
    return kind


def read_tasks(path: str) -> list[tuple[str, str]]:
    """Prompts and answers of a file of tasks."""
    try:
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise AgentgymError(f"--tasks {path} is not read: {error}") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or "answer" not in row:
            raise AgentgymError(f"--tasks {path}: task {number} has no text `prompt` or no `answer`: {str(row)[:80]}")
    if not rows:
        raise AgentgymError(f"--tasks {path} holds no task")
    return [(row["prompt"], str(row["answer"])) for row in rows]


class Mcp(Environment):
    """The tools of an MCP server."""

    package: ClassVar[Any]
    words: ClassVar[list[str]]
    rows: ClassVar[list[tuple[str, str]]]
    loop: Background | None = None
    client: Any = None

    def start(self) -> None:
        """A fresh server process, and a client of it."""
        self.close()
        self.loop = Background()
        self.loop.call(self._begin())

    async def _begin(self) -> None:
        self.over = asyncio.Event()
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.live = asyncio.ensure_future(self._live(ready))
        if not (await asyncio.wait([ready, self.live], timeout=60, return_when=asyncio.FIRST_COMPLETED))[0]:
            raise TimeoutError("it answered nothing in 60 s")
        # What went wrong in the task is raised here.
        self.client = ready.result() if ready.done() else self.live.result()

    async def _live(self, ready: "asyncio.Future[Any]") -> None:
        # One task opens and closes the connection, as the package wants it.
        parameters = self.package.StdioServerParameters(command=self.words[0], args=self.words[1:])
        async with self.package.stdio_client(parameters) as (read, write), self.package.ClientSession(read, write) as client:
            await client.initialize()
            ready.set_result(client)
            await self.over.wait()

    async def _end(self) -> None:
        self.over.set()
        await asyncio.wait([self.live], timeout=10)

    def reset(self, item_id: int) -> str:
        self.start()
        prompt, self.expected = self.rows[item_id % len(self.rows)]
        return prompt

    def step(self, action: str) -> tuple[str, float, bool]:
        try:
            call = json.loads(action[action.index("{") : action.rindex("}") + 1])
            name, arguments = call["name"], call["arguments"]
            assert isinstance(name, str) and isinstance(arguments, dict)
        except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
            return 'Error: no call; expected: {"name": "<tool>", "arguments": {…}}', 0.0, False
        if name == "answer":
            right = str(arguments.get("text", "")).strip() == self.expected.strip()
            return f"That is {'right' if right else 'wrong'}.", float(right), True
        assert self.loop is not None
        try:
            result = self.loop.call(asyncio.wait_for(self.client.call_tool(name, arguments), 60))
        except (self.package.McpError if hasattr(self.package, "McpError") else self.package.MCPError) as error:
            return f"Error: {error}"[:2000], 0.0, False
        return "\n".join(getattr(part, "text", f"({part.type})") for part in result.content), 0.0, False

    def close(self) -> None:
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.call(self._end())
            loop.close()
