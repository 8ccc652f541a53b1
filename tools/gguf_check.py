#!/usr/bin/env python3
"""Compares a folder that `agentgym-submit import` made of a GGUF file with what others make of that file.
scripts/gguf.sh starts it in a virtual environment with the pinned packages:

    gguf_check.py tensors FILE FOLDER         # every tensor, bit by bit, with PyPI's gguf
    gguf_check.py ids PROGRAM FILE SCRATCH [FOLDER]   # ids of some 300 texts with llama.cpp's, by the file's
                                              # pre-tokenizer, every other one that is imported, and those of the
                                              # vocabularies in a folder
    gguf_check.py numbers PROGRAM FOLDER      # log-probs and greedy ids with transformers (needs torch)
"""

import json
import pathlib
import random
import subprocess
import sys
import unicodedata
import urllib.request

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "model.layers": "blk",
}
PRE = "smollm gpt-2 mpt starcoder refact codeshell minerva-7b llama-bpe llama3 falcon3 dbrx smaug-bpe qwen2 " \
      "deepseek-r1-qwen tekken deepseek-coder default olmo exaone llama-v3".split()
# Names whose own tokenizers compose characters, which llama.cpp leaves out.
COMPOSING = {"qwen2", "deepseek-r1-qwen", "ggml-vocab-qwen2"}
PROSE = """The quick brown fox jumps over the lazy dog. It's 3.14159, isn't it? They'LL say: "I'd've 1234567 apples!"
Goal: go to the red ball.\n\nObservation: you are facing a wall 6 steps away.\r\nAction: turn left
def f(x):\n\treturn {k: v**2 for k, v in x.items() if v != 0}  # comment\n\n\n    indented = "a\\tb"
SELECT * FROM t WHERE a<=10 AND b>='x'; -- 100%\n<html><body class="a">&nbsp;</body></html>
Die Straße ist größer als 5 km; Ärger über Öl. Où est l'école? Ça coûte 12,50 €. ¿Qué hora es? ¡Años!
Съешь же ещё этих мягких французских булок. Η γρήγορη αλεπού. مرحبا بالعالم ١٢٣. שלום עולם. नमस्ते दुनिया १२३
快速的棕色狐狸跳过懒狗。日本語のテキスト、カタカナ。한국어 텍스트입니다. สวัสดีชาวโลก ทดสอบ. Xin chào thế giới
😀👍🏽 👨‍👩‍👧‍👦 🇩🇪 ½ ² Ⅷ ①  é à ﬁ Å ̈ zero\u200bwidth\u00a0nbsp\u2003em\ufeffbom\u2028line
e\u0301cole a\u030a o\u0308 \U0001d54f \u0000\u0001\u007f\u0085 ~~~ ``` ==== ---- ____ $$$ ^^^ ||| <<>>
<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|> <|im_end <|im_start|><|im_start|> |>"""


def texts():
    """The same every time: lines, all of them, pieces that begin and end anywhere, chance, blanks and digits."""
    numbers = random.Random(7)
    lines = PROSE.split("\n")
    found = [*lines, PROSE, "", " ", "\n", "\n\n1.", " \n", "\t\t", "   a", "a   ", " " * 40 + "x", "1" * 20, "a1b22c333d4444"]
    for _ in range(180):
        begin = numbers.randrange(len(PROSE))
        found.append(PROSE[begin:begin + numbers.randrange(1, 120)])
    # Of bytes that have no token (SmolLM's are a few control characters) tokenizers lets the neighbours merge.
    pools = [(0x20, 0x7f), (0xa0, 0x250), (0x370, 0x600), (0x900, 0xa00), (0x2000, 0x2100), (0x3040, 0x3100),
             (0x4e00, 0x4f00), (0xac00, 0xad00), (0x1f300, 0x1f600), (9, 14)]
    for _ in range(90):
        pool = numbers.choice(pools)
        found.append("".join(chr(numbers.randrange(*numbers.choice([pool, (0x20, 0x7f)])))
                             for _ in range(numbers.randrange(1, 60))))
    return found


def weights(folder):
    import numpy

    content = numpy.memmap(folder / "model.safetensors", mode="r")
    length = int.from_bytes(content[:8].tobytes(), "little")
    for name, entry in json.loads(content[8:8 + length].tobytes()).items():
        if name != "__metadata__":
            begin, end = (8 + length + at for at in entry["data_offsets"])
            yield name, content[begin:end].view("<f4").reshape(entry["shape"])


def tensors(file, folder):
    import gguf
    import numpy

    read = gguf.GGUFReader(file)
    theirs = {tensor.name: tensor for tensor in read.tensors}
    config = json.loads((folder / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = numbers = 0
    for name, ours in weights(folder):
        own = name
        for theirs_name, our_name in NAMES.items():
            own = own.replace(theirs_name, our_name)
        tensor = theirs.pop(own)
        wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("<f4").reshape(ours.shape)
        part = name.split(".")[-2]
        if part in heads and config["model_type"] == "llama":
            rows, columns = wanted.shape
            wanted = wanted.reshape(heads[part], rows // heads[part] // 2, 2, columns).swapaxes(1, 2)
            wanted = numpy.ascontiguousarray(wanted).reshape(rows, columns)
        if not numpy.array_equal(ours.view("<u4"), wanted.view("<u4")):
            sys.exit(f"gguf_check: {name} differs")
        count, numbers = count + 1, numbers + ours.size
    if theirs:
        sys.exit(f"gguf_check: left out: {sorted(theirs)}")
    print(f"tensors: {count} of {count} bit-equal to gguf's, {numbers} numbers")


def small(file, pre, path):
    """A model of one thin layer with the tokenizer of `file`, under another pre-tokenizer's name if one is given."""
    import gguf
    import numpy

    read, family, width = gguf.GGUFReader(file), "llama", 32
    writer = gguf.GGUFWriter(path, family)
    for name, number in [("context_length", 64), ("embedding_length", width), ("block_count", 1), ("feed_forward_length", width),
                         ("attention.head_count", 1), ("attention.head_count_kv", 1), ("rope.dimension_count", width)]:
        writer.add_uint32(f"{family}.{name}", number)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, field in read.fields.items():
        if key.startswith("tokenizer."):
            value = pre if pre and key == "tokenizer.ggml.pre" else field.contents()
            kinds = field.types
            writer.add_key_value(key, value, kinds[0], sub_type=kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None)
    rows = len(read.fields["tokenizer.ggml.tokens"].data)
    ones = numpy.ones(width, dtype=numpy.float32)
    writer.add_tensor("token_embd.weight", numpy.zeros((rows, width), dtype=numpy.float16))
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros((width, width), dtype=numpy.float32))
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]:
        writer.add_tensor(f"{name}.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def asked(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=600) as answer:
        return json.load(answer)


def llama_ids(path):
    """Prints llama.cpp's ids of the texts; in a process of its own, which can be ended."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.hostnames, params.port, params.n_ctx, params.n_parallel = ["127.0.0.1"], 0, 64, 1
    params.warmup, params.ui = False, False
    server = xllamacpp.Server(params)
    url = server.listening_address + "/tokenize"
    ids = [asked(url, {"content": text, "add_special": False, "parse_special": True})["tokens"] for text in texts()]
    print("ids", json.dumps(ids), flush=True)


def compare(program, path, folder, pre):
    import tokenizers

    ran = subprocess.run([program, "--quiet", "import", str(path), "--to", str(folder)], capture_output=True, text=True)
    if ran.returncode:
        print(f"ids of {pre}: not imported: {ran.stderr[:300]}")
        return 1
    ran = subprocess.run([sys.executable, __file__, "llama-ids", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    said = [line for line in ran.stdout.decode().splitlines() if line.startswith("ids ")]
    if not said:
        print(f"ids of {pre}: llama.cpp does not take the file (ended with {ran.returncode})")
        return 1
    ours, equal, other = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), 0, []
    for text, theirs in zip(texts(), json.loads(said[0][4:])):
        composed = unicodedata.normalize("NFC", text) == text or pre not in COMPOSING
        if ours.encode(text, add_special_tokens=False).ids == theirs:
            equal += 1
        elif composed:
            other.append(text)
    print(f"ids of {pre}: {equal} of {len(texts())} texts equal to llama.cpp's, {len(other)} not {other[:3]}", flush=True)
    return len(other)


def ids(program, file, scratch, vocabularies=None):
    wrong = compare(program, file, scratch / "own", "the file")
    for pre in PRE:
        path = scratch / f"{pre}.gguf"
        small(file, pre, path)
        found = compare(program, path, scratch / f"folder-{pre}", pre)
        # Mistral's own pattern and llama.cpp's way to write it differ in letters that are not ASCII.
        wrong += 0 if pre == "tekken" else found or 0
        path.unlink()
    # Vocabularies of other models, as llama.cpp's sources have them (models/ggml-vocab-*.gguf).
    for vocabulary in sorted(vocabularies.glob("*.gguf")) if vocabularies else []:
        path = scratch / vocabulary.name
        small(vocabulary, None, path)
        wrong += compare(program, path, scratch / f"folder-{vocabulary.stem}", vocabulary.stem) or 0
    if wrong:
        sys.exit(f"gguf_check: {wrong} texts have other ids")


def numbers(program, folder):
    import torch
    import transformers

    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    served = subprocess.Popen([program, "--json", "serve", str(folder), "--addr", "127.0.0.1:0"], stdout=subprocess.PIPE)
    try:
        url = json.loads(served.stdout.readline())["url"] + "/v1/completions"
        prompts = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
                   for text in texts() if text.strip()][:12]
        same = whole = worst = greedy = steps = 0
        for prompt in prompts:
            ours = asked(url, {"prompt": prompt, "max_tokens": 48, "temperature": 0, "logprobs": 0, "ignore_eos": True,
                               "return_token_ids": True})["choices"][0]
            known, said = ours["prompt_token_ids"], ours["token_ids"]
            whole, same = whole + 1, same + (known == tokenizer(prompt, add_special_tokens=False).input_ids)
            with torch.no_grad():
                rows = model(torch.tensor([known + said])).logits[0].log_softmax(-1)
            for at, (id, log_prob) in enumerate(zip(said, ours["logprobs"]["token_logprobs"])):
                row = rows[len(known) + at - 1]
                steps, greedy = steps + 1, greedy + (int(row.argmax()) == id)
                worst = max(worst, abs(float(row[id]) - log_prob))
        print(f"numbers: {same} of {whole} chats have transformers' ids, {greedy} of {steps} greedy ids are its likeliest, "
              f"log-probs within {worst:.1e}")
        if same < whole or greedy < steps or worst > 1e-4:
            sys.exit("gguf_check: that is not equal")
    finally:
        served.terminate()


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    paths = [pathlib.Path(word) for word in given]
    {"tensors": tensors, "ids": ids, "numbers": numbers, "llama-ids": llama_ids}[what](*paths)
