"""What of the model's talk may be spoken: at most two whole sentences, in the user's language, claiming no deed.

The first sentence streams; the second is held back until it is whole, which costs no sound: its clause is only spoken
whole, and the first one is sounding meanwhile. A line's end ends the reply: what follows is a list.
"""

from __future__ import annotations

import re

from pipeline.dialogue.echo import is_echo
from pipeline.frames import Language

_SENTENCE_END = re.compile(r"[.!?](?=\s)|[。！？]|\n")
_CJK = re.compile(r"[㐀-鿿]")
_DEEDS = (
    r"(?:turn|switch|set|open|clos|start|stopp?|activat|adjust|enabl|disabl|increas|decreas|lower|rais|play|paus|lock"
    r"|unlock|navigat|call|chang|mut|plan|book|send|sent|add|put|tak|took|driv|brak|park|charg|remov|delet|remind|cancel"
    r"|creat|schedul|order|bright|dim|check|updat|sav|stor|arrang|reserv|email|dial|mov|slid|fold|heat|cool|warm)"
)
_OWN = (
    r"meetings?|appointments?|alarms?|reminders?|timers?|e-?mails?|inbox|messages?|missed calls?|events?|schedule"
    r"|calendar|shopping list|to-do list|flights?|orders?|deliver(?:y|ies)|package|parcel"
)
"""What only the user's other devices know."""
_THINGS_EN = (
    r"windows?|sunroof|doors?|trunk|boot|(?:\w+ ?)?light(?:s|ing)?|(?:high|low) beams?|mirrors?|wipers?"
    "|seats?|heating|heater|massage|backrest|fan|air conditioning|ac|temperature|volume|music|radio"
    "|defroster|navigation|route|screen"
)
_CABIN_ZH = "车窗|窗户|天窗|车门|后备箱|[车大光雾顶位廓宽围读]灯|后视镜|雨刷|座椅|靠背|按摩|屏幕"
_THINGS_ZH = _CABIN_ZH + "|暖气|风量|空调|温度|音量|音乐|收音机|除雾|导航|路线"
"""What a reply may say nothing about: only the car itself, read back, tells its state."""
_IS_ZH = r"是[^，。！？]{0,4}(?:开|关|亮|锁|满|空|热|冷|暖|正常|百分|\d)"
"""A state, and not what a thing is for."""
_CALL = re.compile(r"^\s*(?:```|[{\[<])|[\"']?(?:name|arguments|tool_call|function)[\"']?\s*[:=]\s*[\"'{]")
"""A tool call that the model writes out."""
_ACKNOWLEDGED: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"\s*(?:ok(?:ay)?|sure(?: thing)?|done|got it|alright|all right|certainly|of course|absolutely|no problem)"
        r"[\s,.!-]+",
        re.IGNORECASE,
    ),
    "zh": re.compile(r"\s*(?:好的?|没问题|当然可以|当然|可以|行|收到|明白了?|知道了|完成了?)[，,。！!\s]+"),
}
"""Said first it sounds as if the car obeyed: it is left out."""
_WELCOMED = re.compile(
    r"\s*(?:you'?re (?:very )?welcome|(?:it'?s )?my pleasure|(?:I'm )?(?:happy|glad) to help|不客气|不用谢|很高兴)"
    r"[，,。！!.\s]+",
    re.IGNORECASE,
)
_THANKED = re.compile(r"\bthank|谢", re.IGNORECASE)
"""Said to somebody who thanks for nothing, the first sounds as if something had been done."""
_CLAIM: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        rf"\b(?:I|I've|I'll|I'm|I have|I will|I am|let me)(?: (?:have|will|am|now|just|already|going to|can))*"
        rf" {_DEEDS}\w*\b|\b(?:has|have) been {_DEEDS}\w*\b|\bis now (?:on|off|open|closed|set|{_DEEDS}\w*)\b"
        rf"|(?<!\bwhen )(?<!\bif )(?<!\bwhile )(?<!\buntil )\b(?:the|your|this|our) (?:car|vehicle|{_THINGS_EN})\b"
        r"(?: (?!(?:when|if|while|that|which)\b)[\w'-]+){0,3}?"
        r" (?:has|have|is|are|was|were|will)\b"
        rf"|\byou(?:'ve| have)(?: \w+)? {_DEEDS}\w*\b"
        r"|\b(?:I've|I have) \w+ed\b|\byou(?:'ve got| have)(?: got)? (?:an?|no|some|several|many|\d+|one|two|three)\b"
        r"|\b(?:I'll|I will|let me|I'm going to|I am going to)"
        r"(?! (?:be|help|try|answer|explain|tell|say|need|not|never|always|do my best)\b) \w+(?=\W)"
        rf"|\b(?:your|the|no|any|\d+)(?: \w+)? (?:{_OWN})\b(?: \w+)?? (?:is|are|has|have|was|were|will|listed)\b"
        rf"|\bthere (?:is|are|were|was) (?:currently|now|no|\d+)\b[^.]*\b(?:{_OWN})\b"
        rf"|\bI have (?:an?|no|some|several|many|new|\d+|one|two|three|four|five)\b[^.]*\b(?:{_OWN})\b"
        r"|\b(?:sunny|rainy|cloudy|snowy|windy|dry|icy)\b[^.]{0,30}\b(?:today|tonight|tomorrow|next|on|this|at)\b"
        r"|\b(?:glad|happy|pleased)(?: that)? I (?:could|was able)\b|\bI (?:just|already) \w+(?:ed|t)\b"
        r"|\bas (?:you )?(?:requested|asked|wished|instructed)\b"
        r"|\b(?:currently|right now|at the moment|as of (?:now|today))\b"
        r"|\b(?:rain|snow|weather|temperatures?|sky|forecast|traffic|road)\b[^.]{0,40}"
        r"\b(?:expected|forecast|likely|today|tonight|tomorrow|this (?:week|weekend|morning|afternoon|evening))\b",
        re.IGNORECASE,
    ),
    "zh": re.compile(
        r"(?:我|已经?|正在|马上|现在)(?:就|已经?|会|将|来|正在)*(?:为您|帮您|给您|为你|帮你|给你)"
        r"|已(?:经)?(?:打开|关闭|开启|调|设|播放|启动|锁|解锁|导航)|正在(?:打开|关闭|开启|调|设|播放|启动|导航)"
        r"|我(?:已经?|会|来|将|马上|正在)(?:打开|关闭|开启|调|设|播放|启动|导航)"
        r"|已(?:经)?[^，。！？]{0,8}(?:了|好|成功|完成|完毕)"
        rf"|(?:这辆车|您的车|你的车|本车|车辆|{_THINGS_ZH})[^，。！？]{{0,6}}?(?:已|开着|关着|打开了|关了|处于|{_IS_ZH})"
        r"|(?:这辆车|您的车|你的车|本车)[^，。！？]{0,6}?有"
        r"|我(?:正在|马上|这就|已经?|刚)|我[^，。！？]{0,5}(?:操作|执行|完成|处理)[^，。！？]{0,3}了"
        r"|(?:高兴|希望)[^，。！？]{0,4}帮[到上了]|(?:按|照|如)[您你](?:的要求|所愿|说的)"
        r"|(?:车辆?|系统|屏幕?)[^，。！？]{0,4}(?:正在|已)"
        r"|目前|当前|现在[^，。！？]{0,10}(?:是|在|有|没有|为)"
        r"|(?:日程|会议|闹钟|邮件|短信|来电|订单|快递|购物清单|航班|[您你]的(?:提醒|消息))[^，。！？]{0,6}(?:是|在|有|没有|为|已|将)"
        r"|(?:今天|明天|今晚|本周|周末)[^，。！？]{0,10}(?:天气|气温|晴|雨|雪|多云|阴|路况)"
        r"|(?:天气|气温|路况)[^，。！？]{0,8}(?:是|为|有|将|会|预计|晴|雨|多云|良好|畅通|拥堵)"
    ),
}
_RECITED: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"\byou are (?:an?|the)(?: \w+)? assistant\b|\bnever claim\b|\banswer (?:in plain|from this)\b", re.IGNORECASE
    ),
    "zh": re.compile("你是[^，。！？]{0,8}助手|绝不要|不要列表|用一两句|根据这些数据"),
}
"""A small model's own instructions, said again."""
_MAYBE_CLAIM: dict[Language, re.Pattern[str]] = {
    "en": re.compile(r"\b(?:I|I'\w*|let|has|have|is)(?: [\w']*){0,4}$", re.IGNORECASE),
    "zh": re.compile(r"(?:(?:我|已|正|马|现)[㐀-鿿]{0,6}|你是[㐀-鿿]{0,9})$"),
}
_OPENING: dict[Language, re.Pattern[str]] = {
    "en": re.compile(r"\s*(?:\S+\s+){0,4}\S*\s*"),
    "zh": re.compile(r".{0,7}", re.DOTALL),
}
"""So much is held back at first: "Sure, I have" must not leave a "Sure" behind."""
_INTERJECTION: dict[Language, re.Pattern[str]] = {
    "en": re.compile(r"\S+(?: \S+)?"),
    "zh": re.compile(r".{0,5}", re.DOTALL),
}
"""A sentence as short as this goes with the next one."""
_FOREIGN_LETTERS = 24
"""So many characters without a Chinese one are no Mandarin answer."""


_CAR: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        rf"\b(?:{_THINGS_EN}|(?:assistant|system) (?:has |have |was |will )*{_DEEDS}\w*)\b", re.IGNORECASE
    ),
    "zh": re.compile(rf"{_THINGS_ZH}|(?:助手|系统)[^，。！？]{{0,4}}(?:打开|关闭|开启|调|设|播放|启动|导航)"),
}


def names_the_car(text: str, language: Language) -> bool:
    """Whether a text that retells talk names the car's things or a deed: from there it is one step to a claim."""
    return _CAR[language].search(text) is not None


class TalkFilter:
    """One reply. `push` pieces and speak what comes back; `done` says that nothing further will be let through.

    asked: what the user said; a reply that only says it again is not spoken.
    """

    def __init__(self, language: Language, asked: str = "") -> None:
        self.done = False
        self._asked = asked
        self._language = language
        self._held = ""
        self._said = ""
        self._sentences = 0

    @property
    def said(self) -> str:
        """All that was let through."""
        return self._said

    def push(self, piece: str) -> str:
        """As much as may be spoken by now."""
        if self.done:
            return ""
        self._held += piece
        let_through = ""
        while not self.done and (end := self._sentence_end()) is not None:
            sentence, self._held = self._held[:end], self._held[end:]
            let_through += self._sentence(sentence)
        if self.done or self._sentences:
            return self._speak(let_through)
        return self._speak(let_through + self._begun())

    def close(self, *, cut: bool = False) -> str:
        """The end of the reply. `cut`: the model was stopped in its midst, so a second sentence is not whole."""
        if self.done or (cut and self._sentences):
            self._held = ""
        rest, self._held = self._held, ""
        return self._speak(self._sentence(rest) if rest else "")

    def _sentence_end(self) -> int | None:
        """End of the first whole sentence held; one of a few words ("Sure!") goes with the next."""
        for match in _SENTENCE_END.finditer(self._held):
            end = match.end()
            if (
                self._sentences
                or self._said
                or match[0] == "\n"
                or not _INTERJECTION[self._language].fullmatch(self._held[:end].strip())
            ):
                return end
        return None

    def _speak(self, text: str) -> str:
        self._said += text
        return text

    def _sentence(self, sentence: str) -> str:
        """A whole sentence, or the rest of one; empty and done where it may not be spoken."""
        if not self._said.strip():
            sentence = self._unacknowledged(sentence)
            if self._acknowledges(f"{sentence.strip()}!", whole=True) is not None:
                return ""
        if not sentence.strip() and not self._said.strip():
            return ""
        if sentence.rstrip().endswith((":", "：")):  # what follows is a list, which ends the reply
            self.done = True
            return ""
        whole = self._open_sentence() + sentence
        if self._forbidden(whole + " ") or (not self._sentences and is_echo(whole, self._asked, self._language)):
            self.done = True
            return ""
        self._sentences += 1
        self.done = self._sentences == 2 or sentence.endswith("\n")
        return sentence.rstrip("\n")

    def _begun(self) -> str:
        """What of the first sentence, still going on, can no longer become a claim."""
        whole = self._open_sentence() + self._held
        if self._forbidden(whole):
            self.done, self._held = True, ""
            return ""
        if is_echo(whole, self._asked, self._language):
            return ""
        if _OPENING[self._language].fullmatch(whole) or (self._language == "zh" and not _CJK.search(whole)):
            return ""
        if not self._said.strip():
            self._held = self._unacknowledged(self._held)
        maybe = _MAYBE_CLAIM[self._language].search(self._held)
        cut = len(self._held.rstrip(".!?")) if maybe is None else maybe.start()
        begun, self._held = self._held[:cut], self._held[cut:]
        return begun

    def _unacknowledged(self, text: str) -> str:
        """Without the "Sure, " at its beginning; a reply of nothing else stays for the end to judge."""
        acknowledged = self._acknowledges(text)
        return text if acknowledged is None else text[acknowledged.end() :]

    def _acknowledges(self, text: str, *, whole: bool = False) -> re.Match[str] | None:
        """What of the text's beginning sounds as if the car obeyed."""
        welcomed = () if _THANKED.search(self._asked) else (_WELCOMED,)
        found = (
            pattern.fullmatch(text) if whole else pattern.match(text)
            for pattern in (_ACKNOWLEDGED[self._language], *welcomed)
        )
        return next((match for match in found if match is not None), None)

    def _open_sentence(self) -> str:
        return self._said if not self._sentences else ""

    def _forbidden(self, sentence: str) -> bool:
        if _CLAIM[self._language].search(sentence.replace("’", "'")) or _CALL.search(sentence):
            return True
        if _RECITED[self._language].search(sentence):
            return True
        has_chinese = _CJK.search(sentence) is not None
        if self._language == "en":
            return has_chinese
        return not has_chinese and len(sentence) > _FOREIGN_LETTERS
