# Shared by the two games of AgentGym's lmrlgym server, maze and wordle. Their source is the submodule
# agentenv-lmrlgym/lmrlgym (github.com/abdulhaim/LMRL-Gym). Read instead of common.sh.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source_of=agentenv-lmrlgym module=agentenv_lmrlgym python="3.11 3.12"
prepare() {
  extra_path="$originals/agentenv-lmrlgym/lmrlgym"
  [ -d "$extra_path/llm_rl_scripts" ] || fail "$extra_path is empty: git submodule update --init in the clone"
}
