#!/usr/bin/env python3
"""Times iterations of TRL's GRPOTrainer on the model and the prompts of a run of ours.

Needs torch, transformers and trl (seen with 2.15, 5.24 and 1.16). First a run of ours, then TRL:

    time agentgym-submit tools/trl_iteration.yaml storage.url=STORE run.id=one
    agentgym-submit --store STORE export one --iteration 6 --to EXPORT
    tools/trl_iteration.py models/base EXPORT/trajectories.jsonl

An iteration is 32 prompts × 8 answers of at most 96 tokens and four optimizer steps. Rewards are
random: what they are costs nothing. The first iteration warms up and is not printed.
"""

import argparse
import json
import random
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

SAMPLES, STEPS = 8, 4


def prompts(path, tokenizer):
    """The prompt of each group, as a text that is encoded to the same ids."""
    found = {}
    with open(path, encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            found[row["group"]] = row["token_ids"][: row["loss_mask"].index(1)]
    texts = []
    for ids in found.values():
        text = tokenizer.decode(ids)
        if tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
            raise SystemExit(f"a prompt of {len(ids)} tokens does not come back as its ids")
        texts.append(text)
    return texts


class Clock(TrainerCallback):
    """Prints wall and CPU seconds of every iteration after the first."""

    def __init__(self):
        self.before = None
        self.begun = 0

    def lap(self):
        now = (time.perf_counter(), time.process_time())
        if self.before is not None and self.begun > 1:
            wall, cpu = (b - a for a, b in zip(self.before, now))
            print(f"iteration: wall {wall:.2f} s, CPU {cpu:.2f} s", flush=True)
        self.before = now
        self.begun += 1

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step % STEPS == 0:
            self.lap()

    def on_train_end(self, args, state, control, **kwargs):
        self.lap()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the run's start policy")
    parser.add_argument("trajectories", help="trajectories.jsonl of an exported iteration")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    random.seed(1)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{given.model}/tokenizer.json")
    end, pad = model.config.eos_token_id, model.config.pad_token_id
    tokenizer.eos_token, tokenizer.pad_token = tokenizer.convert_ids_to_tokens([end, pad])
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = end, pad
    texts = prompts(given.trajectories, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, beta=0.0, learning_rate=1e-5,
            per_device_train_batch_size=len(texts) * SAMPLES // STEPS, num_generations=SAMPLES,
            steps_per_generation=STEPS, max_steps=STEPS * given.iterations,
            max_completion_length=96, temperature=1.0, gradient_checkpointing=False,
            save_strategy="no", logging_steps=1000, report_to="none", disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model, args=config, processing_class=tokenizer, callbacks=[Clock()],
            reward_funcs=lambda completions, **_: [random.random() for _ in completions],
            train_dataset=Dataset.from_dict({"prompt": texts * STEPS}),
        )
        trainer.train()


if __name__ == "__main__":
    main()
