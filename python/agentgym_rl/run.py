"""A run as tables, read by the installed programs from its store alone."""

import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .errors import AgentgymError, imported

Row = dict[str, Any]
PLAYED = ("rollout", "evaluate_init", "evaluate")
# The streams of `inspect`, by the name of one token's column.
STREAMS = {
    "token_id": "token_ids", "loss_mask": "loss_mask", "sampled_log_prob": "sampled_log_probs",
    "old_log_prob": "old_log_probs", "ref_log_prob": "ref_log_probs", "entropy": "entropies", "advantage": "advantages",
    "value": "values", "return": "returns",
}  # fmt: skip


def program(name: str) -> str:
    """Where an installed program is: in AGENTGYM_PROGRAMS, if that is set, else on PATH."""
    folder = os.environ.get("AGENTGYM_PROGRAMS")
    found = shutil.which(name, path=folder or None)
    if found is None:
        where = f"in AGENTGYM_PROGRAMS={folder}" if folder else "on PATH"
        raise AgentgymError(f"the program {name} is not {where}; build it, and put its folder on PATH or into AGENTGYM_PROGRAMS")
    return found


class Run:
    """One run of a store: `Run("agentgym-data", "smoke").episodes().to_pandas()`."""

    def __init__(self, store: str | os.PathLike[str], id: str) -> None:
        self.store, self.id = os.fspath(store), id

    def submit(self, *words: str) -> Any:
        """What `agentgym-submit WORDS --json` prints; its error is raised with its words."""
        line = [program("agentgym-submit"), "--store", self.store, "--quiet", "--json", *words]
        ended = subprocess.run(line, capture_output=True, text=True, encoding="utf-8", errors="replace")
        if ended.returncode != 0:
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            try:
                last = json.loads(last)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise AgentgymError(f"run {self.id} in {self.store}: agentgym-submit {words[0]} ended with {ended.returncode}: {last}")
        try:
            found = json.loads(ended.stdout)
        except ValueError as error:
            raise AgentgymError(f"agentgym-submit {words[0]} --json printed no JSON ({error}); is it another version?") from error
        if not isinstance(found, dict) or found.get("version") != 1:
            raise AgentgymError(f"agentgym-submit {words[0]} --json printed another version than 1; install the programs of this package")
        return found

    def iterations(self) -> list[int]:
        """The iterations with a committed part."""
        return [row["iteration"] for row in self.submit("inspect", self.id)["iterations"] if row["parts_committed"]]

    def parts(self, iteration: int) -> list[Row]:
        """The committed parts of an iteration: its place, metrics, stats and times."""
        found = []
        for part in self.submit("inspect", self.id, str(iteration))["parts"]:
            if part["committed"]:
                _, stage, number = part["part"].split("/")
                measured = part["metrics"] or {}
                work = part["manifest"]["work"]
                found.append({
                    "iteration": iteration, "stage": stage, "part": int(number), "set": measured.get("set"), "metrics": measured,
                    "stats": part["stats"] or {}, "started_unix_s": work["started_unix_s"], "wall_s": part["wall_s"],
                })  # fmt: skip
        return found

    def config(self) -> Row:
        """The run's config, as the viewer's API gives it: every key, defaults included."""
        line = [program("agentgym-submit"), "--store", self.store, "--json", "view", self.id, "--no-open", "--port", "0"]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as viewer:
            try:
                assert viewer.stdout is not None
                printed = viewer.stdout.readline()
                if not printed:
                    self.submit("inspect", self.id)
                    raise AgentgymError(f"run {self.id} in {self.store}: agentgym-submit view printed no URL")
                url = urlsplit(json.loads(printed)["url"])
                asked = urllib.request.Request(f"http://{url.netloc}/api/v1/runs/{self.id}")
                asked.add_header("Authorization", f"Bearer {parse_qs(url.query)['token'][0]}")
                # No proxy stands between a process and its child.
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60) as reply:
                    config: Row = json.loads(reply.read(16 << 20))["config"]
                    return config
            finally:
                viewer.terminate()

    def episodes(self) -> Any:
        """A row per episode of rollouts and evaluations."""
        return table(self.submit("episodes", self.id, "--limit", str(2**31))["rows"])

    def turns(self, iteration: int | None = None, stage: str | None = None) -> Any:
        """A row per turn: what the policy wrote, what was taken of it, and what the environment answered."""
        return table([
            {**place, "turn": turn, **{key: value for key, value in taken.items() if key not in ("context", "policy")}}
            for place, record in self._records(iteration, (stage,) if stage else PLAYED)
            for turn, taken in enumerate(record["turns"])
        ])  # fmt: skip

    def tokens(self, iteration: int | None = None, stage: str = "rollout") -> Any:
        """A row per token of the episodes; of rollouts with what the update read of it, where that is committed."""
        rows = []
        for place, streams in self._streams(iteration, stage):
            length = len(streams["token_ids"])
            lists = {column: streams.get(name) or [None] * length for column, name in STREAMS.items()}
            for at, values in enumerate(zip(*lists.values(), strict=True)):
                rows.append({**place, "position": at, **dict(zip(lists, values))})
        return table(rows)

    def metrics(self) -> Any:
        """A row per number: iteration, stage, part, set, name and value; names as docs/metrics.md has them."""
        rows = []
        for part in self._parts():
            place = {key: part[key] for key in ("iteration", "stage", "part", "set")}
            times = {"wall_s": part["wall_s"], **part["stats"]}
            for kind, values in (("metrics", part["metrics"]), ("stats", times)):
                rows += [{**place, "kind": kind, "name": name, "value": value} for name, value in numbers(values)]
        return table(rows)

    def evaluations(self) -> Any:
        """A row per evaluation of a policy on a set."""
        keys = ("set", "env", "tasks", "success", "stderr", "success_greedy", "reward", "rounds_mean", "horizon", "episodes", "faults")
        return table([
            {"iteration": part["iteration"], "stage": part["stage"], **{key: part["metrics"].get(key) for key in keys}}
            for part in self._parts() if part["stage"] in PLAYED[1:]
        ])  # fmt: skip

    def load_policy(self, iteration: int | None = None, to: str | os.PathLike[str] | None = None) -> Any:
        """The policy after an iteration (the last one) as transformers' AutoModelForCausalLM; `to` keeps the folder."""
        transformers = imported("transformers", "transformers", "load_policy")
        if iteration is None:
            committed = [n for n in self.iterations() if any(p["stage"] in ("init", "sft", "update", "dpo") for p in self.parts(n))]
            if not committed:
                raise AgentgymError(f"run {self.id} in {self.store} has committed no policy yet")
            iteration = committed[-1]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(to or Path(scratch, "export"))
            self.submit("export", self.id, "--iteration", str(iteration), "--to", str(folder))
            policy = folder / "policy_after"
            if not policy.is_dir():
                raise AgentgymError(f"run {self.id} keeps no policy of iteration {iteration}; trainer.save_freq says which are kept")
            return transformers.AutoModelForCausalLM.from_pretrained(policy)

    def _parts(self) -> Iterator[Row]:
        for iteration in self.iterations():
            yield from self.parts(iteration)

    def _records(self, iteration: int | None, stages: tuple[str, ...]) -> Iterator[tuple[Row, Row]]:
        for number in self.iterations() if iteration is None else [iteration]:
            committed = {part["stage"] for part in self.parts(number)}
            for stage in stages:
                parts = self.submit("inspect", self.id, str(number), stage)["parts"] if stage in committed else []
                for part in parts:
                    place = {"iteration": number, "stage": stage, "part": int(part["part"].split("/")[2])}
                    for record in part["records"]:
                        yield {**place, **{key: record[key] for key in ("env", "item_id", "group", "sample")}}, record

    def _streams(self, iteration: int | None, stage: str) -> Iterator[tuple[Row, Row]]:
        """Sequences with all that is known of them: later stages add to those of a rollout."""
        later: dict[tuple[Any, ...], Row] = {}
        known = ("iteration", "env", "item_id", "group", "sample", "sequence")
        for of in ("log_probs", "advantage") if stage == "rollout" else ():
            for place, record in self._records(iteration, (of,)):
                for sequence, streams in enumerate(record["sequences"]):
                    key = tuple({**place, "sequence": sequence}[name] for name in known)
                    later.setdefault(key, {}).update({name: found for name, found in streams.items() if found is not None})
        for place, record in self._records(iteration, (stage,)):
            for sequence, streams in enumerate(record["sequences"]):
                place = {**place, "sequence": sequence}
                yield place, {**streams, **later.get(tuple(place[name] for name in known), {})}


def numbers(values: Any, head: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a metrics object, with their paths as names."""
    if isinstance(values, dict):
        for name, inner in values.items():
            yield from numbers(inner, f"{head}/{name}" if head else name)
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        yield head, float(values)


def table(rows: list[Row]) -> Any:
    """Rows as a pyarrow table, with every column that one of them has."""
    pyarrow = imported("pyarrow", "pyarrow", "a table of a run")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return pyarrow.table({column: [row.get(column) for row in rows] for column in columns})
