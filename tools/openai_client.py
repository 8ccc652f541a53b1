#!/usr/bin/env python3
"""Asks `agentgym-submit serve` by OpenAI's own Python client: scripts/openai.sh starts both.

    tools/openai_client.py URL
"""

import math
import sys

import openai


def main():
    client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id

    prompt = "Goal: craft a torch."
    asked = dict(model=model.id, prompt=prompt, max_tokens=24, seed=3)
    whole = client.completions.create(**asked, n=2, logprobs=1)
    assert [choice.index for choice in whole.choices] == [0, 1]
    for choice in whole.choices:
        scored = choice.logprobs
        assert len(scored.tokens) == len(scored.token_logprobs) == len(choice.token_ids)
        assert all(math.isfinite(p) and p <= 0 for p in scored.token_logprobs)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    # A stream says the same; the counts come last.
    texts, counts = ["", ""], None
    for chunk in client.completions.create(**asked, n=2, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        counts = chunk.usage or counts
    assert texts == [choice.text for choice in whole.choices], texts
    assert counts == whole.usage, counts

    # What was sampled, scored as part of a prompt: the same numbers.
    ids = whole.choices[0].token_ids
    before = client.completions.create(
        model=model.id, prompt=prompt, max_tokens=1, seed=3, extra_body={"return_token_ids": True}
    ).choices[0].prompt_token_ids
    echo = client.completions.create(
        model=model.id, prompt=before + ids, max_tokens=0, echo=True, logprobs=1
    ).choices[0]
    assert echo.logprobs.token_logprobs[0] is None
    assert echo.logprobs.token_logprobs[len(before):] == whole.choices[0].logprobs.token_logprobs
    assert echo.text.startswith(prompt)

    messages = [{"role": "user", "content": prompt}]
    asked = dict(model=model.id, messages=messages, max_completion_tokens=24, seed=4, logprobs=True)
    chat = client.chat.completions.create(**asked).choices[0]
    assert chat.message.role == "assistant" and chat.finish_reason in ("stop", "length")
    assert len(chat.logprobs.content) == len(chat.token_ids)
    text = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        text += chunk.choices[0].delta.content or ""
    assert text == chat.message.content, text

    for wrong, expected in [
        (dict(model="gpt-4", prompt="a"), openai.NotFoundError),
        (dict(model=model.id, prompt="a", logprobs=5), openai.BadRequestError),
        (dict(model=model.id, prompt=[5] * 100_000), openai.BadRequestError),
    ]:
        try:
            client.completions.create(**wrong)
        except expected as error:
            print(f"refused: {error.message}")
        else:
            sys.exit(f"openai: not refused: {wrong}"[:200])
    print(f"openai {openai.__version__}: {model.id} answers as it should")


if __name__ == "__main__":
    main()
