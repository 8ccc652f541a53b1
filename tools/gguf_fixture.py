#!/usr/bin/env python3
"""Makes what the tests of `agentgym-submit import` read, by PyPI's gguf 0.19.0 and numpy alone:

    gguf_fixture.py blocks > tests/fixtures/gguf-blocks.txt
    gguf_fixture.py model tests/fixtures/qwen2-tiny tests/fixtures/qwen2-tiny.gguf

The first are blocks of chance in every number format of GGUF files that is imported, and the numbers that gguf makes
of them: a line has the format's name, the bytes, and the bytes of the f32 numbers, in hexadecimal. The second is a
policy's folder of the Qwen2 family in several formats.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
from llama_server import renamed, tensors

FORMATS = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
# Where a block's scales lie, which are f16: chance makes infinities of some.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
# Of the model's tensors; the others are F32.
STORED = {"token_embd": "Q8_0", "attn_q": "Q5_1", "attn_output": "BF16", "ffn_up": "Q4_1", "ffn_gate": "Q5_0", "ffn_down": "F16"}


def blocks():
    chance = np.random.default_rng(11)
    for name in FORMATS:
        kind = gguf.GGMLQuantizationType[name]
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        bytes = chance.integers(0, 256, (2 if numbers < 256 else 1, size), dtype=np.uint8)
        if numbers == 1:
            bytes = gguf.quants.quantize(chance.standard_normal(8).astype(np.float32), kind).view(np.uint8)
        for at in SCALES.get(name, []):
            for block in bytes:
                block[at:at + 2] = np.frombuffer(np.float16(chance.standard_normal()).tobytes(), np.uint8)
        plain = {"F32": "<f4", "F16": "<f2"}.get(name)
        widened = bytes.view(plain) if plain else gguf.quants.dequantize(bytes.reshape(-1), kind)
        print(name, bytes.tobytes().hex(), widened.astype("<f4").tobytes().hex())


def model(folder, out):
    config = json.loads((folder / "config.json").read_text())
    read = json.loads((folder / "tokenizer.json").read_text())
    tokens = {id: text for text, id in read["model"]["vocab"].items()}
    special = {token["id"] for token in read["added_tokens"]}
    kind_of = lambda id: 3 if id in special else 1 if id in tokens else 5
    writer, family, size = gguf.GGUFWriter(out, "qwen2"), "qwen2", config["vocab_size"]
    for name, key in [("context_length", "max_position_embeddings"), ("embedding_length", "hidden_size"),
                      ("block_count", "num_hidden_layers"), ("feed_forward_length", "intermediate_size"),
                      ("attention.head_count", "num_attention_heads"), ("attention.head_count_kv", "num_key_value_heads")]:
        writer.add_uint32(f"{family}.{name}", config[key])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(id, f"[PAD{id}]") for id in range(size)])
    writer.add_token_types([kind_of(id) for id in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in read["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    for name, values in tensors(folder):
        own = renamed(name)
        kind = gguf.GGMLQuantizationType[STORED.get(own.split(".")[-2], "F32") if own.endswith(".weight") else "F32"]
        writer.add_tensor(own, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    {"blocks": blocks, "model": model}[what](*map(pathlib.Path, paths))
