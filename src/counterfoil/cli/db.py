"""`counterfoil db roles|upgrade|grant|check`: the database, its groups, its schema and who may act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, group
from counterfoil.cli.output import as_json, facts, say
from counterfoil.ledger.errors import ConfigError

if TYPE_CHECKING:
    from counterfoil.ledger.roles import Group

app = group("The database: groups, schema, and who may act for whom.")


@app.command()
def roles(
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL for a database administrator, run nothing.")
    ] = False,
    database: Annotated[
        str, typer.Option("--database", metavar="NAME", help="With --sql: the database that it is for.")
    ] = "counterfoil",
    config: ConfigPath = None,
) -> None:
    """Make the five groups that the ledger's rights are given to. Needs a login with CREATEROLE; may be run again.

    \b
    counterfoil db roles
    counterfoil db roles --sql --database app > roles.sql
    """
    from counterfoil.ledger import roles as groups

    if sql:
        return say(groups.groups_sql(database))
    groups.create_groups(place.database_address(config, "owner"))
    say(f"groups are there: counterfoil_owner, {', '.join(f'counterfoil_{name}' for name in groups.GROUPS)}")
    return None


@app.command()
def upgrade(config: ConfigPath = None) -> None:
    """Bring the schema to this version's. Needs a login that is in counterfoil_owner; may be run again, and at once.

    \b
    counterfoil db upgrade
    """
    from counterfoil.ledger import migrate

    say(f"schema is at {migrate.upgrade(place.database_address(config, 'owner'))}")


@app.command()
def grant(
    login: Annotated[str, typer.Argument(metavar="LOGIN", help="An existing login of this database.")],
    as_: Annotated[str, typer.Option("--as", metavar="GROUP", help="agent, worker, operator or reader.")],
    tenant: Annotated[str, typer.Option("--tenant", metavar="TENANT", help="Whom it may act for; '*' = everybody.")],
    config: ConfigPath = None,
) -> None:
    """Let a login work in a role, for one tenant or for all of them.

    \b
    counterfoil db grant app_user --as agent --tenant acme
    counterfoil db grant cf_worker --as worker --tenant '*'
    """
    from counterfoil.ledger import roles as groups

    as_group: dict[str, Group] = {name: name for name in groups.GROUPS}
    if as_ not in as_group:
        raise ConfigError(f"there is no role {as_!r}.", key="--as", fix=f"One of: {', '.join(groups.GROUPS)}.")
    groups.grant(place.database_address(config, "owner"), login, as_=as_group[as_], tenant=tenant)
    say(f"{login} works as {as_} for {'every tenant' if tenant == '*' else tenant}")


@app.command()
def check(json_: AsJson = False, config: ConfigPath = None) -> None:
    """Check that the database answers, has this version's schema, and that this login has a role. Changes nothing.

    \b
    counterfoil db check
    """
    from counterfoil.ledger.queries import load

    own = load("counterfoil.cli", "sql/check.sql")
    with place.open_ledger(config, "reader", needs_schema=False) as ledger:
        found = ledger.row(own["check_login"], {}) or {}
        if not found["has_schema"]:
            raise ConfigError(
                "this database has no ledger.", fix="Run `counterfoil db roles` and `counterfoil db upgrade`."
            )
        if not found["groups"]:
            raise ConfigError(
                f"login {found['login']} is in no group of the ledger.",
                fix="Add it: `counterfoil db grant LOGIN --as agent --tenant TENANT`.",
            )
        found["tenants"] = (ledger.row(own["check_tenants"], {}) or {})["tenants"]
    found["schema"], newest = _schema(config) if found["reads_version"] else (None, None)
    if json_:
        as_json(found)
    else:
        names = ("login", "server", "groups", "tenants", "schema")
        facts([(name, ", ".join(v) if isinstance(v := found[name], list) else v) for name in names])
    if found["schema"] != newest:
        raise ConfigError(
            f"the schema is at {found['schema']}, this version needs {newest}.", fix="Run `counterfoil db upgrade`."
        )


def _schema(config: ConfigPath) -> tuple[str | None, str]:
    from counterfoil.ledger import migrate

    return migrate.status(place.database_address(config, "reader"))
