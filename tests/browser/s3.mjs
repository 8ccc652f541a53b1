// An S3 server over a folder, to be read from: GET, HEAD and LIST, every answer later than it could
// be. Names are listed once, or at each LIST where the folder is `live`. It asks nobody who they are
// and writes nothing; the project's own server, for its tests of commits, is tests/s3.rs.

import { createServer } from "node:http";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";

const BUCKET = "bucket";

// Every file below a folder, as sorted keys with sizes. What a run removes meanwhile is left out.
function keysBelow(folder) {
  const out = [];
  const unlessGone = (read) => { try { return read(); } catch (error) { if (error.code === "ENOENT") return null; throw error; } };
  const walk = (below) => {
    for (const entry of unlessGone(() => readdirSync(join(folder, below), { withFileTypes: true })) ?? []) {
      const key = below ? below + "/" + entry.name : entry.name;
      if (entry.isDirectory()) { walk(key); continue; }
      const size = unlessGone(() => statSync(join(folder, key)).size);
      if (size !== null) out.push([key, size]);
    }
  };
  walk("");
  return out.sort(([x], [y]) => (x < y ? -1 : 1));
}

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function listing(keys, query) {
  const prefix = query.get("prefix") ?? "";
  const delimiter = query.get("delimiter");
  const after = query.get("continuation-token") ?? query.get("start-after") ?? "";
  const most = Number(query.get("max-keys") ?? 1000);
  const [rows, folders] = [[], new Set()];
  let last = null;
  let low = 0;
  let high = keys.length;
  const from = prefix > after ? prefix : after;
  while (low < high) { const middle = (low + high) >> 1; if (keys[middle][0] < from) low = middle + 1; else high = middle; }
  for (let at = low; at < keys.length && keys[at][0].startsWith(prefix); at += 1) {
    const [key, size] = keys[at];
    if (key <= after) continue;
    if (rows.length + folders.size === most) break;
    last = key;
    const rest = delimiter ? key.slice(prefix.length).indexOf(delimiter) : -1;
    if (rest >= 0) folders.add(key.slice(0, prefix.length + rest + 1)); else rows.push([key, size]);
  }
  const more = rows.length + folders.size === most && last !== null;
  return `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>${BUCKET}</Name><Prefix>${escaped(prefix)}</Prefix><KeyCount>${rows.length + folders.size}</KeyCount><MaxKeys>${most}</MaxKeys><IsTruncated>${more}</IsTruncated>`
    + (more ? `<NextContinuationToken>${escaped(last)}</NextContinuationToken>` : "")
    + rows.map(([key, size]) => `<Contents><Key>${escaped(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"0"</ETag><Size>${size}</Size><StorageClass>STANDARD</StorageClass></Contents>`).join("")
    + [...folders].map((folder) => `<CommonPrefixes><Prefix>${escaped(folder)}</Prefix></CommonPrefixes>`).join("") + "</ListBucketResult>";
}

export async function slowS3(folder, delayMs, live = false) {
  const keys = keysBelow(folder);
  const server = createServer((request, response) => {
    request.resume();
    own.requests += 1;
    setTimeout(() => answer(request, response), delayMs);
  });
  const answer = (request, response) => {
    const url = new URL(request.url, "http://h");
    const key = decodeURIComponent(url.pathname).replace(new RegExp(`^/${BUCKET}/?`), "");
    if (request.method !== "GET" && request.method !== "HEAD") { response.writeHead(403).end(); return; }
    if (key === "") {
      response.writeHead(200, { "content-type": "application/xml" }).end(listing(live ? keysBelow(folder) : keys, url.searchParams));
      return;
    }
    const path = join(folder, key);
    if (key.includes("..") || !existsSync(path)) {
      response.writeHead(404, { "content-type": "application/xml" }).end("<Error><Code>NoSuchKey</Code></Error>");
      return;
    }
    const all = readFileSync(path);
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const [from, to] = range ? [Number(range[1]), Math.min(all.length - 1, range[2] === "" ? all.length - 1 : Number(range[2]))] : [0, all.length - 1];
    const head = { "content-length": to - from + 1, etag: '"0"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT" };
    if (range) head["content-range"] = `bytes ${from}-${to}/${all.length}`;
    response.writeHead(range ? 206 : 200, head).end(request.method === "HEAD" ? undefined : all.subarray(from, to + 1));
  };
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const own = { requests: 0, url: `s3://${BUCKET}?endpoint=http://127.0.0.1:${server.address().port}`, stop: () => server.close() };
  return own;
}
