#!/usr/bin/env bash
# Plays a fixed set of short runs with the built programs and prints a line for each: its name and
# its digest. A change that is to move no byte gives the same lines before and after:
#
#   scripts/digests.sh > before            # all of them, some two minutes on two cores
#   scripts/digests.sh ppo lora > some     # those whose name contains one of these
#   scripts/digests.sh --compare before    # plays those of `before`, exit 1 where one differs
#
# Digests belong to a machine's instruction set (docs/reliability.md), so none is kept here. PROGRAMS
# names the folder of the programs (target/release), OVERRIDES keys that every run is given, such as
# one that asks for the numbers of an earlier program.
set -euo pipefail
cd "$(dirname "$0")/.."
programs="$(realpath "${PROGRAMS:-target/release}")"
expected=
if [ "${1:-}" = --compare ]; then
  expected="$(cat "${2:?--compare takes the file of an earlier run}")"
  shift 2
fi
[ -x "$programs/agentgym-submit" ] ||
  { echo "digests: no agentgym-submit in $programs; cargo build --release --workspace --bins" >&2; exit 2; }
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# submit NAME WORD… : the program, on the store of that run.
submit() {
  local overrides=()
  [ "$2" = fork ] || read -ra overrides <<<"${OVERRIDES:-}"
  "$programs/agentgym-submit" --quiet --store "$scratch/$1" "${@:2}" "${overrides[@]}" >>"$scratch/$1.log" 2>&1
}

# What is left of the smoke run where a few steps show what is special.
short=(
  trainer.total_training_steps=2 data.train_batch_size=4 'data.tasks=[{env: worlds, ids: 0..1000}]'
  actor_rollout_ref.actor.ppo_mini_batch_size=2 'evaluation.sets=[]'
)
qwen3=(
  'actor_rollout_ref.model.path=tiny?arch=qwen3&hidden=64&layers=2&vocab=512'
  "actor_rollout_ref.agentgym.envs.worlds={task_name: babyai, env_addr: 'builtin:babyai'}"
  actor_rollout_ref.rollout.max_tokens=16 actor_rollout_ref.rollout.temperature=0.7
  "data.tasks=[{env: worlds, ids: '3..40003:40'}]"
  "sft.sources=[{env: worlds, ids: '2000003..2040003:40'}]" sft.steps=60 sft.lr=3e-3 jobs.sft_part_steps=20
)

# play NAME CONFIG OVERRIDE…
play() { submit "$1" run "configs/$2.yaml" "run.id=$1" "${@:3}"; }

# A run whose process is killed again and again. All digests are taken when it is done, so that
# a kill that changes one shows beside the undisturbed run of the same config.
killed() {
  local name="$1" pid seconds
  for seconds in 1 2 2 3 2 1; do
    "$programs/agentgym-submit" --quiet --store "$scratch/$name" run configs/smoke.yaml run.id=smoke jobs.lease_ttl_s=2 ${OVERRIDES:-} \
      >>"$scratch/$name.log" 2>&1 &
    pid=$!
    sleep "$seconds"
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  submit "$name" run configs/smoke.yaml run.id=smoke
}

runs='smoke killed fork shards rloo gigpo reinforce_plus_plus remax filter_groups kl_loss kl_reward sequence_mean
truncated lag limited_context qwen3 ppo lora sft sft_epochs dpo dpo_lora agentevol eval
searchqa'

make_run() {
  local name="$1"
  case "$name" in
    smoke) submit smoke run configs/smoke.yaml run.id=smoke ;;
    killed) killed killed ;;
    fork)
      play fork smoke "${short[@]}"
      submit fork fork fork --iteration 1 run.id=child actor_rollout_ref.actor.optim.lr=2e-4
      ;;
    shards) play shards smoke jobs.update_shards=3 jobs.workers=2 jobs.threads=1 ;;
    rloo | gigpo | reinforce_plus_plus) play "$name" smoke "${short[@]}" "algorithm.adv_estimator=$name" ;;
    remax) play remax smoke "${short[@]}" algorithm.adv_estimator=remax data.seed=2 ;;
    filter_groups) play "$name" smoke "${short[@]}" algorithm.filter_groups.enable=true algorithm.filter_groups.max_num_gen_batches=2 ;;
    kl_loss) play "$name" smoke "${short[@]}" actor_rollout_ref.actor.use_kl_loss=true actor_rollout_ref.actor.kl_loss_coef=0.01 ;;
    kl_reward)
      play "$name" smoke "${short[@]}" algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.kl_coef=0.01
      ;;
    sequence_mean) play "$name" smoke "${short[@]}" actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean ;;
    truncated) play "$name" smoke "${short[@]}" actor_rollout_ref.rollout.top_p=0.9 algorithm.rollout_correction.rollout_is=token ;;
    lag) play "$name" smoke algorithm.lag=1 algorithm.rollout_correction.rollout_is=sequence 'evaluation.sets=[]' ;;
    limited_context) play "$name" smoke "${short[@]}" actor_rollout_ref.agentgym.context_turns=2 actor_rollout_ref.agentgym.summary=prompts/summary.md ;;
    qwen3) play "$name" smoke "${short[@]}" "${qwen3[@]}" ;;
    ppo | lora | dpo) play "$name" "$name" ;;
    sft) play "$name" smoke run.pipeline=sft sft.steps=24 jobs.sft_part_steps=4 sft.warmup_steps=6 evaluation.samples=1 ;;
    sft_epochs) play "$name" smoke run.pipeline=sft sft.steps=0 sft.epochs=2 sft.validation_share=0.1 'sft.sources=[{env: worlds, ids: 100000..100040}]' ;;
    dpo_lora) play "$name" dpo actor_rollout_ref.model.lora_rank=4 ;;
    agentevol) play "$name" smoke "${short[@]}" run.pipeline=agentevol agentevol.keep=all agentevol.steps=9 ;;
    eval) submit eval eval configs/smoke.yaml run.id=eval ;;
    searchqa)
      play "$name" smoke "${short[@]}" "actor_rollout_ref.agentgym.envs.other={task_name: searchqa, env_addr: 'builtin:searchqa?uncased=true'}" \
        'data.tasks=[{env: other, ids: 0..64}]' 'sft.sources=[{env: other, ids: 64..128}]' sft.steps=24 sft.lr=1e-3
      ;;
  esac
}

# The digests of every run in the store of NAME.
told() {
  local run
  for run in "$scratch/$1"/runs/*; do
    run="$(basename "$run")"
    printf '%-40s %s\n' "$1${run:+/$run}" "$("$programs/agentgym-submit" --store "$scratch/$1" digest "$run" | cut -d ' ' -f 1)"
  done
}

wanted() {
  [ -z "$expected" ] || grep -q "^$1/" <<<"$expected" || return 1
  [ "${#parts[@]}" -gt 0 ] || return 0
  local part
  for part in "${parts[@]}"; do [[ "$1" != *"$part"* ]] || return 0; done
  return 1
}

parts=("$@") differ=0 played=0 all=
for name in $runs; do
  wanted "$name" || continue
  make_run "$name" || { tail -n 5 "$scratch/$name.log" >&2; echo "digests: $name did not end well" >&2; exit 2; }
  lines="$(told "$name")"
  echo "$lines"
  played=$((played + 1))
  before="$(grep "^$name/" <<<"$expected" || true)"
  if [ -n "$expected" ] && [ "$lines" != "$before" ]; then
    echo "digests: $name was $(tr -s ' \n' ' ' <<<"$before")" >&2
    differ=$((differ + 1))
  fi
  rm -rf "${scratch:?}/$name"
  all+="$lines"$'\n'
done
# Where nothing is at stake, all algorithms end in the same bytes.
same="$(grep -v '^killed/' <<<"$all" | awk 'NF == 2 && seen[$2]++ { print $1 }')"
[ -z "$same" ] || { echo "digests: equal to another run: $same" >&2; exit 2; }
[ "$played" -gt 0 ] || { echo "digests: no run is called like ${parts[*]}" >&2; exit 2; }
[ "$differ" -eq 0 ]
