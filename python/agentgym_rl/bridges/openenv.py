"""`openenv:URL`: a server of OpenEnv, by openenv-core's client. The item is the seed of `reset`; an action is the
JSON of the server's own schema, or plain text where that has one text field."""

import json
import urllib.request
from typing import Any, ClassVar

from ..environment import Environment
from ..errors import AgentgymError, finite, imported, short
from . import subclass


def environment(url: str, tasks: str | None) -> type[Environment]:
    """The class for a server's base URL."""
    core = imported("openenv.core", "openenv-core", f"openenv:{url}")
    url = url.rstrip("/")
    try:
        schema = _asked(f"{url}/schema")["action"]
        name = str(_asked(f"{url}/metadata").get("name") or "openenv")
        properties = {key: of for key, of in schema["properties"].items() if key != "metadata"}
    except Exception as error:
        raise AgentgymError(f"openenv:{url} answers /schema and /metadata with no action ({short(error)}); is an OpenEnv server there?") from error
    texts = [key for key, of in properties.items() if of.get("type") == "string"]
    fields = {key: of.get("description") or of.get("type") for key, of in properties.items()}
    instruction = str(schema.get("description") or "Play the environment.")
    if len(texts) == len(properties) == 1:
        instruction += f" Answer with the {texts[0]} alone."
    else:
        instruction += f" Answer with a JSON object: {json.dumps(fields)}"
    probe = json.dumps({key: {"string": "x", "boolean": False}.get(of.get("type"), 1) for key, of in properties.items()})
    return subclass(
        name, OpenEnv, url=url, core=core, instruction=instruction, probe=probe, properties=properties,
        spec={"parser": "raw", "items": "any"},
    )  # fmt: skip


def _asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.loads(reply.read(1 << 20))


class OpenEnv(Environment):
    """A session of an OpenEnv server."""

    url: ClassVar[str]
    core: ClassVar[Any]
    properties: ClassVar[dict[str, Any]]
    client: Any = None

    def reset(self, item_id: int) -> str:
        if self.client is None:
            self.client = self.core.GenericEnvClient(base_url=self.url).sync()
            self.client.connect()
        return text_of(self.client.reset(seed=item_id).observation)

    def step(self, action: str) -> tuple[str, float, bool]:
        try:
            fields = json.loads(action)
        except ValueError:
            fields = action
        if not isinstance(fields, dict) and len(self.properties) == 1:
            (only,) = self.properties
            text = self.properties[only].get("type") == "string"
            fields = {only: action.strip() if text else fields}
        if not isinstance(fields, dict):
            return f"That is no action; expected: a JSON object with {', '.join(self.properties)}.", 0.0, False
        try:
            result = self.client.step(fields)
        except RuntimeError as error:
            # What the server refuses is the policy's fault, what breaks it is not.
            if "VALIDATION_ERROR" in str(error):
                return f"That is no action; expected: a JSON object like {self.probe}.", 0.0, False
            raise
        reward = 0.0 if result.reward is None else finite(result.reward)
        if reward is None:
            raise ValueError(f"{self.url} answered the reward {result.reward!r}; a finite number is expected")
        return text_of(result.observation), reward, bool(result.done)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()


def text_of(observation: Any) -> str:
    """An observation's one text, or all of it as JSON."""
    found = {key: value for key, value in observation.items() if value not in (None, {}, [])}
    if len(found) == 1 and isinstance(next(iter(found.values())), str):
        return str(next(iter(found.values())))
    return json.dumps(found, ensure_ascii=False)
