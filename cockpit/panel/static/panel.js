// The page: its token, its connection to the car, and which of the two views is shown.
import * as drive from "./drive.js";
import * as engineer from "./engineer.js";
import { translate, word } from "./words.js";

const TYPES = "state,level,transcript,calls,clause,turn,error";
const AGAIN_MS = 1000;
const link = document.getElementById("link");

// The token comes in the address' last part, which no browser sends to a server; it is kept for this tab only.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}
const headers = () => ({ Authorization: `Bearer ${sessionStorage.getItem("token") ?? ""}` });

async function answer(response) {
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(said.error?.message ?? `status ${response.status}`);
  return said;
}

export const get = async (path) => answer(await fetch(path, { headers: headers() }));

export async function control(body) {
  const sent = { ...headers(), "Content-Type": "application/json" };
  return answer(await fetch("/v1/control", { method: "POST", headers: sent, body: JSON.stringify(body), keepalive: true }));
}

export async function transcribe(file) {
  const form = new FormData();
  form.append("file", file);
  return answer(await fetch("/v1/audio/transcriptions", { method: "POST", headers: headers(), body: form }));
}

// --- events ------------------------------------------------------------------------------------------------------------
async function follow() {
  const response = await fetch(`/v1/events?types=${TYPES}`, { headers: { ...headers(), Accept: "application/x-ndjson" } });
  if (!response.ok) await answer(response);
  link.textContent = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) tell(JSON.parse(line));
  }
}

function tell(event) {
  drive.onEvent(event);
  engineer.onEvent(event);
  if (event.type === "dropped") link.textContent = `${event.count} events lost: this page is too slow`;
}

async function stay() {
  for (;;) {
    let why = word("away");
    try {
      await follow();
    } catch (error) {
      why = error.message;
    }
    drive.showGone();
    link.textContent = why;
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

// --- the two views -----------------------------------------------------------------------------------------------------
const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  sessionStorage.setItem("view", tab.id);
  engineer.visible(tab.id === "tab-engineer");
}

for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    next.focus();
    show(next);
  });
}

translate();
drive.showGone();
drive.start();
engineer.start();
show(document.getElementById(sessionStorage.getItem("view")) ?? tabs[0]);
stay();
