"""`o3ctl`: ask the arbiter of a running Cockpit what it does and why, and give it orders."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cockpit.scheduling.control_socket import ControlClient, default_socket
from models.errors import CockpitError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
policy_app = typer.Typer(no_args_is_help=True, help="The online policy: what it learnt, forget it, pin it.")
app.add_typer(policy_app, name="policy")

SocketOption = Annotated[Path | None, typer.Option("--socket", help="Control socket of the service.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def _ask(path: Path | None, use: Callable[[ControlClient], None]) -> None:
    client = ControlClient(path or default_socket())
    try:
        use(client)
    except CockpitError as error:
        sys.stderr.write(f"o3ctl: {error}\n")
        raise typer.Exit(error.exit_code) from error
    except ValueError as error:
        sys.stderr.write(f"o3ctl: {error}\n")
        raise typer.Exit(1) from error
    finally:
        client.close()


@app.command()
def status(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also lanes, eviction candidates, last decisions.")
    ] = False,
    as_json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Lanes, queues, budgets, memory, degraded mode and policy."""

    def use(client: ControlClient) -> None:
        reply = client.ask("status", verbose=verbose)
        if as_json:
            del reply["ok"]
            sys.stdout.write(orjson.dumps(reply, option=orjson.OPT_INDENT_2).decode() + "\n")
            return
        Console().print(render(reply, verbose=verbose))

    _ask(socket, use)


@app.command()
def pause(task: str, socket: SocketOption = None) -> None:
    """Start nothing more of TASK until it is resumed."""
    _ask(socket, lambda client: typer.echo(client.ask("pause", task=task)["message"]))


@app.command()
def resume(task: str, socket: SocketOption = None) -> None:
    """Let TASK start again."""
    _ask(socket, lambda client: typer.echo(client.ask("resume", task=task)["message"]))


@app.command()
def evict(session: str, socket: SocketOption = None) -> None:
    """Take the KV memory of SESSION; at its next boundary while a request runs on it."""
    _ask(socket, lambda client: typer.echo(client.ask("evict", session=session)["message"]))


@app.command()
def top(
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=60.0)] = 1.0,
    looks: Annotated[int, typer.Option(help="Stop after so many looks; 0: until Ctrl-C.", min=0)] = 0,
    socket: SocketOption = None,
) -> None:
    """The status, live, until Ctrl-C."""

    def use(client: ControlClient) -> None:
        seen = 1
        with Live(render(client.ask("status", verbose=True), verbose=True), refresh_per_second=4) as live:
            while looks == 0 or seen < looks:
                time.sleep(every)
                live.update(render(client.ask("status", verbose=True), verbose=True))
                seen += 1

    try:
        _ask(socket, use)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _policy(action: str, as_json: bool, socket: Path | None) -> None:
    def use(client: ControlClient) -> None:
        reply = client.ask("policy", action=action)
        if as_json:
            del reply["ok"]
            sys.stdout.write(orjson.dumps(reply, option=orjson.OPT_INDENT_2).decode() + "\n")
            return
        shown = reply["policy"]
        pinned = "frozen" if shown["frozen"] else "learning"
        typer.echo(f"{pinned}; epoch {shown['epoch']}; arm {shown['arm'] + 1} of {shown['arms']}")
        typer.echo(f"runs      {shown['description']}")
        typer.echo(f"favourite {shown['favourite']}")
        typer.echo(f"left for missed SLAs {shown['reverts']} times")

    _ask(socket, use)


@policy_app.command("show")
def policy_show(as_json: JsonOption = False, socket: SocketOption = None) -> None:
    """Which arm runs and what was learnt (--json: all of it)."""
    _policy("show", as_json, socket)


@policy_app.command("reset")
def policy_reset(as_json: JsonOption = False, socket: SocketOption = None) -> None:
    """Forget what was learnt, on disk too, and go back to the safe arm."""
    _policy("reset", as_json, socket)


@policy_app.command("freeze")
def policy_freeze(
    off: Annotated[bool, typer.Option("--off", help="Let it learn again.")] = False,
    as_json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Stay with the arm that runs now."""
    _policy("unfreeze" if off else "freeze", as_json, socket)


def render(reply: dict[str, Any], *, verbose: bool) -> Group:
    """A `status` reply as tables."""
    status = reply["status"]
    parts: list[Any] = [_tasks(status["tasks"]), _summary(reply)]
    if verbose:
        parts += [_lanes(status["lanes"]), _memory_plan(reply["memory_plan"])]
        parts += [_candidates(status), _decisions(status["decisions"])]
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)


def _tasks(tasks: list[dict[str, Any]]) -> Table:
    table = _table(
        "tasks", "task", "prio", "lane", "state", "queue", "KV MB", "done", "late", "p50 ms", "p99 ms", "SLA ms"
    )
    for task in tasks:
        table.add_row(
            escape(task["name"]),
            str(task["priority"]),
            escape(task["lane"]),
            escape(task["state"]),
            f"{task['queued']}/{task['queue_limit']}",
            f"{task['held_mb']:.0f}/{task['budget_mb']}",
            str(task["finished"]),
            str(task["missed_sla"]),
            f"{task['p50_ms']:.1f}",
            f"{task['p99_ms']:.1f}",
            f"{task['sla_ms']:g}",
        )
    return table


def _summary(reply: dict[str, Any]) -> Table:
    status = reply["status"]
    memory, degraded, policy = status["memory"], status["degraded"], status["policy"]
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "memory",
        f"{memory['held_mb']:.0f} of {memory['arena_mb']:.0f} MB ({memory['pressure']:.0%}), fragmentation "
        f"{memory['fragmentation']:.1%}, {memory['sessions']} sessions, {memory['evictions']} evicted",
    )
    if degraded["active"]:
        table.add_row("degraded", f"[bold red]for {degraded['since_s']:.0f} s: {escape(degraded['why'])}[/]")
    else:
        rate = f"{degraded['tokens_per_s']:.1f} tokens/s, floor {degraded['floor_tokens_per_s']:g}"
        table.add_row("degraded", f"no ({rate})")
    pinned = "frozen" if policy["frozen"] else "learning"
    table.add_row("policy", escape(f"{pinned}, arm {policy['arm'] + 1}/{policy['arms']}: {policy['description']}"))
    gpu = reply["gpu"]
    if gpu is None:
        table.add_row("gpu", escape(f"not watched: {reply['gpu_absent']}"))
    else:
        table.add_row("gpu", _gpu(gpu))
    for finding in reply["findings"]:
        table.add_row("warning", f"[bold yellow]{escape(finding['message'])}[/]")
    for task in status["tasks"]:
        if task["why"]:
            table.add_row(escape(task["name"]), escape(task["why"]))
    return table


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


def _lanes(lanes: list[dict[str, Any]]) -> Table:
    table = _table("lanes", "lane", "clusters", "units", "in force")
    for lane in lanes:
        row = (escape(lane["name"]), escape(", ".join(lane["clusters"])), str(lane["units"]))
        table.add_row(*row, "yes" if lane["active"] else "")
    return table


def _memory_plan(plan: dict[str, Any] | None) -> Table:
    """Planned at start; what is booked of the KV arena now stands under `memory`."""
    table = _table("memory plan", "what", "MB", "from")
    if plan is None:
        table.add_row("none", "", "this process was started without one")
        return table
    for line in plan["lines"]:
        table.add_row(escape(line["name"]), f"{line['count_bytes'] / (1 << 20):.0f}", escape(line["note"]))
    limit = "not known" if plan["limit_bytes"] is None else f"{plan['limit_bytes'] / (1 << 20):.0f} MB"
    table.add_row("sum", f"{plan['sum_bytes'] / (1 << 20):.0f}", f"limit {limit}")
    return table


def _candidates(status: dict[str, Any]) -> Table:
    title = f"eviction candidates ({status['eviction_policy']})"
    table = _table(title, "rank", "session", "task", "MB", "age s", "idle s", "uses", "reason")
    for item in status["eviction_candidates"]:
        reason = "in use now, so not before it ends: " if item["running"] else ""
        table.add_row(
            str(item["rank"]),
            escape(item["session"]),
            escape(item["task"]),
            f"{item['bytes'] / (1 << 20):.1f}",
            f"{item['age_s']:.0f}",
            f"{item['idle_s']:.0f}",
            str(item["uses"]),
            escape(reason + item["reason"]),
        )
    return table


def _decisions(decisions: list[dict[str, Any]]) -> Table:
    table = _table("last decisions", "s ago", "task", "reason")
    for item in decisions[:12]:
        table.add_row(f"{item['ago_s']:.3f}", escape(item["task"]), escape(item["reason"]))
    return table


def main() -> None:
    app()


if __name__ == "__main__":
    main()
