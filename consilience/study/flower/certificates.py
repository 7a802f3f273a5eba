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

from consilience.disk.writing import SHARED, write_new, write_whole
from consilience.errors import InputError

DAYS = 30
AUTHORITY_DAYS = 1825  # the authority outlives the certificates that are renewed under it


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

    @property
    def authority_key(self) -> Path:
        """The authority's, secret: needed to renew, and by no process that serves."""
        return self.authority.with_suffix(".key")


def certificates_in(folder: Path) -> Certificates:
    """Name the certificates in a folder, whether they exist or not."""
    return Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def new_certificates(
    folder: Path, hosts: Sequence[str], days: float = DAYS, since: datetime.datetime | None = None
) -> Certificates:
    """Make an authority and a server certificate that it signed; others can be signed by it later.

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
    last = begin + datetime.timedelta(days=max(days, AUTHORITY_DAYS))
    root = (
        _certificate(authority, authority, authority_key, begin, last)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    own = _server_certificate(server, names, authority, authority_key, server_key, begin, end)
    _write(paths.authority, root.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(paths.certificate, own.public_bytes(serialization.Encoding.PEM), 0o644)
    plain = serialization.NoEncryption()
    for path, key in ((paths.key, server_key), (paths.authority_key, authority_key)):
        _write(path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain), 0o600)
    return paths


def renew(folder: Path, hosts: Sequence[str] = (), days: float = DAYS) -> datetime.datetime:
    """Sign another certificate for the server under the same authority, so that sites go on with the root they have.

    Args:
        folder: Where the certificates and the authority's key lie; the server's certificate is replaced.
        hosts: The server's names and addresses; those it had if none are given.
        days: How long the certificate holds, at most as long as the authority.

    Returns:
        Until when it holds.

    Raises:
        InputError: A file is missing or cannot be used, or the authority has expired.
    """
    paths = certificates_in(folder)
    if not paths.authority_key.is_file():
        raise InputError(
            f"There is no {paths.authority_key}, and nobody else can sign for this authority: put its key there, or "
            "make new certificates in another folder and hand the new ca.crt to all sites."
        )
    try:
        root, old = (x509.load_pem_x509_certificate(path.read_bytes()) for path in paths[:2])
        secrets = [path.read_bytes() for path in (paths.authority_key, paths.key)]
        authority_key, server_key = (serialization.load_pem_private_key(secret, None) for secret in secrets)
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise InputError(f"The certificates in {folder} cannot be read: {error}.") from error
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey) or not isinstance(
        server_key, ec.EllipticCurvePrivateKey
    ):
        raise InputError(f"The keys in {folder} are not of `study certs`: renew by whoever signed these certificates.")
    if authority_key.public_key() != root.public_key():
        raise InputError(f"{paths.authority_key} is not the key of {paths.authority}: use the one it was made with.")
    now = datetime.datetime.now(datetime.UTC)
    if root.not_valid_after_utc <= now:
        raise InputError(
            f"The authority {paths.authority} has expired itself: make new certificates in another folder and hand the "
            "new ca.crt to all sites."
        )
    begin = now - datetime.timedelta(minutes=5)
    end = min(now + datetime.timedelta(days=days), root.not_valid_after_utc)
    server = old.subject
    if hosts:
        server = _name(hosts[0])
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    own = _server_certificate(server, names, root.subject, authority_key, server_key, begin, end)
    content = own.public_bytes(serialization.Encoding.PEM)
    write_whole(paths.certificate, content, "The certificate that was there is whole: make room.", SHARED)
    return end


def _server_certificate(
    server: x509.Name,
    names: x509.SubjectAlternativeName,
    authority: x509.Name,
    authority_key: ec.EllipticCurvePrivateKey,
    server_key: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.Certificate:
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _certificate(server, authority, server_key, begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def check_current(certificates: Certificates) -> None:
    """Refuse certificates outside their time, before anything is started.

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
                "renew it, by `consilience study certs STUDY --renew` if that made it."
            )


def new_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a site's key for Flower's own authentication.

    Args:
        folder: Where the files are written.

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
