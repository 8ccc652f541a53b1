#!/usr/bin/env bash
# Hosts environments of Gymnasium, Reasoning Gym, verifiers, MCP and OpenEnv behind our protocol with the
# package in python/, each of them the real package in a pinned version, and prints a row of docs/python.md for
# each: what `agentgym-env doctor` says; what a scripted player earns through our own client; and whether a
# short run whose workers get SIGKILL ends with the digest of an undisturbed one. What fails has a row that
# says so, and the exit code is 1.
#
#   scripts/bridges.sh [gymnasium] [reasoning_gym] [verifiers] [mcp] [openenv]     # all where none is named
#
# With the programs in target/release (or AGENTGYM_PROGRAMS). Needs Python 3.11 with venv, and a C compiler
# for one package that has no wheel; PYTHON names one that is not in the path.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
programs="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)"
venv="$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/bridges-1"
environment bridges "$venv" "$(python_of bridges 11)" --no-binary cellpylib,pycosat,wget,zss --no-deps \
  -r tools/bridges/requirements.txt
python="$venv/bin/python"
export PYTHONPATH="$PWD/python:$PWD/tools/bridges" HF_HUB_OFFLINE=1
workplace

# serve NAME COMMAND…: starts a server, and leaves its address in `url`.
serve() {
  local out="$scratch/$1.out"
  "${@:2}" >"$out" 2>"$scratch/$1.err" &
  started+=($!)
  address "$!" "$out" >"$scratch/url" || { tail -n 3 "$scratch/$1.err" >&2; return 1; }
  url="$(cat "$scratch/url")"
}

submit() { "$programs/agentgym-submit" --quiet --store "$scratch/$1" "${@:2}"; }

# field FILE EXPRESSION: what a document of --json says.
field() { "$python" -c "import json, sys; d = json.load(open(sys.argv[1])); print($2)" "$1"; }

# killed KIND OVERRIDE…: the same run in another store by worker processes; whoever begins a rollout of the first
# or the second iteration gets SIGKILL while it plays.
killed() {
  local kind="$1" worker follower begun
  submit "$kind.killed" run tools/bridges/train.yaml "${@:2}" jobs.workers=0 >"$scratch/$kind.follow" 2>&1 &
  follower=$!
  started+=("$follower")
  # A worker that is asked for one run ends where that run is not submitted yet.
  until [ -e "$scratch/$kind.killed/runs/$kind/plan" ]; do
    kill -0 "$follower" || return 1
    sleep 0.1
  done
  for begun in 00000001/rollout 00000002/rollout ""; do
    "$programs/agentgym-worker" --store "$scratch/$kind.killed" --run "$kind" --threads 1 --lease-ttl-s 2 \
      --exit-when-finished >>"$scratch/$kind.worker" 2>&1 &
    worker=$!
    started+=("$worker")
    if [ -n "$begun" ]; then
      until [ -e "$scratch/$kind.killed/runs/$kind/attempts/$begun" ]; do
        kill -0 "$worker" || return 1
        sleep 0.02
      done
      kill -KILL "$worker"
      wait "$worker" 2>/dev/null || true
    else
      wait "$worker" || return 1
    fi
  done
  wait "$follower"
}

# bridged KIND WHAT WORDS…: everything for one bridge.
bridged() {
  local kind="$1" what="$2" name fit success digest again twice iteration part
  local spec="$scratch/$kind.yaml"
  serve "$kind" "$python" -m agentgym_rl bridge "$what" --spec "$spec" "${@:3}"
  local env="$url"
  name="$(sed -n 's/^name: "\(.*\)"$/\1/p' "$spec")"
  "$programs/agentgym-env" doctor "$env" --spec "$spec" --leaks 50 --clients 1,8 --measure-s 1 \
    >"$scratch/$kind.doctor" 2>/dev/null || { cat "$scratch/$kind.doctor" >&2; return 1; }
  fit="$(tail -n 1 "$scratch/$kind.doctor")"
  # The player is a chat-completions API, so that it is our client that plays.
  serve "$kind.player" "$python" tools/bridges/player.py "$kind" 0
  local keys=("actor_rollout_ref.agentgym.specs=[$spec]" "actor_rollout_ref.agentgym.task_name=$name"
    "actor_rollout_ref.agentgym.env_addr=$env")
  submit "$kind" eval tools/bridges/train.yaml "${keys[@]}" run.id=player --json \
    "evaluation.sets=[{name: all, env: $name, ids: 1000..1008}]" actor_rollout_ref.rollout.engine=chat \
    "actor_rollout_ref.rollout.server.url=$url/v1" actor_rollout_ref.rollout.server.model=player \
    >"$scratch/$kind.eval" 2>"$scratch/$kind.err2" || { tail -n 3 "$scratch/$kind.err2" >&2; return 1; }
  success="$(field "$scratch/$kind.eval" "min((s := d['sets']['all'])['score']['pass']['1']['mean'], s['success_greedy'])")"
  submit "$kind" export player --trajectories "$scratch/$kind.json" >/dev/null
  keys+=("run.id=$kind" sft.steps=120 "sft.sources=[{file: $scratch/$kind.json}]" "data.tasks=[{env: $name, ids: 0..500}]"
    "evaluation.sets=[{name: held out, env: $name, ids: 1008..1012}]")
  submit "$kind" run tools/bridges/train.yaml "${keys[@]}" >"$scratch/$kind.run" 2>&1 ||
    { tail -n 3 "$scratch/$kind.run" >&2; return 1; }
  digest="$(submit "$kind" digest "$kind" | cut -d ' ' -f 1)"
  killed "$kind" "${keys[@]}" || { tail -n 3 "$scratch/$kind.follow" "$scratch/$kind.worker" >&2; return 1; }
  again="$(submit "$kind.killed" digest "$kind" | cut -d ' ' -f 1)"
  twice=""
  for iteration in 0 1 2; do
    submit "$kind.killed" inspect "$kind" "$iteration" --json >"$scratch/parts"
    twice+="$(field "$scratch/parts" "' '.join(p['part'] for p in d['parts'] if p['manifest']['attempt'] > 1)") "
  done
  twice="$(xargs <<<"$twice")"
  submit "$kind" inspect "$kind" --json >"$scratch/parts"
  local learnt
  learnt="$(field "$scratch/parts" "', '.join(f\"{row['success']:.3f}\" for row in d['iterations'] if row['success'] is not None)")"
  echo "| $shown | $fit | $success | $learnt | ${twice:-none} | ${digest:0:12} |"
  [ "$success" = 1.0 ] && [ "$digest" = "$again" ] && [ -n "$twice" ] ||
    { echo "bridges: $kind: the player earned $success, digests are $digest and $again" >&2; return 1; }
}

"$python" -c '
import json, random
draw = random.Random(1)
for _ in range(2000):
    a, b = draw.randint(2, 60), draw.randint(2, 60)
    print(json.dumps({"prompt": f"What is {a} * {b}?", "answer": a * b}))' >"$scratch/tasks.jsonl"

failed=0
echo "\`scripts/bridges.sh\`, $(date -u +%F), Python $("$python" -c 'import platform; print(platform.python_version())'):"
echo
echo "| Bridge | \`doctor\` | Scripted player | Success by iteration | Made again after SIGKILL | Digest of both runs |"
echo "|---|---|---|---|---|---|"
for kind in ${*:-gymnasium reasoning_gym verifiers mcp openenv}; do
  more=() shown=""
  case "$kind" in
    gymnasium) what='gymnasium:FrozenLake-v1?is_slippery=false' ;;
    reasoning_gym) what='reasoning_gym:chain_sum?max_terms=2&max_digits=1' ;;
    verifiers) what=verifiers:guess?count=2000 ;;
    mcp) what="mcp:$python -m mcp_server_calculator" shown="mcp:python -m mcp_server_calculator" more=(--tasks "$scratch/tasks.jsonl") ;;
    openenv)
      serve coins "$python" tools/bridges/openenv_coins.py 0
      what="openenv:$url" shown="openenv:URL"
      ;;
    *) echo "bridges: there is no bridge $kind" >&2; exit 2 ;;
  esac
  shown="${shown:-$what}"
  bridged "$kind" "$what" "${more[@]}" || { failed=1; echo "| $kind | failed: see standard error | | | | |"; }
done
exit "$failed"
