"""An agent with no package: it plays a task of the toolbox by calls of tools.

A harness starts it (docs/harness.md). It asks the policy through OpenAI's API, carries out the calls on a
toolbox server, and leaves its reward where the harness looks for it.
"""

import json
import os
import urllib.request


def post(url, body, key=""):
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


task = json.load(open(os.environ["AGENTGYM_TASK"]))
toolbox = os.environ["TOOLBOX_URL"]
session = post(f"{toolbox}/create", {})["id"]
first = post(f"{toolbox}/reset", {"id": session, "data_idx": task["item"]})
messages = [{"role": "user", "content": f"{task['instruction']}\n\n{first['observation']}"}]
reward = 0.0
for _ in range(int(os.environ["AGENTGYM_CALLS_MAX"])):
    asked = {"model": "policy", "messages": messages, "tools": task["tools"]}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    said = post(url, asked, os.environ["OPENAI_API_KEY"])["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        break
    for call in said["tool_calls"]:
        function = call["function"]
        action = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        step = post(f"{toolbox}/step", {"id": session, "action": json.dumps(action)})
        reward = step.get("reward", reward)
        answer = step.get("observation") or step["error"]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
    if step.get("done"):
        break
with open(os.environ["AGENTGYM_REWARD"], "w") as file:
    json.dump({"reward": reward, "components": {"calls": len(messages) // 2}}, file)
