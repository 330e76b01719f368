"""Chat templates of model families whose files may lack one: base models, and files converted without it.

The form is what the family's instruction-tuned checkpoints are trained on.
"""

from __future__ import annotations

from typing import Final

_GEMMA3: Final = """\
{{- bos_token -}}
{%- set turn = namespace(side='') -%}
{%- for message in messages -%}
  {%- if message.role not in ('system', 'user', 'assistant', 'tool') -%}
    {{- raise_exception('unknown role ' ~ message.role) -}}
  {%- endif -%}
  {%- set side = 'model' if message.role == 'assistant' else 'user' -%}
  {%- if side == turn.side -%}
    {{- '\\n\\n' -}}
  {%- else -%}
    {{- '<end_of_turn>\\n' if turn.side else '' -}}
    {{- '<start_of_turn>' ~ side ~ '\\n' -}}
  {%- endif -%}
  {%- set turn.side = side -%}
  {{- (message.content or '') | trim -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<end_of_turn>\\n' if turn.side else '' -}}
  {{- '<start_of_turn>model\\n' -}}
{%- elif turn.side == 'model' -%}
  {{- '<end_of_turn>\\n' -}}
{%- endif -%}
"""
"""Two sides; a system text stands at the beginning of the user's turn, a tool's result in one."""

FAMILY_TEMPLATES: Final = {"gemma3": _GEMMA3}
"""Architecture -> Jinja template."""
