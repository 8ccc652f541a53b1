#!/usr/bin/env python3
"""Packs the built programs, with what they ship, for people without a Rust compiler.

    tools/package.py [--programs target/release] [--to target/package]

Writes a wheel (with the Python package of python/), a tarball and, where dpkg-deb is, a Debian package; beside
them SHA256SUMS, the licences of what is linked in, and a CycloneDX list of it. Installed programs find configs,
models and prompts in share/agentgym-rl beside their bin. Needs Python alone, and cargo for the two lists.
"""

import argparse
import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ["agentgym-submit", "agentgym-worker", "agentgym-env"]
SHIPPED = ["configs", "models", "prompts", "examples"]
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]
# A date that a zip can hold, so that the same files make the same bytes.
DATE = (1980, 1, 1, 0, 0, 0)


def version():
    return re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def glibc(program):
    """The newest glibc that a program asks for: `2.34`."""
    found = set(re.findall(rb"GLIBC_(2\.\d+)", program.read_bytes()))
    if not found:
        sys.exit(f"package: {program} asks for no glibc; build it for x86_64-unknown-linux-gnu")
    return max((name.decode() for name in found), key=lambda name: int(name.split(".")[1]))


def crates():
    """What is linked in: the dependencies of the programs, without those of tests and builds."""
    line = ["cargo", "tree", "--workspace", "--edges", "normal", "--prefix", "none", "--format", "{p}|{l}", "--locked"]
    tree = subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = set()
    for row in tree.splitlines():
        name, _, licence = row.partition("|")
        words = name.split()
        if len(words) >= 2 and not words[0].startswith("agentgym-"):
            found.add((words[0], words[1].lstrip("v"), licence.replace(" (*)", "") or "not said"))
    return sorted(found)


def shipped():
    """Files below share/agentgym-rl, by their names there: those that git knows."""
    line = ["git", "ls-files", "-z", *SHIPPED]
    names = subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name: ROOT / name for name in sorted(filter(None, names.split("\0")))}


def lists(to):
    """Licences and parts of what is linked in."""
    found = crates()
    text = "".join(f"{name} {number}: {licence}\n" for name, number, licence in found)
    (to / "THIRD-PARTY.txt").write_text(text)
    parts = [
        {"type": "library", "name": name, "version": number, "purl": f"pkg:cargo/{name}@{number}",
         "licenses": [{"expression": licence.replace("/", " OR ")}]}
        for name, number, licence in found
    ]  # fmt: skip
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
           "metadata": {"component": {"type": "application", "name": "agentgym-rl", "version": version()}},
           "components": parts}  # fmt: skip
    (to / "sbom.cdx.json").write_text(json.dumps(bom, indent=1) + "\n")


def wheel(programs, to, libc):
    tag = f"py3-none-manylinux_{libc.replace('.', '_')}_x86_64"
    name = f"agentgym_rl-{version()}"
    info, data = f"{name}.dist-info", f"{name}.data"
    project = (ROOT / "python/pyproject.toml").read_text()
    summary = re.search(r'^description = "(.+)"$', project, re.M)[1]
    metadata = f"Metadata-Version: 2.4\nName: agentgym-rl\nVersion: {version()}\nSummary: {summary}\n" \
               "Requires-Python: >=3.10\nLicense-Expression: MIT OR Apache-2.0\n" \
               "License-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\nLicense-File: THIRD-PARTY.txt\n" \
               'Provides-Extra: frames\nRequires-Dist: pyarrow>=15; extra == "frames"\n'
    files = {}
    for path in sorted((ROOT / "python/agentgym_rl").rglob("*")):
        if path.suffix in (".py", ".typed"):
            files[str(path.relative_to(ROOT / "python"))] = (path.read_bytes(), 0o644)
    for program in PROGRAMS:
        files[f"{data}/scripts/{program}"] = ((programs / program).read_bytes(), 0o755)
    for file, path in shipped().items():
        files[f"{data}/data/share/agentgym-rl/{file}"] = (path.read_bytes(), 0o644)
    for file in LICENCES:
        files[f"{info}/licenses/{file}"] = ((ROOT / file).read_bytes(), 0o644)
    files[f"{info}/licenses/THIRD-PARTY.txt"] = ((to / "THIRD-PARTY.txt").read_bytes(), 0o644)
    files[f"{info}/sboms/agentgym-rl.cdx.json"] = ((to / "sbom.cdx.json").read_bytes(), 0o644)
    files[f"{info}/METADATA"] = (metadata.encode(), 0o644)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: package.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644)
    record = "".join(
        f"{file},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for file, (content, _) in files.items()
    )
    files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)
    path = to / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, (content, mode) in files.items():
            entry = zipfile.ZipInfo(file, DATE)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return path


def tree(programs, to):
    """Programs and files by their places below a prefix."""
    files = {f"bin/{program}": programs / program for program in PROGRAMS}
    files |= {f"share/agentgym-rl/{name}": path for name, path in shipped().items()}
    files |= {f"share/doc/agentgym-rl/{name}": ROOT / name for name in [*LICENCES, "README.md", "CHANGELOG.md"]}
    return files | {f"share/doc/agentgym-rl/{name}": to / name for name in ["THIRD-PARTY.txt", "sbom.cdx.json"]}


def tarball(programs, to):
    name = f"agentgym-rl-{version()}-x86_64-linux-gnu"
    path = to / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, source in tree(programs, to).items():
            content = source.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mode = len(content), 0o755 if file.startswith("bin/") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return path


def debian(programs, to, libc):
    if shutil.which("dpkg-deb") is None:
        print("package: no dpkg-deb here, so no Debian package", file=sys.stderr)
        return None
    folder = to / "debian"
    shutil.rmtree(folder, ignore_errors=True)
    for file, source in tree(programs, to).items():
        target = folder / "usr" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if file.startswith("bin/") else 0o644)
    control = f"Package: agentgym-rl\nVersion: {version()}\nArchitecture: amd64\nMaintainer: none <none@localhost>\n" \
              f"Depends: libc6 (>= {libc}), libgcc-s1\nDescription: durable jobs that train LLM agents by reinforcement learning\n"
    (folder / "DEBIAN").mkdir()
    (folder / "DEBIAN/control").write_text(control)
    path = to / f"agentgym-rl_{version()}_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(folder), str(path)], stdout=subprocess.DEVNULL, check=True)
    shutil.rmtree(folder)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release")
    parser.add_argument("--to", type=Path, default=ROOT / "target/package")
    options = parser.parse_args()
    missing = [name for name in PROGRAMS if not (options.programs / name).is_file()]
    if missing:
        sys.exit(f"package: no {missing[0]} in {options.programs}; `cargo build --release --workspace --bins` makes it")
    options.to.mkdir(parents=True, exist_ok=True)
    libc = max((glibc(options.programs / name) for name in PROGRAMS), key=lambda name: int(name.split(".")[1]))
    lists(options.to)
    made = [wheel(options.programs, options.to, libc), tarball(options.programs, options.to), debian(options.programs, options.to, libc)]
    sums = ""
    for path in filter(None, made):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sums += f"{digest}  {path.name}\n"
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB, for glibc {libc} or newer")
    (options.to / "SHA256SUMS").write_text(sums)


main()
