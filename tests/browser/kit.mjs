// What the tests share: runs made by the project's own programs, a viewer, a browser.

import { spawn, spawnSync } from "node:child_process";
import { createServer } from "node:http";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const ROOT = resolve(fileURLToPath(import.meta.url), "../../..");
const PROGRAMS = process.env.AGENTGYM_PROGRAMS ?? join(ROOT, "target/release");
// An optimised program makes the runs where the one under test is not.
const RUNNER = process.env.AGENTGYM_RUNNER ?? PROGRAMS;
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export const folder = mkdtempSync(join(tmpdir(), "agentgym-view-"));
export const store = join(folder, "store");
const environment = { ...process.env, AGENTGYM_STORE: store, AGENTGYM_CACHE: join(folder, "cache"), AGENTGYM_QUEUE: "" };
delete environment.AGENTGYM_QUEUE;

export function submit(...words) {
  return finish(PROGRAMS, words);
}

export function run(...words) {
  return finish(RUNNER, words);
}

function finish(programs, words) {
  const done = spawnSync(join(programs, "agentgym-submit"), words, { cwd: ROOT, env: environment, encoding: "utf8" });
  if (done.status !== 0) throw new Error(words.join(" ") + ": " + done.stdout + done.stderr);
  return done.stdout;
}

export function start(...words) {
  return spawn(join(RUNNER, "agentgym-submit"), words, { cwd: ROOT, env: environment, stdio: "ignore" });
}

// A viewer of the store; its URL holds the token.
export async function view(of = store) {
  const child = spawn(join(PROGRAMS, "agentgym-submit"), ["view", "--port", "0", "--no-open", "--json", "--store", of], { cwd: ROOT, env: environment });
  const line = await new Promise((found, failed) => {
    child.stdout.once("data", (data) => found(String(data)));
    child.once("exit", (code) => failed(new Error("the viewer ended with " + code)));
  });
  const url = new URL(JSON.parse(line).url);
  return { url, pid: child.pid, origin: url.origin, token: url.searchParams.get("token"), stop: () => child.kill() };
}

export async function browser() {
  const { existsSync } = await import("node:fs");
  const executablePath = process.env.AGENTGYM_BROWSER ?? BROWSERS.find((path) => existsSync(path));
  if (!executablePath) throw new Error("no Chromium found; scripts/browser.sh installs Debian's, or set AGENTGYM_BROWSER");
  return chromium.launch({ executablePath, args: ["--no-sandbox"] });
}

// A page that is let in. It notes every request that leaves the origin, every dialog and every error.
export async function open(chrome, viewer, options = {}) {
  const context = await chrome.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.notes = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(viewer.origin + "/") && !request.url().startsWith("data:")) page.notes.push("request " + request.url());
  });
  page.on("dialog", (dialog) => { page.notes.push("dialog " + dialog.message()); dialog.dismiss(); });
  page.on("pageerror", (error) => page.notes.push("error " + error.message));
  page.on("console", (message) => { if (message.type() === "error") page.notes.push("console " + message.text()); });
  await page.goto(viewer.url.href);
  return page;
}

// Goes to a state and waits until it is drawn.
export async function visit(page, viewer, hash) {
  await page.goto(viewer.origin + "/#" + hash);
  await settled(page);
}

// What the data API answers.
export async function answer(viewer, question) {
  const headers = { authorization: "Bearer " + viewer.token };
  return (await fetch(viewer.origin + "/api/v1/" + question, { headers })).json();
}

// Kills a process and waits until it is gone.
export async function kill(child) {
  const ended = new Promise((done) => child.once("exit", done));
  child.kill("SIGKILL");
  await ended;
}

// Waits until the page that the URL names is drawn: not the one before it, whose URL has just changed.
export async function settled(page) {
  await page.waitForFunction(() => {
    const main = document.querySelector("main");
    return main?.dataset.shows === location.hash && !main.hasAttribute("aria-busy") && main.querySelector("h1");
  }, null, { timeout: 20000 });
}

// A TextCraft server whose every answer is `text`.
export async function environmentThatSays(text) {
  let sessions = 0;
  const server = createServer((request, response) => {
    request.resume();
    request.on("end", () => {
      const reply = { observation: text, reward: 0, done: false };
      if (request.url.startsWith("/create")) reply.id = sessions++;
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify(reply));
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { url: "http://127.0.0.1:" + server.address().port, stop: () => server.close() };
}

export function clean() {
  rmSync(folder, { recursive: true, force: true });
}
