// Keeps the page fresh: whatever is marked data-live is fetched again when an event says that something changed.
"use strict";

const EVENTS = ["request.accepted", "request.queued", "request.completed", "request.blocked", "request.cancelled",
  "request.approved", "request.rejected", "request.retried", "version.published", "version.retired", "version.purged"];
const SAID = { "request.accepted": "accepted", "request.completed": "completed", "request.blocked": "blocked",
  "request.cancelled": "cancelled", "version.published": "published" };
const BUSY_SECONDS = 1.5;
const QUIET_SECONDS = 30;
const main = document.querySelector("main");
const pulse = document.getElementById("pulse");
let skew = 0;
let refreshing = false;
let again = false;
let timer = 0;

function span(seconds) {
  let left = Math.max(0, Math.floor(seconds));
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    parts.push([Math.floor(left / size), unit]);
    left %= size;
  }
  while (parts.length > 1 && parts[0][0] === 0) parts.shift();
  return parts.slice(0, 2).filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ") || "0 s";
}

function tick() {
  const at = Date.now() + skew;
  for (const each of document.querySelectorAll("[data-since]")) {
    each.textContent = `${span((at - Number(each.dataset.since)) / 1000)} ago`;
  }
  for (const each of document.querySelectorAll("[data-due]")) {
    const left = (Number(each.dataset.due) - at) / 1000;
    each.textContent = left < 0 ? `overdue by ${span(-left)}` : `in ${span(left)}`;
  }
}

function replace(fresh) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const news = fresh.getElementById(part.id);
    if (!news || part.innerHTML === news.innerHTML) continue;
    const open = [...part.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const place = focused && { href: focused.getAttribute("href"), id: focused.id, text: focused.textContent };
    part.replaceChildren(...news.childNodes);
    part.dataset.busy = news.dataset.busy || "no";
    for (const each of part.querySelectorAll("summary")) {
      each.parentElement.open = open.includes(each.textContent);
    }
    if (place) find(part, place)?.focus({ preventScroll: true });
  }
}

function find(part, place) {
  if (place.id) return document.getElementById(place.id);
  return [...part.querySelectorAll("a, button, summary, [tabindex]")].find(
    (each) => each.getAttribute("href") === place.href && (place.href !== null || each.textContent === place.text));
}

async function refresh() {
  if (refreshing) { again = true; return; }
  refreshing = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Refresh": "1" }, credentials: "same-origin" });
    if (answer.status === 401) { location.reload(); return; }
    if (answer.ok) {
      replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
      skew = new Date(answer.headers.get("Date") || Date.now()) - Date.now();
      if (Math.abs(skew) < 2000) skew = 0;
      tick();
    }
  } catch { say("no connection", false); } finally {
    refreshing = false;
    plan(again ? 0.2 : main.querySelector('[data-busy="yes"]') ? BUSY_SECONDS : QUIET_SECONDS);
    again = false;
  }
}

function plan(seconds) {
  clearTimeout(timer);
  timer = setTimeout(refresh, seconds * 1000);
}

function say(text, live) {
  if (pulse.textContent !== text) pulse.textContent = text;
  pulse.classList.toggle("on", live);
}

function follow() {
  const source = new EventSource("/v1/events");
  source.addEventListener("open", () => { say("live", true); plan(0.1); });
  source.addEventListener("error", () => say("reconnecting", false));
  for (const kind of EVENTS) {
    source.addEventListener(kind, (event) => {
      const news = JSON.parse(event.data);
      if (SAID[kind]) {
        const what = news.request ? `request ${news.request.slice(0, 8)}` : `version ${news.number} of ${news.model}`;
        say(`${what} ${SAID[kind]}`, true);
      }
      plan(0.1);
    });
  }
}

// A log-in link carries its token in the fragment, which no server and no log sees.
const link = /^#login=([\w.]+)$/.exec(location.hash);
if (link) {
  history.replaceState(null, "", location.pathname);
  const form = document.getElementById("link");
  if (form) { form.elements.link.value = link[1]; form.submit(); }
}

// Keys: search, rows, help. Without scripts the page has all of it as links and buttons.
function rows() {
  return [...main.querySelectorAll("tbody tr th a, .triage li > a:first-of-type")].filter((each) => each.offsetParent);
}

function move(by) {
  const all = rows();
  const at = all.findIndex((each) => each === document.activeElement);
  all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
}

document.documentElement.classList.add("scripted");
for (const each of document.querySelectorAll(".print")) each.addEventListener("click", () => print());
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch { button.textContent = "Not allowed"; }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing) return;
  if (event.key === "Escape" && main.querySelector(".trail")) history.back();
  else if (event.key === "/") document.getElementById("find")?.focus();
  else if (event.key === "?") document.getElementById("keys")?.showModal();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else return;
  event.preventDefault();
});

if (main.dataset.follows) {
  setInterval(tick, 1000);
  if (main.dataset.follows === "yes") follow();
  plan(main.querySelector('[data-busy="yes"]') ? BUSY_SECONDS : QUIET_SECONDS);
}
