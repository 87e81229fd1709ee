// Writes the canonical form (RFC 8785) and its SHA-256 of each claim of claims.json, by the numbers of JavaScript itself:
// node tests/service/vectors/canonical.mjs < tests/service/vectors/claims.json
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort(); // by UTF-16 code units, as the RFC asks
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

const vectors = JSON.parse(readFileSync(0, "utf8")).map(({ claim }) => {
  const text = canonical(JSON.parse(claim));
  return { claim, canonical: text, sha256: createHash("sha256").update(text, "utf8").digest("hex") };
});
process.stdout.write(JSON.stringify(vectors, null, 1) + "\n");
