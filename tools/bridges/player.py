"""A player who knows each game, as a chat-completions API: agentgym-submit's own client plays with it.

    player.py GAME PORT      # the game is one of the functions below
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def gymnasium(seen, given):
    """FrozenLake that is not slippery: the safe way of the map of four by four."""
    way = ["move down", "move down", "move right", "move right", "move down", "move right"]
    return f"Action: {way[len(given) % len(way)]}"


def reasoning_gym(seen, given):
    """chain_sum: what stands before the sign of equality."""
    return str(eval(re.search(r"problem: ([0-9 +-]+) =", seen[0])[1]))


def verifiers(seen, given):
    """Guess: halves what is left."""
    low, high = 0, 9
    for guess, answer in zip(given, seen[1:]):
        low, high = (int(guess) + 1, high) if answer == "Higher." else (low, int(guess) - 1)
    return str((low + high) // 2)


def mcp(seen, given):
    """The calculator: one call, then its answer."""
    if not given:
        term = re.search(r"What is ([0-9 +*-]+)\?", seen[0])[1]
        return json.dumps({"name": "calculate", "arguments": {"expression": term}})
    return json.dumps({"name": "answer", "arguments": {"text": seen[-1]}})


def openenv(seen, given):
    """Coins: leaves a multiple of four."""
    return json.dumps({"coins": int(re.search(r"Coins: (\d+)", seen[-1])[1]) % 4})


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        seen, given = ([m["content"] for m in asked if m["role"] == role] for role in ("user", "assistant"))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": play(seen, given)}}
        body = json.dumps({"id": "0", "object": "chat.completion", "model": "player", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


play = {f.__name__: f for f in (gymnasium, reasoning_gym, verifiers, mcp, openenv)}[sys.argv[1]]
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
