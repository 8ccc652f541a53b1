#!/usr/bin/env python3
"""Puts faults into the GPU's kernels, one at a time, and shows what finds each: `results` are the
model's tests on the emulated device, in two orders of threads; `accesses` looks at every load and store;
`policies` are slower tests, of whole networks, for what neither has found.

    tools/gpu_mutants.py MODEL-TESTS [FAULT …]

MODEL-TESTS is the test program of agentgym-model (`cargo test --release -p agentgym-model --lib
--no-run` says where it is).
"""
import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BARRIER = "__syncthreads();"

# What is changed: the number of the occurrence in the kernels, counted from 0, the text, what
# stands there instead. Barriers are counted by the script itself.
MUTANTS = [
    ("rows of keys one number apart", 0, "return 64 * Chunks + 4;", "return 64 * Chunks + 1;"),
    ("rows of weights two numbers apart", 0, "#define WEIGHTS_STRIDE 68", "#define WEIGHTS_STRIDE 66"),
    ("a row sees the key after it", 0, "start + share.key(t) <= last[share.first + p]",
     "start + share.key(t) <= last[share.first + p] + 1"),
    ("the last key is left out", 0, "start + share.key(t) <= last[share.first + p]",
     "start + share.key(t) < last[share.first + p]"),
    ("a page is loaded past its end", 0, "return j < count ? first", "return j <= count ? first"),
    ("the tail of a vector is not loaded", 0, "c < 4 && column + c < width", "c < 3 && column + c < width"),
    ("the tail of a vector is loaded past its end", 0, "c < 4 && column + c < width", "c < 4"),
    ("an element too many", 0, "if (i < count) put(y + i, x[i]);", "if (i <= count) put(y + i, x[i]);"),
    ("a column too many", 0, "if (column >= width) return;", "if (column > width) return;"),
    ("pairs past the last are written", 0, "if (!of.has(share.first + p)) continue;", ""),
    ("a key sees rows before it", 0, "row <= of.row_of(own)", "row >= of.row_of(own)"),
    ("spans are merged from the second", 0, "for (unsigned span = 0; span < entry[4]",
     "for (unsigned span = 1; span < entry[4]"),
    ("a sum leaves out a thread", 0, "sums[threadIdx.x + half];", "sums[threadIdx.x + half - 1];"),
]


def source():
    text = (ROOT / "model/src/gpu/kernels.rs").read_text()
    files = [name.split('"')[1] for name in text.split("include_str!(")[1:]]
    return "".join((ROOT / "model/src/gpu" / name).read_text() for name in files)


def outcome(tests, arguments, environment):
    """Whether a run of the tests fails."""
    try:
        run = subprocess.run([tests, *arguments], cwd=ROOT / "model", capture_output=True, timeout=1800,
                             text=True, env={**os.environ, **environment}, check=False)
    except subprocess.TimeoutExpired:
        return True
    if " 0 passed; 0 failed" in run.stdout:
        sys.exit(f"gpu_mutants: {' '.join(arguments)} names no test")
    return run.returncode != 0


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tests")
    options.add_argument("faults", nargs="*", help="some of them, by their names; default: all")
    options = options.parse_args()
    text = source()
    barriers = [(f"barrier {n + 1} of {text.count(BARRIER)} is missing", n, BARRIER, "")
                for n in range(text.count(BARRIER))]
    runs = {
        "results": (["gpu::tests::kernels::", "gpu::tests::accesses::small_shapes_compute",
                     "gpu::tests::attention::scores", "--include-ignored",
                     "--skip", "accesses_are", "--skip", "faulty"], {}),
        "accesses": (["gpu::tests::accesses::small_shapes_compute", "--include-ignored"],
                     {"AGENTGYM_EMULATOR_ACCESSES": "1"}),
        "policies": (["gpu::tests::attention", "gpu::tests::policies::scores", "gpu::tests::policies::gradients_are",
                      "gpu::tests::steps"], {}),
    }
    print("| Fault | results | accesses | policies |\n|---|---|---|---|")
    faults = [("none", None, None, None), *MUTANTS, *barriers]
    names = [fault[0] for fault in faults]
    unknown = [name for name in options.faults if name not in names]
    if unknown:
        sys.exit(f"gpu_mutants: no fault is called {unknown[0]!r}; there are {', '.join(names)}")
    faults = [fault for fault in faults if not options.faults or fault[0] in options.faults]
    for name, number, before, after in faults:
        found = []
        for run, (arguments, environment) in runs.items():
            if run == "policies" and "found" in found:
                found.append("not tried")
                continue
            if number is not None:
                environment = {**environment, "AGENTGYM_EMULATOR_MUTANT": f"{number}: {before} =>{after}"}
            found.append("found" if outcome(options.tests, arguments, environment) else "")
        print(f"| {name} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
