"""Writes the parts of docs/states.md that come from the code: `python docs/generate.py`. A test fails when they are old."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from counterfoil.ledger import states
from counterfoil.ledger.states import ARROWS, IN_DOUBT_REFUSED, SETTLED, State

PAGE = Path(__file__).parent / "states.md"


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


def written(page: str) -> str:
    """The page with its generated parts put in anew; ValueError if a mark is missing."""
    for name, text in (("diagram", diagram()), ("table", table())):
        begin, end = f"<!-- {name}: from ledger/states.py -->\n", f"<!-- end of {name} -->"
        start = page.index(begin) + len(begin)
        page = page[:start] + text + "\n" + page[page.index(end, start) :]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
