#!/usr/bin/env python3
"""A server with the routes of the Hugging Face hub that pulling and pushing a model takes, over a folder.

    tools/hub_double.py FOLDER TOKEN

The folder holds OWNER/NAME/FILE…. Prints `listening URL`. Reading wants no token, writing wants that
one. Repositories of the owner `private` are seen with the token alone, those of `limited` answer 429,
those of `elsewhere` redirect to another host and those of `stored` keep their files at such a store.
Files of more than a kilobyte are large files, which the commit has inline (as base64) or the server got
by the LFS upload before. Needs Python alone; scripts/hub.sh lets the hub's own Python client speak to
it too.
"""

import base64
import hashlib
import json
import pathlib
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT, TOKEN = pathlib.Path(sys.argv[1]), sys.argv[2]
LARGE = 1024
LFS = {}
COMMITS = {}
LOCK = threading.Lock()
SAFE = re.compile(r"[\w.-]+(/[\w.-]+)*")


def sha(repo):
    state = json.dumps([repo, COMMITS.get(repo, 0), [str(path) for path in files(repo)]])
    return hashlib.sha1(state.encode()).hexdigest()


def files(repo):
    return sorted(path for path in (ROOT / repo).rglob("*") if path.is_file())


def described(repo, path):
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    entry = {"type": "file", "path": str(path.relative_to(ROOT / repo)), "size": len(data), "oid": digest[:40]}
    if len(data) > LARGE:
        entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 130}
    return entry


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        print(self.command, self.path, file=sys.stderr)

    def said(self, code, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("content_type", "application/json")
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refused(self, code, name):
        self.said(code, {"error": name}, x_error_code=name, x_error_message=name)

    def may_write(self):
        return self.headers.get("authorization") == f"Bearer {TOKEN}"

    # The repository of a request, or None if it has been answered with a refusal.
    def repository(self, repo):
        owner = repo.split("/")[0]
        if owner == "limited":
            self.refused(429, "TooManyRequests")
        elif owner == "elsewhere":
            self.said(302, location=f"http://{self.headers['host'].replace('127.0.0.1', 'localhost')}{self.path}")
        elif not (ROOT / repo).is_dir() or (owner == "private" and not self.may_write()):
            self.refused(404 if self.may_write() else 401, "RepoNotFound")
        else:
            return repo
        return None

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            if (repo := self.repository(found[1])) is None:
                return None
            if found[2] not in (None, "main", sha(repo)):
                return self.refused(404, "RevisionNotFound")
            names = [{"rfilename": entry["path"]} for entry in map(lambda p: described(repo, p), files(repo))]
            return self.said(200, {"_id": "1", "id": repo, "modelId": repo, "sha": sha(repo), "siblings": names,
                                   "private": False, "tags": [], "downloads": 0, "likes": 0})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            if (repo := self.repository(found[1])) is None:
                return None
            return self.said(200, [described(repo, path) for path in files(repo)])
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if (repo := self.repository(found[1])) is None:
                return None
            file = ROOT / repo / found[3]
            if not SAFE.fullmatch(found[3]) or not file.is_file():
                return self.refused(404, "EntryNotFound")
            if repo.startswith("stored/") and self.command == "GET" and file.stat().st_size > LARGE:
                return self.said(302, location=f"http://{self.headers['host'].replace('127.0.0.1', 'localhost')}"
                                               f"/open/{found[3]}")
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            return self.said(200, file.read_bytes(), etag=f'"{digest}"', x_repo_commit=sha(repo), accept_ranges="bytes")
        return self.refused(404, "NotFound")

    do_HEAD = do_GET

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["content-length"]))
        LFS[hashlib.sha256(data).hexdigest()] = data
        self.said(200, b"", etag='"stored"')

    def do_POST(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.may_write():
            return self.refused(401, "Unauthorized")
        if path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "me"
            repo = f"{owner}/{asked['name']}"
            if owner == "forbidden":
                return self.refused(403, "Forbidden")
            if (ROOT / repo).is_dir():
                return self.refused(409, "Conflict")
            (ROOT / repo).mkdir(parents=True)
            (ROOT / repo).with_suffix(".private").write_text(json.dumps(asked.get("private")))
            return self.said(200, {"url": f"http://{self.headers['host']}/{repo}", "id": repo, "name": repo})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            wanted = json.loads(body)["files"]
            return self.said(200, {"files": [{"path": f["path"], "shouldIgnore": False,
                                              "uploadMode": "lfs" if f["size"] > LARGE else "regular"} for f in wanted]})
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            def upload(of):
                action = {"href": f"http://{self.headers['host']}/lfs/{of['oid']}", "header": {}}
                return {"oid": of["oid"], "size": of["size"], "authenticated": True, "actions": {"upload": action}}
            return self.said(200, {"transfer": "basic", "objects": [upload(o) for o in json.loads(body)["objects"]]},
                             content_type="application/vnd.git-lfs+json")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            return self.commit(found[1], [json.loads(line) for line in body.splitlines() if line.strip()])
        return self.refused(404, "NotFound")

    def commit(self, repo, lines):
        with LOCK:
            for line in lines:
                value = line["value"]
                if line["key"] == "header":
                    continue
                if not SAFE.fullmatch(value["path"]):
                    return self.refused(400, "BadPath")
                data = base64.b64decode(value["content"]) if line["key"] == "file" else LFS[value["oid"]]
                file = ROOT / repo / value["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            COMMITS[repo] = COMMITS.get(repo, 0) + 1
        oid = sha(repo)
        return self.said(200, {"success": True, "commitOid": oid, "hookOutput": "",
                               "commitUrl": f"http://{self.headers['host']}/{repo}/commit/{oid}"})


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
print(f"listening http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
