// Copies the viewer's libraries from node_modules to clients/heed_client/viewer/vendor, each as one module, with their
// licences, versions and types: `npm ci && npm run vendor`. Their versions are pinned in package.json.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";

const MODULES = "node_modules/";
const VENDOR = "clients/heed_client/viewer/vendor/";
const FONT = "@fontsource-variable/inter"; // of the page, which looks alike on all systems
const BUNDLES = {
  preact: 'export * from "preact"; export * from "preact/hooks"; export { html } from "htm/preact";',
  d3: `export { scaleLinear, scaleSqrt } from "d3-scale"; export { rgb } from "d3-color";
    export { interpolateBlues, interpolateCividis, interpolateGreys, interpolateInferno, interpolatePuOr, interpolateTurbo,
      interpolateViridis } from "d3-scale-chromatic";`,
  katex: 'export { default } from "katex";',
};

rmSync(VENDOR, { recursive: true, force: true });
mkdirSync(VENDOR + "fonts", { recursive: true });
const used = new Set();
for (const [name, contents] of Object.entries(BUNDLES)) {
  const result = await build({
    stdin: { contents, resolveDir: "." },
    outfile: `${VENDOR}${name}.js`,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    legalComments: "none",
    metafile: true,
  });
  writeFileSync(`${VENDOR}${name}.d.ts`, contents.replace(/; */g, ";\n").replace(/\s*\n\s*/g, "\n"));
  for (const file of Object.keys(result.metafile.inputs)) {
    const match = file.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/);
    if (match) used.add(match[1]);
  }
}
const style = readFileSync(`${MODULES}katex/dist/katex.min.css`, "utf8");
writeFileSync(`${VENDOR}katex.css`, style.replace(/,url\([^)]*\.(woff|ttf)\) format\("[^"]*"\)/g, ""));
for (const font of readdirSync(`${MODULES}katex/dist/fonts`).filter((name) => name.endsWith(".woff2")))
  copyFileSync(`${MODULES}katex/dist/fonts/${font}`, `${VENDOR}fonts/${font}`);
copyFileSync(`${MODULES}${FONT}/files/inter-latin-wght-normal.woff2`, `${VENDOR}fonts/Inter.woff2`);
used.add(FONT);

const licences = [...used].sort().map((name) => {
  const { version, license } = JSON.parse(readFileSync(`${MODULES}${name}/package.json`, "utf8"));
  const file = readdirSync(MODULES + name).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${version} (${license})\n\n${readFileSync(`${MODULES}${name}/${file}`, "utf8").trim()}\n`;
});
writeFileSync(`${VENDOR}LICENSES.txt`, licences.join(`\n${"-".repeat(80)}\n\n`));
