#!/usr/bin/env python3
"""llama.cpp's HTTP server on a policy folder, for tests of `actor_rollout_ref.rollout.engine: server`
against a server that is not ours. scripts/llama.sh starts it in a virtual environment with the pinned
packages:

    scripts/llama.sh convert FOLDER FILE        # a policy folder in Hugging Face's layout as GGUF, f32
    scripts/llama.sh serve FOLDER PORT          # convert it and serve it on 127.0.0.1

It says `listening` once it answers. A process of its own answers: another one is started when it
ends, and when `serve` gets SIGHUP, so that FOLDER is read again and nothing of the former policy is left.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

# Tensors of the families, in the words of GGUF.
FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tensors(folder):
    """Names and values of all of a folder's safetensors files, as float32."""
    import numpy

    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + at for at in entry["data_offsets"])
            raw = content[begin:end]
            if entry["dtype"] == "F32":
                values = numpy.frombuffer(raw, dtype="<f4")
            elif entry["dtype"] == "BF16":
                halves = numpy.frombuffer(raw, dtype="<u2").astype("<u4") << 16
                values = halves.view("<f4")
            else:
                sys.exit(f"llama_server: {name} in {path} is {entry['dtype']}; only F32 and BF16 are read")
            yield name, values.reshape(entry["shape"])


def renamed(name):
    if name in WHOLE:
        return WHOLE[name]
    parts = name.split(".")
    module = ".".join(parts[3:-1])
    if parts[:2] != ["model", "layers"] or module not in LAYER:
        sys.exit(f"llama_server: no name in GGUF for the tensor {name}")
    return f"blk.{parts[2]}.{LAYER[module]}.{parts[-1]}"


def interleaved(values, heads):
    """Rows of each head as llama.cpp's `llama` turns them: pairs (0, 1), (2, 3) in place of (i, i + half)."""
    shape = values.shape
    return values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def convert(folder, out):
    """Writes a folder of a known family as one GGUF file."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    family = FAMILIES.get(config["model_type"])
    if family is None:
        sys.exit(f"llama_server: {folder} is a {config['model_type']}; this converts {', '.join(FAMILIES)}")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    if tokenizer["model"]["type"] != "BPE" or tokenizer["model"].get("byte_fallback"):
        sys.exit(f"llama_server: the tokenizer of {folder} is no byte-level BPE")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        sys.exit(f"llama_server: {folder} scales its rotary positions; this converts plain ones alone")
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(str(out), family)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_rope_freq_base(config.get("rope_theta") or rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)

    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    known = {id: text for text, id in tokenizer["model"]["vocab"].items()} | special
    size = config["vocab_size"]
    texts = [known.get(id, f"[unused{id}]") for id in range(size)]
    kinds = [
        gguf.TokenType.CONTROL
        if id in special
        else gguf.TokenType.NORMAL
        if id in known
        else gguf.TokenType.UNUSED
        for id in range(size)
    ]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    # Prompts are ids, so the server splits no text.
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    ends = config["eos_token_id"]
    writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)
    writer.add_add_bos_token(False)

    for name, values in tensors(folder):
        turned = {"self_attn.q_proj": heads, "self_attn.k_proj": key_heads}.get(".".join(name.split(".")[3:-1]))
        if family == "llama" and turned:
            values = interleaved(values, turned)
        writer.add_tensor(renamed(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def answer(folder, port, context, slots):
    """Serves what the folder holds now, until the process ends."""
    import xllamacpp

    with tempfile.TemporaryDirectory() as scratch:
        model = pathlib.Path(scratch) / "model.gguf"
        convert(folder, model)
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.hostnames, params.port = ["127.0.0.1"], port
        params.n_ctx, params.n_parallel = context * slots, slots
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.warmup, params.ui = False, False
        server = xllamacpp.Server(params)
        print(f"listening at {server.listening_address}", flush=True)
        signal.pause()


def serve(folder, port, pid_file):
    """Starts a process that answers, and another one whenever that ends; SIGHUP ends it."""
    child = None

    def end(number, _frame):
        if child:
            child.kill()
        if number == signal.SIGTERM:
            sys.exit(0)

    signal.signal(signal.SIGHUP, end)
    signal.signal(signal.SIGTERM, end)
    while True:
        while not (folder / "config.json").exists():
            time.sleep(0.1)
        child = subprocess.Popen([sys.executable, *sys.argv, "--answer"])
        if pid_file:
            pid_file.write_text(f"{child.pid}\n")
        child.wait()
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("convert")
    one.add_argument("folder", type=pathlib.Path)
    one.add_argument("out", type=pathlib.Path)
    two = commands.add_parser("serve")
    two.add_argument("folder", type=pathlib.Path)
    two.add_argument("port", type=int)
    two.add_argument("--context", type=int, default=4096, help="tokens of one sequence")
    two.add_argument("--slots", type=int, default=8, help="sequences at once")
    two.add_argument("--pid-file", type=pathlib.Path, help="where the process that answers is named")
    two.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.command == "convert":
        convert(given.folder, given.out)
    elif given.answer:
        answer(given.folder, given.port, given.context, given.slots)
    else:
        serve(given.folder, given.port, given.pid_file)


if __name__ == "__main__":
    main()
