// How fast the viewer is: `node measure.mjs STORE RUN`, a finished quickstart. It serves the store
// from an S3 server that answers 30 ms late, looks at it in headless Chromium, and prints a line
// per target of the viewer. Beside it, in stores of its own: an episode of 32 000 tokens, made by a
// tiny model, 100 000 attempts, and a run that is killed while it is looked at. Nothing is written to STORE.

import { cpSync, existsSync, linkSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

process.env.AWS_ACCESS_KEY_ID ??= "anybody";
process.env.AWS_SECRET_ACCESS_KEY ??= "anything";
const { browser, clean, folder, kill, open, run: runConfig, settled, start, view, visit } = await import("./kit.mjs");
const { slowS3 } = await import("./s3.mjs");

const [store, run] = process.argv.slice(2);
if (!store || !run) { console.error("usage: node measure.mjs STORE RUN"); process.exit(2); }
const DELAY_MS = 30;
const ATTEMPTS = 100000;
const TOKENS = 32000;
const lines = [];
const ms = (x) => `${Math.round(x)} ms`;

function say(what, measured, target, text = ms) {
  lines.push([what, text(measured), target === null ? "–" : text(target), target === null ? "" : measured <= target ? "✓" : "✕"]);
  console.log(lines.at(-1).join(" | "));
}

// How long something takes, in this process's clock.
async function timed(work) {
  const begun = performance.now();
  await work();
  return performance.now() - begun;
}

const memory = (viewer) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${viewer.pid}/status`, "utf8"))[1]) * 1024;
const peak = (viewer) => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${viewer.pid}/status`, "utf8"))[1]) * 1024;
const megabytes = (bytes) => `${Math.round(bytes / 1e6)} MB`;

// Frames per second while the page moves by `step` pixels or a key is pressed at every frame.
async function frames(page, move, seconds) {
  return page.evaluate(async ([kind, forMs]) => {
    const gaps = [];
    const canvas = document.querySelector("canvas");
    const begun = performance.now();
    let last = begun;
    while (performance.now() - begun < forMs) {
      if (kind === "scroll") {
        if (window.scrollY + window.innerHeight >= document.documentElement.scrollHeight - 2) window.scrollTo(0, 0);
        window.scrollBy(0, 60);
      } else canvas.dispatchEvent(new KeyboardEvent("keydown", { key: gaps.length % 2 ? "ArrowRight" : "+", bubbles: true }));
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      gaps.push(now - last);
      last = now;
    }
    gaps.sort((x, y) => x - y);
    return { fps: 1000 * gaps.length / gaps.reduce((x, y) => x + y, 0), slow: gaps[Math.floor(gaps.length * 0.99)], tokens: document.querySelectorAll(".t").length };
  }, [move, seconds * 1000]);
}

async function overS3(chrome) {
  const server = await slowS3(resolve(store), DELAY_MS);
  const viewer = await view(server.url);
  let page = await open(chrome, viewer);
  // A page of its own, before anything of the store is read.
  await page.goto(viewer.origin + "/#/no/such/page");
  await page.reload();
  const paint = await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
  say("first paint", await paint.jsonValue(), 300);
  let told = "";
  const watching = setInterval(async () => {
    const text = await page.locator(".reading").innerText({ timeout: 50 }).catch(() => "");
    if (text.includes(" of ")) told = text;
  }, 100);
  say("run page, cold", await timed(() => visit(page, viewer, "/runs/" + run)), 5000);
  say("its requests to the store", server.requests, null, String);
  await page.goto(viewer.origin + "/#/no/such/page");
  await settled(page);
  say("run page, warm", await timed(() => visit(page, viewer, "/runs/" + run)), 1000);
  say("episodes, cold", await timed(() => visit(page, viewer, `/runs/${run}/episodes`)), 5000);
  clearInterval(watching);
  console.log("told while it waited: " + told.replace(/\s+/g, " "));
  const total = await page.locator(".total").innerText();
  const ask = (question) => page.evaluate(async (q) => {
    const begun = performance.now();
    await (await fetch("api/v1/" + q)).text();
    return performance.now() - begun;
  }, question);
  const filters = [];
  for (const filter of ["outcome=horizon", "preset=worst", "sort=-turns&stage=rollout", "preset=unlucky", "advantage_min=0.5"]) filters.push(await ask(`runs/${run}/episodes?limit=200&${filter}`));
  say(`filter of ${total}, the slowest of five`, Math.max(...filters), 50);
  say("server memory, resident", memory(viewer), 200e6, megabytes);
  say("server memory, largest", peak(viewer), 200e6, megabytes);
  await page.context().close();
  await new Promise((done) => setTimeout(done, 3000));
  const before = server.requests;
  await new Promise((done) => setTimeout(done, 6000));
  say("requests to the store in 6 s without a tab", server.requests - before, 0, String);
  // The index of a viewer that was opened before.
  viewer.stop();
  const again = await view(server.url);
  page = await open(chrome, again);
  say("episodes in a new viewer, index kept on disk", await timed(() => visit(page, again, `/runs/${run}/episodes`)), 5000);
  await page.context().close();
  again.stop();
  server.stop();
}

const LONG = `
actor_rollout_ref:
  model: {path: 'tiny?hidden=32&heads=2&kv_heads=1&layers=1&intermediate=64&vocab=400'}
  actor: {ppo_mini_batch_size: 1}
  rollout: {n: 2, max_tokens: 900, max_model_len: 4000}
  # A tiny model has 4096 positions, so the episode is one of many contexts.
  agentgym: {task_name: textcraft, env_addr: builtin, context_turns: 2}
data:
  train_batch_size: 1
  max_prompt_length: 1000
  max_response_length: 3000
  tasks: [{env: textcraft, ids: 0..1}]
algorithm: {rounds_ctrl: {rounds: 26}}
trainer: {total_training_steps: 1, test_freq: 0}
run: {id: long}
`;

async function longEpisode(chrome) {
  const path = join(folder, "long.yaml");
  writeFileSync(path, LONG);
  runConfig("--quiet", path);
  const viewer = await view();
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/long/episodes?stage=rollout&sort=-length");
  const rows = await page.evaluate(async () => (await (await fetch("api/v1/runs/long/episodes?stage=rollout&sort=-length")).json()).rows);
  const place = `/runs/long/episodes/${rows[0].part}/${rows[0].k}`;
  await page.goto(viewer.origin + "/#/no/such/page");
  await settled(page);
  const took = await timed(() => visit(page, viewer, place));
  const all = await page.evaluate(async (q) => (await (await fetch("api/v1/" + q)).json()).sequences.reduce((sum, s) => sum + s.ids.length, 0), place.slice(1).replace("episodes/", "parts/").replace(/\/(\d+)$/, "/episodes/$1"));
  if (all < TOKENS) console.log(`the longest episode has only ${all} tokens`);
  say(`episode of ${all} tokens`, took, 500);
  const moved = await frames(page, "scroll", 5);
  say("ms per frame while it scrolls, mean", 1000 / moved.fps, 1000 / 60 + 0.5, (x) => `${x.toFixed(1)} ms`);
  say("the slowest of a hundred frames", moved.slow, null);
  say("tokens in the page afterwards", moved.tokens, null, String);
  await page.context().close();
  viewer.stop();
}

// The run once more, its files linked, with attempts that were killed.
function manyAttempts() {
  const to = join(folder, "many");
  const from = join(resolve(store), "runs", run);
  mkdirSync(join(to, "runs", run), { recursive: true });
  for (const kind of ["plan", "commits", "attempts", "expired"]) cpSync(join(from, kind), join(to, "runs", run, kind), { recursive: true });
  const link = (below) => {
    mkdirSync(join(to, "runs", run, below), { recursive: true });
    for (const entry of readdirSync(join(from, below), { withFileTypes: true })) {
      if (entry.isDirectory()) link(join(below, entry.name));
      else if (entry.name === "metrics.json") linkSyncOrCopy(join(from, below, entry.name), join(to, "runs", run, below, entry.name));
    }
  };
  link("files");
  const slots = [];
  const root = join(to, "runs", run, "attempts");
  for (const n of readdirSync(root)) for (const stage of readdirSync(join(root, n))) for (const part of readdirSync(join(root, n, stage))) slots.push(join(root, n, stage, part));
  const first = JSON.parse(readFileSync(join(slots[0], "0001", "start.json"), "utf8"));
  const each = Math.ceil(ATTEMPTS / slots.length) - 1;
  slots.forEach((slot, place) => {
    const had = readdirSync(slot).length;
    for (let more = 1; more <= each; more += 1) {
      const at = join(slot, String(had + more).padStart(4, "0"));
      mkdirSync(at);
      const start = { ...first, worker: `host-${(place + more) % 40}`, started_unix_s: first.started_unix_s + place * each + more };
      writeFileSync(join(at, "start.json"), JSON.stringify(start));
    }
  });
  return [to, slots.length * (each + 1)];
}

function linkSyncOrCopy(from, to) {
  try { linkSync(from, to); } catch { cpSync(from, to); }
}

async function gantt(chrome) {
  const [many, count] = manyAttempts();
  const viewer = await view(many);
  const page = await open(chrome, viewer);
  page.setDefaultTimeout(300000);
  await page.goto(viewer.origin + `/#/runs/${run}/fleet`);
  const cold = await timed(() => page.waitForSelector("canvas.gantt", { timeout: 300000 }));
  say(`fleet page of ${count} attempts in a folder, cold`, cold, null);
  await page.goto(viewer.origin + "/#/no/such/page");
  await settled(page);
  say("the same again", await timed(async () => { await page.goto(viewer.origin + `/#/runs/${run}/fleet`); await page.waitForSelector("canvas.gantt"); await settled(page); }), null);
  const moved = await frames(page, "keys", 4);
  say("ms per frame while it zooms and moves, mean", 1000 / moved.fps, null, (x) => `${x.toFixed(1)} ms`);
  say("server memory with them", memory(viewer), null, megabytes);
  await page.context().close();
  viewer.stop();
  rmSync(many, { recursive: true, force: true });
}

// A run whose process is killed every four seconds and started again, seen through the slow server.
async function live(chrome) {
  const own = join(folder, "live");
  const commits = join(own, "runs/live/commits");
  const work = () => start("--quiet", "configs/smoke.yaml", "run.id=live", "trainer.total_training_steps=60", "--store", own);
  const count = () => (existsSync(commits) ? readdirSync(commits, { recursive: true }).filter((name) => name.endsWith(".json")).length : 0);
  let child = work();
  while (count() < 12) await new Promise((done) => setTimeout(done, 50));
  const server = await slowS3(own, DELAY_MS, true);
  const viewer = await view(server.url);
  const page = await open(chrome, viewer);
  say("live: run page, cold", await timed(() => visit(page, viewer, "/runs/live")), 5000);
  await page.goto(viewer.origin + "/#/no/such/page");
  await settled(page);
  say("live: run page, warm", await timed(() => visit(page, viewer, "/runs/live")), 1000);
  const [made, shown] = [new Map(), new Map()];
  const [begun, before] = [performance.now(), server.requests];
  let kills = 0;
  while (performance.now() - begun < 30000) {
    if (performance.now() - begun > 4000 * (kills + 1)) {
      await kill(child);
      kills += 1;
      child = work();
    }
    const now = performance.now();
    const [written, drawn] = [count(), Number(await page.locator("main progress").first().getAttribute("value"))];
    if (!made.has(written)) made.set(written, now);
    if (!shown.has(drawn)) shown.set(drawn, now);
    await page.waitForTimeout(20);
  }
  say("live: requests a second while it is looked at", (server.requests - before) / 30, null, (x) => x.toFixed(1));
  const late = [];
  for (const [n, at] of made) {
    const seen = Math.min(...[...shown].filter(([value]) => value >= n).map(([, time]) => time));
    if (Number.isFinite(seen)) late.push(Math.max(0, seen - at));
  }
  late.sort((x, y) => x - y);
  say(`live: from a commit to the page, half of ${late.length}, ${kills} kills`, late[late.length >> 1], null);
  say("live: the latest", late.at(-1), null);
  say("live: memory, largest", peak(viewer), 200e6, megabytes);
  await page.context().close();
  await new Promise((done) => setTimeout(done, 3000));
  const quiet = server.requests;
  await new Promise((done) => setTimeout(done, 6000));
  say("live: requests to the store in 6 s without a tab", server.requests - quiet, 0, String);
  child.kill("SIGKILL");
  viewer.stop();
  server.stop();
}

const chrome = await browser();
try {
  for (const part of [overS3, live, longEpisode, gantt]) await part(chrome);
} finally {
  await chrome.close();
  clean();
}
console.log("\n| | measured | target | |\n|---|---|---|---|\n" + lines.map((line) => `| ${line.join(" | ")} |`).join("\n"));
