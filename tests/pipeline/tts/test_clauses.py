"""Streamed replies to clauses: the same clauses however the text is cut into deltas, nothing hidden leaks."""

from __future__ import annotations

import pytest

from pipeline.frames import Language
from pipeline.tts.clauses import FIRST_CLAUSE_UNITS, LONGEST_UNITS, ClauseStream, units

CASES: list[tuple[Language, str, list[str]]] = [
    ("en", "Turning left now. Then right.", ["Turning left now.", "Then right."]),
    ("en", "I will take you there, it takes ten minutes.", ["I will take you there,", "it takes ten minutes."]),
    ("en", "Okay, left.", ["Okay, left."]),
    ("en", "It is 21.5 degrees. Nice!", ["It is 21.5 degrees.", "Nice!"]),
    ("en", "Version 2.1.3 is out. Update?", ["Version 2.1.3 is out.", "Update?"]),
    ("en", "It costs 1,250 dollars at 10:30 today.", ["It costs 1,250 dollars at 10:30 today."]),
    ("en", "Dr. Smith lives on Main St. in Springfield.", ["Dr. Smith lives on Main St. in Springfield."]),
    ("en", "Mr. and Mrs. J. R. Hale arrive, e.g. today.", ["Mr. and Mrs. J. R. Hale arrive,", "e.g. today."]),
    ("en", "It is 5 p.m. Turn left.", ["It is 5 p.m.", "Turn left."]),
    ("en", "It is 5 p.m. in Berlin.", ["It is 5 p.m. in Berlin."]),
    ("en", "Wait... let me think. Done.", ["Wait... let me think.", "Done."]),
    ("en", "See https://a.example.com/x?y=1,2 now. Bye.", ["See https://a.example.com/x?y=1,2 now.", "Bye."]),
    ("en", "Really?! Yes.", ["Really?!", "Yes."]),
    ("en", 'He said "stop." Then left.', ['He said "stop."', "Then left."]),
    ("en", "**Turn left.** Then stop.", ["**Turn left.**", "Then stop."]),
    ("en", "1. Turn left\n2. Turn right", ["1. Turn left", "2. Turn right"]),
    ("en", "Hello\n\n\nworld", ["Hello", "world"]),
    ("en", "<think>secret. plan</think>Hello there. Bye.", ["Hello there.", "Bye."]),
    ("en", "Hello there. <think>never closed. secret", ["Hello there."]),
    ("en", "Before.\n```py\nx = 1. secret\n```\nAfter.", ["Before.", "After."]),
    ("en", "Before. ~~~\nsecret", ["Before."]),
    ("en", "<tool_call>{\"name\": \"secret\"}</tool_call>Done.", ["Done."]),
    ("en", "</think>Hi there.", ["Hi there."]),
    ("en", "3 < 4 and <b", ["3 < 4 and <b"]),
    ("en", "", []),
    ("en", " \n ", []),
    ("en", "a", ["a"]),
    ("zh", "好的。", ["好的。"]),
    ("zh", "好的，正在打开空调。", ["好的，正在打开空调。"]),
    ("zh", "正在为您导航，预计需要25分钟，请系好安全带。", ["正在为您导航，", "预计需要25分钟，请系好安全带。"]),
    ("zh", "现在10:30，气温3.5度！要开空调吗？", ["现在10:30，气温3.5度！", "要开空调吗？"]),
    ("zh", "“好的。”他说。", ["“好的。”", "他说。"]),
    ("zh", "**好的。**走吧", ["**好的。**", "走吧"]),
    ("zh", "打开WiFi. 然后连接。", ["打开WiFi.", "然后连接。"]),
    ("zh", "播放Hotel California。好的", ["播放Hotel California。", "好的"]),
    ("zh", "等等……我想想。", ["等等……我想想。"]),
    ("zh", "<think>秘密。</think>您好！", ["您好！"]),
    ("zh", "第一；第二；第三", ["第一；", "第二；", "第三"]),
    # The first clause also ends before a joining word, from five words or eight characters on.
    ("en", "A heat pump is a thing that moves the warm air.", ["A heat pump is a thing", "that moves the warm air."]),
    ("en", "You can stop the car when you feel tired.", ["You can stop the car", "when you feel tired."]),
    ("en", "It is a thing that moves warmth.", ["It is a thing that moves warmth."]),
    ("en", "I like the old song but it ends too soon.", ["I like the old song", "but it ends too soon."]),
    ("zh", "动能回收可以把电能充回电池从而增加续航里程。", ["动能回收可以把电能充回电池", "从而增加续航里程。"]),
    # Not too early, not before a last word or two, not in a number, a name, a list, brackets or after a small word.
    ("en", "The engine stops because it is cold.", ["The engine stops because it is cold."]),
    ("en", "You should stop the car when tired.", ["You should stop the car when tired."]),
    ("en", "It will take about fifty but you can wait here.", ["It will take about fifty but you can wait here."]),
    ("en", "We all went to Paris because it is very nice.", ["We all went to Paris because it is very nice."]),
    ("en", "This is the famous film But I Love Her Still.", ["This is the famous film But I Love Her Still."]),
    ("en", "The AC is on and the fan is at fifty percent.", ["The AC is on and the fan is at fifty percent."]),
    ("en", "It (the small red light that is there) helps.", ["It (the small red light that is there) helps."]),
    ("en", "This is what it is for when you are late.", ["This is what it is for when you are late."]),
    ("zh", "已打开空调然后关闭了所有车窗。", ["已打开空调然后关闭了所有车窗。"]),
]  # fmt: skip


def clauses_of(language: Language, text: str, size: int) -> list[str]:
    stream = ClauseStream(language)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return [clause for piece in pieces for clause in stream.push(piece)] + stream.close()


@pytest.mark.parametrize(("language", "text", "expected"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_clauses(language: Language, text: str, expected: list[str], size: int) -> None:
    assert clauses_of(language, text, size) == expected


def test_nothing_hidden_leaks_at_any_cut() -> None:
    text = "Yes <think>secret a. b\nc</think> and ```secret\n``` so <tool_call>secret</tool_call>."
    for cut in range(len(text)):
        stream = ClauseStream("en")
        clauses = [*stream.push(text[:cut]), *stream.push(text[cut:]), *stream.close()]
        assert "secret" not in "".join(clauses)
        assert "".join("".join(clauses).split()) == "Yesandso."


@pytest.mark.parametrize(
    "text", ["x" * 500, "word " * 120, "很长的一句话" * 90, "one two, " * 60, "中文 and English " * 40]
)
def test_long_clauses_are_bounded_and_nothing_is_lost(text: str) -> None:
    clauses = clauses_of("en", text, 5)
    assert len(clauses) > 1
    assert all(units(clause) <= LONGEST_UNITS + 2 for clause in clauses)
    assert "".join("".join(clauses).split()) == "".join(text.split())


def test_the_first_clause_leaves_at_its_comma() -> None:
    stream = ClauseStream("en")
    assert stream.push("The route is clear, ") == ["The route is clear,"]
    assert stream.push("the next one, however, waits ") == []
    assert units("The route is clear,") >= FIRST_CLAUSE_UNITS


def test_a_stream_serves_the_next_reply_after_close() -> None:
    stream = ClauseStream("en")
    stream.push("```unclosed code")
    assert stream.close() == []
    assert stream.push("The route is clear, go on. ") == ["The route is clear,", "go on."]
