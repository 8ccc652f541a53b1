// Which tasks got better or worse; two policies on the same tasks.

import { h, a, show, choice, facts, fixed, isNumber, link, num, percent, table } from "./dom.js";
import { ask, runPath } from "./data.js";
import { damaged } from "./episodes.js";
import { configDiff, differences } from "./run.js";

// The episode that says most of a cell: one that ended as most of its samples did, the greedy one if it did.
function telling(cell, solved = cell.success >= 0.5) {
  if (cell.greedy === solved) return cell.greedy_k;
  return cell.ks[cell.solved.indexOf(solved)] ?? cell.greedy_k ?? cell.ks[0];
}

function square(run, cell) {
  if (!cell || !isNumber(cell.success)) return h("td", { class: "cell none" }, "–");
  const words = `${Math.round(cell.success * cell.n)} of ${cell.n}` + (cell.greedy === null ? "" : cell.greedy ? ", greedy solves it" : ", greedy fails");
  const part = cell.part.split("/");
  const k = telling(cell);
  return h("td", { class: "cell", "$--v": Math.round(cell.success * 100) + "%" },
    h("a", { href: link(["runs", run, "episodes", ...part, k]), title: words },
      h("span", { class: "share" }, fixed(cell.success, 2)), cell.greedy === null ? null : h("span", { class: "greedy" }, cell.greedy ? "✓" : "✕")));
}

export async function tasksPage(root, [run], query, go) {
  const answer = await ask(runPath(run, "tasks"));
  const last = answer.evaluations.length - 1;
  const odd = [query.from, query.to].filter((text) => text !== undefined && last >= 0 && !(Number(text) in answer.evaluations));
  const place = (text, usual) => text === undefined || odd.includes(text) ? usual : Number(text);
  const [from, to] = [place(query.from, 0), place(query.to, last)];
  const change = (task) => {
    const [x, y] = [task.cells[from]?.success, task.cells[to]?.success];
    return isNumber(x) && isNumber(y) ? y - x : null;
  };
  const sets = [...new Set(answer.tasks.map((t) => t.set))];
  const all = answer.tasks.filter((t) => !query.set || t.set === query.set).map((t) => [t, change(t)]);
  const order = query.order ?? "loss";
  all.sort((x, y) => order === "name" ? 0 : (order === "loss" ? 1 : -1) * ((x[1] ?? 9) - (y[1] ?? 9)));
  const lost = all.filter(([, d]) => d < 0).length;
  const gained = all.filter(([, d]) => d > 0).length;
  const set = (key) => (value) => go(["runs", run, "tasks"], { ...query, [key]: value });
  const labels = answer.evaluations.map((e, at) => [String(at), e.label ?? "iteration " + e.iteration]);
  const sign = (d) => !isNumber(d) ? "" : d > 0 ? h("span", { class: "pos" }, "▲ " + fixed(d, 2)) : d < 0 ? h("span", { class: "neg" }, "▼ " + fixed(-d, 2)) : "=";
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Tasks"), h("span", { class: "quiet" }, `${all.length} tasks, ${answer.samples} samples each`)),
    answer.unreadable?.length ? damaged(answer.unreadable) : null,
    odd.length ? h("p", { class: "warn" }, `There is no evaluation ${odd.join(" or ")}; they are numbered 0 to ${last}.`) : null,
    answer.tasks.length === 0 ? h("p", {}, "Nothing is evaluated yet.") : [
      h("div", { class: "toolbar" }, choice("From", labels, String(from), set("from")), choice("to", labels, String(to), set("to")),
        choice("Order", [["loss", "largest loss first"], ["gain", "largest gain first"], ["name", "as in the set"]], order, set("order")),
        sets.length > 1 ? choice("Set", [["", "every"], ...sets.map((name) => [name, name])], query.set ?? "", set("set")) : null,
        h("span", { class: "verdict" }, h("span", { class: "pos" }, `▲ ${gained} gained`), "  ", h("span", { class: "neg" }, `▼ ${lost} lost`), `  = ${all.length - gained - lost}`),
        gained + lost > 0 ? a(link(["compare"], { a: `${run}:${answer.evaluations[from].iteration}`, b: `${run}:${answer.evaluations[to].iteration}` }), "exact test") : null),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tasks by evaluation" },
        h("table", { class: "matrix" }, h("caption", { class: "quiet" }, "Share of samples that solve the task; ✓ or ✕: its greedy episode. A cell opens an episode that ended as most did."),
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "task"), sets.length > 1 ? h("th", { scope: "col" }, "set") : null, labels.map(([, text]) => h("th", { scope: "col" }, text)), h("th", { scope: "col" }, "change"), h("th", { scope: "col" }, "see"))),
          h("tbody", {}, all.map(([task, d]) => h("tr", {}, h("th", { scope: "row" }, task.task), sets.length > 1 ? h("td", {}, task.set) : null,
            task.cells.map((cell) => square(run, cell)), h("td", { class: "n" }, sign(d)),
            h("td", {}, both(run, task.cells[from], task.cells[to])))))))]);
}

function both(run, x, y) {
  if (!x?.part || !y?.part || x === y) return "";
  return pairLink(run, x, run, y);
}

// Of two cells that differ, a solved and an unsolved episode: of the greedy ones if they differ so, else of the
// samples.
function pairLink(runOfX, x, runOfY, y) {
  const change = (y.success ?? 0) - (x.success ?? 0);
  const greedy = change === 0 || (x.greedy === change < 0 && y.greedy === change > 0);
  const k = (cell, solved) => greedy ? cell.greedy_k ?? cell.ks[0] : cell.ks[cell.solved.indexOf(solved)] ?? telling(cell);
  return a(link(["pair"], { x: [runOfX, x.part, k(x, change < 0)].join("/"), y: [runOfY, y.part, k(y, change > 0)].join("/") }), "both");
}

export async function comparePage(root, _, query) {
  const answer = await ask("compare?" + new URLSearchParams({ a: query.a ?? "", b: query.b ?? "" }));
  const name = (side) => `${side.run}, iteration ${side.iteration}`;
  const rows = [...answer.rows].sort((x, y) => x.change - y.change).map((row) => [
    row.task, fixed(row.a.success, 2), fixed(row.b.success, 2),
    row.change > 0 ? h("span", { class: "pos" }, "▲ " + fixed(row.change, 2)) : row.change < 0 ? h("span", { class: "neg" }, "▼ " + fixed(-row.change, 2)) : "=",
    row.a.part && row.b.part ? pairLink(answer.a.run, row.a, answer.b.run, row.b) : "",
  ]);
  const p = answer.p;
  const [x, y] = answer.a.run === answer.b.run ? [] : await Promise.all([answer.a.run, answer.b.run].map((run) => ask(runPath(run))));
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Comparison"), h("span", { class: "quiet" }, "of samples; greedy episodes are not counted")),
    facts([["a", name(answer.a)], ["success of a", percent(answer.a.success, 1)], ["b", name(answer.b)], ["success of b", percent(answer.b.success, 1)],
      ["tasks in both", answer.tasks], ["gained", answer.gained], ["lost", answer.lost], ["the same", answer.same], ["exact sign test", "p = " + num(p, 3)]]),
    h("p", {}, answer.tasks === 0 ? "No task was evaluated under both." : answer.gained + answer.lost === 0 ? "No task differs."
      : p < 0.05 ? `So uneven a change in ${answer.gained + answer.lost} tasks would be rare by chance.` : `A change like this in ${answer.gained + answer.lost} tasks may well be chance.`),
    x && y ? configDiff("Config that differs", answer.a.run, answer.b.run, differences(x.config, y.config)) : null,
    table("Tasks by change", [["task"], ["a", "n"], ["b", "n"], ["change", "n"], ["see"]], rows));
}

// Two episodes next to each other.
export async function pairPage(root, _, query) {
  const read = (side) => {
    const [run, ...place] = (query[side] ?? "").split("/");
    return ask(runPath(run, "parts", place[0] ?? "", place[1] ?? "", place[2] ?? "", "episodes", place[3] ?? ""));
  };
  const [x, y] = await Promise.all([read("x"), read("y")]);
  const said = (e, turn) => e.turns[turn] && (e.turns[turn].action ?? e.turns[turn].text);
  const most = Math.max(x.turns.length, y.turns.length);
  let parts = 0;
  while (parts < most && said(x, parts) === said(y, parts)) parts += 1;
  const head = (e) => h("th", { scope: "col" }, a(link(["runs", e.run, "episodes", ...e.part.split("/"), e.k]), `${e.run} ${e.part}·${e.k}`), h("br"), e.greedy ? "greedy: " : `sample ${e.sample}: `, e.outcome, ` in ${e.turns.length} turns, reward ${num(e.reward)}`);
  const cell = (e, turn) => h("td", {}, e.turns[turn] ? [h("code", {}, said(e, turn)), h("pre", {}, e.turns[turn].observation)] : "");
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, x.task === y.task ? x.task : `${x.task} and ${y.task}`)),
    h("details", { class: "card prompt" }, h("summary", {}, "Prompt"), h("pre", {}, x.prompt)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Both episodes" }, h("table", { class: "side-by-side" }, h("caption", { class: "quiet" }, parts < most ? `They differ from turn ${parts + 1} on.` : "Both did the same."),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "turn"), head(x), head(y))),
      h("tbody", {}, Array.from({ length: most }, (_unused, turn) => h("tr", { class: turn === parts ? "parts" : null }, h("th", { scope: "row" }, turn + 1), cell(x, turn), cell(y, turn)))))));
}
