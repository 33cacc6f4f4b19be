"""The hooks of mkdocs.yml: pages made from the code, tables in pages, and the scripts for formulas and diagrams.

A page has ``<!-- settings -->`` in the place of a table of ``TABLES``; the rest of that line tells a reader of the file
where the table is. None of this is stored in docs/. Links to files that become pages of the site lead to those pages.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from models.catalogue import BLOCKS
from scripts.guide import blocks, tables

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "node_modules"  # `npm ci` puts KaTeX and Mermaid there
TABLES = {"settings": tables.settings, "metrics": tables.metrics, "blocks": blocks.summary}
REPORTS = sorted((ROOT / "benchmarks").glob("*.md"))
ASSETS = {
    "assets/katex/katex.min.js": MODULES / "katex/dist/katex.min.js",
    "assets/katex/katex.min.css": MODULES / "katex/dist/katex.min.css",
    "assets/mermaid.tiny.js": MODULES / "@mermaid-js/tiny/dist/mermaid.tiny.js",
    "assets/iframe-worker.js": MODULES / "iframe-worker/shim/index.js",
}
MATH = ("assets/katex/katex.min.js", "assets/math.js")
DIAGRAMS = ("assets/mermaid.tiny.js",)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation."""
    nav = config.nav or []
    _section(nav, "Blocks").extend({block.title: f"blocks/{name}.md"} for name, block in BLOCKS.items())
    _section(_section(nav, "Measure"), "Reports").extend({_title(path): f"reports/{path.name}"} for path in REPORTS)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, SECURITY.md, the benchmarks' reports, KaTeX and Mermaid."""
    pages = {f"blocks/{name}.md": blocks.page(block) for name, block in BLOCKS.items()}
    pages |= {f"reports/{path.name}": path.read_text() for path in REPORTS}
    pages["security.md"] = (ROOT / "SECURITY.md").read_text()
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    fonts = {f"assets/katex/fonts/{font.name}": font for font in (MODULES / "katex/dist/fonts").glob("*.woff2")}
    for uri, path in (ASSETS | fonts).items():
        if not path.exists():
            raise PluginError(f"{path} is missing: npm ci installs it")
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the name of each table by the table, and links to files outside docs/ by the site's addresses."""
    markdown = re.sub(r"\]\(\.\./benchmarks/(\w+\.md)", r"](reports/\1", markdown)
    markdown = markdown.replace("](../SECURITY.md", "](security.md")
    return re.sub(r"^<!-- (\w+) -->.*$", lambda match: TABLES[match[1]](), markdown, flags=re.MULTILINE)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Add KaTeX to pages with formulas and Mermaid to those with diagrams: they take megabytes."""
    root = "../" * page.url.count("/")
    added = [f'<link rel="stylesheet" href="{root}assets/katex/katex.min.css">'] if "arithmatex" in output else []
    scripts = (MATH if "arithmatex" in output else ()) + (DIAGRAMS if 'class="mermaid"' in output else ())
    added += [f'<script src="{root}{script}"></script>' for script in scripts]
    return output.replace("</head>", "\n".join(added) + "</head>", 1)


def _section(items: Iterable[dict[str, Any]], title: str) -> list[Any]:
    """The pages below ``title`` in the navigation."""
    return next(item[title] for item in items if title in item)


def _title(report: Path) -> str:
    """The first heading of ``report``, up to what follows it after a comma or colon."""
    return re.split("[,:]", report.read_text().partition("\n")[0].removeprefix("# "))[0]
