#!/usr/bin/env bash
# Asks a working `agentgym-worker --metrics` as Prometheus and a supervisor do, with the programs in
# target/release (or AGENTGYM_PROGRAMS): promtool accepts what it answers, every metric of
# deploy/grafana.json is in it, and /health says how it is. promtool is Debian's package prometheus,
# which is installed if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
programs="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)"
if ! command -v promtool >/dev/null 2>&1; then
  packages promtool "install Prometheus' promtool" prometheus
fi
scratch="$(mktemp -d)"
worker=""
submit=""
trap 'kill $worker $submit 2>/dev/null || true; rm -rf "$scratch"' EXIT
store="$scratch/store"
fail() {
  echo "promtool: $1" >&2
  sed 's/^/  /' "$scratch"/*.log >&2
  exit 1
}
AGENTGYM_CACHE="$scratch/cache" "$programs/agentgym-submit" --quiet configs/smoke.yaml run.id=metrics jobs.workers=0 \
  trainer.total_training_steps=1 sft.steps=0 sft.sources=[] --store "$store" >"$scratch/submit.log" 2>&1 &
submit=$!
for _ in $(seq 100); do
  [ ! -e "$store/runs/metrics/plan/0000.json" ] || break
  sleep 0.1
done
NO_COLOR=1 "$programs/agentgym-worker" --store "$store" --run metrics --exit-when-finished \
  --metrics 127.0.0.1:0 --label kind=test --price 0.5 >"$scratch/worker.log" 2>&1 &
worker=$!
address=""
for _ in $(seq 100); do
  address="$(sed -n 's,.*metrics at http://\([0-9.:]*\)/metrics.*,\1,p' "$scratch/worker.log")"
  [ -z "$address" ] || break
  sleep 0.1
done
[ -n "$address" ] || fail "the worker names no address"
curl -sf "http://$address/health" | grep -q '"status":"ok"' || fail "/health is not ok"
# What another worker is told, and one that anybody could read.
for given in "$address" 0.0.0.0:0; do
  code=0
  "$programs/agentgym-worker" --store "$store" --metrics "$given" >"$scratch/refused.log" 2>&1 || code=$?
  [ "$code" -eq 2 ] || fail "--metrics $given ends with $code, not 2"
done
# The last answer of its life has everything that it did.
while kill -0 "$worker" 2>/dev/null; do
  if curl -sf "http://$address/metrics" >"$scratch/next"; then
    mv "$scratch/next" "$scratch/metrics"
  fi
  sleep 0.2
done
wait "$worker" || fail "the worker ended with $?"
wait "$submit" || fail "the run ended with $?"
promtool check metrics <"$scratch/metrics" || fail "promtool does not accept /metrics"
python3 - "$scratch/metrics" <<'PYTHON'
import json, re, sys

text = open(sys.argv[1]).read()
known = set(re.findall(r"^# TYPE (\S+)", text, re.M))
panels = json.load(open("deploy/grafana.json"))["panels"]
asked = {name for panel in panels for target in panel["targets"] for name in re.findall(r"agentgym_\w+", target["expr"])}
asked = {re.sub("_bucket$", "", name) for name in asked}
# A family without a value is not there: no environment failed.
missing = asked - known - {"agentgym_env_faults_total"}
assert not missing, f"deploy/grafana.json asks for {missing}, and /metrics has {known}"
value = lambda line: float(re.search("^" + re.escape(line) + r" (\S+)$", text, re.M).group(1))
assert value('agentgym_tokens_total{kind="sampled"}') > 0
assert value('agentgym_attempts_total{outcome="committed",stage="rollout"}') > 0
assert value('agentgym_env_call_seconds_count{env="worlds"}') > 0
assert value('agentgym_store_requests_total{request="put"}') > 0
assert value('agentgym_memory_bytes{of="resident"}') > 1e6
print(f"promtool: accepted; the dashboard asks for {len(asked)} metrics")
PYTHON
# The records of its attempts say the same of it.
"$programs/agentgym-submit" workers metrics --json --store "$store" |
  python3 -c 'import json, sys; [w] = json.load(sys.stdin)["workers"]; assert (w["labels"], w["price"], w["device"]) == ({"kind": "test"}, 0.5, "cpu"), w'
