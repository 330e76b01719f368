"""What is said when a device of the voice itself is gone or back, and when voice cannot run at all."""

from __future__ import annotations

from pipeline.frames import Language

MICROPHONE_LOST: dict[Language, str] = {
    "en": "I cannot hear you: the microphone is not there. I will try again.",
    "zh": "我听不到您说话：没有找到麦克风，我会继续尝试。",
}
MICROPHONE_BACK: dict[Language, str] = {
    "en": "I can hear you again.",
    "zh": "我又能听到您说话了。",
}
VOICE_LIMITED: dict[Language, str] = {
    "en": "Voice control is not available now. Please use the screen and the switches.",
    "zh": "语音控制现在不可用，请使用屏幕和按键。",
}
"""The voice runtime cannot run: something that it needs is missing or fails again and again."""
ONLY_PLAIN: dict[Language, str] = {
    "en": "I can only do plain commands now, one at a time.",
    "zh": "我现在只能执行简单的单条指令。",
}
"""Without models: what was asked is no command, or leaves more than one meaning."""
