"""What the cluster refuses to make, in one sentence with the next step. Pure.

The words come from the condition `ReplicaFailure` of a Deployment, where pods are refused, or from
Helm, where an object of the chart is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exo_inference.platforms.kubernetes.diagnosis import Diagnosis, condition

_DENIALS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"exceeded quota: (\S+?), requested: (.+?), used: (.+?), limited: (.+)"),
        "QuotaExceeded",
        "the namespace's quota {0} has no room: requested {1}, used {2}, limited to {3}. Scale something "
        "down or have the quota raised",
    ),
    (
        re.compile(r"violates PodSecurity \"([^\"]+)\": (.+)"),
        "PodSecurity",
        "the namespace's Pod Security Standard {0} refuses the pods: {1}. Take back what the platform's "
        "values change of securityContext and volumes",
    ),
    (
        re.compile(r"admission webhook \"([^\"]+)\" denied the request:? ?(.*)", re.S),
        "AdmissionDenied",
        "a policy of the cluster ({0}) refuses it: {1}. Ask those who run the cluster, or change the "
        "platform's values",
    ),
    (
        re.compile(r"ValidatingAdmissionPolicy '([^']+)'.*? denied request:? ?(.*)", re.S),
        "AdmissionDenied",
        "a policy of the cluster ({0}) refuses it: {1}. Ask those who run the cluster, or change the "
        "platform's values",
    ),
    (
        re.compile(r"failed calling webhook \"([^\"]+)\": (.*)", re.S),
        "WebhookDown",
        "the admission webhook {0} does not answer: {1}. It is tried again; see that webhook's pods",
    ),
    (
        re.compile(r"((?:maximum|minimum) \S+ usage per \S+ is .+)"),
        "LimitRange",
        "a LimitRange of the namespace refuses the pods: {0}. Change resources in the platform's values",
    ),
    (
        re.compile(r"serviceaccount \"([^\"]+)\" not found"),
        "NoServiceAccount",
        "there is no service account {0}. Create it, or correct serviceAccountName in the platform's values",
    ),
    (
        re.compile(r"no PriorityClass with name (\S+) was found"),
        "NoPriorityClass",
        "there is no PriorityClass {0}. Create it, or correct priorityClassName in the platform's values",
    ),
    (
        re.compile(r"RuntimeClass \"([^\"]+)\" not found"),
        "NoRuntimeClass",
        "there is no RuntimeClass {0}. Install the GPU operator, or correct runtimeClassName in the "
        "platform's values",
    ),
    (
        re.compile(r"values don't meet the specifications of the schema.*?: (.*)", re.S),
        "ValuesRefused",
        "the chart refuses the values: {0}. Correct the platform's values",
    ),
    (
        re.compile(r"is forbidden: User \"([^\"]+)\" cannot (.+)"),
        "NotPermitted",
        "the controller ({0}) may not {1}. Upgrade the chart exo-inference, which brings its roles",
    ),
)  # fmt: skip


def explain_denial(text: str) -> Diagnosis | None:
    """Return what a refusal means; None where no rule knows it."""
    for pattern, reason, sentence in _DENIALS:
        if match := pattern.search(text):
            groups = [
                " ".join((group or "").split())[:240].rstrip(". ") for group in match.groups()
            ]
            return Diagnosis(reason, sentence.format(*groups))
    return None


def diagnose_deployment(deployment: Mapping[str, Any]) -> Diagnosis | None:
    """Say why a Deployment gets no pods; None when it does."""
    failure = condition(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    text = str(failure.get("message", ""))
    found = explain_denial(text)
    return found or Diagnosis("PodsRefused", f"the cluster refuses the pods: {text[:300]}")
