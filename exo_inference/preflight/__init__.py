"""The verdict before anything is started: flags, model rules and memory, judged together. Pure.

Admission, `POST /ai/plan` and `deployment plan` call `judge` with what they know and get everything
that is wrong at once, the plan, and ways out; `to_wire` gives it the form that users read,
`describe_advice` one way out as a line. The parts are `engines` (which flags exist) and `planner`
(what fits); flags are read here, once (`flags.py`); looking models up is the caller's work.
"""

from exo_inference.preflight.flags import (
    is_written,
    read_draft_name,
    read_flags,
    read_settings,
    written_flags,
)
from exo_inference.preflight.judgement import Judgement, Subject, judge
from exo_inference.preflight.report import describe_advice, locate, locate_code, to_wire

__all__ = [
    "Judgement",
    "Subject",
    "describe_advice",
    "is_written",
    "judge",
    "locate",
    "locate_code",
    "read_draft_name",
    "read_flags",
    "read_settings",
    "to_wire",
    "written_flags",
]
