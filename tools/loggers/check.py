"""Reads back what scripts/loggers.sh sent, with each tracker's own reader, and compares it with the run.

    check.py wandb|mlflow|trackio STORE RUN PROJECT
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

from agentgym_rl import Run
from agentgym_rl.log import figures, wandb_records


def from_wandb(run, project):
    """The offline folders: wandb's own messages, in the frames of LevelDB that 0.31 has no Python reader for."""
    from wandb.proto import wandb_internal_pb2

    found, tables, about = defaultdict(list), 0, {}
    for path in sorted(Path("wandb").glob(f"offline-run-*-{run}/*.wandb")):
        for payload in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(payload)
            if record.HasField("run"):
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                about = {"id": record.run.run_id, "group": record.run.run_group, "project": record.run.project, "config": config}
            if record.HasField("history"):
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                tables += "episodes/nrows" in row
                for name, value in row.items():
                    if not name.startswith(("_", "episodes")):
                        found[record.history.step.num, name].append(value)
    assert about["project"] == project and about["id"] == run, about
    return found, tables, about["group"], about["config"]


def from_mlflow(run, project):
    import mlflow

    client = mlflow.MlflowClient()
    [kept] = client.search_runs([client.get_experiment_by_name(project).experiment_id])
    assert kept.info.run_name == run
    found = defaultdict(list)
    for name in kept.data.metrics:
        for metric in client.get_metric_history(kept.info.run_id, name):
            found[metric.step, name].append(metric.value)
    tables = len(client.list_artifacts(kept.info.run_id, "episodes"))
    assert int(kept.data.params["run.seed"]) == 5
    return found, tables, kept.data.tags.get("agentgym.group"), mlflow.artifacts.load_dict(f"runs:/{kept.info.run_id}/config.json")


def from_trackio(run, project):
    import trackio

    [kept] = trackio.Api().runs(project)
    assert kept.name == run
    found, tables = defaultdict(list), 0
    for row in trackio.sqlite_storage.SQLiteStorage.get_logs(project, run):
        tables += "episodes" in row
        for name, value in row.items():
            if name not in ("step", "timestamp", "episodes"):
                found[row["step"], name].append(value)
    return found, tables, kept.config.get("_Group"), kept.config


def main():
    tracker, store, run, project = sys.argv[1:]
    found, tables, group, config = {"wandb": from_wandb, "mlflow": from_mlflow, "trackio": from_trackio}[tracker](run, project)
    read = Run(store, run)
    expected = {(n, name): value for n in read.iterations() for name, value in figures(read.parts(n)).items()}
    missing = [place for place in expected if place not in found]
    more = [place for place in found if place not in expected]
    twice = [place for place, values in found.items() if len(values) > 1]
    wrong = [place for place in expected if place in found and not math.isclose(found[place][0], expected[place], rel_tol=1e-6, abs_tol=1e-12)]
    for what, places in (("missing", missing), ("more than there is", more), ("twice", twice), ("another value", wrong)):
        if places:
            sys.exit(f"{tracker}: {len(places)} figures {what}, such as {places[:3]}")
    assert config["run"]["seed"] == config["seed"] == 5, config["run"]
    assert group == "loggers", group
    trained = len(read.iterations()) - 1
    assert tables == trained, (tables, trained)
    print(f"| {tracker} | {len(expected)} | {len(read.iterations())} | {tables} |")


main()
