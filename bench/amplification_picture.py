"""Draws attempts per second over time, one small chart for each fleet, as an SVG without any library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape

from amplification_fleet import Played

WIDTH, HEIGHT, LEFT, GAP = 760, 110, 150, 34
BEFORE_S, AFTER_S = 20, 160
ALLOWED = 1.25


def draw(drawn: Mapping[str, Played]) -> str:
    """The charts below each other, all with one scale of time and one of attempts per arrival."""
    top = 30
    high = 4.0
    body = [
        f'<text x="{LEFT}" y="18" class="t">Requests that reach the provider each second, per arrival of a second. '
        f"Grey: the provider is down. Dashed: {ALLOWED}.</text>"
    ]
    for n, (name, played) in enumerate(drawn.items()):
        body += _chart(name, played, top + n * (HEIGHT + GAP), high)
    height = top + len(drawn) * (HEIGHT + GAP) + 6
    style = (
        "text{font:12px sans-serif;fill:#222}.t{font-weight:600}.s{fill:#666;font-size:10px}"
        ".down{fill:#e4e4e4}.bar{fill:#2f6db5}.over{fill:#c0392b}.axis{stroke:#999}.max{stroke:#333;stroke-dasharray:4 3}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
        f'width="{LEFT + WIDTH + 20}" height="{height}"><rect width="100%" height="100%" fill="#fff"/>'
        f"<style>{style}</style>{''.join(body)}</svg>\n"
    )


def _chart(name: str, played: Played, top: int, high: float) -> list[str]:
    start = int(played.began) - BEFORE_S
    seconds = int(played.ended - played.began) + BEFORE_S + AFTER_S
    step = WIDTH / seconds
    per_second = Counter(int(at) for at in played.attempts)
    bottom = top + HEIGHT

    def x(at: float) -> float:
        return LEFT + (at - start) * step

    def y(ratio: float) -> float:
        return bottom - min(ratio, high) / high * HEIGHT

    parts = [
        *(
            f'<text x="6" y="{top + 14 + 15 * line}" class="t">{escape(part)}</text>'
            for line, part in enumerate(name.split(", "))
        ),
        f'<rect class="down" x="{x(played.began):.1f}" y="{top}" width="{(played.ended - played.began) * step:.1f}" '
        f'height="{HEIGHT}"/>',
    ]
    for second in range(start, start + seconds):
        ratio = per_second[second] / played.rate
        if ratio > 0:
            kind = "bar" if ratio <= ALLOWED else "over"
            parts.append(
                f'<rect class="{kind}" x="{x(second):.1f}" y="{y(ratio):.1f}" width="{step * 0.9:.2f}" '
                f'height="{bottom - y(ratio):.1f}"/>'
            )
    most, second = max((count, -at) for at, count in per_second.items())
    if most / played.rate > high:  # beyond the scale: how far
        parts.append(f'<text class="s" x="{x(-second):.1f}" y="{top - 3}">up to {most / played.rate:.1f}</text>')
    parts.append(f'<line class="max" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y(ALLOWED):.1f}" y2="{y(ALLOWED):.1f}"/>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{bottom}" y2="{bottom}"/>')
    for ratio in (0, 1, 2, 3, 4):
        parts.append(f'<text class="s" x="{LEFT - 14}" y="{y(ratio) + 4:.1f}">{ratio}</text>')
    for second in range(start, start + seconds + 1, 20):
        label = f"{second - int(played.began)} s"
        parts.append(f'<text class="s" x="{x(second):.1f}" y="{bottom + 13}">{label}</text>')
    return parts
