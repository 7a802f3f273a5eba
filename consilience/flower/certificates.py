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

from consilience.disk.writing import write_new
from consilience.errors import InputError

DAYS = 30


class Certificates(NamedTuple):
    """Where a server's certificates lie.

    Attributes:
        authority: The root certificate, for everybody.
        certificate: The server's.
        key: The server's, secret.
    """

    authority: Path
    certificate: Path
    key: Path


def certificates_in(folder: Path) -> Certificates:
    """Name the certificates in a folder, whether they exist or not.

    Args:
        folder: The folder.
    """
    return Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def new_certificates(
    folder: Path, hosts: Sequence[str], days: float = DAYS, since: datetime.datetime | None = None
) -> Certificates:
    """Make an authority whose key is thrown away after it signed one server certificate.

    Args:
        folder: Where the files are written.
        hosts: The server's names and addresses.
        days: How long the certificates hold.
        since: From when on; five minutes ago by default.

    Returns:
        Where the certificates lie.

    Raises:
        InputError: A file exists already or cannot be written.
    """
    begin = since or datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    end = begin + datetime.timedelta(days=days)
    authority_key = ec.generate_private_key(ec.SECP384R1())
    server_key = ec.generate_private_key(ec.SECP384R1())
    authority = _name("consilience development authority")
    server = _name(hosts[0])
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    paths = certificates_in(folder)
    builders = {
        paths.authority: _certificate(authority, authority, authority_key, begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False),
        paths.certificate: _certificate(server, authority, server_key, begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False),
    }
    for path, builder in builders.items():
        certificate = builder.sign(authority_key, hashes.SHA384())
        _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    plain = serialization.NoEncryption()
    secret = server_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    _write(paths.key, secret, 0o600)
    return paths


def check_current(certificates: Certificates) -> None:
    """Refuse certificates outside their time, before anything is started.

    Args:
        certificates: Where they lie.

    Raises:
        InputError: One cannot be read or has expired.
    """
    now = datetime.datetime.now(datetime.UTC)
    for path in (certificates.authority, certificates.certificate):
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a certificate: {error}.") from error
        begin = certificate.not_valid_before_utc
        end = certificate.not_valid_after_utc
        if not begin <= now <= end:
            raise InputError(
                f"{path} is valid from {begin.date()} to {end.date()}, which is not now: the certificate has expired, "
                "renew it."
            )


def new_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a site's key for Flower's own authentication.

    Args:
        folder: Where the files are written.
        name: The site's name.

    Returns:
        The secret half, which stays at the site, and the public one, which goes to the server.

    Raises:
        InputError: A file exists already or cannot be written.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    secret = folder / f"{name}.node"
    public = folder / f"{name}.node.pub"
    plain = serialization.NoEncryption()
    _write(secret, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain), 0o600)
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(public, text + b"\n", 0o644)
    return secret, public


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    write_new(path, content, mode, "it may be in use, choose another folder")
