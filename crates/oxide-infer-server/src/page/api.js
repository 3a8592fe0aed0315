// Calls to the server that the page came from, with the API key if there is one.

const KEY = "oxide-infer.api-key";

/** What the server says is wrong, or that it cannot be reached. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key that was entered in this tab, or null. */
export function apiKey() {
  return sessionStorage.getItem(KEY);
}

export function setApiKey(key) {
  if (key === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, key);
}

/** The numbers of the live panel. */
export async function fetchStats() {
  const response = await call("page/stats", {});
  return response.json();
}

/**
 * Sends a chat request and yields the parsed chunks of its stream. The signal ends both; the server then cancels the
 * request.
 */
export async function* streamChat(request, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const headers = { "content-type": "application/json" };
  const response = await call("v1/chat/completions", { method: "POST", headers, body, signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(response.status, chunk.error.message);
    yield chunk;
  }
  throw new ApiError(0, "the connection ended before the answer did");
}

/** Paths are relative, so that the page also works behind a proxy that serves it under a prefix. */
async function call(path, options) {
  const headers = new Headers(options.headers);
  const key = apiKey();
  // Header values are bytes; the key's are those of its UTF-8 form.
  if (key !== null) headers.set("authorization", `Bearer ${bytesAsText(key)}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error?.message ?? `the server answered with status ${response.status}`);
}

function bytesAsText(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

/** The data of server-sent events: an event's lines end with a blank one; comments and other fields are left out. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length > 0) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
