"""Keys as the fields that are printed: names in snake_case, and the name of the deployment beside its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exo_inference.cli.rendering.views import Column, View, format_moment

if TYPE_CHECKING:
    from exo_inference.sdk import Client
    from exo_inference.wire import ApiKey

EVERY_DEPLOYMENT = "public"
"""The scope of a key that opens every deployment."""


@dataclass(frozen=True)
class NamedKey:
    """A key, and what it opens.

    Attributes:
        key: as the API shows it.
        deployment: name of the deployment that it opens; empty for all, or for one that is gone.
        value: the key itself, where it is shown.
    """

    key: ApiKey
    deployment: str
    value: str | None = None

    @property
    def opens(self) -> str:
        """What it opens, in words."""
        if self.key.scope == EVERY_DEPLOYMENT:
            return "every deployment"
        return self.deployment or "a deployment that is gone"


@dataclass(frozen=True)
class KeyValue:
    """The value of a key, and whose it is."""

    id: str
    name: str
    value: str


VALUE: View[KeyValue] = View(
    (
        Column("id", "ID", "ID", lambda k: k.id),
        Column("name", "Name", "Name", lambda k: k.name),
        Column("value", "Value", "API Key", lambda k: k.value, other_name="APIKey"),
    )
)

API_KEY: View[NamedKey] = View(
    (
        Column("id", "ID", "ID", lambda k: k.key.id),
        Column("name", "Name", "Name", lambda k: k.key.name),
        Column("scope", "Scope", "", lambda k: k.key.scope, added=True),
        Column("deployment", "Deployment", "", lambda k: k.deployment, added=True),
        Column("opens", "Opens", "Opens", lambda k: k.opens),
        Column("created_at", "CreatedAt", "Created At", lambda k: format_moment(k.key.created_at)),
        Column("updated_at", "UpdatedAt", "Updated At", lambda k: format_moment(k.key.updated_at)),
        Column("value", "Value", "API Key", lambda k: k.value, added=True, other_name="APIKey"),
    )
)


def named_all(client: Client, keys: list[ApiKey]) -> list[NamedKey]:
    """Return keys with the names of their deployments, asked for at once."""
    if all(key.scope == EVERY_DEPLOYMENT for key in keys):
        return [NamedKey(key, "") for key in keys]
    names = {each.id: each.name for each in client.deployments.list()}
    return [NamedKey(key, names.get(key.scope, "")) for key in keys]
