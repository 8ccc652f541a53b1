"""Plays a task behind `agentgym-env harness` by a client or an agent that others wrote: scripts/agents.sh.

    agents_play.py KIND

The libraries are as PyPI has them. All but mini-swe-agent play the toolbox at $TOOLBOX_URL.
"""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request

TASK = json.load(open(os.environ["AGENTGYM_TASK"]))
CALLS_MAX = int(os.environ["AGENTGYM_CALLS_MAX"])
BASE_URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
STREAMS = TASK["item"] % 2 == 1
TOOLS = TASK["tools"]


class Toolbox:
    """A task of the toolbox, and what it has given so far."""

    def __init__(self):
        self.id = self.post("create")["id"]
        first = self.post("reset", id=self.id, data_idx=TASK["item"])["observation"]
        self.prompt = f"{TASK['instruction']}\n\n{first}"
        self.reward, self.done = 0.0, False

    @staticmethod
    def post(path, **body):
        request = urllib.request.Request(f"{os.environ['TOOLBOX_URL']}/{path}", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def call(self, name, arguments):
        step = self.post("step", id=self.id, action=json.dumps({"name": name, "arguments": arguments}))
        self.reward, self.done = step.get("reward", self.reward), step.get("done", False)
        return step.get("observation") or step["error"]


def chat(toolbox):
    """OpenAI's client, by chats."""
    import openai

    client = openai.OpenAI()
    messages = [{"role": "user", "content": toolbox.prompt}]
    for _ in range(CALLS_MAX):
        asked = dict(model="gpt-5", messages=messages, tools=TOOLS, temperature=0.2)
        if STREAMS:
            with client.chat.completions.stream(**asked) as stream:
                said = stream.get_final_completion().choices[0].message
        else:
            said = client.chat.completions.create(**asked).choices[0].message
        messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in said.tool_calls or []:
            answer = toolbox.call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        if toolbox.done or not said.tool_calls:
            break


def responses(toolbox):
    """OpenAI's client, by responses."""
    import openai

    client = openai.OpenAI()
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
    items = [{"role": "user", "content": toolbox.prompt}]
    for _ in range(CALLS_MAX):
        asked = dict(model="gpt-5", input=items, tools=tools, store=False)
        if STREAMS:
            with client.responses.stream(**asked) as stream:
                said = stream.get_final_response()
        else:
            said = client.responses.create(**asked)
        calls = [item for item in said.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in said.output]
        for call in calls:
            answer = toolbox.call(call.name, json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": answer})
        if toolbox.done or not calls:
            break


def messages(toolbox):
    """Anthropic's client."""
    import anthropic

    client = anthropic.Anthropic()
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in TOOLS)
    ]
    said_so_far = [{"role": "user", "content": toolbox.prompt}]
    for _ in range(CALLS_MAX):
        asked = dict(model="claude", max_tokens=48, messages=said_so_far, tools=tools)
        if STREAMS:
            with client.messages.stream(**asked) as stream:
                said = stream.get_final_message()
        else:
            said = client.messages.create(**asked)
        content = [block.model_dump(exclude_none=True) for block in said.content]
        said_so_far.append({"role": "assistant", "content": content})
        results = []
        for block in said.content:
            if block.type == "tool_use":
                answer = toolbox.call(block.name, block.input)
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": answer})
        if toolbox.done or not results:
            break
        said_so_far.append({"role": "user", "content": results})


def openai_agents(toolbox, by_responses=False):
    """openai-agents, by turns: alone, with two sub-agents at once, and with a past that it shortens."""
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI()
    form = agents.OpenAIResponsesModel if by_responses else agents.OpenAIChatCompletionsModel
    model = form(model="policy", openai_client=client)

    def tool(function):
        async def invoke(_context, arguments):
            return toolbox.call(function["name"], json.loads(arguments))

        return agents.FunctionTool(
            name=function["name"],
            description=function["description"],
            params_json_schema=function["parameters"],
            on_invoke_tool=invoke,
            strict_json_schema=False,
        )

    def agent(name):
        return agents.Agent(
            name=name,
            tools=[tool(each["function"]) for each in TOOLS],
            model=model,
            tool_use_behavior={"stop_at_tool_names": ["finish"]},
        )

    def shortened(data):
        """The first item and the last call with its answer."""
        own = data.model_data
        items = own.input[:1] + own.input[-2:] if len(own.input) > 3 else own.input
        return agents.run.ModelInputData(input=items, instructions=own.instructions)

    async def run():
        config = agents.RunConfig(call_model_input_filter=shortened if TASK["item"] % 4 == 2 else None)
        all_at_once = [agents.Runner.run(agent("main"), toolbox.prompt, max_turns=CALLS_MAX, run_config=config)]
        if TASK["item"] % 4 == 1:
            for number in range(2):
                aside = agents.Agent(name="aside", instructions=f"You are number {number}.", model=model)
                all_at_once.append(agents.Runner.run(aside, toolbox.prompt))
        await asyncio.gather(*all_at_once, return_exceptions=True)

    asyncio.run(run())


def smolagents(toolbox):
    """smolagents' agent of tools, with its own prompts."""
    import smolagents as library

    def tool(function):
        class Own(library.Tool):
            skip_forward_signature_validation = True
            name, description = function["name"], function["description"]
            inputs = {
                key: {"type": value["type"], "description": value.get("description", key)}
                for key, value in function["parameters"]["properties"].items()
            }
            output_type = "string"

            def forward(self, **arguments):
                return toolbox.call(self.name, arguments)

        return Own()

    model = library.OpenAIModel("policy", api_base=BASE_URL, api_key=KEY)
    agent = library.ToolCallingAgent(
        [tool(each["function"]) for each in TOOLS], model, max_steps=CALLS_MAX, planning_interval=2, verbosity_level=0
    )
    agent.run(toolbox.prompt)


def mini_swe_agent(_toolbox):
    """mini-swe-agent, by texts, with short prompts, mends a failing test."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    model = LitellmTextbasedModel(
        model_name="openai/policy",
        cost_tracking="ignore_errors",
        model_kwargs={"api_base": BASE_URL, "api_key": KEY},
    )
    environment = LocalEnvironment(cwd=os.getcwd(), timeout=10, env={"PATH": os.environ["AGENT_PATH"]})
    agent = DefaultAgent(
        model, environment, system_template=TASK["system"], instance_template="{{task}}", step_limit=CALLS_MAX
    )
    agent.run(TASK["prompt"])


def completions(toolbox):
    """OpenAI's client, by completions: the prompt is the agent's own text."""
    import openai

    client = openai.OpenAI()
    prompt = f"<|im_start|>user\n{toolbox.prompt}<|im_end|>\n<|im_start|>assistant\n"
    for _ in range(CALLS_MAX):
        asked = dict(model="policy", prompt=prompt, max_tokens=48, stop=["<|im_end|>"])
        if STREAMS:
            pieces = client.completions.create(**asked, stream=True)
            said = "".join(piece.choices[0].text for piece in pieces)
        else:
            said = client.completions.create(**asked).choices[0].text
        call = json.loads(said.split("<tool_call>")[1].split("</tool_call>")[0])
        answer = toolbox.call(call["name"], call["arguments"])
        if toolbox.done:
            return
        prompt += f"{said}<|im_end|>\n<|im_start|>user\n{answer}<|im_end|>\n<|im_start|>assistant\n"


KINDS = {
    "chat": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
    "openai-agents": openai_agents,
    "openai-agents-responses": lambda toolbox: openai_agents(toolbox, by_responses=True),
    "smolagents": smolagents,
    "mini-swe-agent": mini_swe_agent,
}


def main():
    kind = sys.argv[1]
    toolbox = None if kind == "mini-swe-agent" else Toolbox()
    try:
        KINDS[kind](toolbox)
    # What the policy said cannot be carried out, or it may say no more: the episode is over.
    except Exception as error:
        print(f"{type(error).__name__}: {error}"[:300])
    if toolbox is None:
        # The test as it was: what a policy may write is no judge.
        test = subprocess.run([sys.executable, "-c", TASK["files"]["test.py"]], capture_output=True)
        reward = float(test.returncode == 0)
    else:
        reward = toolbox.reward
    with open(os.environ["AGENTGYM_REWARD"], "w") as file:
        json.dump({"reward": reward}, file)


main()
