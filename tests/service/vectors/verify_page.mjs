// Judge papers with the script of the page that checks certificates. In: JSON, a list of
// {certificate (its file in base64), trusted} or {accepted, opening: [code, names, case]}. Out: for each null where it holds, else the reason.
// node tests/service/vectors/verify_page.mjs PAGE < papers.json
import { readFileSync } from "node:fs";

const [, script] = /<script id="verifier">(.*?)<\/script>/s.exec(readFileSync(process.argv[2], "utf-8"));
new Function(script)();
const { canCheck, verify, opened, NotSo } = globalThis.verifier;
if (!(await canCheck())) throw new Error("this node lacks Ed25519");
const verdicts = [];
for (const { certificate, trusted, accepted, opening } of JSON.parse(readFileSync(0, "utf-8"))) {
  try {
    await (accepted ? opened(accepted, ...opening) : verify(Buffer.from(certificate, "base64"), trusted));
    verdicts.push(null);
  } catch (error) {
    if (!(error instanceof NotSo)) throw error;
    verdicts.push(error.message);
  }
}
console.log(JSON.stringify(verdicts));
