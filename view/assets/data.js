// Answers of the data API, from the server or from those that a bundle holds.

const bundled = globalThis.agentgymAnswers;
const kept = new Map();

export const bundledRun = bundled ? bundled.run : null;

export class Refused extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

// The answer to a question such as `runs/r/series`. The browser revalidates it by its tag.
export async function ask(question) {
  if (bundled) {
    const whole = "/api/v1/" + question;
    const plain = Object.keys(bundled.answers).find((known) => known.split("?")[0] === whole.split("?")[0]);
    const found = bundled.answers[whole] ?? bundled.answers[plain];
    if (!found) throw new Refused("not_found", "this copy does not hold that page; the viewer itself does");
    return found;
  }
  let response;
  try {
    response = await fetch("api/v1/" + question, { credentials: "same-origin" });
  } catch {
    throw new Refused("unavailable", "the viewer does not answer; is `agentgym-submit view` still running?");
  }
  const text = await response.text();
  if (response.status === 401) throw new Refused("token", text.trim());
  const answer = JSON.parse(text);
  if (answer.error) throw new Refused(answer.error.kind, answer.error.message);
  return answer;
}

// As ask, for what never changes once it is there.
export function askOnce(question) {
  if (!kept.has(question)) {
    const answer = ask(question);
    answer.catch(() => kept.delete(question));
    kept.set(question, answer);
    if (kept.size > 60) kept.delete(kept.keys().next().value);
  }
  return kept.get(question);
}

export function runPath(run, ...rest) {
  return ["runs", run, ...rest].map(encodeURIComponent).join("/");
}

// Calls back whenever something new is committed in a run (or in any); returns how to stop.
export function listen(run, onnews, onstate) {
  if (bundled) return () => {};
  const source = new EventSource("api/v1/events" + (run ? "?run=" + encodeURIComponent(run) : ""));
  let first = true;
  source.onmessage = (event) => {
    onstate("live");
    if (!first) onnews(event.data);
    first = false;
  };
  source.onerror = () => onstate(source.readyState === EventSource.CLOSED ? "off" : "lost");
  return () => source.close();
}
