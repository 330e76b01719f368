"""The regression set of typed commands: share that ends exactly right, per language and kind, every wrong action.

The sets were blind at their first run (73-97 % right); rules were made from their failures since.

python -m benchmarks commands_regression [--json] [--data YAML] [--model]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from ruamel.yaml import YAML

from benchmarks.harness.report import command_line
from hil.judge import Verdict, run_command
from models.engines.llm.causal_lm import CausalLM
from models.store.store import Store
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language
from pipeline.vehicle.signals import EmbeddedTree

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "commands_regression.yaml"
NO_ACTION = ("refuse", "chat", "idle", "ask")


@dataclass(frozen=True, slots=True)
class RegressionCommand:
    """One command of the file."""

    kind: str
    language: Language
    text: str
    expect: tuple[str, ...]
    said_before: str = ""


def load_regression(path: Path = DATA) -> list[RegressionCommand]:
    """The commands of a file of the form of tests/data/commands_regression.yaml."""
    rows = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    return [RegressionCommand(row["k"], row["l"], row["t"], tuple(row["x"]), row.get("a", "")) for row in rows]


def verdict_of(dialogue: DialogueManager, tree: EmbeddedTree, command: RegressionCommand) -> Verdict:
    """Run one command as typed."""
    return run_command(
        dialogue, tree, command.text, command.language, command.expect, 1, said_before=command.said_before
    )


def measure(commands: Sequence[RegressionCommand], dialogue: DialogueManager, tree: EmbeddedTree) -> dict[str, Any]:
    """All figures. `forbidden_actions`: something changed where nothing was to change."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    missed, wrong, forbidden = [], [], []
    for command in commands:
        verdict = verdict_of(dialogue, tree, command)
        for key in (command.language, f"{command.kind} {command.language}"):
            total[key] += 1
            right[key] += verdict.right
        calls = [f"{call.name}{call.arguments}" for call in verdict.plan.calls] or ["chat" * verdict.plan.chat]
        line = f"{command.kind} {command.language}: {command.text} -> {'; '.join(calls)} | {verdict.reply[:60]}"
        if not verdict.right:
            missed.append(line)
        if verdict.wrong_action:
            wrong.append(line)
            if command.expect[0] in NO_ACTION:
                forbidden.append(line)
    return {
        "accuracy_en": round(right["en"] / total["en"], 4),
        "accuracy_zh": round(right["zh"] / total["zh"], 4),
        "wrong_actions": len(wrong),
        "forbidden_actions": len(forbidden),
        "kinds": {key: f"{right[key]}/{total[key]}" for key in sorted(total)},
        "wrong": wrong,
        "missed": missed,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="file of commands")
    parser.add_argument("--model", action="store_true", help="let the language model decide open choices")
    options = parser.parse_args(arguments)
    lm = None
    if options.model:
        lm = CausalLM.load(Store.open().ensure("qwen2.5-coder-0.5b-instruct"), context_tokens=1024)
    tree = EmbeddedTree()
    dialogue = DialogueManager.create(tree, lm)
    dialogue.warm_up()
    result = measure(load_regression(options.data), dialogue, tree)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return 0
    console = Console(width=200)
    for key, value in result.items():
        lines = value if isinstance(value, list) else [value]
        console.print(key, *([""] if isinstance(value, list) else lines), markup=False)
        if isinstance(value, list):
            for line in value:
                console.print("  " + line, markup=False)
    return 0
