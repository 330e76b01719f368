"""Subjects of the manual by their names: by words and by sound, by nothing else; shipped answers fit to be spoken."""

from __future__ import annotations

import re

import pytest

from pipeline.dialogue.chat_guard import TalkFilter
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language
from pipeline.manual.manual import shipped_manual
from pipeline.tts.normalise import spoken

ASKED: list[tuple[str, str]] = [
    ("What is regenerative breaking?", "regenerative_braking"),
    ("什么事都能回收?", "regenerative_braking"),
    ("What is regenerative braking?", "regenerative_braking"),
    ("什么是动能回收？", "regenerative_braking"),
    ("what does A B S mean", "abs"),
    ("What does ABS mean?", "abs"),
    ("ABS是什么意思", "abs"),
    ("What's the ABS light", "abs"),
    ("how does lane keeping work", "lane_keeping"),
    ("what is a heat bump", "heat_pump"),
    ("what is a heat pump", "heat_pump"),
    ("什么是热泵", "heat_pump"),
    ("什么是热蹦", "heat_pump"),
    ("why is the range so low in winter", "winter_range"),
    ("冬天续航为什么变短", "winter_range"),
    ("为什么冬天续航变短", "winter_range"),
    ("how does adaptive crews control work", "adaptive_cruise"),
    ("什么是自适应巡行", "adaptive_cruise"),
    ("the check engine light is on", "engine_light"),
    ("what does the engine light mean", "engine_light"),
    ("发动机故障灯亮了怎么办", "engine_light"),
    ("胎压灯亮了", "tyre_light"),
    ("what do I do if I have a flat tire", "flat_tyre"),
    ("爆胎了怎么办", "flat_tyre"),
    ("what's the difference between AC and DC charging", "ac_dc"),
    ("快充和慢充有什么区别", "ac_dc"),
    ("什么是单踏板模式", "one_pedal"),
    ("what is one pedal driving", "one_pedal"),
    ("how do i use the child lock", "child_lock"),
    ("儿童锁怎么用", "child_lock"),
    ("儿童所怎么用", "child_lock"),
    ("what is i so fix", "isofix"),
    ("what is isofix", "isofix"),
    ("what is the speed limit here", "speed_limit"),
    ("这里限速多少", "speed_limit"),
    ("hello", "hello"),
    ("你好", "hello"),
    ("Thank you very much", "thanks"),
    ("谢谢你", "thanks"),
    ("who are you", "who_are_you"),
    ("你是谁", "who_are_you"),
    ("what can you do", "abilities"),
    ("你能做什么", "abilities"),
    ("你会做什么？", "abilities"),
    ("how does cruise control work?", "cruise_control"),
    ("What is V2L", "v2l"),
    ("what is vehicle to load", "v2l"),
    ("how do I jump start the car", "jump_start"),
    ("when should i use the fog lights", "fog_lights"),
    ("雾灯什么时候用", "fog_lights"),
    ("什么是抬头显示", "hud"),
    ("台头显示是什么", "hud"),
    ("what is a head up display", "hud"),
    ("自动驻车是什么", "auto_hold"),
    ("自动住车是什么意思", "auto_hold"),
    ("除霜和除雾有什么区别", "defrost_demist"),
    ("what is the difference between defrost and demist", "defrost_demist"),
    ("what should I do in a breakdown", "breakdown"),
    ("车抛锚了怎么办", "breakdown"),
    ("how often is the car service due", "service_interval"),
    ("多久保养一次", "service_interval"),
    ("how do I change the key battery", "key_battery"),
    ("what is seat massage", "seat_massage"),
    ("what is over the air update", "ota"),
    ("tell me a joke", "joke"),
    ("讲个笑话", "joke"),
    ("介绍一下你自己", "who_are_you"),
    ("can i charge in the rain", "charging_rain"),
    ("下雨天可以充电吗", "charging_rain"),
    ("下雨能充电吗", "charging_rain"),
    ("what is hill hold", "hill_hold"),
    ("什么是上坡辅助", "hill_hold"),
    ("What is the blind spot monitor?", "blind_spot"),
    ("what is the blind sport monitor", "blind_spot"),
    ("how does the rain sensor work", "rain_sensor"),
    ("Why is charging so slow when it is cold?", "charging_slow"),
    ("玻璃水加在哪里", "washer_fluid"),
    ("where do I fill in washer fluid", "washer_fluid"),
    ("what is recirculation", "recirculation"),
    ("内循环有什么用", "recirculation"),
    ("what's the yellow engine light on the dashboard", "engine_light"),
    ("my car won't start", "wont_start"),
    ("why does ABS light come on", "abs"),
    ("hey who are you", "who_are_you"),
    ("谢谢你啊", "thanks"),
    ("could you tell me what ESP stands for", "esp"),
    ("why does my car lose range when it's cold", "winter_range"),
    ("远光灯和近光灯有什么不一样", "high_beam"),
    ("发动机故障灯一直亮着", "engine_light"),
    ("okay", "acknowledged"),
    ("好的", "acknowledged"),
    ("I'm tired", "tired"),
]

MENDED = [
    ("What is regenerative breaking?", "What is regenerative braking?"),
    ("什么事都能回收?", "什么事动能回收?"),
    ("what is a heat bump", "what is a heat pump"),
    ("how does adaptive crews control work", "how does adaptive cruise control work"),
    ("台头显示是什么", "抬头显示是什么"),
]

UNRELATED = [
    "is breaking bad a good show",
    "my friend has a blind dog",
    "how do I change my password",
    "he went bankrupt in winter",
    "我的手机没电了怎么办",
    "什么是能量守恒",
    "冬天去哪里玩好",
    "你喜欢下雨吗",
    "Why is the sky blue?",
    "I love open windows",
    "It was cold yesterday",
    "Who wrote Hamlet?",
    "The engine sounds strange",
    "How much does a new battery cost?",
    "I closed the window",
    "What is the capital of France?",
    "Tell me about the history of Rome",
    "I read about airbags in a novel",
    "My brother bought a hybrid bike in Spain",
    "What is quantum physics",
    "How do I cook rice",
    "I was breaking a window",
    "generative art is nice",
    "Where do penguins live?",
    "How far is it to the hotel?",
    "Is it far to the hotel?",
    "What is the best film of the year?",
    "She has a heat wave in her town",
    "who is the president",
    "How old is the universe",
    "What should I cook tonight",
    "tell me a long story about a car",
    "what is the meaning of life",
    "my name is Ada",
    "do you know where my wife is",
    "how does a plane fly",
    "why do cats purr",
    "thanks to my mother I am a doctor",
    "hello kitty is a brand",
    "how much does a heat pump cost in Germany",
    "昨天很冷",
    "我喜欢开窗睡觉",
    "一加一等于几",
    "发动机声音有点怪",
    "为什么天是蓝的",
    "法国的首都是哪里",
    "到什么地方都能回收旧电池",
    "我朋友昨天买了一台热水器",
    "怎么做红烧肉",
    "谁写了红楼梦",
    "月亮离地球有多远",
    "我叫小明",
    "给我讲个长故事",
    "什么是量子力学",
    "到酒店还有多远",
    "现在几点",
    "今天星期几",
    "猫为什么会打呼噜",
    "我妈妈喜欢唱歌",
    "宇宙有多大",
    "最好看的电影是什么",
    "晚上吃什么好",
    "飞机怎么飞起来的",
    "谢谢你妈妈昨天送的水果",
    "你好像不太高兴",
    "我在公司开会",
    "什么事都不能做",
    "他什么事都能解决",
]

COMMANDS = [
    "How much charge do we have?",
    "can you turn on adaptive cruise control",
    "turn on the fog lights",
    "what is the tyre pressure",
    "is the recirculation on",
    "can you recirculate the air",
    "find a fast charger",
    "where is the nearest car wash",
    "demist the rear window",
    "hello turn on the AC",
    "胎压是多少",
    "打开内循环",
    "除雾",
    "怎么去机场",
    "你好打开空调",
]


def language_of(text: str) -> Language:
    return "zh" if re.search("[㐀-鿿]", text) else "en"


@pytest.fixture(scope="module")
def car() -> DialogueManager:
    return DialogueManager.create()


@pytest.mark.parametrize(("text", "name"), ASKED)
def test_a_question_finds_its_entry_and_no_tool(car: DialogueManager, text: str, name: str) -> None:
    found = shipped_manual().names.find(text)
    assert found is not None
    assert found.entry.name == name
    assert car.plan(text, language_of(text)).chat
    said = "".join(car.chat(text, language_of(text)))
    assert said == shipped_manual().answer(found, language_of(text)).said
    assert found.entry.say[language_of(text)] in said
    assert found.entry.talk or found.entry.headings[language_of(text)] in said


@pytest.mark.parametrize(("heard", "meant"), MENDED)
def test_a_misheard_name_is_mended(heard: str, meant: str) -> None:
    found = shipped_manual().names.find(heard)
    assert found is not None
    assert (found.text, found.exact) == (meant, False)


@pytest.mark.parametrize("text", UNRELATED)
def test_other_talk_finds_none(text: str) -> None:
    assert shipped_manual().names.find(text) is None


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_stay_commands(car: DialogueManager, text: str) -> None:
    assert car.plan(text, language_of(text)).calls


def test_every_name_leads_to_its_own_entry(car: DialogueManager) -> None:
    manual = shipped_manual().names
    for entry in manual.entries:
        for title in entry.titles:
            chinese = language_of("".join(title)) == "zh"
            name = ("" if chinese else " ").join(title)
            question = name if entry.talk else f"什么是{name}" if chinese else f"what is {name}"
            found = manual.find(question)
            assert found is not None, question
            assert found.entry is entry, question
        for name in entry.headings.values():
            question = f"什么是{name}" if language_of(name) == "zh" else f"what is {name}"
            assert car.plan(question, language_of(question)).chat, question


def test_every_answer_is_short_speakable_and_claims_nothing() -> None:
    for entry in shipped_manual().entries:
        assert {language_of("".join(title)) for title in entry.titles} == {"en", "zh"}
        for language, text in entry.say.items():
            assert language_of(text) == language
            assert len(re.findall(r"[.!?](?=\s|$)|[。！？]", text)) <= 2, text
            assert len(text) <= (150 if language == "en" else 60), text
            assert not re.search(r"[*_#\n()<>{}\[\]]", text), text
            assert spoken(text, language).strip()
            if not entry.talk:  # "Okay" as an answer to thanks is what the model may not say of a command
                talk = TalkFilter(language)
                assert (talk.push(text) + talk.close()).strip() == text


def test_there_are_enough_entries() -> None:
    assert sum(not entry.talk for entry in shipped_manual().entries) >= 60
