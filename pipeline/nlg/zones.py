"""Places in the car as they are said."""

from __future__ import annotations

ZONE_EN = {
    "all": "whole-cabin",
    "front": "front",
    "driver": "driver",
    "passenger": "passenger",
    "rear": "rear",
    "rear_left": "rear left",
    "rear_right": "rear right",
}
ZONE_ZH = {
    "all": "全车",
    "front": "前排",
    "driver": "主驾",
    "passenger": "副驾",
    "rear": "后排",
    "rear_left": "左后",
    "rear_right": "右后",
}
