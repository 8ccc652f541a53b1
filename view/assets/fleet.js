// Who worked when on what: a lane per worker. And what it cost.

import { h, a, show, bytes, facts, isNumber, link, num, percent, seconds, shortName, table } from "./dom.js";
import { ask, runPath } from "./data.js";
import { greatest, timeTicks } from "./charts.js";

// Stage, colour, and a letter where a bar is wide enough.
const STAGES = [
  "rollout", "log_probs", "advantage", "update", "critic_update", "gradient", "evaluate", "evaluate_init", "sft", "dpo", "init", "expire", "reward", "select", "filter",
];
const LANE = 30;
const TOP = 22;
const LEFT = 150;

export async function fleetPage(root, [run], query, go) {
  const [data, ledger] = await Promise.all([ask(runPath(run, "attempts")), ask(runPath(run, "ledger"))]);
  const bars = data.bars.map(([lane, start, end, part, attempt, outcome, message]) => ({ lane, start, end: end ?? data.now_s, part, attempt, outcome, message, stage: part.split("/")[1] }));
  const ends = bars.map((bar) => bar.outcome === "open" || bar.outcome === "killed" ? bar.start : bar.end);
  const open = bars.some((bar) => bar.outcome === "open");
  const begun = greatest(ends);
  const last = Math.max(1, open && data.now_s - begun < 600 ? data.now_s : Math.max(begun, greatest(bars.filter((b) => b.outcome === "killed").map((b) => b.end))));
  let view = [Number(query.from ?? 0), Number(query.to ?? last * 1.01)];
  const canvas = h("canvas", { class: "gantt", tabindex: "0", role: "img", "aria-label": "Attempts by worker over time; the table below lists them. Plus and minus zoom, arrows move." });
  const read = h("p", { class: "read quiet", "aria-live": "polite" }, "Point at a bar. Scroll or + − zooms, drag or ← → moves, 0 shows all.");
  const listed = h("div", {});
  const stages = [...new Set(bars.map((bar) => bar.stage))];
  const legend = h("ul", { class: "legend stages" }, stages.map((stage) => h("li", {}, h("i", { class: "stage g" + STAGES.indexOf(stage) }), stage.replace("_", " "))),
    h("li", {}, h("i", { class: "stage lost" }), "lost: killed, failed, drained, superseded"));
  const lost = bars.filter((bar) => !["committed", "open"].includes(bar.outcome));
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Fleet"), h("span", { class: "quiet" }, `${data.lanes.length} ${data.lanes.length === 1 ? "worker" : "workers"}, ${bars.length} attempts, ${lost.length} lost`)),
    legend, h("div", { class: "gantt-box card" }, canvas), read,
    h("details", { class: "card", ontoggle: (e) => { if (e.target.open) list(); } }, h("summary", {}, "These attempts as a table"), listed),
    lost.length ? table("Lost work", [["part"], ["attempt", "n"], ["worker"], ["how"], ["began", "n"], ["took", "n"], ["said"]],
      lost.slice(0, 300).map((bar) => [a(link(["runs", run, "parts", ...bar.part.split("/")]), bar.part), bar.attempt, shortName(data.lanes[bar.lane]), bar.outcome, seconds(bar.start), seconds(bar.end - bar.start), bar.message.slice(0, 300)])) : null,
    ledgerView(ledger, query, (price) => go(["runs", run, "fleet"], { ...query, price })));
  const list = () => {
    const seen = bars.filter((bar) => bar.end >= view[0] && bar.start <= view[1]);
    show(listed, seen.length > 500 ? h("p", { class: "quiet" }, `The first 500 of ${seen.length}; zoom in for others.`) : null,
      table("Attempts in view", [["worker"], ["part"], ["attempt", "n"], ["outcome"], ["began", "n"], ["took", "n"]],
        seen.slice(0, 500).map((bar) => [shortName(data.lanes[bar.lane]), bar.part, bar.attempt, bar.outcome, seconds(bar.start), seconds(bar.end - bar.start)])));
  };

  const names = withoutPrefix(data.lanes);
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const kept = new Map();
    const colour = (name) => {
      if (!kept.has(name)) kept.set(name, style.getPropertyValue(name).trim());
      return kept.get(name);
    };
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth - 24;
    // Not in the page yet; it is painted once it is.
    if (width <= 0) return;
    const left = width < 480 ? 44 : LEFT;
    const height = TOP + LANE * data.lanes.length + 20;
    canvas.style.setProperty("width", width + "px");
    canvas.style.setProperty("height", height + "px");
    canvas.width = width * ratio; canvas.height = height * ratio;
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.font = "11px system-ui, sans-serif";
    const px = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (width - left - 8);
    g.fillStyle = colour("--quiet"); g.strokeStyle = colour("--line");
    for (const t of timeTicks(view[0], view[1], Math.max(2, Math.floor(width / 130)))) {
      g.beginPath(); g.moveTo(px(t), TOP - 6); g.lineTo(px(t), height - 18); g.stroke();
      g.textAlign = "center"; g.fillText(seconds(t), px(t), height - 5);
    }
    data.lanes.forEach((name, lane) => {
      const y = TOP + lane * LANE;
      g.fillStyle = colour("--lane"); g.fillRect(left, y + 2, width - left - 8, LANE - 8);
      g.fillStyle = colour("--ink"); g.textAlign = "left";
      g.fillText(left === LEFT ? clipped(g, names[lane], left - 14) : "w" + lane, 2, y + 16);
    });
    g.save(); g.beginPath(); g.rect(left, 0, width - left - 8, height); g.clip();
    // Of bars within one pixel the first is drawn, and the first that was lost over it, so that 100 000
    // take no longer than they can be seen.
    const wide = Math.ceil(width) + 1;
    const drawn = new Uint8Array(2 * wide * data.lanes.length);
    for (const bar of bars) {
      if (bar.end < view[0] || bar.start > view[1]) continue;
      const x = px(bar.start);
      const w = Math.max(1, px(bar.end) - x);
      const sound = bar.outcome === "committed" || bar.outcome === "open";
      if (w < 1.5) {
        const key = (bar.lane * wide + Math.min(wide - 1, Math.max(0, Math.floor(x)))) * 2 + (sound ? 0 : 1);
        if (drawn[key]) continue;
        drawn[key] = 1;
      }
      const y = TOP + bar.lane * LANE + 2;
      g.fillStyle = colour("--g" + Math.max(0, STAGES.indexOf(bar.stage)));
      g.globalAlpha = bar.outcome === "open" ? 0.55 : sound ? 1 : 0.35;
      g.fillRect(x, y, w, LANE - 8);
      g.globalAlpha = 1;
      if (!sound && w < 3) {
        g.fillStyle = colour("--bad"); g.fillRect(x, y, w, LANE - 8);
      } else if (!sound) {
        g.save();
        g.strokeStyle = colour("--bad"); g.lineWidth = 1;
        g.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1, 1), LANE - 9);
        g.beginPath(); g.rect(x, y, w, LANE - 8); g.clip();
        g.beginPath();
        for (let d = -LANE; d < w; d += 7) { g.moveTo(x + d, y); g.lineTo(x + d + LANE, y + LANE); }
        g.stroke();
        g.restore();
        g.fillStyle = colour("--bad"); g.textAlign = "left";
        if (w > 26) g.fillText(bar.outcome, x + 2, y - 3);
      } else if (w > 7 * bar.stage.length + 8) {
        g.fillStyle = colour("--on-bar"); g.textAlign = "left";
        g.fillText(bar.stage.replace("_", " "), x + 4, y + 15);
      }
    }
    g.restore();
    canvas.px = px;
    canvas.time = (x) => view[0] + ((x - left) / (width - left - 8)) * (view[1] - view[0]);
  };
  const move = (from, to) => { view = [from, to]; paint(); };
  const zoom = (at, by) => move(at - (at - view[0]) * by, at + (view[1] - at) * by);
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const t = canvas.time(event.clientX - box.left);
    const lane = Math.floor((event.clientY - box.top - TOP) / LANE);
    const near = (view[1] - view[0]) / box.width * 2;
    return bars.filter((bar) => bar.lane === lane && bar.start - near <= t && bar.end + near >= t).at(-1);
  };
  let drag = null;
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(canvas.time(event.offsetX), event.deltaY > 0 ? 1.2 : 1 / 1.2); }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { drag = [event.clientX, ...view]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = ((drag[0] - event.clientX) / canvas.clientWidth) * (drag[2] - drag[1]);
      move(drag[1] + by, drag[2] + by);
      return;
    }
    const bar = under(event);
    if (bar) show(read, h("b", {}, bar.part), ` attempt ${bar.attempt} on ${data.lanes[bar.lane]}: ${bar.outcome}, from ${seconds(bar.start)} for ${seconds(bar.end - bar.start)}`, bar.message ? ": " + bar.message.slice(0, 200) : "");
  });
  canvas.addEventListener("keydown", (event) => {
    const wide = view[1] - view[0];
    const middle = (view[0] + view[1]) / 2;
    if (event.key === "+" || event.key === "=") zoom(middle, 0.7);
    else if (event.key === "-") zoom(middle, 1 / 0.7);
    else if (event.key === "ArrowRight") move(view[0] + wide / 8, view[1] + wide / 8);
    else if (event.key === "ArrowLeft") move(view[0] - wide / 8, view[1] - wide / 8);
    else if (event.key === "0") move(0, last * 1.01);
    else return;
    event.preventDefault();
  });
  const resized = new ResizeObserver(paint);
  resized.observe(canvas.parentElement);
  document.addEventListener("themechange", paint);
  paint();
  return () => { resized.disconnect(); document.removeEventListener("themechange", paint); };
}

// What names do not share; machine and namespace are the same for most.
function withoutPrefix(names) {
  let shared = names.length > 1 ? names[0] : "";
  for (const name of names) while (!name.startsWith(shared)) shared = shared.slice(0, -1);
  const cut = Math.max(shared.lastIndexOf(":"), shared.lastIndexOf("-")) + 1;
  return names.map((name) => name.slice(cut));
}

function clipped(g, text, width) {
  let cut = text;
  while (cut.length > 4 && g.measureText(cut).width > width) cut = "…" + cut.slice(cut.startsWith("…") ? 2 : 1);
  return cut;
}

function ledgerView(ledger, query, setPrice) {
  const price = Number(query.price);
  const money = (sec) => price > 0 ? " = " + num((sec / 3600) * price, 3) : "";
  const t = ledger.total;
  const all = t.useful_s + t.lost_s + t.idle_s;
  const share = (v, kind, name) => v > 0 && h("span", { class: "share " + kind, "$flex-grow": Math.max(v / (all || 1), 0.002), title: `${name} ${seconds(v)}` });
  const line = (x, name) => [name, seconds(x.useful_s), seconds(x.lost_s), x.idle_s === undefined ? "–" : seconds(x.idle_s), x.attempts, x.lost_attempts, bytes(x.bytes)];
  const columns = (what) => [[what], ["useful", "n"], ["lost", "n"], ["idle", "n"], ["attempts", "n"], ["lost", "n"], ["written", "n"]];
  return h("section", { "aria-label": "Ledger" }, h("h2", {}, "Ledger"),
    h("div", { class: "split", role: "img", "aria-label": `useful ${percent(t.useful_s / all, 1)}, lost ${percent(t.lost_s / all, 1)}, idle ${percent(t.idle_s / all, 1)}` },
      share(t.useful_s, "useful", "useful"), share(t.lost_s, "lost", "lost"), share(t.idle_s, "idle", "idle")),
    h("p", { class: "quiet" }, "A killed worker says no more: its part counts as lost until another worker takes it up. Idle is the time between a worker's parts."),
    facts([["useful", seconds(t.useful_s) + money(t.useful_s)], ["lost", seconds(t.lost_s) + money(t.lost_s)], ["idle", seconds(t.idle_s) + money(t.idle_s)],
      ["solved episodes", ledger.solved_episodes], ["per solved episode", isNumber(ledger.worker_s_per_solved_episode) ? seconds(ledger.worker_s_per_solved_episode) + money(ledger.worker_s_per_solved_episode) : null]]),
    h("div", { class: "toolbar" }, h("label", { class: "choice" }, h("span", {}, "Price of a worker-hour"), h("input", { type: "number", min: "0", step: "any", value: query.price ?? "", onchange: (e) => setPrice(e.target.value) }))),
    table("By stage", columns("stage"), ledger.stages.map((x) => line(x, x.stage))),
    table("By worker", columns("worker"), ledger.workers.map((x) => line(x, x.worker))));
}
