"""The plots of a report, by plotly: interactive, without network access."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.offline import get_plotlyjs

SCRIPT = get_plotlyjs
STAGES = {"decode": "#5b8ff9", "queue": "#f6bd16", "compute": "#5ad8a6", "encode": "#9270ca"}
BARS = {"rest": "#a9b4c2", **STAGES, "other": "#6b7787"}
DASHES = ("solid", "dash")
GREY, GRID = "#7d8896", "rgba(128,138,150,.18)"  # legible on white and on black
TAIL = [0, 50, 75, 90, 95, 99, 99.9, 99.99]
TIMES = ("p50", "p95", "p99")
LOG = {"type": "log", "tickvals": [m * 10.0**k for k in range(-3, 6) for m in (1, 2, 5)]}
LOG["ticktext"] = [f"{value:,g}" for value in LOG["tickvals"]]


def render(results: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Title, caption and HTML of each plot; plots without data are omitted."""
    latencies = {metric: metric for metric in TIMES}
    ramp = [result for result in results if not result["soak"]]
    plots = [
        ("Latency by percentile", "At 99, one request in a hundred took longer.", _curves(results)),
        ("Throughput", "Responses a second by load.", _levels(ramp, {"rate": "answered"}, "per second")),
        ("Latency by load", "Where a curve bends upwards, requests queue.", _levels(ramp, latencies, "ms", log=True)),
        ("Where the time goes", "Means. Rest is the client's latency minus the server's: network, sockets, waiting "
         "outside the server. Other is what the server does between its stages.", _stages(results)),
        ("Rate over time", "The rate in each window; pale points are the warm-up, not counted.", _time(results)),
    ]  # fmt: skip
    return [(title, caption, _html(figure)) for title, caption, figure in plots if figure.data]


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
    positions = [0.15 + 0.65 * i / max(1, len(levels) - 1) for i in range(len(levels))]
    colors = dict(zip(levels, sample_colorscale("Viridis", positions), strict=True))
    return [{"color": colors[result["level"]], "dash": DASHES[servers.index(result["server"])]} for result in results]


def _curves(results: Sequence[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    for result, title, line in zip(results, _titles(results), _lines(results), strict=True):
        if result["curve"]:
            percents, times = zip(*result["curve"], strict=True)
            figure.add_scatter(
                x=[100 / (100 - percent) for percent in percents], y=times, name=title, line=line, mode="lines",
                text=[f"{percent:.6g}" for percent in percents], hovertemplate="p%{text}: %{y:.3g} ms",
            )  # fmt: skip
    figure.update_xaxes(
        type="log", tickvals=[100 / (100 - percent) for percent in TAIL], ticktext=[f"{percent:g}" for percent in TAIL],
        title="percentile", unifiedhovertitle={"text": " "},
    )  # fmt: skip
    figure.update_yaxes(LOG, title="ms")
    return figure


def _levels(results: Sequence[dict[str, Any]], metrics: dict[str, str], unit: str, log: bool = False) -> go.Figure:
    figure = go.Figure()
    servers = _servers(results)
    is_open = results[0]["offered"] is not None if results else False
    load = "offered" if is_open else "concurrency"
    colors = ["#5b8ff9", "#f6a416", "#e8684a"]
    for server, dash in zip(servers, DASHES, strict=False):
        of_server = [result for result in results if result["server"] == server]
        for (metric, name), color in zip(metrics.items(), colors, strict=False):
            figure.add_scatter(
                x=[result[load] for result in of_server], y=[result[metric] for result in of_server],
                mode="lines+markers", name=name + (f", {server}" if len(servers) > 1 else ""),
                line={"dash": dash, "color": color}, marker={"size": 8}, hovertemplate="%{y:,.4g} " + unit,
            )  # fmt: skip
    ticks = sorted({result[load] for result in results})
    if is_open and "rate" in metrics:
        line = {"dash": "dot", "color": GREY, "width": 1}
        figure.add_scatter(x=ticks, y=ticks, mode="lines", name="offered", line=line)
    figure.update_xaxes(
        type="log", tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks],
        title="offered per second" if is_open else "connections",
    )  # fmt: skip
    figure.update_yaxes(LOG if log else {"rangemode": "tozero"}, title=unit)
    return figure


def _stages(results: Sequence[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    rows = [(result, title) for result, title in zip(results, _titles(results), strict=True) if result["server_side"]]
    for stage, color in BARS.items() if rows else ():
        figure.add_bar(
            y=[title for _, title in rows], x=[_bar_ms(result["server_side"], stage) for result, _ in rows],
            name=stage, orientation="h", marker={"color": color}, hovertemplate="%{x:.3g} ms",
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="ms")
    figure.update_yaxes(autorange="reversed")
    return figure


def _bar_ms(server_side: dict[str, Any], stage: str) -> float:
    if stage == "rest":
        return float(server_side["rest"]["mean"])
    means = {name: float(times["mean"]) for name, times in server_side["stages"].items()}
    return means[stage] if stage in means else max(0.0, server_side["total"]["mean"] - sum(means.values()))


def _time(results: Sequence[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    for result, title, line in zip(results, _titles(results), _lines(results), strict=True):
        end_s, x, y, opacity = 0.0, [], [], []
        for window in result["windows"]:
            end_s += window["seconds"]
            x.append(end_s)
            y.append(window["rate"])
            opacity.append(0.3 if window["phase"] == "warm-up" else 1)
        if x:
            figure.add_scatter(
                x=x, y=y, name=title, line={**line, "width": 1.5}, mode="lines+markers",
                marker={"opacity": opacity, "size": 7}, hovertemplate="%{y:,.4g}/s",
            )  # fmt: skip
    figure.update_xaxes(title="seconds since the level began")
    figure.update_yaxes(title="per second", rangemode="tozero")
    return figure
