#!/usr/bin/env python3
"""Types what a document types and compares what comes out with what the document shows.

    tools/tutorial.py DOCUMENT [--print]

The document's `sh` blocks are one session of bash in the current folder; a `text` block is the
standard output of the block before it. `…` in it stands for anything, a line of its own for any lines.
With --print nothing is compared and every output is printed.
"""

import re
import subprocess
import sys


def blocks(text):
    """Pairs of commands and expected output, or None."""
    found = re.findall(r"^```(sh|text)\n(.*?)^```$", text, re.M | re.S)
    for place, (kind, body) in enumerate(found):
        if kind == "sh":
            after = found[place + 1] if place + 1 < len(found) else ("", "")
            yield body, after[1] if after[0] == "text" else None


def pattern(shown):
    lines = []
    for line in shown.splitlines():
        lines.append(r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n")
    return "".join(lines)


def main():
    document, printing = sys.argv[1], "--print" in sys.argv
    steps = list(blocks(open(document, encoding="utf-8").read()))
    assert steps, f"{document} types nothing"
    script = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for number, (commands, _) in enumerate(steps):
        script.append(f"exec >out.{number}\n{commands}")
    ended = subprocess.run(["bash", "-c", "\n".join(script)], stdin=subprocess.DEVNULL)
    wrong = 0
    for number, (commands, shown) in enumerate(steps):
        try:
            out = open(f"out.{number}", encoding="utf-8").read()
        except FileNotFoundError:
            print(f"tutorial: never typed, since what came before failed:\n{commands}", file=sys.stderr)
            return 1
        if printing:
            print(f"$ {commands}{out}")
        elif shown is not None and not re.fullmatch(pattern(shown), re.sub(r"[ \t]+$", "", out, flags=re.M)):
            wrong += 1
            print(f"tutorial: after\n{commands}the document shows\n{shown}and this came:\n{out}", file=sys.stderr)
    if not printing:
        print(f"tutorial: {len(steps)} blocks typed, {wrong} outputs differ")
    return 1 if wrong or ended.returncode else 0


sys.exit(main())
