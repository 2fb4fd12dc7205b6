"""Refusals: what is wrong with a request, and the problem body that says so.

Raised by admission, routes, auth and body parsing; turned into an answer by `middleware.py`. The
form follows what every client shows: RFC 9457 with a title that adds to the status phrase, one entry
in `errors` per field, and the whole text as `message`. Clients print `detail` and then `errors`, so
nothing is said in both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from exo_inference.errors import ExoError
from exo_inference.wire import DeploymentPlan, FieldProblem, Problem

_STATUS_ORDER = (400, 403, 404, 409, 412)


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong.

    Attributes:
        sentence: the whole of it, for people.
        location: JSON path of the field, as `$['replicas']`; None if it is about no single field.
        detail: what follows the field's name in a list of problems; the sentence if empty.
        status: the HTTP status it would have alone.
    """

    sentence: str
    location: str | None = None
    detail: str = ""
    status: int = 400


class Refused(ExoError):
    """The request is answered with an error status. Nothing of it has happened.

    Attributes:
        status_code: the HTTP status.
        title: the class of failure; it must say more than the status phrase.
        type: URI of the class of failure, where programs must be able to tell it.
        issues: what is wrong, field by field.
        ways_out: what to ask for instead, one line each.
        plan: of a deployment that does not fit.
        deployments: names of the deployments in the way.
    """

    def __init__(
        self,
        status_code: int,
        title: str,
        detail: str,
        *,
        hint: str | None = None,
        issues: Sequence[Issue] = (),
        ways_out: Sequence[str] = (),
        plan: DeploymentPlan | None = None,
        deployments: Sequence[str] | None = None,
        headers: dict[str, str] | None = None,
        type: str = "about:blank",  # the word of RFC 9457
    ) -> None:
        super().__init__(detail, hint=hint)
        self.status_code = status_code
        self.title = title
        self.type = type
        self.issues = tuple(issues)
        self.ways_out = tuple(ways_out)
        self.plan = plan
        self.deployments = deployments
        self.headers = headers or {}

    def to_problem(self) -> Problem:
        """Return the body of the answer."""
        listed = [
            FieldProblem(detail=i.detail or i.sentence, location=i.location) for i in self._listed
        ]
        listed += [FieldProblem(detail=text) for text in self.ways_out]
        return Problem(
            type=self.type,
            title=self.title,
            status=self.status_code,
            detail=self._detail(),
            message="\n".join([self.text, *(f"  - {text}" for text in self.ways_out)]),
            errors=listed or None,
            plan=self.plan,
            deployments=None if self.deployments is None else list(self.deployments),
        )

    @property
    def _listed(self) -> tuple[Issue, ...]:
        """The issues that go to `errors`: all of them, unless there is one and no field has it."""
        is_alone = len(self.issues) == 1 and self.issues[0].location is None
        return () if is_alone else self.issues

    def _detail(self) -> str:
        """Return what is not in `errors`."""
        if not self._listed:
            return self.text
        counted = "1 problem" if len(self._listed) == 1 else f"{len(self._listed)} problems"
        return counted if self.hint is None else f"{counted}. {self.hint}"


def refuse(
    title: str,
    issues: Sequence[Issue],
    *,
    hint: str | None = None,
    ways_out: Sequence[str] = (),
    plan: DeploymentPlan | None = None,
) -> Refused:
    """Return one refusal for all issues; a wrong form (400) outranks what else is in the way."""
    ranked = sorted(issues, key=lambda issue: _STATUS_ORDER.index(issue.status))
    if len(issues) == 1:
        detail = issues[0].sentence
    else:
        detail = f"{len(issues)} problems: " + "; ".join(issue.sentence for issue in issues)
    status = ranked[0].status
    return Refused(status, title, detail, hint=hint, issues=issues, ways_out=ways_out, plan=plan)


def field_issue(field: str, text: str, *, status: int = 400) -> Issue:
    """Return an issue of one top-level field: `replicas` + `must be at least 1, found -2`."""
    return Issue(f"{field} {text}", f"$['{field}']", text, status)


def short_number(number: int) -> str:
    """Write a number that a user gave, unless it is too long to repeat."""
    return str(number) if abs(number) < 10**9 else "a number far out of range"


def choice_issue(field: str, value: object, choices: Sequence[str], *, status: int = 400) -> Issue:
    """Return the issue of a value that is not among the choices, in the form the API's clients know.

    They print the choices when a detail reads `does not have a value in the enumeration [...]`.
    """
    listed = json.dumps(list(choices), separators=(",", ":"))
    return Issue(
        f"{field} is {value!r}, expected one of: {', '.join(choices)}",
        f"$['{field}']",
        f"does not have a value in the enumeration {listed}",
        status,
    )


def not_found(noun: str, uid: str) -> Refused:
    """Return the refusal for an object that does not exist."""
    return Refused(
        404, f"No such {noun}", f"there is no {noun} with the id {uid!r}", hint=f"List the {noun}s."
    )
