"""python verify.py CERTIFICATE KEY [LOG [OPENING SUBJECT [CASE]]]; the formats are in docs/verify-a-certificate.md."""

import hashlib
import hmac
import json
import sys
from base64 import b64decode
from pathlib import Path
from unicodedata import normalize

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

envelope, key_file = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]).read_text()
name, key_id, public = key_file.split("+", 2)
key = Ed25519PublicKey.from_public_bytes(b64decode(public)[1:])  # key.verify raises InvalidSignature


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def signed_head(note):  # three lines are signed: the log's name, its size, its root
    text, _, lines = note.rpartition("\n\n")
    signatures = [b64decode(line.split()[2]) for line in lines.splitlines() if line.split()[1] == name]
    key.verify(next(each[4:] for each in signatures if each[:4].hex() == key_id), f"{text}\n".encode())
    size, root = text.removeprefix(f"{name}\n").split("\n")
    return int(size), b64decode(root)


def root_of(leaves):
    half = 1 << max(len(leaves) - 1, 1).bit_length() - 1
    return leaves[0] if len(leaves) == 1 else sha(b"\1", root_of(leaves[:half]), root_of(leaves[half:]))


def root_by_proof(leaf, index, size, path):  # IndexError: the proof is too short
    half = 1 << max(size - 1, 1).bit_length() - 1
    if index < half and size > 1:
        return sha(b"\1", root_by_proof(leaf, index, half, path[:-1]), path[-1])
    return leaf if size == 1 else sha(b"\1", path[-1], root_by_proof(leaf, index - half, size - half, path[:-1]))


payload, signature = b64decode(envelope["payload"]), b64decode(envelope["signatures"][0]["sig"])
key.verify(signature, b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload))
predicate = json.loads(payload)["predicate"]
entries, (size, root) = predicate["audit"]["entries"], signed_head(predicate["audit"]["checkpoint"])
accepted = json.loads(next(each["body"] for each in entries if each["kind"] == "request.accepted"))
checks = {"the log accepted this request": accepted["request"] == predicate["request"]}
for each in entries:
    leaf, path = bytes.fromhex(each["leaf_hash"]), [b64decode(part) for part in each["hashes"]]
    checks[f"entry {each['index']} is in the log"] = root_by_proof(leaf, each["index"], size, path) == root
for file in sys.argv[3:4]:
    *lines, last = map(json.loads, Path(file).read_text().splitlines())
    (size, root), entries = signed_head(last["checkpoint"]), entries + lines
    checks["the log has its root"] = root_of([bytes.fromhex(each["leaf_hash"]) for each in lines[:size]]) == root
told = ((each["body"], each["leaf_hash"]) for each in entries if each["body"] is not None)
checks["every text has its hash"] = all(sha(b"\0", body.encode()).hex() == leaf for body, leaf in told)
for opening, subject, *case in [sys.argv[4:]] * bool(sys.argv[4:]):
    said = ({"case": case[0]} if case else {}) | {"subject": normalize("NFC", subject)}
    named = json.dumps(said, separators=(",", ":"))
    seen = hmac.digest(bytes.fromhex(opening), named.encode(), "sha256").hex()
    checks["the opening and the subject fit"] = seen == accepted["commitment"]
sys.exit("\n".join(f"NOT SO: {each}" for each in checks if not checks[each]) or print("verified:", *checks, sep="\n"))
