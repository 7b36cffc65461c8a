"""From when until when a certificate is valid: the few bytes of X.509 that say so, without another library.

The structure is that of RFC 5280, section 4.1; the encoding is DER (ITU-T X.690).
"""

import ssl
from datetime import UTC, datetime

SEQUENCE, VERSION, UTC_TIME, GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def validity(pem: str) -> tuple[datetime, datetime]:
    """(not before, not after) of the first certificate in the text, in UTC. Raises ValueError if there is none."""
    start, end = pem.find(BEGIN), pem.find(END)
    if start < 0 or end < start:
        raise ValueError("the file holds no certificate in PEM")
    try:
        whole = ssl.PEM_cert_to_DER_cert(pem[start : end + len(END)])
        certificate = _items(_content(whole, SEQUENCE))[0]
        fields = _items(certificate[1])
        if fields[0][0] == VERSION:
            fields = fields[1:]
        first, last = _items(fields[3][1])  # after serial number, signature algorithm and issuer
        return _time(*first), _time(*last)
    except IndexError as error:
        raise ValueError("the certificate is cut off") from error


def _content(data: bytes, tag: int) -> bytes:
    found = _items(data)[0]
    if found[0] != tag:
        raise ValueError(f"the certificate is not X.509: it begins with the tag {found[0]:#x}")
    return found[1]


def _items(data: bytes) -> list[tuple[int, bytes]]:
    """(tag, content) of the elements that follow one another."""
    items = []
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count])
            at += count
        items.append((tag, data[at : at + length]))
        at += length
    return items


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == UTC_TIME:  # two digits of the year: 50 to 99 are of the last century
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != GENERALIZED_TIME:
        raise ValueError(f"the certificate has a time of an unknown kind, tag {tag:#x}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
