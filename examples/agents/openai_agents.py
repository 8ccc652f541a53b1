"""A harness around an agent of openai-agents, in one process: the toolbox's tasks, played by the SDK.

    python openai_agents.py TOOLBOX_URL TOOLS.json PORT

TOOLS.json is a line of `agentgym-env demos --env builtin:toolbox`. The protocol is that of docs/harness.md:
`create`, `reset`, `step` and `close`, where the first step of a session starts the agent.
"""

import asyncio
import concurrent.futures
import itertools
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2 as httpx
import openai
from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    set_tracing_disabled,
)
from agents.exceptions import AgentsException

TOOLBOX, SHOWN, PORT = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3])
INSTRUCTION = SHOWN["conversations"][0]["value"].rsplit("\n\n", 1)[0]
set_tracing_disabled(True)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
http = httpx.AsyncClient(timeout=60)


async def post(path, body):
    answer = await http.post(f"{TOOLBOX}/{path}", json=body)
    answer.raise_for_status()
    return answer.json()


class Session:
    def __init__(self):
        self.toolbox, self.first, self.agent = None, "", None
        self.reward = 0.0

    async def reset(self, item):
        self.toolbox = (await post("create", {}))["id"]
        self.first = (await post("reset", {"id": self.toolbox, "data_idx": item}))["observation"]

    async def call(self, name, arguments):
        action = json.dumps({"name": name, "arguments": json.loads(arguments)})
        step = await post("step", {"id": self.toolbox, "action": action})
        if "error" in step:
            return f"Error: {step['error']}"
        self.reward = step["reward"]
        return step["observation"]

    def tool(self, tool):
        function = tool["function"]
        name = function["name"]

        async def invoke(_context, arguments):
            return await self.call(name, arguments)

        return FunctionTool(
            name=name,
            description=function["description"],
            params_json_schema=function["parameters"],
            on_invoke_tool=invoke,
            strict_json_schema=False,
        )

    async def play(self, told):
        client = openai.AsyncOpenAI(base_url=told["base_url"] + "/v1", api_key=told["api_key"])
        agent = Agent(
            name="toolbox",
            tools=[self.tool(tool) for tool in SHOWN["tools"]],
            model=OpenAIChatCompletionsModel(model="policy", openai_client=client),
            model_settings=ModelSettings(),
            tool_use_behavior={"stop_at_tool_names": ["finish"]},
        )
        reason = ""
        try:
            text = f"{INSTRUCTION}\n\n{self.first}"
            await Runner.run(agent, text, max_turns=told["calls_max"])
        # A call of no tool, no call, or one too many: the policy's own doing.
        except (AgentsException, openai.BadRequestError, json.JSONDecodeError) as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            await client.close()
        return {"observation": "", "reward": self.reward, "done": True, "reason": reason[:300]}


sessions, numbers = {}, itertools.count()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.answer(getattr(self, self.path.strip("/"))(**json.loads(body or b"{}")))

    def do_GET(self):
        self.answer({"status": "ok", "sessions": len(sessions)})

    def answer(self, content):
        content = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def create(self):
        number = next(numbers)
        sessions[number] = Session()
        return {"id": number}

    def reset(self, id, data_idx):
        asyncio.run_coroutine_threadsafe(sessions[id].reset(data_idx), loop).result()
        return {"observation": sessions[id].first}

    def step(self, id, action):
        session, told = sessions[id], json.loads(action)
        if session.agent is None:
            session.agent = asyncio.run_coroutine_threadsafe(session.play(told), loop)
        try:
            return session.agent.result(timeout=told["wait_s"])
        except concurrent.futures.TimeoutError:
            return {"observation": "", "done": False}

    def close(self, id):
        session = sessions.pop(id, None)
        if session and session.agent:
            session.agent.cancel()
        return session is not None


server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
