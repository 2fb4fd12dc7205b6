"""Refusals: what is wrong with a request, and the problem body that says so.

Raised by admission, routes, auth and body parsing; turned into an answer by `middleware.py`. The
form follows what every client shows: RFC 9457 with a title that adds to the status phrase, the
same text as `message`, and one entry in `errors` per field.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from exo_inference.errors import ExoError
from exo_inference.wire import FieldProblem, Problem

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
        deployments: Sequence[str] | None = None,
        headers: dict[str, str] | None = None,
        type: str = "about:blank",  # the word of RFC 9457
    ) -> None:
        super().__init__(detail, hint=hint)
        self.status_code = status_code
        self.title = title
        self.type = type
        self.issues = tuple(issues)
        self.deployments = deployments
        self.headers = headers or {}

    def to_problem(self) -> Problem:
        """Return the body of the answer."""
        errors = [
            FieldProblem(detail=issue.detail or issue.sentence, location=issue.location)
            for issue in self.issues
            if issue.location is not None
        ]
        return Problem(
            type=self.type,
            title=self.title,
            status=self.status_code,
            detail=self.text,
            message=self.text,
            errors=errors or None,
            deployments=None if self.deployments is None else list(self.deployments),
        )


def refuse(title: str, issues: Sequence[Issue], *, hint: str | None = None) -> Refused:
    """Return one refusal for all issues; a wrong form (400) outranks what else is in the way."""
    ranked = sorted(issues, key=lambda issue: _STATUS_ORDER.index(issue.status))
    if len(issues) == 1:
        detail = issues[0].sentence
    else:
        detail = f"{len(issues)} problems: " + "; ".join(issue.sentence for issue in issues)
    return Refused(ranked[0].status, title, detail, hint=hint, issues=issues)


def field_issue(field: str, text: str, *, status: int = 400) -> Issue:
    """Return an issue of one top-level field: `replicas` + `must be at least 1, found -2`."""
    return Issue(f"{field} {text}", f"$['{field}']", text, status)


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
