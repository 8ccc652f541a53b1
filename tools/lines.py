#!/usr/bin/env python3
"""Lines of production Rust by crate, at one or two commits: of files under src/ without tests, without blank lines
and comments in the second column.

    tools/lines.py                    # the files of this folder
    tools/lines.py 5b32d5b            # that commit beside them
    tools/lines.py 5b32d5b HEAD~3     # two commits

Left out are files and folders named tests or testing, and a `#[cfg(test)] mod … {` with what follows it. What must
be built to change the trainer is all but `view`, `serve`, `games` (once in `envs`) and candle's networks: the last row.
"""

import re
import subprocess
import sys

APART = re.compile(r"^(view|serve|games)/|^envs/src/(env/|scene|solver|template|draws)|^envs/src/bin/|candle|^model/src/foreign")
TESTS = re.compile(r"(^|/)(tests?|testing)(/|\.rs$|_)")


def git(*words):
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def files(commit):
    names = git("ls-tree", "-r", "--name-only", commit) if commit else git("ls-files", "-co", "--exclude-standard")
    found = (name for name in names.split("\n") if re.match(r"[a-z]+/src/.*\.rs$", name))
    return [name for name in found if not TESTS.search(name.split("/src/", 1)[1])]


def text(commit, name):
    if commit:
        return git("show", f"{commit}:{name}")
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def count(commit):
    """(all lines, lines of code) by crate, and of the trainer."""
    counts = {}
    for name in files(commit):
        content = text(commit, name)
        inline = re.search(r"^#\[cfg\(test\)\]\nmod \w+ \{", content, re.M)
        lines = content[: inline.start() if inline else len(content)].split("\n")
        code = sum(1 for line in lines if line.strip() and not line.strip().startswith("//"))
        parts = [name.split("/")[0], "all"] + ([] if APART.search(name) else ["to change the trainer"])
        for part in parts:
            before = counts.get(part, (0, 0))
            counts[part] = (before[0] + len(lines) - 1, before[1] + code)
    return counts


def main():
    commits = sys.argv[1:3] or [None]
    if len(commits) == 1 and commits[0]:
        commits.append(None)
    all_counts = [count(commit) for commit in commits]
    last = ["all", "to change the trainer"]
    for part in sorted(set().union(*all_counts) - set(last)) + last:
        cells = [counts.get(part, (0, 0)) for counts in all_counts]
        row = "".join(f"{lines:>9}{code:>9}" for lines, code in cells)
        if len(cells) == 2:
            row += f"{cells[1][0] - cells[0][0]:>+9}{cells[1][1] - cells[0][1]:>+9}"
        print(f"{part:<22}{row}")


if __name__ == "__main__":
    main()
