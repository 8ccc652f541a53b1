#!/usr/bin/env python3
"""The tables of docs/results.md: plays their runs and prints their rows.

    tools/results.py --list
    tools/results.py quickstart "quickstart, scrambled"
    tools/results.py --design --seeds 1 quickstart      # on the worlds that designs may look at

A row is a config with overrides, played once for each seed; its command is printed above it. A
run that is finished is read, one that was stopped goes on. Held out are the config's own sets;
designs are chosen on worlds from 1500000 on, and no figure of theirs is printed for a table. A cell is success at temperature 1 / greedy. The
interval is 95 %, Student's t over the seeds. Needs Python alone.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys

SUBMIT = os.environ.get("AGENTGYM_SUBMIT", "target/release/agentgym-submit")
QUICKSTART, ALGORITHMS = "configs/quickstart.yaml", "configs/algorithms.yaml"
SCRAMBLED = ["algorithm.scramble_advantages=true"]
EXPERT = 'sft.sources=[{env: short, ids: 4000000..5000000, style: "asks,thought", share: 0.5}, ' \
         '{env: chains, ids: 4000000..5000000, style: "asks,thought", share: 0.5}]'
ESTIMATORS = {
    "grpo": [],
    "rloo": ["algorithm.adv_estimator=rloo"],
    "reinforce++": ["algorithm.adv_estimator=reinforce_plus_plus"],
    "remax": ["algorithm.adv_estimator=remax"],
    # The clip ranges of its paper (arXiv:2507.18071 section 5.1): the mean of a sequence's log-ratios never reaches 0.2.
    "gspo": ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "actor_rollout_ref.actor.clip_ratio_low=3e-4",
             "actor_rollout_ref.actor.clip_ratio_high=4e-4"],
    "ppo": ["algorithm.adv_estimator=gae", "critic.optim.lr=3e-4"],
}

# Config and overrides of each row.
ROWS = {
    "quickstart": (QUICKSTART, []),
    "quickstart, scrambled": (QUICKSTART, SCRAMBLED),
    "quickstart, bf16": (QUICKSTART, ["--dtype", "bf16"]),
    # Computed in f32 from numbers of bf16, which is what the policy is stored as.
    "quickstart, bf16 policy": (QUICKSTART, ["actor_rollout_ref.model.dtype=bf16"]),
    "quickstart, bf16 policy, scrambled": (QUICKSTART, ["actor_rollout_ref.model.dtype=bf16", *SCRAMBLED]),
    # The rate is below what changes an f32 weight: one iteration is as good as eighty.
    "quickstart, lr 0": (QUICKSTART, ["actor_rollout_ref.actor.optim.lr=1e-15", "trainer.total_training_steps=1"]),
    # As many trained tokens as the quickstart's updates read (4.85 million); the rate was chosen with --design.
    "quickstart, expert play": (QUICKSTART, ["run.pipeline=sft", EXPERT, "sft.steps=1740", "sft.batch_size=8", "sft.lr=1e-3",
                                             "sft.warmup_steps=50", "sft.min_lr_ratio=0.1", "sft.max_length=2048",
                                             "jobs.sft_part_steps=580"]),
}
for name, config in (("babyai", "configs/babyai.yaml"), ("mixed", "configs/mixed.yaml")):
    ROWS[name] = (config, [])
    ROWS[f"{name}, scrambled"] = (config, SCRAMBLED)
# Its tasks are played by an agent of an SDK, which scripts/harness.sh starts before it asks for these rows.
ROWS["harness"] = ("configs/harness.yaml", [])
ROWS["harness, scrambled"] = ("configs/harness.yaml", SCRAMBLED)
# Its file is made here, where its config looks for it.
DATASET, QUESTIONS = "configs/dataset.yaml", ("examples/dataset/questions.py", "questions.jsonl")
ROWS["dataset"] = (DATASET, [])
ROWS["dataset, scrambled"] = (DATASET, SCRAMBLED)
# As many episodes as the other algorithms play, in five iterations; the rate is theirs.
EVOL = ["run.pipeline=agentevol", "data.train_batch_size=128", "trainer.total_training_steps=5", "trainer.test_freq=5",
        "trainer.save_freq=5", "agentevol.keep=all", "agentevol.steps=160", "sft.batch_size=8", "sft.lr=3e-4",
        "sft.warmup_steps=5", "sft.max_length=2048"]
ROWS["agentevol"] = (ALGORITHMS, EVOL)
# Its control imitates what was played, whatever its reward.
ROWS["agentevol, all kept"] = (ALGORITHMS, [*EVOL, "agentevol.threshold=0"])
LONG = ["trainer.total_training_steps=150", "trainer.test_freq=50", "trainer.save_freq=50"]
ROWS["150 iterations"] = (ALGORITHMS, LONG)
ROWS["150 iterations, scrambled"] = (ALGORITHMS, [*LONG, *SCRAMBLED])
ROWS["150 iterations, kl"] = (ALGORITHMS, [*LONG, "actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.001"])
for lag in (1, 2):
    ROWS[f"lag {lag}"] = (ALGORITHMS, [f"algorithm.lag={lag}", "algorithm.rollout_correction.rollout_is=token"])
# Tasks of depths 2 and 3, of which the deepest need up to 16 rounds. The iterations are
# meant to sample about as many tokens each; the row says how many there were.
for name, iterations, rounds in (("short", 44, "{type: fixed, rounds: 6}"), ("long", 16, "{type: fixed, rounds: 16}"),
                                 ("growing", 24, "{type: scaling_inter_stepwise, rounds: [6, 11, 16], steps_scaling_inter: 8}")):
    ROWS[f"horizon, {name}"] = (ALGORITHMS, ["data.tasks=[{env: chains, ids: 0..100000}]", f"algorithm.rounds_ctrl={rounds}",
                                             f"trainer.total_training_steps={iterations}", f"trainer.test_freq={iterations}",
                                             f"trainer.save_freq={iterations}"])
for name, overrides in ESTIMATORS.items():
    ROWS[name] = (ALGORITHMS, overrides)
    ROWS[f"{name}, scrambled"] = (ALGORITHMS, [*overrides, *SCRAMBLED])

# Pairs for dpo: of each task that the start played eight times, one that was solved and one that was not.
PLAY = ["data.train_batch_size=640", "trainer.total_training_steps=1", "actor_rollout_ref.actor.optim.lr=1e-15", "evaluation.sets=[]"]
PAIRS, EXCHANGED = "{pairs}", "{pairs, rewards exchanged}"
for name, file in (("dpo", PAIRS), ("dpo, scrambled", EXCHANGED)):
    ROWS[name] = (ALGORITHMS, ["run.pipeline=dpo", f"dpo.expert_file={file}", f"dpo.experience_file={file}", "dpo.prompt_length=1",
                               "dpo.max_length=2048", "dpo.batch_size=8", "dpo.steps=80", "dpo.lr=3e-5", "dpo.warmup_steps=4"])

# A pretrained model; scripts/smollm.sh has made target/smollm2. Expert play goes on with the warm start for as many
# trained tokens as twenty iterations have (77 622, beside 25 197 in sixteen steps).
SMOLLM = "configs/smollm.yaml"
ROWS["smollm"] = (SMOLLM, [])
ROWS["smollm, scrambled"] = (SMOLLM, SCRAMBLED)
LEVELS = "configs/smollm-levels.yaml"
ROWS["smollm levels"] = (LEVELS, [])
ROWS["smollm levels, scrambled"] = (LEVELS, SCRAMBLED)
# As many tokens as the warm start (96 191 in 48 steps) and the updates (565 714) read.
ROWS["smollm levels, expert play"] = (LEVELS, ["run.pipeline=sft", "sft.steps=330"])
# The 192 conversations of the warm start (seed 1), eight times: as many tokens, and none that is new.
SHOWN = {
    2: "6162 11562 12082 14482 17522 19482 27842 31762 32602 33082 33402 37962 38402 51362 54842 58882 59442 59722 61402 61802 66042 "
       "71402 79322",
    3: "7003 10443 11883 12723 21203 22083 24843 27563 29123 39203 39563 41963 46163 47283 54363 56323 57723 59243 60603 61203 61603 "
       "64643 67523 68203 70883 72123 74683 76723 78083",
    8: "248 9888 13648 14728 21568 21888 25568 25848 27328 30048 31888 35208 39608 41088 42248 44008 45808 46168 49488 50848 57688 "
       "58488 58928 64448 69968 70688 71048 74768",
    9: "7889 8289 10489 13729 14729 16809 17729 18649 19129 19249 25129 28529 29729 32489 38649 38929 43809 46569 47249 49369 55249 "
       "56649 61569 68529 68569 71769 71969 72449 73209 75529",
    12: "20372 26252 27052 29532 33492 38132 42332 43452 44692 47692 50172 50772 57812 64212 76812 78212",
    13: "1733 3293 6533 11133 17893 18773 19293 29453 30573 31173 31733 32893 33853 36253 37293 37933 39373 46853 53773 54053 60973 "
        "63333 63893 69933 72493 74893 76253 77733 78573",
    18: "4298 6538 7938 10138 13378 13898 17258 17458 24818 33818 34738 35378 38258 40698 41898 46738 47818 51418 51698 52938 54418 "
        "56098 65098 65458 71538 76378 79138",
    19: "3659 6139 7419 27659 36699 43139 48899 55219 66179 74499",
}
ROWS["smollm levels, the same play"] = (LEVELS, ["run.pipeline=sft", "sft.steps=0", "sft.epochs=8", "sft.sources=[%s]" % ", ".join(
    f'{{env: babyai, ids: [{", ".join(str(2_000_000 + int(item)) for item in items.split())}], style: "wander=85"}}'
    for items in SHOWN.values())])
ROWS["smollm, expert play"] = (SMOLLM, ["run.pipeline=sft", "sft.steps=65"])
NO_LESSONS = ["sft.steps=0", "sft.sources=[]", 'actor_rollout_ref.agentgym.reply_prefix="Action:"',
              "actor_rollout_ref.agentgym.lenient_actions=true"]
ROWS["smollm, no lessons"] = (SMOLLM, NO_LESSONS)
ROWS["smollm levels, no lessons"] = (LEVELS, NO_LESSONS)

# 97.5 % points of Student's t by degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def sets(design):
    if not design:
        return []
    worlds = [f'{{name: worlds d{depth + 1}, env: worlds, ids: "{1500000 + depth}..{1500120 + depth}:3"}}'
              for depth in range(3)]
    return [f"evaluation.sets=[{', '.join(worlds)}]"]


def said(*arguments, **options):
    done = subprocess.run([SUBMIT, *arguments], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"results: {SUBMIT} {' '.join(arguments)} ended with {done.returncode}")
    return json.loads(done.stdout)


def pairs(seed, store):
    """The file of the start's episodes, for dpo, and the same with the rewards of a task's episodes
    exchanged among them; played if they are not there."""
    run = f"play-s{seed}"
    path, exchanged = (os.path.abspath(os.path.join(store, f"{run}{end}.json")) for end in ("", "-exchanged"))
    if not os.path.exists(exchanged):
        said(ALGORITHMS, f"run.id={run}", f"run.seed={seed}", *PLAY, "--json", "--store", store)
        said("export", run, "--iteration", "1", "--trajectories", path, "--json", "--store", store)
        with open(path, encoding="utf-8") as file:
            episodes = json.load(file)
        tasks = {}
        for episode in episodes:
            tasks.setdefault(episode["item_id"], []).append(episode)
        chance = random.Random(seed)
        for task in tasks.values():
            rewards = [episode["reward"] for episode in task]
            chance.shuffle(rewards)
            for episode, reward in zip(task, rewards):
                episode["reward"] = reward
        # Renamed when it is whole: half a file would be taken for it after a kill.
        with open(f"{exchanged}.part", "w", encoding="utf-8") as file:
            json.dump(episodes, file)
        os.replace(f"{exchanged}.part", exchanged)
    return {PAIRS: path, EXCHANGED: exchanged}


def played(row, seed, design, store):
    """Evaluations of the start (after a warm start) and of the end, the numeric class of the last, and tokens sampled."""
    config, overrides = ROWS[row]
    run = "".join(c if c.isalnum() else "-" for c in row) + f"{'-design' if design else ''}-s{seed}"
    if "run.pipeline=dpo" in overrides:
        for name, path in pairs(seed, store).items():
            overrides = [override.replace(name, path) for override in overrides]
    if config == DATASET and not os.path.exists(QUESTIONS[1]):
        made = subprocess.run([sys.executable, QUESTIONS[0]], stdout=subprocess.PIPE, check=True)
        with open(QUESTIONS[1], "wb") as file:
            file.write(made.stdout)
    report = said(config, f"run.id={run}", f"run.seed={seed}", *sets(design), *overrides, "--json", "--store", store)
    last = report["evaluations"][-1]
    # Runs that only imitate have both evaluations at iteration 0.
    starts = [found for found in report["evaluations"] if found["iteration"] == 0 and found is not last]
    first = starts[-1]
    made = said("inspect", run, str(last["iteration"]), "evaluate", "0", "--json", "--store", store)
    return first, last, made["manifest"]["numeric_class"], sampled(os.path.join(store, "exports", run, "metrics.jsonl"))


def sampled(path):
    """Tokens that the policy said in the batches that it was trained on."""
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return sum(row["metrics"].get("loss_tokens", 0) for row in rows if row["stage"] == "advantage")


def cell(score):
    return f"{score['success']:.3f} / {score['success_greedy']:.3f}"


def mean_cell(runs, at, name):
    pick = (lambda run: run[at]["all"]) if name == "all" else (lambda run: run[at]["sets"][name])
    mean = lambda key: sum(pick(run)[key] for run in runs) / len(runs)
    return cell({key: mean(key) for key in ("success", "success_greedy")})


def gain(runs, key):
    gains = [100 * (run[1]["all"][key] - run[0]["all"][key]) for run in runs]
    mean = sum(gains) / len(gains)
    if len(gains) < 2:
        return f"{mean:+.1f}"
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gains) / (len(gains) - 1))
    within = T[len(gains) - 1] * deviation / math.sqrt(len(gains))
    return f"{mean:+.1f} ({mean - within:.1f} to {mean + within:.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--design", action="store_true", help="the worlds that designs may look at, fewer of them")
    parser.add_argument("--store", default="agentgym-data/results")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list or not options.rows:
        print("\n".join(f"{name}: {' '.join([config, *overrides])}" for name, (config, overrides) in ROWS.items()))
        return
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        sys.exit(f"results: no row is called {unknown[0]!r}; --list shows all of them")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    for row in options.rows:
        config, overrides = ROWS[row]
        if "run.pipeline=dpo" in overrides:
            print(f"\n`agentgym-submit {' '.join([ALGORITHMS, *PLAY])} run.id=play run.seed=N; "
                  f"agentgym-submit export play --iteration 1 --trajectories {PAIRS}`")
        print(f"\n{row}: `agentgym-submit {' '.join([config, *overrides])} run.seed=N`\n")
        runs = [played(row, seed, options.design, options.store) for seed in seeds]
        names = [*runs[0][0]["sets"], "all"]
        policies = [(f"{label}, seed {seed}", [run], at) for seed, run in zip(seeds, runs)
                    for label, at in (("start", 0), ("end", 1))]
        policies += [("start, mean", runs, 0), ("end, mean", runs, 1)]
        lines = [["policy", *(label for label, _, _ in policies)]]
        for name in names:
            label = "all worlds" if name == "all" else name
            lines.append([label, *(mean_cell(group, at, name) for _, group, at in policies)])
        # A policy is a row, unless there are too many sets for the columns of a page.
        lines = list(zip(*lines)) if len(names) <= 6 else lines
        print("\n".join(f"| {' | '.join(line)} |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]]))
        classes = ", ".join(sorted({run[2] for run in runs}))
        mean = sum(run[3] for run in runs) / len(runs) / 1e6
        tokens = f"{mean:.2f} million tokens sampled in batches; " if mean else ""
        print(f"\nGain in points over all worlds: {gain(runs, 'success')} at temperature 1, "
              f"{gain(runs, 'success_greedy')} greedy; {tokens}numeric class {classes}.", flush=True)


if __name__ == "__main__":
    main()
