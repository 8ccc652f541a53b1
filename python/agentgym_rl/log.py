"""Sends a run to a tracker: its config once, its figures by iteration, a few episodes as a table.

The tracker itself knows what it has, so a sender that was killed goes on where it ended and sends nothing twice.
An iteration is sent when all of its parts are committed; the step is the iteration.
"""

import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Protocol

from .errors import AgentgymError, imported, short
from .run import Row, Run, numbers

EPISODES = 4
TEXT_MAX = 2000
COLUMNS = ["iteration", "task", "sample", "outcome", "reward", "conversation"]
# What verl calls the same figures (docs/cli.md, Metrics files).
VERL = {
    "advantage/reward": "critic/score/mean", "advantage/response_length_mean": "response_length/mean",
    "advantage/prompt_length_mean": "prompt_length/mean", "advantage/entropy": "actor/entropy",
    "advantage/kl_in_reward": "actor/reward_kl_penalty", "advantage/kl_coef": "actor/reward_kl_penalty_coeff",
    "advantage/explained_variance": "critic/vf_explained_var", "filter/reward": "critic/score/mean",
    "filter/response_length_mean": "response_length/mean", "filter/prompt_length_mean": "prompt_length/mean",
    "update/pg_loss": "actor/pg_loss", "update/kl_loss": "actor/kl_loss", "update/clip_fraction": "actor/pg_clipfrac",
    "update/ppo_kl": "actor/ppo_kl", "update/grad_norm": "actor/grad_norm", "update/lr": "actor/lr",
    "critic_update/vf_loss": "critic/vf_loss", "critic_update/vf_clip_fraction": "critic/vf_clipfrac",
    "critic_update/value_mean": "critic/values/mean", "critic_update/grad_norm": "critic/grad_norm",
    "critic_update/lr": "critic/lr", "sft/loss": "train/loss",
}  # fmt: skip
TIMES = {
    "timing_s/gen": ("rollout",), "timing_s/old_log_prob": ("log_probs",), "timing_s/update_critic": ("critic_update",),
    "timing_s/update_actor": ("gradient", "update", "sft"), "timing_s/step": ("rollout", "update", "sft"),
}  # fmt: skip


def figures(parts: list[Row]) -> dict[str, float]:
    """The numbers of an iteration by name: `stage/name`, `evaluate/SET/name` and `stats/stage/name`, each the mean over
    the stage's parts, and beside them verl's names."""
    found: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        head = f"{part['stage']}/{part['set']}" if part["set"] else part["stage"]
        stats = {**part["stats"], "wall_s": part["wall_s"]}
        for start, values in ((head, part["metrics"]), (f"stats/{part['stage']}", stats)):
            for name, value in numbers(values, start):
                if math.isfinite(value):
                    found[name].append(value)
    named = {name: statistics.fmean(values) for name, values in found.items()}
    # A warm start is no iteration of training.
    if parts and parts[0]["iteration"] > 0:
        named.update({verl: named[own] for own, verl in VERL.items() if own in named})
        tokens = found.get("stats/rollout/sampled_tokens")
        if tokens:
            named["perf/total_num_tokens"] = sum(tokens)
        for name, stages in TIMES.items():
            spans = [(part["started_unix_s"], part["wall_s"]) for part in parts if part["stage"] in stages]
            if spans:
                named[name] = max(0.0, max(begun + wall for begun, wall in spans) - min(begun for begun, _ in spans))
    for part in parts:
        if part["stage"] == "evaluate" and f"evaluate/{part['set']}/reward" in named:
            named[f"val/test_score/{part['set']}"] = named[f"evaluate/{part['set']}/reward"]
    return named


def episodes(run: Run, iteration: int, parts: list[Row]) -> list[list[Any]]:
    """A few episodes of an iteration, as rows of COLUMNS."""
    if not any(part["stage"] == "rollout" for part in parts):
        return []
    rows = []
    for record in run.submit("inspect", run.id, str(iteration), "rollout", "0")["records"][:EPISODES]:
        texts = [record["prompt"], *(f"> {turn['text']}\n{turn['observation']}" for turn in record["turns"])]
        text = "\n".join(texts)
        text = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
        rows.append([iteration, record["task"], record["sample"], record["outcome"], record["reward"], text])
    return rows


class Tracker(Protocol):
    """Where a run goes. `last` is the last iteration that is there, -1 for none."""

    last: int

    def send(self, iteration: int, named: dict[str, float], rows: list[list[Any]]) -> None: ...
    def close(self) -> None: ...


class Wandb:
    """Weights & Biases; WANDB_MODE=offline writes a folder for `wandb sync`."""

    def __init__(self, run: Run, project: str, config: Row, group: str | None) -> None:
        self.wandb = imported("wandb", "wandb", "--to wandb")
        # The machine that sends is not the one that trains.
        settings = self.wandb.Settings(console="off", x_disable_stats=True, disable_git=True, disable_code=True)
        self.run = self.wandb.init(project=project, id=run.id, name=run.id, group=group, config=config, resume="allow", settings=settings)
        # W&B counts from the step after the last one that it has; without a network only the folder knows.
        self.last = max(_offline_steps(self.run), default=-1) if self.run.offline else (self.run.step - 1 if self.run.resumed else -1)

    def send(self, iteration: int, named: dict[str, float], rows: list[list[Any]]) -> None:
        values: dict[str, Any] = dict(named)
        if rows:
            values["episodes"] = self.wandb.Table(columns=COLUMNS, data=rows)
        self.run.log(values, step=iteration)

    def close(self) -> None:
        self.run.finish()


def _offline_steps(run: Any) -> Iterator[int]:
    """The steps in earlier offline folders of the run."""
    internal = imported("wandb.proto.wandb_internal_pb2", "wandb", "--to wandb")
    for path in Path(run.settings.wandb_dir).glob(f"offline-run-*-{run.id}/run-{run.id}.wandb"):
        for payload in wandb_records(path.read_bytes()):
            record = internal.Record()
            record.ParseFromString(payload)
            if record.HasField("history"):
                yield record.history.step.num


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format in blocks of 32 KiB. A record
    that was cut off at the end is left out."""
    block, at, joined = 1 << 15, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece = data[at + 7 : at + 7 + length]
        if kind not in (1, 2, 3, 4) or len(piece) < length:
            return
        # 1: all of a record, 2: first, 3: middle, 4: last.
        joined = piece if kind in (1, 2) else joined + piece
        if kind in (1, 4):
            yield joined
        at += 7 + length


class Mlflow:
    """MLflow, at MLFLOW_TRACKING_URI; the project is its experiment."""

    def __init__(self, run: Run, project: str, config: Row, group: str | None) -> None:
        mlflow = imported("mlflow", "mlflow", "--to mlflow")
        self.entities = imported("mlflow.entities", "mlflow", "--to mlflow")
        self.client = mlflow.MlflowClient()
        experiment = self.client.get_experiment_by_name(project)
        where = experiment.experiment_id if experiment else self.client.create_experiment(project)
        known = self.client.search_runs([where], f"tags.`agentgym.run` = '{run.id}'")
        if known:
            self.id, tags = known[0].info.run_id, known[0].data.tags
        else:
            tags = {"agentgym.run": run.id, **({"agentgym.group": group} if group else {})}
            self.id = self.client.create_run(where, run_name=run.id, tags=tags).info.run_id
        self.last = int(tags.get("agentgym.iteration", -1))
        if "agentgym.config" not in tags:
            params = [self.entities.Param(key, str(value)[:500]) for key, value in leaves(config)]
            for start in range(0, len(params), 100):
                self.client.log_batch(self.id, params=params[start : start + 100])
            self.client.log_dict(self.id, config, "config.json")
            self.client.set_tag(self.id, "agentgym.config", "config.json")
        # Of the next iteration a killed sender may have sent a part.
        self.doubtful = self.last + 1

    def send(self, iteration: int, named: dict[str, float], rows: list[list[Any]]) -> None:
        # MLflow allows letters, digits and some signs.
        plain = {"".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name): value for name, value in named.items()}
        if iteration <= self.doubtful:
            there = self.client.get_run(self.id).data.metrics
            plain = {name: value for name, value in plain.items() if not (name in there and self._has(name, iteration))}
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, iteration) for name, value in plain.items()]
        for start in range(0, len(metrics), 1000):
            self.client.log_batch(self.id, metrics=metrics[start : start + 1000])
        if rows:
            # A file for each iteration, in the form of MLflow's tables; one that is written again is the same.
            self.client.log_dict(self.id, {"columns": COLUMNS, "data": rows}, f"episodes/{iteration:06}.json")
        self.client.set_tag(self.id, "agentgym.iteration", str(iteration))

    def _has(self, name: str, iteration: int) -> bool:
        return any(metric.step == iteration for metric in self.client.get_metric_history(self.id, name))

    def close(self) -> None:
        self.client.set_terminated(self.id)


class Trackio:
    """Trackio's local dashboard; TRACKIO_DIR says where it keeps its data."""

    def __init__(self, run: Run, project: str, config: Row, group: str | None) -> None:
        self.trackio = imported("trackio", "trackio", "--to trackio")
        known = self.trackio.sqlite_storage.SQLiteStorage.get_logs(project, run.id)
        self.last = max((row["step"] for row in known), default=-1)
        options = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self.run = self.trackio.init(project=project, name=run.id, group=group, config=config, resume="allow", **options)

    def send(self, iteration: int, named: dict[str, float], rows: list[list[Any]]) -> None:
        values: dict[str, Any] = dict(named)
        if rows:
            values["episodes"] = self.trackio.Table(columns=COLUMNS, data=rows)
        self.run.log(values, step=iteration)

    def close(self) -> None:
        # The module's own, which its hook at exit asks too.
        self.trackio.finish()


def leaves(config: Any, head: str = "") -> Iterator[tuple[str, Any]]:
    """A config's keys as paths; lists stay as they are."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from leaves(value, f"{head}.{key}" if head else key)
    else:
        yield head, config


TRACKERS: dict[str, Callable[[Run, str, Row, str | None], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}


def log(id: str, store: str, to: str, project: str = "agentgym-rl", follow: bool = False, every_s: float = 10) -> None:
    """Sends what is complete and not there yet; with `follow` until the run has ended or stops."""
    run = Run(store, id)
    run.iterations()
    config = run.config()
    # Seeds of one config share a group, or the name that people gave them.
    group = config["run"].get("group") or config["run"].get("name")
    config["seed"] = config["run"]["seed"]
    try:
        with redirect_stdout(sys.stderr):
            tracker: Tracker = TRACKERS[to](run, project, config, group)
            try:
                sent, there = _send(run, tracker, follow, every_s)
            finally:
                tracker.close()
    except AgentgymError:
        raise
    except Exception as error:
        hint = "; WANDB_MODE=offline writes a folder and needs no network" if to == "wandb" else ""
        raise AgentgymError(f"{to} failed: {short(error)}{hint}; the same command resumes after what it has") from error
    print(f"{run.id}: {sent} iterations sent to {to}, {there} were there")


def _send(run: Run, tracker: Tracker, follow: bool, every_s: float) -> tuple[int, int]:
    sent, there, after = 0, 0, -1
    while True:
        status = run.submit("status", run.id)
        for row in run.submit("inspect", run.id)["iterations"]:
            iteration = row["iteration"]
            if iteration <= after:
                continue
            if row["parts_committed"] < row["parts"]:
                break
            if iteration <= tracker.last:
                there += 1
            else:
                parts = run.parts(iteration)
                tracker.send(iteration, figures(parts), episodes(run, iteration, parts))
                sent += 1
                print(f"{run.id}: iteration {iteration} sent", file=sys.stderr)
            after = iteration
        if not follow or status["finished"] or status["stopped"]:
            return sent, there
        time.sleep(every_s)
