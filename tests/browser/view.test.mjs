// The viewer in a browser: every page, by keyboard, in light and dark, narrow, under hostile text,
// live, and as a copy without a server.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { answer, browser, clean, environmentThatSays, folder, kill, open, run, settled, start, store, submit, view, visit } from "./kit.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\u001b]0;title\u0007\u001b[2J\u202egpj.exe\u2066\u009b31m</pre></textarea>";
const PPO = "/runs/ppo/episodes/2/rollout/2/3";
const PAGES = [
  "/", "/runs/smoke", "/runs/ppo?x=cost", "/runs/smoke/episodes", "/runs/smoke/episodes?preset=worst&stage=rollout", "/runs/smoke/episodes/1/rollout/0/1",
  PPO + "?colour=advantage", "/runs/smoke/group/1/rollout/0/1", "/runs/smoke/tasks", "/runs/smoke/fleet?price=2", "/runs/spot/fleet", "/runs/smoke/episodes?task=nosuch", "/runs/smoke/update", "/runs/smoke/update/1", "/runs/smoke/tasks?from=17", PPO + "?token=99999",
  "/runs/smoke/parts/1/update/0", "/compare?a=smoke%3A0&b=smoke", "/pair?x=smoke/0/evaluate/0/0&y=smoke/4/evaluate/0/0", "/runs/nope", "/no/such/page", "/runs/h/episodes/1/rollout/0/0",
  "/runs/smoke/episodes/4/rollout/0/1?policy=4&colour=rescored", ...[0, 2, 4, 6, 8].map((k) => "/runs/games/episodes/1/rollout/0/" + k),
];

const TINY = `
actor_rollout_ref:
  model: {path: 'tiny?hidden=32&heads=2&kv_heads=1&layers=1&intermediate=64&vocab=400'}
  actor: {ppo_mini_batch_size: 1}
  rollout: {n: 2, max_tokens: 4, max_model_len: 2048, fault_retries: 0}
  agentgym: {task_name: textcraft, env_addr: 'URL', max_retries: 1}
data:
  train_batch_size: 2
  max_prompt_length: 1024
  max_response_length: 1024
  tasks: [{env: textcraft, ids: 0..4}]
algorithm: {rounds_ctrl: {rounds: 2}}
trainer: {total_training_steps: 1}
jobs: {threads: 1, backoff_s: 0.05, failures_max: 1}
run: {id: h}
`;

// One task of each game.
const GAMES = ["babyai", "maze", "sokoban", "wordle", "searchqa"];
const games = TINY.replace("{env: textcraft, ids: 0..4}", GAMES.map((name) => `{env: ${name}, ids: 0..1, share: ${1 / GAMES.length}}`).join(", "))
  .replace("task_name: textcraft, env_addr: 'URL'", "task_name: babyai, env_addr: 'builtin:babyai', envs: {" + GAMES.slice(1).map((name) => `${name}: {task_name: ${name}, env_addr: 'builtin:${name}'}`).join(", ") + "}")
  .replace("train_batch_size: 2", "train_batch_size: 5").replace("jobs: {", "jobs: {rollout_part_tasks: 5, ").replace("id: h", "id: games").replace("vocab=400", "vocab=600");

// A run whose first process was killed at work. Both had workers with prices, as --price records them.
async function killed() {
  const words = ["--quiet", "configs/smoke.yaml", "run.id=spot"];
  const child = start(...words);
  const begun = join(store, "runs/spot/attempts/00000000/sft");
  const isBegun = () => existsSync(begun) && readdirSync(begun, { recursive: true }).some((name) => name.endsWith("start.json"));
  while (!isBegun() && child.exitCode === null) await new Promise((done) => setTimeout(done, 20));
  await kill(child);
  // The queue is a hint; without it nobody waits for the dead worker's lease.
  for (const name of readdirSync(store).filter((name) => name.startsWith("queue."))) rmSync(join(store, name));
  run(...words);
  const attempts = join(store, "runs/spot/attempts");
  const records = readdirSync(attempts, { recursive: true }).filter((name) => name.endsWith("start.json")).sort().map((name) => join(attempts, name));
  const first = JSON.parse(readFileSync(records[0])).worker.split("/")[0];
  for (const file of records) {
    const record = JSON.parse(readFileSync(file));
    const own = record.worker.split("/")[0] === first;
    writeFileSync(file, JSON.stringify({ ...record, price: own ? 2 : 0.7, labels: { gpu: own ? "A" : "B" } }));
  }
}

let chrome;
let viewer;

before(async () => {
  run("--quiet", "configs/smoke.yaml", "run.id=smoke");
  run("--quiet", "configs/ppo.yaml", "run.id=ppo");
  writeFileSync(join(folder, "games.yaml"), games);
  run("--quiet", join(folder, "games.yaml"));
  const hostile = await environmentThatSays(HOSTILE);
  writeFileSync(join(folder, "hostile.yaml"), TINY.replace("URL", hostile.url));
  // Not spawnSync: the environment answers in this process.
  const child = start("--quiet", join(folder, "hostile.yaml"));
  await new Promise((done) => child.once("exit", done));
  hostile.stop();
  await killed();
  viewer = await view();
  chrome = await browser();
}, { timeout: 300000 });

after(async () => {
  await chrome?.close();
  viewer?.stop();
  clean();
});

async function violations(page) {
  // The page's own policy lets no foreign script in; the tester's goes around it.
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  return found.violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ") + " " + (n.any[0]?.message ?? "")).join(" | ")}`);
}

const expected = (note) => /Failed to load resource.*(404|400)/.test(note);

for (const [name, options] of [["light", { colorScheme: "light" }], ["dark", { colorScheme: "dark" }], ["320 px", { viewport: { width: 320, height: 640 } }]]) {
  test(`every page is whole and accessible: ${name}`, { timeout: 120000 }, async () => {
    const page = await open(chrome, viewer, options);
    const wrong = [];
    for (const hash of PAGES) {
      await visit(page, viewer, hash);
      wrong.push(...(await violations(page)).map((one) => hash + " " + one));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) wrong.push(`${hash} is ${wide} px too wide`);
      assert.ok((await page.title()).endsWith("agentgym"), hash);
    }
    assert.deepEqual(wrong, []);
    assert.deepEqual(page.notes.filter((note) => !expected(note)), []);
    await page.context().close();
  });
}

test("an advantage is explained and equals the batch", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, PPO);
  const why = page.locator(".why");
  await why.getByText("equal to batch.bin bit for bit").waitFor();
  const text = await why.innerText();
  const said = JSON.parse(submit("credit", "ppo", "2", "--episode", "11", "--json"));
  assert.match(text, /whitened over \d+ policy tokens: \(x − /);
  for (const line of said.explanation.formula) assert.ok(text.includes(line), line + " | " + text);
  const view64 = new DataView(new ArrayBuffer(8));
  view64.setFloat64(0, said.advantage);
  assert.ok(text.includes(view64.getBigUint64(0).toString(16).padStart(16, "0")), text);
  await page.context().close();
});

test("everything can be done by keyboard", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/episodes/1/rollout/0/1");
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Turn 1");
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Turn 2");
  await page.keyboard.press("k");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Turn 1");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator(".inspector").innerText(), /1, id \d+/);
  await page.keyboard.press("n");
  await page.waitForURL(/rollout\/0\/2/);
  await settled(page);
  await page.keyboard.press("p");
  await page.waitForURL(/rollout\/0\/1/);
  // From the top of any page, every control is reached by Tab and is seen when it has the focus.
  for (const hash of ["/", "/runs/smoke/episodes", "/runs/smoke/fleet"]) {
    await visit(page, viewer, hash);
    const wanted = await page.evaluate(() => document.querySelectorAll("main a, main button, main select, main input, main summary, main canvas").length);
    const seen = new Set();
    for (let step = 0; step < wanted + 30; step += 1) {
      await page.keyboard.press("Tab");
      const at = await page.evaluate(() => {
        const own = document.activeElement;
        if (!own.closest("main")) return null;
        const outline = getComputedStyle(own).outlineStyle;
        return [[...document.querySelectorAll("main *")].indexOf(own), outline];
      });
      if (at) { seen.add(at[0]); assert.notEqual(at[1], "none", hash); }
    }
    assert.ok(seen.size >= Math.min(wanted, 20), `${hash}: ${seen.size} of ${wanted}`);
  }
  await visit(page, viewer, "/runs/smoke/fleet");
  await page.locator("canvas").focus();
  for (const key of ["+", "ArrowRight", "-", "0"]) await page.keyboard.press(key);
  await page.context().close();
});

test("episodes begin with the newest training iteration, in words, and a phone shows how they ended", async () => {
  const page = await open(chrome, viewer, { viewport: { width: 400, height: 800 } });
  await visit(page, viewer, "/runs/smoke/episodes");
  const { iterations } = await answer(viewer, "runs/smoke");
  const first = page.locator("table.rows tbody tr").filter({ has: page.locator(".outcome") }).first();
  assert.match(await first.locator("th").innerText(), new RegExp(`^iteration ${iterations ?? 4}, episode 1 of \\d+$`));
  assert.match(await first.locator("th").getAttribute("title"), /^episode 0 of \d+\/rollout\/0$/);
  for (const cell of [first.locator(".outcome"), first.locator("td.n").first()]) {
    const box = await cell.boundingBox();
    assert.ok(box.x + box.width <= 400, `a figure ends at ${box.x + box.width}`);
  }
  // The next episode is the list's.
  await first.locator("a").click();
  await settled(page);
  await page.getByRole("link", { name: /next/ }).click();
  await settled(page);
  assert.match(await page.locator(".steps").innerText(), /2 of \d+ listed/);
  await page.context().close();
});

test("tokens that are not trained on are hatched from the first turn on, in the dark too", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(chrome, viewer, { colorScheme });
    await visit(page, viewer, "/runs/smoke/episodes/1/rollout/0/1");
    await page.locator(".prompt .t").first().waitFor();
    assert.equal(await page.locator(".prompt .masked").count(), 0);
    const [line, ground] = await page.evaluate(() => {
      const card = document.querySelector(".card");
      const probe = document.createElement("i");
      probe.className = "masked";
      card.append(probe);
      const image = getComputedStyle(probe).backgroundImage;
      // The line as it is painted on the card: its own colour by its opacity.
      const drawn = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const paint = (colour) => { drawn.fillStyle = colour; drawn.fillRect(0, 0, 1, 1); return [...drawn.getImageData(0, 0, 1, 1).data]; };
      const own = paint(getComputedStyle(card).backgroundColor);
      const colour = image.match(/(color\([^)]*\)|rgba?\([^)]*\)) 5px/)[1];
      probe.remove();
      return [paint(colour), own];
    });
    const apart = Math.max(...[0, 1, 2].map((i) => Math.abs(line[i] - ground[i])));
    assert.ok(apart > 45, `${colorScheme}: the hatching is ${apart} of 255 from its ground`);
    await page.context().close();
  }
});

test("filters narrow the list, and the URL holds them", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/episodes");
  const all = await page.locator(".total").innerText();
  await page.getByLabel("Outcome").selectOption("horizon");
  await page.waitForURL(/outcome=horizon/);
  await settled(page);
  const some = await page.locator(".total").innerText();
  assert.notEqual(some, all);
  assert.ok(parseInt(some) > 0);
  const outcomes = await page.locator("tbody .outcome").allInnerTexts();
  assert.ok(outcomes.length > 0 && outcomes.every((text) => text.includes("horizon")), outcomes.join());
  await page.reload();
  await settled(page);
  assert.equal(await page.locator(".total").innerText(), some);
  await page.context().close();
});

test("typing filters, and takes no click on a tab", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/episodes");
  const field = page.getByRole("searchbox", { name: "Text" });
  await field.pressSequentially("craft", { delay: 60 });
  await page.waitForURL(/text=craft/);
  await settled(page);
  // What was typed is there whole, and can be typed on.
  assert.equal(await field.inputValue(), "craft");
  await field.pressSequentially("ed", { delay: 60 });
  await page.waitForURL(/text=crafted/);
  await settled(page);
  assert.equal(await page.evaluate(() => document.activeElement.name), "text");
  await field.pressSequentially("x");
  await page.getByRole("link", { name: "Updates", exact: true }).click();
  await page.waitForURL(/smoke\/update/);
  await new Promise((done) => setTimeout(done, 600));
  await settled(page);
  assert.match(page.url(), /smoke\/update$/);
  // A number takes effect when its field is left, and the click that leaves it counts.
  await visit(page, viewer, "/runs/smoke/episodes?reward_min=0");
  await page.getByRole("spinbutton", { name: "Reward from" }).fill("0.5");
  await page.getByRole("link", { name: "Overview", exact: true }).click();
  await page.waitForURL(/runs\/smoke$/);
  await settled(page);
  assert.match(page.url(), /runs\/smoke$/);
  await page.context().close();
});

test("runs are listed newest first, and a curve is read with names and whole iterations", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/");
  const { runs } = await answer(viewer, "runs");
  const times = new Map(runs.map((run) => [run.run, run.last_unix_s ?? 0]));
  const listed = (await page.locator("table.runs tbody tr td:nth-child(2) a, table.runs tbody tr th a").allInnerTexts()).map((run) => times.get(run));
  assert.ok(listed.length > 2 && listed.every((time, at) => at === 0 || listed[at - 1] >= time), listed.join());
  await visit(page, viewer, "/runs/smoke");
  const chart = page.locator("figure.chart", { hasText: "Tokens per episode" });
  const box = await chart.locator("svg").first().boundingBox();
  await page.mouse.move(box.x + box.width * 0.6, box.y + box.height * 0.5);
  assert.match(await chart.locator(".read").innerText(), /^iteration \d+: sampled [\d.]+, prompt [\d.]+$/);
  await page.context().close();
});

test("a list is gone through in its own order", async () => {
  const page = await open(chrome, viewer);
  const list = await answer(viewer, "runs/smoke/episodes?preset=worst&stage=rollout");
  await visit(page, viewer, "/runs/smoke/episodes?preset=worst&stage=rollout");
  assert.match(await page.getByLabel("Order").evaluate((all) => all.selectedOptions[0].textContent), /newest, most spoilt/);
  await page.locator("tbody tr th a").first().click();
  for (const [at, row] of [...list.rows.slice(0, 3).entries()]) {
    await page.waitForURL((url) => url.hash.startsWith(`#/runs/smoke/episodes/${row.part}/${row.k}?`));
    await settled(page);
    assert.ok((await page.locator("nav.steps").innerText()).includes(`${at + 1} of ${list.total} listed`));
    await page.keyboard.press("n");
  }
  await page.context().close();
});

test("two evaluations of a task are shown by episodes that differ as it did", async () => {
  const page = await open(chrome, viewer);
  const tasks = await answer(viewer, "runs/smoke/tasks");
  const changed = tasks.tasks.filter((task) => task.cells[0].success !== task.cells.at(-1).success);
  assert.ok(changed.length > 0, "some task changed");
  await visit(page, viewer, "/runs/smoke/tasks");
  for (const task of changed) {
    const row = page.locator("tbody tr").filter({ has: page.locator("th", { hasText: new RegExp(`^${task.task}$`) }) });
    const pair = new URLSearchParams((await row.getByRole("link", { name: "both" }).getAttribute("href")).split("?")[1]);
    const solved = [];
    for (const side of ["x", "y"]) {
      const [run, n, stage, part, k] = pair.get(side).split("/");
      solved.push((await answer(viewer, `runs/${run}/parts/${n}/${stage}/${part}/episodes/${k}`)).success);
    }
    const gained = task.cells.at(-1).success > task.cells[0].success;
    assert.deepEqual(solved, [!gained, gained], task.task);
  }
  await page.context().close();
});

test("money is the ledger's, in every table", async () => {
  const page = await open(chrome, viewer);
  const ledger = await answer(viewer, "runs/smoke/ledger?price=3.6");
  const spent = ledger.total.useful_s + ledger.total.lost_s + ledger.total.idle_s;
  assert.ok(Math.abs(ledger.total.cost - spent / 1000) < 1e-6, JSON.stringify(ledger.total));
  await visit(page, viewer, "/runs/smoke/fleet");
  assert.equal(await page.getByRole("columnheader", { name: "cost" }).count(), 0, "nobody named a price");
  await page.getByLabel(/Price of a worker-hour/).fill("3.6");
  await page.getByLabel(/Price of a worker-hour/).press("Enter");
  await page.waitForURL(/price=3.6/);
  await settled(page);
  assert.equal(await page.getByRole("columnheader", { name: "cost", exact: true }).count(), 2);
  await visit(page, viewer, "/runs/smoke/fleet?price=much");
  assert.match(await page.locator("main").innerText(), /price of a worker-hour as a number/);
  await page.context().close();
});

// The rows of a table, by their columns' names.
async function rowsOf(page, caption) {
  return page.locator("table").filter({ has: page.locator("caption", { hasText: new RegExp(`^${caption}`) }) }).evaluate((table) => {
    const head = [...table.querySelectorAll("thead th")].map((cell) => cell.innerText);
    return [...table.querySelectorAll("tbody tr")].map((row) => Object.fromEntries([...row.children].map((cell, at) => [head[at], cell.innerText])));
  });
}

// Whether a page shows a number, with as many digits as it shows.
function shows(text, value) {
  const shown = Number(text.replaceAll("\u2212", "-"));
  return text !== "" && Math.abs(shown - value) <= 0.006 * Math.abs(value);
}

test("recorded prices are the page's money, as on the terminal", async () => {
  const said = JSON.parse(submit("ledger", "spot", "--json"));
  assert.ok(said.lost.length > 0 && said.total.lost_cost > 0, JSON.stringify(said.total));
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/spot/fleet");
  for (const [caption, name, all] of [["By stage", "stage", said.stages], ["By worker", "worker", said.workers]]) {
    const rows = await rowsOf(page, caption);
    assert.equal(rows.length, all.length);
    all.forEach((one, at) => {
      assert.ok(shows(rows[at].cost, one.cost) && shows(rows[at]["of it lost"], one.lost_cost), `${one[name]}: ${JSON.stringify(rows[at])}`);
    });
  }
  const workers = await rowsOf(page, "By worker");
  said.workers.forEach((one, at) => assert.ok(workers[at].labels === "gpu=" + one.labels.gpu && shows(workers[at].price, one.price), JSON.stringify(workers[at])));
  const lost = await rowsOf(page, "Lost work");
  said.lost.forEach((one, at) => assert.ok(lost[at].part === one.part && shows(lost[at].cost, one.lost_cost) && lost[at].said !== "", JSON.stringify(lost[at])));
  assert.ok(shows((await page.getByText("per solved episode").locator("..").innerText()).split("= ")[1], said.cost_per_solved_episode));
  assert.equal(await page.getByLabel(/Price of a worker-hour/).count(), 0, "every worker named a price");
  // What a curve over cost ends at is the ledger's useful money.
  const useful = said.iterations.reduce((sum, one) => sum + one.useful_cost, 0);
  assert.ok(Math.abs(useful - said.total.useful_cost) < 1e-9);
  await visit(page, viewer, "/runs/spot?x=cost");
  assert.match(await page.locator("main").innerText(), /Lost and idle time is not in it/);
  await visit(page, viewer, "/runs/smoke?x=cost");
  assert.match(await page.locator("main").innerText(), /No worker said what it costs/);
  await visit(page, viewer, "/runs/smoke?x=cost&price=2");
  assert.ok((await page.locator(".chart").count()) > 5);
  await visit(page, viewer, "/runs/smoke?x=cost&price=xyz");
  assert.match(await page.locator("main").innerText(), /price of a worker-hour as a number/);
  assert.deepEqual(page.notes.filter((note) => !expected(note)), []);
  await page.context().close();
});

test("a token's pull is what the terminal says, and its row says where it is", async () => {
  const said = JSON.parse(submit("credit", "smoke", "4", "--pull", "--json"));
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/update/4");
  const rows = await rowsOf(page, "Tokens that pull most");
  assert.equal(rows.length, said.tokens.length);
  // The weight is that of the denominators which the update recorded.
  const { minibatches } = await answer(viewer, "runs/smoke/update/4");
  assert.deepEqual([said.aggregation, said.kl_loss], ["token_mean", false]);
  said.tokens.forEach((token, at) => {
    const own = minibatches.find((one) => one.epoch === 0 && one.slots.includes(token.slot));
    assert.ok(Math.abs(token.weight * own.denominator.loss_tokens - 1) < 1e-9, JSON.stringify(token));
    assert.ok(Math.abs(token.slope / (token.advantage * token.weight) + 1) < 1e-9, JSON.stringify(token));
    assert.ok(shows(rows[at].pull, token.pull) && shows(rows[at].weight, token.weight), JSON.stringify([rows[at], token]));
    assert.ok(Math.abs(token.pull - Math.abs(token.slope) * (1 - token.p)) < 1e-12);
    assert.ok(rows[at].episode.includes(`turn ${token.turn + 1}, token ${token.index}`), rows[at].episode);
  });
  await page.context().close();
});

test("a filter that nothing passes says what there is", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/episodes?task=nosuch");
  assert.match(await page.locator(".total").innerText(), /^0 of [\d\u202f]+ episodes$/);
  const told = await page.locator("td.none").innerText();
  assert.match(told, /no episode has task=nosuch: there are textcraft_\d+, .*more/);
  assert.ok(submit("episodes", "smoke", "--where", "task=nosuch").includes("no episode has task=nosuch: there are textcraft_"));
  await visit(page, viewer, "/runs/smoke/episodes?outcome=bad");
  assert.match(await page.locator("main").innerText(), /outcome=bad: no episode of this run can have that; it is one of solved/);
  await page.context().close();
});

test("an environment is drawn at every turn where it answers as it did, and else it is said why not", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/episodes/1/rollout/0/1");
  await page.locator(".start .scene.crafting").waitFor();
  assert.equal(await page.locator(".turn .scene.crafting").count(), await page.locator(".turn").count());
  await page.locator(".start summary").click();
  assert.match(await page.locator(".start .tree").innerText(), /craft \d+ from/);
  const kinds = new Set();
  for (let k = 0; k < 2 * GAMES.length; k += 1) {
    await visit(page, viewer, "/runs/games/episodes/1/rollout/0/" + k);
    await page.locator(".start .scene").waitFor();
    kinds.add((await page.locator(".start .scene").getAttribute("class")).split(" ")[1]);
  }
  assert.deepEqual([...kinds].sort(), ["grid", "guesses", "passages"]);
  await visit(page, viewer, "/runs/h/episodes/1/rollout/0/0");
  await page.locator(".no-scene").waitFor();
  assert.match(await page.locator(".no-scene").innerText(), /begins otherwise than was recorded/);
  assert.equal(await page.locator(".scene").count(), 0);
  assert.deepEqual(page.notes, []);
  await page.context().close();
});

test("an update is scored with the policy that it made", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/update/4");
  await page.getByRole("button", { name: /Score the batch/ }).click();
  await page.locator(".histogram svg").first().waitFor();
  assert.ok((await page.locator(".histogram .bar").count()) > 3);
  assert.deepEqual(await violations(page), []);
  // A token that pulls leads to itself in its episode.
  const token = page.locator("main table").last().locator("tbody tr").first();
  const wanted = (await token.locator("code").innerText());
  await token.getByRole("link").click();
  await page.waitForURL(/token=\d+/);
  await settled(page);
  await page.locator(".inspector dl").waitFor();
  assert.ok((await page.locator(".inspector").innerText()).includes(wanted), wanted);
  // It lies in the window, also after the pictures of the environment came in.
  await page.locator(".start .scene").waitFor();
  await page.locator(".t.picked").waitFor();
  await page.waitForTimeout(300);
  const box = await page.locator(".t.picked").boundingBox();
  assert.ok(box.y >= 0 && box.y + box.height <= 900, JSON.stringify(box));
  await page.getByLabel("Rescore with the policy of iteration").fill("4");
  await page.getByLabel("Rescore with the policy of iteration").press("Enter");
  await page.waitForURL(/policy=4/);
  await settled(page);
  assert.equal(await page.getByLabel("Colour tokens by").inputValue(), "rescored");
  await page.getByLabel("Rescore with the policy of iteration").fill("99");
  await page.getByLabel("Rescore with the policy of iteration").press("Enter");
  await page.waitForURL(/policy=99/);
  await settled(page);
  assert.match(await page.locator("main").innerText(), /has iterations 0 to 4/);
  await page.context().close();
});

test("hostile text stays text, and nothing leaves the origin", async () => {
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/h/episodes/1/rollout/0/0");
  const text = await page.locator(".transcript").innerText();
  assert.ok(text.includes("<script>alert(1)</script>"), text);
  assert.ok(text.includes("␛]0;title␇␛[2J") && text.includes("⟨U+202E⟩gpj.exe⟨U+2066⟩⟨U+009B⟩31m"), text);
  assert.equal(await page.locator("main script, main img").count(), 0);
  assert.equal(await page.evaluate(() => /[\u001b\u009b\u202a-\u202e\u2066-\u2069]/.test(document.documentElement.textContent)), false);
  await visit(page, viewer, "/runs/h/group/1/rollout/0/0");
  assert.ok((await page.locator("main").innerText()).includes("onerror=alert(2)"));
  assert.deepEqual(page.notes, []);
  const csp = (await (await fetch(viewer.origin + "/", { headers: { authorization: "Bearer " + viewer.token } })).headers.get("content-security-policy"));
  for (const rule of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'", "frame-ancestors 'none'"]) assert.ok(csp.includes(rule), csp);
  const inline = await page.evaluate(() => { const s = document.createElement("script"); s.textContent = "window.ran = 1"; document.body.append(s); return window.ran; });
  assert.equal(inline, undefined, "the policy stops an inline script");
  await page.context().close();
});

test("a stranger is not let in", async () => {
  const page = await (await chrome.newContext()).newPage();
  assert.equal((await page.goto(viewer.origin + "/")).status(), 401);
  assert.equal((await page.goto(viewer.origin + "/?token=" + "0".repeat(64))).status(), 401);
  const own = await open(chrome, viewer);
  assert.ok(!own.url().includes("token"), "the token leaves the address bar");
  const [cookie] = await own.context().cookies();
  assert.ok(cookie.httpOnly && cookie.sameSite === "Strict", JSON.stringify(cookie));
  await own.context().close();
  await page.context().close();
});

test("a run that goes on is followed", { timeout: 60000 }, async () => {
  const page = await open(chrome, viewer);
  const child = start("--quiet", "configs/smoke.yaml", "run.id=live", "run.seed=6");
  const ended = new Promise((done) => child.once("exit", done));
  try {
    for (let tries = 0; tries < 50; tries += 1) {
      await visit(page, viewer, "/runs/live");
      if ((await page.locator("main h1").innerText()) === "live") break;
      await page.waitForTimeout(200);
    }
    const done = () => page.locator("main progress").first().getAttribute("value").then(Number);
    const first = await done();
    await page.waitForFunction((known) => Number(document.querySelector("main progress")?.value) > known, first, { timeout: 20000 });
    child.kill("SIGKILL");
    await ended;
    assert.ok((await done()) > first);
  } finally {
    child.kill("SIGKILL");
  }
  await page.context().close();
});

test("a damaged file is said to be damaged", async () => {
  const part = JSON.parse(submit("inspect", "smoke", "3", "--json")).parts.find((p) => p.part === "3/rollout/1");
  const episodes = part.manifest.outputs.find((o) => o.name === "episodes.bin");
  const path = join(folder, "store", typeof episodes.key === "string" ? episodes.key : episodes.key.path);
  const bytes = readFileSync(path);
  bytes[bytes.length >> 1] ^= 1;
  writeFileSync(path, bytes);
  const page = await open(chrome, viewer);
  await visit(page, viewer, "/runs/smoke/episodes/3/rollout/1/0");
  const said = await page.locator("main").innerText();
  assert.match(said, /cannot be shown/);
  assert.match(said, /episodes\.bin/);
  bytes[bytes.length >> 1] ^= 1;
  writeFileSync(path, bytes);
  await page.context().close();
});

test("a copy needs no server", async () => {
  submit("view", "ppo", "--bundle", join(folder, "copy"));
  const page = await (await chrome.newContext()).newPage();
  const notes = [];
  page.on("pageerror", (error) => notes.push(error.message));
  page.on("request", (request) => { if (!request.url().startsWith("file:") && !request.url().startsWith("data:")) notes.push(request.url()); });
  const file = pathToFileURL(join(folder, "copy/index.html")).href;
  await page.goto(file);
  await settled(page);
  assert.equal(await page.locator("main h1").innerText(), "ppo");
  assert.ok((await page.locator(".chart").count()) > 5);
  await page.goto(file + "#" + PPO);
  await settled(page);
  await page.locator(".why").getByText("bit for bit").waitFor();
  for (const hash of ["/runs/ppo/episodes", "/runs/ppo/tasks", "/runs/ppo/fleet"]) {
    await page.goto(file + "#" + hash);
    await settled(page);
    assert.ok(!(await page.locator("main").innerText()).includes("cannot be shown"), hash);
  }
  assert.deepEqual(notes, []);
  await page.context().close();
});
