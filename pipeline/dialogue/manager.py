"""The dialogue manager: a transcript to calls or talk, calls to results, results to a reply, and what is taken back.

The words narrow the calls down (`pipeline/nlu/interpreter.py`). Where one call is left, every token of it is forced and
no model step is needed; where several are left, the language model chooses among exactly these under a grammar; where
none is left, the owner's manual answers if it has a section (`pipeline/manual/`), tools that read are asked where the
question needs information (`pipeline/agent/`), and the model talks otherwise.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from models.engines.base import never_cancelled
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from models.engines.parser import ParserEngine
from pipeline.agent.agent import Agent
from pipeline.agent.memory import RECENT_TURNS, TaskMemory
from pipeline.agent.selection import Selection, selection_of
from pipeline.agent.setup import AgentSetup
from pipeline.agent.tools import ToolOutcome
from pipeline.dialogue.chat_guard import TalkFilter
from pipeline.dialogue.echo import is_question
from pipeline.dialogue.from_manual import asks_how, may_be_absent, only_refused, plan_of_manual
from pipeline.dialogue.llm_steps import UNSCHEDULED, LlmScheduler, fill
from pipeline.dialogue.plan import (
    DecidedBy,
    Plan,
    as_result,
    asked_about,
    plan_of_answer,
    plan_of_choice,
    plan_of_question,
    task_of,
)
from pipeline.dialogue.remote import RemoteTalk
from pipeline.dialogue.summary import Summary
from pipeline.dialogue.talk import AnswerCut, allowed, model_words
from pipeline.dialogue.tool_choice import Chooser
from pipeline.dialogue.understanding import Understanding, plan_of_decision, with_decision
from pipeline.frames import Language, ToolCall, ToolResult
from pipeline.manual.manual import Manual, ManualAnswer, shipped_manual
from pipeline.manual.names import Found, explains
from pipeline.nlg.actions import say
from pipeline.nlg.questions import can_be_confirmed
from pipeline.nlu.asking import Question, answer_of, lacking
from pipeline.nlu.intents.rules import kept_in_mind
from pipeline.nlu.interpreter import Clause, Interpreter, Parse
from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.decision import Decision
from pipeline.nlu.phonetics import tokens_of
from pipeline.vehicle.driver_side import as_meant
from pipeline.vehicle.places import Places, load_places
from pipeline.vehicle.schemas import TOOL_NAMES, opens_the_car
from pipeline.vehicle.signals import EmbeddedTree, SignalAccess, SignalBackend, SignalError
from pipeline.vehicle.tools import Toolbox

KEPT_EXCHANGES = 3
"""How many earlier exchanges the model sees."""
CHAT_TOKENS = 64
REPEAT_BELOW_LOGPROB = -0.55
"""Mean log-probability (nats per token) below which a number or free text is not acted on. Chosen on 90 commands by
five synthetic voices, clean and in road noise at 10 dB: it costs one of 180 (benchmarks/quality/commands_spoken.py).
"""
MISTAKEN_BELOW = 5.1
"""Nats between a number and the one that sounds like it (15 and 50), below which it is not acted on but asked for. Of
112 commands with such numbers by two synthetic voices, clean and in road noise at 10 dB, ten were heard as the other
number: all are below; of the 92 heard right 23 are.
"""
SHORT = 4
"""So few words after a question are taken for an answer to it that does not fit, not for talk."""
PREPARE_CHUNK = 32
"""Tokens per step of `prepare`: about 50 ms on one core, the longest a new turn may wait for it."""
_SYSTEM: dict[Language, str] = {
    "en": "You are the voice assistant of a car. Answer in plain English, in one or two short sentences, "
    "without lists. You cannot operate the car here; never claim that you did.",
    "zh": "你是汽车的语音助手。用一两句简短的中文口语回答，不要列表。你在这里不能操作车辆，绝不要说你已经操作了。",
}
_DATA: dict[Language, str] = {"en": "Answer from this data: ", "zh": "根据这些数据回答："}
_SILENT: dict[Language, str] = {"en": "Sorry, I did not understand that.", "zh": "抱歉，我没有听懂。"}
_UNSURE: dict[Language, str] = {"en": "I am not sure about that.", "zh": "这个我不太清楚。"}
"""Said where nothing that the model says may be spoken."""
_CANNOT: dict[Language, str] = {"en": "I can't do that.", "zh": "这个我做不到。"}
"""Said in the same case to a wish that no tool fulfils."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """How sure the ear was: see Transcript; avg_logprob None for typed text."""

    avg_logprob: float | None = None
    number_margin: float = math.inf


def _set_by_number(calls: Iterable[ToolCall]) -> bool:
    """Whether a call sets an amount of which each number may be one: of 19 and 90 degrees only one is a temperature."""
    return any("value" in call.arguments and call.name != "set_temperature" for call in calls)


def _rests_on_detail(clause: Clause) -> bool:
    """True for a change by a number or by free text: misheard, it is as good a command as the one that was meant.

    Where the car's own words alone decide, matching them by sound is the better judge of what was heard.
    """
    name, evidence = clause.call.name, clause.evidence
    if name in ("refuse", "ask_vehicle", "ask_distance"):
        return False
    return bool(evidence.numbers) or (
        name == "play_media" and clause.call.arguments["query"] not in evidence.names("music")
    )


def _explained(found: Found | None, parse: Parse) -> bool:
    """True where the manual's answer goes before the calls that the words support."""
    about_now = any(clause.call.name in ("ask_vehicle", "ask_distance") for clause in parse.clauses)
    return found is not None and found.certain and (found.exact or not about_now)


def _session(lm: CausalLM, name: str) -> LmSession:
    """A session under the name by which operators know it."""
    session = lm.open_session()
    session.name = name
    return session


@dataclass(slots=True)
class _Exchange:
    user: str
    language: Language
    heard: str = ""
    last_call: ToolCall | None = None
    talk: bool = False


@dataclass(slots=True)
class DialogueManager:
    """Owned by one thread. Built with `create`; `warm_up` before the first turn."""

    toolbox: Toolbox
    interpreter: Interpreter
    chooser: Chooser | None
    lm: CausalLM | None
    chat_sessions: dict[Language, LmSession]
    manual: Manual
    understanding: Understanding | None = None
    """The parser's model; None: the rules alone decide."""
    remote: RemoteTalk | None = None
    """A server outside the car that free talk may go to."""
    agent: Agent | None = None
    memory: TaskMemory = field(default_factory=TaskMemory)
    older: Summary = field(default_factory=Summary)
    default_language: Language = "en"
    repeat_below: float = REPEAT_BELOW_LOGPROB
    reply_tokens: int = CHAT_TOKENS
    """A free answer is cut here."""
    confirm: frozenset[str] = frozenset()
    """Tools whose calls are asked about first, where they open the car."""
    clock: Callable[[], float] = time.perf_counter
    _history: OrderedDict[int, _Exchange] = field(default_factory=OrderedDict)
    chat_ttft_ms: float = 0.0
    """Time to the first token of the last chat reply; 0 when the manual answered."""
    _chats: int = 0
    _open_chat: int = 0
    """Number of the chat whose stream is going on, 0 without one: it alone may use the sessions."""
    _acted: dict[int, list[ToolOutcome]] = field(default_factory=dict)
    """By turn: what an integrator's tools did. Nobody can take it back."""

    @classmethod
    def create(
        cls,
        tree: SignalBackend | None = None,
        lm: CausalLM | None = None,
        places: Places | None = None,
        default_language: Language = "en",
        *,
        by_sound: bool = True,
        reply_tokens: int = CHAT_TOKENS,
        now: Callable[[], datetime] = datetime.now,
        agent: AgentSetup | None = None,
        agent_lm: CausalLM | None = None,
        parser: ParserEngine | None = None,
        remote: RemoteTalk | None = None,
        manual: Manual | None = None,
        confirm: Iterable[str] = (),
    ) -> DialogueManager:
        """tree: signals (the embedded ones by default); lm: None leaves open choices to the words and answers no
        talk, and asks no tools. agent_lm: the model of the agent loop, where it is another one. parser: the model that
        reads whole sentences; None: the rules alone decide. remote: a server that answers free talk where it can.
        manual: the shipped one, by names alone, by default. confirm: tools asked about before they open the car.
        """
        known = load_places() if places is None else places
        backend = EmbeddedTree() if tree is None else tree
        access = SignalAccess(backend, backend.signals)
        sessions: dict[Language, LmSession] = {}
        toolbox, lexicon = Toolbox(access, known, now), build_lexicon(known, by_sound=by_sound)
        memory = TaskMemory()
        chooser, looks_up = None, None
        if lm is not None:
            sessions = {"en": _session(lm, "chat-en"), "zh": _session(lm, "chat-zh")}
            chooser = Chooser(lm, _session(lm, "choose"))
            model = agent_lm or lm
            looks_up = Agent.create(model, _session(model, "agent"), toolbox, lexicon, memory, agent or AgentSetup())
        return cls(
            toolbox=toolbox,
            interpreter=Interpreter(lexicon),
            chooser=chooser,
            lm=lm,
            chat_sessions=sessions,
            manual=manual or shipped_manual(),
            understanding=(None if parser is None else Understanding.create(parser, lexicon, known, toolbox.place_of)),
            remote=remote,
            agent=looks_up,
            memory=memory,
            older=Summary() if lm is None else Summary(lm, _session(lm, "summary")),
            default_language=default_language,
            reply_tokens=reply_tokens,
            confirm=frozenset(confirm),
        )

    @property
    def static_sessions(self) -> tuple[LmSession, ...]:
        """The texts that begin with what never changes: before `warm_up` they are empty, behind it they hold that."""
        agent = () if self.agent is None else (self.agent.loop.session,)
        chooser = () if self.chooser is None else (self.chooser.session,)
        return (*self.chat_sessions.values(), *chooser, *agent)

    def warm_up(self, scheduler: LlmScheduler = UNSCHEDULED) -> None:
        """Prefill every static prefix, compile every kind of grammar, fill the caches of the matcher."""
        for text, language in _WARM_UP:
            self._decision(text, language, self.interpreter.parse(text, language))
            self.manual.find(text, language)
            self.manual.by_meaning(text, language, how_to=True, question=True)
        if self.lm is None:
            return
        for language, session in self.chat_sessions.items():
            fill(session, self._history_tokens(language), scheduler.on(session, ahead=True))
        assert self.chooser is not None
        self.chooser.warm_up(scheduler)
        if self.agent is not None:
            self.agent.loop.warm_up(scheduler)

    def close(self) -> None:
        """End the threads of the agent's tools, and the connection to a server. From any thread, twice too."""
        if self.remote is not None:
            self.remote.close()
        if self.agent is not None:
            self.agent.close()

    def plan(
        self,
        text: str,
        language: Language,
        *,
        avg_logprob: float | None = None,
        number_margin: float = math.inf,
        turn_id: int | None = None,
        cancelled: Callable[[], bool] = never_cancelled,
        scheduler: LlmScheduler = UNSCHEDULED,
    ) -> Plan:
        """What the text means here; changes nothing. A plan whose open choice was `cancelled` in its midst is `cut`.

        Questions that tools answer are answered here: they only read.

        `avg_logprob`: the recogniser's, None for typed text; a number or name heard below `repeat_below` is asked for
        again. `number_margin`: of its least certain number, see Transcript; below MISTAKEN_BELOW it is asked for, too.
        `scheduler` is told of every step of the model and may make it wait.
        """
        made = self._meant(text, language, _Heard(avg_logprob, number_margin), turn_id, cancelled, scheduler)
        access = self.toolbox.access
        asks = made.asks and replace(made.asks, calls=as_meant(made.asks.calls, text, access))
        plan = replace(made, calls=as_meant(made.calls, text, access), asks=asks)
        sensitive = any(opens_the_car(call) and call.name in self.confirm for call in plan.calls)
        if not sensitive or access.moving():  # moving, it is refused
            return plan
        question = Question("confirm", plan.calls)
        waiting = self.memory.asked(turn_id, self.clock())
        if waiting is not None and (waiting.slot, waiting.calls) == (question.slot, question.calls):
            return plan
        return plan_of_question(question, text, language, plan.confidence)

    def _meant(
        self,
        text: str,
        language: Language,
        heard: _Heard,
        turn_id: int | None,
        cancelled: Callable[[], bool],
        scheduler: LlmScheduler,
    ) -> Plan:
        """The plan as the words say it, left being the driver's side."""
        if not any(character.isalnum() for character in text):
            return Plan(text, language)
        avg_logprob, number_margin = heard.avg_logprob, heard.number_margin
        doubtful = avg_logprob is not None and avg_logprob < self.repeat_below
        chosen = self._chosen(text, language, turn_id)
        if chosen is not None and not doubtful:
            return plan_of_choice(chosen, text, language, self.toolbox.show)
        waiting = self.memory.asked(turn_id, self.clock())
        answer = None if waiting is None else answer_of(text, language, waiting, self.interpreter)
        mistaken = answer is not None and number_margin < MISTAKEN_BELOW and _set_by_number(answer.calls)
        if answer is not None and not (doubtful and answer.calls) and not mistaken:
            return plan_of_answer(answer, text, language)
        plan = self._planned(text, language, chosen is not None, heard, cancelled, scheduler)
        talk = plan.chat and plan.decided_by != "manual" and not is_question(text, language)
        unfit = plan.not_understood or (talk and len(tokens_of(text)) <= SHORT)
        if waiting is None or waiting.again or not unfit:
            return plan
        return plan_of_question(replace(waiting, again=True), text, language)

    def _planned(
        self,
        text: str,
        language: Language,
        chosen: bool,
        heard: _Heard,
        cancelled: Callable[[], bool],
        scheduler: LlmScheduler,
    ) -> Plan:
        """The plan of a text that answers no question. chosen: it chooses a place, but was heard with doubt."""
        doubtful = heard.avg_logprob is not None and heard.avg_logprob < self.repeat_below
        parse = self.interpreter.parse(text, language, self._last_call())
        found = self.manual.find(text, language)
        explained = _explained(found, parse)
        decision = self._decision(text, language, parse)
        how_to = found is None and asks_how(decision, parse)
        asks = how_to or (found is None and explains(text) and only_refused(decision, parse))
        answer = self.manual.by_meaning(text, language, how_to=how_to, question=True) if asks else None
        if answer is not None:
            return plan_of_manual(text, language, answer, decision)
        looked_up = None if found is not None else self._look_up(text, language, parse, cancelled, scheduler)
        if looked_up is not None:
            return looked_up
        mistaken = heard.number_margin < MISTAKEN_BELOW and _set_by_number(decision.calls)
        unsure = mistaken or (doubtful and decision.rests_on_detail)
        misheard = (self._misheard(parse, heard) or unsure) and not explained
        half_heard = parse.half_heard and found is None and decision.kind == "rules"
        question = None if explained or misheard or chosen else self._question(decision, parse, language)
        if question is not None:
            return plan_of_question(question, text, language, decision.confidence)
        if chosen or misheard or half_heard:
            return Plan(text, language, (ToolCall("refuse", {"reason": "not_understood", "what": text.strip()[:80]}),))
        decided = None if explained else plan_of_decision(decision, text, language, explained=found is not None)
        if decided is not None and not decided.chat:
            return decided
        if decided is not None or not parse.clauses or explained:
            answer = self._from_manual(text, language, found, how_to=how_to)
            if answer is not None:
                return plan_of_manual(text, language, answer, decision)
            decided_by: DecidedBy = "model" if decided is not None or self.lm is not None else "rule"
            return Plan(text, language, chat=True, decided_by=decided_by, confidence=decision.confidence)
        plan = self._commands(text, language, parse.clauses, cancelled, scheduler)
        return with_decision(plan, decision)

    def _question(self, decision: Decision, parse: Parse, language: Language) -> Question | None:
        """What must be asked before anything is done; None where nothing must."""
        if decision.kind == "nothing":
            return None
        if decision.kind == "ask" and can_be_confirmed(decision.offered, language):
            return Question("confirm", decision.offered)
        program = [call.name for call in decision.calls] if decision.kind == "program" else []
        return lacking(parse, program)

    def _from_manual(self, text: str, language: Language, found: Found | None, *, how_to: bool) -> ManualAnswer | None:
        """What the manual says to talk; None: the model answers. how_to: the manual was searched already."""
        if found is not None:
            return self.manual.answer(found, language)
        if how_to:
            absent = self.manual.knows_meaning and may_be_absent(text, language)
            return self.manual.absent(text, language) if absent else None
        return self.manual.by_meaning(text, language, how_to=False, question=is_question(text, language))

    def _decision(self, text: str, language: Language, parse: Parse) -> Decision:
        """What the parser's model says to it; without a model the rules decide."""
        if self.understanding is None:
            return Decision("rules")
        return self.understanding.decide(text, language, parse, self._last_call())

    def _commands(
        self,
        text: str,
        language: Language,
        clauses: Sequence[Clause],
        cancelled: Callable[[], bool],
        scheduler: LlmScheduler,
    ) -> Plan:
        """The calls of clauses; where the words leave several, the model chooses."""
        task = task_of(clauses)
        calls: list[ToolCall] = []
        decided_by: DecidedBy = "rule"
        ttft_ms = total_ms = 0.0
        for clause in clauses:
            if len(clause.candidates) == 1 or self.chooser is None:
                calls.append(clause.call)
                continue
            start = self.clock()
            wanted = [candidate.call for candidate in clause.candidates]
            choice = self.chooser.choose(
                clause.evidence.text, wanted, cancelled=cancelled, scheduler=scheduler, task=task
            )
            if choice is None:
                return Plan(text, language, cut=True, task=task)
            calls.append(choice.call)
            decided_by = "model"
            ttft_ms = ttft_ms or choice.ttft_ms
            total_ms += (self.clock() - start) * 1e3
        return Plan(text, language, tuple(calls), False, decided_by, ttft_ms, total_ms, task=task)

    def _chosen(self, text: str, language: Language, turn_id: int | None) -> Selection | None:
        """Which of the places named before is meant."""
        memory = self.memory
        recent = memory.turns_since_latest(turn_id) <= RECENT_TURNS
        chosen = selection_of(text, language, memory.latest(turn_id), memory.open_question(turn_id), recent=recent)
        if chosen is None or chosen.verb != "which":
            return chosen
        newer = max((number for number, one in self._history.items() if one.last_call is not None), default=0)
        there = chosen.offer.kind == "found" and chosen.by_pronoun and newer > chosen.offer.turn_id
        return None if there else chosen  # "take me there": to what was asked about since

    def _look_up(
        self,
        text: str,
        language: Language,
        parse: Parse,
        cancelled: Callable[[], bool],
        scheduler: LlmScheduler,
    ) -> Plan | None:
        """The plan of a turn that tools answer; None where they have nothing to say."""
        wanted = None if self.agent is None else self.agent.wanted(text, language, parse)
        if self.agent is None or wanted is None:
            return None
        answer = self.agent.answer(wanted.question, cancelled=cancelled, scheduler=scheduler)
        if answer.cut:
            return Plan(text, language, cut=True)
        if not answer.outcomes and not answer.acts:
            return None
        plan = self._commands(text, language, wanted.kept, cancelled, scheduler)
        if plan.cut:
            return plan

        def phrase(question: str, data: str, spoken: Language) -> str:
            return self._phrased(question, data, spoken, cancelled, scheduler)

        said = self.agent.said(answer, text, language, phrase)
        if cancelled() or scheduler.stopped:
            return Plan(text, language, cut=True)
        return replace(
            plan,
            said=said,
            read=answer.outcomes,
            acts=answer.acts,
            offer=self.agent.found(answer, 0),
            decided_by="model",
            llm_ttft_ms=answer.ttft_ms,
            llm_ms=plan.llm_ms + answer.ms,
        )

    def _phrased(
        self, question: str, data: str, language: Language, cancelled: Callable[[], bool], scheduler: LlmScheduler
    ) -> str:
        """The model's words for what a tool said, empty where none may be spoken. It can call nothing here."""
        assert self.lm is not None
        session = self.chat_sessions[language]
        asked = f"{question[:200]}\n{_DATA[language]}{data[:800]}"
        messages = [{"role": "system", "content": _SYSTEM[language]}, {"role": "user", "content": asked}]
        steps = scheduler.on(session)
        fill(session, self.lm.chat.encode(messages, self.lm.tokenizer), steps, cancelled=cancelled)
        tokens = session.generate(max_new_tokens=self.reply_tokens, cancelled=cancelled, at_boundary=steps.at_token)
        words = model_words(tokens, self.lm.tokenizer, self.reply_tokens)
        return "".join(allowed(words, TalkFilter(language), cancelled)).strip()

    def execute(self, plan: Plan, turn_id: int) -> list[ToolResult]:
        """Run the plan's calls. A call that fails does not stop the others. The results of what was read come first."""
        results = [self.toolbox.execute(call, turn_id) for call in plan.calls]
        done = [] if self.agent is None else self.agent.act(plan.acts)
        if done:
            self._acted.setdefault(turn_id, []).extend(done)
        exchange = self._exchange(turn_id, plan.text, plan.language)
        offer = plan.offer or asked_about(results)
        if offer is not None:
            self.memory.keep(replace(offer, turn_id=turn_id))
        if plan.asks is not None:
            self.memory.ask(turn_id, plan.asks, self.clock())
        acted = [result.call for result in results if result.status == "done" and kept_in_mind(result.call)]
        exchange.last_call = acted[-1] if acted else exchange.last_call
        return [*map(as_result, plan.read), *results, *map(as_result, done)]

    def reply(self, plan: Plan, results: list[ToolResult], language: Language, *, turn_id: int = 0) -> str:
        """The spoken text of tool results, after what was looked up; empty without either."""
        parts = [plan.said, say([result for result in results if result.call.name in TOOL_NAMES], language)]
        if plan.acts and self.agent is not None:
            parts.append(self.agent.said_of(self._acted.get(turn_id, []), language))
        return ("" if language == "zh" else " ").join(part for part in parts if part)

    def chat(
        self,
        text: str,
        language: Language,
        *,
        turn_id: int | None = None,
        cancelled: Callable[[], bool] = never_cancelled,
        scheduler: LlmScheduler = UNSCHEDULED,
        from_manual: ManualAnswer | None = None,
    ) -> Iterator[str]:
        """Stream an answer: the manual's (the plan's, else what the text names), else at most two sentences of
        the model's. Never half a character.

        Ends early when `cancelled`, and when a later chat has begun meanwhile. `scheduler` as in `plan`; the manual's
        answer takes no model step and does not ask it.
        """
        found = self.manual.find(text, language) if from_manual is None else None
        told = from_manual if found is None else self.manual.answer(found, language)
        if turn_id is not None:
            self._exchange(turn_id, text if told is None else told.text, language).talk = True
        if told is not None or self.lm is None:
            self.chat_ttft_ms = 0.0
            yield _SILENT[language] if told is None else told.said
            return
        self._chats += 1
        number = self._open_chat = self._chats

        def over() -> bool:
            return self._open_chat != number or cancelled()

        try:
            start = self.clock()
            session, tokenizer = self.chat_sessions[language], self.lm.tokenizer

            def own(stop: Callable[[], bool]) -> Iterator[str]:
                steps = scheduler.on(session)
                fill(session, self._chat_tokens(text, language, turn_id=turn_id), steps, cancelled=stop)
                words = session.generate(max_new_tokens=self.reply_tokens, cancelled=stop, at_boundary=steps.at_token)
                yield from model_words(words, tokenizer, self.reply_tokens)

            sources: list[Iterator[str]] = [own(over)]
            if self.remote is not None:
                messages = self._remote_messages(text, language, turn_id)
                sources.insert(0, self.remote.words(messages, own, over))
            yield from self._talk(sources, text, language, start, over)
        finally:
            if self._open_chat == number:
                self._open_chat = 0

    def _talk(
        self,
        sources: Sequence[Iterator[str]],
        asked: str,
        language: Language,
        start: float,
        over: Callable[[], bool],
    ) -> Iterator[str]:
        """What may be spoken of the first source that does not fail before it has said anything."""
        self.chat_ttft_ms = 0.0

        def timed(words: Iterator[str]) -> Iterator[str]:
            for piece in words:
                self.chat_ttft_ms = self.chat_ttft_ms or (self.clock() - start) * 1e3
                yield piece

        talk = TalkFilter(language, asked)
        for words in sources:
            talk = TalkFilter(language, asked)
            try:
                yield from allowed(timed(words), talk, over)
                break
            except AnswerCut:
                continue
        if not over() and not talk.said.strip():
            yield (_UNSURE if is_question(asked, language) else _CANNOT)[language]

    def prepare(
        self, cancelled: Callable[[], bool] = never_cancelled, *, scheduler: LlmScheduler = UNSCHEDULED
    ) -> bool:
        """Prefill what was said so far, so that the next chat only computes its own words. For idle time after a turn.

        Every language of the history is prefilled, the last one first; where nothing changed that costs about a
        millisecond. True when all is ready; False while a chat is going on
        or when `cancelled`, which is asked every PREPARE_CHUNK tokens: call it again later.
        """
        if self.lm is None:
            return True
        if self._open_chat:
            return False
        if not self.older.write(cancelled, scheduler):
            return False
        spoken = [exchange.language for exchange in reversed(self._history.values())] or [self.default_language]
        return all(self._prefilled(language, cancelled, scheduler) for language in dict.fromkeys(spoken))

    def _prefilled(self, language: Language, cancelled: Callable[[], bool], scheduler: LlmScheduler) -> bool:
        session = self.chat_sessions[language]
        tokens = tuple(self._history_tokens(language))
        if session.cached < len(tokens) or session.tokens[: len(tokens)] != tokens:
            steps = scheduler.on(session, ahead=True, task="background")
            fill(session, tokens, steps, at_most=PREPARE_CHUNK, cancelled=cancelled)
        return session.cached >= len(tokens)

    def is_complete(
        self,
        text: str,
        language: Language,
        *,
        avg_logprob: float | None = None,
        number_margin: float = math.inf,
    ) -> bool:
        """True when the transcript is already a whole command that is unlikely to go on, and `plan` would act on it."""
        parse = self.interpreter.parse(text, language, self._last_call())
        if not parse.complete or self._misheard(parse, _Heard(avg_logprob, number_margin)):
            return False
        if self._decision(text, language, parse).kind not in ("rules", "agreed") or lacking(parse) is not None:
            return False
        return not _explained(self.manual.find(text, language), parse)

    def _misheard(self, parse: Parse, heard: _Heard) -> bool:
        """True where a command rests on a detail that was heard with little confidence: it is asked for again."""
        if heard.number_margin < MISTAKEN_BELOW and _set_by_number([clause.call for clause in parse.clauses]):
            return True
        doubtful = heard.avg_logprob is not None and heard.avg_logprob < self.repeat_below
        return doubtful and any(map(_rests_on_detail, parse.clauses))

    def last_language(self) -> Language | None:
        """The language of the last turn that was understood; None before the first."""
        return next((exchange.language for exchange in reversed(self._history.values())), None)

    def heard(self, turn_id: int, text: str) -> None:
        """Tell what of the turn's reply was really heard; only that enters the history."""
        if turn_id in self._history:
            self._history[turn_id].heard = text

    def begin_anew(self) -> None:
        """Forget the dialogue and the trip: what was said, asked, offered and shown. No turn may be going on."""
        self._history.clear()
        self._acted.clear()
        self.memory.clear()
        self.older.clear()
        self.toolbox.forget()

    def roll_back(self, turn_id: int) -> int:
        """Take back what the turn did and said. Returns the number of signal writes undone. Raises SignalError."""
        self._history.pop(turn_id, None)
        self.memory.forget(turn_id)
        undone = self.toolbox.roll_back(turn_id)
        acted = [outcome.call.name for outcome in self._acted.get(turn_id, []) if outcome.status == "done"]
        if acted:
            raise SignalError("not_taken_back", ", ".join(acted))
        return undone

    def _exchange(self, turn_id: int, text: str, language: Language) -> _Exchange:
        exchange = self._history.get(turn_id)
        if exchange is None:
            exchange = self._history[turn_id] = _Exchange(text, language)
            self.memory.begin(turn_id)
        exchange.user, exchange.language, exchange.talk = text, language, False
        while len(self._history) > KEPT_EXCHANGES + 1:
            _, left = self._history.popitem(last=False)
            if left.talk:
                self.older.leaves(left.user, left.heard, left.language)
        return exchange

    def _last_call(self) -> ToolCall | None:
        return next((e.last_call for e in reversed(self._history.values()) if e.last_call is not None), None)

    def _chat_tokens(self, text: str, language: Language, *, turn_id: int | None = None) -> list[int]:
        assert self.lm is not None
        messages = [*self._messages(language, turn_id), {"role": "user", "content": text[:400]}]
        return self.lm.chat.encode(messages, self.lm.tokenizer)

    def _remote_messages(self, text: str, language: Language, turn_id: int | None) -> list[dict[str, str]]:
        """What may leave the car: the question, and earlier free talk where the profile allows it. No command, no trip
        and nothing that the car said about itself is in it.
        """
        assert self.remote is not None
        messages = [{"role": "system", "content": _SYSTEM[language]}]
        if self.remote.history:
            talks = [e for known_id, e in self._history.items() if known_id != turn_id and e.talk and e.heard]
            for exchange in talks[-KEPT_EXCHANGES:]:
                messages.append({"role": "user", "content": exchange.user[:400]})
                messages.append({"role": "assistant", "content": exchange.heard[:400]})
        return [*messages, {"role": "user", "content": text[:400]}]

    def _history_tokens(self, language: Language) -> list[int]:
        """What every chat text of this language begins with until more is heard."""
        assert self.lm is not None
        return self.lm.chat.encode(self._messages(language), self.lm.tokenizer, add_generation_prompt=False)

    def _messages(self, language: Language, turn_id: int | None = None) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": _SYSTEM[language]}, *self.older.messages()]
        earlier = [e for known_id, e in self._history.items() if known_id != turn_id and e.heard]
        for exchange in earlier[-KEPT_EXCHANGES:]:
            messages.append({"role": "user", "content": exchange.user[:400]})
            messages.append({"role": "assistant", "content": exchange.heard[:400]})
        return messages


_WARM_UP: tuple[tuple[str, Language], ...] = (
    ("set the driver temperature to twenty two degrees", "en"),
    ("turn on the C tidding for the driver and open the sunroof", "en"),
    ("take me to the nearest charging station", "en"),
    ("把主教温度掉到二十二度", "zh"),
    ("打开后窗除雾，放一首周杰伦的歌", "zh"),
    ("导航到最近的充电站", "zh"),
)
