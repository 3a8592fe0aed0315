// The conversation: what is shown, what is sent, and what is kept over a reload of the page.

import { streamChat } from "./api.js";
import { show } from "./markdown.js";
import { sampling, systemMessages } from "./settings.js";

const STORED = "oxide-infer.conversation";
const NAMES = { user: "You", assistant: "Model" };

const log = document.getElementById("log");
const empty = document.getElementById("empty");
let messages = [];
let running = null;

/** Shows the conversation that this tab had before it was loaded anew. */
export function restore() {
  messages = JSON.parse(sessionStorage.getItem(STORED) ?? "[]");
  for (const message of messages) showMessage(message);
  // What has arrived of an answer is not lost with the page.
  addEventListener("pagehide", store);
}

/** Begins another conversation. */
export function clear() {
  stop();
  messages = [];
  store();
  log.replaceChildren(empty);
}

/** Ends the answer that is arriving; what has arrived stays. */
export function stop() {
  running?.abort();
}

/**
 * Asks the model and shows its answer while it arrives. Rejects with what went wrong; a question that got no answer at
 * all is then taken back, and the error says so in `takenBack`.
 */
export async function ask(model, text) {
  const question = { role: "user", content: text };
  const answer = { role: "assistant", content: "", reasoning: "", note: "" };
  const request = { model, messages: [...systemMessages(), ...messages.map(toSend), question], ...sampling() };
  messages.push(question, answer);
  const asked = showMessage(question);
  const view = showMessage(answer);
  const controller = new AbortController();
  running = controller;
  setStreaming(view, true);
  try {
    await receive(request, answer, view, controller.signal);
  } catch (error) {
    if (error.name !== "AbortError") {
      answer.note = `Broken off: ${error.message}`;
      error.takenBack = answer.content === "" && answer.reasoning === "";
      if (error.takenBack) takeBack(question, answer, [asked, view]);
      throw error;
    }
    answer.note = "Stopped";
  } finally {
    setStreaming(view, false);
    view.update();
    // Another conversation may have begun since.
    if (running === controller) running = null;
    if (messages.includes(answer)) store();
  }
}

/** Half an answer is not to be read out. */
function setStreaming(view, now) {
  view.article.classList.toggle("streaming", now);
  log.setAttribute("aria-busy", String(now));
}

async function receive(request, answer, view, signal) {
  const started = performance.now();
  let first = null;
  for await (const chunk of streamChat(request, signal)) {
    const [choice] = chunk.choices;
    const added = (choice?.delta.content ?? "") + (choice?.delta.reasoning_content ?? "");
    if (added !== "") first ??= performance.now();
    answer.content += choice?.delta.content ?? "";
    answer.reasoning += choice?.delta.reasoning_content ?? "";
    if (choice?.finish_reason === "length") answer.cut = true;
    if (chunk.usage) answer.note = summary(chunk.usage, started, first ?? performance.now(), answer.cut);
    view.schedule();
  }
}

function summary(usage, started, first, cut) {
  const tokens = usage.completion_tokens;
  const parts = [`${tokens} tokens`, `first after ${(first - started).toFixed(0)} ms`];
  const passed = (performance.now() - first) / 1000;
  if (tokens > 1 && passed > 0) parts.push(`${((tokens - 1) / passed).toFixed(1)} tok/s`);
  if (cut) parts.push("cut at the limit");
  return parts.join(" · ");
}

function takeBack(question, answer, views) {
  messages = messages.filter((message) => message !== question && message !== answer);
  for (const { article } of views) article.remove();
  if (messages.length === 0) log.append(empty);
}

function toSend({ role, content }) {
  return { role, content };
}

/** Adds a message to the page. `update` shows what it has become, `schedule` does so with the next frame. */
function showMessage(message) {
  empty.remove();
  const article = make("article", `message ${message.role}`);
  const name = make("h2", "", NAMES[message.role]);
  const reasoning = make("details", "reasoning");
  const thought = make("div", "");
  const text = make("div", message.role === "assistant" ? "text markdown" : "text");
  const note = make("p", "note");
  reasoning.append(make("summary", "", "Reasoning"), thought);
  article.append(name, reasoning, text, note);
  let scheduled = false;
  const update = () => {
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    reasoning.hidden = !message.reasoning;
    thought.textContent = message.reasoning ?? "";
    if (message.role === "assistant") show(text, message.content);
    else text.textContent = message.content;
    note.textContent = message.note ?? "";
    note.hidden = !message.note;
    if (follows) log.scrollTop = log.scrollHeight;
  };
  const schedule = () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      update();
    });
  };
  log.append(article);
  update();
  log.scrollTop = log.scrollHeight;
  return { article, update, schedule };
}

function make(name, className, text = "") {
  const made = document.createElement(name);
  if (className !== "") made.className = className;
  made.textContent = text;
  return made;
}

function store() {
  try {
    sessionStorage.setItem(STORED, JSON.stringify(messages));
  } catch {
    // The conversation is larger than what a browser keeps: it goes on, but ends with the page.
    sessionStorage.removeItem(STORED);
  }
}
