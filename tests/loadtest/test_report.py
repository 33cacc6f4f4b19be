"""The report, rendered by a real browser that can reach nothing."""

import os
import re
import shutil
import subprocess
from html import unescape

import pytest

from tests.support.app import App

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def render(tmp_path):
    """Opens a page in the browser; answers its DOM and the lines of its console."""
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium")

    def run(page):
        command = [
            CHROMIUM, "--headless", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom", page.as_uri(),
        ]  # fmt: skip
        command[2:2] = ["--no-sandbox"] * (os.geteuid() == 0)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        # Plotly fits margins to labels in a few steps, and says so where it stops before the last pixel.
        return done.stdout, [line for line in console if "Too many auto-margin redraws" not in line]

    return run


@pytest.mark.extended
def test_a_browser_draws_every_plot(sweep, render):
    dom, console = render(sweep.folder / "report.html")
    assert not console
    body = dom[dom.index("<body>") :]
    assert len(re.findall(r'class="js-plotly-plot"|class="plotly-graph-div js-plotly-plot"', body)) == 5
    assert len(re.findall(r'class="trace scatter', body)) == 3 + 1 + 3 + 3  # curves, rate, percentiles, time
    assert len(re.findall(r'class="trace bars"', body)) == 6  # rest, stages, other


@pytest.mark.extended
def test_script_errors_would_be_seen(tmp_path, render):
    page = tmp_path / "broken.html"
    page.write_text("<script>nonesuch()</script>")
    assert any("nonesuch" in line for line in render(page)[1])


def body_of(page):
    """What the page shows, and that it loads nothing."""
    html = page.read_text()
    body = html[html.index("<body>") :]
    assert not re.search(r"""(src|href)=["']?http""", body)
    return unescape(body)


def test_it_says_what_was_measured(sweep, url):
    body = body_of(sweep.folder / "report.html")
    for text in ("2 connections", f"heed loadtest {url}", "query 1×4×4×8", "cpu (", "Where the time goes"):
        assert text in body


def test_two_servers_without_metrics_that_fail(served, scenario, measure, tmp_path, capsys):
    """What there is nothing to say of is left out."""
    page = tmp_path / "report.html"
    urls = [served(App()), "--compare", served(App(status=503, after=2))]
    flags = ["--scenario", scenario, "--rate", "50", "--rounds", "1", "--fail-if", "failed>50%", "--report", page]
    measure(*urls, *flags, status=2)
    body = body_of(page)
    assert "no metrics of Heed" in body
    assert "Where the time goes" not in body
    assert "open loop, Poisson" in body
    printed, wrong = capsys.readouterr()
    assert "times status 503" in printed
    assert f"{urls[2]} answered no request with 200" in wrong
