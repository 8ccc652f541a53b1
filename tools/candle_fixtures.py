#!/usr/bin/env python3
"""Makes tests/fixtures/candle: small models of random weights in families that candle computes, and what
transformers says of them.

    candle_fixtures.py TOKENIZER_FOLDER TO

Each family gets a folder as transformers saves it, or one with a GGUF file, with the tokenizer of
TOKENIZER_FOLDER and `expected.json`: a conversation of three turns, in which each turn's known ids are
followed by those that transformers finds likeliest, computed from the start every time; and the logits
behind the first turn's known ids. scripts/candle_fixtures.sh makes the environment.
"""

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
# The prompts together pass the window of gemma3_text.
TURNS, KNOWN, GREEDY = 3, 21, 12
COMMON = dict(vocab_size=384, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=1, max_position_embeddings=4096, initializer_range=0.4, bos_token_id=0,
              eos_token_id=2, pad_token_id=0)
HEADS = dict(head_dim=8, query_pre_attn_scalar=8)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12)
FAMILIES = {
    "gemma": dict(COMMON, head_dim=8),
    "gemma2": dict(COMMON, **HEADS, sliding_window=3000),
    "gemma3_text": dict(COMMON, **HEADS, num_hidden_layers=3, sliding_window=24, sliding_window_pattern=3),
    "phi3": dict(COMMON),
    "qwen2_moe": dict(COMMON, **EXPERTS, shared_expert_intermediate_size=20),
    "qwen3_moe": dict(COMMON, **EXPERTS, head_dim=12, norm_topk_prob=True),
}
# Blocks of quantised numbers are 32 wide.
WIDE = dict(COMMON, hidden_size=32, intermediate_size=32, max_position_embeddings=2048)
FILES = {
    "phi3-gguf": ("phi3", WIDE, gguf.GGMLQuantizationType.F32),
    "llama-gguf": ("llama", dict(WIDE, num_key_value_heads=2), gguf.GGMLQuantizationType.F32),
    "llama-q8-gguf": ("llama", dict(WIDE, num_key_value_heads=2), gguf.GGMLQuantizationType.Q8_0),
}


def model_of(family, sizes, seed):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms and biases that are all one or zero would hide a mistake.
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        if config.tie_word_embeddings:
            # Else every id is followed by itself.
            model.get_input_embeddings().weight.mul_(0.2)
    return model


def row(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].float()


def expected(model):
    numbers = np.random.default_rng(7)
    ids, turns, logits = [], [], None
    for _ in range(TURNS):
        known = [int(n) for n in numbers.integers(3, 380, KNOWN)]
        ids += known
        if logits is None:
            logits = [round(float(x), 6) for x in row(model, ids)]
        greedy = []
        for _ in range(GREEDY):
            greedy.append(int(row(model, ids).argmax()))
            ids.append(greedy[-1])
        turns.append({"known": known, "greedy": greedy})
    return {"turns": turns, "logits": logits}


def permuted(weight, heads):
    """Rows of a head as llama.cpp's llama has them: the two halves of its rotation beside each other."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(model, tokenizer, kind, path):
    config, family = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())
    tokens = {id: text for text, id in vocabulary["model"]["vocab"].items()}
    tokens |= {token["id"]: token["content"] for token in vocabulary["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([tokens.get(id, f"[PAD{id}]") for id in range(config.vocab_size)])
    writer.add_eos_token_id(config.eos_token_id)
    names = gguf.get_tensor_name_map({"phi3": gguf.MODEL_ARCH.PHI3, "llama": gguf.MODEL_ARCH.LLAMA}[family],
                                     config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        numbers = tensor.numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            numbers = permuted(numbers, config.num_attention_heads)
        stored = kind if numbers.ndim == 2 else gguf.GGMLQuantizationType.F32
        quantised = gguf.quants.quantize(np.ascontiguousarray(numbers), stored)
        if stored != gguf.GGMLQuantizationType.F32:
            rounded = gguf.quants.dequantize(quantised, stored).reshape(numbers.shape)
            if family == "llama" and ("q_proj" in name or "k_proj" in name):
                heads, (rows, columns) = config.num_attention_heads, rounded.shape
                rounded = rounded.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
                rounded = rounded.reshape(rows, columns)
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(rounded.copy()))
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), quantised, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    tokenizer, to = Path(sys.argv[1]), Path(sys.argv[2])
    made = [(name, (name, sizes, None)) for name, sizes in FAMILIES.items()] + list(FILES.items())
    for seed, (name, (family, sizes, kind)) in enumerate(made):
        folder = to / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = model_of(family, sizes, seed)
        if kind is None:
            model.save_pretrained(folder)
            (folder / "model.safetensors").chmod(0o644)
        else:
            # The weights of `model` become those that the file holds.
            write_gguf(model, tokenizer, kind, folder / "model.gguf")
        for file in TOKENIZER:
            shutil.copy(tokenizer / file, folder / file)
        said = expected(model)
        (folder / "expected.json").write_text(json.dumps(said) + "\n")
        bytes = sum(path.stat().st_size for path in folder.iterdir())
        print(name, f"{bytes / 1e3:.0f} kB", said["turns"][0]["greedy"], file=sys.stderr)


main()
