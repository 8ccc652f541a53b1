#!/usr/bin/env bash
# AgentGym's BabyAI, on MiniGrid 2.3.1: a newer gymnasium registers no BabyAI levels by itself.
source "$(dirname "$0")/../common.sh"
name=babyai source_of=agentenv-babyai module=agentenv_babyai python="3.11 3.12" port=21101
serve "$@"
