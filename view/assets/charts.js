// Charts as SVG: lines with bands over a shared axis, sparklines, dots of a group, bars of a stream.

import { h, s, fixed, num, isNumber } from "./dom.js";

// Round numbers that cut a range into about `count` pieces.
export function ticks(low, high, count, least = 0) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(least, [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999));
  const out = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) {
    out.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return out;
}

// How ticks at a distance are written: as many places as the distance has.
function tickText(all) {
  const step = all.length > 1 ? Math.abs(all[1] - all[0]) : Math.abs(all[0]) || 1;
  if (step < 1e-4 || step >= 1e5) return (v) => num(v, 2);
  let places = 0;
  while (places < 5 && Math.abs(step * 10 ** places - Math.round(step * 10 ** places)) > 1e-6 * 10 ** places) places += 1;
  return (v) => fixed(v, places);
}

// The same for seconds, in steps that clocks have.
export function timeTicks(low, high, count) {
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  const step = steps.find((one) => one >= (high - low) / count) ?? 86400 * Math.ceil((high - low) / count / 86400);
  const out = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high; at += step) out.push(at);
  return out;
}

// The greatest of many numbers, 0 of none; a call with each of them as an argument has its limits.
export function greatest(values) {
  return values.reduce((most, value) => Math.max(most, value), values[0] ?? 0);
}

function extent(values) {
  const all = values.filter(isNumber);
  return all.length ? [-greatest(all.map((v) => -v)), greatest(all)] : [0, 1];
}

// A line chart. series: [{name, points: [[x, y, low?, high?]], mark, dots}]; all charts of a page
// that share `cursor` show the same x under the pointer.
export function lineChart({ title, unit, series, xLabel, xRange, yRange, xFormat, yFormat = num, cursor, whole, marks = [], limits = [] }) {
  const [W, H, left, right, top, bottom] = [360, 178, 46, 10, 8, 24];
  const all = series.flatMap((one) => one.points);
  let [x0, x1] = xRange ?? extent(all.map((p) => p[0]));
  if (series.some((one) => one.dots)) { const pad = (x1 - x0) * 0.05; x0 -= pad; x1 += pad; }
  let [y0, y1] = yRange ?? extent(all.flatMap((p) => [p[1], p[2], p[3]]));
  if (y0 === 0 && y1 === 0) y1 = 1;
  else if (y0 === y1) { const pad = Math.abs(y0) * 0.1 || 0.5; y0 -= pad; y1 += pad; }
  else if (!yRange) { const pad = (y1 - y0) * 0.06; y0 -= y0 < 0 || y0 > pad ? pad : 0; y1 += pad; }
  const px = (x) => left + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (W - left - right);
  const py = (y) => H - bottom - ((y - y0) / (y1 - y0)) * (H - top - bottom);
  const body = [];
  const [yTicks, xTicks] = [ticks(y0, y1, 4), ticks(x0, x1, 5, whole ? 1 : 0)];
  const yText = tickText(yTicks);
  const xText = xFormat ?? tickText(xTicks);
  for (const y of yTicks) {
    body.push(s("line", { class: "grid", x1: left, x2: W - right, y1: py(y), y2: py(y) }));
    body.push(s("text", { class: "tick", x: left - 6, y: py(y) + 3.5, "text-anchor": "end" }, yText(y)));
  }
  for (const x of xTicks) {
    body.push(s("line", { class: "axis", x1: px(x), x2: px(x), y1: H - bottom, y2: H - bottom + 3 }));
    body.push(s("text", { class: "tick", x: px(x), y: H - 8, "text-anchor": "middle" }, xText(x)));
  }
  body.push(s("line", { class: "axis", x1: left, x2: W - right, y1: H - bottom, y2: H - bottom }));
  for (const [x, text] of marks) {
    body.push(s("line", { class: "mark", x1: px(x), x2: px(x), y1: top, y2: H - bottom }, s("title", {}, text)));
  }
  // A limit far off would leave nothing of the curve to see: it is drawn where it fits.
  for (const [y, text] of limits.filter(([y]) => y >= y0 && y <= y1)) {
    body.push(s("line", { class: "mark", x1: left, x2: W - right, y1: py(y), y2: py(y) }, s("title", {}, `${text} ${y}`)),
      s("text", { class: "tick", x: W - right, y: py(y) - 3, "text-anchor": "end" }, text));
  }
  series.forEach((one, at) => {
    const points = one.points.filter((p) => isNumber(p[0]) && isNumber(p[1]));
    const kind = "series s" + (one.colour ?? at);
    const banded = points.filter((p) => isNumber(p[2]) && isNumber(p[3]));
    if (banded.length > 1 && !one.dots) {
      const upper = banded.map((p) => px(p[0]) + "," + py(Math.min(p[3], Math.max(y1, p[3] > y1 ? y1 : p[3]))));
      const lower = banded.map((p) => px(p[0]) + "," + py(Math.max(p[2], p[2] < y0 ? y0 : p[2]))).reverse();
      body.push(s("polygon", { class: "band s" + (one.colour ?? at), points: upper.concat(lower).join(" ") }));
    }
    if (points.length > 1) {
      const path = points.map((p) => px(p[0]).toFixed(1) + "," + py(p[1]).toFixed(1)).join(" ");
      body.push(s("polyline", { class: kind + (one.dashed ? " dashed" : ""), points: path }));
    }
    if (one.dots || points.length < 3) {
      for (const p of points) {
        if (isNumber(p[2]) && isNumber(p[3])) {
          const [low, high] = [Math.max(p[2], y0), Math.min(p[3], y1)];
          body.push(s("line", { class: "whisker s" + (one.colour ?? at), x1: px(p[0]), x2: px(p[0]), y1: py(low), y2: py(high) }));
        }
        body.push(dot(one.shape ?? at, px(p[0]), py(p[1]), one.colour ?? at));
      }
    }
  });
  const hair = s("line", { class: "hair", x1: -9, x2: -9, y1: top, y2: H - bottom });
  body.push(hair);
  const read = h("span", { class: "read" });
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title + " over " + xLabel + "; the same figures are in the table below" }, body);
  const showAt = (x) => {
    if (x === null) {
      hair.setAttribute("visibility", "hidden");
      const last = series.map((one) => one.points.filter((p) => isNumber(p[1])).at(-1)).filter(Boolean);
      read.replaceChildren(last.length === 1 ? yFormat(last[0][1]) : "");
      return;
    }
    hair.setAttribute("visibility", "visible");
    hair.setAttribute("x1", px(x)); hair.setAttribute("x2", px(x));
    const values = series.map((one) => {
      const near = one.points.filter((p) => isNumber(p[1])).sort((p, q) => Math.abs(p[0] - x) - Math.abs(q[0] - x))[0];
      return (one.name ? one.name + " " : "") + (near ? yFormat(near[1]) : "–");
    });
    // Evaluations are drawn beside the iteration that they belong to.
    read.replaceChildren(`${xLabel} ${whole ? Math.round(x) : (xFormat ?? num)(x)}: ${values.join(", ")}`);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const wanted = x0 + (((event.clientX - box.left) / box.width) * W - left) / (W - left - right) * (x1 - x0);
    const near = all.map((p) => p[0]).filter(isNumber).sort((p, q) => Math.abs(p - wanted) - Math.abs(q - wanted))[0];
    if (near !== undefined) cursor?.move(near);
  });
  svg.addEventListener("pointerleave", () => cursor?.move(null));
  cursor?.add(showAt);
  showAt(null);
  const legend = series.length > 1 || series[0]?.name
    ? h("ul", { class: "legend" }, series.filter((one) => one.name).map((one, at) =>
      h("li", {}, s("svg", { viewBox: "0 0 14 10", width: 14, height: 10, "aria-hidden": "true" },
        s("line", { class: "series s" + (one.colour ?? at) + (one.dashed ? " dashed" : ""), x1: 0, x2: 14, y1: 5, y2: 5 }),
        one.dots ? dot(one.shape ?? at, 7, 5, one.colour ?? at) : null), one.name)))
    : null;
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("b", {}, title), unit ? h("span", { class: "unit" }, unit) : null, read), svg, legend);
}

// Bars of ln ratio from −reach to reach, on a logarithmic count axis: most tokens hardly change.
export function histogram({ title, unit, counts, reach, marks }) {
  const [W, H, left, right, top, bottom] = [640, 190, 46, 10, 10, 34];
  const most = Math.max(1, ...counts);
  const span = Math.max(reach, 1e-9);
  const px = (ln) => left + ((ln / span + 1) / 2) * (W - left - right);
  const py = (count) => H - bottom - (count > 0 ? (Math.log10(count) + 0.3) / (Math.log10(most) + 0.3) : 0) * (H - top - bottom);
  const wide = (W - left - right) / counts.length;
  const body = [];
  for (let count = 1; count <= most; count *= 10) {
    body.push(s("line", { class: "grid", x1: left, x2: W - right, y1: py(count), y2: py(count) }), s("text", { class: "tick", x: left - 6, y: py(count) + 3.5, "text-anchor": "end" }, num(count)));
  }
  counts.forEach((count, at) => {
    const middle = ((at + 0.5) / counts.length * 2 - 1) * span;
    if (count > 0) body.push(s("rect", { class: "bar " + (Math.abs(middle) < span / counts.length ? "same" : middle < 0 ? "down" : "up"), x: left + at * wide + 0.5, y: py(count), width: wide - 1, height: H - bottom - py(count) }, s("title", {}, `ratio about ${num(Math.exp(middle), 4)}: ${count} tokens`)));
  });
  body.push(s("line", { class: "axis", x1: left, x2: W - right, y1: H - bottom, y2: H - bottom }));
  for (const share of [-1, -0.5, 0, 0.5, 1]) body.push(s("text", { class: "tick", x: px(share * span), y: H - bottom + 14, "text-anchor": share < -0.9 ? "start" : share > 0.9 ? "end" : "middle" }, num(Math.exp(share * span), 3)));
  body.push(s("text", { class: "tick", x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, "ratio, logarithmic"));
  for (const [ratio, text] of marks) {
    const ln = Math.log(ratio);
    if (Math.abs(ln) <= span) body.push(s("line", { class: "mark", x1: px(ln), x2: px(ln), y1: top, y2: H - bottom }, s("title", {}, `${text} ${num(ratio)}`)), s("text", { class: "tick", x: px(ln) + 3, y: top + 8 }, `${text} ${num(ratio, 2)}`));
  }
  const said = counts.map((count, at) => [count, ((at + 0.5) / counts.length * 2 - 1) * span]).filter(([count]) => count > 0);
  return h("figure", { class: "chart histogram" }, h("figcaption", {}, h("b", {}, title), h("span", { class: "unit" }, unit)),
    s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title + ", " + unit + "; the same figures are in the table below" }, body),
    h("details", {}, h("summary", {}, "As a table"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "n" }, "ratio"), h("th", { scope: "col", class: "n" }, "tokens"))),
        h("tbody", {}, said.map(([count, ln]) => h("tr", {}, h("td", { class: "n" }, num(Math.exp(ln), 4)), h("td", { class: "n" }, String(count)))))))));
}

// Shapes tell series apart without colour.
function dot(shape, x, y, colour) {
  const kind = "dot s" + colour;
  const r = 3.2;
  switch (shape % 4) {
    case 1: return s("path", { class: kind, d: `M${x} ${y - r - 1}l${r + 1} ${r + 1}l${-r - 1} ${r + 1}l${-r - 1} ${-r - 1}z` });
    case 2: return s("rect", { class: kind, x: x - r, y: y - r, width: 2 * r, height: 2 * r });
    case 3: return s("path", { class: kind, d: `M${x} ${y - r - 1}l${r + 1} ${2 * r}h${-2 * r - 2}z` });
    default: return s("circle", { class: kind, cx: x, cy: y, r });
  }
}

// Charts that move one hairline together.
export function sharedCursor() {
  const all = [];
  return { add: (f) => all.push(f), move: (x) => all.forEach((f) => f(x)) };
}

// A line without axes; points [[x, y]], y from 0 to 1.
export function sparkline(points, dots, label, x1) {
  const [W, H] = [120, 28];
  const max = Math.max(1, x1 ?? 0, ...points.concat(dots).map((p) => p[0]));
  const px = (x) => 3 + (x / max) * (W - 6);
  const py = (y) => H - 3 - y * (H - 6);
  const known = points.filter((p) => isNumber(p[1]));
  return s("svg", { class: "spark", viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img", "aria-label": label },
    s("line", { class: "grid", x1: 0, x2: W, y1: py(0), y2: py(0) }),
    s("line", { class: "grid", x1: 0, x2: W, y1: py(1), y2: py(1) }),
    known.length ? s("polyline", { class: "series s0", points: known.map((p) => px(p[0]) + "," + py(p[1])).join(" ") }) : null,
    dots.filter((p) => isNumber(p[1])).map((p) => s("circle", { class: "dot s1", cx: px(p[0]), cy: py(p[1]), r: 2.2 })));
}

// The scores of a group on one axis: mean, one standard deviation, and the own one marked.
export function groupDots(members, own, mean, std) {
  const [W, pad] = [300, 18];
  const scores = members.filter((m) => m.compared).map((m) => m.score);
  let [low, high] = extent(scores.concat(isNumber(mean) ? [mean] : []));
  if (low === high) { low -= 0.5; high += 0.5; }
  const px = (v) => pad + ((v - low) / (high - low)) * (W - 2 * pad);
  const clip = (v) => Math.min(Math.max(px(v), 2), W - 2);
  const distinct = [...new Set(scores)];
  const labels = distinct.length <= 4 ? distinct : ticks(low, high, 4);
  const stack = new Map();
  const places = members.map((m) => {
    const key = Math.round(px(m.score) / 7);
    const level = stack.get(key) ?? 0;
    stack.set(key, level + 1);
    return level;
  });
  // Above the tallest stack there is room for the word.
  const base = 30 + 7 * Math.max(3, ...stack.values());
  const dots = members.map((m, at) => {
    const kind = "member" + (m.sample === own ? " own" : "") + (m.compared ? "" : " out");
    return s("circle", { class: kind, cx: px(m.score), cy: base - 8 - places[at] * 7, r: m.sample === own ? 4.5 : 3.2 }, s("title", {}, `sample ${m.sample}: ${m.score}`));
  });
  const right = isNumber(mean) && px(mean) > W / 2;
  return s("svg", { class: "group-dots", viewBox: `0 0 ${W} ${base + 22}`, role: "img", "aria-label": "scores of the group: " + scores.join(" ") },
    isNumber(std) && std > 0 ? s("rect", { class: "std", x: clip(mean - std), y: 8, width: clip(mean + std) - clip(mean - std), height: base - 8 }) : null,
    s("line", { class: "axis", x1: pad, x2: W - pad, y1: base, y2: base }),
    labels.map((v) => s("text", { class: "tick", x: px(v), y: base + 14, "text-anchor": "middle" }, num(v))),
    isNumber(mean) ? s("line", { class: "mean", x1: px(mean), x2: px(mean), y1: 4, y2: base + 4 }) : null,
    isNumber(mean) ? s("text", { class: "tick", x: px(mean) + (right ? -4 : 4), y: 12, "text-anchor": right ? "end" : "start" }, "mean") : null,
    dots);
}

// Bars of a strip: more cannot be told apart, and take long to draw.
const STRIP_BARS = 1000;

// One thin bar per token of a stream, or for the largest of some of many; positive up, negative down.
// Returns the element and a marker.
export function tokenStrip(values, { turns, label, onpick, diverging }) {
  const W = 1000, H = 46;
  const known = values.filter(isNumber);
  const size = Math.max(1e-9, greatest(known.map(Math.abs)));
  const bar = W / Math.max(values.length, 1);
  const base = diverging ? H / 2 : H - 2;
  const span = diverging ? H / 2 - 2 : H - 4;
  const each = Math.ceil(values.length / STRIP_BARS);
  const wide = Math.max(bar * each * 0.86, 0.4).toFixed(2);
  const paths = { up: [], down: [] };
  for (let from = 0; from < values.length; from += each) {
    let v = null;
    for (let at = from; at < Math.min(from + each, values.length); at += 1) {
      if (isNumber(values[at]) && (v === null || Math.abs(values[at]) > Math.abs(v))) v = values[at];
    }
    if (v === null) continue;
    const falls = diverging && v < 0;
    const tall = Math.max(0.7, (Math.abs(v) / size) * span);
    paths[falls ? "down" : "up"].push(`M${(from * bar).toFixed(2)} ${(falls ? base : base - tall).toFixed(2)}h${wide}v${tall.toFixed(2)}h-${wide}z`);
  }
  const marker = s("rect", { class: "marker", x: -9, y: 0, width: Math.max(bar, 2), height: H });
  const svg = s("svg", { class: "strip", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    turns.map((at, index) => s("rect", { class: "turn" + (index % 2), x: at[0] * bar, y: 0, width: Math.max((at[1] - at[0]) * bar, 0.5), height: H })),
    s("path", { class: diverging ? "up" : "size", d: paths.up.join("") }), s("path", { class: "down", d: paths.down.join("") }), marker);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    onpick(Math.min(values.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * values.length))));
  });
  return { svg, mark: (at) => marker.setAttribute("x", at * bar) };
}
