// Who worked when on what: a lane per worker. And what it cost.

import { h, a, show, bytes, facts, isNumber, link, num, percent, seconds, shortName, table } from "./dom.js";
import { ask, runPath } from "./data.js";
import { greatest, timeTicks } from "./charts.js";
import { priceField, priceOf } from "./run.js";

// Stage, colour, and a letter where a bar is wide enough.
const STAGES = [
  "rollout", "log_probs", "advantage", "update", "critic_update", "gradient", "evaluate", "evaluate_init", "sft", "dpo", "init", "expire", "reward", "select", "filter",
];
const LANE = 34;
// Above a bar there is room for its label.
const OVER = 11;
const TALL = LANE - OVER - 3;
const TOP = 22;
const LEFT = 150;

export async function fleetPage(root, [run], query, go) {
  const [data, ledger] = await Promise.all([ask(runPath(run, "attempts")), ask(runPath(run, "ledger") + priceOf(query))]);
  const bars = data.bars.map(([lane, start, end, part, attempt, outcome, message]) => {
    const stage = part.split("/")[1];
    // When a worker that was killed last went is not known: such a bar is as long as the ledger counts it.
    return { lane, start, end: end ?? (outcome === "open" ? data.now_s : start), part, attempt, outcome, message, stage, hue: Math.max(0, STAGES.indexOf(stage)) };
  });
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
    ledger.lost.length ? table("Lost work", [["part"], ["attempt", "n"], ["worker"], ["how"], ["took", "n"], ["cost", "n"], ["said"]],
      ledger.lost.slice(0, 300).map((x) => [a(link(["runs", run, "parts", ...x.part.split("/")]), x.part), x.attempt, h("span", { title: x.worker }, shortName(x.worker)), x.outcome,
        seconds(x.lost_s), num(x.lost_cost), x.message.slice(0, 300) || (x.outcome === "killed" ? "nothing: it vanished" : "")])) : null,
    ledgerView(ledger, query, (price) => go(["runs", run, "fleet"], { ...query, price })));
  const list = () => {
    const seen = bars.filter((bar) => bar.end >= view[0] && bar.start <= view[1]);
    show(listed, seen.length > 500 ? h("p", { class: "quiet" }, `The first 500 of ${seen.length}; zoom in for others.`) : null,
      table("Attempts in view", [["worker"], ["part"], ["attempt", "n"], ["outcome"], ["began", "n"], ["took", "n"]],
        seen.slice(0, 500).map((bar) => [shortName(data.lanes[bar.lane]), bar.part, bar.attempt, bar.outcome, seconds(bar.start), seconds(bar.end - bar.start)])));
  };

  const names = data.lanes.map(shortName);
  // Names as they fit, and the hatches, are kept between frames.
  const fitting = new Map();
  const hatches = new Map();
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth - 24;
    // Not in the page yet; it is painted once it is.
    if (width <= 0) return;
    const left = width < 480 ? 44 : LEFT;
    const height = TOP + LANE * data.lanes.length + 20;
    if (canvas.width !== Math.floor(width * ratio) || canvas.height !== Math.floor(height * ratio)) {
      canvas.style.setProperty("width", width + "px");
      canvas.style.setProperty("height", height + "px");
      canvas.width = width * ratio; canvas.height = height * ratio;
    }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width + 1, height + 1);
    g.font = "11px system-ui, sans-serif";
    const px = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (width - left - 8);
    g.fillStyle = colour("--quiet"); g.strokeStyle = colour("--line");
    for (const t of timeTicks(view[0], view[1], Math.max(2, Math.floor(width / 130)))) {
      g.beginPath(); g.moveTo(px(t), TOP - 6); g.lineTo(px(t), height - 18); g.stroke();
      g.textAlign = "center"; g.fillText(seconds(t), px(t), height - 5);
    }
    g.textAlign = "left";
    const [lane, ink] = [colour("--lane"), colour("--ink")];
    names.forEach((name, at) => {
      const y = TOP + at * LANE;
      g.fillStyle = lane; g.fillRect(left, y + OVER, width - left - 8, TALL);
      if (!fitting.has(name)) fitting.set(name, clipped(g, name, LEFT - 14));
      g.fillStyle = ink;
      g.fillText(left === LEFT ? fitting.get(name) : "w" + at, 2, y + OVER + 14);
    });
    g.save(); g.beginPath(); g.rect(left, 0, width - left - 8, height); g.clip();
    paintBars(g, bars, { px, view, left, width, lanes: data.lanes.length, colour, ratio, hatches });
    g.restore();
    canvas.px = px;
    canvas.time = (x) => view[0] + ((x - left) / (width - left - 8)) * (view[1] - view[0]);
  };
  // However often something moves, a frame is painted once.
  let due = 0;
  const repaint = () => { due ||= requestAnimationFrame(() => { due = 0; paint(); }); };
  const move = (from, to) => { view = [from, to]; repaint(); };
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
  return () => { cancelAnimationFrame(due); resized.disconnect(); document.removeEventListener("themechange", paint); };
}

// The bars in view. Those narrower than `SINGLE` pixels are merged by lane and pixel, a stage and what was
// lost apart; wider ones end where the picture does, so that no zoom makes them longer. Colours
// change as seldom as possible, and lost work is hatched once per stretch of a lane: 100 000 bars take no
// longer than they can be seen.
const SINGLE = 3;
function paintBars(g, bars, { px, view, left, width, lanes, colour, ratio, hatches }) {
  const wide = Math.ceil(width) + 2;
  const [sound, lost] = [new Uint8Array(wide * lanes), new Uint8Array(wide * lanes)];
  const full = [];
  for (const bar of bars) {
    if (bar.end < view[0] || bar.start > view[1]) continue;
    const from = Math.max(left - 2, px(bar.start));
    const to = Math.min(width, px(bar.end));
    const kept = bar.outcome === "committed" || bar.outcome === "open";
    if (to - from >= SINGLE) { full.push({ bar, from, to, kept }); continue; }
    const cells = kept ? sound : lost;
    const first = bar.lane * wide + Math.floor(from);
    const end = bar.lane * wide + Math.max(Math.floor(from) + 1, Math.round(to));
    for (let cell = first; cell < end; cell += 1) cells[cell] ||= bar.hue + 1;
  }
  const fills = new Map();
  const add = (hue, alpha, lane, from, to) => {
    const key = hue * 4 + ALPHAS.indexOf(alpha);
    if (!fills.has(key)) fills.set(key, []);
    fills.get(key).push([lane, from, to]);
  };
  const stretches = [];
  for (let lane = 0; lane < lanes; lane += 1) {
    for (const [hue, from, to] of runs(sound, lane * wide, wide)) add(hue - 1, 1, lane, from, to);
    for (const [hue, from, to] of runs(lost, lane * wide, wide)) { add(hue - 1, 0.35, lane, from, to); stretches.push([lane, from, to]); }
  }
  for (const { bar, from, to, kept } of full) {
    add(bar.hue, bar.outcome === "open" ? 0.55 : kept ? 1 : 0.35, bar.lane, from, to);
    if (!kept) stretches.push([bar.lane, from, to]);
  }
  const tall = TALL;
  const top = (lane) => TOP + lane * LANE + OVER;
  for (const [key, rects] of fills) {
    g.fillStyle = colour("--g" + (key >> 2));
    g.globalAlpha = ALPHAS[key & 3];
    for (const [lane, from, to] of rects) g.fillRect(from, top(lane), to - from, tall);
  }
  g.globalAlpha = 1;
  const bad = colour("--bad");
  const whole = joined(stretches);
  for (const dense of [true, false]) {
    g.fillStyle = hatch(g, bad, dense, ratio, hatches);
    for (const [lane, from, to] of whole) if (to - from < 2 * SINGLE === dense) g.fillRect(from, top(lane), to - from, tall);
  }
  g.fillStyle = bad;
  for (const [lane, from, to] of whole) {
    if (to - from < 2 * SINGLE) continue;
    const y = top(lane);
    g.fillRect(from, y, to - from, 1); g.fillRect(from, y + tall - 1, to - from, 1); g.fillRect(to - 1, y, 1, tall);
  }
  // A label that would lie on the one before is left out.
  const free = new Float64Array(lanes);
  for (const { bar, from, to, kept } of full) {
    if (kept) continue;
    g.fillRect(from, top(bar.lane), 1, tall);
    if (to - from <= 26 || from < free[bar.lane]) continue;
    g.fillText(bar.outcome, Math.max(from, left) + 2, top(bar.lane) - 2);
    free[bar.lane] = from + 7 * bar.outcome.length;
  }
  g.fillStyle = colour("--on-bar");
  for (const { bar, from, to, kept } of full) if (kept && to - from > 7 * bar.stage.length + 8) g.fillText(bar.stage.replace("_", " "), Math.max(from, left) + 4, top(bar.lane) + 14);
}

// How opaque lost, open and sound work is.
const ALPHAS = [0.35, 0.55, 1];

// Neighbours of one value in a lane's pixels: value, first pixel, the pixel after the last.
function* runs(cells, base, wide) {
  for (let at = 0; at < wide;) {
    const value = cells[base + at];
    let end = at + 1;
    while (end < wide && cells[base + end] === value) end += 1;
    if (value) yield [value, at, end];
    at = end;
  }
}

// Stretches of lanes, those that touch made one.
function joined(stretches) {
  const out = [];
  for (const [lane, from, to] of stretches.sort((x, y) => x[0] - y[0] || x[1] - y[1])) {
    const before = out.at(-1);
    if (before && before[0] === lane && from <= before[2] + 0.5) before[2] = Math.max(before[2], to);
    else out.push([lane, from, to]);
  }
  return out;
}

// The pattern of lost work; what is too narrow for lines at a distance gets close ones.
function hatch(g, colour, dense, ratio, made) {
  const key = [colour, dense, ratio].join();
  if (!made.has(key)) {
    const size = Math.round((dense ? 4 : 7) * ratio);
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const on = tile.getContext("2d");
    on.strokeStyle = colour; on.lineWidth = (dense ? 1.6 : 1) * ratio;
    on.beginPath();
    for (const by of [-size, 0, size]) { on.moveTo(by - 1, -1); on.lineTo(by + size + 1, size + 1); }
    on.stroke();
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    made.set(key, pattern);
  }
  return made.get(key);
}

function clipped(g, text, width) {
  let cut = text;
  while (cut.length > 4 && g.measureText(cut).width > width) cut = "…" + cut.slice(cut.startsWith("…") ? 2 : 1);
  return cut;
}

function ledgerView(ledger, query, setPrice) {
  const t = ledger.total;
  const priced = isNumber(t.cost);
  const money = (cost) => isNumber(cost) ? " = " + num(cost) : "";
  const all = t.useful_s + t.lost_s + t.idle_s;
  const share = (v, kind, name) => v > 0 && h("span", { class: "share " + kind, "$flex-grow": Math.max(v / (all || 1), 0.002), title: `${name} ${seconds(v)}` });
  const line = (x, name) => [name, seconds(x.useful_s), seconds(x.lost_s), x.idle_s === undefined ? "–" : seconds(x.idle_s), x.attempts, x.lost_attempts, bytes(x.put_bytes), bytes(x.got_bytes), seconds(x.store_waited_s), ...(priced ? [num(x.cost), num(x.lost_cost)] : [])];
  const columns = (what) => [[what], ["useful", "n"], ["lost", "n"], ["idle", "n"], ["attempts", "n"], ["lost", "n"], ["put", "n"], ["got", "n"], ["waited for store", "n"], ...(priced ? [["cost", "n"], ["of it lost", "n"]] : [])];
  const labels = (x) => Object.entries(x.labels).map(([key, value]) => key + "=" + value).join(" ");
  return h("section", { "aria-label": "Ledger" }, h("h2", {}, "Ledger"),
    h("div", { class: "split", role: "img", "aria-label": `useful ${percent(t.useful_s / all, 1)}, lost ${percent(t.lost_s / all, 1)}, idle ${percent(t.idle_s / all, 1)}` },
      share(t.useful_s, "useful", "useful"), share(t.lost_s, "lost", "lost"), share(t.idle_s, "idle", "idle")),
    h("p", { class: "quiet" }, "A killed worker says no more: its part counts as lost until another worker takes it up, also what that one took up from a journal. Idle is the time between a worker's parts."),
    facts([["useful", seconds(t.useful_s) + money(t.useful_cost)], ["lost", seconds(t.lost_s) + money(t.lost_cost)], ["idle", seconds(t.idle_s) + money(t.idle_cost)], ["cost", priced ? num(t.cost) : null],
      ["solved episodes", ledger.solved_episodes], ["per solved episode", isNumber(ledger.worker_s_per_solved_episode) ? seconds(ledger.worker_s_per_solved_episode) + money(ledger.cost_per_solved_episode) : null],
      ["environments and harnesses", t.environments_s > 0 ? seconds(t.environments_s) + ", summed over episodes" : null],
      ["of workers without a price", t.unpriced_s > 0 ? seconds(t.unpriced_s) + (priced ? ", in no cost" : "") : null]]),
    h("div", { class: "toolbar" }, priceField(t.unpriced_s, query, setPrice)),
    table("By stage", columns("stage"), ledger.stages.map((x) => line(x, x.stage))),
    table("By worker", [...columns("worker"), ["price", "n"], ["labels"]], ledger.workers.map((x) => [...line(x, h("span", { title: x.worker }, shortName(x.worker))), num(x.price), labels(x)])));
}
