"""The viewer in a browser: time until all heads of an encoder of BERT-base's size are drawn, frames, memory.

A server answers for a random encoder (12 layers, 12 heads), which is exported once; Debian's Chromium opens the page.
A frame's time is that of the main thread: the event's handlers, then from the frame's first callback until a task after
style, layout and paint. The interval is between the starts of successive frames, 16.7 ms at best on a screen of 60 Hz.

usage: python -m benchmarks.viewer [--repository FOLDER] [--repeats 5] [--frames 200] [--chromium PATH]
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks import ROOT
from benchmarks.report.markdown import table
from benchmarks.server import served

NAME, N, LONG = "bertbase", 512, 2048
MIB = 1 << 20
WORDS = [f"word{i}" for i in range(900)]
HEADER = ("case", "frames", "p50 ms", "p99 ms", "max ms", "interval p50 ms", "p99 ms")
MARKS = """
  new PerformanceObserver((list) => {
    if (list.getEntriesByName("heed-model-view-drawn").length)
      requestAnimationFrame(() => setTimeout(() => performance.mark("painted")));
  }).observe({ type: "mark" });
"""
FRAMES = """async ([kind, count]) => {
  const after = () => new Promise((done) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done(performance.now());
    requestAnimationFrame(() => channel.port2.postMessage(0));
  });
  const send = (element, type, x, y, more = {}) => element.dispatchEvent(
    new (type === "wheel" ? WheelEvent : PointerEvent)(type, {
      bubbles: true, cancelable: true, clientX: x, clientY: y, pointerId: 1, ...more,
    }));
  const canvas = document.querySelector(".heat-map canvas");
  const box = canvas?.getBoundingClientRect();
  const words = [...document.querySelectorAll(".chip, .word-lists [role=option]")];
  if (kind === "pan") canvas.setPointerCapture = () => {}; // the pointer is not a real one
  const [x, y] = box ? [box.left + box.width * 0.6, box.top + box.height * 0.6] : [0, 0];
  const steps = {
    words: (i) => send(words[(i * 7) % words.length], "pointerover", 0, 0),
    cells: (i) => send(canvas, "pointermove", box.left + box.width * (0.2 + 0.7 * i / count),
      box.top + box.height * (0.3 + (i % 50) / 100)),
    zoom: (i) => send(canvas, "wheel", x, y, { deltaY: i < count / 2 ? -80 : 80 }),
    pan: (i) => send(canvas, "pointermove", x + 150 * Math.sin(i / 10), y + 100 * Math.cos(i / 13)),
  };
  if (kind === "pan") {
    for (let i = 0; i < 8; i++) send(canvas, "wheel", x, y, { deltaY: -120 });
    send(canvas, "pointerdown", x, y, { button: 0 });
  }
  const [times, starts] = [[], []];
  for (let i = 0; i < count; i++) {
    let start = 0;
    requestAnimationFrame((now) => { start = performance.now(); starts.push(now); });
    const before = performance.now();
    steps[kind](i);
    const handled = performance.now() - before;
    times.push(handled + (await after()) - start);
  }
  if (kind === "pan") send(canvas, "pointerup", x, y);
  return { times, intervals: starts.slice(1).map((now, i) => now - starts[i]) };
}"""


def export(repository: Path) -> None:
    """Export the encoder, with a tokenizer of words, and the block for tensors, unless they are there."""
    command = [sys.executable, "-m", "export"]
    if not (repository / "scaled_dot_product").exists():
        subprocess.run([*command, "scaled_dot_product", "--repository", str(repository)], cwd=ROOT, check=True)
    if not (repository / NAME).exists():
        with TemporaryDirectory() as folder:
            save_encoder(folder)
            hf = [*command, "hf", folder, "--name", NAME, "--repository", str(repository)]
            subprocess.run(hf, cwd=ROOT, check=True)


def save_encoder(folder: str) -> None:
    """Save a BertModel with random weights, and a tokenizer with ``WORDS``."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=N, **special).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=N)).save_pretrained(folder)


def thumbnails(browser: Browser, url: str, repeats: int) -> list[float]:
    """Milliseconds from the answer's arrival until all thumbnails are painted, in a new page each time."""
    times = []
    for turn in range(repeats):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.add_init_script(MARKS)
        page.goto(f"{url}/#model={NAME}&text={'+'.join(text(turn))}")
        page.wait_for_function("() => performance.getEntriesByName('painted').length > 0", timeout=120_000)
        if page.locator(".thumbnail canvas").count() != 144:
            raise RuntimeError("the page has other than 144 thumbnails")
        start = "performance.getEntriesByName('heed-answered').at(-1).startTime"
        times.append(page.evaluate(f"performance.getEntriesByName('painted').at(-1).startTime - {start}"))
        context.close()
    return times


def text(seed: int) -> list[str]:
    return list(np.random.default_rng(seed).choice(WORDS, N - 2))


def frames(page: Page, what: str, kind: str, count: int) -> tuple[str, ...]:
    """A row of the table: the frames of ``count`` events."""
    page.wait_for_timeout(500)
    measured = page.evaluate(FRAMES, [kind, count])
    times, intervals = (np.array(measured[name]) for name in ("times", "intervals"))
    numbers = [*np.percentile(times, [50, 99]), times.max(), *np.percentile(intervals, [50, 99])]
    return (what, str(count), *(f"{number:.1f}" for number in numbers))


def long_example() -> dict[str, Any]:
    """A query, key and value of 2,048 tokens in 16 dimensions, in place of the sentence that the page opens on."""
    random = np.random.default_rng(0)
    tensors = {name: random.normal(0, 2, (1, 1, LONG, 16)).round(3).tolist() for name in ("query", "key", "value")}
    return {"words": ["it", *(f"word{i}" for i in range(1, LONG))], **tensors}


def memory(browser: Browser, page: Page) -> str:
    """The JavaScript heap after a garbage collection, and the largest renderer's resident memory."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    heap = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}["JSHeapUsedSize"]
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    resident = max(psutil.Process(p["id"]).memory_info().rss for p in processes if p["type"] == "renderer")
    return f"JavaScript heap {heap / MIB:.0f} MiB, renderer process {resident / MIB:.0f} MiB resident"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=ROOT / ".exports" / "viewer-benchmark")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    if options.chromium is None:
        parser.error("no Chromium here: apt-get install chromium, or --chromium PATH")
    export(options.repository)
    with served(options.repository) as server, sync_playwright() as playwright:
        url = f"http://127.0.0.1:{server.port}"
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        drawn = thumbnails(browser, url, options.repeats)
        numbers = ", ".join(f"{time:.0f}" for time in drawn)
        median = f"median {np.median(drawn):.0f} ms"
        print(f"From the answer until 144 thumbnails are painted, n = {N}: {numbers} ms, {median}\n")
        rows = []
        for view, kind in (("head", "words"), ("matrix", "cells"), ("tokens", "words")):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{url}/#model={NAME}&view={view}&text={'+'.join(text(0))}")
            page.wait_for_selector(".word-lists, .heat-map, .token-text", timeout=120_000)
            rows.append(frames(page, f"{view} view, hover, n = {N}", kind, options.frames))
            page.close()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        example = long_example()
        page.route("**/example.json", lambda route: route.fulfill(json=example))
        page.goto(f"{url}/#model=scaled_dot_product&sentence=true&view=head")
        page.wait_for_selector(".word-lists", timeout=120_000)
        rows.append(frames(page, f"head view, hover, n = {LONG:,}", "words", options.frames))
        page.get_by_role("tab", name="Matrix").click()
        page.wait_for_selector(".heat-map canvas")
        rows += [frames(page, f"matrix view, {kind}, n = {LONG:,}", kind, options.frames) for kind in ("zoom", "pan")]
        print("\n".join(table(HEADER, rows)))
        print(f"\nMemory of the page at n = {LONG:,}: {memory(browser, page)}.")
        browser.close()


if __name__ == "__main__":
    main()
