// What an engineer sees: turns as waterfalls, tasks and queues, memory, alerts, the profile; and something to try.
import { control, get, transcribe } from "./panel.js";
import { languageOf } from "./words.js";

const $ = (id) => document.getElementById(id);
const MOST_TURNS = 12;
const LOOK_MS = 1000;
const NAMES = { endpoint: "silence", llm: "deciding", tts: "voice", rest: "rest" };
const turns = new Map();
let timer = 0;

const number = (value, digits = 0) => (value === null || value === undefined ? "–" : value.toFixed(digits));

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function row(cells, classes = {}) {
  const made = document.createElement("tr");
  made.append(...cells.map((cell, index) => (cell instanceof Node ? cell : element("td", String(cell), classes[index] ?? ""))));
  return made;
}

// --- turns -------------------------------------------------------------------------------------------------------------
export function onEvent(event) {
  if (event.type === "error") {
    $("tried").textContent = `stage ${event.stage} failed on turn ${event.turn_id}: ${event.kind}`;
  }
  if (event.type !== "turn") return;
  turns.delete(event.turn_id);
  turns.set(event.turn_id, event);
  while (turns.size > MOST_TURNS) turns.delete(turns.keys().next().value);
  showTurns();
}

function parts(ms) {
  const first = ms.first_audio ?? 0;
  const known = [["endpoint", ms.endpoint ?? 0], ["llm", ms.llm ?? 0], ["tts", ms.tts_first ?? 0]];
  const sum = known.reduce((total, [, value]) => total + value, 0);
  return [...known, ["rest", Math.max(0, first - sum)]].filter(([, value]) => value > 0);
}

function showTurns() {
  const shown = [...turns.values()].reverse();
  const most = Math.max(1, ...shown.map(({ ms }) => parts(ms).reduce((total, [, value]) => total + value, 0)));
  $("turns").tBodies[0].replaceChildren(...shown.map((turn) => {
    const bar = element("td");
    const drawn = bar.appendChild(element("div", "", "bar"));
    const told = parts(turn.ms).map(([name, value]) => `${NAMES[name]} ${number(value)} ms`).join(", ")
      + (turn.ms.asr === null ? "" : `; recognised within the silence in ${number(turn.ms.asr)} ms`);
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", told || "nothing measured");
    drawn.title = told;
    for (const [name, value] of parts(turn.ms)) {
      drawn.appendChild(element("i", "", name)).style.width = `${(value / most) * 100}%`;
    }
    const end = turn.failed ? `failed in ${turn.failed}` : turn.interrupted ? "interrupted" : "";
    const text = turn.transcript || [turn.task, turn.decided_by && `decided by ${turn.decided_by}`].filter(Boolean).join(", ");
    const what = element("td", [text, end].filter(Boolean).join(" · "), end ? "bad" : "");
    what.title = what.textContent;
    what.lang = languageOf(text);
    return row([turn.turn_id, what, bar, `${number(turn.ms.first_audio)} ms`]);
  }));
}

// --- the process at one moment -------------------------------------------------------------------------------------------
function described(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) => {
    const told = element("dd");
    told.append(value);
    return [element("dt", name), told];
  }));
}

function share(value, limit = 1) {
  const made = document.createDocumentFragment();
  const meter = document.createElement("meter");
  Object.assign(meter, { min: 0, max: 1, high: limit, value });
  meter.setAttribute("aria-label", "share");
  made.append(meter, `${number(value * 100, 1)} %`);
  return made;
}

function alertsOf(status) {
  const found = Object.entries(status.modes).map(([mode, why]) => `${mode}: ${why}`);
  found.push(...status.findings.map((finding) => `${finding.code}: ${finding.message}`));
  for (const [stage, count] of Object.entries(status.stage_failures)) if (count) found.push(`stage ${stage} failed ${count} times`);
  for (const channel of status.channels) if (channel.dropped) found.push(`${channel.name}: ${channel.dropped} messages dropped`);
  const arbiter = status.arbiter;
  if (!arbiter) return found;
  for (const task of arbiter.tasks) {
    if (task.finished && task.p99_ms > task.sla_ms) found.push(`P99 of ${task.name} is ${number(task.p99_ms)} ms, promised are ${number(task.sla_ms)} ms`);
  }
  if (arbiter.memory.pressure > 0.95) found.push(`${number(arbiter.memory.pressure * 100)} % of the KV memory is held`);
  if (arbiter.memory.refusing) found.push("memory is past its limit: new sessions are refused");
  if (arbiter.degraded.active) found.push(arbiter.degraded.why);
  return found;
}

function showTasks(arbiter) {
  $("tasks").tBodies[0].replaceChildren(...arbiter.tasks.map((task) => {
    const late = task.finished && task.p99_ms > task.sla_ms;
    const state = element("td", task.state);
    state.title = task.why;
    return row([
      task.name, state, task.lane, `${task.queued}/${task.queue_limit}`, number(task.p50_ms), number(task.p99_ms), number(task.sla_ms),
      number(task.queue.p99_ms, 1), number(task.tpot.p99_ms, 1), task.tokens, task.missed_sla,
    ], { 5: late ? "bad" : "" });
  }));
  $("lanes").replaceChildren(...arbiter.lanes.filter((lane) => lane.active).map((lane) => element("li", `${lane.name}: ${lane.task}, ${lane.units} of ${lane.clusters.join(" + ")}`)));
  const policy = arbiter.policy;
  $("policy").textContent = `policy: ${policy.description} (arm ${policy.arm + 1} of ${policy.arms}${policy.frozen ? ", frozen" : ""}, epoch ${policy.epoch}); eviction: ${arbiter.eviction_policy}`;
}

function showMemory(status) {
  const { memory } = status.arbiter;
  described($("memory"), [
    ["KV held", share(memory.pressure, 0.95)],
    ["KV bytes", `${number(memory.held_mb)} of ${number(memory.arena_mb)} MiB, ${memory.sessions} sessions`],
    ["evictions", String(memory.evictions)],
    ["device", memory.used_percent === null ? "not known" : share(memory.used_percent / 100, memory.limit_percent / 100)],
    ...Object.entries(status.models ?? {}).map(([name, model]) => [name, `${model.running} run, ${model.waiting} wait, ${model.kv.cached_tokens} tokens cached`]),
  ]);
}

function showGpu(gpu) {
  if (!gpu) return described($("gpu"), [["", "none that NVML knows"]]);
  described($("gpu"), [
    ["load", `${gpu.utilisation_percent ?? "–"} %`],
    ["memory", `${number((gpu.memory_used_bytes ?? 0) / 2 ** 20)} of ${number((gpu.memory_total_bytes ?? 0) / 2 ** 20)} MiB`],
    ["clock", `${gpu.sm_clock_mhz ?? "–"} of ${gpu.sm_clock_max_mhz ?? "–"} MHz`],
    ["heat, power", `${gpu.temperature_c ?? "–"} °C, ${number(gpu.power_w)} W`],
    ["PCIe", `x${gpu.pcie_width ?? "–"} of x${gpu.pcie_width_max ?? "–"}, generation ${gpu.pcie_generation ?? "–"}, ${gpu.pcie_replays ?? "–"} replays`],
    ["slowed by", gpu.slowdowns.join(", ") || "nothing"],
  ]);
}

async function look() {
  const status = await get("/v1/status");
  const alerts = alertsOf(status);
  $("alerts").replaceChildren(...(alerts.length ? alerts.map((text) => element("li", text, "bad")) : [element("li", "none", "good")]));
  $("channels").tBodies[0].replaceChildren(...status.channels.map((channel) => row([channel.name, `${channel.waiting}/${channel.capacity}`, channel.high_water, channel.dropped])));
  showGpu(status.gpu);
  if (status.arbiter) {
    showTasks(status.arbiter);
    showMemory(status);
  }
  $("profile").textContent = `${status.profile.name} on ${status.profile.values.device}, Cockpit ${status.version}, sha256 ${status.profile.sha256}`;
  const values = JSON.stringify(status.profile.values, null, 2);
  if ($("values").textContent !== values) $("values").textContent = values;
}

export function visible(on) {
  clearTimeout(timer);
  if (!on) return;
  const again = async () => {
    try {
      await look();
    } catch (error) {
      $("alerts").replaceChildren(element("li", error.message, "bad"));
    }
    timer = setTimeout(again, LOOK_MS);
  };
  again();
}

// --- something to try ----------------------------------------------------------------------------------------------------
async function ask(text) {
  try {
    const { turn_id } = await control({ op: "ask", text });
    $("tried").textContent = `turn ${turn_id}`;
  } catch (error) {
    $("tried").textContent = error.message;
  }
}

async function recording(file) {
  if (!file) return;
  $("tried").textContent = `${file.name}: is recognised`;
  try {
    const { text } = await transcribe(file);
    $("text").value = text;
    $("text").focus();
    $("tried").textContent = `heard in ${file.name}: “${text}”. Ask says it to the car.`;
  } catch (error) {
    $("tried").textContent = error.message;
  }
}

export function start() {
  $("try").addEventListener("submit", (event) => {
    event.preventDefault();
    ask($("text").value);
    $("text").value = "";
  });
  $("wav").addEventListener("change", () => recording($("wav").files[0]));
  const drop = $("drop");
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    recording(event.dataTransfer.files[0]);
  });
}
