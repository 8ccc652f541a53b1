#!/usr/bin/env bash
# AgentGym's SearchQA. It needs a GPU with CUDA, the E5 index of Wikipedia (some 64 GB) and the
# corpus, which setup.sh in the clone downloads into retrieve_data.
source "$(dirname "$0")/../common.sh"
name=searchqa source_of=agentenv-searchqa module=agentenv_searchqa python="3.10 3.10" port=21301 wait_s=1800
prepare() {
  [ -d "$originals/agentenv-searchqa/retrieve_data" ] || fail "$originals/agentenv-searchqa/retrieve_data is missing; setup.sh there downloads it"
}
serve "$@"
