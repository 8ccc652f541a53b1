#!/usr/bin/env bash
# AgentGym's ScienceWorld, on scienceworld 1.2.3. Each session is a Java process of 300 to 400 MB.
source "$(dirname "$0")/../common.sh"
name=sciworld source_of=agentenv-sciworld module=agentenv_sciworld python="3.11 3.12" port=21201 wait_s=300
prepare() {
  command -v java > /dev/null || fail "needs Java (Debian: apt-get install default-jre-headless)"
}
serve "$@"
