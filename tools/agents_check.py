"""What agents asked and were told, beside what a run trains on: scripts/agents.sh.

    agents_check.py record FOLDER COMMAND…       # between an agent and the gateway; behind `agentgym-env harness`
    agents_check.py check EXPORT FOLDER          # FOLDER: its records; EXPORT: of `agentgym-submit export`

Each request must be one turn of an episode: its prompt is the template's rendering, by transformers, of what the
agent sent, where a message of the assistant that it had from the gateway stands as it was sampled; and its
answer is what the policy said, id by id where the form of the answer has ids, else text and calls. Of a tool, `strict` is a word to the server and in no prompt.
Whatever else differs is printed, and fails.
"""

import collections
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def record(folder, command):
    """Runs a command whose requests go through here, and writes each beside its answer."""
    gateway = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    log = (Path(folder) / f"{uuid.uuid4().hex}.jsonl").open("w")
    lock = threading.Lock()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                self.server.number += 1
                number = self.server.number
            connection = http.client.HTTPConnection(gateway.hostname, gateway.port)
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            connection.request("POST", self.path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            self.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(key, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            with lock:
                exchange = {
                    "number": number,
                    "path": self.path.split("?")[0],
                    "asked": json.loads(body),
                    "status": answer.status,
                    "told": text.decode(),
                }
                log.write(json.dumps(exchange) + "\n")
                log.flush()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.number = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own = f"http://127.0.0.1:{server.server_port}"
    environment = os.environ | {"OPENAI_BASE_URL": f"{own}/v1", "ANTHROPIC_BASE_URL": own}
    sys.exit(subprocess.run(command, env=environment).returncode)


def text_of(content):
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def asked_by_chat(asked):
    """Messages and tools of a request, as a template takes them."""
    messages = []
    for message in asked["messages"]:
        role = {"developer": "system"}.get(message["role"], message["role"])
        one = {"role": role, "content": text_of(message.get("content"))}
        if message.get("tool_calls"):
            one["tool_calls"] = [
                {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
                for call in message["tool_calls"]
            ]
        messages.append(one)
    tools = [
        {key: value for key, value in tool["function"].items() if key != "strict"} for tool in asked.get("tools") or []
    ]
    return messages, tools


def asked_by_messages(asked):
    messages = []
    if asked.get("system"):
        messages.append({"role": "system", "content": text_of(asked["system"])})
    for message in asked["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results = [block for block in blocks if block["type"] == "tool_result"]
        messages += [{"role": "tool", "content": text_of(block["content"])} for block in results]
        texts = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [{"name": b["name"], "arguments": b["input"]} for b in blocks if b["type"] == "tool_use"]
        if texts or calls or not results:
            one = {"role": message["role"], "content": texts}
            messages.append(one | ({"tool_calls": calls} if calls else {}))
    tools = [
        {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
        for tool in asked.get("tools") or []
    ]
    return messages, tools


def asked_by_responses(asked):
    messages = []
    if asked.get("instructions"):
        messages.append({"role": "system", "content": asked["instructions"]})
    items = asked["input"]
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item["role"], "content": text_of(item["content"])})
        elif kind == "function_call":
            call = {"name": item["name"], "arguments": json.loads(item["arguments"])}
            # Text and calls of one answer are items beside each other.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "content": text_of(item["output"])})
        else:
            raise ValueError(f"an item of type {kind}")
    tools = [
        {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
        for tool in asked.get("tools") or []
    ]
    return messages, tools


def events(told):
    lines = [line[5:].strip() for line in told.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def told_by_chat(told, streams):
    """Text and calls of an answer."""
    if not streams:
        message = json.loads(told)["choices"][0]["message"]
        text, calls = message["content"], message.get("tool_calls") or []
    else:
        text, calls = "", []
        for event in events(told):
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                calls += choice["delta"].get("tool_calls") or []
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    return text or "", calls


def told_by_completions(told, streams):
    pieces = events(told) if streams else [json.loads(told)]
    return "".join(choice["text"] for piece in pieces for choice in piece["choices"]), []


def ids_told(path, told, streams):
    """Ids of an answer, where its form has them."""
    if not path.endswith("/completions"):
        return None
    choices = [choice for piece in (events(told) if streams else [json.loads(told)]) for choice in piece["choices"]]
    return [one for choice in choices for one in choice.get("token_ids") or []]


def told_by_messages(told, streams):
    if not streams:
        blocks = json.loads(told)["content"]
    else:
        blocks = []
        for event in events(told):
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"] | {"json": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "text_delta":
                    blocks[-1]["text"] += delta["text"]
                else:
                    blocks[-1]["json"] += delta["partial_json"]
        for block in blocks:
            if block["type"] == "tool_use" and block["json"]:
                block["input"] = json.loads(block["json"])
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text, [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]


def told_by_responses(told, streams):
    if streams:
        [response] = [event["response"] for event in events(told) if event["type"] in ENDS]
    else:
        response = json.loads(told)
    items = response["output"]
    text = "".join(text_of(item["content"]) for item in items if item["type"] == "message")
    calls = [item for item in items if item["type"] == "function_call"]
    return text, [(call["name"], json.loads(call["arguments"])) for call in calls]


ENDS = ("response.completed", "response.incomplete")
FORMS = {
    "/v1/chat/completions": (asked_by_chat, told_by_chat),
    # Its prompt is what the agent has written.
    "/v1/completions": (lambda _asked: ([], []), told_by_completions),
    "/v1/messages": (asked_by_messages, told_by_messages),
    "/v1/responses": (asked_by_responses, told_by_responses),
}
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def said(text, offers):
    """Text and calls of what was sampled; a block that is no call is text."""
    calls = []

    def call(block):
        try:
            one = json.loads(block.group(1))
            calls.append((one["name"], one["arguments"]))
            assert isinstance(one["arguments"], dict) and isinstance(one["name"], str)
        except (ValueError, KeyError, TypeError, AssertionError):
            return block.group(0)
        return ""

    if not offers:
        return text, []
    return CALL.sub(call, text), calls


def function(content):
    return {"type": "function", "function": content}


def render(tokenizer, messages, tools):
    tools = [function(tool) for tool in tools] or None
    return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)


def check(export, folder):
    from transformers import AutoTokenizer

    export = Path(export)
    tokenizer = AutoTokenizer.from_pretrained(export / "policy_before")
    end = tokenizer.eos_token
    turns = collections.defaultdict(list)
    counts = collections.Counter()
    for line in (export / "episodes.jsonl").open():
        episode = json.loads(line)
        counts["episodes"] += 1
        for index, sequence in enumerate(episode["sequences"]):
            ids, mask = sequence["token_ids"], sequence["loss_mask"]
            sampled = [False] * len(ids)
            for turn in episode["turns"]:
                if turn["sequence"] != index:
                    continue
                start, stop = turn["policy"]
                assert not any(sampled[start:stop]), "an id is of two turns"
                sampled[start:stop] = [True] * (stop - start)
                prompt = tokenizer.decode(ids[:start], skip_special_tokens=False)
                # Special ids are no part of what an agent reads.
                own = [tokenizer.decode(ids[start:stop], skip_special_tokens=skips) for skips in (False, True)]
                turns[prompt].append((*own, ids[start:stop]))
                counts["turns"] += 1
            assert [bool(one) for one in mask] == sampled, "a mask is not of its turns"
            counts["sequences"] += 1
            counts["ids"] += len(ids)
            counts["trained ids"] += sum(sampled)
    failures = []
    for file in sorted(Path(folder).glob("*.jsonl")):
        exchanges = sorted(map(json.loads, file.open()), key=lambda one: one["number"])
        answers = []  # text, calls, and as sampled
        for exchange in exchanges:
            if exchange["status"] != 200:
                counts[f"refused with {exchange['status']}"] += 1
                continue
            counts["requests"] += 1
            read, heard = FORMS[exchange["path"]]
            asked = exchange["asked"]
            messages, tools = read(asked)
            told = heard(exchange["told"], asked.get("stream"))
            marks, marked = {}, []
            for at, message in enumerate(messages):
                calls = [(call["name"], call["arguments"]) for call in message.pop("tool_calls", [])]
                if calls:
                    message["tool_calls"] = [function({"name": name, "arguments": args}) for name, args in calls]
                marked.append(message)
                if message["role"] != "assistant":
                    continue
                same = [one for one in answers if one[0].strip() == message["content"].strip() and one[1] == calls]
                if not same:
                    counts["messages of the assistant that were not sampled here"] += 1
                    continue
                mark = f"\x02{at}\x03"
                marks[mark] = same[-1][2]
                marked[at] = {"role": "assistant", "content": mark}
            rendered = asked.get("prompt") or render(tokenizer, marked, tools)
            for mark, sampled in marks.items():
                assert mark in rendered, "the template leaves a message out"
                whole = mark + end if sampled.endswith(end) else mark
                rendered = rendered.replace(whole, sampled)
            if messages and rendered != render(tokenizer, messages, tools):
                counts["prompts in which ids as sampled stand where the template renders otherwise"] += 1
            candidates = turns.get(rendered, [])
            ids = ids_told(exchange["path"], exchange["told"], asked.get("stream"))
            fits = [answer for answer in candidates if same_answer(said(answer[1], tools), told, asked)]
            fits = [answer for answer in fits if ids in (None, answer[2])]
            counts["answers whose ids were told"] += ids is not None
            if not fits:
                failures.append((exchange, rendered, told, candidates))
                continue
            candidates.remove(fits[0])
            answers.append((*told, fits[0][0]))
    left = [(prompt, answer) for prompt, answers in turns.items() for answer in answers]
    for name, count in counts.items():
        print(f"{name}: {count}")
    for exchange, rendered, told, candidates in failures[:2]:
        close = max(turns, key=lambda prompt: len(os.path.commonprefix([prompt, rendered])))
        at = len(os.path.commonprefix([close, rendered]))
        print(f"NO TURN FOR {exchange['path']}, told {told!r}, among {candidates!r}")
        print(f"  sent and rendered … {rendered[max(at - 60, 0):at + 120]!r}")
        print(f"  nearest prompt    … {close[max(at - 60, 0):at + 120]!r}")
    for prompt, answer in left[:2]:
        print(f"NOBODY ASKED … {prompt[-200:]!r} and was told {answer!r}")
    if failures or left:
        sys.exit(f"{len(failures)} requests without a turn, {len(left)} turns that nobody asked for")
    assert counts["turns"] == counts["requests"] > 0


def same_answer(said, told, asked):
    """What comes behind a text that ends a message is not heard, but counts as sampled up to there."""
    (own, calls), (text, heard) = said, told
    stops = asked.get("stop") or asked.get("stop_sequences") or []
    cut = own
    for stop in [stops] if isinstance(stops, str) else stops:
        cut = cut.split(stop)[0]
    return text.strip() in (own.strip(), cut.strip()) and calls == heard


if sys.argv[1] == "record":
    record(sys.argv[2], sys.argv[3:])
else:
    check(*sys.argv[2:])
