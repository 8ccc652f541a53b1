#!/usr/bin/env python3
"""Loads a policy that was exported exactly, and in bf16 and shards, with transformers, and compares.

    transformers_folder.py EXACT SAVED [AGAIN]

EXACT is the folder of an `export`; SAVED its policy_after in bf16 and shards; AGAIN the policy with
which a run begins that was started from SAVED. scripts/transformers.sh makes all three. Compared are:
the weights, bit for bit with torch's own rounding; the tokenizer, on the texts of the export's turns;
and log-probs of its sequences, of policy_before with those that the run recorded, and of SAVED, by
bf16 arithmetic and by f32, with those of policy_after.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Nats: two implementations in f32; and means over tokens where weights, or all arithmetic, are bf16.
EXACT_MAX, ROUNDED_MEAN_MAX, BF16_MEAN_MAX = 1e-3, 0.02, 0.05
SEQUENCES = 16


def model(folder, dtype="auto"):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def log_probs(model, ids, temperature):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float() / temperature
    return logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def fail(message):
    sys.exit(f"transformers: {message}")


def same_bits(ours, theirs, what):
    if ours.keys() != theirs.keys():
        fail(f"{what}: other tensors: {sorted(ours.keys() ^ theirs.keys())}")
    for name, tensor in ours.items():
        if not torch.equal(tensor, theirs[name]):
            fail(f"{what}: {name} differs")


def main():
    exact, saved = Path(sys.argv[1]), Path(sys.argv[2])
    shards = sorted(path.name for path in saved.glob("*.safetensors"))
    index = json.loads((saved / "model.safetensors.index.json").read_text())
    if len(shards) < 2 or set(index["weight_map"].values()) != set(shards):
        fail(f"{saved} is not in shards: {shards}")

    before, after, rounded = model(exact / "policy_before"), model(exact / "policy_after"), model(saved)
    kinds = [{p.dtype for p in m.parameters()} for m in (after, rounded)]
    if kinds != [{torch.float32}, {torch.bfloat16}]:
        fail(f"the folders have other dtypes than their configs say: {kinds}")
    expected = {name: tensor.bfloat16() for name, tensor in after.state_dict().items()}
    same_bits(expected, rounded.state_dict(), "bf16")
    if len(sys.argv) > 3:
        again = model(sys.argv[3]).state_dict()
        same_bits({name: tensor.float() for name, tensor in expected.items()}, again, "read back")

    lines = (exact / "trajectories.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in lines][:SEQUENCES]
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (exact / "policy_after", saved)]
    for line in lines:
        text = tokenizers[0].decode(line["token_ids"])
        ids = [t(text, add_special_tokens=False)["input_ids"] for t in tokenizers]
        if ids[0] != ids[1] or tokenizers[1].decode(ids[1]) != text:
            fail(f"the tokenizers differ on {text!r}")
    messages = [{"role": "user", "content": "Craft 3 planks."}]
    prompts = [t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) for t in tokenizers]
    if prompts[0] != prompts[1] or not prompts[0]:
        fail(f"the chat templates differ: {prompts}")

    temperature = json.loads((exact / "export.json").read_text())["temperature"]
    widened = model(saved, torch.float32)
    recorded, by_weights, by_bf16 = [], [], []
    for line in lines:
        ids = line["token_ids"]
        mask = torch.tensor(line["loss_mask"][1:], dtype=torch.bool)
        old = torch.tensor(line["old_log_probs"][1:])
        recorded.append((log_probs(before, ids, temperature) - old).abs()[mask])
        of_after = log_probs(after, ids, temperature)
        by_weights.append((log_probs(widened, ids, temperature) - of_after).abs()[mask])
        by_bf16.append((log_probs(rounded, ids, temperature) - of_after).abs()[mask])
    recorded, by_weights, by_bf16 = (torch.cat(each) for each in (recorded, by_weights, by_bf16))
    for found, most, what in [
        (recorded.max(), EXACT_MAX, "largest difference from the run's own log-probs, policy_before"),
        (by_weights.mean(), ROUNDED_MEAN_MAX, "mean difference by the rounding of weights"),
        (by_bf16.mean(), BF16_MEAN_MAX, "mean difference by bf16 arithmetic"),
    ]:
        print(f"{what}: {found:.2e} nats (at most {most})")
        if not found <= most:
            fail(f"{what} is {found}")
    print(
        f"transformers: {len(expected)} tensors in {len(shards)} shards are the policy rounded to bf16, bit for bit"
        f"{'; read back too' if len(sys.argv) > 3 else ''}; {len(recorded)} tokens of {len(lines)} sequences compared"
    )


if __name__ == "__main__":
    main()
