#!/usr/bin/env bash
# AgentGym's maze.
source "$(dirname "$0")/../lmrlgym.sh"
name=maze port=21501 suffix=/maze
serve "$@"
