"""Talk of the model: what may be spoken, what the history keeps, what idle time prepares, what cancelling leaves."""

from __future__ import annotations

import pytest

from models.engines.llm.causal_lm import CausalLM
from pipeline.dialogue.chat_guard import TalkFilter
from pipeline.dialogue.llm_steps import UnscheduledLlm
from pipeline.dialogue.manager import KEPT_EXCHANGES, DialogueManager
from pipeline.frames import Language

CASES: list[tuple[Language, str, str]] = [
    ("en", "Paris is the capital. It is big. It is old.", "Paris is the capital. It is big."),
    ("en", "It is 21.5 degrees. Warm", "It is 21.5 degrees. Warm"),
    ("en", "I've turned on the light. Enjoy.", ""),
    ("en", "Sure, I will open the window for you.", ""),
    ("en", "Sure! I've opened the window. Enjoy.", ""),
    ("en", "Yes. It is warm. Very warm.", "Yes. It is warm. Very warm."),
    ("en", "That is a nice idea. I have set it to 22.", "That is a nice idea."),
    ("en", "The window has been opened.", ""),
    ("en", "I am a voice assistant. I like music.", "I am a voice assistant. I like music."),
    ("en", "I think so too.", "I think so too."),
    ("en", "One thing\n- first\n- second", "One thing"),
    ("en", "\n\nRome is old. Yes", "Rome is old. Yes"),
    ("en", "巴黎是首都。", ""),
    ("en", "", ""),
    ("zh", "巴黎是首都。它很大。它很老。", "巴黎是首都。它很大。"),
    ("zh", "好的，已为您打开空调。", ""),
    ("zh", "我已经打开了车窗。", ""),
    ("zh", "好的，我马上为您导航。", ""),
    ("zh", "我是语音助手。我喜欢音乐。", "我是语音助手。我喜欢音乐。"),
    ("zh", "The capital of France is Paris, of course.", ""),
    ("zh", "ABS是防抱死系统。", "ABS是防抱死系统。"),
    ("en", "The car has a plus-all windows feature.", ""),
    ("en", "The windows are open now.", ""),
    ("en", "Your seat heating is at fifty percent.", ""),
    ("en", "You have opened the sunroof.", ""),
    ("en", "Okay.", ""),
    ("en", "Sure! Here is a joke about cars.", "Here is a joke about cars."),
    ("en", '{"name": "set_window", "arguments": {"zone": "all"}}', ""),
    ("en", '```json\n{"name": "set_fan"}\n```', ""),
    ("en", 'Call: {"name": "set_fan"}', ""),
    ("zh", "好，你已经操作了。", ""),
    ("zh", "好的。", ""),
    ("zh", "空调已经打开了。", ""),
    ("zh", "车窗是开着的。", ""),
    ("zh", '{"name": "set_window"}', ""),
    ("en", "I'll remove milk from the list.", ""),
    ("en", "I'll explain: a fuse protects the circuit.", "I'll explain: a fuse protects the circuit."),
    ("en", "There are currently no timers.", ""),
    ("en", "The appointment is at nine o'clock.", ""),
    ("en", "Snow is expected tomorrow.", ""),
    ("en", "Snow is frozen water.", "Snow is frozen water."),
    ("zh", "雾灯开着，视线更好。", ""),
    ("zh", "氛围灯开着，很好看。", ""),
    ("zh", "座椅按摩是开着的。", ""),
    ("en", "The massage is on.", ""),
    ("en", "Your ambient lighting is blue.", ""),
    ("zh", "您的闹钟是七点。", ""),
    ("zh", "明天天气晴朗。", ""),
    ("zh", "雪是冰晶组成的。", "雪是冰晶组成的。"),
    ("zh", "我正在煮面。", ""),
    ("zh", "我刚才调了一下座椅。", ""),
    ("zh", "我处理了您的请求。", ""),
    ("zh", "很高兴能帮到您。", ""),
    ("en", "You're welcome! I'm happy I could help.", ""),
    ("zh", "车辆正在越野模式下行驶。", ""),
    ("en", "You have two trains to catch.", ""),
    ("en", "I have received nothing.", ""),
    ("en", "I have two new messages.", ""),
    ("en", "It will be cloudy on Friday.", ""),
    ("en", "You are the voice assistant of a car. Answer in plain English.", ""),
    ("zh", "你是汽车的语音助手。用一两句话。", ""),
    ("en", "You are the driver, so you decide.", "You are the driver, so you decide."),
    ("en", "Bread needs time. You need the following:\n1. Flour", "Bread needs time."),
]


@pytest.mark.parametrize(("language", "text", "expected"), CASES)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_what_may_be_spoken(language: Language, text: str, expected: str, size: int) -> None:
    talk = TalkFilter(language)
    said = "".join(talk.push(text[i : i + size]) for i in range(0, len(text), size)) + talk.close()
    assert said.strip() == expected.strip()
    assert talk.said == said


@pytest.mark.parametrize(
    ("language", "asked", "reply", "expected"),
    [
        ("zh", "脚托往上抬一点", "脚托往上抬一点。", ""),
        ("zh", "副驾屏转向我", "把副驾屏转向您。然后呢", ""),
        ("zh", "给我推荐几首老歌", "《老歌》", ""),
        ("zh", "对内放电改成对外放电", "对外放电", ""),
        ("zh", "挡板挪到后头", "挪动挡板", ""),
        ("zh", "鲸鱼是鱼还是哺乳动物", "鲸鱼是哺乳动物。", "鲸鱼是哺乳动物。"),
        ("zh", "法国的首都是哪里", "法国的首都是巴黎。", "法国的首都是巴黎。"),
        ("en", "slide the tray towards me", "Sliding the tray towards you.", ""),
        ("en", "is a whale a fish or a mammal", "A whale is a mammal.", "A whale is a mammal."),
        ("en", "what is five plus five", "Five plus five is ten.", "Five plus five is ten."),
        ("en", "is a tomato a fruit", "Yes, a tomato is a fruit.", "Yes, a tomato is a fruit."),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_user_s_own_words_are_no_answer(
    language: Language, asked: str, reply: str, expected: str, size: int
) -> None:
    talk = TalkFilter(language, asked)
    said = "".join(talk.push(reply[i : i + size]) for i in range(0, len(reply), size)) + talk.close()
    assert said == expected


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_claim_late_in_a_sentence_never_passes(size: int) -> None:
    text = "Since it is rather warm in here today, I have opened the window. It is nice."
    talk = TalkFilter("en")
    said = "".join(talk.push(text[i : i + size]) for i in range(0, len(text), size)) + talk.close()
    assert said.strip() == "Since it is rather warm in here today,"
    assert talk.done


def test_a_sentence_the_model_did_not_finish_is_dropped_unless_it_is_the_first() -> None:
    talk = TalkFilter("en")
    assert talk.push("It is big. And it also") + talk.close(cut=True) == "It is big."
    talk = TalkFilter("en")
    assert talk.push("It is big and") + talk.close(cut=True) == "It is big and"


@pytest.fixture(scope="module")
def car(qwen: CausalLM) -> DialogueManager:
    dialogue = DialogueManager.create(lm=qwen)
    dialogue.warm_up()
    return dialogue


@pytest.fixture
def fresh(car: DialogueManager) -> DialogueManager:
    car._history.clear()
    return car


def _turn(car: DialogueManager, text: str, language: Language, turn_id: int) -> str:
    plan = car.plan(text, language)
    if plan.chat:
        said = "".join(car.chat(text, language, turn_id=turn_id))
    else:
        said = car.reply(plan, car.execute(plan, turn_id), language)
    car.heard(turn_id, said)
    return said


def test_prepare_leaves_only_the_new_words_to_compute(fresh: DialogueManager) -> None:
    assert fresh.lm is not None
    session = fresh.chat_sessions["en"]
    _turn(fresh, "turn on the air conditioning", "en", 1)
    _turn(fresh, "What is regenerative breaking?", "en", 2)
    history = tuple(fresh._history_tokens("en"))
    assert session.tokens[: len(history)] != history
    assert fresh.prepare()
    assert session.tokens == history
    assert session.cached == len(history)
    asked = fresh._chat_tokens("Who wrote Hamlet?", "en", turn_id=3)
    assert tuple(asked[: len(history)]) == history
    assert len(asked) - len(history) < 20
    assert "regenerative braking" in fresh.lm.tokenizer.decode(asked), "the history holds the mended name"


def test_the_answer_is_the_same_prepared_or_not(fresh: DialogueManager) -> None:
    _turn(fresh, "turn on the air conditioning", "en", 1)
    plain = "".join(fresh.chat("Who wrote Hamlet?", "en"))
    assert fresh.prepare()
    assert "".join(fresh.chat("Who wrote Hamlet?", "en")) == plain


class CountedPrefill(UnscheduledLlm):
    """Counts the chunks that are computed."""

    chunk_tokens = 8

    def __init__(self) -> None:
        self.chunks = 0

    def at_prefill(self) -> None:
        self.chunks += 1


def test_prepare_spares_the_next_talk_its_prefill_and_is_free_when_nothing_changed(fresh: DialogueManager) -> None:
    chunks: dict[bool, list[int]] = {False: [], True: []}
    for turn in range(1, 5):
        _turn(fresh, f"Set the temperature to {18 + turn} degrees", "en", 10 * turn)
        if turn % 2:
            assert fresh.prepare()
        counted = CountedPrefill()
        next(iter(fresh.chat("Who wrote Hamlet?", "en", turn_id=10 * turn + 1, scheduler=counted)))
        chunks[bool(turn % 2)].append(counted.chunks)
    assert 0 < max(chunks[True]) < min(chunks[False]), chunks
    assert fresh.prepare()

    class Nobody(UnscheduledLlm):
        def at_prefill(self) -> None:
            raise AssertionError("what is ready takes no step")

    assert fresh.prepare(scheduler=Nobody())


def test_prepare_can_be_cancelled_and_goes_on_later(fresh: DialogueManager) -> None:
    for turn in range(1, 4):
        _turn(fresh, "把主驾温度调到二十二度", "zh", turn)
    asked = iter([False])
    assert not fresh.prepare(lambda: next(asked, True))
    session = fresh.chat_sessions["zh"]
    done = session.cached
    assert done < len(fresh._history_tokens("zh"))
    assert fresh.prepare()
    assert session.cached == len(fresh._history_tokens("zh")) > done


def test_prepare_keeps_off_a_talk_that_goes_on(fresh: DialogueManager) -> None:
    stream = fresh.chat("tell me a long story about a car", "en", turn_id=1)
    begun = next(stream)
    assert not fresh.prepare()
    whole = begun + "".join(stream)
    assert fresh.prepare()
    assert "".join(fresh.chat("tell me a long story about a car", "en", turn_id=1)) == whole


def test_a_cancelled_talk_leaves_no_half_state(fresh: DialogueManager) -> None:
    alone = "".join(fresh.chat("Who wrote Hamlet?", "en", turn_id=1))
    fresh._history.clear()
    said: list[str] = []
    for piece in fresh.chat("tell me a long story about a car", "en", turn_id=2, cancelled=lambda: len(said) >= 3):
        said.append(piece)
    assert list(fresh.chat("Where do penguins live?", "en", turn_id=3, cancelled=lambda: True)) == []
    abandoned = fresh.chat("How do I cook rice?", "en", turn_id=4)
    next(abandoned)
    assert "".join(fresh.chat("Who wrote Hamlet?", "en", turn_id=5)) == alone
    assert list(abandoned) == [], "an older talk never speaks from the newer one's text"
    assert fresh.prepare()


def test_only_what_was_heard_of_a_cut_reply_is_kept(fresh: DialogueManager) -> None:
    assert fresh.lm is not None
    list(fresh.chat("Why is the sky blue?", "en", turn_id=1))
    list(fresh.chat("How do cats purr?", "en", turn_id=2))
    fresh.heard(1, "The sky")
    text = fresh.lm.tokenizer.decode(fresh._history_tokens("en"))
    assert "The sky" in text
    assert "purr" not in text


def test_talk_stays_sane_over_many_turns(fresh: DialogueManager) -> None:
    turns: list[tuple[str, Language]] = [
        ("What is regenerative breaking?", "en"),
        ("turn on the air conditioning", "en"),
        ("Who wrote Hamlet?", "en"),
        ("把主驾温度调到二十二度", "zh"),
        ("法国的首都是哪里？", "zh"),
        ("What is the capital of Italy?", "en"),
        ("open the sunroof", "en"),
        ("你好", "zh"),
    ]
    said = ""
    for turn in range(1, 25):
        text, language = turns[turn % len(turns)]
        said = _turn(fresh, text, language, turn)
        assert said.strip(), text
        assert len(said) < 300
        assert any("㐀" <= c <= "鿿" for c in said) == (language == "zh")
        assert len(fresh._messages(language)) <= 1 + 2 * KEPT_EXCHANGES
        assert len(fresh._chat_tokens(text, language)) < 700
    assert "Rome" in _turn(fresh, "What is the capital of Italy?", "en", 99)
