#!/usr/bin/env python3
"""Numbers of PEFT itself for tests/fixtures/lora-tiny: an adapter that PEFT saved
on top of tests/fixtures/qwen2-tiny, and what PyTorch computes with it in f64.

    pip install torch transformers peft
    tools/lora_fixture.py                                writes the fixture again
    tools/lora_fixture.py --check BASE ADAPTER MERGED    PEFT's merge of an exported adapter against ours:
                                                         the base, adapter_after/ and policy_after/ of `export`

The loss is the sum over all predicted tokens of c(t)·log_prob(t), c(t) = 0.3·((t mod 4) − 1.2),
with t the token's place in its sequence, at temperature 1.
"""
import argparse
import json
import pathlib

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

FIXTURES = pathlib.Path(__file__).parent.parent / "tests" / "fixtures"
RANK, ALPHA, SEED = 3, 6, 20


def base(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    return model.eval()


def write():
    torch.manual_seed(SEED)
    plain = FIXTURES / "qwen2-tiny"
    out = FIXTURES / "lora-tiny"
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base(plain), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                # Numbers that f32 holds exactly, since that is what is saved.
                parameter.copy_((torch.randn_like(parameter) * 0.05).float().double())
    model.float().save_pretrained(out)
    model.double()
    # PEFT names the base by the path it was given.
    path = out / "adapter_config.json"
    saved = json.loads(path.read_text())
    saved["base_model_name_or_path"] = "tests/fixtures/qwen2-tiny"
    saved["target_modules"] = sorted(saved["target_modules"])
    path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
    (out / "README.md").unlink(missing_ok=True)

    sequences = json.loads((plain / "golden.json").read_text())["sequences"]
    loss, log_probs = 0.0, []
    for ids in sequences:
        ids = torch.tensor([ids])
        every = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        picked = every.gather(1, ids[0, 1:, None])[:, 0]
        places = torch.arange(1, ids.shape[1])
        loss = loss + (0.3 * ((places % 4).double() - 1.2) * picked).sum()
        log_probs.append(picked.detach().tolist())
    loss.backward()
    gradients = {
        name.replace(".default", ""): {
            "l2": parameter.grad.norm().item(),
            "first": parameter.grad.flatten()[:12].tolist(),
        }
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }
    golden = {"loss": loss.item(), "log_probs": log_probs, "gradients": gradients}
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{out}: loss {loss.item():.6f}, {len(gradients)} factors")


def check(folder, adapter, merged):
    """Weights merged by PEFT against the policy that was exported merged."""
    ours = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float64).state_dict()
    model = PeftModel.from_pretrained(base(folder), adapter).double()
    theirs = model.merge_and_unload().state_dict()
    worst = max((theirs[name] - ours[name]).abs().max().item() for name in ours)
    moved = sum(1 for name in ours if not torch.equal(ours[name], base(folder).state_dict()[name]))
    print(f"{len(ours)} tensors, {moved} of them differ from the base; largest difference to PEFT {worst:.3g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs=3, metavar=("BASE", "ADAPTER", "MERGED"))
    arguments = parser.parse_args()
    if arguments.check:
        check(*arguments.check)
    else:
        write()
