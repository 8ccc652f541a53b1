#!/usr/bin/env python3
"""Sends a run's metrics to Weights & Biases, with its own client.

    agentgym-submit metrics RUN                       # writes metrics.jsonl
    pip install wandb
    tools/wandb_import.py agentgym-data/exports/RUN/metrics.jsonl --project NAME

The W&B run has the id and the name of ours, its step is the iteration, and its
tags are those of the TensorBoard export: stage/name, evaluate/SET/name and
stats/stage/name. Sending twice changes nothing: W&B keeps what it has of an
iteration, so a longer file adds the iterations that are new. WANDB_MODE=offline
writes a folder for `wandb sync` instead.
"""

import argparse
import json
import pathlib
import statistics
import sys
from collections import defaultdict


def numbers(value, tag):
    """The leaves of a metrics object that are numbers, with their tags."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, (int, float)):
        yield tag, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{tag}/{name}")


def iterations(path):
    """{iteration: {tag: mean over the parts of the stage}}, in order."""
    found = defaultdict(lambda: defaultdict(list))
    for row, line in enumerate(path.open(encoding="utf-8"), 1):
        try:
            part = json.loads(line)
            stage, held_out = part["stage"], part["set"]
            place = f"{stage}/{held_out}" if held_out else stage
            measured = [(part["metrics"], place), (part["stats"], f"stats/{stage}")]
            step = found[int(part["iteration"])]
        except (ValueError, TypeError, KeyError) as error:
            sys.exit(f"{path} line {row}: not a line of metrics.jsonl ({error!r}); `agentgym-submit metrics` writes it")
        for values, tag in measured:
            for tag, number in numbers(values, tag):
                step[tag].append(number)
    return {n: {tag: statistics.fmean(all_) for tag, all_ in tags.items()} for n, tags in sorted(found.items())}


def main():
    parser = argparse.ArgumentParser(description="Sends a run's metrics.jsonl to Weights & Biases.")
    parser.add_argument("file", type=pathlib.Path, help="metrics.jsonl; its folder is named after the run")
    parser.add_argument("--project", required=True)
    parser.add_argument("--entity")
    options = parser.parse_args()
    if not options.file.is_file():
        sys.exit(f"there is no file {options.file}; `agentgym-submit metrics RUN` says where it writes")
    steps = iterations(options.file)
    try:
        import wandb
    except ImportError:
        sys.exit("the W&B client is missing: pip install wandb")
    name = options.file.resolve().parent.name
    run = wandb.init(project=options.project, entity=options.entity, id=name, name=name, resume="allow")
    # W&B counts from the step after the last one that it has.
    sent = run.step - 1 if run.resumed else -1
    for iteration, tags in steps.items():
        if iteration > sent:
            run.log(tags, step=iteration)
    run.finish()
    new = sum(iteration > sent for iteration in steps)
    print(f"{name}: {new} iterations sent, {len(steps) - new} were there")


main()
