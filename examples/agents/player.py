"""A scripted player behind OpenAI's chat API: it solves tasks of the toolbox with one number.

    python player.py PORT

An evaluation with `engine: chat` asks it in the policy's place (docs/harness.md).
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def reply(messages):
    """The next call: get, put and finish, one after the other."""
    goal = messages[0]["content"].rsplit("Goal: ", 1)[1]
    to, source = (json.loads(part) for part in re.findall(r"{[^}]*}", goal)[:2])
    answers = [message["content"] for message in messages if message["role"] == "tool"]
    match len(answers):
        case 0:
            return "get", source
        case 1:
            return "put", to | json.loads(answers[0])
        case _:
            return "finish", {}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name, arguments = reply(asked["messages"])
        call = {"id": "call", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        content = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
