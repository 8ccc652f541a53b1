"""Environments, rewards, frames and logs for runs of AgentGym-RL's durable jobs.

The core needs the standard library alone: `Environment` and `serve`, `reward` and `serve_rewards`, and
`Run`, which asks the installed programs. Bridges and loggers import their packages when they are used.
"""

from .environment import Environment, serve
from .errors import AgentgymError
from .rewards import reward, serve_rewards
from .run import Run

__all__ = ["AgentgymError", "Environment", "Run", "reward", "serve", "serve_rewards"]
