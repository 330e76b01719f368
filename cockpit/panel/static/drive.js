// What a driver sees: the state, what was heard, done and said; and what a driver does by hand.
import { control } from "./panel.js";
import { languageOf, word } from "./words.js";

const $ = (id) => document.getElementById(id);
let turn = -1; // the one that is shown
let clauses = [];
let pressed = false;
let quiet = 0;

export function onEvent(event) {
  if (event.type === "state") showState(event);
  else if (event.type === "level") showLevel(event);
  else if (event.type === "transcript") showHeard(event);
  else if (event.type === "calls" && event.turn_id >= turn) showCalls(event);
  else if (event.type === "clause" && event.turn_id >= turn) showClause(event);
  else if (event.type === "turn" && event.turn_id >= turn) showTurn(event);
}

export function showGone() {
  $("state").dataset.state = "gone";
  $("state").textContent = word("gone");
  $("modes").textContent = "";
  pressed = false;
  for (const id of ["talk", "cancel", "mute", "language", "volume"]) $(id).disabled = true;
}

function showState(state) {
  $("state").dataset.state = state.state;
  $("state").textContent = word(state.state);
  const lacking = Object.entries(state.modes).map(([mode, why]) => `${mode.replaceAll("_", " ")}: ${why}`);
  $("modes").textContent = [state.muted ? word("muted") : "", ...lacking].filter(Boolean).join(" · ");
  $("mute").setAttribute("aria-pressed", Boolean(state.muted));
  $("talk").setAttribute("aria-pressed", Boolean(state.talking || pressed));
  for (const id of ["cancel", "language"]) $(id).disabled = false;
  $("mute").disabled = state.muted === null;
  $("talk").disabled = state.muted !== false;
  $("volume").disabled = state.volume === null;
  if (document.activeElement !== $("language")) $("language").value = state.language;
  if (state.volume !== null && document.activeElement !== $("volume")) $("volume").value = Math.round(state.volume * 100);
}

function showLevel({ rms_db }) {
  clearTimeout(quiet);
  if (rms_db > -60) quiet = setTimeout(() => showLevel({ rms_db: -60 }), 500); // no frames come any more
  const shown = Math.max(-60, Math.min(0, rms_db));
  $("level").setAttribute("aria-valuenow", Math.round(shown));
  $("level").firstElementChild.style.width = `${((shown + 60) / 60) * 100}%`;
}

function begin(id) {
  if (id <= turn) return;
  turn = id;
  clauses = [];
  $("calls").replaceChildren();
  put($("reply"), "");
}

function put(element, text) {
  element.textContent = text;
  element.lang = languageOf(text);
}

function showHeard({ turn_id, text, stage, unclear }) {
  if (turn_id < turn) return;
  begin(turn_id);
  put($("heard"), text ?? (unclear ? word("unclear") : word("hidden")));
  $("heard").classList.toggle("open", stage !== "final");
}

function showCalls({ turn_id, calls }) {
  begin(turn_id);
  $("calls").replaceChildren(...calls.map((call) => {
    const item = document.createElement("li");
    const given = Object.entries(call.arguments ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
    const result = call.result.reason ? `${call.result.status} (${call.result.reason})` : call.result.status;
    item.className = call.result.status;
    item.textContent = [(call.name ?? "").replaceAll("_", " "), given, result].filter(Boolean).join(" · ");
    return item;
  }));
}

function showClause({ turn_id, index, text }) {
  begin(turn_id);
  clauses[index] = text ?? word("hidden");
  put($("reply"), clauses.filter(Boolean).join(languageOf(clauses[0] ?? "") === "zh" ? "" : " "));
}

function showTurn(event) {
  begin(event.turn_id);
  showCalls({ turn_id: event.turn_id, calls: event.tool_calls });
  if (event.transcript) showHeard({ turn_id: event.turn_id, text: event.transcript, stage: "final" });
}

// --- by hand -----------------------------------------------------------------------------------------------------------
async function tell(body) {
  $("refused").textContent = "";
  try {
    showState(await control(body));
  } catch (error) {
    $("refused").textContent = error.message;
  }
}

function press(on) {
  if (pressed === on || $("talk").disabled) return;
  pressed = on;
  $("talk").setAttribute("aria-pressed", on);
  tell({ op: "talk", on });
}

export function start() {
  const talk = $("talk");
  talk.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    talk.setPointerCapture(event.pointerId);
    press(true);
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture", "blur"]) talk.addEventListener(end, () => press(false));
  talk.addEventListener("keydown", (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    if (!event.repeat) press(true);
  });
  talk.addEventListener("keyup", (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault(); // or a click follows
    press(false);
  });
  // a screen reader's click has neither pointer nor key: it presses, and the next one lets go
  talk.addEventListener("click", (event) => {
    if (event.detail === 0 && event.pointerType !== "mouse" && event.pointerType !== "touch") press(!pressed);
  });
  talk.addEventListener("contextmenu", (event) => event.preventDefault());
  addEventListener("pagehide", () => press(false));
  $("cancel").addEventListener("click", () => tell({ op: "cancel" }));
  $("mute").addEventListener("click", () => tell({ op: "mute", on: $("mute").getAttribute("aria-pressed") !== "true" }));
  $("language").addEventListener("change", () => tell({ op: "language", language: $("language").value }));
  $("volume").addEventListener("change", () => tell({ op: "volume", volume: Number($("volume").value) / 100 }));
}
