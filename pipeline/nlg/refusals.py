"""Spoken refusals and failures: what was not done, and why."""

from __future__ import annotations

from pipeline.frames import Language, ToolResult
from pipeline.nlg.answers import number
from pipeline.nlg.zones import ZONE_EN, ZONE_ZH

_UNITS_EN = {"Celsius": "degrees", "percent": "percent", "mm": "millimeters", "MHz": "megahertz"}
_UNITS_ZH = {"Celsius": "度", "degrees": "度", "mm": "毫米", "MHz": "兆赫"}
_REFUSED_EN = {
    "forbidden": "I can't do that by voice, for safety.",
    "forbidden_while_moving": "I can't do that while the car is moving.",
    "needs_headlights": "Those lights may only be on together with the headlights, and these are off.",
    "unsupported": "Sorry, I can't do that in this car.",
    "not_understood": "Sorry, I did not understand that.",
    "wrong_unit": "I can't use that unit here.",
    "declined": "Okay, I leave it as it is.",
    "only_now": "I can only do that right away, not later. I have changed nothing.",
    "no_condition": "I can only do that right away, not on a condition. I have changed nothing.",
    "nothing_done": "I have changed nothing.",
    "unclear": "I am not sure what you want, so I have changed nothing. Please say it in other words.",
    "invalid_arguments": "Sorry, I can't use that value.",
    "unknown_value": "Sorry, I can't use that value.",
    "wrong_type": "Sorry, I can't use that value.",
    "unknown_tool": "Sorry, I can't do that in this car.",
}
_REFUSED_ZH = {
    "forbidden": "为了安全，这个不能用语音操作。",
    "forbidden_while_moving": "行驶中不能这样做。",
    "needs_headlights": "这个灯只能和近光灯一起打开，现在近光灯关着。",
    "unsupported": "抱歉，这辆车不支持这个功能。",
    "not_understood": "抱歉，我没有听懂。",
    "wrong_unit": "抱歉，这里不能用这个单位。",
    "declined": "好的，保持不变。",
    "only_now": "我只能现在就做，不能定时。我什么都没有改动。",
    "no_condition": "我只能现在就做，不能按条件执行。我什么都没有改动。",
    "nothing_done": "我什么都没有改动。",
    "unclear": "我不确定您的意思，什么都没有改动，请换个说法。",
    "invalid_arguments": "抱歉，这个数值不能用。",
    "unknown_value": "抱歉，这个数值不能用。",
    "wrong_type": "抱歉，这个数值不能用。",
    "unknown_tool": "抱歉，这辆车不支持这个功能。",
}
_FAILED_EN = {
    "unavailable": "That did not work: the car does not respond.",
    "unknown_signal": "That did not work: this car has no such function.",
    "denied": "That did not work: the car denied access.",
    "rejected": "That did not work: the car rejected the value.",
    "not_confirmed": "That did not work: the car did not confirm the change.",
}
_FAILED_ZH = {
    "unavailable": "没有成功，车辆没有响应。",
    "unknown_signal": "没有成功，这辆车没有这个功能。",
    "denied": "没有成功，车辆拒绝了访问。",
    "rejected": "没有成功，车辆不接受这个数值。",
    "not_confirmed": "没有成功，车辆没有确认这个操作。",
}
_UNIT_HINT_EN = {"fahrenheit": "I only take degrees Celsius.", "kelvin": "I only take degrees Celsius."}
_UNIT_HINT_ZH = {"fahrenheit": "我只能用摄氏度。", "kelvin": "我只能用摄氏度。"}


_MISSING = {
    "phone": ("phone calls and messages", "打电话和发消息"),
    "weather": ("the weather", "查天气"),
    "traffic": ("traffic news", "查路况"),
    "calendar": ("reminders and the calendar", "提醒和日程"),
    "shopping": ("orders and bookings", "购物和预订"),
    "home": ("devices at home", "控制家里的设备"),
    "news": ("the news", "新闻"),
    "mirror": ("the mirrors", "调后视镜"),
    "camera": ("the cameras", "摄像头"),
    "charge_port": ("the charge port", "充电口"),
    "wifi": ("Wi-Fi, apps and videos", "无线网、应用和视频"),
    "parking_comfort": ("the parking comfort mode", "驻车舒享模式"),
    "pedestrian_sound": ("the pedestrian warning sound", "低速提示音"),
    "fragrance": ("fragrance and air purification", "香氛和空气净化"),
    "sunroof_position": ("a position of the sunroof between open and closed", "天窗开到一半"),
    "door": ("opening a door", "开车门"),
    "screen": ("the screen's pages", "操作屏幕的页面"),
    "massage_kind": ("a kind of massage", "按摩模式"),
    "ambient_effect": ("that effect of the ambient light", "氛围灯的这个效果"),
    "light_automatic": ("an automatic mode of the lights", "车灯自动模式"),
    "air_directions": ("two directions of the air at once", "同时吹两个方向"),
    "seat_position": ("a seat position by amount, by memory or in the rear", "按数值、记忆或在后排调座椅位置"),
}
"""What the rules call a thing that the car lacks, in English and Mandarin."""


def say_refusal(result: ToolResult, language: Language) -> str:
    """Why it was not done; a range is said, an unknown place is named."""
    zh = language == "zh"
    reason = result.reason or "invalid_arguments"
    detail = result.detail
    if reason == "out_of_range" and detail.get("min") is not None:
        low, high, unit = number(detail["min"]), number(detail["max"]), str(detail.get("unit"))
        if zh:
            return f"超出范围，只能在{low}到{high}{_UNITS_ZH.get(unit, '%')}之间。"
        return f"That is out of range: I can go from {low} to {high} {_UNITS_EN.get(unit, unit)}."
    if reason == "out_of_range":
        return "超出范围，不能这样设置。" if zh else "That is out of range."
    if reason == "unknown_place":
        asked = "".join(c for c in str(detail.get("asked", "")) if c.isalnum() or c in " '-&")[:40].strip()
        near = [str(names["zh" if zh else "en"]) for names in detail.get("similar", ()) if names]
        if near:
            choice = "还是".join(near) if zh else " or ".join(near)
            return f"我不认识{asked}，是{choice}吗？" if zh else f"I don't know {asked}. Did you mean {choice}?"
        return f"抱歉，我不认识{asked}这个地方。" if zh else f"Sorry, I don't know the place {asked}."
    if reason == "unsupported" and (missing := named(detail.get("what"), language)):
        return f"抱歉，这辆车做不到：{missing}。" if zh else f"Sorry, this car can't do that: {missing}."
    if reason == "wrong_unit":
        hint = (_UNIT_HINT_ZH if zh else _UNIT_HINT_EN).get(str(detail.get("what")))
        if hint:
            return hint
    return (_REFUSED_ZH if zh else _REFUSED_EN)[reason]


def named(what: object, language: Language) -> str:
    """What is missing, fit to be spoken: the rules' own name for it, or words of the sentence; empty for neither."""
    text = " ".join(str(what or "").split()).strip(" ,.!?;:，。！？；：、")
    if text in _MISSING:
        return _MISSING[text][language == "zh"]
    return "" if "_" in text else text[:40]


_PARTS = {
    "set_window": ("window", "车窗"),
    "set_door_locks": ("door", "车门"),
    "set_seat_heating": ("seat", "座椅"),
    "set_seat_ventilation": ("seat", "座椅"),
    "set_seat_massage": ("seat", "座椅"),
}
"""What of a call belongs to one seat."""


def _partly(tool: str, zones: list[str], *, zh: bool) -> str:
    en, name = _PARTS.get(tool, ("side", "位置"))
    if zh:
        return f"{'和'.join(ZONE_ZH[zone] for zone in zones)}{name}没有响应，其他的已完成。"
    many = "s" if len(zones) > 1 else ""
    return f"The {' and '.join(ZONE_EN[zone] for zone in zones)} {en}{many} did not respond; the others are done."


def say_failure(result: ToolResult, language: Language) -> str:
    """That it failed, never that it worked; where a part of it did, which part did not."""
    zones = result.detail.get("missed_zones") if result.detail.get("others_followed") else None
    if zones:
        return _partly(result.call.name, zones, zh=language == "zh")
    words = _FAILED_ZH if language == "zh" else _FAILED_EN
    return words.get(result.reason or "", words["unavailable"])
