"""Certificates and keys for trying a deployment out: an authority, a server certificate, and a key for every site.

For development. A real server uses the certificate its organisation gives it, and every site makes its own key.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from consilience.errors import InputError
from consilience.formats.signature import write_new

DAYS = 30


class Certificates(NamedTuple):
    authority: Path  # for everybody
    certificate: Path  # of the server
    key: Path  # of the server, secret


def certificates_in(folder: Path) -> Certificates:
    return Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def new_certificates(
    folder: Path, hosts: Sequence[str], days: float = DAYS, since: datetime.datetime | None = None
) -> Certificates:
    """An authority whose key is thrown away after it signed one server certificate for these hosts."""
    begin = since or datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    end = begin + datetime.timedelta(days=days)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority, server = _named("consilience development authority"), _named(hosts[0])
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    found = certificates_in(folder)
    signed = {
        found.authority: _certificate(authority, authority, authority_key, authority_key, begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False),
        found.certificate: _certificate(server, authority, server_key, authority_key, begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False),
    }
    for path, builder in signed.items():
        made = builder.sign(authority_key, hashes.SHA384())
        _write(path, made.public_bytes(serialization.Encoding.PEM), 0o644)
    plain = serialization.NoEncryption()
    secret = server_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    _write(found.key, secret, 0o600)
    return found


def check_current(certificates: Certificates) -> None:
    """Refuse certificates outside their time, before anything is started."""
    now = datetime.datetime.now(datetime.UTC)
    for path in (certificates.authority, certificates.certificate):
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a certificate: {error}.") from error
        if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            begin, end = found.not_valid_before_utc.date(), found.not_valid_after_utc.date()
            raise InputError(
                f"{path} holds from {begin} to {end}, which is not now: the certificate has expired, renew it."
            )


def new_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A site's key for Flower's own authentication: the secret half stays at the site, the other goes to the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret, known = folder / f"{name}.node", folder / f"{name}.node.pub"
    plain = serialization.NoEncryption()
    _write(secret, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain), 0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(known, public + b"\n", 0o644)
    return secret, known


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return made.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    write_new(path, content, mode, "it may be in use, choose another folder")
