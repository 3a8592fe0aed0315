// The system prompt and the sampling settings. They stay in this browser; an empty field leaves the server's default.

const STORED = "oxide-infer.settings";

const form = document.getElementById("settings");
const system = document.getElementById("system");
const fields = [...form.querySelectorAll("input[name]")];

/** Fills the form with what was set before, and keeps what is set from now on. */
export function startSettings() {
  const stored = JSON.parse(localStorage.getItem(STORED) ?? "{}");
  system.value = stored.system ?? "";
  for (const field of fields) field.value = stored[field.name] ?? "";
  form.addEventListener("input", store);
  // The event comes before the fields are empty.
  form.addEventListener("reset", () => setTimeout(store));
  form.addEventListener("submit", (event) => event.preventDefault());
}

/** Shows the server's defaults where nothing is set. */
export function showDefaults(defaults) {
  const usual = { temperature: 1, top_p: 1, top_k: "off", min_p: 0, repetition_penalty: 1 };
  for (const field of fields) {
    if (!(field.name in usual)) continue;
    const own = defaults[field.name];
    // The server has them with the precision of an f32.
    field.placeholder = own === null ? usual[field.name] : Number(own.toPrecision(6));
  }
}

/** The first field that cannot be sent, or undefined. */
export function invalidField() {
  return fields.find((field) => !field.checkValidity());
}

/** The messages that begin every conversation. */
export function systemMessages() {
  return system.value.trim() === "" ? [] : [{ role: "system", content: system.value }];
}

/** What is set, as fields of a request. */
export function sampling() {
  const set = fields.filter((field) => field.value !== "");
  return Object.fromEntries(set.map((field) => [field.name, field.valueAsNumber]));
}

function store() {
  const values = Object.fromEntries(fields.map((field) => [field.name, field.value]));
  localStorage.setItem(STORED, JSON.stringify({ ...values, system: system.value }));
}
