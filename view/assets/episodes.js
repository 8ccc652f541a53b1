// The list of episodes: filters, presets, order; only the rows in view are in the page.

import { h, a, show, choice, episodeLink, fixed, grouped, isNumber, link, num, outcome, shortName, signed } from "./dom.js";
import { ask, bundledRun, runPath } from "./data.js";

const ROW = 34;
const PAGE = 200;

const PRESETS = [
  ["", "All"], ["best", "Best"], ["worst", "Worst"], ["unlucky", "Unlucky", "the greedy episode solves the task, this sample fails"],
  ["loops", "Loops", "three turns or more in a row do the same"],
];
const SORTS = [
  ["", "newest first"], ["-reward", "reward, highest first"], ["reward", "reward, lowest first"],
  ["-advantage", "|advantage|, largest first"], ["-length", "length, longest first"], ["-turns", "turns, most first"],
  ["surprise", "surprise, least likely token first"], ["-mismatch", "mismatch of sampling and scoring"], ["iteration", "as played"],
];

// What the order is where none is chosen.
const ORDERS = { best: "reward, newest, shortest", worst: "reward, newest, most spoilt, longest" };

// name, width, cell, class, title of a cell
const COLUMNS = [
  ["Episode", 204, (row, run, query) => a(episodeLink(run, row, query), episodeName(row)), null, (row) => `episode ${row.k} of ${row.part}`],
  ["Outcome", 98, (row) => outcome(row.outcome)],
  ["Reward", 64, (row) => num(row.reward), "n"],
  ["Task", 150, (row) => row.task],
  ["Advantage", 92, (row) => signed(row.advantage), "n"],
  ["Turns", 64, (row) => row.turns, "n"],
  ["Tokens", 72, (row) => grouped(row.length), "n"],
  ["Least log-prob", 112, (row) => fixed(row.surprise, 2), "n"],
  ["Notes", 262, (row) => notes(row)],
  ["Worker", null, (row) => shortName(row.worker), null, (row) => row.worker],
];

const NOTES = "unparsed: turns without an action. normalised: turns whose action was cleaned before it was sent. cut: turns that ended at the limit of tokens. loops: three turns or more in a row do the same. Δ: largest difference of sampled and scored log-prob.";

function episodeName(row) {
  const when = row.stage === "evaluate_init" ? "before training" : "iteration " + row.iteration;
  return `${when}, ${row.stage.startsWith("evaluate") ? "evaluation" : "episode"} ${row.place} of ${row.places}`;
}

function notes(row) {
  const all = row.greedy ? ["greedy"] : [];
  if (row.invalid) all.push(row.invalid + " unparsed");
  if (row.normalised) all.push(row.normalised + " normalised");
  if (row.cut) all.push(row.cut + " cut");
  if (row.loops) all.push("loops");
  if (isNumber(row.mismatch) && row.mismatch > 0) all.push("Δ " + num(row.mismatch, 2));
  return all.join(", ");
}

export function damaged(all) {
  return h("div", { class: "card bad" }, "Not in this list, since it cannot be read:", h("ul", {}, all.map((one) => h("li", {}, one))));
}

export async function episodesPage(root, [run], query, go) {
  const total = h("output", { class: "total", "aria-live": "polite" }, "…");
  const space = h("tbody", {});
  const filters = h("form", { class: "filters", onsubmit: (e) => e.preventDefault() });
  const scroller = h("div", { class: "list scroll", tabindex: "0", role: "region", "aria-label": "Episodes" },
    h("table", { class: "rows", "aria-rowcount": "-1" },
      h("caption", { class: "quiet" }, "Episodes of " + run),
      h("thead", {}, h("tr", {}, COLUMNS.map(([name, width, , kind]) => h("th", { scope: "col", class: kind, $width: width && width + "px", title: name === "Notes" ? NOTES : null }, name)))),
      space));
  const tabs = h("div", { class: "presets", role: "group", "aria-label": "Presets" }, PRESETS.map(([key, text, title]) =>
    h("a", { href: link(["runs", run, "episodes"], { ...query, preset: key }), title, "aria-current": (query.preset ?? "") === key ? "true" : null }, text)));
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Episodes"), total), tabs, filters, scroller);

  // What is not ordered begins with what was played last.
  const asked = query.sort || query.preset ? query : { ...query, sort: "-iteration" };
  // The episode's page goes through this list.
  const listed = new URLSearchParams(asked).toString();
  const set = (key) => (value) => go(["runs", run, "episodes"], { ...query, [key]: value });
  const pages = new Map();
  let count = 0;
  const question = (cursor) => runPath(run, "episodes") + "?" + new URLSearchParams({ ...asked, cursor, limit: PAGE });
  const page = (at) => {
    if (!pages.has(at)) {
      const loading = ask(question(at * PAGE)).then((answer) => { pages.set(at, answer.rows); draw(); return answer; });
      pages.set(at, loading);
    }
    return pages.get(at);
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - 12);
    const last = Math.min(count, first + Math.ceil(scroller.clientHeight / ROW) + 26);
    const rows = [];
    for (let at = first; at < last; at += 1) {
      const loaded = page(Math.floor(at / PAGE));
      const row = Array.isArray(loaded) ? loaded[at % PAGE] : null;
      rows.push(row
        ? h("tr", { "aria-rowindex": at + 2 }, COLUMNS.map(([name, , cell, kind, title], i) =>
          h(i === 0 ? "th" : "td", { class: kind, scope: i === 0 ? "row" : null, title: title ? title(row) : name === "Notes" ? notes(row) : null }, cell(row, run, { from: listed, at }))))
        : h("tr", { class: "loading" }, h("td", { colspan: COLUMNS.length }, "…")));
    }
    const gap = (lines) => lines > 0 ? h("tr", { class: "gap", "aria-hidden": "true", $height: lines * ROW + "px" }, h("td", { colspan: COLUMNS.length })) : null;
    show(space, gap(first), rows, gap(count - last));
  };

  const begun = performance.now();
  const answer = await ask(question(0));
  pages.set(0, answer.rows);
  count = answer.total;
  show(total, grouped(count), count < answer.of ? " of " + grouped(answer.of) : "", (count < answer.of ? answer.of : count) === 1 ? " episode" : " episodes");
  total.title = Math.round(performance.now() - begun) + " ms";
  if (answer.unreadable?.length) filters.before(damaged(answer.unreadable));
  if (count === 0) show(space, h("tr", {}, h("td", { colspan: COLUMNS.length, class: "none" }, "No episode fits these filters", answer.absent.length ? ": " + answer.absent.join("; ") : "", ".")));
  else draw();
  scroller.querySelector("table").setAttribute("aria-rowcount", count + 1);
  scroller.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });

  if (bundledRun) { show(filters, h("p", { class: "quiet" }, "This copy holds one list, without filters.")); return; }
  const some = (all, every) => [["", every], ...all.map((v) => [String(v), String(v)])];
  const number = (key, text) => h("label", { class: "choice" }, h("span", {}, text),
    h("input", { type: "number", step: "any", value: query[key] ?? "", onchange: (e) => set(key)(e.target.value) }));
  // Typing filters, a moment after the last key; not once the page was left.
  let wait = null;
  const typed = (e) => {
    const [here, text] = [location.hash, e.target.value];
    clearTimeout(wait);
    wait = setTimeout(() => { if (location.hash === here && text !== (query.text ?? "")) set("text")(text); }, 300);
  };
  const facets = answer.facets;
  show(filters,
    h("label", { class: "choice wide" }, h("span", {}, "Text"), h("input", { type: "search", value: query.text ?? "", placeholder: "in what was said, done or answered", name: "text", oninput: typed })),
    choice("Order", [["", ORDERS[query.preset] ?? (query.preset ? "as played" : "newest first")], ...SORTS.slice(1)], query.sort ?? "", set("sort")),
    choice("Iteration", some(facets.iteration, "every"), query.iteration ?? "", set("iteration")),
    choice("Stage", some(facets.stage, "every"), query.stage ?? "", set("stage")),
    choice("Environment", some(facets.env, "every"), query.env ?? "", set("env")),
    choice("Outcome", some(facets.outcome, "any"), query.outcome ?? "", set("outcome")),
    choice("Parse", [["", "any"], ["clean", "clean"], ["normalised", "normalised"], ["invalid", "unparsed"]], query.parse ?? "", set("parse")),
    choice("Sampling", [["", "any"], ["true", "greedy"], ["false", "sampled"]], query.greedy ?? "", set("greedy")),
    choice("Finish", [["", "any"], ["eos", "by itself"], ["length", "cut"]], query.finish ?? "", set("finish")),
    h("details", { open: ["reward_min", "reward_max", "advantage_min", "turns_min", "task", "group", "worker"].some((k) => query[k]) },
      h("summary", {}, "More"),
      h("div", {}, number("reward_min", "Reward from"), number("reward_max", "to"), number("advantage_min", "Advantage from"),
        number("advantage_max", "to"), number("turns_min", "Turns from"), number("turns_max", "to"), number("group", "Group"),
        h("label", { class: "choice" }, h("span", {}, "Task"), h("input", { value: query.task ?? "", onchange: (e) => set("task")(e.target.value) })),
        choice("Worker", some(facets.worker, "any"), query.worker ?? "", set("worker")))));
}
