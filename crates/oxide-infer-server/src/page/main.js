// Puts the page together: keys, buttons, the key dialog, and the clock of the live panel.

import { ApiError, apiKey, fetchStats, setApiKey } from "./api.js";
import { ask, clear, restore, stop } from "./chat.js";
import { showStats } from "./panel.js";
import { invalidField, showDefaults, startSettings } from "./settings.js";

const INTERVAL = 1000;
const UNAUTHORIZED = 401;

const byId = (id) => document.getElementById(id);
const message = byId("message");
const state = byId("live-state");
let model;
let busy = false;

startSettings();
restore();
poll();

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", stop);
byId("new-chat").addEventListener("click", newChat);
byId("toggle-side").addEventListener("click", () => showSide(!document.body.classList.contains("side-shown")));
byId("key-form").addEventListener("submit", () => {
  setApiKey(byId("key").value.trim());
  byId("key").value = "";
});
byId("key-dialog").addEventListener("close", () => message.focus());
message.addEventListener("keydown", (event) => {
  // An input method's Enter chooses a word.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("key-dialog").open) stop();
  if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    newChat();
  }
});

async function send() {
  const text = message.value.trim();
  if (text === "" || busy) return;
  const invalid = invalidField();
  if (invalid) {
    showSide(true);
    invalid.reportValidity();
    return;
  }
  showError("");
  setBusy(true);
  message.value = "";
  try {
    await ask(model, text);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.takenBack && message.value === "") message.value = text;
    if (error.status === UNAUTHORIZED) askForKey(`The server refused: ${error.message}.`);
    else showError(`${error.takenBack ? "No answer" : "Broken off"}: ${error.message}.`);
  } finally {
    setBusy(false);
    if (!byId("key-dialog").open) message.focus();
  }
}

function newChat() {
  clear();
  showError("");
  showSide(false);
  message.focus();
}

function setBusy(now) {
  busy = now;
  byId("send").hidden = now;
  byId("stop").hidden = !now;
}

function showError(text) {
  byId("error").textContent = text;
  byId("error").hidden = text === "";
}

/** Only a narrow page hides settings and numbers. */
function showSide(shown) {
  document.body.classList.toggle("side-shown", shown);
  byId("toggle-side").setAttribute("aria-expanded", String(shown));
  byId("toggle-side").textContent = shown ? "Conversation" : "Settings";
}

function askForKey(problem) {
  byId("key-problem").textContent = problem;
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

/** Asks for the numbers once a second, while someone can see them. */
async function poll() {
  try {
    if (!document.hidden) showServer(await fetchStats());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    showState(`No numbers: ${error.message}.`, true);
  } finally {
    setTimeout(poll, INTERVAL);
  }
}

/** What has not changed is not set anew, or a screen reader would say it every second. */
function showState(text, isWrong) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("wrong", isWrong);
}

function showServer(stats) {
  if (model === undefined && stats.api_key_needed && apiKey() === null) askForKey("");
  model = stats.model;
  byId("model").textContent = stats.model;
  byId("device").textContent = `Oxide Infer ${stats.version} on ${stats.device}`;
  document.title = `${stats.model} – Oxide Infer`;
  showState("Every second", false);
  showDefaults(stats.sampling_defaults);
  showStats(stats);
}
