// Pages by their URL. Every state of a page is in the part after #.

import { h, a, show, link } from "./dom.js";
import { ask, bundledRun, listen, runPath } from "./data.js";
import { episodesPage } from "./episodes.js";
import { episodePage, groupPage } from "./episode.js";
import { partPage, runPage, runsPage, updatePage, updatesPage } from "./run.js";
import { comparePage, pairPage, tasksPage } from "./tasks.js";
import { fleetPage } from "./fleet.js";

// Path (a name stands for itself, * for anything), page, title, and whether it follows a live run.
const PAGES = [
  [[], runsPage, () => "Runs", true],
  [["runs", "*"], runPage, (run) => run, true],
  [["runs", "*", "episodes"], episodesPage, (run) => "Episodes · " + run, false],
  [["runs", "*", "episodes", "*", "*", "*", "*"], episodePage, (run, n, stage, p, k) => `${n}/${stage}/${p} · ${k} · ${run}`, false],
  [["runs", "*", "group", "*", "*", "*", "*"], groupPage, (run, n, stage, p, g) => `Group ${g} · ${run}`, false],
  [["runs", "*", "tasks"], tasksPage, (run) => "Tasks · " + run, true],
  [["runs", "*", "fleet"], fleetPage, (run) => "Fleet · " + run, true],
  [["runs", "*", "update"], updatesPage, (run) => "Updates · " + run, true],
  [["runs", "*", "update", "*"], updatePage, (run, n) => `Update ${n} · ${run}`, false],
  [["runs", "*", "parts", "*", "*", "*"], partPage, (run, n, stage, p) => `${n}/${stage}/${p} · ${run}`, false],
  [["compare"], comparePage, () => "Comparison", false],
  [["pair"], pairPage, () => "Two episodes", false],
];
const TABS = [["", "Overview"], ["episodes", "Episodes"], ["tasks", "Tasks"], ["update", "Updates"], ["fleet", "Fleet & ledger"]];

const root = h("main", { id: "page", tabindex: "-1" });
const crumbs = h("nav", { class: "crumbs", "aria-label": "Where you are" });
const tabs = h("nav", { class: "tabs", "aria-label": "Pages of this run" });
const live = h("span", { class: "live", role: "status" });
let leave = null;
let stop = () => {};
let listening = null;
let turn = 0;
let framed = null;

function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const pieces = path.split("/").filter(Boolean).map((piece) => { try { return decodeURIComponent(piece); } catch { return piece; } });
  return [pieces, Object.fromEntries(new URLSearchParams(query ?? ""))];
}

function go(path, query) {
  location.hash = link(path, query);
}

async function route(event, quiet) {
  const own = ++turn;
  const asked = location.hash;
  let [pieces, query] = parse();
  if (bundledRun && pieces.length === 0) pieces = ["runs", bundledRun];
  const page = PAGES.find(([shape]) => shape.length === pieces.length && shape.every((name, at) => name === "*" || name === pieces[at]));
  const values = page ? page[0].flatMap((name, at) => (name === "*" ? [pieces[at]] : [])) : [];
  const run = pieces[0] === "runs" ? pieces[1] : null;
  document.title = (page ? page[2](...values) : "Not found") + " — agentgym";
  // Pages about two policies or episodes stand among the tasks of the first one's run.
  const first = pieces[0] === "pair" ? query.x?.split("/")[0] : pieces[0] === "compare" ? query.a?.split(":")[0] : null;
  frame(run ?? first, run ? pieces.slice(2) : ["tasks"]);
  follow(run, page?.[3]);
  if (!quiet) root.setAttribute("aria-busy", "true");
  const next = h("div", { class: "page" });
  let done = null;
  try {
    if (!page) throw new Error("There is no such page.");
    const slow = setTimeout(() => { if (own === turn && !quiet) waiting(run ?? query.a?.split(":")[0], () => own === turn && root.hasAttribute("aria-busy")); }, 250);
    // Pages that fill themselves step by step are shown at once.
    done = await page[1](next, values, query, go).finally(() => clearTimeout(slow));
  } catch (error) {
    show(next, h("h1", { tabindex: "-1" }, error.kind === "token" ? "Not yours to see" : "This cannot be shown"), h("p", { class: "warn card" }, error.message));
  }
  if (own !== turn) { done?.(); return; }
  leave?.();
  leave = done;
  const scroll = quiet ? window.scrollY : 0;
  root.removeAttribute("aria-busy");
  // The URL changes before its event arrives: what is shown says of which URL it is.
  root.dataset.shows = asked;
  const typing = keepTyping(next);
  root.replaceChildren(next);
  const typed = typing();
  window.dispatchEvent(new Event("resize"));
  window.scrollTo(0, scroll);
  if (event && !quiet && !typed) next.querySelector("h1")?.focus({ preventScroll: true });
}

// Says how far the store has been read, for as long as a page waits.
async function waiting(run, holds) {
  const told = h("p", { class: "quiet reading", role: "status" }, "Reading the store …");
  show(root, told);
  while (run && !bundledRun && holds()) {
    const { reading } = await ask(runPath(run, "progress")).catch(() => ({}));
    if (!holds() || !told.isConnected) return;
    if (reading) show(told, `Reading the store: ${reading.done} of ${reading.of} ${reading.what} `, h("progress", { max: reading.of, value: reading.done, "aria-label": "read so far" }));
    await new Promise((done) => setTimeout(done, 300));
  }
}

function frame(run, place) {
  const trail = [bundledRun ? null : a("#/", "Runs"), run ? a(link(["runs", run]), run) : null];
  if (place[0] === "episodes" && place.length > 1) trail.push(a(link(["runs", run, "episodes"], { iteration: place[1], stage: place[2] }), `iteration ${place[1]}`), `episode ${Number(place[4]) + 1} of ${place.slice(1, 4).join("/")}`);
  else if (place.length > 1) trail.push(place.join(" "));
  show(crumbs, trail.filter(Boolean).flatMap((one, at) => (at ? [h("span", { "aria-hidden": "true" }, "›"), one] : [one])));
  tabs.hidden = !run;
  // Tabs of the same run stay: one that is replaced under the pointer takes no click.
  if (run && run !== framed) show(tabs, TABS.map(([name, text]) => h("a", { href: link(["runs", run, name].filter(Boolean)) }, text)));
  framed = run;
  TABS.forEach(([name], at) => {
    if ((place[0] ?? "") === name) tabs.children[at]?.setAttribute("aria-current", "page");
    else tabs.children[at]?.removeAttribute("aria-current");
  });
}

// A field that is being typed into when its page is replaced goes on in the new page, with what was
// typed meanwhile.
function keepTyping(next) {
  const old = document.activeElement;
  const field = old?.name && root.contains(old) ? next.querySelector(`[name="${CSS.escape(old.name)}"]`) : null;
  return () => {
    if (!field) return false;
    const [at, typed] = [old.selectionStart, old.value];
    field.focus({ preventScroll: true });
    if (field.value !== typed) { field.value = typed; field.dispatchEvent(new Event("input")); }
    field.setSelectionRange(at, at);
    return true;
  };
}

// Listens for news of the run in view; a page that shows a state is drawn anew.
function follow(run, redraws) {
  const wanted = redraws ? run ?? "" : null;
  if (wanted === listening) return;
  stop();
  listening = wanted;
  show(live);
  if (wanted === null) return;
  let waiting = null;
  stop = listen(wanted || null, () => {
    waiting ??= setTimeout(() => { waiting = null; if (!document.hidden) route(null, true); }, 300);
  }, (state) => { live.className = "live " + state; show(live, state === "live" ? "● connected" : state === "lost" ? "○ reconnecting" : ""); });
}

function themeButton() {
  const set = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
    document.dispatchEvent(new Event("themechange"));
  };
  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (kept) set(kept);
  return h("button", { type: "button", class: "theme", "aria-label": "Light or dark", onclick: () => {
    const dark = getComputedStyle(document.documentElement).colorScheme.trim() === "dark";
    set(dark ? "light" : "dark");
    try { localStorage.setItem("theme", dark ? "light" : "dark"); } catch { /* it holds for this page */ }
  } }, "◐");
}

document.body.append(
  h("a", { class: "skip", href: "#page", onclick: (e) => { e.preventDefault(); root.focus(); } }, "To the page"),
  h("header", { class: "top" }, h("a", { class: "mark", href: "#/" }, "agentgym"), crumbs, live, themeButton()),
  tabs, root);
window.addEventListener("hashchange", (event) => route(event));
route(null);
