"""The report, rendered by a real browser that can reach nothing."""

import os
import re
import shutil
import subprocess

import pytest

from loadtest.__main__ import main
from tests.support.app import App

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SMALL = ["--size", "m=4", "--size", "n=4", "--size", "d_k=8", "--size", "d_v=8"]
QUICK = ["--seconds", "0.5", "--window", "0.1", "--max-warmup", "0.3"]


def dom_and_console(page, tmp_path):
    command = [
        CHROMIUM, "--headless", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    command[2:2] = ["--no-sandbox"] * (os.geteuid() == 0)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    # Plotly fits margins to labels in a few steps, and says so where it stops before the last pixel.
    return done.stdout, [line for line in console if "Too many auto-margin redraws" not in line]


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here")
def test_it_renders_alone(client, tmp_path):
    page, url = tmp_path / "report.html", str(client.base_url).rstrip("/")
    assert main([url, *SMALL, *QUICK, "--concurrency", "1,4", "--report", str(page)]) == 0
    dom, console = dom_and_console(page, tmp_path)
    assert not console
    body = dom[dom.index("<body>") :]
    assert len(re.findall(r'class="js-plotly-plot"|class="plotly-graph-div js-plotly-plot"', body)) == 5
    assert len(re.findall(r'class="trace scatter', body)) == 2 + 1 + 3 + 2  # curves, rate, percentiles, time
    assert len(re.findall(r'class="trace bars"', body)) == 6  # rest, stages, other
    assert "4 connections" in body
    assert f"heed loadtest {url}" in body
    assert "query 1×4×4×8" in body
    assert "cpu (" in body


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here")
def test_script_errors_would_be_seen(tmp_path):
    page = tmp_path / "broken.html"
    page.write_text("<script>nonesuch()</script>")
    assert any("nonesuch" in line for line in dom_and_console(page, tmp_path)[1])


def test_two_servers_without_metrics_that_fail(served, scenario, tmp_path, capsys):
    """What there is nothing to say of is left out; what a server says is no HTML."""
    page = tmp_path / "report.html"
    urls = [served(App()), "--compare", served(App(status=503, after=3))]
    flags = ["--scenario", scenario, "--rate", "50", "--rounds", "1", "--fail-if", "failed>50%", *QUICK]
    assert main([*urls, *flags, "--report", str(page)]) == 2
    html = page.read_text()
    html = html[html.index("<body>") :]
    assert "no metrics of Heed" in html
    assert "Where the time goes" not in html
    assert "open loop, Poisson" in html
    assert not re.search(r"""(src|href)=["']?http""", html)
    assert "times status 503" in capsys.readouterr().out
