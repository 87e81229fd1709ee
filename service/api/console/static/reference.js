// Sends the calls of the API's reference from the page, under the key that somebody types there. It is stored nowhere.
"use strict";

const SHOWN = 20000;
const key = document.getElementById("trial-key");

function random() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function readable(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

async function shown(answer) {
  const kind = answer.headers.get("Content-Type") || "";
  const head = `${answer.status} ${answer.statusText}`.trim();
  if (kind.startsWith("application/octet-stream") || kind.startsWith("text/event-stream")) {
    answer.body.cancel();
    return `${head}\n${kind}`;
  }
  return `${head}\n${readable(await answer.text()).slice(0, SHOWN)}`.trim();
}

async function send(form) {
  const { address, body } = form.elements;
  const headers = key.value ? { Authorization: `Bearer ${key.value}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  if ("keyed" in form.dataset) headers["Idempotency-Key"] = random();
  const call = { method: form.dataset.method, headers, body: body && body.value, credentials: "omit" };
  const result = form.querySelector("output");
  try {
    result.textContent = await shown(await fetch(new URL(address.value, location.origin), call));
  } catch (error) {
    result.textContent = `No answer: ${error.message}`;
  }
}

for (const form of document.querySelectorAll("form[data-method]")) {
  form.hidden = false;
  form.addEventListener("submit", (event) => { event.preventDefault(); send(form); });
}
const trial = document.getElementById("trial");
trial.hidden = false;
trial.addEventListener("submit", (event) => event.preventDefault());
