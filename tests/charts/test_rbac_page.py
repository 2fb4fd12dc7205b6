"""docs/reference/rbac.md has every rule of the rendered roles, its reason, and no other rule.

And it is what an API server says of the accounts: `kubectl auth can-i --list`, as the page tells to ask.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import pytest

from tests.charts.rendering import CHARTS, ROOT, only, render
from tests.charts.service_accounts import FEATURES, RELEASE, kubeconfig_of
from tests.kubernetes_api import KubernetesApi

PAGE = (ROOT / "docs/reference/rbac.md").read_text("utf-8")
SECTIONS = {
    "Controller, in the namespace of the inference objects": ("Role", "chat-controller"),
    "Gateway, in the namespace of the inference objects": ("Role", "chat-gateway"),
    "Controller, on the whole cluster": ("ClusterRole", "chat-inference"),
}


@dataclass(frozen=True, order=True)
class Rule:
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()


def rendered(kind: str, name: str, *arguments: str) -> list[Rule]:
    rules = only(render("exo-inference", *arguments), kind, name)["rules"]
    return sorted(
        Rule(
            rule["apiGroups"][0],
            tuple(sorted(rule["resources"])),
            tuple(sorted(rule["verbs"])),
            tuple(rule.get("resourceNames", ())),
        )
        for rule in rules
    )


def documented(section: str) -> list[tuple[Rule, str, str]]:
    """Return the rules of a section's table, each with its condition and its reason."""
    body = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in body.splitlines() if line.startswith("| ")][2:]
    found = []
    for row in rows:
        group, resources, verbs, condition, why = (c.strip() for c in row.strip("| ").split("|"))
        kinds, _, named = resources.partition(", the one named ")
        names = tuple(name.replace("RELEASE", "chat") for name in quoted(named))
        plain = tuple(sorted(quoted(kinds)))
        key = "" if group == "core" else group.strip("`")
        rule = Rule(key, plain, tuple(sorted(verbs.split())), names)
        found.append((rule, condition.strip("`"), why))
    return found


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("section", SECTIONS)
def test_page_and_chart_have_the_same_rules(section: str) -> None:
    kind, name = SECTIONS[section]
    rows = documented(section)
    assert rows
    assert sorted(rule for rule, _, _ in rows) == rendered(kind, name, "--set", FEATURES)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_rule_has_the_reason_that_the_template_gives(section: str) -> None:
    text = "".join(p.read_text() for p in (CHARTS / "exo-inference/templates").glob("*-role.yaml"))
    for rule, _, why in documented(section):
        first_sentence = why.partition(". Their")[0].rstrip(".")
        assert f"# {first_sentence}" in text, rule


@pytest.mark.parametrize("feature", ["leaderWorkerSet", "keda", "resourceClaims"])
def test_a_permission_for_a_feature_comes_with_it_alone(feature: str) -> None:
    section = "Controller, in the namespace of the inference objects"
    (expected,) = [
        r for r, condition, _ in documented(section) if condition == f"features.{feature}"
    ]
    without = rendered("Role", "chat-controller")
    given = rendered("Role", "chat-controller", "--set", f"features.{feature}=true")
    assert [rule for rule in given if rule not in without] == [expected]


def test_no_rule_is_open() -> None:
    for item in render("exo-inference", "--set", FEATURES):
        for rule in item.get("rules", ()) if item["kind"] in ("Role", "ClusterRole") else ():
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert len(rule["apiGroups"]) == 1


def test_controller_may_make_all_that_the_release_charts_make() -> None:
    """A kind that a chart renders and the role lacks would fail on the cluster only."""
    may = {
        (rule.group, resource)
        for rule in rendered("Role", "chat-controller", "--set", FEATURES)
        for resource in rule.resources
        if {"get", "create", "patch", "delete"} <= set(rule.verbs)
    }
    needed = set()
    for chart in ("inference-deployment", "inference-model"):
        for path in (CHARTS / chart / "ci").glob("*-values.yaml"):
            for item in render(chart, scenario=path.name.removesuffix("-values.yaml")):
                group, slash, _ = item["apiVersion"].partition("/")
                plural = re.sub("y$", "ie", item["kind"].lower()) + "s"
                needed.add((group if slash else "", plural))
    assert needed <= may


_ROW = re.compile(r"(\S*)\s+\[(.*?)\]\s+\[(.*?)\]\s+\[(.*?)\]")
"""Of `kubectl auth can-i --list`: resource, URLs, names, verbs."""


def allowed(api: KubernetesApi, account: str, namespace: str) -> set[tuple[str, ...]]:
    """Return what an account may do in a namespace, as kubectl lists it."""
    user = f"--as=system:serviceaccount:{api.namespace}:{account}"
    said = api.kubectl("auth", "can-i", "--list", user, f"--namespace={namespace}")
    assert said.stderr == "", "the list is incomplete"
    header, *rows = said.stdout.splitlines()
    assert header.split() == ["Resources", "Non-Resource", "URLs", "Resource", "Names", "Verbs"]
    found = set()
    for row in rows:
        match = _ROW.fullmatch(row.rstrip())
        assert match, row
        resource, urls, names, verbs = match.groups()
        found.add((resource, urls, names, " ".join(sorted(verbs.split()))))
    return found


def listed(section: str) -> set[tuple[str, ...]]:
    """Return the rows of a section as kubectl lists them."""
    found = set()
    for rule, _, _ in documented(section):
        names = [name.replace("chat-", f"{RELEASE}-") for name in rule.names]
        for resource, name in itertools.product(rule.resources, names or [""]):
            kind, slash, part = resource.partition("/")
            group = f".{rule.group}" if rule.group else ""
            found.add((f"{kind}{group}{slash}{part}", "", name, " ".join(rule.verbs)))
    return found


@pytest.mark.parametrize("component", ["controller", "gateway"])
def test_kubectl_lists_what_the_page_has_and_nothing_else(
    component: str, kubernetes_api: KubernetesApi
) -> None:
    kubeconfig_of(component, kubernetes_api)
    inside = listed(f"{component.title()}, in the namespace of the inference objects")
    everywhere = listed("Controller, on the whole cluster") if component == "controller" else set()
    for namespace, expected in {
        kubernetes_api.namespace: inside | everywhere,
        "default": everywhere,
        "kube-system": everywhere,
    }.items():
        everybodys = allowed(kubernetes_api, "nobody", namespace)
        assert everybodys
        found = allowed(kubernetes_api, f"{RELEASE}-{component}", namespace)
        assert found - everybodys == expected
