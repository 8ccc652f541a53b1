#!/usr/bin/env python3
"""Decoding, scoring and training of a Qwen2 by PyTorch, beside our own.

    pip install torch transformers
    tools/torch_speed.py --against "cargo bench --workspace --bench speed --"
    tools/torch_speed.py --against "…" --shape 0.5b --seconds 5 decode-8 score
    tools/torch_speed.py --against "… --device cuda:0 --dtype bf16" --device cuda --threads 1 …

Both sides do the same work at the same lengths in turns (ours, theirs, ours, theirs), since
a machine that others use too is never the same twice. Of PyTorch every setting is measured
(eager and compiled, 1 and 2 threads, f32; bf16 beside it) and the best is taken. There are
two rates: tokens per second, which neighbours slow down, and tokens per CPU-second of the
process and its threads, which count only time that it computed or span in. Each figure is
the median over the rounds. Theirs computes log-probs alone, ours entropies as well. Logits are made
in chunks, as ours are. Training in bfloat16 is autocast: weights, gradients and moments stay f32.
`--micro` is the number of sequences in a forward and backward pass; ours is `--unit-tokens`.
`--llama` measures llama.cpp too, where tools/llama_speed.py can import it.
"""

import argparse
import contextlib
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

# Sizes, (prompt, sampled) tokens of decoding, (sequences, tokens of each) otherwise:
# as in model/benches/speed/setting.rs.
SHAPES = {
    "tiny": {
        "sizes": dict(hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                      num_key_value_heads=2, intermediate_size=384, vocab_size=1024),
        "decode": (160, 190),
        "sequences": (16, 160),
        "cases": ["decode-1", "decode-8", "decode-32", "decode-64", "score", "train"],
    },
    "135m": {
        "sizes": dict(hidden_size=576, num_hidden_layers=30, num_attention_heads=9,
                      num_key_value_heads=3, intermediate_size=1536, vocab_size=49152),
        "decode": (300, 16),
        "sequences": (8, 256),
        "cases": ["decode-1", "decode-8", "decode-32", "decode-64", "score", "train"],
    },
    "0.5b": {
        "sizes": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14,
                      num_key_value_heads=2, intermediate_size=4864, vocab_size=151936),
        "decode": (64, 16),
        "sequences": (2, 256),
        "cases": ["decode-1", "decode-8", "decode-32", "score", "train"],
    },
    "3b": {
        "sizes": dict(hidden_size=2048, num_hidden_layers=36, num_attention_heads=16,
                      num_key_value_heads=2, intermediate_size=11008, vocab_size=151936),
        "decode": (512, 128),
        "sequences": (16, 1024),
        "cases": ["decode-1", "decode-64", "score", "train"],
    },
}


# Rows whose logits exist at a time, as in model/src/gpu/head.rs.
LOGIT_ROWS = 1024


class Theirs:
    """One model in this process, one element type, on a fixed number of threads."""

    def __init__(self, options):
        import torch
        import transformers

        self.torch, self.transformers = torch, transformers
        self.serve, self.device, self.micro = options.serve, options.device, options.micro
        torch.set_num_threads(options.threads[0])
        torch.set_default_device(options.device)
        self.on_gpu = torch.device(options.device).type == "cuda"
        if self.on_gpu:
            torch.cuda.set_device(torch.device(options.device).index or 0)
        torch.manual_seed(1)
        self.shape = work_of(options)
        self.config = transformers.Qwen2Config(
            **self.shape["sizes"], max_position_embeddings=4096, rms_norm_eps=1e-6,
            tie_word_embeddings=True, attn_implementation="sdpa")
        model = transformers.AutoModelForCausalLM.from_config(
            self.config, dtype=getattr(torch, options.serve))
        self.model = model.eval()
        self.compiled = {}

    def maybe_compiled(self, name, function, compiled):
        if not compiled:
            return function
        if name not in self.compiled:
            # On a GPU a step of decoding as a CUDA graph: ours is one too.
            mode = "reduce-overhead" if self.on_gpu and name.startswith("decode") else None
            self.compiled[name] = self.torch.compile(function, dynamic=False, mode=mode)
        return self.compiled[name]

    def measure(self, case, compiled, seconds):
        if case.startswith("decode-"):
            self.model.to(getattr(self.torch, self.serve))
            return self.decode(int(case.removeprefix("decode-")), compiled, seconds)
        # Training has weights in f32, whatever it computes in.
        self.model.to(getattr(self.torch, "float32" if case == "train" else self.serve))
        work = {"score": self.score, "train": self.train}[case](compiled)
        with self.attention() as backend:
            return {**repeat(seconds, work), "sdpa": backend}

    @contextlib.contextmanager
    def attention(self):
        """The fastest of a GPU's kernels for causal attention alone, and its name."""
        if not self.on_gpu:
            yield None
            return
        kernels = self.torch.nn.attention
        name = "EFFICIENT" if self.serve == "float32" else "FLASH"
        with kernels.sdpa_kernel(getattr(kernels.SDPBackend, f"{name}_ATTENTION")):
            yield name.lower()

    def decode(self, rows, compiled, seconds):
        """Sampling with log-probs; what follows the first token is measured."""
        torch, (context, sampled) = self.torch, self.shape["decode"]

        def draw(logits):
            log_probs = logits[:, -1].float().log_softmax(-1)
            ids = torch.multinomial(log_probs.exp(), 1)
            return ids, log_probs.gather(1, ids)

        def one(ids, cache, position):
            output = self.model(input_ids=ids, position_ids=position, past_key_values=cache)
            return draw(output.logits)

        step = self.maybe_compiled(f"decode-{rows}", one, compiled)
        tokens, wall_s, cpu_s, warm = 0, 0.0, 0.0, False
        with torch.no_grad():
            while wall_s < seconds:
                prompt = torch.randint(0, 1024, (rows, context))
                if compiled:
                    cache = self.transformers.StaticCache(
                        config=self.config, max_cache_len=context + sampled)
                else:
                    cache = self.transformers.DynamicCache(config=self.config)
                output = self.model(prompt, past_key_values=cache, logits_to_keep=1)
                ids, _ = draw(output.logits)
                positions = [torch.full((rows, 1), context + at) for at in range(sampled)]
                self.wait()
                start, cpu = time.perf_counter(), time.process_time()
                for position in positions[: sampled - 1]:
                    ids, _ = step(ids, cache, position)
                self.wait()
                if warm:
                    wall_s += time.perf_counter() - start
                    cpu_s += time.process_time() - cpu
                    tokens += rows * (sampled - 1)
                warm = True
        return {"tokens": tokens, "wall_s": wall_s, "cpu_s": cpu_s}

    def wait(self):
        """A GPU works on behind the program's back."""
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def log_probs(self, ids):
        """Of every token but the first. Logits of few rows exist at a time, and again on the way back."""
        torch = self.torch
        states = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]

        def of_chunk(states, ids):
            logits = self.model.lm_head(states).float()
            return -torch.nn.functional.cross_entropy(logits, ids, reduction="none")

        chunks = zip(states.flatten(0, 1).split(LOGIT_ROWS), ids[:, 1:].flatten().split(LOGIT_ROWS))
        if not torch.is_grad_enabled():
            return torch.cat([of_chunk(*chunk) for chunk in chunks])
        checkpoint = torch.utils.checkpoint.checkpoint
        return torch.cat([checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks])

    def batches(self):
        count, length = self.shape["sequences"]
        ids = self.torch.randint(0, 1024, (count, length))
        return ids.split(self.micro or count), ids.numel()

    def score(self, compiled):
        batches, tokens = self.batches()
        log_probs = self.maybe_compiled("score", self.log_probs, compiled)

        def work():
            with self.torch.no_grad():
                for ids in batches:
                    log_probs(ids)
            self.wait()
            return tokens

        return work

    def train(self, compiled):
        """Forward, backward, clipping and AdamW in one fused pass over f32 weights."""
        torch = self.torch
        batches, tokens = self.batches()
        log_probs = self.maybe_compiled("train", self.log_probs, compiled)
        parameters = list(self.model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        narrow = torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16,
                                enabled=self.serve == "bfloat16")

        def work():
            for ids in batches:
                with narrow:
                    loss = (log_probs(ids) * 1e-4).sum()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.wait()
            return tokens

        return work


def repeat(seconds, work):
    """Repeats `work`, which returns its tokens, for so many seconds after a first time."""
    work()
    start, cpu, tokens = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        tokens += work()
    return {"tokens": tokens, "wall_s": time.perf_counter() - start,
            "cpu_s": time.process_time() - cpu}


def work_of(options):
    """The shape, with the lengths that were asked for in place of its own."""
    shape = dict(SHAPES[options.shape])
    given = (options.prompt, options.sampled, options.sequences, options.length)
    sizes = [own if size is None else size
             for size, own in zip(given, (*shape["decode"], *shape["sequences"]))]
    shape["decode"], shape["sequences"] = tuple(sizes[:2]), tuple(sizes[2:])
    return shape


def sizes_given(options):
    """What says the same to another process."""
    arguments = ["--shape", options.shape]
    for name in ("prompt", "sampled", "sequences", "length"):
        if getattr(options, name) is not None:
            arguments += [f"--{name}", str(getattr(options, name))]
    return arguments


def micro_given(options, tokens):
    """`--micro` for another process, in its tokens for ours."""
    if options.micro is None:
        return []
    if tokens:
        return ["--unit-tokens", str(options.micro * work_of(options)["sequences"][1])]
    return ["--micro", str(options.micro)]


def serve(options):
    """Answers requests, a JSON line each, until the input ends."""
    theirs = Theirs(options)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = theirs.measure(request["case"], request["compiled"], request["seconds"])
        except Exception as error:  # The other settings still count.
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


class Server:
    """A peer in a process of its own, started when it is first asked."""

    def __init__(self, *command):
        self.command = [sys.executable, *map(str, command)]
        self.process = None

    def ask(self, **request):
        if self.process is None:
            self.process = subprocess.Popen(self.command, text=True, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE)
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            self.process = None
            return {"error": "the process ended"}
        return json.loads(line)

    def end(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


def ours(options, case, threads):
    arguments = [*sizes_given(options), *micro_given(options, True), "--threads", str(threads),
                 "--seconds", str(options.seconds), "--json"]
    command = [*shlex.split(options.against), *arguments, case]
    output = subprocess.run(command, check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    return json.loads(output.strip().splitlines()[-1])


def compare(options):
    """Measures in turns and prints a line per case; returns them."""
    shape = options.shape
    cases = options.cases or SHAPES[shape]["cases"]
    servers = {}
    for threads in options.threads:
        for dtype in options.dtypes:
            servers[dtype, threads] = Server(
                __file__, "--serve", dtype, "--threads", threads, "--device", options.device,
                *sizes_given(options), *micro_given(options, False))
            if options.llama:
                servers[f"llama.cpp {dtype}", threads] = Server(
                    pathlib.Path(__file__).parent / "llama_speed.py", dtype, threads,
                    json.dumps(work_of(options)))
    peers = list(dict.fromkeys(dtype for dtype, _ in servers))
    print(f"{'case':<10} {'':<4} {'ours':>9} "
          + " ".join(f"{peer:>18} {'':<9} {'ratio':>6}" for peer in peers))
    rows = []
    for case in cases:
        found = {}
        for _ in range(options.rounds):
            for threads in options.threads:
                key = ("ours", threads, False)
                answer = ours(options, case, threads)
                found.setdefault(key, []).append(answer)
            for (dtype, threads), server in servers.items():
                if dtype.startswith("llama") and case == "train":
                    continue
                for compiled in [False] if dtype.startswith("llama") else options.compiled:
                    answer = server.ask(case=case, compiled=compiled, seconds=options.seconds)
                    if "error" in answer:
                        print(f"{case} {dtype} compiled={compiled}: {answer['error']}",
                              file=sys.stderr)
                    else:
                        found.setdefault((dtype, threads, compiled), []).append(answer)
                        if answer.get("sdpa"):
                            print(f"{case} {dtype}: attention by {answer['sdpa']}",
                                  file=sys.stderr)
                # Two models of half a billion parameters would not fit beside each other.
                if shape != "tiny":
                    server.end()
        for rate, seconds in (("wall", "wall_s"), ("cpu", "cpu_s")):
            medians = {key: statistics.median(a["tokens"] / a[seconds] for a in answers)
                       for key, answers in found.items()}

            def best(dtype):
                known = [(value, key) for key, value in medians.items() if key[0] == dtype]
                return max(known, default=(float("nan"), (dtype, 0, False)))

            def text(value, key):
                how = f"{'compiled' if key[2] else 'eager'}, {key[1]} thr."
                return f"{value:>9.0f} {how:<18} {own / value:>6.2f}"

            own, _ = best("ours")
            print(f"{case:<10} {rate:<4} {own:>9.0f} "
                  + " ".join(text(*best(peer)) for peer in peers), flush=True)
            rows.append({"case": case, "rate": rate, "shape": shape, "medians": {
                f"{dtype}, {threads} threads, {'compiled' if compiled else 'eager'}": value
                for (dtype, threads, compiled), value in medians.items()}})
    for server in servers.values():
        server.end()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="decode-ROWS, score, train; default: all")
    parser.add_argument("--against", default="cargo bench --workspace --bench speed --",
                        help="command that measures ours")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--device", default="cpu", help="PyTorch's; ours is in --against")
    for name, what in (("prompt", "tokens before those that are sampled"),
                       ("sampled", "tokens that a row samples"),
                       ("sequences", "that are scored or trained on at a time"),
                       ("length", "their tokens")):
        parser.add_argument(f"--{name}", type=int, help=f"{what}; default: the shape's")
    parser.add_argument("--micro", type=int, metavar="SEQUENCES",
                        help="sequences in a pass of scoring or training; default: all of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure of a round")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--llama", action="store_true", help="measure llama.cpp as well")
    parser.add_argument("--no-compile", dest="compiled", action="store_const", const=[False],
                        default=[False, True], help="eager alone")
    parser.add_argument("--json", help="file for the medians of every setting")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
