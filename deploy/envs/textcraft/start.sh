#!/usr/bin/env bash
# AgentGym's TextCraft. It finds its recipes only from its own folder.
source "$(dirname "$0")/../common.sh"
name=textcraft source_of=agentenv-textcraft module=agentenv_textcraft python="3.11 3.12" port=21001
serve "$@"
