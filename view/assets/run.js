// All runs; a run with its curves; an update.

import { h, a, show, ago, bytes, choice, facts, fixed, grouped, isNumber, link, num, percent, seconds, signed, table } from "./dom.js";
import { ask, askOnce, runPath } from "./data.js";
import { lineChart, sharedCursor, sparkline } from "./charts.js";

function state(status) {
  if (status.finished) return h("span", { class: "state good" }, "● finished");
  if (status.on_hold) return h("span", { class: "state warn" }, "◌ on hold");
  if (status.stopped || status.paused) return h("span", { class: "state bad" }, "■ stopped");
  const running = status.in_flight.filter((part) => part.state === "running").length;
  return running ? h("span", { class: "state run" }, `▶ ${running} running`) : h("span", { class: "state warn" }, "◌ waiting");
}

function progress(status) {
  return h("span", { class: "progress" }, h("progress", { max: status.parts, value: status.committed, "aria-label": "parts committed" }), ` ${status.latest ?? 0}/${status.iterations}`);
}

export async function runsPage(root, _, query, go) {
  const answer = await ask("runs");
  const picked = new Set((query.pick ?? "").split(",").filter(Boolean));
  const compare = h("button", { type: "button", disabled: picked.size !== 2, onclick: () => { const [x, y] = picked; go(["compare"], { a: x, b: y }); } }, "Compare the two");
  const rows = answer.runs.map((run) => {
    if (run.error) return ["", run.run, h("span", { class: "warn" }, run.error), "", "", "", "", "", ""];
    const label = "success of training by iteration; dots: evaluations";
    return [
      h("input", { type: "checkbox", "aria-label": "compare " + run.run, checked: picked.has(run.run), onchange: (e) => {
        if (e.target.checked) picked.add(run.run); else picked.delete(run.run);
        compare.disabled = picked.size !== 2;
      } }),
      a(link(["runs", run.run]), run.run), state(run.status), progress(run.status),
      sparkline(run.training, run.evaluations, label, run.iterations), percent(run.evaluations.at(-1)?.[1] ?? run.training.at(-1)?.[1]),
      run.pipeline === "rl" ? run.estimator : run.pipeline,
      isNumber(run.status.iteration_s) ? seconds(run.status.iteration_s) : "–", seconds(run.worker_s), ago(run.last_unix_s),
    ];
  });
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Runs"), h("span", { class: "quiet" }, answer.store), compare),
    rows.length ? table("Every run of this store", [["two"], ["run"], ["state"], ["iteration"], ["success"], ["latest", "n"], ["algorithm"], ["an iteration", "n"], ["worker time", "n"], ["last work", "n"]], rows, { class: "runs" })
      : h("p", {}, "This store holds no run yet."));
}

// title, unit, series [name, key], range, note
const CURVES = [
  ["Success in training", "share of episodes", [["", "success"]], [0, 1]],
  ["Reward", "mean", [["", "reward"]]],
  ["Rounds", "", [["played, mean", "rounds_mean"], ["horizon", "horizon"]]],
  ["Entropy", "nats per token", [["", "entropy"]]],
  ["Step from the old policy", "KL, nats", [["", "update.ppo_kl"]]],
  ["KL to the reference", "nats", [["", "ref_kl"]]],
  ["Clipped tokens", "share", [["", "update.clip_fraction"]]],
  ["Gradient norm", "before clipping", [["", "update.grad_norm"]]],
  ["Tokens per episode", "mean", [["sampled", "response_length_mean"], ["prompt", "prompt_length_mean"]]],
  ["Groups", "count", [["mixed: these teach", "groups_mixed"], ["all failed", "groups_all_zero"], ["all solved", "groups_all_one"]]],
  ["Environment faults", "share of episodes", [["", "env_fault_rate"]]],
  ["Critic", "explained variance", [["", "explained_variance"]]],
  ["Kept trajectories", "count", [["", "kept"]]],
  ["Supervised loss", "nats per token", [["sft", "sft.loss"], ["dpo", "dpo.loss"]]],
  ["Sampling speed", "tokens/s", [["", "tokens_per_s"]]],
];
const AXES = [["iteration", "iteration"], ["sampled_tokens", "sampled tokens"], ["time_s", "time since start"], ["worker_s", "worker time"]];

export async function runPage(root, [run], query, go) {
  const [answer, series] = await Promise.all([ask(runPath(run)), ask(runPath(run, "series"))]);
  const axis = AXES.find(([key]) => key === query.x) ?? AXES[0];
  const xOf = (n) => series.iterations.find((point) => point.iteration === n)?.[axis[0]];
  const xFormat = axis[0].endsWith("_s") ? seconds : axis[0] === "iteration" ? undefined : (x) => x >= 1e6 ? num(x / 1e6) + "M" : x >= 1e3 ? num(x / 1e3) + "k" : num(x);
  const cursor = sharedCursor();
  const points = series.iterations.filter((point) => point.iteration > 0 || series.planned === 0);
  const xs = series.iterations.map((point) => point[axis[0]]).filter(isNumber);
  const xRange = xs.length > 1 ? [Math.min(...xs), Math.max(...xs)] : undefined;
  const marks = isNumber(answer.forked_at) ? [[xOf(answer.forked_at) ?? answer.forked_at, "forked here"]] : [];
  const common = { xLabel: axis[1], xFormat, whole: axis[0] === "iteration", cursor, marks, xRange };
  const sets = [...new Set(series.evaluations.flatMap((e) => e.sets.map((one) => one?.set)).filter(Boolean))];
  const charts = [];
  if (sets.length) {
    charts.push(lineChart({ ...common, title: "Success on held-out tasks", unit: "95 % interval", yRange: [0, 1],
      series: sets.slice(0, 6).map((name, at) => ({ name, colour: at, shape: at, dots: true, points: series.evaluations.flatMap((e) => {
        const one = e.sets.find((found) => found?.set === name);
        return one && isNumber(xOf(e.iteration)) ? [[xOf(e.iteration) + (axis[0] === "iteration" ? (at - (sets.length - 1) / 2) * 0.02 * (xs.length) : 0), one.success, one.low, one.high]] : [];
      }) })) }));
  }
  for (const [title, unit, all, yRange] of CURVES) {
    const lines = all.map(([name, key]) => ({ name, points: points.filter((p) => isNumber(p[key])).map((p) => {
      const within = key === "success" ? p.success_within : null;
      return isNumber(within) ? [p[axis[0]], p[key], p[key] - within, p[key] + within] : [p[axis[0]], p[key]];
    }) })).filter((one) => one.points.length && one.points.some((p) => p[1] !== 0));
    if (lines.length) charts.push(lineChart({ ...common, title, unit, series: lines, yRange }));
  }
  const status = answer.status;
  const columns = [["iteration", "n"], ["success", "n"], ["reward", "n"], ["horizon", "n"], ["entropy", "n"], ["KL", "n"], ["clipped", "n"], ["grad norm", "n"], ["mixed groups", "n"], ["tokens", "n"], ["time", "n"], ["see", "w"]];
  const rows = points.map((p) => [
    String(p.iteration), fixed(p.success, 3) + (isNumber(p.success_within) ? " ±" + fixed(p.success_within, 2) : ""), fixed(p.reward, 3), num(p.horizon), fixed(p.entropy, 3),
    num(p["update.ppo_kl"]), percent(p["update.clip_fraction"], 2), fixed(p["update.grad_norm"], 3), num(p.groups_mixed), grouped(p.loss_tokens), seconds(p.wall_s),
    [a(link(["runs", run, "episodes"], { iteration: p.iteration, stage: "rollout" }), "episodes"), " ", p["update.grad_norm"] === undefined ? null : a(link(["runs", run, "update", p.iteration]), "update")],
  ]);
  const evaluated = series.evaluations.map((e) => [e.label, ...sets.map((name) => {
    const one = e.sets.find((found) => found?.set === name);
    return one ? [percent(one.success, 1), h("span", { class: "meta" }, ` [${fixed(one.low, 2)}, ${fixed(one.high, 2)}]`, isNumber(one.greedy) ? ` greedy ${percent(one.greedy, 1)}` : "")] : "–";
  }), percent(e.overall?.success, 1)]);
  const failures = status.failures.map((f) => h("li", {}, `${f.part} attempt ${f.attempt}: ${f.message}`));
  show(root,
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, run), state(status), progress(status)),
    facts([
      ["algorithm", answer.pipeline === "rl" ? answer.estimator : answer.pipeline], ["model", answer.model], ["seed", answer.seed],
      ["parts", `${status.committed} of ${status.parts}`], ["an iteration", isNumber(status.iteration_s) ? seconds(status.iteration_s) : null],
      ["left", isNumber(status.left_s) && !status.finished ? seconds(status.left_s) : null], ["worker time", seconds(answer.worker_s)], ["workers", answer.workers],
      ["last work", ago(answer.last_unix_s, answer.now_unix_s)], ["identity", h("code", { title: answer.identity }, answer.identity.slice(0, 12))],
      ["plan revision", answer.revision], ["forked at", answer.forked_at],
    ]),
    status.finished ? null : h("p", { class: "waiting" }, "Waiting ", status.waiting, "."),
    failures.length ? h("ul", { class: "warn" }, failures) : null,
    h("div", { class: "toolbar" }, choice("Over", AXES, axis[0], (x) => go(["runs", run], { ...query, x: x === "iteration" ? "" : x }))),
    charts.length ? h("div", { class: "charts" }, charts) : h("p", { class: "quiet" }, "Nothing is measured yet."),
    evaluated.length ? table("Evaluations", [["policy"], ...sets.map((name) => [name, "n"]), ["all", "n"]], evaluated) : null,
    rows.length ? table("Iterations", columns, rows) : null,
    h("details", { class: "card" }, h("summary", {}, "Config"), h("pre", { class: "config" }, JSON.stringify(answer.config, null, 1))));
}

export async function partPage(root, [run, n, stage, p]) {
  const answer = await askOnce(runPath(run, "parts", n, stage, p));
  const m = answer.manifest;
  const pairs = (all) => Object.entries(all).filter(([, v]) => typeof v !== "object").map(([name, v]) => [name, isNumber(v) ? num(v, 6) : String(v)]);
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, answer.part, h("small", {}, ` attempt ${m.attempt}, ${seconds(answer.wall_s)}`))),
    facts([["worker", m.work?.worker], ["numeric class", m.numeric_class], ["program", m.code_version], ["plan revision", m.plan_revision]]),
    m.outputs.some((o) => o.name === "episodes.bin") ? h("p", {}, a(link(["runs", run, "episodes"], { iteration: n, stage }), "Its episodes")) : null,
    m.inputs.length ? table("Read", [["name"], ["commit"]], m.inputs.map((i) => [i.name, a(link(["runs", run, "parts", i.iteration, i.stage, i.part]), `${i.iteration}/${i.stage}/${i.part}`)])) : null,
    table("Written", [["name"], ["size", "n"], ["digest"]], m.outputs.map((o) => [o.name, bytes(o.size), h("code", {}, String(o.digest).slice(0, 16))])),
    pairs(answer.metrics).length ? table("Metrics", [["name"], ["value", "n"]], pairs(answer.metrics)) : null,
    pairs(answer.stats).length ? table("Measured by its worker", [["name"], ["value", "n"]], pairs(answer.stats)) : null);
}

export async function updatePage(root, [run, n]) {
  const answer = await ask(runPath(run, "update", n));
  const steps = answer.minibatches ?? [];
  const point = (of) => steps.map((step, at) => [at + 1, of(step)]).filter((p) => isNumber(p[1]));
  const common = { xLabel: "optimizer step", whole: true, cursor: sharedCursor() };
  const settings = answer.settings ?? {};
  show(root,
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Update", h("small", {}, ` of iteration ${n}`))),
    facts([["learning rate", num(settings.lr)], ["epochs", settings.ppo_epochs], ["clip", settings.loss ? `${settings.loss.clip.low} / ${settings.loss.clip.high}` : null],
      ["aggregation", settings.loss?.aggregation], ["entropy bonus", settings.loss ? num(settings.loss.entropy_coeff) : null], ["gradient clip", num(settings.grad_clip)]]),
    steps.length ? h("div", { class: "charts" },
      lineChart({ ...common, title: "Loss", series: [{ name: "policy loss", dots: true, points: point((x) => x.metrics.policy_loss) }] }),
      lineChart({ ...common, title: "Gradient norm", series: [{ name: "before clipping", dots: true, points: point((x) => x.grad_norm) }] }),
      lineChart({ ...common, title: "Ratio", series: [{ name: "largest", dots: true, points: point((x) => x.metrics.ratio_max) }] }),
      lineChart({ ...common, title: "Clipped tokens", series: [{ name: "share", dots: true, points: point((x) => x.metrics.clip_fraction) }] })) : h("p", { class: "quiet" }, "The update is not committed yet."),
    table("Minibatches", [["step", "n"], ["epoch", "n"], ["slots"], ["loss tokens", "n"], ["loss", "n"], ["gradient norm", "n"], ["scaled by", "n"], ["clipped", "n"], ["KL", "n"], ["note"]],
      steps.map((x, at) => [String(at + 1), x.epoch + 1, x.slots.length ? `${x.slots[0]}–${x.slots.at(-1)} (${x.slots.length})` : "–", grouped(x.denominator.loss_tokens), fixed(x.metrics.policy_loss, 5), fixed(x.grad_norm, 4), fixed(x.clip_scale, 3), percent(x.metrics.clip_fraction, 2), num(x.metrics.approx_kl), x.non_finite ? "not finite, skipped" : x.skipped ? "skipped" : ""])),
    table("Tokens that pull most: |advantage| · (1 − p), at the first step", [["pull", "n"], ["token"], ["advantage", "n"], ["p", "n"], ["episode"]],
      answer.tokens.map((t) => [fixed(t.pull, 3), h("code", {}, JSON.stringify(t.piece ?? t.id)), signed(t.advantage, 3), num(t.p), a(link(["runs", run, "episodes"], { iteration: n, stage: "rollout", group: t.group }), `group ${t.group} sample ${t.sample}, token ${t.token}`)])));
}
