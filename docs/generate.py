"""Writes what comes from the code into docs/states.md and docs/providers.md: `python docs/generate.py`. A test fails when it
is old."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path

from counterfoil import providers
from counterfoil.ledger import states
from counterfoil.ledger.states import ARROWS, IN_DOUBT_REFUSED, SETTLED, State
from counterfoil.providers.autonomy import grade_reason
from counterfoil.providers.contract import Contract
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec

PAGE = Path(__file__).parent / "states.md"
PROVIDERS_PAGE = Path(__file__).parent / "providers.md"


def diagram() -> str:
    """Every move as Mermaid; those that doubt forbids say so."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"  [*] --> {state}" for state in (State.PROPOSED, State.AWAITING_APPROVAL, State.READY)]
    for source in State:
        for target in State:
            if target in ARROWS[source]:
                when = " : not in doubt" if (source, target) in IN_DOUBT_REFUSED else ""
                lines.append(f"  {source} --> {target}{when}")
    return "\n".join([*lines, "```"])


def table() -> str:
    """Every state, in the words of its own comment, and where it may go."""
    rows = ["| state | meaning | moves to |", "|---|---|---|"]
    for state, meaning in meanings().items():
        moves = [
            f"{target}*" if (state, target) in IN_DOUBT_REFUSED else str(target)
            for target in State
            if target in ARROWS[state]
        ]
        name = f"**{state}**" if state in SETTLED else str(state)
        rows.append(f"| {name} | {meaning} | {', '.join(moves)} |")
    return "\n".join(rows)


def meanings() -> dict[State, str]:
    """The comment below each state's name in ledger/states.py."""
    tree = ast.parse(inspect.getsource(states))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body[1:]
    comments = [ast.literal_eval(node.value) for node in body if isinstance(node, ast.Expr)]
    return dict(zip(State, comments, strict=True))


def shipped() -> Registry:
    """The tools of every provider that ships some."""
    folders = sorted(Path(providers.__file__).parent.iterdir())
    modules = [folder.name for folder in folders if (folder / "tools.py").is_file() and folder.name != "http"]
    return Registry.load([f"counterfoil.providers.{name}.tools" for name in modules])


def grades() -> str:
    """Every shipped tool: what it promises, and what its grade rests on."""
    rows = [
        "| tool | class | seen by | grade | native key | look-up sees an effect | why |",
        "|---|---|---|---|---|---|---|",
    ]
    tools = [spec for spec in shipped() if spec.effect is not None]
    for spec in sorted(tools, key=lambda spec: (spec.provider, spec.name)):
        contract = spec.contract
        rows.append(
            f"| `{spec.name}` | {spec.cls} | {_seen_by(spec)} | {contract.grade} | {_key(contract)} | {_lookup(contract)} "
            f"| {grade_reason(contract).partition(': ')[2] or grade_reason(contract)} |"
        )
    return "\n".join(rows)


def _seen_by(spec: ToolSpec) -> str:
    return "as its arguments say" if callable(spec.audience) else ", ".join(spec.audience).replace("_", " ") or "nobody"


def _key(contract: Contract) -> str:
    if contract.native_key_ttl_s is None:
        return "for ever" if contract.unique else ""
    return f"{contract.native_key_ttl_s / 3600:g} h" + (
        "" if contract.native_key_concurrent else ", once it has landed"
    )


def _lookup(contract: Contract) -> str:
    if not contract.lookup:
        return "no look-up"
    return f"within {contract.lookup_lag_s:g} s" if contract.lookup_lag_s else "at once"


def written(page: str) -> str:
    """docs/states.md with its generated parts put in anew; ValueError if a mark is missing."""
    return _written(page, "ledger/states.py", {"diagram": diagram(), "table": table()})


def written_providers(page: str) -> str:
    """docs/providers.md with its table put in anew."""
    return _written(page, "the declarations", {"tools": grades()})


def _written(page: str, source: str, parts: Mapping[str, str]) -> str:
    for name, text in parts.items():
        begin, end = f"<!-- {name}: from {source} -->\n", f"<!-- end of {name} -->"
        start = page.index(begin) + len(begin)
        page = page[:start] + text + "\n" + page[page.index(end, start) :]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PROVIDERS_PAGE.write_text(written_providers(PROVIDERS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
