// What HTML cannot do: keys, pausing the live queue, and keeping a person's words when a session has ended.
// Every page works without this file.
"use strict";

const PAUSE_AFTER_KEY_MS = 4000; // a person who types or moves through rows is reading: nothing may move under them

const live = { paused: false, busyUntil: 0, etag: null };

const queue = () => document.getElementById("queue");
const rows = () => [...document.querySelectorAll("[data-row]")];
const inField = (element) => element?.closest?.("input:not([type=radio], [type=checkbox]), textarea, select, [contenteditable]");

// --- The live queue ----------------------------------------------------------------------------------------------

function isReading() {
  const here = queue();
  return (
    Date.now() < live.busyUntil ||
    here?.querySelector("tbody:hover") ||
    here?.querySelector("tbody")?.contains(document.activeElement) ||
    document.querySelector("dialog[open]") ||
    inField(document.activeElement)
  );
}

document.addEventListener("htmx:configRequest", (event) => {
  if (event.target !== queue() || event.detail.verb !== "get") return;
  if (document.hidden || live.paused || event.target.dataset.paused !== undefined) {
    event.preventDefault();
    return;
  }
  const etag = live.etag ?? event.target.dataset.etag;
  if (etag) event.detail.headers["If-None-Match"] = etag;
});

document.addEventListener("htmx:beforeSwap", (event) => {
  const { xhr, target } = event.detail;
  // The session has ended: the answer is the sign-in page. What was written stays where it is.
  if (new URL(xhr.responseURL || location.href).pathname.startsWith("/accounts/")) {
    event.detail.shouldSwap = false;
    say("You have been signed out. Nothing was recorded, and what you wrote is still here: copy it, sign in again in another tab, then reload this page.");
    return;
  }
  // A whole page (another session's refusal, a name that is gone) never goes into a part of this one.
  if (/^\s*<!doctype/i.test(xhr.responseText)) {
    event.detail.shouldSwap = false;
    if (xhr.status === 403) say("Your session has changed since this page was made, so nothing was recorded. Copy what you wrote, then reload the page.");
    else unanswered(event);
    return;
  }
  if (target !== queue() || xhr.status !== 200) return;
  const arriving = new DOMParser().parseFromString(`<table>${xhr.responseText}</table>`, "text/html");
  const known = new Set(rows().map((row) => row.id));
  const fresh = [...arriving.querySelectorAll("[data-row]")].filter((row) => !known.has(row.id)).length;
  if (isReading() && (fresh || arriving.querySelectorAll("[data-row]").length !== known.size)) {
    event.detail.shouldSwap = false;
    announce(fresh);
    return;
  }
  live.etag = xhr.getResponseHeader("ETag");
});

for (const name of ["htmx:sendError", "htmx:timeout", "htmx:responseError"]) {
  document.addEventListener(name, unanswered);
}

// Of a decision without an answer nobody knows whether it was recorded: it is read again before it is sent again.
function unanswered(event) {
  const { xhr, requestConfig } = event.detail;
  // Our own page says that nothing was changed; any other 404 may come from something in between.
  if (xhr?.status === 404 && requestConfig?.verb !== "get" && xhr.responseText.includes("Nothing here under that name")) {
    say("Nothing was recorded: the workspace you look at now has no such operation. What you wrote is still here.");
    return;
  }
  if (event.detail.requestConfig?.verb !== "get") {
    say("The server did not answer, so it is not known whether this was recorded. What you wrote is still here: ", "look at the operation as it is now");
    return;
  }
  const line = document.getElementById("freshness");
  if (line) {
    line.textContent = "not updated: the server did not answer";
    line.classList.add("soon");
  }
  document.querySelector(".dot")?.setAttribute("data-off", "");
}

function announce(fresh) {
  const button = document.getElementById("fresh");
  if (!button) return;
  button.hidden = false;
  button.textContent = fresh ? `${fresh} new: show` : "The list has changed: show";
}

function say(text, look) {
  const line = document.getElementById("said");
  if (!line) return;
  line.textContent = text;
  if (look) {
    const link = document.createElement("a");
    link.href = location.pathname.replace(/\/decision$/, "");
    link.target = "_blank";
    link.textContent = `${look} (in a new tab)`;
    line.append(link);
  }
  line.hidden = false;
  line.scrollIntoView({ block: "nearest" });
}

function pause() {
  live.paused = !live.paused;
  const button = document.getElementById("pause");
  if (!button) return;
  button.setAttribute("aria-pressed", String(live.paused));
  button.firstChild.textContent = live.paused ? "Resume live " : "Pause live ";
  document.querySelector(".dot")?.toggleAttribute("data-off", live.paused);
}

document.addEventListener("click", (event) => {
  if (event.target.closest("#pause")) pause();
  if (event.target.closest("#fresh")) location.reload();
  const copy = event.target.closest("[data-copy], [data-copy-from]");
  if (copy) {
    const text = copy.dataset.copy ?? document.getElementById(copy.dataset.copyFrom).textContent;
    navigator.clipboard?.writeText(text).then(() => {
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
  }
});

// Focus goes to what came back, so that a reader hears it and a keyboard stays in place.
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id !== "decision" && event.detail.target.id !== "case") return;
  const said = document.getElementById("said"); // of an earlier try: this one was answered
  if (said) said.hidden = true;
  document.querySelector("#decision [data-focus], #case [data-focus]")?.focus();
  if (live.paused) { live.paused = false; pause(); }
});

// --- Keys --------------------------------------------------------------------------------------------------------

let prefix = "";

function keysAreOn() {
  try { return localStorage.getItem("keys") !== "off"; } catch { return true; }
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  next.querySelector("a")?.focus();
  next.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  d: () => document.querySelector("#decision input[type=radio]:enabled, #decision textarea, #decision .btn")?.focus(),
  "/": () => { const box = document.getElementById("search"); if (box) box.focus(); else location.assign("/operations#search"); },
  ".": pause,
  "?": () => document.getElementById("keys")?.showModal(),
  gu: () => location.assign("/unknowns"),
  go: () => location.assign("/operations"),
};

document.addEventListener("keydown", (event) => {
  live.busyUntil = Date.now() + PAUSE_AFTER_KEY_MS;
  if (event.ctrlKey || event.metaKey || event.altKey || inField(event.target) || !keysAreOn()) return;
  if (document.querySelector("dialog[open]")) return;
  const action = KEYS[prefix + event.key];
  prefix = event.key === "g" && !prefix ? "g" : "";
  if (action) {
    event.preventDefault();
    action();
  }
});

const keysBox = document.getElementById("keys-on");
if (keysBox) {
  keysBox.checked = keysAreOn();
  keysBox.addEventListener("change", () => {
    try { localStorage.setItem("keys", keysBox.checked ? "on" : "off"); } catch { /* a browser without storage */ }
  });
}
document.querySelectorAll("[data-script-only]").forEach((element) => { element.hidden = false; });
