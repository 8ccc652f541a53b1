"""Decoding and scoring by llama.cpp, for tools/torch_speed.py, which starts this and asks it.

    pip install gguf numpy
    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python

The second line builds it for this processor, in a quarter of an hour; what it has been built with is
said on stderr. Weights are random, in a GGUF file that is made in the temporary folder. Its cache is
in f16, and nothing is sampled within its clock: it draws no ids and takes no log-probs, as ours does.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import gguf
import llama_cpp as llama
import numpy

TYPES = {"float32": gguf.GGMLQuantizationType.F32, "bfloat16": gguf.GGMLQuantizationType.BF16}


def write_model(path, sizes, dtype):
    """A Qwen2 of random weights whose head is its embedding."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    heads, kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    width = hidden // heads
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(sizes["vocab_size"])
    writer.add_tokenizer_model("no_vocab")

    def matrix(name, *shape):
        numbers = random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.02)
        kind = TYPES[dtype]
        writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)

    def vector(name, value, length):
        writer.add_tensor(name, numpy.full(length, value, numpy.float32))

    matrix("token_embd.weight", sizes["vocab_size"], hidden)
    vector("output_norm.weight", 1, hidden)
    for layer in range(sizes["num_hidden_layers"]):
        at = f"blk.{layer}."
        vector(at + "attn_norm.weight", 1, hidden)
        for name, rows in (("q", heads * width), ("k", kv_heads * width), ("v", kv_heads * width)):
            matrix(f"{at}attn_{name}.weight", rows, hidden)
            vector(f"{at}attn_{name}.bias", 0, rows)
        matrix(at + "attn_output.weight", hidden, heads * width)
        vector(at + "ffn_norm.weight", 1, hidden)
        matrix(at + "ffn_gate.weight", inner, hidden)
        matrix(at + "ffn_up.weight", inner, hidden)
        matrix(at + "ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Context:
    """Some sequences of up to so many tokens, all as long as one another."""

    def __init__(self, model, threads, rows, length):
        options = llama.llama_context_default_params()
        # A multiple of 256 for each sequence, as it asks.
        options.n_ctx = rows * -(-length // 256) * 256
        options.n_batch = options.n_ctx
        options.n_seq_max = rows
        options.n_threads = options.n_threads_batch = threads
        self.rows, self.random = rows, numpy.random.default_rng(2)
        self.context = llama.llama_init_from_model(model, options)
        self.batch = llama.llama_batch_init(options.n_ctx, 0, 1)
        if not self.context:
            sys.exit("llama_speed: llama.cpp made no context; its log has the reason")

    def clear(self):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def run(self, first, count, every_logit):
        """Runs `count` random tokens of each sequence from position `first` on; returns the seconds."""
        ids = self.random.integers(3, 1000, self.rows * count)
        for number, token in enumerate(ids):
            row, at = divmod(number, count)
            self.batch.token[number] = int(token)
            self.batch.pos[number] = first + at
            self.batch.n_seq_id[number] = 1
            self.batch.seq_id[number][0] = row
            self.batch.logits[number] = every_logit or at + 1 == count
        self.batch.n_tokens = len(ids)
        wall, cpu = time.perf_counter(), time.process_time()
        if llama.llama_decode(self.context, self.batch) != 0:
            sys.exit("llama_speed: llama.cpp decodes nothing; its log has the reason")
        # Waits for what is under way.
        llama.llama_get_logits_ith(self.context, len(ids) - 1)
        return time.perf_counter() - wall, time.process_time() - cpu

    def end(self):
        llama.llama_batch_free(self.batch)
        llama.llama_free(self.context)


def measure(model, threads, case, shape, seconds):
    """Repeats a case for so many seconds after a first time."""
    is_score = case == "score"
    rows, length = shape["sequences"]
    context, sampled = shape["decode"]
    if not is_score:
        rows, length = int(case.removeprefix("decode-")), context + sampled
    own = Context(model, threads, rows, length)
    done = {"tokens": 0, "wall_s": 0.0, "cpu_s": 0.0}
    warm = False
    while done["wall_s"] < seconds:
        own.clear()
        if is_score:
            steps = [(0, length)]
        else:
            own.run(0, context, False)
            steps = [(context + at, 1) for at in range(sampled - 1)]
        for first, count in steps:
            wall, cpu = own.run(first, count, is_score)
            if warm:
                done["tokens"] += rows * count
                done["wall_s"] += wall
                done["cpu_s"] += cpu
        warm = True
    own.end()
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dtype", choices=TYPES)
    parser.add_argument("threads", type=int)
    parser.add_argument("shape", type=json.loads, help="an entry of torch_speed.py's SHAPES")
    options = parser.parse_args()

    @llama.llama_log_callback
    def quiet(level, text, data):
        pass

    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    print(f"llama.cpp: {llama.llama_print_system_info().decode()}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.gguf"
        write_model(path, options.shape["sizes"], options.dtype)
        settings = llama.llama_model_default_params()
        model = llama.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        sys.exit("llama_speed: llama.cpp cannot read the model")
    for line in sys.stdin:
        request = json.loads(line)
        case, seconds = request["case"], request["seconds"]
        answer = measure(model, options.threads, case, options.shape, seconds)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
