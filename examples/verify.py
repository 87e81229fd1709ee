"""python verify.py CERTIFICATE KEY [LOG [OPENING SUBJECT [CASE]]]; the formats are in docs/verify.md."""

import hashlib
import hmac
import json
import re
import sys
from base64 import b64decode, b64encode
from decimal import Decimal
from itertools import accumulate, chain
from math import isfinite
from pathlib import Path
from unicodedata import normalize

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

OLD, NEW = "urn:expunge:predicate:erasure:v1", "urn:expunge:predicate:erasure:v2"
checks = []


def check(holds, what):
    """Stop at the first thing that does not hold; remember what held."""
    if not holds:
        sys.exit(f"NOT SO: {what}")
    checks.append(what)


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def bytes_of(text):  # none for base64 with line feeds or spare bits: the same bytes have one text
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        return b""
    return raw if b64encode(raw).decode() == text else b""


def finite(text):
    number = float(text)
    if not isfinite(number):
        raise ValueError("a number is not finite")
    return number if set(text) & set(".eE") else int(text)


def parsed(raw):  # strict JSON: UTF-8, finite numbers, whole letters, at most 100 levels
    text, step = raw if isinstance(raw, str) else raw.decode(), {"[": 1, "{": 1, "]": -1, "}": -1}
    brackets = re.findall(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{}]', text)
    if max(accumulate(step.get(each, 0) for each in brackets), default=0) > 100:
        raise ValueError("more than 100 levels")
    value = json.loads(text, parse_int=finite, parse_float=finite, parse_constant=finite)
    json.dumps(value, ensure_ascii=False).encode()  # half a letter has no bytes
    return value


class Key:  # name+hash+base64, the verifier key of C2SP signed-note
    def __init__(self, text):
        self.text = text.strip(" \t\r\n")
        self.name, self.id, raw = self.text.split("+", 2)
        raw = bytes_of(raw)
        if not self.name or raw[:1] != b"\1" or sha(self.name.encode(), b"\n", raw)[:4].hex() != self.id:
            sys.exit("NOT SO: the key has the form name+hash+base64")
        self.public = Ed25519PublicKey.from_public_bytes(raw[1:])

    def opens(self, note):
        """Return the text of a note that this key signed; None otherwise."""
        text, _, lines = note.rpartition("\n\n") if isinstance(note, str) else ("", "", "")
        for line in lines.split("\n")[:-1]:
            dash, name, signature, *_ = [*line.split(" "), "", ""]
            raw = bytes_of(signature)
            if (dash, name, raw[:4].hex()) == ("\u2014", self.name, self.id):
                return f"{text}\n" if self.signed(raw[4:], f"{text}\n".encode()) else None
        return None

    def signed(self, signature, data):
        try:
            self.public.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def head(self, note):
        """Return size and root of a signed head: three lines, the log's name, its size, its root."""
        text = self.opens(note)
        if text is None:
            return None
        origin, size, root, *_ = [*text.split("\n"), "", ""]
        good = origin == self.name and re.fullmatch("0|[1-9][0-9]{0,18}", size) and len(bytes_of(root)) == 32
        return (int(size), bytes_of(root)) if good else None


def root_of(leaves):
    half = 1 << max(len(leaves) - 1, 1).bit_length() - 1
    if len(leaves) < 2:
        return leaves[0] if leaves else sha(b"")
    return sha(b"\1", root_of(leaves[:half]), root_of(leaves[half:]))


def root_by_proof(leaf, index, size, path):  # None: the proof is too short or too long
    if size == 1 or not path:
        return leaf if size == 1 and not path else None
    half = 1 << (size - 1).bit_length() - 1
    left = index < half
    inner = root_by_proof(leaf, index if left else index - half, half if left else size - half, path[:-1])
    return inner and (sha(b"\1", inner, path[-1]) if left else sha(b"\1", path[-1], inner))


def entry_of(line):
    """Return index, leaf and text of an entry; the text, where it is shown, has the leaf's hash."""
    index, leaf, text = line["index"], bytes.fromhex(line["leaf_hash"]), line["body"]
    well = type(index) is int and len(leaf) == 32 and leaf.hex() == line["leaf_hash"]
    if not well or (text is not None and sha(b"\0", text.encode()) != leaf):
        sys.exit(f"NOT SO: entry {index!r} has an index, a hash, and the text of that hash")
    return index, leaf, text


def canonical(value):  # RFC 8785; every number is a double
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return f"{{{','.join(f'{canonical(name)}:{canonical(value[name])}' for name in names)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(canonical, value))}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value, ensure_ascii=False)
    sign, digits, exponent = Decimal(repr(float(str(value)))).normalize().as_tuple()
    digits, point = "".join(map(str, digits)), len(digits) + exponent  # TypeError: the number is not finite
    if float(str(value)) == 0:
        return "0"
    if 0 < point <= 21:
        digits = digits.ljust(point, "0")
        digits = digits[:point] + f".{digits[point:]}" * (len(digits) > point)
    elif -6 < point <= 0:
        digits = f"0.{'0' * -point}{digits}"
    else:
        digits = f"{digits[0]}{f'.{digits[1:]}' * (len(digits) > 1)}e{point - 1:+d}"
    return "-" * sign + digits


def digests(claim):  # by RFC 8785; and as entries of before format v2 have it
    before = json.dumps(dict(claim.items()), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return [sha(text.encode()).hex() for text in (canonical(claim), before)]


def said(text, name):
    """Return whether the entry's text is JSON of an object of that kind."""
    try:
        body = parsed(text)
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("kind") == name


def keys_of(key, entries):
    """Return the key in use and then those before it, each with the largest head that it may have signed."""
    keys, rotations = [(key, None)], []
    for index, _, text in entries:
        if text is not None and "log.key_rotated" in text and said(text, "log.key_rotated"):
            facts = parsed(text)
            notes = facts["endorsement"], facts.get("acknowledgement")
            rotations.append((index + 1, Key(facts["retired"]), Key(facts["key"]), *notes))
    for size, old, new, endorsement, _ in rotations:  # the old key signs for the new one: trust goes on
        words = f"expunge: this key's successor\n{new.text}\n"
        if old.text == keys[0][0].text and old.opens(endorsement) == words:
            keys[0] = old, size
            keys.insert(0, (new, None))
    last = key
    for size, old, new, _, acknowledgement in reversed(rotations):  # the new key signs for the old one: trust goes back
        words = f"expunge: this key's predecessor\n{old.text}\n"
        if new.text == last.text and new.opens(acknowledgement) == words:
            keys.append((old, size))
            last = old
    return keys


def read_log(file, key):
    """Return the entries of an export, after its head and every line were checked; and the keys by its rotations."""
    *lines, last = map(parsed, Path(file).read_bytes().splitlines())
    lines = [entry_of(line) for line in lines]
    keys = keys_of(key, lines)
    head = keys[0][0].head(last["checkpoint"])
    check([index for index, _, _ in lines] == list(range(len(lines))), "the log has all its entries, in order")
    check(head == (len(lines), root_of([leaf for _, leaf, _ in lines])), "the log's size and root are signed")
    return lines, keys


def walled(claim):  # exact behind weaker walls is the operator's word, and says so; one world shows no repetition
    if not isinstance(claim, dict) or claim.get("world") is None:
        return True
    world = claim["world"] if isinstance(claim["world"], dict) else {}
    readers = world.get("own_readers")
    shown = world.get("walls") == "new root" and type(readers) is int and readers == 0
    exact = "exact" in (claim.get("guarantee"), claim.get("basis"))
    repeats = claim.get("deterministic") is not True or world.get("repeats") is True
    return repeats and (shown or not exact or claim.get("operators_word") is True)


def read_certificate(envelope, keys):
    """Return the statement, and the texts that it shows by their kind, after signature and proofs were checked."""
    payload, (signed, *_) = bytes_of(envelope["payload"]), envelope["signatures"]
    signer = next((each for each, _ in keys if each.id == signed["keyid"]), keys[0][0])
    check(envelope["payloadType"] == "application/vnd.in-toto+json", "the envelope holds an in-toto statement")
    encoded = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
    check(signer.signed(bytes_of(signed["sig"]), encoded), "the certificate is signed by a key of the log")
    statement = parsed(payload)
    predicate = statement["predicate"]
    check(statement["_type"] == "https://in-toto.io/Statement/v1", "the statement is of version 1")
    check(statement["predicateType"] in (OLD, NEW), f"the format {statement['predicateType']} is {OLD} or {NEW}")
    models, entries = predicate["models"], predicate["audit"]["entries"]
    hashes = [each["hashes"] for each in entries]
    texts = [part[name] for part in models for name in ("model", "checkpoint_sha256")]
    texts += [predicate["request"], *(each["kind"] for each in entries), *chain(*hashes)]
    numbers = [*(part["version"] for part in models), *(each["index"] for each in entries)]
    check(all(type(each) is list for each in (models, entries, *hashes)), "lists are lists")
    check(all(type(each) is str for each in texts), "texts are texts")
    check(all(type(each) is int and abs(each) < 1 << 53 for each in numbers), "numbers are whole, and below 2^53")
    files = [
        {"name": f"{part['model']}/versions/{part['version']}", "digest": {"sha256": part["checkpoint_sha256"]}}
        for part in models
    ]
    check(statement["subject"] == files, "the files are those of the models")
    check(all(walled(part.get("claim")) for part in models), "no claim says more than the walls of its world")
    size, root = signer.head(predicate["audit"]["checkpoint"])
    told = {}
    for each in entries:
        index, leaf, text = entry_of(each)
        path = [bytes_of(part) for part in each["hashes"]]
        check(0 <= index < size and root_by_proof(leaf, index, size, path) == root, f"entry {index} is in the log")
        if text is not None:
            body = parsed(text)
            check(body["kind"] == each["kind"], f"entry {index} is of the kind {each['kind']}")
            check(body["request"] == predicate["request"], f"entry {index} is about this request")
            told.setdefault(body["kind"], body)
    check({"request.accepted", "request.completed"} <= told.keys(), "the log accepted and completed this request")
    return statement, told


def compare(statement, payload, lines, keys):
    """Compare what the certificate says with what the log's entries say."""
    predicate, recorded = statement["predicate"], statement["predicateType"] == NEW
    note, entries = predicate["audit"]["checkpoint"], predicate["audit"]["entries"]
    (size, root), most = next((head, most) for each, most in keys if (head := each.head(note)))
    check(most is None or size <= most, "the certificate's head was signed before its key was retired")
    same = size <= len(lines) and root_of([leaf for _, leaf, _ in lines[:size]]) == root
    check(same, "the log continues the certificate's head")
    texts = [parsed(lines[each["index"]][2]) for each in entries]
    check([each["kind"] for each in texts] == [each["kind"] for each in entries], "every kind is the log's")
    published = [each for each in texts if each["kind"] in ("version.published", "version.restored")]
    for part in predicate["models"]:
        name = f"version {part['version']} of {part['model']}"
        word = "generation" if recorded or "generation" in part else "lineage"  # until 22 November 2026
        wanted = [part["checkpoint_sha256"], part[word], part["version"]]
        found = [each for each in published if [each["checkpoint"], each.get(word, ...), each["number"]] == wanted]
        check(found, f"the log published {name} with this checkpoint")
        if word == "lineage" and "claim_sha256" not in found[0]:
            checks.append(f"claim of {name} not compared: the old log has no digest of it")
        else:
            check(found[0].get("claim_sha256") in digests(part["claim"]), f"the log has this claim of {name}")
        method = found[0]["method"] == part["method"] or not (recorded or part["samples"])
        check(method, f"the log has this method of {name}")
    digest = hashlib.sha256(payload).hexdigest()
    issued = [parsed(text) for _, _, text in lines if text is not None and digest in text]
    facts = [[each.get(name) for name in ("kind", "request", "payload_sha256")] for each in issued]
    entry = ["certificate.issued", predicate["request"], digest] in facts
    check(entry or not recorded, "the log has an entry of this certificate" if recorded else "the format is old")


def main(certificate, key, *more):
    log, opening, subject, case = [*more, None, None, None, None][:4]
    envelope, lines, keys = parsed(Path(certificate).read_bytes()), None, [(Key(Path(key).read_bytes().decode()), None)]
    if log:
        lines, keys = read_log(log, keys[0][0])
    statement, told = read_certificate(envelope, keys)
    if log:
        compare(statement, bytes_of(envelope["payload"]), lines, keys)
    if opening:
        asked = ({"case": case} if case else {}) | {"subject": normalize("NFC", subject)}
        named = json.dumps(asked, separators=(",", ":"))
        seen = hmac.digest(bytes.fromhex(opening), named.encode(), "sha256").hex()
        check(seen == told["request.accepted"]["commitment"], "the opening and the subject fit")
    print("verified:", *checks, *([] if log else ["claim not compared with the log"]), sep="\n")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 7 or len(sys.argv) == 5:
        sys.exit(f"NOT SO: the call is {__doc__}")
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"NOT SO: the files can be read. {error}")
    except Exception as error:  # anyone may have written the files
        sys.exit(f"NOT SO: the files have the form of a certificate, a key and a log. {type(error).__name__}: {error}")
