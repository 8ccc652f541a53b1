#!/usr/bin/env bash
# AgentGym's SQLGym. The BIRD databases (tens of GB) are downloaded as setup.sh in the clone says, and
# named by AGENTENV_SQLGYM_BIRD_PATH.
source "$(dirname "$0")/../common.sh"
name=sqlgym source_of=agentenv-sqlgym module=agentenv_sqlgym python="3.11 3.12" port=21901
prepare() {
  [ -d "${AGENTENV_SQLGYM_BIRD_PATH:-}" ] || fail "AGENTENV_SQLGYM_BIRD_PATH names no folder with the BIRD databases"
}
serve "$@"
