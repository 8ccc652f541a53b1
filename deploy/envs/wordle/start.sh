#!/usr/bin/env bash
# AgentGym's Wordle, one of the two games of its lmrlgym server. Its source is the submodule
# agentenv-lmrlgym/lmrlgym (github.com/abdulhaim/LMRL-Gym).
source "$(dirname "$0")/../common.sh"
name=wordle source_of=agentenv-lmrlgym module=agentenv_lmrlgym python="3.11 3.12" port=21601 suffix=/wordle
prepare() {
  extra_path="$originals/agentenv-lmrlgym/lmrlgym"
  [ -d "$extra_path/llm_rl_scripts" ] || fail "$extra_path is empty: git submodule update --init in the clone"
}
serve "$@"
