"""Model against rules: who decides, and that a guard stops what must not happen."""

from __future__ import annotations

import pytest

from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.understanding import Understanding, plan_of_decision
from pipeline.frames import Language, ToolCall
from pipeline.nlg.actions import say
from pipeline.nlu.asking import lacking
from pipeline.nlu.interpreter import Interpreter
from pipeline.nlu.lexicon import Lexicon, build_lexicon
from pipeline.nlu.numbers import find_numbers
from pipeline.nlu.parser.decision import Decision, Judge
from pipeline.nlu.parser.reader import Program, ProgramCall
from pipeline.nlu.parser.scope import turned
from pipeline.nlu.phonetics import tokens_of
from pipeline.vehicle.places import load_places


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return build_lexicon(load_places())


def act(*calls: ToolCall, sure: float = 0.999, number: str = "") -> Program:
    found = find_numbers([token.text for token in tokens_of(number)])
    read = tuple(ProgramCall(call, sure, found[0] if found else None) for call in calls)
    return Program("act", sure, sure, read, "", sure)


def no_command(reason: str, what: str = "", sure: float = 0.99) -> Program:
    return Program(reason, sure, 1 - sure, (), what, sure)


def decide(program: Program, text: str, lexicon: Lexicon, language: Language = "en") -> Decision:
    parse = Interpreter(lexicon).parse(text, language)
    return Judge().decide(program, parse, None)


SUNROOF = ToolCall("set_sunroof", {"position": "open"})


WARM = ToolCall("set_seat_heating", {"zone": "driver", "action": "set", "value": 50.0})
COOL = ToolCall("set_seat_ventilation", {"zone": "driver", "action": "set", "value": 50.0})
ENDED = ToolCall("cancel_navigation", {})
NEXT = ToolCall("control_media", {"action": "next"})


def heat(value: float, action: str = "set") -> ToolCall:
    return ToolCall("set_temperature", {"zone": "all", "action": action, "value": value})


def window(zone: str, value: float = 100.0, action: str = "set") -> ToolCall:
    return ToolCall("set_window", {"zone": zone, "action": action, "value": value})


@pytest.mark.parametrize(
    ("text", "program", "kind"),
    [
        ("open the sunroof", act(SUNROOF), "agreed"),
        ("open the sunroof", act(SUNROOF, sure=0.3), "agreed"),  # the rules say so too
        ("you opened the sunroof", no_command("statement"), "nothing"),
        ("open the sunroof in ten minutes", no_command("delayed"), "nothing"),
        ("open the sunroof", no_command("statement", sure=0.4), "rules"),
        ("tell me a story", no_command("none_talk"), "rules"),
        ("how cold is it outside", no_command("none_talk"), "rules"),  # asking changes nothing
        ("close the sunroof", act(SUNROOF), "program"),
        ("close the sunroof", act(SUNROOF, sure=0.7), "ask"),
        ("close the sunroof", act(SUNROOF, sure=0.2), "rules"),
        ("let the sky in through that sunroof", act(SUNROOF), "program"),
        ("let the sky in", act(SUNROOF, sure=0.85), "rules"),  # nobody named a sunroof
        ("let the sky in", act(SUNROOF), "program"),  # a model that is sure of it needs no word of the lexicon
        ("shift into reverse and open the sunroof", act(SUNROOF), "ask"),
        ("not open, close the sunroof", act(SUNROOF, sure=0.85), "ask"),
        ("temperature 22 for me", act(heat(22.0), number="22"), "program"),
        ("temperature 22 for me and 25", act(heat(22.0), sure=0.85, number="22"), "ask"),  # what is 25?
        ("turn off the air conditioning", act(SUNROOF), "rules"),  # it read what nobody named
        ("close the sunroof, never mind", act(SUNROOF, sure=0.3), "ask"),  # rules see no scope
        ("open the sunroof, never mind", act(SUNROOF), "ask"),  # nor does a model that agrees with them
        ("open the sunroof if it gets hot", act(SUNROOF), "ask"),
        ("open the sunroof if you can", act(SUNROOF), "agreed"),
        ("stop nagging me about the turns, navigation", act(ENDED), "ask"),  # it is the nagging that shall stop
        ("quit pestering me, navigation", act(ENDED), "ask"),
        ("stop navigating", act(ENDED), "agreed"),
        ("I love an open sunroof", act(SUNROOF), "nothing"),  # what somebody likes is no wish for now
        ("we really like open windows", act(window("driver")), "nothing"),
        ("I'd like to open the sunroof", act(SUNROOF), "agreed"),
        ("I love you", no_command("none_talk"), "rules"),
        ("stop the navigation", act(ENDED), "agreed"),
        ("open all windows except mine", act(window("all")), "ask"),
        ("open all windows except mine", act(window("passenger"), window("rear"), sure=0.8), "program"),
        ("open my window, I mean the passenger's", act(window("passenger"), sure=0.8), "program"),
        ("not the roof, open my window", act(window("driver", 0.0), sure=0.8), "ask"),  # a negation: it must be surer
        ("close my window, no, actually open it", act(window("driver", 0.0)), "ask"),  # it read what was taken back
        ("set the temperature to 20, no wait, 22", act(heat(22.0), number="22"), "agreed"),
        ("turn on the seat heating, I mean the seat ventilation", act(WARM), "ask"),
        ("turn on the seat heating, I mean the seat ventilation", act(COOL, sure=0.8), "program"),
        ("will I need a jacket next wednesday", act(NEXT), "nothing"),
        ("next song please", act(NEXT), "agreed"),
        ("seat heating, second level", act(WARM), "ask"),  # which is not "on"
        ("remind me to open the sunroof", act(SUNROOF, sure=0.75), "rules"),
        ("how do I open the sunroof", act(SUNROOF), "rules"),
        ("set it to 72 degrees fahrenheit", no_command("unsupported"), "rules"),  # whose reply names the unit
        ("set the temperature to 50 degrees", act(heat(30.0), sure=0.75, number="30"), "rules"),  # and the range
        ("what if the sunroof is open", no_command("hypothetical"), "nothing"),  # no question about its state
        ("open my window thirty percent", act(window("driver", 30.0, "change"), number="30"), "rules"),
        ("play Yesterday by the Beatles", act(ToolCall("play_media", {"query": "the Beatles"})), "agreed"),
        ("stop the music", act(ToolCall("control_media", {"action": "play"})), "program"),
        ("it was cold yesterday", act(heat(2.0, "change"), sure=0.85), "rules"),  # a feeling told, and not meant
    ],
)
def test_who_decides(text: str, program: Program, kind: str, lexicon: Lexicon) -> None:
    assert decide(program, text, lexicon).kind == kind


def test_half_of_what_was_said_is_not_done_in_silence(lexicon: Lexicon) -> None:
    text = "关闭空调打开所有车窗打开天窗"
    assert [clause.call.name for clause in Interpreter(lexicon).parse(text, "zh").clauses] == ["set_sunroof"]
    decided = decide(act(window("all"), sure=0.2), text, lexicon, "zh")
    assert (decided.kind, decided.fault) == ("ask", "left out")


def test_words_that_were_misheard_are_the_rules(lexicon: Lexicon) -> None:
    muted = ToolCall("set_volume", {"target": "media", "action": "set", "value": 0.0})
    assert decide(act(muted, sure=0.94), "道航静音", lexicon, "zh").kind == "rules"
    assert decide(no_command("unsupported", sure=0.6), "打开主价做以加热", lexicon, "zh").kind == "rules"
    assert decide(no_command("unsupported", sure=0.99), "打开主价做以加热", lexicon, "zh").kind == "nothing"


def test_what_the_model_dropped_is_done_as_the_rules_read_it(lexicon: Lexicon) -> None:
    stopped = ToolCall("control_media", {"action": "stop"})
    assert decide(act(stopped, sure=0.7), "关掉音乐打开天窗", lexicon, "zh").kind == "rules"
    avoided = ToolCall("set_route_options", {"avoid": ["motorway"]})
    assert decide(act(avoided, sure=0.7), "去机场不走高速", lexicon, "zh").kind == "rules"
    titled = ToolCall("play_media", {"query": "Close the Window"})
    assert decide(act(titled, sure=0.9), "play the song Close the Window", lexicon).kind != "rules"


@pytest.mark.parametrize(
    ("reason", "en", "zh"),
    [
        ("delayed", "right away, not later", "不能定时"),
        ("condition", "not on a condition", "不能按条件"),
        ("statement", "changed nothing", "没有改动"),
        ("taken_back", "leave it as it is", "保持不变"),
        ("forbidden", "by voice, for safety", "不能用语音"),
        ("unsupported", "can't do that: seat massage", "做不到：seat massage"),
    ],
)
def test_what_is_not_done_is_said_by_its_reason(reason: str, en: str, zh: str) -> None:
    dialogue = DialogueManager.create(by_sound=False)
    for language, words in (("en", en), ("zh", zh)):
        decision = Decision("nothing", 0.98, reason=reason, what="seat massage")
        plan = plan_of_decision(decision, "turn on the seat massage", language, explained=False)  # type: ignore[arg-type]
        assert plan is not None
        assert (plan.decided_by, plan.confidence) == ("model", 0.98)
        results = dialogue.execute(plan, 1)
        assert [result.status for result in results] == ["refused"]
        assert words in say(results, language)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["none_talk", "how_to"])
def test_talk_and_how_to_do_it_are_answered(reason: str) -> None:
    plan = plan_of_decision(Decision("nothing", 0.9, reason=reason), "how do I open it", "en", explained=True)
    assert plan is not None
    assert (plan.chat, plan.calls, plan.decided_by) == (True, (), "manual")


def test_a_lacking_thing_is_no_other_that_its_name_holds(lexicon: Lexicon) -> None:
    """ "The call volume" is not the volume."""
    louder = ToolCall("set_volume", {"target": "media", "action": "change", "value": 10.0})
    program = Program("unsupported", 0.98, 0.02, (ProgramCall(louder, 0.6),), "call volume", 0.98)
    decision = decide(program, "make the call volume louder", lexicon)
    assert (decision.kind, decision.calls, decision.what) == ("nothing", (), "call volume")


def test_a_forbidden_word_may_be_heated_or_sung(lexicon: Lexicon) -> None:
    wheel = ToolCall("set_steering_wheel_heating", {"action": "set", "value": 50.0})
    assert decide(act(wheel), "方向盘热起来", lexicon, "zh").calls == (wheel,)
    song = ToolCall("play_media", {"query": "Open the Door"})
    read = Program("act", 0.99, 0.99, (ProgramCall(song, 0.99, words=(5, 18)),), "", 0.99)
    assert decide(read, "Play Open the Door", lexicon).calls == (song,)
    assert decide(act(wheel), "turn the steering wheel left", lexicon).kind == "rules"


@pytest.mark.parametrize(("text", "language"), [("导航到西湖路", "zh"), ("导航到科苑南路", "zh"), ("去外滩医院", "zh")])
def test_a_known_name_inside_another_is_not_the_place(text: str, language: Language, lexicon: Lexicon) -> None:
    for clause in Interpreter(lexicon).parse(text, language).clauses:
        place = clause.call.arguments.get("place", "")
        assert place == "" or place.endswith(("路", "医院")), clause.call


def test_what_may_be_confirmed_is_offered(lexicon: Lexicon) -> None:
    closed = ToolCall("set_sunroof", {"position": "closed"})
    decision = decide(act(closed, sure=0.7), "open the sunroof", lexicon)
    assert (decision.kind, decision.offered) == ("ask", (closed,))
    forbidden = decide(act(closed), "shift into reverse and open the sunroof", lexicon)
    assert (forbidden.kind, forbidden.offered) == ("ask", ())


def test_rules_that_the_model_reads_otherwise_ask_first(lexicon: Lexicon) -> None:
    wheel = ToolCall("set_steering_wheel_heating", {"action": "set", "value": 100.0})
    asked = decide(act(wheel, sure=0.8), "Give the steering wheel its highest heat", lexicon)
    assert asked.kind != "rules"
    backwards = decide(act(ToolCall("control_media", {"action": "rewind"}), sure=0.65), "back one track", lexicon)
    assert (backwards.kind, backwards.fault) == ("ask", "differs")
    assert (
        decide(act(window("driver", 30.0, "change"), sure=0.75), "driver window thirty percent", lexicon).kind
        == "rules"
    )


def test_rules_do_not_act_among_unknown_words(lexicon: Lexicon) -> None:
    none = no_command("not_understood", sure=0.3)
    assert decide(none, "turn the volume up", lexicon).kind == "rules"
    assert decide(none, "my cousin Frederick would turn the volume up", lexicon).fault == "unknown words"


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("close my window instead of the passenger's", True),
        ("关我的窗，不是副驾的窗", True),
        ("天再黑一点就开大灯", True),
        ("车里过了三十度就开空调", True),
        ("再暖一点就好", False),
        ("打开风扇，我是说空调", True),
        ("我是说打开空调", False),
    ],
)
def test_words_that_surely_turn_a_sentence(text: str, certain: bool) -> None:
    assert turned(text) is certain


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("升起尾门", ToolCall("set_trunk", {"open": True})),
        ("合上尾门", ToolCall("set_trunk", {"open": False})),
        ("静音解除", ToolCall("restore_volume", {"target": "media"})),
        ("车内灯熄掉", ToolCall("set_interior_light", {"on": False})),
    ],
)
def test_opposites_are_told_apart(text: str, call: ToolCall, lexicon: Lexicon) -> None:
    assert [clause.call for clause in Interpreter(lexicon).parse(text, "zh").clauses] == [call]


def test_a_date_is_no_temperature(lexicon: Lexicon) -> None:
    rules = Interpreter(lexicon)
    assert not rules.parse("mark april twenty as my brother's birthday", "en").clauses
    assert rules.parse("twenty two for me please", "en").clauses[0].call.arguments["value"] == 22.0


def test_who_is_to_be_told_is_not_done(lexicon: Lexicon) -> None:
    for text, language in (("remind me to go to the post office", "en"), ("提醒我去公司", "zh")):
        calls = [clause.call for clause in Interpreter(lexicon).parse(text, language).clauses]  # type: ignore[arg-type]
        assert [call.arguments.get("reason") for call in calls] == ["unsupported"], text


class Counting:
    """A reader that reads nothing, and how often it was asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def read(self, text: str, last_call: ToolCall | None) -> Program | None:
        self.texts.append(text)
        return None


def test_the_same_sentence_is_read_once_in_a_row(lexicon: Lexicon) -> None:
    """Whether a turn is complete and what it means are asked one after the other, in the trailing silence."""
    reader, rules = Counting(), Interpreter(lexicon)
    understanding = Understanding(reader, lambda said, _language: said, rules)  # type: ignore[arg-type]

    def decided(text: str, last_call: ToolCall | None = None) -> Decision:
        return understanding.decide(text, "en", rules.parse(text, "en", last_call), last_call)

    assert decided("open the sunroof") is decided("open the sunroof")
    decided("warmer")
    decided("warmer", heat(2.0, "change"))  # a follow-up is another sentence
    assert reader.texts == ["open the sunroof", "warmer", "warmer"]


MASSAGE = "turn on the seat massage"


@pytest.mark.parametrize(
    ("text", "program", "kind"),
    [
        (MASSAGE, no_command("unsupported", "seat massage"), "rules"),
        (MASSAGE, no_command("none_talk"), "rules"),
        (MASSAGE, no_command("statement"), "nothing"),
        (MASSAGE, no_command("delayed"), "nothing"),
        (MASSAGE + " and open the sunroof except the blind", no_command("unsupported", "seat massage"), "ask"),
    ],
)
def test_of_a_tool_that_it_was_not_trained_for_the_model_tells_the_scope_alone(
    text: str, program: Program, kind: str, lexicon: Lexicon
) -> None:
    judge = Judge(learned=frozenset(("set_sunroof", "set_seat_heating")))
    assert judge.decide(program, Interpreter(lexicon).parse(text, "en"), None).kind == kind


def test_a_tool_that_it_knows_is_the_models_to_refuse(lexicon: Lexicon) -> None:
    judge = Judge(learned=frozenset(("set_sunroof", "set_seat_massage")))
    decision = judge.decide(no_command("unsupported"), Interpreter(lexicon).parse(MASSAGE, "en"), None)
    assert decision.kind == "nothing"


def test_a_thing_that_no_word_names_is_done_where_the_model_is_sure_and_nothing_speaks_against(
    lexicon: Lexicon,
) -> None:
    wheel = ToolCall("set_steering_wheel_heating", {"action": "set", "value": 50.0})
    assert decide(act(wheel), "toasty wheel please", lexicon).kind == "program"
    assert decide(act(wheel, sure=0.85), "toasty wheel please", lexicon).kind == "rules"
    assert decide(act(wheel), "heat the wheel instead of the seat", lexicon).kind == "program"
    assert decide(act(SUNROOF), "the air conditioning toasty please", lexicon).kind != "program"  # another thing
    played = Program(
        "act", 0.99, 0.99, (ProgramCall(ToolCall("play_media", {"query": "gas"}), 0.99, words=(13, 16)),), "", 0.99
    )
    assert decide(played, "give it some gas", lexicon).kind != "program"  # any word may be a name


@pytest.mark.parametrize(
    ("text", "language", "undone", "meant"),
    [
        ("是后排二十二度不是前排", "zh", "front", "rear"),
        ("22 degrees for the passenger not the driver", "en", "driver", "passenger"),
    ],
)
def test_what_is_told_not_to_be_meant_is_never_done(
    text: str, language: Language, undone: str, meant: str, lexicon: Lexicon
) -> None:
    for zone, kind in ((undone, "ask"), (meant, "program")):
        call = ToolCall("set_temperature", {"zone": zone, "action": "set", "value": 22.0})
        number = find_numbers([token.text for token in tokens_of(text)])[0]
        program = Program("act", 0.99, 0.99, (ProgramCall(call, 0.99, number),), "", 0.99)
        assert decide(program, text, lexicon, language).kind == kind, zone


def test_a_number_that_is_told_not_to_be_meant_is_never_set(lexicon: Lexicon) -> None:
    louder = ToolCall("set_volume", {"target": "media", "action": "set", "value": 60.0})
    assert decide(act(louder, number="60"), "volume to sixteen, not sixty", lexicon).kind != "program"


def test_a_road_keeps_its_whole_name(lexicon: Lexicon) -> None:
    text = "drive to 14 Kestrel Close"
    trip = ToolCall("navigate_to", {"place": "14 Kestrel", "avoid": []})
    cut = Program("act", 0.99, 0.99, (ProgramCall(trip, 0.99, words=(9, 19)),), "", 0.99)
    assert decide(cut, text, lexicon).kind != "program"


def test_beside_what_the_car_lacks_the_rest_is_done(lexicon: Lexicon) -> None:
    text = "打开空调再给老王打个电话"
    cold = ToolCall("set_air_conditioning", {"on": True})
    for sure, kind in ((0.99, "program"), (0.6, "nothing")):
        program = Program("unsupported", 0.99, 0.01, (ProgramCall(cold, sure),), "电话", 0.99)
        decision = decide(program, text, lexicon, "zh")
        assert decision.kind == kind
        assert decision.what == "电话"
    braked = Program("unsupported", 0.98, 0.01, (ProgramCall(cold, 0.99),), "电话", 0.98)
    assert decide(braked, "打开空调踩刹车打个电话", lexicon, "zh").kind != "program"


def test_rules_that_read_all_of_the_model_and_more_are_done(lexicon: Lexicon) -> None:
    text = "driver twenty one degrees passenger twenty four degrees"
    one = ToolCall("set_temperature", {"zone": "driver", "action": "set", "value": 21.0})
    assert decide(act(one, number="21"), text, lexicon).kind == "rules"


@pytest.mark.parametrize("text", ["下雨了就把天窗关上", "天黑了就开大灯", "到家了，就锁车"])
def test_what_shall_be_done_once_something_happens_is_a_condition(text: str) -> None:
    assert turned(text)


def test_a_lamp_overhead_makes_no_u_turn_and_fast_wipers_no_fast_car(lexicon: Lexicon) -> None:
    wiped = ToolCall("set_wipers", {"mode": "fast"})
    assert decide(act(wiped), "雨刮开快一点那个档", lexicon, "zh").kind == "program"
    assert decide(act(SUNROOF), "开快一点打开天窗", lexicon, "zh").kind != "program"
    dark = ToolCall("set_interior_light", {"on": False})
    assert decide(act(dark), "关掉头顶的灯", lexicon, "zh").kind in ("agreed", "program")


def test_a_question_about_the_phone_is_no_wish_also_where_both_read_one(lexicon: Lexicon) -> None:
    program = Program("unsupported", 0.61, 0.3, (ProgramCall(WARM, 0.91),), "手机", 0.61)
    decision = decide(program, "座椅加热能不能拿手机开", lexicon, "zh")
    assert (decision.kind, decision.calls) == ("nothing", ())


@pytest.mark.parametrize(
    "text", ["open the window five centimetres", "窗户开五公分", "raise the sunshade by 3 millimetres"]
)
def test_a_length_is_no_share_of_a_hundred(text: str, lexicon: Lexicon) -> None:
    language: Language = "en" if text.isascii() else "zh"
    decision = decide(act(window("driver", 5.0), number="5"), text, lexicon, language)
    assert decision.kind == "rules"
    (clause,) = Interpreter(lexicon).parse(text, language).clauses
    assert clause.call.arguments.get("reason") in ("wrong_unit", "not_understood")


@pytest.mark.parametrize("text", ["座椅用不着加热", "甭开窗", "音量用不着调"])
def test_what_nobody_needs_is_not_done(text: str, lexicon: Lexicon) -> None:
    assert decide(act(WARM, sure=0.94), text, lexicon, "zh").kind == "rules"
    calls = [clause.call for clause in Interpreter(lexicon).parse(text, "zh").clauses]
    assert all(call.name == "refuse" for call in calls)


@pytest.mark.parametrize(
    ("text", "language", "call"),
    [
        (
            "put the massage in wave mode",
            "en",
            ToolCall("set_seat_massage", {"zone": "driver", "action": "set", "value": 50.0}),
        ),
        ("给屏幕对着副驾", "zh", ToolCall("set_screen", {"on": True})),
        ("display available lists", "en", ToolCall("show_page", {"page": "phone"})),
        ("turn the high beam to auto", "en", ToolCall("set_exterior_light", {"which": "high_beam", "on": True})),
    ],
)
def test_a_mode_or_another_screen_is_not_the_thing_itself(
    text: str, language: Language, call: ToolCall, lexicon: Lexicon
) -> None:
    decision = decide(act(call), text, lexicon, language)
    assert decision.kind != "program"
    assert call not in decision.offered


def test_words_of_the_players_list_are_meant_though_others_stand_beside_them(lexicon: Lexicon) -> None:
    shuffle = ToolCall("control_media", {"action": "shuffle"})
    assert decide(act(shuffle), "shuffle the album", lexicon).kind == "agreed"


def test_what_is_left_out_is_never_acted_upon(lexicon: Lexicon) -> None:
    text = "unlock everything save for the back right door"
    rest = [ToolCall("set_door_locks", {"locked": False, "zone": zone}) for zone in ("front", "rear_left")]
    left_out = ToolCall("set_door_locks", {"locked": False, "zone": "rear_right"})
    assert decide(act(*rest), text, lexicon).kind == "program"
    assert decide(act(left_out, rest[1]), text, lexicon).kind == "ask"
    opened = [window("driver"), window("passenger")]
    assert decide(act(*opened), "除了副驾以外车窗都打开", lexicon, "zh").kind == "ask"


@pytest.mark.parametrize("text", ["右后窗户落下来没有", "天窗打开了吗", "车窗关上没"])
def test_a_question_about_the_state_is_no_wish(text: str, lexicon: Lexicon) -> None:
    assert decide(act(window("rear_right")), text, lexicon, "zh").kind in ("ask", "rules")
    assert not decide(act(window("rear_right")), text, lexicon, "zh").calls


def test_the_opposite_of_the_rules_and_what_may_be_taken_back_need_a_surer_model(lexicon: Lexicon) -> None:
    shut = ToolCall("set_trunk", {"open": False})
    assert decide(act(shut, sure=0.93), "升起尾门", lexicon, "zh").kind != "program"
    assert decide(act(NEXT, sure=0.8), "下一首 算了就听这个", lexicon, "zh").kind != "program"


def test_small_words_belong_to_no_name(lexicon: Lexicon) -> None:
    song = ToolCall("play_media", {"query": "蔡琴"})
    decision = decide(act(song), "随便来首蔡琴的", lexicon, "zh")
    assert (decision.kind, decision.calls) == ("program", (song,))


@pytest.mark.parametrize(
    ("text", "language", "reason", "sure", "call", "kind"),
    [
        (
            "could you close the sunroof?",
            "en",
            "how_to",
            0.75,
            ToolCall("set_sunroof", {"position": "closed"}),
            "agreed",
        ),
        (
            "could you close the sunroof?",
            "en",
            "how_to",
            0.95,
            ToolCall("set_sunroof", {"position": "closed"}),
            "nothing",
        ),
        ("好热呀", "zh", "none_talk", 0.7, heat(-2.0, "change"), "agreed"),
        ("好热呀", "zh", "none_talk", 0.7, heat(2.0, "change"), "nothing"),
        ("好热呀", "zh", "statement", 0.7, heat(-2.0, "change"), "nothing"),
    ],
)
def test_a_weak_reason_does_not_stop_what_both_read(
    text: str, language: Language, reason: str, sure: float, call: ToolCall, kind: str, lexicon: Lexicon
) -> None:
    program = Program(reason, sure, 1 - sure, (ProgramCall(call, 0.9, None),), "", sure)
    assert decide(program, text, lexicon, language).kind == kind


def test_two_places_joined_are_both_meant(lexicon: Lexicon) -> None:
    half = act(window("driver", 0.0), sure=0.75)
    assert decide(half, "关上主驾和副驾的车窗", lexicon, "zh").kind == "rules"


def test_the_weather_below_zero_is_no_value(lexicon: Lexicon) -> None:
    parse = Interpreter(lexicon).parse("外面零下八度，打开座椅加热", "zh")
    assert [clause.call for clause in parse.clauses] == [WARM]
    alone = Interpreter(lexicon).parse("温度调到零下八度", "zh")
    assert [clause.call.arguments["value"] for clause in alone.clauses] == [-8.0]  # refused: out of range


def test_a_program_of_another_tool_asks_for_no_value(lexicon: Lexicon) -> None:
    parse = Interpreter(lexicon).parse("set the volume", "en")
    assert lacking(parse, ["set_volume"]) is not None
    assert lacking(parse, ["set_screen"]) is None
