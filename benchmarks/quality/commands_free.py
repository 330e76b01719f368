"""Share of commands that end exactly right when the language model writes JSON without a grammar.

    python -m benchmarks commands_free [--json] [--limit N]

The typed commands of the tests, with the tools in the prompt; what does not parse as one call counts as nothing done.
Beside it the same commands as the chain decides them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from benchmarks.harness.front_end import LANGUAGES
from benchmarks.harness.report import command_line
from benchmarks.quality.free_json import FreeJson, acting_freely
from benchmarks.quality.scoring import Score, typed_commands
from hil.judge import run_command
from models.engines.llm.causal_lm import CausalLM
from models.store.store import Store
from pipeline.dialogue.manager import DialogueManager
from pipeline.vehicle.signals import EmbeddedTree


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--limit", type=int, help="only the first N commands per language")
    options = parser.parse_args(arguments)
    commands = typed_commands()
    if options.limit is not None:
        commands = [c for lang in LANGUAGES for c in [d for d in commands if d.language == lang][: options.limit]]
    lm = CausalLM.load(Store.open().ensure("qwen2.5-coder-0.5b-instruct"), context_tokens=1024)
    tree = EmbeddedTree()
    dialogue = DialogueManager.create(tree, lm)
    dialogue.warm_up()
    free = acting_freely(FreeJson(lm), dialogue, tree)
    score = Score()
    for number, command in enumerate(commands, 1):
        sys.stderr.write(f"\r{number}/{len(commands)} ")
        score.add("free", command, command.text, free(command, command.text, command.language, 0.0))
        verdict = run_command(dialogue, tree, command.text, command.language, command.expect, 1)
        score.add("chain", command, command.text, verdict)
    sys.stderr.write("\n")
    acted = score.wrong_actions + score.stray_actions
    result = {
        name: {lang: score.share(name, lang) for lang in LANGUAGES}
        | {"wrong_actions": sum(line.startswith(f"{name} ") for line in acted)}
        for name in ("free", "chain")
    }
    if options.json:
        print(json.dumps(result | {"commands": len(commands)}))
        return 0
    print(f"{'':8}{'English':>10}{'Mandarin':>10}{'wrong actions':>15}   ({len(commands)} commands)")
    for name, row in result.items():
        shares = "".join(f"{'-':>10}" if row[lang] is None else f"{row[lang]:10.1%}" for lang in LANGUAGES)
        print(f"{name:8}{shares}{row['wrong_actions']:>15}")
    return 0
