"""Make what the compose files mount: certificates, SuperNode keys, SuperExec secrets, folders.

    python deploy/certs.py federation --silos 3 --names "fl.example.org"    for docker-compose.yml
    python deploy/certs.py silo                                              for docker-compose.silo.yml

Needs Python and `cryptography`, which every image of Flower has; the `certs` service of the compose files runs it.
Keys and secrets that exist stay. A certificate that ends within 30 days is signed again for its old key.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import secrets
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: The user "app" of Flower's images; containers see files with the owner that they have on the host.
APP_USER = 49999
DAYS, AUTHORITY_DAYS, RENEW_DAYS = 365, 3650, 30


class Maker:
    """Makes files in one folder.

    Parameters
    ----------
    folder : Path
        Where ``secrets/``, ``state/``, ``runs/``, ``data/`` and ``silos/`` are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.secrets = folder, folder / "secrets"
        self.secrets.mkdir(parents=True, exist_ok=True)
        self._owned: list[Path] = []

    # -- single files --------------------------------------------------------------------------------------

    def key(self, name: str) -> ec.EllipticCurvePrivateKey:
        """A private key for TLS."""
        path = self.secrets / name
        if not path.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            _write(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        found = load_pem_private_key(path.read_bytes(), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return found

    def secret(self, name: str) -> None:
        """A secret that a SuperLink or SuperNode shares with its SuperExec."""
        path = self.secrets / name
        if not path.exists():
            _write(path, secrets.token_hex(32).encode(), 0o600)
        self._owned.append(path)

    def node_key(self, name: str, comment: str) -> None:
        """The key that the SuperLink knows a SuperNode by, and its public half."""
        path = self.secrets / name
        if not path.exists():
            made = ec.generate_private_key(ec.SECP384R1())
            public = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            _write(path, made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
            _write(path.with_name(name + ".pub"), public + f" {comment}\n".encode(), 0o644)
        self._owned.append(path)

    def authority(self) -> None:
        """The federation's certificate authority; its key is mounted nowhere."""
        key, path = self.key("ca.key"), self.secrets / "ca.crt"
        if _valid(path):
            return
        usage = _usage(key_cert_sign=True, crl_sign=True)
        _write(path, _sign("fedpriv CA", key, None, key, AUTHORITY_DAYS, [(usage, True)], ca=True), 0o644)

    def server_certificate(self, names: Iterable[str]) -> None:
        """The SuperLink's certificate, signed by the authority."""
        key, path = self.key("superlink.key"), self.secrets / "superlink.pem"
        self._owned.append(self.secrets / "superlink.key")
        if _valid(path):
            return
        issuer = x509.load_pem_x509_certificate((self.secrets / "ca.crt").read_bytes())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (_names(["superlink", "localhost", *names]), False),
            (_usage(digital_signature=True), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        ]
        signer = self.key("ca.key")
        _write(path, _sign("superlink", key, issuer, signer, DAYS, extensions, ca=False), 0o644)

    def silo_certificate(self, name: str) -> None:
        """For the link between a silo's own two services; signed by itself, nobody else has to trust it."""
        key, path = self.key(f"{name}.key"), self.secrets / f"{name}.pem"
        self._owned.append(self.secrets / f"{name}.key")
        if _valid(path):
            return
        usage = _usage(digital_signature=True, key_cert_sign=True)
        extensions = [(_names(["supernode", "localhost"]), False), (usage, True)]
        _write(path, _sign(name, key, None, key, DAYS, extensions, ca=True), 0o644)

    def owned_folder(self, name: str) -> None:
        """A folder that a container writes to, and nobody else reads."""
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        self._owned.append(path)

    # -- parties -------------------------------------------------------------------------------------------

    def coordinator(self, names: Iterable[str]) -> None:
        """What the SuperLink and the ServerApp's SuperExec need."""
        self.authority()
        self.server_certificate(names)
        self.secret("superexec-server")
        self.owned_folder("state")
        self.owned_folder("runs")
        (self.folder / "runs").chmod(0o755)  # reports and models are for people; the ledgers in it are not

    def silo(self, suffix: str) -> None:
        """What one silo needs; ``suffix`` tells several on one machine apart."""
        self.silo_certificate(f"silo{suffix}")
        self.node_key(f"supernode{suffix}", f"silo{suffix}")
        self.secret(f"superexec{suffix}")
        (self.folder / "data" / f"silo{suffix}").mkdir(parents=True, exist_ok=True)
        self.owned_folder(f"silos/silo{suffix}")

    def give_to_containers(self) -> str:
        """Let the containers' user own what it reads in private or writes; else the command that does it."""
        if os.geteuid() == 0:
            for path in self._owned:
                os.chown(path, APP_USER, APP_USER)
            return ""
        paths = " ".join(str(path) for path in self._owned)
        return f"containers run as the user {APP_USER}, which must own the private files; type:\n" + (
            f"sudo chown {APP_USER}:{APP_USER} {paths}"
        )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file as a whole; never readable to more than ``mode`` says."""
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.chmod(mode)
    temporary.replace(path)


def _valid(path: Path) -> bool:
    """Whether a certificate is there and lasts."""
    if not path.exists():
        return False
    ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    return ends > datetime.now(UTC) + timedelta(days=RENEW_DAYS)


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    ca: bool,
) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def _usage(**chosen: bool) -> x509.KeyUsage:
    names = "digital_signature content_commitment key_encipherment data_encipherment key_agreement"
    names += " key_cert_sign crl_sign encipher_only decipher_only"
    return x509.KeyUsage(**{name: chosen.get(name, False) for name in names.split()})


def _names(names: Iterable[str]) -> x509.SubjectAlternativeName:
    found: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return x509.SubjectAlternativeName(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the files of one party, or of a whole federation on one machine."""
    parser = argparse.ArgumentParser(
        description="Certificates, keys, secrets and folders of the compose files."
    )
    parser.add_argument("party", choices=["federation", "coordinator", "silo"])
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent, help="where they go")
    parser.add_argument("--silos", type=int, default=3, help="federation: silos on this machine")
    parser.add_argument(
        "--names", default="", help="further host names of the SuperLink, separated by spaces"
    )
    options = parser.parse_args(arguments)
    if options.silos < 1:
        parser.error(f"--silos = {options.silos}: should be at least 1")
    maker = Maker(options.folder)
    if options.party != "silo":
        maker.coordinator(options.names.split())
    if options.party == "federation":
        for silo in range(1, options.silos + 1):
            maker.silo(f"-{silo}")
    if options.party == "silo":
        maker.silo("")
    advice = maker.give_to_containers()
    print(f"certificates, keys and secrets are in {maker.secrets}")
    if advice:
        print(advice)


if __name__ == "__main__":
    main(sys.argv[1:])
