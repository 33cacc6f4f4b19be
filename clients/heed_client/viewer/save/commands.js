// The request of the page as a command, for a shell and for Python.

/**
 * @typedef {object} Request
 * @property {string} server  URL of the page's server
 * @property {string} model
 * @property {string} output
 * @property {boolean} texts  whether it has texts, or tensors, which are then in request.json
 * @property {string} [path]  below v1/, if not that of its attention
 * @property {() => Record<string, unknown>} body  of POST v1/text/{model} or v1/attention/{model}
 * @property {boolean} needsKey
 */

/** @param {string} text */
const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** @param {Request} request */
export function toCurl({ server, model, texts, body, needsKey, path = texts ? "text" : "attention" }) {
  const lines = [`curl -X POST ${shell(`${server}/v1/${path}/${encodeURIComponent(model)}`)}`];
  if (needsKey) lines.push('-H "Authorization: Bearer $HEED_API_KEY"');
  lines.push("-H 'Content-Type: application/json'", texts ? `-d ${shell(JSON.stringify(body()))}` : "-d @request.json");
  return lines.join(" \\\n  ");
}

/** The printed fields of the answers of methods that have the names of their paths. @type {Record<string, string>} */
const METHODS = { sweep: "values", lens: "predicted" };

/** @param {Request} request */
export function toPython({ server, model, output, texts, body, needsKey, path = "" }) {
  const key = needsKey ? ', api_key=os.environ["HEED_API_KEY"]' : "";
  const values = Object.entries(texts ? body() : {}).map(([name, value]) => `${name}=${python(value)}`);
  const call = texts
    ? [python(model), ...values].join(", ")
    : `${python(model)}, **json.loads(Path("request.json").read_text())`;
  return [
    ...(needsKey ? ["import os"] : []),
    ...(texts ? [] : ["import json", "from pathlib import Path"]),
    ...(needsKey || !texts ? [""] : []),
    "from heed_client import Client",
    "",
    `with Client(${python(server)}${key}) as heed:`,
    ...(path === "generate"
      ? [`    for token in heed.generate(${call}):`, '        print(token.text, end="", flush=True)']
      : METHODS[path]
        ? [`    answer = heed.${path}(${call})`, `    print(answer.${METHODS[path]})`]
        : [`    answer = heed.attend(${call})`, `    print(answer.${output}.shape)`]),
    "",
  ].join("\n");
}

/** A JSON value as Python writes it. @param {unknown} value @returns {string} */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, inner]) => `${JSON.stringify(name)}: ${python(inner)}`)
      .join(", ")}}`;
  return JSON.stringify(value); // numbers; text: every escape of JSON is one of Python's
}
