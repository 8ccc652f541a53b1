#!/usr/bin/env python3
"""What optimizer states that are stored seldom cost when machines die, and when none does.

    tools/state_kills.py kills FREQ COUNT [CONFIG KEY=VALUE...]    # COUNT kills, each machine gone with its process
    tools/state_kills.py four FREQ [CONFIG KEY=VALUE...]           # four equal workers, each a machine of its own, no death

Plays a run, without CONFIG forty small iterations, with trainer.state_freq=FREQ and prints how many updates were made again, and
whether the digest is that of the undisturbed run. Needs the built programs (AGENTGYM_PROGRAMS) and Python alone.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = os.environ.get("AGENTGYM_PROGRAMS", "target/release")
SMALL = ["configs/smoke.yaml", "trainer.total_training_steps=40", "trainer.save_freq=10", "data.train_batch_size=4",
         "data.tasks=[{env: worlds, ids: 0..1000}]", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "evaluation.sets=[]"]


def start(store, machine, *words, program="submit"):
    command = [f"{PROGRAMS}/agentgym-{program}", *words, "--store", store]
    env = {**os.environ, "AGENTGYM_CACHE": f"{store}-machines/{machine}"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def said(store, *words):
    return start(store, "desk", *words).communicate()[0]


def report(store, what, want=None):
    digest = re.search("[0-9a-f]{64}", said(store, "digest", "k")).group(0)
    total = json.loads(said(store, "--json", "ledger", "k"))["total"]
    equal = "" if want is None else ", digest equal" if digest == want else ", ANOTHER DIGEST"
    print(f"{what}: {total['updates_made_again']} updates made again in {total['made_again_s']:.1f} s, "
          f"{total['lost_attempts']} of {total['attempts']} attempts lost{equal}")
    return digest


def main():
    how, every, *rest = sys.argv[1:]
    count = int(rest.pop(0)) if how == "kills" else 0
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        run = [*(rest or SMALL), "run.id=k", f"trainer.state_freq={every}", "--quiet"]
        whole, store = f"{folder}/whole", f"{folder}/store"
        begun = time.monotonic()
        said(whole, *run)
        a_life = 1.5 * (time.monotonic() - begun) / max(count, 1)
        digest = report(whole, "undisturbed")
        if how == "four":
            os.makedirs(store)
            workers = [start(store, n, "--threads", "1", program="worker") for n in range(4)]
            said(store, *run, "jobs.workers=0", "jobs.rollout_part_tasks=1")
            for worker in workers:
                worker.terminate()
                worker.wait()
            report(store, f"four workers, state_freq {every}")
            return
        kills = 0
        while kills < count:
            process = start(store, kills, *run)
            time.sleep(rng.uniform(2.0, max(5.5, a_life)))
            if process.poll() is not None:
                break
            process.kill()
            process.wait()
            shutil.rmtree(f"{store}-machines/{kills}", ignore_errors=True)
            kills += 1
        said(store, *run)
        report(store, f"{kills} kills, state_freq {every}", digest)


main()
