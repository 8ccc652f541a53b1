#!/usr/bin/env python3
"""What transformers renders and encodes of a conversation with calls of tools, for
tests/fixtures/tools: our template with tools (model/src/tiny_tools.jinja, in the form of
Qwen2.5's instruct models) on the tokenizer of tests/fixtures/qwen2-tiny.

    pip install transformers jinja2        (no torch; the numbers are those of transformers 5.24)
    tools/tool_calls_fixture.py            writes the fixture again

`text` and `ids` are the conversation whose replies are texts, as episodes hold them;
`structured` is the text of the same calls given as `tool_calls`, and of answers in a row.
"""
import json
import pathlib

from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

TOOLS = [
    {"type": "function", "function": {
        "name": "get", "description": "The number under a key, in \"é\" <b>.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "Which."}},
                       "required": ["key"]}}},
    {"type": "function", "function": {
        "name": "finish", "description": "", "parameters": {"type": "object", "properties": {}, "required": []}}},
]


def said(name, arguments):
    call = f'{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def structured(name, arguments):
    return {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": name, "arguments": arguments}}]}


def main():
    # As tokenizer.json says: the class of the family would split digits in its own way.
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FIXTURES / "qwen2-tiny" / "tokenizer.json"))
    template = (ROOT / "model" / "src" / "tiny_tools.jinja").read_text()
    task = {"role": "user", "content": "Goal: put under ash what is bay é"}
    messages = [
        task,
        {"role": "assistant", "content": "I look.\n" + said("get", {"key": "bay \"é\""})},
        {"role": "tool", "content": "bay is 12\n<tool_call>"},
        {"role": "assistant", "content": said("finish", {})},
        {"role": "tool", "content": "Error: not yet."},
    ]
    calls = [
        {"role": "system", "content": "Be brief."}, task, structured("get", {"key": "bay \"é\""}),
        {"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}, structured("finish", {}),
    ]
    def render(messages, **more):
        more = {"chat_template": template, "tools": TOOLS, "tokenize": False, **more}
        return tokenizer.apply_chat_template(messages, **more)
    text = render(messages, add_generation_prompt=True)
    ids = render(messages, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    golden = {"tools": TOOLS, "messages": messages, "text": text, "ids": ids,
              "structured_messages": calls, "structured": render(calls),
              "without_tools": render([task], tools=None, add_generation_prompt=True)}
    path = FIXTURES / "tools" / "golden.json"
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
