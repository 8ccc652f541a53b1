#!/usr/bin/env bash
# AgentGym's Wordle.
source "$(dirname "$0")/../lmrlgym.sh"
name=wordle port=21601 suffix=/wordle
serve "$@"
