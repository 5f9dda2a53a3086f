// Bundles the libraries in their pinned versions into one script, with all of their licences on top.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync, existsSync } from "node:fs";

const lock = JSON.parse(readFileSync("package-lock.json", "utf8")).packages;
const found = await build({
  entryPoints: ["vendor.mjs"], bundle: true, minify: true, format: "iife", globalName: "smeltVendor",
  target: "es2020", write: false, metafile: true, legalComments: "none",
});
const packages = new Set();
for (const input of Object.keys(found.metafile.inputs)) {
  const match = input.match(/^(node_modules\/(?:@[^/]+\/)?[^/]+)\//);
  if (match) packages.add(match[1]);
}
// Bundled into dagre's own file.
packages.add("node_modules/@dagrejs/graphlib");
const licences = [...packages].sort().filter((folder) => lock[folder]).map((folder) => {
  const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
  const text = file ? readFileSync(`${folder}/${file}`, "utf8").trim() : `Licence: ${lock[folder].license}`;
  return `${folder.replace("node_modules/", "")} ${lock[folder].version}\n\n${text}`;
});
if (!existsSync("node_modules/@dagrejs/dagre")) throw new Error("run `npm ci` first");
const head = `/*! Made by web/build.mjs; do not edit.\n\n${licences.join("\n\n----\n\n").replaceAll("*/", "* /")}\n*/\n`;
writeFileSync("../src/smelt/inspect/page/assets/vendor.js", head + found.outputFiles[0].text);
writeFileSync("vendor.sha256", `${createHash("sha256").update(found.outputFiles[0].text).digest("hex")}\n`);
console.log(`vendor.js: ${packages.size} packages, ${(head.length + found.outputFiles[0].text.length) >> 10} KB`);
