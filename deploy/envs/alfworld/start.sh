#!/usr/bin/env bash
# AgentGym's ALFWorld. Its games are downloaded once with alfworld-download into ALFWORLD_DATA.
source "$(dirname "$0")/../common.sh"
name=alfworld source_of=agentenv-alfworld module=agentenv_alfworld python="3.9 3.10" port=21801 wait_s=600
prepare() {
  export ALFWORLD_DATA="${ALFWORLD_DATA:-$HOME/.cache/alfworld}"
  [ -d "$ALFWORLD_DATA" ] || fail "$ALFWORLD_DATA is missing; $venv/bin/alfworld-download fills it"
}
serve "$@"
