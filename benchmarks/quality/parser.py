"""Sentences to calls, without the car: how often exactly the right ones come, and how often a wrong one.

python -m benchmarks parser [--parser rules|model|both] [--model DIR] [--sets dev,mac_slu,slurp] [--json] [--show N]

`rules` and `model` alone, and `both` as a turn decides (pipeline/nlu/parser/decision.py). --model: a built parser; the
registry's by default.

Own sets (tests/data). `dev`: to tune on. `scope`: to tune on, too, written later with weight on scope. `read`: an
earlier blind one, since read and tuned on. `drivers`: as twenty drivers would speak, written before rules and generator
were looked at, tuned on since. `car`: of functions that the car got later (massage, lights, modes, pages), by who wrote
their phrases. `open4` and `blind4`: halves, parted by hash, of sentences over all kinds with what must come of each
(`outcome`); `open4` is to tune on. `blind`, `blind3` and `blind4` are to judge by: they are asked for by name and
nobody tunes on them.
`mac_slu` and `slurp` are open halves of the data of others in ../shared/data: real Mandarin in-cabin queries, whose
labels benchmarks/quality/mac_slu.py turns into calls, and English requests that are none of the car's business, which
must change nothing. A set whose file is missing is skipped, with the reason.

right: exactly the calls that were meant, place by place, and nothing where nothing was meant. wrong: a call that would
change something and was not meant (another thing, value or place, or anything at all where nothing was meant). missed:
neither; also a value out of range, which the car refuses. reason: where nothing was meant, the share with the right
reason.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.paths import ROOT
from benchmarks.harness.report import command_line, percentiles
from benchmarks.quality.mac_slu import Wish, wishes_of
from models.engines.parser import ParserEngine
from models.errors import StartupError
from models.store.registry import load_registry
from models.store.store import Store
from pipeline.dialogue.understanding import Understanding
from pipeline.frames import Language, ToolCall
from pipeline.nlu.asking import lacking
from pipeline.nlu.evidence import evidence_of
from pipeline.nlu.intents.questions import place_key
from pipeline.nlu.interpreter import Interpreter
from pipeline.nlu.lexicon import Lexicon, build_lexicon
from pipeline.nlu.parser.labels import ACT
from pipeline.nlu.parser.reader import ParserReader
from pipeline.vehicle.places import Places, load_places
from pipeline.vehicle.schemas import fault_of

OWN = ROOT / "tests" / "data"
OWN_SETS = ("dev", "scope", "read", "drivers", "car", "open4", "blind", "blind3", "blind4")
SHARED = ROOT.parent / "shared" / "data"
READS = frozenset(("ask_vehicle", "ask_distance", "refuse"))
"""Calls that change nothing."""
REFUSED_BY_THE_CAR = ToolCall("set_headlights", {"on": False})
_NEVER = (REFUSED_BY_THE_CAR, ToolCall("set_exterior_light", {"which": "position", "on": False}))
"""Calls that every car refuses (see pipeline/vehicle/signals.json): nothing is done by them."""
CAR_SCENARIOS = frozenset(("play", "audio", "iot", "music", "datetime", "transport"))
"""SLURP's scenarios that a car may well act upon."""
HERE = (31.23, 121.47)
"""Degrees, in the midst of the shipped places."""
SEATS_OF = {
    "all": ("driver", "passenger", "rear_left", "rear_right"),
    "front": ("driver", "passenger"),
    "rear": ("rear_left", "rear_right"),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a parser made of a sentence. reason: why nothing, or not all, is done; None for a command."""

    calls: tuple[ToolCall, ...]
    reason: str | None = None


Reader = Callable[[str, Language, ToolCall | None], Reading]
"""(text, language, the call before) -> what it means."""


@dataclass(frozen=True, slots=True)
class Case:
    """One sentence. calls: exactly these are meant; wishes: or calls that meet these (and then `calls` is None)."""

    text: str
    language: Language
    kind: str
    calls: tuple[ToolCall, ...] | None
    wishes: tuple[Wish, ...] = ()
    reason: str | None = None
    last: ToolCall | None = None


_REASON_OF_RULES = {"declined": "taken_back", "wrong_unit": "unsupported"}


def rules_reader(lexicon: Lexicon) -> Reader:
    """The rules alone."""
    interpreter = Interpreter(lexicon)

    def read(text: str, language: Language, last: ToolCall | None) -> Reading:
        parse = interpreter.parse(text, language, last)
        calls = [clause.call for clause in parse.clauses]
        refused = [str(call.arguments["reason"]) for call in calls if call.name == "refuse"]
        reason = _REASON_OF_RULES.get(refused[0], refused[0]) if refused else None
        if not calls:
            reason = "not_understood" if parse.half_heard else "none_talk"
        return Reading(tuple(call for call in calls if call.name != "refuse"), reason)

    return read


def model_reader(engine: ParserEngine, places: Places) -> Reader:
    """The model alone, without guards."""
    reader = ParserReader(engine, build_lexicon(places, by_sound=False))

    def read(text: str, language: Language, last: ToolCall | None) -> Reading:
        program = reader.read(text, last)
        if program is None:
            return Reading((), "not_understood")
        if program.reason != ACT:
            return Reading((), program.reason)
        return Reading(tuple(one.call for one in program.calls))

    return read


def both_reader(engine: ParserEngine, places: Places) -> Reader:
    """Model and rules, as a turn decides."""
    lexicon = build_lexicon(places)
    understanding = Understanding.create(engine, lexicon, places, lambda key: places.resolve(key, *HERE))
    interpreter, rules = Interpreter(lexicon), rules_reader(lexicon)

    def read(text: str, language: Language, last: ToolCall | None) -> Reading:
        parse = interpreter.parse(text, language, last)
        decision = understanding.decide(text, language, parse, last)
        program = [call.name for call in decision.calls] if decision.kind == "program" else []
        if decision.kind != "nothing" and lacking(parse, program) is not None:
            return Reading((), "not_understood")  # it is asked for
        if decision.kind in ("rules", "agreed"):
            return rules(text, language, last)
        return Reading(decision.calls, decision.reason or ("not_understood" if decision.kind == "ask" else None))

    return read


def reader_of(name: str, model: Path | None) -> Reader:
    """rules, model or both. ValueError where a parser is wanted and there is none."""
    places = load_places()
    if name == "rules":
        return rules_reader(build_lexicon(places))
    if model is None:
        known = [entry.name for entry in load_registry().models if "parser" in entry.roles]
        if not known:
            raise ValueError("the registry has no parser: `cockpit adapt parser` makes one, give its folder by --model")
        model = Store.open().ensure(known[0])
    engine = ParserEngine.load(model)
    return model_reader(engine, places) if name == "model" else both_reader(engine, places)


# --- the sets ------------------------------------------------------------------------------------------------------
class SetMissing(Exception):
    """A set whose file is not there."""


def own_set(file: Path) -> list[Case]:
    """Sentences with their calls; see tests/data/parser_dev.jsonl. SetMissing where the file is not there."""
    cases = []
    for row in _rows(file):
        calls = tuple(ToolCall(call["tool"], call["args"]) for call in row["calls"])
        last = None if row["last"] is None else ToolCall(row["last"]["tool"], row["last"]["args"])
        cases.append(Case(row["text"], row["lang"], row["kind"], calls, reason=row["reason"], last=last))
    return cases


def mac_slu(file: Path) -> tuple[list[Case], int]:
    """Real queries with what must come of them, and how many of which that cannot be told."""
    cases, unclear = [], 0
    for row in _rows(file):
        wishes = wishes_of(row["gold"])
        if wishes is None:
            unclear += 1
            continue
        lacking = [not wish.tool for wish in wishes]
        kind = (
            "lacking"
            if all(lacking)
            else "several, one lacking"
            if any(lacking)
            else "several"
            if wishes[1:]
            else "one"
        )
        cases.append(Case(row["text"], "zh", kind, None, tuple(wish for wish in wishes if wish.tool)))
    return cases, unclear


def slurp(file: Path) -> list[Case]:
    """Requests to an assistant that are no command to a car: nothing may be changed."""
    return [
        Case(row["text"], "en", row["scenario"], None) for row in _rows(file) if row["scenario"] not in CAR_SCENARIOS
    ]


def _rows(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise SetMissing(f"{file} is not there")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# --- judging -------------------------------------------------------------------------------------------------------
def by_seat(calls: Iterable[ToolCall]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Calls in a form in which equal effects are equal: one for each seat, sorted."""
    spread = []
    for call in calls:
        zone = call.arguments.get("zone")
        seats = SEATS_OF.get(zone, (zone,)) if isinstance(zone, str) and call.name not in READS else (zone,)
        for seat in seats:
            arguments = {**call.arguments, **({} if zone is None else {"zone": seat})}
            spread.append((call.name, tuple(sorted((name, _plain(value)) for name, value in arguments.items()))))
    return sorted(spread)


def _plain(value: Any) -> str:
    """Equal for 20 and 20.0, for "The Bund" and "the bund"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value, ensure_ascii=False).casefold()
    return str(round(float(value), 1))


@dataclass(slots=True)
class Judge:
    """Compares readings with what was meant; a place is the same when it resolves to the same."""

    lexicon: Lexicon
    places: Places

    def outcome(self, case: Case, reading: Reading) -> str:
        """right, wrong or missed."""
        calls = [self._settled(call, case.language) for call in reading.calls if call not in _NEVER]
        acting = [call for call in calls if call.name not in READS and fault_of(call.name, call.arguments) is None]
        if case.calls is None:
            places = [self._settled_wish(wish, case.language) for wish in case.wishes]
            return _against_wishes(places, calls, acting)
        meant = [self._settled(call, case.language) for call in case.calls]
        if by_seat(calls) == by_seat(meant):
            return "right"
        extra = Counter(by_seat(acting)) - Counter(by_seat(meant))
        return "wrong" if extra else "missed"

    def _settled(self, call: ToolCall, language: Language) -> ToolCall:
        place = call.arguments.get("place")
        if not isinstance(place, str):
            return call
        return ToolCall(call.name, {**call.arguments, "place": self.place_of(place, language)})

    def _settled_wish(self, wish: Wish, language: Language) -> Wish:
        if wish.tool not in ("navigate_to", "ask_distance"):
            return wish
        return Wish(wish.tool, wish.args, tuple(self.place_of(said, language) for said in wish.contains))

    def place_of(self, said: str, language: Language) -> str:
        """The key of a place, given by key or words; the words where none is known."""
        if self.places.knows(said):
            return said
        evidence = evidence_of(said, self.lexicon, language)
        places = [match for match in evidence.matches if match.has("place") or match.has("kind")]
        return place_key(evidence, places[-1]) if places else said.casefold().removeprefix("the ").strip()


def _against_wishes(wishes: Sequence[Wish], calls: Sequence[ToolCall], acting: Sequence[ToolCall]) -> str:
    open_wishes = list(wishes)
    strays = 0
    for call in calls:
        met = next((wish for wish in open_wishes if wish.met_by(call)), None)
        if met is not None:
            open_wishes.remove(met)
        elif call in acting:
            strays += 1
    return "wrong" if strays else "missed" if open_wishes else "right"


@dataclass(slots=True)
class Score:
    """Outcomes by kind and language, reasons, times, and the sentences that failed."""

    outcomes: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: Counter[bool] = field(default_factory=Counter)
    times_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, case: Case, reading: Reading, outcome: str, took_ms: float) -> None:
        """Count one sentence."""
        self.outcomes[case.kind, case.language][outcome] += 1
        self.times_ms.append(took_ms)
        if case.calls == () and outcome == "right":
            self.reasons[reading.reason == case.reason] += 1
        if outcome != "right":
            calls = "; ".join(f"{call.name}{call.arguments}" for call in reading.calls) or f"nothing ({reading.reason})"
            self.failed.append(f"{outcome} {case.kind} {case.language}: {case.text} -> {calls}")

    def figures(self) -> dict[str, Any]:
        """All of it as one object."""
        total: Counter[str] = Counter()
        for counts in self.outcomes.values():
            total += counts
        counted = sum(total.values())
        kinds: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        for (kind, language), counts in sorted(self.outcomes.items()):
            kinds[kind][language] = {name: counts[name] for name in ("right", "wrong", "missed")}
        languages = {
            language: _share(
                sum(counts["right"] for (_, lang), counts in self.outcomes.items() if lang == language),
                sum(sum(counts.values()) for (_, lang), counts in self.outcomes.items() if lang == language),
            )
            for language in ("en", "zh")
        }
        return {
            "sentences": counted,
            **{name: _share(total[name], counted) for name in ("right", "wrong", "missed")},
            "right_en": languages["en"],
            "right_zh": languages["zh"],
            "reason": _share(self.reasons[True], sum(self.reasons.values())),
            "ms": percentiles(self.times_ms, (50, 95, 99)),
            "kinds": kinds,
            "failed": self.failed,
        }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def measure(cases: Sequence[Case], reader: Reader, judge: Judge) -> dict[str, Any]:
    """Read every sentence once and judge it."""
    score = Score()
    for case in cases:
        begun_s = time.perf_counter()
        reading = reader(case.text, case.language, case.last)
        took_ms = (time.perf_counter() - begun_s) * 1000
        score.add(case, reading, judge.outcome(case, reading), took_ms)
    return score.figures()


def load(name: str, shared: Path) -> tuple[list[Case], dict[str, Any]]:
    """A set by name, and what else is to be said of it. SetMissing, ValueError for a name that is none."""
    if name in OWN_SETS:
        return own_set(OWN / ("parser_dev_scope.jsonl" if name == "scope" else f"parser_{name}.jsonl")), {}
    if name == "mac_slu":
        cases, unclear = mac_slu(shared / "mac_slu_open.jsonl")
        return cases, {"not_judged": unclear}
    if name == "slurp":
        return slurp(shared / "slurp_open.jsonl"), {}
    raise ValueError(f"there is no set {name!r}; there are {', '.join(OWN_SETS)}, mac_slu, slurp")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--parser", default="rules", choices=["rules", "model", "both"], help="who reads the sentences")
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of a built parser")
    parser.add_argument("--sets", default="dev,mac_slu,slurp", help="which sets, comma-separated")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with the data of others")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first N failures of each set")
    options = parser.parse_args(arguments)
    places = load_places()
    try:
        reader = reader_of(options.parser, options.model)
    except (ValueError, StartupError) as error:
        parser.error(str(error))
    judge = Judge(build_lexicon(places, by_sound=False), places)
    reader("open the window", "en", None)
    reader("打开车窗", "zh", None)
    results: dict[str, Any] = {}
    for name in filter(None, options.sets.split(",")):
        try:
            cases, beside = load(name, options.shared)
        except SetMissing as missing:
            results[name] = {"skipped": str(missing)}
            continue
        except ValueError as error:
            parser.error(str(error))
        results[name] = beside | measure(cases, reader, judge)
    if options.json:
        print(json.dumps({"parser": options.parser, **results}, ensure_ascii=False))
    else:
        show(options.parser, results, options.show)
    return 0


def show(parser: str, results: Mapping[str, Mapping[str, Any]], failures: int) -> None:
    """The tables."""
    console = Console(width=160)
    for name, result in results.items():
        if "skipped" in result:
            console.print(f"{name}: skipped, {result['skipped']}", markup=False)
            continue
        table = Table("kind", "English", "Mandarin", "wrong", "missed", title=f"{name}, read by {parser}: right of all")
        for kind, languages in result["kinds"].items():
            cells = [_cell(languages.get(language)) for language in ("en", "zh")]
            counts = [str(sum(counts[what] for counts in languages.values())) for what in ("wrong", "missed")]
            table.add_row(kind, *cells, *counts)
        console.print(table)
        shares = ", ".join(f"{what} {100 * result[what]:.1f} %" for what in ("right", "wrong", "missed"))
        beside = f", {result['not_judged']} not judged" if "not_judged" in result else ""
        reason = "" if result["reason"] is None else f"; reason right {100 * result['reason']:.0f} %"
        console.print(f"{result['sentences']} sentences: {shares}{beside}{reason}; ms {result['ms']}", markup=False)
        for line in result["failed"][:failures]:
            console.print("  " + line, markup=False)


def _cell(counts: Mapping[str, int] | None) -> str:
    return "-" if counts is None else f"{counts['right']}/{sum(counts.values())}"
