"""A second set of spoiled ids: twenty kinds, by a stranger to the forms.

Written without looking at the forms that the client compares, at the first set of spoiled ids, or at the tests of
either: the kinds come from spreadsheets, exports, loaders, object mappers, scanners, mail, chat and telephones as
their author knows them. A kind is not taken out or softened because the forms miss it; the share that they miss is
what this set measures.

Every kind is a function of an id and the dice to the id as it arrives in a request, or None where it does not apply.
"""

import base64
import html
import re
import uuid
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple
from urllib.parse import quote

SEED = 20_170_525

Spoil = Callable[[str, Random], str | None]

FIRST_NAMES = ("anna", "bjorn", "carla", "dmitri", "elif", "farid", "grace", "hugo", "ines", "jonas", "kim", "lucia")
LAST_NAMES = ("abbott", "berg", "costa", "dubois", "eriksen", "fontana", "garcia", "hansen", "ivanov", "keller")
DOMAINS = ("example.com", "mail.example.org", "shop.example.net", "example.co.uk", "post.example.de")
PREFIXES = ("CUST", "ACC", "KD", "USR", "MBR")


class SpoiledId(NamedTuple):
    kind: str
    shape: str
    id: str
    arrives_as: str


def whole_number(dice: Random) -> str:
    return str(dice.randint(1_000_000, 9_999_999))


def padded_number(dice: Random) -> str:
    return f"{dice.randint(1_000, 999_999):08d}"


def uuid_text(dice: Random) -> str:
    return str(uuid.UUID(int=dice.getrandbits(128), version=4))


def mail_address(dice: Random) -> str:
    first, last = dice.choice(FIRST_NAMES), dice.choice(LAST_NAMES)
    name = first + dice.choice((".", "_", "-", "")) + last + str(dice.randint(1, 9_999))
    tag = "+" + dice.choice(("shop", "news", "web")) if dice.random() < 0.2 else ""
    return f"{name}{tag}@{dice.choice(DOMAINS)}"


def mixed(dice: Random) -> str:
    return f"{dice.choice(PREFIXES)}-{dice.randint(1995, 2025)}-{dice.randint(10, 99_999)}"


SHAPES: dict[str, Callable[[Random], str]] = {
    "whole number": whole_number,
    "padded number": padded_number,
    "uuid": uuid_text,
    "mail address": mail_address,
    "mixed": mixed,
}


def is_uuid(id: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", id) is not None


def zeros(id: str, dice: Random) -> str | None:
    """A column of numbers drops leading zeros; a host system pads to ten or twelve digits."""
    if not id.isdigit():
        return None
    if id.startswith("0") and dice.random() < 0.7:
        return id.lstrip("0")
    return id.zfill(dice.choice((9, 10, 12)))


def number_column(id: str, dice: Random) -> str | None:
    """A data frame with a gap, a DECIMAL or a FLOAT column prints a whole number with a point or an exponent."""
    if not id.isdigit():
        return None
    number = int(id)
    return dice.choice((f"{number}.0", f"{number}.0", f"{number}.00", f"{number},00", f"{number:.6E}", f"{number:g}"))


def thousands(id: str, dice: Random) -> str | None:
    """A spreadsheet or a report sets marks between groups of three digits."""
    if not id.isdigit():
        return None
    return f"{int(id):,}".replace(",", dice.choice((",", ".", " ", "'", "\u2019", "\u00a0", "\u202f")))


def cell_quoting(id: str, dice: Random) -> str | None:
    """The marks that keep a cell text: an apostrophe, a formula, quotes that a naive split of a CSV line leaves."""
    return dice.choice((f"'{id}", f'="{id}"', f'"{id}"', f'""{id}""', f'"{id}', f'\\"{id}\\"', f"`{id}`", f'{id}",'))


def printed_object(id: str, dice: Random) -> str | None:
    """What a program prints for a row, a list, bytes or an object in place of the value."""
    forms = [f"b'{id}'", f"('{id}',)", f"['{id}']", f'["{id}"]', f"{{{id}}}", f'{{"id": "{id}"}}', f"<User {id}>"]
    if is_uuid(id):
        forms.append(f"UUID('{id}')")
    if id.isdigit():
        forms.append(f"({int(id)},)")
    return dice.choice(forms)


def resource_name(id: str, dice: Random) -> str | None:
    """The address or the global name of the record in place of its id."""
    node = base64.b64encode(f"User:{id}".encode()).decode()
    return dice.choice(
        (
            f"/api/users/{id}",
            f"https://crm.example.com/customers/{id}",
            f"https://crm.example.com/customers/{id}/edit?tab=orders",
            f"gid://shop/User/{id}",
            f"User:{id}",
            f"user_id={id}",
            f"urn:customer:{id}",
            node,
        )
    )


def escaped(id: str, dice: Random) -> str | None:
    """Percent signs, entities or backslashes that nobody decoded, or a plus that was decoded as a space."""
    forms = [quote(id, safe=""), quote(quote(id, safe=""), safe=""), html.escape(id)]
    forms.append("".join(f"&#{ord(letter)};" if not letter.isalnum() else letter for letter in id))
    forms.append("".join(f"\\u{ord(letter):04x}" if not letter.isalnum() else letter for letter in id))
    forms.append(id.replace("+", " "))
    forms.append(id.replace("_", "\\_").replace("-", "\\-"))
    changed = [form for form in forms if form != id]
    return dice.choice(changed) if changed else None


def retyped_dashes(id: str, dice: Random) -> str | None:
    """A word processor or a chat program sets a typographic dash for a hyphen."""
    if "-" not in id:
        return None
    dash = dice.choice(("\u2013", "\u2014", "\u2011", "\u2010", "\u2212", " - ", "--"))
    return id.replace("-", dash, 1 if dice.random() < 0.2 else -1)


def encoding_debris(id: str, dice: Random) -> str | None:
    """A character that nobody sees, or the bytes of one read in the wrong encoding."""
    unseen = dice.choice(("\u200b", "\u200e", "\u00ad", "\u2060", "\ufeff", "\u200d", "\u202a", "\u00a0"))
    place = dice.randint(1, len(id) - 1)
    return dice.choice(
        (
            unseen + id,
            id + unseen,
            id[:place] + unseen + id[place:],
            "\u00ef\u00bb\u00bf" + id,
            id + "\u00c2\u00a0",
            "\u00e2\u20ac\u2039" + id,
            id[:place] + "\ufffd" + id[place:],
        )
    )


def scanned(id: str, dice: Random) -> str | None:
    """A scanner takes one character, or every one of its kind, for another of its outline."""
    outlines = {"0": "OoQ", "1": "lI|", "5": "S", "8": "B", "2": "Z", "6": "b", "9": "g", "o": "0", "l": "1"}
    outlines |= {"b": "6", "S": "5", "O": "0", "B": "8", "m": "rn", "i": "l1", "g": "9", "e": "c"}
    places = [place for place, letter in enumerate(id) if letter in outlines]
    if not places:
        return None
    place = dice.choice(places)
    seen = "rn" if id[place] == "m" else dice.choice(outlines[id[place]])
    if dice.random() < 0.3:
        return id.replace(id[place], seen)
    return id[:place] + seen + id[place + 1 :]


def said_aloud(id: str, dice: Random) -> str | None:
    """A call centre notes what it hears: words for the signs, digits in groups."""
    if "@" in id:
        at, dot = dice.choice(((" at ", " dot "), ("(at)", "(dot)"), (" [at] ", "."), (" @ ", "."), ("(a)", ".")))
        return id.replace("@", at).replace(".", dot)
    if id.isdigit():
        size = dice.choice((2, 3, 4))
        groups = [id[start : start + size] for start in range(0, len(id), size)]
        return dice.choice((" ", "-", " ", ".", "/")).join(groups)
    return id.replace("-", dice.choice((" dash ", " minus ", " ", " hyphen ", ", ")))


def slip(id: str, dice: Random) -> str | None:
    """One slip of a finger: two neighbours swapped, a key struck twice or not at all, or the key beside it."""
    place = dice.randint(0, len(id) - 2)
    swapped = id[:place] + id[place + 1] + id[place] + id[place + 2 :]
    twice = id[: place + 1] + id[place:]
    dropped = id[:place] + id[place + 1 :]
    row = next((keys for keys in ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm") if id[place].lower() in keys), "")
    beside = id
    if row:
        at = row.index(id[place].lower())
        neighbour = row[at + 1] if at + 1 < len(row) else row[at - 1]
        beside = id[:place] + neighbour + id[place + 1 :]
    slips = [form for form in (swapped, twice, dropped, beside) if form != id]
    return dice.choice(slips)


def cut(id: str, dice: Random) -> str | None:
    """A column too short for the id keeps its beginning (or, in a report, shows that it did)."""
    width = {True: dice.choice((30, 32, 35))}.get(is_uuid(id), dice.choice((16, 20)) if "@" in id else len(id) - 1)
    if width >= len(id):
        return None
    return id[:width] + dice.choice(("", "", "...", "\u2026"))


def uuid_form(id: str, dice: Random) -> str | None:
    """Another way to write the same UUID, as a database, a driver or a short link does."""
    if not is_uuid(id):
        return None
    number = uuid.UUID(id)
    return dice.choice(
        (
            number.hex,
            number.hex.upper(),
            "{" + id.upper() + "}",
            number.urn,
            "0x" + number.hex.upper(),
            base64.urlsafe_b64encode(number.bytes).decode().rstrip("="),
            base64.b64encode(number.bytes).decode(),
            str(uuid.UUID(bytes=number.bytes_le)),
            str(number.int),
        )
    )


def separators(id: str, dice: Random) -> str | None:
    """A migration joins the parts of an id with another sign, or with none."""
    if "@" in id or "-" not in id:
        return None
    return id.replace("-", dice.choice(("_", "/", ".", " ", "", ":", "|", "#")))


def letter_case(id: str, dice: Random) -> str | None:
    """A mainframe in capitals, a collation in small letters, a telephone that begins with a capital."""
    forms = [form for form in (id.upper(), id.lower(), id.capitalize(), id.title()) if form != id]
    return dice.choice(forms) if forms else None


def in_a_sentence(id: str, dice: Random) -> str | None:
    """What stood around the id in the mail, the chat or the form that it was copied from."""
    forms = [f"{id}.", f"{id},", f"{id};", f"({id})", f"#{id}", f"ID: {id}", f"Customer no. {id}", f"Kundennr.: {id}"]
    forms += [f"**{id}**", f"> {id}", f"- {id}", f"{id} (closed)", f"{id}?"]
    if "@" in id:
        name = id.partition("@")[0].title()
        forms += [f"mailto:{id}", f"<{id}>", f"{name} <{id}>", f'"{name}" <{id}>', f"<mailto:{id}|{id}>", f"{id}>"]
    return dice.choice(forms)


def padded_field(id: str, dice: Random) -> str | None:
    """A CHAR column, a fixed-width file or a line's end fills the field."""
    forms = (
        id.ljust(40),
        f" {id}",
        f"{id} ",
        f"{id}\r\n",
        f"{id}\r",
        f"{id}\n",
        f"\t{id}",
        id + "\x00",
        id.ljust(40, "\x00"),
    )
    return dice.choice((*forms, id.rjust(20, " "), f"{id}|", f"{id}\t{dice.randint(1, 9)}"))


def other_keyboard(id: str, dice: Random) -> str | None:
    """Digits or letters of another keyboard: full width, Arabic-Indic, Cyrillic of the same look."""
    wide = {letter: chr(ord(letter) + 0xFEE0) for letter in id if "!" <= letter <= "~"}
    arabic = {str(digit): chr(0x0660 + digit) for digit in range(10)}
    persian = {str(digit): chr(0x06F0 + digit) for digit in range(10)}
    cyrillic = dict(zip("aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ", strict=True))
    table = dice.choice((wide, arabic, persian, cyrillic))
    form = "".join(table.get(letter, letter) for letter in id)
    return form if form != id else None


KINDS: dict[str, Spoil] = {
    "zeros": zeros,
    "number column": number_column,
    "thousands": thousands,
    "cell quoting": cell_quoting,
    "printed object": printed_object,
    "resource name": resource_name,
    "escaped": escaped,
    "retyped dashes": retyped_dashes,
    "encoding debris": encoding_debris,
    "scanned": scanned,
    "said aloud": said_aloud,
    "slip": slip,
    "cut": cut,
    "uuid form": uuid_form,
    "separators": separators,
    "letter case": letter_case,
    "in a sentence": in_a_sentence,
    "padded field": padded_field,
    "other keyboard": other_keyboard,
    "twice": lambda id, dice: id + dice.choice(("", " ", ",", ", ", ";", "\n")) + id,
}


def spoiled_ids(count: int, seed: int = SEED) -> Iterator[SpoiledId]:
    """`count` spoiled ids of `count` people, the kinds in turn, the shapes drawn among those that a kind applies to."""
    dice = Random(seed)
    kinds = list(KINDS.items())
    ids: set[str] = set()
    while len(ids) < count:
        kind, spoil = kinds[len(ids) % len(kinds)]
        shape = dice.choice(list(SHAPES))
        id = SHAPES[shape](dice)
        arrives_as = None if id in ids else spoil(id, dice)
        if arrives_as is None or arrives_as == id:
            continue
        ids.add(id)
        yield SpoiledId(kind, shape, id, arrives_as)
