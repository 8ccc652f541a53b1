#!/usr/bin/env bash
# AgentGym's WebShop. setup.sh in the clone downloads its products (Google Drive) and builds a Lucene
# index, for which it needs Java 11; the recipe starts what is there then.
source "$(dirname "$0")/../common.sh"
name=webshop source_of=agentenv-webshop module=agentenv_webshop python="3.8 3.8" port=21701 wait_s=600
prepare() {
  command -v java > /dev/null || fail "needs Java 11 (Debian: apt-get install default-jre-headless)"
  [ -d "$originals/agentenv-webshop/webshop/search_engine/indexes" ] || fail "$originals/agentenv-webshop/webshop/search_engine/indexes is missing; setup.sh in agentenv-webshop makes it"
}
serve "$@"
