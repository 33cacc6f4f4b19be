"""Plots of a report, by plotly: interactive, and in need of nothing from elsewhere."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.offline import get_plotlyjs

SCRIPT = get_plotlyjs
STAGES = {"decode": "#5b8ff9", "queue": "#f6bd16", "compute": "#5ad8a6", "encode": "#9270ca", "rest": "#a9b4c2"}
DASHES = ("solid", "dash")
GREY, GRID = "#7d8896", "rgba(128,138,150,.18)"  # legible on white and on black
TAIL = [0, 50, 75, 90, 95, 99, 99.9, 99.99]
TIMES = ("p50", "p95", "p99")
LOG = {"type": "log", "tickvals": [m * 10.0**k for k in range(-3, 6) for m in (1, 2, 5)]}
LOG["ticktext"] = [f"{value:,g}" for value in LOG["tickvals"]]


def all_of(results: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Title, explanation and HTML of each plot; empty ones are left out."""
    made = [
        ("Latency by percentile", "Each step to the right is rarer: 99 is the slowest of a hundred.", _curves(results)),
        ("Throughput", "Answers a second at each level of load.", _levels(results, {"rate": "answered"}, "per second")),
        (
            "Latency by load",
            "Where it bends upwards, requests begin to wait.",
            _levels(results, {of: of for of in TIMES}, "ms", log=True),
        ),
        (
            "Inside the server",
            "By the server's own metrics, mean. A click adds the rest: network, parsing, waiting to be read.",
            _stages(results),
        ),
        ("Through time", "Rate in each window; pale: warm-up, not counted.", _time(results)),
    ]
    return [(title, what, _html(figure)) for title, what, figure in made if figure.data]


def _html(figure: go.Figure) -> str:
    axis = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True, "title": {"standoff": 8}}
    figure.update_layout(
        height=340,
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12, "color": GREY},
        hovermode="x unified",
        legend={"orientation": "h", "y": -0.22, "x": 0, "traceorder": "normal"},
        template="none",
    )
    figure.update_xaxes(axis)
    figure.update_yaxes(axis)
    config = {"displayModeBar": False, "responsive": True}
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return html


def _servers(results: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(result["server"] for result in results))


def _titles(results: Sequence[dict[str, Any]]) -> list[str]:
    several = len(_servers(results)) > 1
    return [result["level"] + (f", {result['server']}" if several else "") for result in results]


def _lines(results: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A colour for each level, a dash for each server."""
    levels, servers = list(dict.fromkeys(result["level"] for result in results)), _servers(results)
    places = [0.15 + 0.65 * i / max(1, len(levels) - 1) for i in range(len(levels))]
    colors = dict(zip(levels, sample_colorscale("Viridis", places), strict=True))
    return [{"color": colors[of["level"]], "dash": DASHES[servers.index(of["server"])]} for of in results]


def _curves(results: Sequence[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    for result, title, line in zip(results, _titles(results), _lines(results), strict=True):
        if result["curve"]:
            percents, times = zip(*result["curve"], strict=True)
            figure.add_scatter(
                x=[100 / (100 - of) for of in percents], y=times, name=title, line=line, mode="lines",
                text=[f"{of:.6g}" for of in percents], hovertemplate="p%{text}: %{y:.3g} ms",
            )  # fmt: skip
    figure.update_xaxes(
        type="log", tickvals=[100 / (100 - of) for of in TAIL], ticktext=[f"{of:g}" for of in TAIL], title="percentile",
        unifiedhovertitle={"text": " "},
    )  # fmt: skip
    figure.update_yaxes(LOG, title="ms")
    return figure


def _levels(results: Sequence[dict[str, Any]], what: dict[str, str], unit: str, log: bool = False) -> go.Figure:
    figure = go.Figure()
    servers = _servers(results)
    opened = results[0]["offered"] is not None if results else False
    x_of = "offered" if opened else "concurrency"
    colors = ["#5b8ff9", "#f6a416", "#e8684a"]
    for server, dash in zip(servers, DASHES, strict=False):
        own = [result for result in results if result["server"] == server]
        for (field, name), color in zip(what.items(), colors, strict=False):
            figure.add_scatter(
                x=[of[x_of] for of in own], y=[of[field] for of in own], mode="lines+markers",
                name=name + (f", {server}" if len(servers) > 1 else ""), line={"dash": dash, "color": color},
                marker={"size": 8}, hovertemplate="%{y:,.4g} " + unit,
            )  # fmt: skip
    if opened and "rate" in what:
        ends = [of["offered"] for of in results]
        figure.add_scatter(x=ends, y=ends, mode="lines", name="asked", line={"dash": "dot", "color": GREY, "width": 1})
    ticks = sorted({of[x_of] for of in results})
    figure.update_xaxes(
        type="log", tickvals=ticks, ticktext=[f"{of:,g}" for of in ticks],
        title="asked per second" if opened else "connections",
    )  # fmt: skip
    figure.update_yaxes(LOG if log else {"rangemode": "tozero"}, title=unit)
    return figure


def _stages(results: Sequence[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    told = [(result, title) for result, title in zip(results, _titles(results), strict=True) if result["server_side"]]
    for stage, color in STAGES.items():
        times = [
            max(0.0, (result["mean"] or 0) - sum(of["mean"] for of in result["server_side"]["stages"].values()))
            if stage == "rest"
            else result["server_side"]["stages"][stage]["mean"]
            for result, _ in told
        ]
        if told:
            figure.add_bar(
                y=[title for _, title in told], x=times, name=stage, orientation="h", marker={"color": color},
                hovertemplate="%{x:.3g} ms", visible="legendonly" if stage == "rest" else True,
            )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="ms")
    figure.update_yaxes(autorange="reversed")
    return figure


def _time(results: Sequence[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    for result, title, line in zip(results, _titles(results), _lines(results), strict=True):
        at, x, y, pale = 0.0, [], [], []
        for of in result["windows"]:
            at += of["seconds"]
            x.append(at)
            y.append(of["rate"])
            pale.append(0.3 if of["phase"] == "warm-up" else 1)
        if x:
            figure.add_scatter(
                x=x, y=y, name=title, line={**line, "width": 1.5}, mode="lines+markers",
                marker={"opacity": pale, "size": 7}, hovertemplate="%{y:,.4g}/s",
            )  # fmt: skip
    figure.update_xaxes(title="seconds of the level")
    figure.update_yaxes(title="per second", rangemode="tozero")
    return figure
