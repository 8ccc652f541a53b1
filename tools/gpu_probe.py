#!/usr/bin/env python3
"""What a GPU and its libraries can do, measured without our programs, in about a minute.

    tools/gpu_probe.py [--device cuda:0] [--ceilings FILE] [--seconds 60]

1. Ceilings: bytes that a copy inside its memory moves in a second (read and written), and
   operations of a large product in bf16 and in f32 (two to a multiply-add). `--ceilings` writes
   them as shell variables, by which scripts/gpu-check.sh says what share of them is reached.
2. Rows: whether a row of cuBLAS' product has the same bits for any number of rows and at any place
   among them, with 32 MiB of workspace (model/src/gpu/cuda/lane.rs) and with 16 KiB, in which the
   library cannot split sums over k (split-K). The call is that of model/src/gpu/cuda/product.rs. It
   decides whether products need tiles of 128 rows.
3. Attention: milliseconds of the libraries' causal attention, forward, and forward with backward.

`--device cpu` goes through the same steps with small sizes and torch's own product: it shows that
the probe works, and says nothing of a GPU. Needs torch, and for a GPU cuBLAS of CUDA 13.
"""

import argparse
import ctypes
import glob
import json
import os
import sys
import time

# Exit code of a section that cannot run here.
NOT_HERE = 77

# Inner and width of weights of Qwen2.5's models.
WEIGHTS = [
    ("0.5b qkv", 896, 1152), ("0.5b gate, up", 896, 9728), ("0.5b down", 4864, 896),
    ("3b qkv", 2048, 2560), ("3b o", 2048, 2048), ("3b gate, up", 2048, 22016),
    ("3b down", 11008, 2048), ("7b qkv", 3584, 4608), ("7b down", 18944, 3584),
    ("3b head", 2048, 151936),
]
ROWS = [1, 8, 16, 32, 64, 128, 164, 200, 256, 1024, 2048, 4096]
WORKSPACES = [32 << 20, 16 << 10]


class Cublas:
    """A handle of cuBLAS on torch's stream, with a workspace of its own."""

    # cuBLAS' numbers for these names.
    ONE_TO_ONE, F32, BF16, COMPUTE_F32, DEFAULT = 0, 0, 14, 68, -1
    NO_REDUCED_PRECISION_REDUCTION = 16

    library = None

    def __init__(self, torch, workspace):
        self.calls = Cublas.library or Cublas.open()
        self.handle = ctypes.c_void_p()
        self.ask("cublasCreate_v2", ctypes.byref(self.handle), bare=True)
        stream = torch.cuda.current_stream().cuda_stream
        self.ask("cublasSetStream_v2", ctypes.c_void_p(stream))
        self.ask("cublasSetMathMode", self.NO_REDUCED_PRECISION_REDUCTION)
        self.room = torch.empty(workspace, dtype=torch.uint8, device="cuda")
        self.ask("cublasSetWorkspace_v2", ctypes.c_void_p(self.room.data_ptr()),
                 ctypes.c_size_t(workspace))

    @staticmethod
    def open():
        folders = [os.environ.get("AGENTGYM_CUDA_LIBS", ""), "/usr/local/cuda/lib64"]
        try:
            import nvidia
            folders[1:1] = [f"{path}/cu13/lib" for path in nvidia.__path__]
        except ImportError:
            pass
        for folder in folders:
            if glob.glob(f"{folder}/libcublas.so.13"):
                ctypes.CDLL(f"{folder}/libcublasLt.so.13", ctypes.RTLD_GLOBAL)
                Cublas.library = ctypes.CDLL(f"{folder}/libcublas.so.13")
                print(f"cuBLAS from {folder}", flush=True)
                return Cublas.library
        print(f"not here: no libcublas.so.13 in {', '.join(filter(None, folders))}")
        sys.exit(NOT_HERE)

    def ask(self, name, *arguments, bare=False):
        status = getattr(self.calls, name)(*(() if bare else (self.handle,)), *arguments)
        if status:
            raise RuntimeError(f"{name} answers {status}")

    def version(self):
        version = ctypes.c_int()
        self.ask("cublasGetVersion_v2", ctypes.byref(version))
        return version.value

    def multiply(self, a, b, c):
        """c = a · b, all row-major: to cuBLAS, whose matrices are column-major, cᵀ = bᵀ · aᵀ."""
        (m, k), n = a.shape, b.shape[1]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)

        def address(x):
            return ctypes.c_void_p(x.data_ptr())

        self.ask("cublasGemmEx", self.ONE_TO_ONE, self.ONE_TO_ONE, n, m, k, ctypes.byref(one),
                 address(b), self.BF16, n, address(a), self.BF16, k, ctypes.byref(zero),
                 address(c), self.F32, n, self.COMPUTE_F32, self.DEFAULT)


class Probe:
    def __init__(self, torch, device, seconds):
        self.torch, self.device = torch, device
        self.on_gpu = device.type == "cuda"
        self.ends = time.monotonic() + seconds

    def wait(self):
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def seconds(self, work, times=10):
        """Of one `work`, after three that warm up."""
        for _ in range(3):
            work()
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - start) / times

    def random(self, *shape, dtype=None):
        return self.torch.randn(*shape, device=self.device).to(dtype or self.torch.bfloat16)

    def ceilings(self):
        torch = self.torch
        numbers, side = (1 << 30, 8192) if self.on_gpu else (1 << 22, 256)
        source = torch.ones(numbers, device=self.device)
        target = torch.empty_like(source)
        found = {"BYTES": 2 * 4 * numbers / self.seconds(lambda: target.copy_(source))}
        del source, target
        for name, dtype in (("OPERATIONS_BF16", torch.bfloat16), ("OPERATIONS_F32", torch.float32)):
            a, b = (self.random(side, side, dtype=dtype) for _ in "ab")
            found[name] = 2 * side**3 / self.seconds(lambda: a @ b)
        return found

    def products(self, workspace):
        """A function (a, b, c) that writes a · b to c."""
        if self.on_gpu:
            return Cublas(self.torch, workspace).multiply

        def own(a, b, c):
            c.copy_((a @ b).float())

        return own

    def rows(self):
        torch = self.torch
        weights, rows = (WEIGHTS, ROWS) if self.on_gpu else ([("small", 64, 96)], [1, 8, 128, 256])
        torch.manual_seed(1)
        changed = {workspace: 0 for workspace in WORKSPACES}
        for name, inner, width in weights:
            weight, anchor = self.random(inner, width) * 0.02, self.random(inner)
            most = [m for m in rows if m * width <= 1 << 28]
            for workspace in WORKSPACES:
                if time.monotonic() > self.ends:
                    print(f"rows: no time left for {name} and what follows", flush=True)
                    return changed
                multiply = self.products(workspace)
                bits, rates = {}, {}
                for m in most:
                    a, c = self.random(m, inner), torch.empty(m, width, device=self.device)
                    for place in sorted({0, m // 2, m - 1}):
                        mine = a.clone()
                        mine[place] = anchor
                        c.fill_(float("nan"))
                        multiply(mine, weight, c)
                        bits[m, place] = c[place].clone().view(torch.int32)
                    rates[m] = self.seconds(lambda: multiply(a, weight, c), 5)
                expected = bits[128, 0]
                other = sorted({m for (m, _), found in bits.items()
                                if not torch.equal(found, expected)})
                changed[workspace] += len(other)
                shown = sorted({1, 64, 128, 256, most[-1]} & rates.keys())
                times = ", ".join(f"{m}: {rates[m] * 1e6:.0f}" for m in shown)
                top = 2 * most[-1] * inner * width / rates[most[-1]] / 1e12
                print(f"{name:<14} workspace {workspace >> 10:>5} KiB: other bits than among 128 rows "
                      f"with {other or 'none'} rows; us {times}; {top:.0f} T operations/s", flush=True)
        return changed

    def attention(self):
        torch = self.torch
        kernels = torch.nn.attention
        heads, width = 16, 128
        lengths = (2048, 8192) if self.on_gpu else (64,)
        names = ("FLASH_ATTENTION", "CUDNN_ATTENTION") if self.on_gpu else ("MATH",)
        for length in lengths:
            q, k, v = (self.random(1, heads, length, width).requires_grad_() for _ in "qkv")
            for name in names:
                def forward():
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                try:
                    with kernels.sdpa_kernel(getattr(kernels.SDPBackend, name)):
                        alone = self.seconds(forward)
                        grad = torch.ones_like(q)
                        both = self.seconds(lambda: forward().backward(grad))
                    print(f"attention {length} {name}: forward {alone * 1e3:.3f} ms, with backward "
                          f"{both * 1e3:.3f} ms", flush=True)
                except RuntimeError as error:
                    print(f"attention {length} {name}: {str(error)[:100]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--ceilings", help="file for the ceilings, as shell variables")
    parser.add_argument("--seconds", type=float, default=60, help="for all of it, about")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"not here: {error}")
        sys.exit(NOT_HERE)
    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            print("not here: torch finds no GPU")
            sys.exit(NOT_HERE)
        torch.cuda.set_device(device)
    probe = Probe(torch, device, options.seconds)
    found = probe.ceilings()
    if options.ceilings:
        with open(options.ceilings, "w", encoding="utf-8") as file:
            file.writelines(f"{name}={value:.4g}\n" for name, value in found.items())
    name = torch.cuda.get_device_name() if probe.on_gpu else "the processor"
    print(json.dumps({"device": name, "torch": torch.__version__, **found}), flush=True)
    probe.attention()
    if probe.on_gpu:
        print(f"cuBLAS {Cublas(torch, WORKSPACES[-1]).version()}", flush=True)
    changed = probe.rows()
    print("result: {:.0f} GB/s, {:.0f} G operations/s in bf16, {:.0f} in f32; rows with other bits: "
          "{} with 32 MiB of workspace, {} with 16 KiB".format(
              *(value / 1e9 for value in found.values()), *changed.values()))


if __name__ == "__main__":
    main()
