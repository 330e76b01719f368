"""`o3ctl`: ask the arbiter of a running Cockpit what it does and why, and give it orders."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cockpit.cli.output import JsonFlag, print_json, print_json_line, report_error, run_program, table_lines
from cockpit.scheduling.control_socket import ControlClient, default_socket
from models.errors import CockpitError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_STYLE: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}
app = typer.Typer(
    help=__doc__,
    epilog="Exit codes: 0 done, 2 wrong input, 3 Cockpit does not run or does not serve this caller.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_STYLE,
)
policy_app = typer.Typer(help="The online policy: what it learnt, forget it, pin it.", **_STYLE)
app.add_typer(policy_app, name="policy")

SocketOption = Annotated[Path | None, typer.Option("--socket", help="Control socket of the service.")]
Task = Annotated[str, typer.Argument(help="A task of the profile, such as dialogue_task.")]
Session = Annotated[str, typer.Argument(help="A session, as o3ctl status --verbose lists them.")]


def _ask(path: Path | None, use: Callable[[ControlClient], None], *, as_json: bool = False) -> None:
    client = ControlClient(path or default_socket())
    try:
        use(client)
    except CockpitError as error:
        report_error(error, as_json=as_json, program="o3ctl")
        raise typer.Exit(error.exit_code) from error
    finally:
        client.close()


def _order(path: Path | None, as_json: bool, op: str, **fields: str) -> None:
    def use(client: ControlClient) -> None:
        message = client.ask(op, **fields)["message"]
        if as_json:
            print_json({"message": message})
        else:
            typer.echo(message)

    _ask(path, use, as_json=as_json)


@app.command()
def status(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also lanes, eviction candidates, last decisions.")
    ] = False,
    json: JsonFlag = False,
    socket: SocketOption = None,
) -> None:
    """Lanes, queues, budgets, memory, degraded mode and policy."""

    def use(client: ControlClient) -> None:
        reply = _asked_status(client, verbose=verbose)
        if json:
            print_json(reply)
        else:
            typer.echo("\n".join(render(reply, verbose=verbose)))

    _ask(socket, use, as_json=json)


@app.command()
def ask(
    text: Annotated[str, typer.Argument(help="One command, as the driver would say it.")],
    language: Annotated[str, typer.Option("--language", help="en or zh.")] = "en",
    json: JsonFlag = False,
    socket: SocketOption = None,
) -> None:
    """Do a command that comes as text, from a switch or a screen. Also while Cockpit runs without its models."""

    def use(client: ControlClient) -> None:
        reply = client.ask("ask", text=text, language=language)
        if json:
            print_json({"reply": reply["reply"], "acted": reply["acted"]})
        else:
            typer.echo(reply["reply"])

    _ask(socket, use, as_json=json)


@app.command()
def pause(task: Task, json: JsonFlag = False, socket: SocketOption = None) -> None:
    """Start nothing more of TASK until it is resumed."""
    _order(socket, json, "pause", task=task)


@app.command()
def resume(task: Task, json: JsonFlag = False, socket: SocketOption = None) -> None:
    """Let TASK start again."""
    _order(socket, json, "resume", task=task)


@app.command()
def evict(session: Session, json: JsonFlag = False, socket: SocketOption = None) -> None:
    """Take the KV memory of SESSION; at its next boundary while a request runs on it."""
    _order(socket, json, "evict", session=session)


@app.command()
def top(
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=60.0)] = 1.0,
    looks: Annotated[int, typer.Option(help="Stop after so many looks; 0: until Ctrl-C.", min=0)] = 0,
    once: Annotated[bool, typer.Option("--once", help="One look, for scripts.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, one for each look.")] = False,
    socket: SocketOption = None,
) -> None:
    """One line per task, live, until Ctrl-C. Piped: one look after the other."""
    last = 1 if once else looks

    def use(client: ControlClient) -> None:
        with ExitStack() as opened:
            live = opened.enter_context(_live()) if sys.stdout.isatty() and not json else None
            seen = 0
            while last == 0 or seen < last:
                if seen:
                    time.sleep(every)
                reply = _asked_status(client, verbose=True)
                if json:
                    print_json_line(reply)
                elif live is not None:
                    live.update(_cropped(render_top(reply)), refresh=True)
                else:
                    typer.echo("\n".join(render_top(reply)) + "\n")
                seen += 1

    try:
        _ask(socket, use, as_json=json)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _live() -> Live:
    from rich.live import Live

    return Live(auto_refresh=False, vertical_overflow="crop")


def _cropped(lines: list[str]) -> Group:
    """Lines for a terminal, cut where it ends."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text.from_ansi(line, no_wrap=True, overflow="crop") for line in lines))


def render_top(reply: dict[str, Any]) -> list[str]:
    """A `status` reply as one line per task; below, what the API's texts hold."""
    if "status" not in reply:
        return render(reply, verbose=False)
    status = reply["status"]
    served: dict[str, Any] = reply.get("api", {}).get("models", {})
    memory, degraded = status["memory"], status["degraded"]
    columns: tuple[str, ...]
    columns = ("task", "state", "queue", "done", "late", "queued ms", "TTFT ms", "TPOT ms", "tokens", "reused", "KV MB")
    rows: list[tuple[object, ...]] = [
        (
            task["name"],
            task["state"],
            task["queued"],
            task["finished"],
            task["missed_sla"],
            _three(task["queue"]),
            _three(task),
            _three(task["tpot"]),
            task["tokens"],
            _reused([model["tasks"].get(task["name"]) for model in served.values()]),
            f"{task['held_mb']:.0f}/{task['budget_mb']}",
        )
        for task in status["tasks"]
    ]
    if any(task["drafts"] for task in status["tasks"]):
        columns = (*columns, "drafts")
        rows = [(*row, _drafts(task["drafts"])) for row, task in zip(rows, status["tasks"], strict=True)]
    rate = f"{degraded['tokens_per_s']:.1f} tokens/s, floor {degraded['floor_tokens_per_s']:g}"
    if degraded["active"]:
        rate = typer.style(f"DEGRADED: {degraded['why']}", fg="red", bold=True)
    lines = [*table_lines(columns, rows), "", "times: P50/P95/P99 since the start", rate]
    lines.append(
        f"KV {memory['held_mb']:.0f} of {memory['arena_mb']:.0f} MB, {memory['sessions']} sessions, "
        f"{memory['evictions']} evicted"
    )
    if decided := decided_text(reply):
        lines.append(f"turns decided by: {decided}")
    for name, model in served.items():
        kv = model["kv"]
        lines.append(
            f"api {name}: {model['running']} running, {model['waiting']} waiting; {kv['open']} texts with "
            f"{kv['cached_tokens']} tokens ({kv['bytes'] >> 20} MB); parked {kv['parked']['dialogues']} dialogues and "
            f"{kv['parked']['prefixes']} beginnings ({kv['parked']['bytes'] >> 20} MB)"
        )
        if kv.get("dropped_tokens"):
            lines.append(f"  gate: {kv['dropped_tokens']} tokens without a row, {kv['dropped_bytes'] >> 20} MB saved")
        lines += _shared_lines(kv["shared"])
        batch = model["batch"]
        mean = "-" if batch["mean_size"] is None else f"{batch['mean_size']:.1f}"
        room = f"up to {batch['limit']} of {batch['most']} texts"
        lines.append(f"  batch: {room}, {mean} in the mean, {batch['steps']} runs")
    return lines


def _drafts(drafts: dict[str, Any] | None) -> str:
    """How many of the guessed tokens were right; a dash where none was guessed."""
    return "-" if drafts is None else f"{drafts['acceptance']:.0%} of {drafts['offered']}"


def _shared_lines(shared: dict[str, Any] | None) -> list[str]:
    """What several texts show of one piece of memory; nothing on a GPU, or while nothing was shared."""
    if shared is None or not (shared["bytes"] or shared["copied_instead"]):
        return []
    saved = max(0, shared["shown_bytes"] - shared["bytes"])
    copied = f"; {shared['copied_instead']} copied: {shared['reason']}" if shared["copied_instead"] else ""
    return [f"  shared: {shared['bytes'] >> 20} MB in {shared['texts']} texts, {saved >> 20} MB saved{copied}"]


def _three(times: dict[str, Any]) -> str:
    return "/".join(f"{times[key]:.0f}" for key in ("p50_ms", "p95_ms", "p99_ms"))


def _reused(tasks: list[dict[str, Any] | None]) -> str:
    """Share of the prompts' tokens that were not computed."""
    counted = [task for task in tasks if task is not None]
    prompts = sum(task["prompt_tokens"] for task in counted)
    return f"{sum(task['reused_tokens'] for task in counted) / prompts:.0%}" if prompts else "-"


def _asked_status(client: ControlClient, *, verbose: bool) -> dict[str, Any]:
    reply = client.ask("status", verbose=verbose)
    del reply["ok"]
    return reply


def _policy(action: str, as_json: bool, socket: Path | None) -> None:
    def use(client: ControlClient) -> None:
        reply = client.ask("policy", action=action)
        if as_json:
            del reply["ok"]
            print_json(reply)
            return
        shown = reply["policy"]
        pinned = "frozen" if shown["frozen"] else "learning"
        typer.echo(f"{pinned}; epoch {shown['epoch']}; arm {shown['arm'] + 1} of {shown['arms']}")
        typer.echo(f"runs      {shown['description']}")
        typer.echo(f"favourite {shown['favourite']}")
        typer.echo(f"left for missed SLAs {shown['reverts']} times")

    _ask(socket, use, as_json=as_json)


@policy_app.command("show")
def policy_show(json: JsonFlag = False, socket: SocketOption = None) -> None:
    """Which arm runs and what was learnt (--json: all of it)."""
    _policy("show", json, socket)


@policy_app.command("reset")
def policy_reset(json: JsonFlag = False, socket: SocketOption = None) -> None:
    """Forget what was learnt, on disk too, and go back to the safe arm."""
    _policy("reset", json, socket)


@policy_app.command("freeze")
def policy_freeze(
    off: Annotated[bool, typer.Option("--off", help="Let it learn again.")] = False,
    json: JsonFlag = False,
    socket: SocketOption = None,
) -> None:
    """Stay with the arm that runs now."""
    _policy("unfreeze" if off else "freeze", json, socket)


def render(reply: dict[str, Any], *, verbose: bool) -> list[str]:
    """A `status` reply as lines of text; no name is cut, however wide the terminal is."""
    if "status" not in reply:  # it runs without its models: nothing is shared out
        return [f"service  {reply['service']['text']}"]
    status = reply["status"]
    parts = [_tasks(status["tasks"]), _summary(reply)]
    if verbose:
        parts += [_lanes(status["lanes"]), _memory_plan(reply["memory_plan"])]
        parts += [_arms(status["policy"]), _candidates(status), _decisions(status["decisions"])]
    lines: list[str] = []
    for part in parts:
        lines += [*part, ""]
    return lines[:-1]


def decided_text(reply: dict[str, Any]) -> str:
    """Turns since the start by what decided them, the most first; empty before the first."""
    counts: dict[str, int] = reply.get("api", {}).get("turns", {}).get("decided_by", {})
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count)


def _titled(title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    return [typer.style(title, italic=True), *table_lines(columns, rows)]


def _tasks(tasks: list[dict[str, Any]]) -> list[str]:
    columns = ("task", "prio", "lane", "state", "queue", "KV MB", "done", "late", "p50 ms", "p99 ms", "SLA ms")
    rows: list[tuple[object, ...]] = [
        (
            task["name"],
            task["priority"],
            task["lane"],
            task["state"],
            f"{task['queued']}/{task['queue_limit']}",
            f"{task['held_mb']:.0f}/{task['budget_mb']}",
            task["finished"],
            task["missed_sla"],
            f"{task['p50_ms']:.1f}",
            f"{task['p99_ms']:.1f}",
            f"{task['sla_ms']:g}",
        )
        for task in tasks
    ]
    return _titled("tasks", columns, rows)


def _summary(reply: dict[str, Any]) -> list[str]:
    status = reply["status"]
    memory, degraded, policy = status["memory"], status["degraded"], status["policy"]
    rows = [
        (
            "memory",
            f"{memory['held_mb']:.0f} of {memory['arena_mb']:.0f} MB ({memory['pressure']:.0%}), fragmentation "
            f"{memory['fragmentation']:.1%}, {memory['sessions']} sessions, {memory['evictions']} evicted",
        )
    ]
    if memory["used_percent"] is not None:
        text = f"{memory['used_percent']:.0f} % in use, limit {memory['limit_percent']:g} %"
        if memory["refusing"]:
            text = typer.style(f"{text}: new sessions are refused", fg="red", bold=True)
        rows.append(("red line", text))
    if degraded["active"]:
        text = typer.style(f"for {degraded['since_s']:.0f} s: {degraded['why']}", fg="red", bold=True)
    else:
        text = f"no ({degraded['tokens_per_s']:.1f} tokens/s, floor {degraded['floor_tokens_per_s']:g})"
    rows.append(("degraded", text))
    pinned = "frozen" if policy["frozen"] else "learning"
    rows.append(("policy", f"{pinned}, arm {policy['arm'] + 1}/{policy['arms']}: {policy['description']}"))
    if "service" in reply:
        state = reply["service"]
        rows.append(
            ("service", typer.style(state["text"], fg="yellow", bold=True) if state["modes"] else state["text"])
        )
    if "audio" in reply:
        rows.append(("audio", reply["audio"]["text"]))
    if decided := decided_text(reply):
        rows.append(("turns", f"decided by: {decided}"))
    gpu = reply["gpu"]
    rows.append(("gpu", f"not watched: {reply['gpu_absent']}" if gpu is None else _gpu(gpu)))
    for finding in reply["findings"]:
        rows.append(("warning", typer.style(finding["message"], fg="yellow", bold=True)))
    rows += [(task["name"], task["why"]) for task in status["tasks"] if task["why"]]
    width = max(len(name) for name, _ in rows)
    return [f"{name.ljust(width)}  {text}" for name, text in rows]


def _gpu(gpu: dict[str, Any]) -> str:
    def part(value: Any, text: str) -> str:
        return text if value is not None else ""

    parts = [
        part(gpu["memory_used_bytes"], f"{(gpu['memory_used_bytes'] or 0) >> 20} MB used"),
        part(gpu["sm_clock_mhz"], f"{gpu['sm_clock_mhz']} MHz"),
        part(gpu["temperature_c"], f"{gpu['temperature_c']} C"),
        part(gpu["power_w"], f"{gpu['power_w']} W"),
        part(gpu["pcie_width"], f"PCIe {gpu['pcie_generation']} x{gpu['pcie_width']} of x{gpu['pcie_width_max']}"),
        part(gpu["pcie_replays"], f"{gpu['pcie_replays']} replays"),
    ]
    return ", ".join(text for text in parts if text)


def _lanes(lanes: list[dict[str, Any]]) -> list[str]:
    rows: list[tuple[object, ...]] = [
        (lane["name"], ", ".join(lane["clusters"]), lane["units"], "yes" if lane["active"] else "") for lane in lanes
    ]
    return _titled("lanes", ("lane", "clusters", "units", "in force"), rows)


def _arms(policy: dict[str, Any]) -> list[str]:
    rows: list[tuple[object, ...]] = [
        (number, text, "yes" if number == policy["arm"] + 1 else "") for number, text in enumerate(policy["offered"], 1)
    ]
    return _titled("arms of the policy", ("arm", "what it changes", "in force"), rows)


def _memory_plan(plan: dict[str, Any] | None) -> list[str]:
    """Planned at start; what is booked of the KV arena now stands under `memory`."""
    if plan is None:
        return _titled("memory plan", ("what", "MB", "from"), [("none", "", "this process was started without one")])
    rows: list[tuple[object, ...]] = [
        (line["name"], f"{line['count_bytes'] / (1 << 20):.0f}", line["note"]) for line in plan["lines"]
    ]
    limit = "not known" if plan["limit_bytes"] is None else f"{plan['limit_bytes'] / (1 << 20):.0f} MB"
    rows.append(("sum", f"{plan['sum_bytes'] / (1 << 20):.0f}", f"limit {limit}"))
    return _titled("memory plan", ("what", "MB", "from"), rows)


def _candidates(status: dict[str, Any]) -> list[str]:
    rows: list[tuple[object, ...]] = [
        (
            item["rank"],
            item["session"],
            item["task"],
            f"{item['bytes'] / (1 << 20):.1f}",
            f"{item['age_s']:.0f}",
            f"{item['idle_s']:.0f}",
            item["uses"],
            ("in use now, so not before it ends: " if item["running"] else "") + item["reason"],
        )
        for item in status["eviction_candidates"]
    ]
    columns = ("rank", "session", "task", "MB", "age s", "idle s", "uses", "reason")
    return _titled(f"eviction candidates ({status['eviction_policy']})", columns, rows)


def _decisions(decisions: list[dict[str, Any]]) -> list[str]:
    rows: list[tuple[object, ...]] = [(f"{item['ago_s']:.3f}", item["task"], item["reason"]) for item in decisions[:12]]
    return _titled("last decisions", ("s ago", "task", "reason"), rows)


def main() -> None:
    run_program(app, sys.argv[1:], "o3ctl")


if __name__ == "__main__":
    main()
