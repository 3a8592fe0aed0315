// The live panel: the server's numbers, once a second, as small charts of the last minutes.

const KEPT = 120;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 100;
const HEIGHT = 30;

// What is drawn: from two answers of the server, the newer first, to a number, or null when there is none.
const CHARTS = [
  { id: "speed", title: "Generated", value: (now, then) => rate(now, then, "generation_tokens"), text: (v) => `${short(v)} tok/s` },
  { id: "prefill", title: "Prompts", value: (now, then) => rate(now, then, "prompt_tokens"), text: (v) => `${short(v)} tok/s` },
  { id: "ttft", title: "First token after", value: firstToken, text: seconds },
  { id: "running", title: "Running", value: (now) => now.requests_running, text: String },
  { id: "waiting", title: "Waiting", value: (now) => now.requests_waiting, text: String },
  { id: "kv", title: "KV memory used", value: (now) => now.kv_usage, text: percent, most: 1 },
  { id: "prefix", title: "Prefix hits", value: prefixHits, text: percent, most: 1 },
];

const charts = CHARTS.map((chart) => ({ ...chart, ...draw(chart), values: [] }));
const facts = document.getElementById("facts");
let then = null;
let shownFacts = "";

/** Takes the server's next answer in. */
export function showStats(now) {
  // A server that was started anew counts from zero.
  if (then !== null && then.uptime_seconds > now.uptime_seconds) then = null;
  for (const chart of charts) {
    // What has no new value, such as the time to a first token while nobody asks, stays what it was.
    const value = chart.value(now, then) ?? chart.values.at(-1) ?? null;
    chart.values.push(value);
    if (chart.values.length > KEPT) chart.values.shift();
    chart.output.textContent = value === null ? "–" : chart.text(value);
    chart.line.setAttribute("points", points(chart.values, chart.most));
  }
  showFacts(now);
  then = now;
}

function showFacts(now) {
  const rows = {
    Device: now.device,
    "Kernel artifacts in the plan": short(now.plan_artifacts),
    "Operators executed": short(now.operator_executions),
    "Tokens generated": short(now.generation_tokens),
    "Longest sequence": `${short(now.max_model_len)} tokens`,
    Version: now.version,
  };
  // A CPU runs without kernel artifacts.
  if (now.plan_artifacts === 0) delete rows["Operators executed"];
  // What is selected in them stays selected while they are the same.
  const shown = JSON.stringify(rows);
  if (shown === shownFacts) return;
  shownFacts = shown;
  facts.replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [cell("dt", name), cell("dd", value)]));
}

function cell(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function draw({ id, title }) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const output = document.createElement("output");
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const line = svg("polyline", { points: "" });
  figure.className = "chart";
  figure.id = `chart-${id}`;
  output.textContent = "–";
  // A value a second would be too much to have read out.
  output.setAttribute("aria-live", "off");
  caption.append(title, output);
  drawing.append(svg("line", { x1: 0, y1: HEIGHT, x2: WIDTH, y2: HEIGHT }), line);
  figure.append(caption, drawing);
  document.getElementById("charts").append(figure);
  return { output, line };
}

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** The newest value is at the right edge. */
function points(values, most = Math.max(...values, 0)) {
  const left = WIDTH - ((values.length - 1) * WIDTH) / (KEPT - 1);
  const at = (value, index) => {
    const x = left + (index * WIDTH) / (KEPT - 1);
    const y = HEIGHT - (most > 0 ? (value / most) * HEIGHT : 0);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  };
  return values.map(at).join(" ");
}

function rate(now, then, counter) {
  const passed = then === null ? 0 : now.uptime_seconds - then.uptime_seconds;
  return passed > 0 ? (now[counter] - then[counter]) / passed : null;
}

/** The mean of the answers that began between two answers of the server, in seconds. */
function firstToken(now, then) {
  const count = now.first_tokens - (then?.first_tokens ?? 0);
  return count > 0 ? (now.first_token_seconds - (then?.first_token_seconds ?? 0)) / count : null;
}

/** The part of all prompts' tokens that the prefix cache had. */
function prefixHits(now) {
  return now.prefix_cache_queries > 0 ? now.prefix_cache_hits / now.prefix_cache_queries : null;
}

function percent(value) {
  return `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

function seconds(value) {
  return value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
}

function short(value) {
  return value >= 10_000 ? `${(value / 1000).toFixed(0)}k` : String(Math.round(value * 10) / 10);
}
