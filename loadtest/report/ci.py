"""Results as files for continuous integration: JUnit's XML, and CSV."""

import csv
import io
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from loadtest.measurement.outcome import is_answered
from loadtest.measurement.thresholds import TIMES


def to_csv(document: Mapping[str, Any]) -> str:
    """A header, whose names have the units, and a line for each level and server."""
    text = io.StringIO()
    rows = [_row(result, document["servers"][result["server"]]) for result in document["results"]]
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(result: Mapping[str, Any], url: str) -> dict[str, Any]:
    inside, generator = result["server_side"], result["generator"]
    return {
        "level": result["level"],
        "concurrency": result["concurrency"],
        "offered_per_s": result["offered"],
        "soak": result["soak"],
        "server": result["server"],
        "url": url,
        "seconds": result["seconds"],
        "requests": result["requests"],
        "rate_per_s": result["rate"],
        "errors": sum(result["errors"].values()),
        "failed_share": result["failed"],
        **{f"{time}_ms": result[time] for time in TIMES},
        "server_mean_ms": inside and inside["total"]["mean"],
        "rest_mean_ms": inside and inside["rest"]["mean"],
        "server_growth_bytes": result["growth"],
        "server_cores": inside and inside["cores"],
        "generator_cores": generator["cores"] * generator["processes"],
        "steady": result["steady"],
        "bottleneck": result["bottleneck"],
    }


def to_junit(document: Mapping[str, Any]) -> str:
    """A test case for each level and server, which fails without answers, and one for each level and threshold."""
    suites = ElementTree.Element("testsuites", name="heed loadtest")
    for server, url in document["servers"].items():
        suite = ElementTree.SubElement(suites, "testsuite", name=_plain(url), timestamp=document["at"])
        properties = ElementTree.SubElement(suite, "properties")
        details = {"command": document["command"], **document["server_details"].get(server, {})}
        for name, value in details.items():
            ElementTree.SubElement(properties, "property", name=name, value=_plain(str(value)))
        for result in document["results"]:
            if result["server"] == server:
                _add_cases(suite, document, result, is_first=server == next(iter(document["servers"])))
        _count(suite)
    return _xml(suites)


def failure_to_junit(url: str, message: str) -> str:
    """One test case that says why nothing could be measured."""
    suites = ElementTree.Element("testsuites", name="heed loadtest")
    suite = ElementTree.SubElement(suites, "testsuite", name=_plain(url))
    case = ElementTree.SubElement(suite, "testcase", classname="loadtest", name="measurement")
    ElementTree.SubElement(case, "error", message=_plain(message))
    _count(suite)
    return _xml(suites)


def _add_cases(
    suite: ElementTree.Element, document: Mapping[str, Any], result: Mapping[str, Any], is_first: bool
) -> None:
    level, seconds = result["level"], f"{result['seconds']:.3f}"
    case = ElementTree.SubElement(suite, "testcase", classname="loadtest", name=f"{level}: answered", time=seconds)
    if not is_answered(result):
        errors = ", ".join(f"{error}: {count}" for error, count in result["errors"].items())
        ElementTree.SubElement(
            case, "error", message=_plain(f"no request was answered with 200: {errors}".removesuffix(": "))
        )
    times = ", ".join(f"{time} {result[time]:.4g} ms" for time in TIMES if result[time] is not None)
    ElementTree.SubElement(case, "system-out").text = _plain(
        "\n".join(
            [
                f"{result['requests']} request{'s' * (result['requests'] != 1)}, {result['rate']:.4g}/s, {times}",
                *result["notes"],
            ]
        )
    )
    for threshold in document["thresholds"] if is_first else ():  # they are about the first server
        case = ElementTree.SubElement(suite, "testcase", classname="loadtest", name=f"{level}: {threshold}", time="0")
        start = f"{level}: {threshold}: "
        for line in document["violations"]:
            if line.startswith(start):
                ElementTree.SubElement(case, "failure", message=_plain(line.removeprefix(start)))


def _count(suite: ElementTree.Element) -> None:
    for name, path in (("tests", "testcase"), ("failures", "testcase/failure"), ("errors", "testcase/error")):
        suite.set(name, str(len(suite.findall(path))))


def _plain(text: str) -> str:
    """The text without characters that XML cannot have."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def _xml(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
