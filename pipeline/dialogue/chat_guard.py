"""What of the model's talk may be spoken: at most two whole sentences, in the user's language, claiming no deed.

The first sentence streams; the second is held back until it is whole, which costs no sound: its clause is only spoken
whole, and the first one is sounding meanwhile. A line's end ends the reply: what follows is a list.
"""

from __future__ import annotations

import re

from pipeline.frames import Language

_SENTENCE_END = re.compile(r"[.!?](?=\s)|[。！？]|\n")
_CJK = re.compile(r"[㐀-鿿]")
_DEEDS = (
    r"(?:turn|switch|set|open|clos|start|stopp?|activat|adjust|enabl|disabl|increas|decreas|lower|rais|play|paus|lock"
    r"|unlock|navigat|call|chang|mut|plan|book|send|sent|add|put|tak|took|driv|brak|park|charg)"
)
_THINGS_EN = (
    "windows?|sunroof|doors?|trunk|boot|lights?|wipers?|seats?|heating|heater|fan|air conditioning|ac|temperature"
    "|volume|music|radio|defroster|navigation|route|screen"
)
_THINGS_ZH = "车窗|窗户|天窗|车门|后备箱|车灯|雨刷|座椅|暖气|风量|空调|温度|音量|音乐|收音机|除雾|导航|路线|屏幕"
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
_CLAIM: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        rf"\b(?:I|I've|I'll|I'm|I have|I will|I am|let me)(?: (?:have|will|am|now|just|already|going to|can))*"
        rf" {_DEEDS}\w*\b|\b(?:has|have) been {_DEEDS}\w*\b|\bis now (?:on|off|open|closed|set|{_DEEDS}\w*)\b"
        rf"|(?<!\bwhen )(?<!\bif )(?<!\bwhile )(?<!\buntil )\b(?:the|your|this|our) (?:car|vehicle|{_THINGS_EN})\b"
        r"(?: (?!(?:when|if|while|that|which)\b)[\w'-]+){0,3}?"
        r" (?:has|have|is|are|was|were|will)\b"
        rf"|\byou(?:'ve| have)(?: \w+)? {_DEEDS}\w*\b",
        re.IGNORECASE,
    ),
    "zh": re.compile(
        r"(?:我|已经?|正在|马上|现在)(?:就|已经?|会|将|来|正在)*(?:为您|帮您|给您|为你|帮你|给你)"
        r"|已(?:经)?(?:打开|关闭|开启|调|设|播放|启动|锁|解锁|导航)|正在(?:打开|关闭|开启|调|设|播放|启动|导航)"
        r"|我(?:已经?|会|来|将|马上|正在)(?:打开|关闭|开启|调|设|播放|启动|导航)"
        r"|已(?:经)?[^，。！？]{0,8}(?:了|好|成功|完成|完毕)"
        rf"|(?:这辆车|您的车|你的车|本车|车辆|{_THINGS_ZH})[^，。！？]{{0,6}}?(?:已|开着|关着|打开了|关了|处于|{_IS_ZH})"
        r"|(?:这辆车|您的车|你的车|本车)[^，。！？]{0,6}?有"
    ),
}
_MAYBE_CLAIM: dict[Language, re.Pattern[str]] = {
    "en": re.compile(r"\b(?:I|I'\w*|let|has|have|is)(?: [\w']*){0,4}$", re.IGNORECASE),
    "zh": re.compile(r"(?:我|已|正|马|现)[㐀-鿿]{0,6}$"),
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
    """One reply. `push` pieces and speak what comes back; `done` says that nothing further will be let through."""

    def __init__(self, language: Language) -> None:
        self.done = False
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
            if _ACKNOWLEDGED[self._language].fullmatch(f"{sentence.strip()}!"):
                return ""
        if not sentence.strip() and not self._said.strip():
            return ""
        if self._forbidden(self._open_sentence() + sentence):
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
        acknowledged = _ACKNOWLEDGED[self._language].match(text)
        return text if acknowledged is None else text[acknowledged.end() :]

    def _open_sentence(self) -> str:
        return self._said if not self._sentences else ""

    def _forbidden(self, sentence: str) -> bool:
        if _CLAIM[self._language].search(sentence.replace("’", "'")) or _CALL.search(sentence):
            return True
        has_chinese = _CJK.search(sentence) is not None
        if self._language == "en":
            return has_chinese
        return not has_chinese and len(sentence) > _FOREIGN_LETTERS
