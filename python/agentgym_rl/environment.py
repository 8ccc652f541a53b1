"""An environment is a class; its server, sessions, leases, numbers and errors are this module's."""

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

from .errors import AgentgymError, finite, shown, short
from .http import Asked, JsonServer, Refusal


class Environment:
    """One session: an object plays one task after another, each from `reset` to a step that is done.

    The calls of one object never overlap; those of different objects do, in threads. The same item has to be
    the same task, and the same actions have to bring the same answers, so that an episode can be taken up.
    """

    #: In configs and item ids: a-z, 0-9, `-` and `_`. Empty: the class's name.
    name: ClassVar[str] = ""
    #: The head of each prompt.
    instruction: ClassVar[str] = ""
    #: An action that is valid in every state, for `agentgym-env doctor`.
    probe: ClassVar[str] = ""
    #: Further fields of the spec, as docs/environments.md lists them.
    spec: ClassVar[dict[str, Any]] = {}

    def reset(self, item_id: int) -> str:
        """Begins the task of this number and returns its first observation."""
        raise NotImplementedError(f"{type(self).__name__} has no reset(self, item_id)")

    def step(self, action: str) -> tuple[str, float, bool]:
        """Takes an action: the observation, the reward, and whether the task is over."""
        raise NotImplementedError(f"{type(self).__name__} has no step(self, action)")

    def close(self) -> None:
        """Frees what the object holds; called once, when its session ends."""


def name_of(kind: type[Environment]) -> str:
    """The environment's name in configs."""
    return kind.name or kind.__name__.lower()


def spec_of(kind: type[Environment]) -> str:
    """The YAML file that `agentgym.specs` names, from the class's attributes."""
    fields: dict[str, Any] = {"name": name_of(kind), "instruction": kind.instruction, "errors": "status", "items": "any"}
    if kind.probe:
        fields["probe"] = kind.probe
    fields.update(kind.spec)
    # JSON is YAML, and needs no package.
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items()]
    return "# What a trainer has to know about the server; docs/environments.md has a table of all fields.\n" + "".join(lines)


class _Session:
    def __init__(self, played: Environment) -> None:
        self.played, self.lock = played, threading.Lock()
        self.used = time.monotonic()
        self.observation: str | None = None
        #: Why no step is taken, or None while a task is played.
        self.rests: str | None = "it was not reset"
        self.ended = False


class Sessions:
    """The sessions of one class, and the routes of AgentGym's protocol over them."""

    def __init__(self, kind: Callable[[], Environment], name: str, sessions_max: int, ttl_s: float) -> None:
        self.kind, self.name, self.sessions_max, self.ttl_s = kind, name, sessions_max, ttl_s
        self.lock = threading.Lock()
        self.open: dict[int, _Session] = {}
        # No number of a process that ran before is given again.
        self.numbers = count(time.time_ns() // 1000)
        self.routes = {
            ("GET", "/"): lambda asked: f"This is environment {name}.",
            ("GET", "/health"): lambda asked: {"status": "ok", "sessions": len(self.open)},
            ("GET", "/observation"): self.observation,
            ("POST", "/create"): self.create,
            ("POST", "/reset"): self.reset,
            ("POST", "/step"): self.step,
            ("POST", "/close"): self.close,
        }

    def create(self, asked: Asked) -> Any:
        self.sweep()
        with self.lock:
            if len(self.open) >= self.sessions_max:
                raise Refusal(503, {"error": f"{self.sessions_max} sessions are open (sessions_max); close some"})
            number = next(self.numbers)
            # The place is taken while the object is made, which may take long.
            session = self.open[number] = _Session(Environment())
        try:
            with session.lock:
                session.played = self._called("__init__", self.kind)
        except BaseException:
            with self.lock:
                self.open.pop(number, None)
            raise
        return {"id": number}

    def reset(self, asked: Asked) -> Any:
        number, item = asked.fields(id=int, data_idx=int)
        with self._use(number) as session:
            session.observation, session.rests = None, "its reset failed; reset it again"
            found = self._called("reset", lambda: session.played.reset(item))
            if not isinstance(found, str):
                raise self._wrong("reset", found, "the first observation as str")
            session.observation, session.rests = found, None
        return {"observation": found}

    def step(self, asked: Asked) -> Any:
        number, action = asked.fields(id=int, action=str)
        with self._use(number) as session:
            if session.rests is not None:
                raise Refusal(409, {"error": f"session {number} takes no step: {session.rests}"})
            # What a failed call left behind is not known, so the task is over with it.
            session.rests = "its last step failed; reset it"
            found = self._called("step", lambda: session.played.step(action))
            observation, reward, done = self._checked(found)
            session.observation = observation
            session.rests = "the task has finished; reset it" if done else None
        return {"observation": observation, "reward": reward, "done": done}

    def observation(self, asked: Asked) -> Any:
        number = asked.query.get("id", "")
        with self._use(int(number) if number.isascii() and number.isdigit() else -1) as session:
            if session.observation is None:
                raise Refusal(409, {"error": f"session {number} has no observation: {session.rests}"})
            return session.observation

    def close(self, asked: Asked) -> Any:
        (number,) = asked.fields(id=int)
        return self._end(number)

    def sweep(self) -> None:
        """Ends sessions that nobody used for their time to live."""
        with self.lock:
            late = [number for number, session in self.open.items() if self._is_late(session)]
        for number in late:
            print(f"{self.name}: session {number} was not used for {self.ttl_s:g} s and is closed", file=sys.stderr)
            self._end(number)

    def end_all(self) -> None:
        for number in list(self.open):
            self._end(number)

    def _is_late(self, session: _Session) -> bool:
        return not session.lock.locked() and time.monotonic() - session.used > self.ttl_s

    def _end(self, number: int) -> bool:
        with self.lock:
            session = self.open.pop(number, None)
        if session is None:
            return False
        session.ended = True
        # Whoever is inside a call closes the object behind it.
        if session.lock.acquire(blocking=False):
            try:
                self._let_go(session)
            finally:
                session.lock.release()
        return True

    def _let_go(self, session: _Session) -> None:
        played, session.played = session.played, Environment()
        try:
            played.close()
        except Exception as error:
            print(f"{self.name}: {type(played).__name__}.close raised {short(error)}; its session is ended", file=sys.stderr)

    def _use(self, number: int) -> "_Use":
        with self.lock:
            session = self.open.get(number)
        if session is None or self._is_late(session):
            raise Refusal(404, {"error": f"there is no session {number}; it may have been closed after {self.ttl_s:g} s without use"})
        return _Use(self, number, session)

    def _called(self, method: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except SystemExit as error:
            raise Refusal(500, {"error": f"{self._class()}.{method} called sys.exit({error.code})"}) from error
        # Whatever it is, the server goes on; Ctrl-C reaches the main thread alone.
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            raise Refusal(500, {"error": f"{self._class()}.{method} raised {short(error)}"}) from error

    def _checked(self, found: Any) -> tuple[str, float, bool]:
        expected = "a tuple (observation: str, reward: float, done: bool)"
        if not isinstance(found, tuple) or len(found) != 3:
            raise self._wrong("step", found, expected)
        observation, reward, done = found
        if not isinstance(observation, str):
            raise self._wrong("step", observation, f"{expected}; this is the observation")
        number = finite(reward)
        if number is None:
            raise self._wrong("step", reward, f"{expected}; this is the reward, which has to be a finite number, and a bool is none")
        # numpy's truth value is no bool.
        if not isinstance(done, bool) and (type(done).__module__, type(done).__name__[:4]) != ("numpy", "bool"):
            raise self._wrong("step", done, f"{expected}; this is done")
        return observation, number, bool(done)

    def _wrong(self, method: str, found: Any, expected: str) -> Refusal:
        message = f"{self._class()}.{method} returned {shown(found)}; expected: {expected}"
        print(message, file=sys.stderr)
        return Refusal(500, {"error": message})

    def _class(self) -> str:
        return getattr(self.kind, "__name__", self.name)


class _Use:
    """A session while a request holds it."""

    def __init__(self, table: Sessions, number: int, session: _Session) -> None:
        self.table, self.number, self.session = table, number, session

    def __enter__(self) -> _Session:
        self.session.lock.acquire()
        if self.session.ended:
            self.session.lock.release()
            raise Refusal(404, {"error": f"session {self.number} was closed"})
        return self.session

    def __exit__(self, *raised: object) -> None:
        self.session.used = time.monotonic()
        if self.session.ended:
            self.table._let_go(self.session)
        self.session.lock.release()


class EnvironmentServer(JsonServer):
    """The server of a class, for `with`: it runs in the background and ends all sessions at the end."""

    def __init__(
        self, kind: type[Environment], port: int = 0, host: str = "127.0.0.1", sessions_max: int = 1024, ttl_s: float = 3600
    ) -> None:
        if not (isinstance(kind, type) and issubclass(kind, Environment)):
            raise AgentgymError(f"an Environment's subclass is served, and this is {shown(kind)}")
        self.sessions = Sessions(kind, name_of(kind), sessions_max, ttl_s)
        super().__init__(self.sessions.routes, port, host)
        self._over = threading.Event()
        threading.Thread(target=self._sweep, daemon=True).start()

    def _sweep(self) -> None:
        while not self._over.wait(max(0.05, min(10.0, self.sessions.ttl_s / 4))):
            self.sessions.sweep()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._over.set()
        self.sessions.end_all()


def serve(
    kind: type[Environment], port: int = 0, host: str = "127.0.0.1", sessions_max: int = 1024, ttl_s: float = 3600
) -> None:
    """Serves a class until it is interrupted; prints `listening on URL`, and nothing else, on standard output."""
    EnvironmentServer(kind, port, host, sessions_max, ttl_s).run()
