// What an environment looked like: a grid, a workbench with its recipes, a board of guesses, passages
// found, a page as a tree. Each picture is also told in words, for those who do not see it.

import { h, s, isNumber } from "./dom.js";

// The picture of a scene, or none for a kind that this page does not know. What never changes is drawn at
// the start alone.
export function drawScene(scene, atStart) {
  const draw = { grid, crafting, guesses, passages, page: pageTree }[scene?.kind];
  return draw ? h("div", { class: "scene " + scene.kind }, draw(scene, atStart)) : null;
}

const CELL = 16;

function grid(scene) {
  const height = scene.rows.length;
  const width = Math.max(...scene.rows.map((row) => row.length));
  const seen = new Set((scene.seen ?? []).map(([x, y]) => x + "," + y));
  const floors = [];
  scene.rows.forEach((row, y) => [...row].forEach((letter, x) => {
    const lit = !scene.seen || seen.has(x + "," + y);
    floors.push(s("rect", { class: (letter === "#" ? "wall" : "floor") + (lit ? " lit" : ""), x: x * CELL, y: y * CELL, width: CELL, height: CELL }));
  }));
  const things = scene.things.map((thing) => s("g", { transform: `translate(${thing.at[0] * CELL} ${thing.at[1] * CELL})`, class: "thing c-" + thing.colour },
    s("title", {}, thingWords(thing)), shapeOf(thing)));
  const words = [
    `Grid of ${width} by ${height}`, scene.agent ? `agent at column ${scene.agent[0]}, row ${scene.agent[1]}` : null,
    isNumber(scene.facing) ? "facing " + ["right", "down", "left", "up"][scene.facing] : null,
    ...scene.things.map((thing) => `${thingWords(thing)} at ${thing.at.join(", ")}`),
  ].filter(Boolean).join("; ");
  const svg = s("svg", { viewBox: `0 0 ${width * CELL} ${height * CELL}`, role: "img", "aria-label": words, "$max-width": width * CELL * 1.25 + "px" },
    floors, things, scene.agent ? agent(scene) : null);
  return [svg, h("p", { class: "quiet" }, scene.goal,
    scene.carries ? [" · carries ", h("b", {}, thingWords(scene.carries))] : null,
    isNumber(scene.left) ? ` · ${scene.left} actions left` : null)];
}

function thingWords(thing) {
  return [thing.lock, thing.colour === "green" && ["goal", "target"].includes(thing.what) ? null : thing.colour, thing.what, thing.placed ? "on a target" : null].filter(Boolean).join(" ");
}

function shapeOf(thing) {
  const m = CELL / 2;
  switch (thing.what) {
    case "ball": return s("circle", { cx: m, cy: m, r: 5 });
    case "key": return [s("circle", { class: "line", cx: m, cy: 5, r: 3 }), s("path", { class: "line", d: `M${m} 8v6m0-2h3m-3-2h2` })];
    case "goal": return s("path", { d: "M4 14V2l9 3.5L4 9" });
    case "target": return s("path", { class: "line", d: "M4 4l8 8m0-8l-8 8" });
    case "door": return [
      s("rect", { class: thing.lock === "open" ? "line" : "leaf", x: 1.5, y: 1.5, width: CELL - 3, height: CELL - 3 }),
      thing.lock === "locked" ? s("path", { class: "line", d: "M6 8v3h4V8zM6.6 8V6.6a1.4 1.4 0 0 1 2.8 0V8" }) : null,
      thing.lock === "closed" ? s("circle", { cx: CELL - 5, cy: m, r: 1.3 }) : null,
    ];
    default: return [s("rect", { class: "leaf", x: 2.5, y: 2.5, width: CELL - 5, height: CELL - 5 }), s("path", { class: "line", d: thing.placed ? "M4.5 8.2l2.4 2.4 4.6-5" : `M3 ${m}h${CELL - 6}` })];
  }
}

function agent(scene) {
  const [x, y] = [scene.agent[0] * CELL + CELL / 2, scene.agent[1] * CELL + CELL / 2];
  return isNumber(scene.facing)
    ? s("path", { class: "agent", d: "M-5 -5L6 0L-5 5z", transform: `translate(${x} ${y}) rotate(${90 * scene.facing})` })
    : s("circle", { class: "agent", cx: x, cy: y, r: 5 });
}

function crafting(scene, atStart) {
  const held = new Map(scene.held.map(([item, count]) => [item, count]));
  const enough = (node) => held.has(node.item) && Number(held.get(node.item)) >= node.count;
  const leaf = (node) => h("li", { class: enough(node) ? "has" : null },
    h("span", { class: "need" }, enough(node) ? "✓ " : "", String(node.count), " ", node.item, node.any ? ` (any ${node.any})` : ""),
    held.has(node.item) ? h("span", { class: "meta" }, ` holds ${held.get(node.item)}`) : null,
    node.inputs.length ? [h("span", { class: "meta" }, ` craft ${node.makes} from`), h("ul", {}, node.inputs.map(leaf))] : null);
  return [
    h("p", { class: "held" }, h("span", { class: "who" }, "holds"),
      scene.held.length ? scene.held.map(([item, count]) => h("span", { class: "item" }, `${count} ${item}`)) : h("span", { class: "quiet" }, "nothing")),
    atStart ? h("details", {}, h("summary", {}, "Recipes of ", scene.goal), h("ul", { class: "tree" }, leaf(scene.tree))) : null,
  ];
}

const COLOURS = { g: ["right", "right place"], y: ["near", "another place"], b: ["none", "not in the word"] };

function guesses(scene) {
  const rows = scene.guesses.map(([guess, colours]) => h("li", { class: "row" },
    colours === "" ? h("span", { class: "quiet" }, guess, " – no word")
      : [...guess].map((letter, at) => {
        const [kind, words] = COLOURS[colours[at]] ?? COLOURS.b;
        return h("span", { class: "letter " + kind, title: words }, letter, h("span", { class: "hidden" }, `: ${words}; `));
      })));
  return [h("ol", { class: "board" }, rows),
    h("p", { class: "quiet" }, `${scene.words_left} ${scene.words_left === 1 ? "word" : "words"} left: ${scene.words.join(" ")}${scene.words_left > scene.words.length ? " …" : ""}`)];
}

// A text with what it has of the accepted answers marked.
function marked(text, answers) {
  const low = text.toLowerCase();
  const out = [];
  let from = 0;
  while (from < text.length) {
    const hits = answers.map((answer) => [low.indexOf(answer, from), answer.length]).filter(([at]) => at >= 0).sort((x, y) => x[0] - y[0] || y[1] - x[1]);
    if (hits.length === 0) break;
    const [at, size] = hits[0];
    out.push(text.slice(from, at), h("mark", {}, text.slice(at, at + size)));
    from = at + size;
  }
  out.push(text.slice(from));
  return out;
}

function passages(scene) {
  // Letters that change their number in lower case would move the marks.
  const answers = scene.answers.map((one) => one.toLowerCase()).filter((one, at) => one !== "" && one.length === scene.answers[at].length);
  const sound = (text) => text.length === text.toLowerCase().length ? marked(text, answers) : text;
  const hit = scene.passages.filter((p) => answers.some((one) => (p.title + " " + p.text).toLowerCase().includes(one))).length;
  return [
    h("p", {}, h("span", { class: "who" }, "answers"), scene.answers.join(" · ")),
    scene.passages.length ? [
      h("p", { class: "quiet" }, `${hit} of ${scene.passages.length} passages found ${hit === 1 ? "has" : "have"} an accepted answer`),
      h("ol", { class: "found" }, scene.passages.map((p) => h("li", {}, h("b", {}, sound(p.title)), " ", sound(p.text)))),
    ] : null,
  ];
}

function pageTree(scene) {
  const acted = scene.nodes.findIndex(([, id]) => id === scene.acted);
  // A page may have thousands of nodes: those around the one that was acted on.
  const from = acted < 0 ? 0 : Math.max(0, acted - 12);
  const shown = scene.nodes.slice(from, from + 40);
  const missing = isNumber(scene.acted) && acted < 0 ? h("p", { class: "warn" }, `node ${scene.acted} is not on this page`) : null;
  return [
    h("p", { class: "quiet" }, scene.tab ?? "page", ` · ${scene.nodes.length} nodes`), missing,
    from > 0 ? h("p", { class: "quiet" }, `… ${from} before`) : null,
    h("ul", { class: "nodes" }, shown.map(([depth, id, text]) => h("li", { class: id === scene.acted ? "acted" : null, "$padding-left": 10 * Math.min(depth, 12) + "px", "aria-current": id === scene.acted ? "true" : null },
      h("span", { class: "meta" }, `[${id}] `), text))),
    from + shown.length < scene.nodes.length ? h("p", { class: "quiet" }, `… ${scene.nodes.length - from - shown.length} after`) : null,
  ];
}
