"""The server of a class: the protocol, sessions and leases, and every way in which a class misbehaves."""

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import games
from agentgym_rl import AgentgymError
from agentgym_rl.environment import EnvironmentServer, spec_of
from agentgym_rl.http import BODY_MAX_BYTES

HERE = Path(__file__).parent


def call(url: str, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    """Status and JSON of a request."""
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, method=method), timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Served(unittest.TestCase):
    def setUp(self) -> None:
        self.errors = io.StringIO()
        self.enterContext(redirect_stderr(self.errors))
        games.opened.clear()
        games.closed.clear()
        games.release.clear()

    def served(self, kind: type = games.Coins, **options: Any) -> str:
        return self.enterContext(EnvironmentServer(kind, **options)).url

    def session(self, url: str, item: int = 0) -> int:
        number: int = call(url, "/create")[1]["id"]
        self.assertEqual(call(url, "/reset", {"id": number, "data_idx": item})[0], 200)
        return number


class Protocol(Served):
    def test_a_game_from_its_beginning_to_its_end(self) -> None:
        url = self.served()
        self.assertEqual(call(url, "/", method="GET"), (200, "This is environment coins."))
        number = call(url, "/create", {})[1]["id"]
        self.assertEqual(call(url, "/reset", {"id": number, "data_idx": 3}), (200, {"observation": "Coins: 9."}))
        self.assertEqual(call(url, f"/observation?id={number}", method="GET"), (200, "Coins: 9."))
        self.assertEqual(call(url, "/step", {"id": number, "action": "take 9"})[1]["observation"], "That is no move. Coins: 9.")
        over, earned = False, 0.0
        while not over:
            coins = int(call(url, f"/observation?id={number}", method="GET")[1].split("Coins: ")[1][:-1])
            _, answer = call(url, "/step", {"id": number, "action": f"take {coins % 4 or 1}"})
            earned, over = answer["reward"], answer["done"]
        self.assertEqual(earned, 1.0)
        status, answer = call(url, "/step", {"id": number, "action": "take 1"})
        self.assertEqual((status, "has finished" in answer["error"]), (409, True))
        self.assertEqual(call(url, "/health", method="GET")[1], {"status": "ok", "sessions": 1})
        self.assertEqual([call(url, "/close", {"id": number}) for _ in range(2)], [(200, True), (200, False)])
        self.assertEqual(len(games.closed), 1)

    def test_requests_that_are_wrong_say_what_is(self) -> None:
        url = self.served()
        number = call(url, "/create")[1]["id"]
        status, answer = call(url, "/step", {})
        self.assertEqual((status, [wrong["loc"][1] for wrong in answer["detail"]]), (422, ["id", "action"]))
        self.assertEqual(call(url, "/reset", {"id": number, "data_idx": True})[0], 422)
        self.assertEqual(call(url, "/reset", [1])[0], 422)
        self.assertEqual(call(url, "/step", {"id": number, "action": "x"})[0], 409)
        self.assertEqual(call(url, f"/observation?id={number}", method="GET")[0], 409)
        self.assertEqual(call(url, "/step", {"id": 987654321, "action": "x"})[0], 404)
        self.assertEqual(call(url, "/nowhere")[0], 404)
        self.assertEqual(call(url, "/step", method="GET")[0], 405)
        self.assertEqual(call(url, "/observation?id=x", method="GET")[0], 404)

    def test_bodies_have_a_limit_and_the_next_request_is_read_where_it_begins(self) -> None:
        address = urlsplit(self.served()).netloc
        for headers, status in [
            ({"Content-Length": str(BODY_MAX_BYTES + 1)}, 413), ({"Content-Length": "-1"}, 400), ({"Content-Length": "x"}, 400),
            ({"Transfer-Encoding": "chunked"}, 411),
        ]:  # fmt: skip
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.putrequest("POST", "/create")
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            reply = connection.getresponse()
            self.assertEqual((reply.status, reply.getheader("Connection")), (status, "close"), headers)
            connection.close()
        connection = http.client.HTTPConnection(address, timeout=10)
        for body, status in [(b"{", 422), (b"\xff", 422), (b"[" * 100_000, 422), (b'{"id": 1, "data_idx": 1}', 404)]:
            connection.request("POST", "/reset", body)
            reply = connection.getresponse()
            self.assertEqual((reply.status, bool(reply.read())), (status, True))
        connection.close()

    def test_the_spec_is_written_from_the_class(self) -> None:
        lines = spec_of(games.Coins).splitlines()
        self.assertIn('name: "coins"', lines)
        self.assertIn('success: {"reward_at_least": 1}', lines)
        self.assertIn('probe: "take 1"', lines)


class Sessions(Served):
    def test_numbers_are_never_given_again(self) -> None:
        first, second = self.served(), self.served()
        numbers = [call(url, "/create")[1]["id"] for url in (first, second, first, second)]
        self.assertEqual(len(set(numbers)), 4)
        self.assertGreater(numbers[1], numbers[0])

    def test_there_is_a_limit_and_a_closed_session_makes_room(self) -> None:
        url = self.served(sessions_max=2)
        numbers = [call(url, "/create")[1]["id"] for _ in range(2)]
        status, answer = call(url, "/create")
        self.assertEqual((status, "sessions_max" in answer["error"]), (503, True))
        call(url, "/close", {"id": numbers[0]})
        self.assertEqual(call(url, "/create")[0], 200)

    def test_a_session_that_nobody_uses_is_closed(self) -> None:
        url = self.served(ttl_s=0.3)
        number = self.session(url)
        for _ in range(4):
            time.sleep(0.15)
            self.assertEqual(call(url, "/step", {"id": number, "action": "x"})[0], 200)
        time.sleep(0.8)
        self.assertEqual((len(games.closed), call(url, "/health", method="GET")[1]["sessions"]), (1, 0))
        self.assertEqual(call(url, "/step", {"id": number, "action": "x"})[0], 404)

    def test_calls_of_one_session_never_overlap(self) -> None:
        url = self.served()
        number = self.session(url)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: call(url, "/step", {"id": number, "action": "x"})[0], range(40)))
        self.assertEqual((set(found), games.opened[0].most), ({200}, 1))

    def test_a_session_that_blocks_holds_up_no_other_and_can_be_closed(self) -> None:
        url = self.served(games.Bad)
        blocked, other = self.session(url), self.session(url)
        with ThreadPoolExecutor(2) as pool:
            step = pool.submit(call, url, "/step", {"id": blocked, "action": "block"})
            time.sleep(0.2)
            begun = time.monotonic()
            self.assertEqual(call(url, "/step", {"id": other, "action": "x"})[0], 200)
            self.assertEqual(call(url, "/close", {"id": blocked}), (200, True))
            self.assertLess(time.monotonic() - begun, 5)
            self.assertNotIn("stuck", self.errors.getvalue())
            games.release.set()
            self.assertEqual(step.result()[0], 200)
        # The object is closed behind the call that was inside.
        self.assertIn("Bad.close raised OSError: stuck", self.errors.getvalue())

    def test_all_sessions_are_closed_with_the_server(self) -> None:
        with EnvironmentServer(games.Coins) as server:
            self.session(server.url)
        self.assertEqual(len(games.closed), 1)


class Misbehaviour(Served):
    def test_what_raises_is_named_and_its_session_plays_on_after_a_reset(self) -> None:
        url = self.served(games.Bad)
        number = self.session(url)
        for action, expected in [("raise", "Bad.step raised KeyError: 'lost'"), ("exit", "Bad.step called sys.exit(3)")]:
            self.assertEqual(call(url, "/step", {"id": number, "action": action}), (500, {"error": expected}))
            status, answer = call(url, "/step", {"id": number, "action": "x"})
            self.assertEqual((status, "failed" in answer["error"]), (409, True))
            self.assertEqual(call(url, "/reset", {"id": number, "data_idx": 0})[0], 200)
            self.assertEqual(call(url, "/step", {"id": number, "action": "x"})[1]["reward"], 0.5)
        status, answer = call(url, "/reset", {"id": number, "data_idx": 1})
        self.assertEqual((status, answer["error"]), (500, "Bad.reset raised ValueError: no such task"))
        self.assertEqual(call(url, "/close", {"id": number}), (200, True))
        self.assertIn("Traceback", self.errors.getvalue())

    def test_wrong_returns_are_refused_and_named(self) -> None:
        url = self.served(games.Bad)
        number = self.session(url)
        for action in games.Bad.RETURNS:
            status, answer = call(url, "/step", {"id": number, "action": action})
            self.assertEqual(status, 500, action)
            self.assertRegex(answer["error"], r"^Bad\.step returned \w+ .*; expected: a tuple \(observation: str", action)
            call(url, "/reset", {"id": number, "data_idx": 0})
        status, answer = call(url, "/reset", {"id": number, "data_idx": 2})
        self.assertEqual((status, answer["error"]), (500, "Bad.reset returned int 7; expected: the first observation as str"))

    def test_a_class_that_cannot_be_made_takes_no_place(self) -> None:
        url = self.served(games.Unmade, sessions_max=1)
        for _ in range(2):
            self.assertEqual(call(url, "/create"), (500, {"error": "Unmade.__init__ raised RuntimeError: no licence"}))
        url = self.served(games.Unwritten)
        number = call(url, "/create")[1]["id"]
        self.assertIn("Unwritten has no reset", call(url, "/reset", {"id": number, "data_idx": 0})[1]["error"])

    def test_what_is_no_environment_is_refused(self) -> None:
        for kind in (int, games.Coins()):
            with self.assertRaisesRegex(AgentgymError, "an Environment's subclass is served, and this is"):
                EnvironmentServer(kind)  # type: ignore[arg-type]

    def test_a_taken_port_is_one_clear_error(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            with self.assertRaisesRegex(AgentgymError, "cannot listen on 127.0.0.1 port .*--port"):
                EnvironmentServer(games.Coins, port=taken.getsockname()[1])


class CommandLine(unittest.TestCase):
    def run_it(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "agentgym_rl", *words], cwd=HERE, capture_output=True, text=True, timeout=30)

    def test_what_a_class_prints_is_not_on_standard_output(self) -> None:
        spec = Path(self.enterContext(__import__("tempfile").TemporaryDirectory()), "bad.yaml")
        words = [sys.executable, "-m", "agentgym_rl", "serve", "games:Bad", "--spec", str(spec)]
        with subprocess.Popen(words, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().removeprefix("listening on ").strip()
            self.assertTrue(url.startswith("http://127.0.0.1:"), url)
            number = call(url, "/create")[1]["id"]
            call(url, "/reset", {"id": number, "data_idx": 0})
            self.assertEqual(call(url, "/step", {"id": number, "action": "print"})[0], 200)
            server.send_signal(signal.SIGTERM)
            out, errors = server.communicate(timeout=10)
        self.assertEqual((out, "a word on standard output" in errors, server.returncode), ("", True, 0))
        self.assertIn('name: "bad"', spec.read_text())

    def test_what_cannot_be_served_is_one_line(self) -> None:
        for words, expected in [
            (["serve", "games"], "expected: module:Class"), (["serve", "nowhere:X"], "the module nowhere is not imported"),
            (["serve", "games:Nothing"], "the module games has no Nothing"), (["serve", "games:random"], "no subclass"),
            (["serve", "games:Coins", "--port", "99999"], "cannot listen"), (["reward", "games:Coins"], "no function with @agentgym_rl.reward"),
            (["serve", "../games:Coins"], "names no module"), (["serve", "games:Coins", "--spec", "no/such/folder"], "is not written"),
            (["bridge", "nothing:x"], "expected: KIND:NAME"), (["bridge", "gymnasium:FrozenLake-v1"], "pip install gymnasium"),
            (["bridge", "openenv:http://127.0.0.1:1"], "pip install openenv-core"), (["bridge", "verifiers:x"], "pip install verifiers"),
            (["bridge", "mcp:x"], "pip install mcp"), (["bridge", "reasoning_gym:x"], "pip install reasoning_gym"),
            (["bridge", "gymnasium:x", "--tasks", "f"], "--tasks is for mcp alone"),
        ]:  # fmt: skip
            ended = self.run_it(*words)
            self.assertEqual((ended.returncode, ended.stdout, len(ended.stderr.splitlines())), (1, "", 1), (words, ended.stderr))
            self.assertIn(expected, ended.stderr)


if __name__ == "__main__":
    unittest.main()
