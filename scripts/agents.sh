#!/usr/bin/env bash
# Has clients and agents that others wrote, as PyPI and npm have them, play behind `agentgym-env harness`, and
# compares what each asked and was told with what is trained on (tools/agents_check.py); with the programs in
# target/release (or AGENTGYM_PROGRAMS).
#
#   scripts/agents.sh [KIND…]     # all of them where none is named, some ten minutes of two cores
#
# Needs a Python of 3.11 or later with venv (PYTHON names one that is not in the path), and for the two of npm
# Node.js of 20 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
python="$(python_of agents 11)"
programs="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)"
target="${CARGO_TARGET_DIR:-target}"
kinds=("$@")
if [ $# -eq 0 ]; then
  kinds=(chat completions responses messages openai anthropic openai-agents openai-agents-responses smolagents mini-swe-agent)
fi
venv="$(mkdir -p "$target" && cd "$target" && pwd)/agents-1"
environment agents "$venv" "$python" openai==3.57.0 anthropic==2.14.0 openai-agents==0.24.0 smolagents==1.26.0 \
  mini-swe-agent==2.4.6 transformers==5.24.0 jinja2==3.1.6
workplace
"$programs/agentgym-env" toolbox --terms 1 --port 0 >"$scratch/toolbox" &
started+=($!)
TOOLBOX_URL="$(address "${started[0]}" "$scratch/toolbox")"
export TOOLBOX_URL

# Tasks of the toolbox, and of mending a failing test.
"$programs/agentgym-env" demos --env 'builtin:toolbox?terms=1' --ids 0..1 >"$scratch/shown"
"$python" - "$scratch" <<'EOF'
import json, random, sys

shown = json.load(open(f"{sys.argv[1]}/shown"))
instruction = shown["conversations"][0]["value"].rsplit("\n\n", 1)[0]
with open(f"{sys.argv[1]}/toolbox.jsonl", "w") as file:
    for item in range(1000):
        task = {"prompt": f"toolbox {item}", "item": item, "instruction": instruction, "tools": shown["tools"]}
        print(json.dumps(task), file=file)

# A failing test, and conversations in which half of the attempts at it are right.
operators = ["+", "-", "*"]
prompt = "python3 test.py fails. Mend sums.py."
system = "You work by shell commands, one in each answer, in a block of mswea_bash_command."
test = """from sums import combined

for a in range(2, 6):
    for b in range(2, 6):
        found = combined(a, b)
        wanted = a %s b
        assert found == wanted

print("all pass")
"""
draw = random.Random(1)


def turn(thought, command):
    return f"THOUGHT: {thought}\n\n```mswea_bash_command\n{command}\n```"


def seen(code, output):
    return f"<returncode>{code}</returncode>\n<output>\n{output}</output>"


with open(f"{sys.argv[1]}/mend.jsonl", "w") as file:
    for item in range(30):
        right, wrong = operators[item % 3], operators[(item + 1) % 3]
        files = {"sums.py": f"def combined(a, b):\n    return a {wrong} b\n", "test.py": test % right}
        print(json.dumps({"prompt": prompt, "system": system, "files": files, "item": item, "tools": []}), file=file)
rows = []
for item in range(400):
    right = draw.choice(operators)
    said = [("system", system), ("human", prompt), ("gpt", turn("I look at the test.", "cat test.py"))]
    said.append(("human", seen(0, test % right)))
    tried = draw.choice([right, draw.choice(operators)])
    change = f"sed -i 's/a . b/a {tried} b/' sums.py; python3 test.py"
    said.append(("gpt", turn(f"I try {tried}.", change)))
    error = 'Traceback (most recent call last):\n  File "test.py", line 7, in <module>\nAssertionError\n'
    said.append(("human", seen(0, "all pass\n") if tried == right else seen(1, error)))
    said.append(("gpt", turn("I am done.", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")))
    said = [{"from": who, "value": value} for who, value in said]
    rows.append({"item_id": f"mend_{item}", "conversations": said})
json.dump(rows, open(f"{sys.argv[1]}/mend.json", "w"))
EOF

# Policies that act: by calls, and by blocks of commands.
learns() {
  local name="$1"
  shift
  echo "agents: a tiny policy learns to act ($name)" >&2
  "$programs/agentgym-submit" "$@" run.id="$name" run.pipeline=sft 'evaluation.sets=[]' --store "$scratch/$name.store" --quiet >/dev/null
  "$programs/agentgym-submit" export "$name" --iteration 0 --store "$scratch/$name.store" --to "$scratch/$name.out" >/dev/null
}
learns toolbox configs/toolbox.yaml sft.steps=185 "sft.sources=[{env: one, ids: '1000000..1010000'}]"
case " ${kinds[*]} " in
  *" mini-swe-agent "*) learns mend configs/toolbox.yaml sft.steps=200 "sft.sources=[{file: '$scratch/mend.json'}]" ;;
esac
# What a policy writes runs as a command: it finds these alone.
mkdir "$scratch/bin"
for program in cat sed; do
  ln -s "$(command -v "$program")" "$scratch/bin/$program"
done
ln -s "$(readlink -f "$venv/bin/python")" "$scratch/bin/python3"
export AGENT_PATH="$scratch/bin" LITELLM_LOCAL_MODEL_COST_MAP=True

for kind in "${kinds[@]}"; do
  command="$venv/bin/python $PWD/tools/agents_play.py $kind"
  tasks=toolbox
  case "$kind" in
    openai | anthropic)
      if [ ! -e "$target/agents-npm/complete" ]; then
        mkdir -p "$target/agents-npm"
        npm install --silent --no-fund --no-audit --prefix "$target/agents-npm" openai@7.59.0 @anthropic-ai/sdk@1.14.0
        touch "$target/agents-npm/complete"
      fi
      cp tools/agents_play.mjs "$target/agents-npm"
      command="node $(cd "$target/agents-npm" && pwd)/agents_play.mjs $kind"
      ;;
    mini-swe-agent) tasks=mend ;;
  esac
  rm -rf "$scratch/records" "$scratch/tried"
  mkdir "$scratch/records"
  "$programs/agentgym-env" harness --port 0 --tasks "$scratch/$tasks.jsonl" --folder "$scratch/tried" --keep \
    --command "$venv/bin/python $PWD/tools/agents_check.py record $scratch/records $command" >"$scratch/$kind.harness" &
  harness=$!
  started+=("$harness")
  url="$(address "$harness" "$scratch/$kind.harness")"
  "$programs/agentgym-submit" configs/harness.yaml run.id=played actor_rollout_ref.agentgym.env_addr="$url" \
    "actor_rollout_ref.agentgym.envs={agent: {task_name: agent, env_addr: '$url', max_rounds: 4}}" \
    "data.tasks=[{env: agent, ids: '0..4'}]" 'evaluation.sets=[]' sft.steps=0 'sft.sources=[]' \
    trainer.total_training_steps=1 actor_rollout_ref.rollout.n=2 actor_rollout_ref.actor.ppo_mini_batch_size=2 \
    algorithm.rounds_ctrl.rounds=4 algorithm.verify_log_probs=1.0 \
    actor_rollout_ref.model.path="$scratch/$tasks.out/policy_after" actor_rollout_ref.rollout.max_model_len=8192 \
    actor_rollout_ref.rollout.max_tokens=128 data.max_prompt_length=6144 data.train_batch_size=4 --store "$scratch/$kind" --quiet >/dev/null
  kill "$harness"
  "$programs/agentgym-submit" export played --iteration 1 --store "$scratch/$kind" --to "$scratch/$kind.out" >/dev/null
  echo "agents: $kind"
  "$venv/bin/python" tools/agents_check.py check "$scratch/$kind.out" "$scratch/records"
done
