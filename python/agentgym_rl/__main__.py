"""`python -m agentgym_rl serve|reward|bridge|log …`: the package on a command line."""

import argparse
import importlib
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from .environment import Environment, serve, spec_of
from .errors import AgentgymError, short
from .rewards import Reward, serve_rewards


def module_of(name: str) -> Any:
    """A module of the current folder or of an installed package; what it prints goes to standard error."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise AgentgymError(f"{name!r} names no module; expected: module:Class, such as coins:Coins for ./coins.py")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        with redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise AgentgymError(f"the module {name} is not imported: {error}; it is looked for in this folder and on PYTHONPATH") from error
    except Exception as error:
        raise AgentgymError(f"the module {name} is not imported: it raised {short(error)}") from error


def member(module: Any, name: str) -> Any:
    if not hasattr(module, name):
        raise AgentgymError(f"the module {module.__name__} has no {name}")
    return getattr(module, name)


def write_spec(kind: type[Environment], path: str | None) -> None:
    if path is not None:
        try:
            Path(path).write_text(spec_of(kind), encoding="utf-8")
        except OSError as error:
            raise AgentgymError(f"--spec {path} is not written: {error}") from error


def served(options: argparse.Namespace, kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Environment)):
        raise AgentgymError(f"{options.what} is no subclass of agentgym_rl.Environment")
    write_spec(kind, options.spec)
    serve(kind, options.port, options.host, options.sessions_max, options.ttl_s)


def command_serve(options: argparse.Namespace) -> None:
    name, colon, kind = options.what.partition(":")
    if not colon:
        raise AgentgymError(f"{options.what!r} names no class; expected: module:Class, such as coins:Coins for ./coins.py")
    served(options, member(module_of(name), kind))


def command_reward(options: argparse.Namespace) -> None:
    name, _, function = options.what.partition(":")
    module = module_of(name)
    found = [member(module, function)] if function else [f for f in vars(module).values() if isinstance(f, Reward)]
    if not found or not all(isinstance(f, Reward) for f in found):
        raise AgentgymError(f"{options.what} is no function with @agentgym_rl.reward above it, and holds none")
    serve_rewards(*found, port=options.port, host=options.host)


def command_bridge(options: argparse.Namespace) -> None:
    from .bridges import environment

    served(options, environment(options.what, options.tasks))


def command_log(options: argparse.Namespace) -> None:
    from .log import log

    log(options.run, options.store, options.to, options.project, options.follow, options.every_s)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentgym_rl", description="Environments, rewards and logs of AgentGym-RL's runs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, does: Any, text: str, what: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(does=does)
        made.add_argument("what", metavar=what)
        return made

    serving = [
        command("serve", command_serve, "Serves an Environment's subclass.", "module:Class"),
        command("bridge", command_bridge, "Serves an environment of another package.", "KIND:NAME[?KEY=VALUE&…]"),
    ]
    serving[1].add_argument("--tasks", metavar="FILE", help="of mcp: JSON lines with prompt and answer")
    for made in serving:
        made.add_argument("--sessions-max", type=int, default=1024, help="sessions that may be open at once (1024)")
        made.add_argument("--ttl-s", type=float, default=3600, help="seconds after which an unused session is closed (3600)")
        made.add_argument("--spec", metavar="FILE", help="writes the spec that agentgym.specs names")
    judging = command("reward", command_reward, "Serves functions under @reward.", "module[:function]")
    for made in [*serving, judging]:
        made.add_argument("--port", type=int, default=0, help="0: a free one")
        made.add_argument("--host", default="127.0.0.1")
    logging = commands.add_parser("log", help="Sends a run to a tracker.", description="Sends a run to a tracker.")
    logging.set_defaults(does=command_log)
    logging.add_argument("run", metavar="RUN")
    logging.add_argument("--store", default="agentgym-data", help="a folder or s3://bucket/prefix (agentgym-data)")
    logging.add_argument("--to", required=True, choices=["wandb", "mlflow", "trackio"])
    logging.add_argument("--project", default="agentgym-rl")
    logging.add_argument("--follow", action="store_true", help="goes on until the run has ended")
    logging.add_argument("--every-s", type=float, default=10, help="with --follow: seconds between two looks (10)")
    return parser


def main() -> int:
    options = arguments().parse_args()
    try:
        options.does(options)
    except AgentgymError as error:
        print(f"agentgym_rl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
