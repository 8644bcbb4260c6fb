"""docker-compose.yml and deploy/: flags that the installed commands accept, secrets, users, volumes."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedpriv import wire

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SILOS = (1, 2, 3)


def command_of(service: str) -> list[str]:
    described = SERVICES[service]
    return [*described["entrypoint"], *described.get("command", [])]


def options_of(service: str) -> dict[str, str | None]:
    """Option -> value of a service's command; an option without ``=`` may be followed by its value."""
    options: dict[str, str | None] = {}
    last = None
    for word in command_of(service)[1:]:
        if word.startswith("--"):
            last, _, value = word.partition("=")
            options[last] = value if "=" in word else None
        else:
            assert last is not None and options[last] is None, f"{service}: stray argument {word!r}"
            options[last] = word
    return options


@cache
def help_of(command: str) -> str:
    """Help text of an installed command."""
    path = Path(sys.executable).with_name(command)
    quiet = {"COLUMNS": "200", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run(
        [str(path if path.exists() else command), "--help"],
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_every_flag_is_one_that_the_installed_command_accepts(service: str) -> None:
    command = command_of(service)[0]
    assert command in ("flower-superlink", "flower-superexec", "flower-supernode")
    option_and_text = re.compile(r"^  (--[a-z-]+).*(?:\n(?!  -).*)*", re.MULTILINE)
    described = {match[1]: match[0] for match in option_and_text.finditer(help_of(command))}
    assert "--insecure" in described  # the text was understood
    options = options_of(service)
    assert len(options) > 3
    for option, value in options.items():
        assert option in described, f"{service}: {command} has no {option}"
        assert "eprecated" not in described[option], f"{service}: {option} is deprecated"
        takes_value = re.match(rf"\s*{option}[ =]\S*[A-Z{{]", described[option]) is not None
        assert (value is not None) == takes_value, f"{service}: {option} = {value!r}"
    assert "--insecure" not in options


def test_there_are_three_silos_of_two_services() -> None:
    expected = {"superlink", "superexec-server"}
    for silo in SILOS:
        expected |= {f"supernode-{silo}", f"superexec-{silo}"}
    assert set(SERVICES) == expected


@pytest.mark.parametrize("service", SERVICES)
def test_secrets_are_declared_mounted_and_used(service: str) -> None:
    described = SERVICES[service]
    mounted = set()
    for secret in described["secrets"]:
        assert secret["source"] in COMPOSE["secrets"]
        target = secret["target"]
        mounted.add(target if target.startswith("/") else f"/run/secrets/{target}")
    used = {
        value
        for value in options_of(service).values()
        if value is not None and value.startswith(("/run/secrets/", "/app/certificates/"))
    }
    assert used == mounted
    test = " ".join(described["healthcheck"]["test"])
    assert set(re.findall(r"cafile='([^']+)'", test)) <= mounted


def test_every_declared_secret_is_used() -> None:
    used = {secret["source"] for service in SERVICES.values() for secret in service["secrets"]}
    assert used == set(COMPOSE["secrets"])


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_runs_as_root_or_can_gain_rights(service: str) -> None:
    described = SERVICES[service]
    assert described["user"] == "49999"
    assert described["cap_drop"] == ["ALL"]
    assert described["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in described and "cap_add" not in described
    for value in [*described["environment"].values(), *command_of(service)]:
        assert not re.search(r"[0-9a-f]{32}|BEGIN [A-Z ]*KEY", value), "a secret belongs in a file"


@pytest.mark.parametrize("service", SERVICES)
def test_health_checks_ask_the_port_that_the_service_opens(service: str) -> None:
    options = options_of(service)
    test = " ".join(SERVICES[service]["healthcheck"]["test"])
    if service.startswith("superexec"):
        assert options["--health-server-address"] == "127.0.0.1:9100"
        assert "('127.0.0.1', 9100)" in test
    else:
        assert f"https://localhost:{options['--port']}/health" in test
    source = SERVICES[service]["healthcheck"]["test"]
    assert source[:3] == ["CMD", "python", "-c"]
    compile(source[3], service, "exec")


def test_services_find_each_other_and_silos_are_apart() -> None:
    def networks(service: str) -> dict[str, Any]:
        found = SERVICES[service]["networks"]
        return found if isinstance(found, dict) else {name: {} for name in found}

    for silo in SILOS:
        node, executor = f"supernode-{silo}", f"superexec-{silo}"
        assert options_of(node)["--superlink"] == "superlink:8000"
        assert set(networks(node)) & set(networks("superlink")) == {"federation"}
        name, _, port = str(options_of(executor)["--runtime-api-address"]).partition(":")
        assert name in networks(node)[f"silo-{silo}"]["aliases"]
        assert port == options_of(node)["--port"]
        assert set(networks(executor)) == {f"silo-{silo}"}, "a ClientApp reaches its own SuperNode only"
        assert COMPOSE["networks"][f"silo-{silo}"]["internal"] is True
        for other in SILOS:
            if other != silo:
                assert not set(networks(node)) & set(networks(f"supernode-{other}")) - {"federation"}
    assert options_of("superexec-server")["--runtime-api-address"] == "superlink:8000"
    assert set(networks("superexec-server")) <= set(networks("superlink"))
    assert SERVICES["superlink"]["ports"] == ["127.0.0.1:8000:8000"]


def test_data_is_where_the_client_app_runs_and_results_can_leave() -> None:
    for silo in SILOS:
        assert "volumes" not in SERVICES[f"supernode-{silo}"]
        (volume,) = SERVICES[f"superexec-{silo}"]["volumes"]
        source, target, mode = volume.split(":")
        assert source == f"./deploy/data/silo-{silo}" and mode == "ro"
        assert SERVICES[f"superexec-{silo}"]["environment"]["FEDPRIV_DATA"] == target
    assert SERVICES["superexec-server"]["volumes"] == ["./deploy/runs:/app/runs"]
    state = options_of("superlink")["--database"]
    assert state is not None and state.startswith("/app/state/")
    assert SERVICES["superlink"]["volumes"] == ["./deploy/state:/app/state"]


def test_node_configs_are_what_the_client_halves_read() -> None:
    seen = []
    for silo in SILOS:
        text = options_of(f"supernode-{silo}")["--node-config"]
        config = dict(item.split("=") for item in str(text).split())
        seen.append(int(config["partition-id"]))
        assert int(config["num-partitions"]) == len(SILOS)
        assert int(config[wire.CONFIG_MIN_NEIGHBOURS]) >= 1
        assert float(config[wire.CONFIG_MIN_NOISE_SHARE]) > 0
        assert config[wire.CONFIG_SIMULATION] == "false"
    assert seen == [0, 1, 2]


def test_the_image_is_built_from_the_app_without_its_secrets() -> None:
    for service in ("superexec-server", *(f"superexec-{silo}" for silo in SILOS)):
        build = SERVICES[service]["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    lines = (FOLDER / "superexec.Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER")][-1] == "USER app"
    assert 'ENTRYPOINT ["flower-superexec"]' in lines
    replaced = re.search(r"s/(.+?)/(.+?)/", next(line for line in lines if "sed -i" in line))
    assert replaced is not None
    wanted = replaced[1].replace("\\", "")
    assert wanted in (ROOT / "pyproject.toml").read_text(encoding="utf-8"), "Ray would be installed"
    sent = (FOLDER / "superexec.Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in sent
    allowed = {line[1:] for line in sent if line.startswith("!")}
    assert allowed == {name for line in lines if line.startswith("COPY") for name in _copied(line)}
    for name in allowed:
        assert (ROOT / name).exists()
    assert "secrets/" in (FOLDER / ".gitignore").read_text(encoding="utf-8").split()


def _copied(line: str) -> list[str]:
    return [word.removeprefix("./") for word in line.split()[1:-1] if not word.startswith("--")]


def test_prepare_makes_what_compose_mounts(tmp_path: Path) -> None:
    for tool in ("openssl", "ssh-keygen"):
        assert shutil.which(tool), f"{tool} is needed by deploy/prepare.sh"
    script = FOLDER / "prepare.sh"
    environment = os.environ | {"SUPERLINK_NAMES": "fl.example.org"}
    command = ["sh", str(script), str(tmp_path)]
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    for secret in COMPOSE["secrets"].values():
        path = tmp_path / Path(secret["file"]).relative_to("deploy")
        private = path.suffix not in (".crt", ".pem")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if private else 0o644), path
    for described in SERVICES.values():
        for volume in described.get("volumes", []):
            assert (tmp_path / Path(volume.split(":")[0]).relative_to("deploy")).is_dir()
    before = {path: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    assert {path: path.read_bytes() for path in (tmp_path / "secrets").iterdir()} == before


def test_certificates_hold_under_strict_verification(tmp_path: Path) -> None:
    environment = os.environ | {"SUPERLINK_NAMES": "fl.example.org"}
    command = ["sh", str(FOLDER / "prepare.sh"), str(tmp_path)]
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    secrets = tmp_path / "secrets"
    pairs: list[tuple[str, str, tuple[str, ...]]] = [
        ("ca.crt", "superlink", ("superlink", "localhost", "fl.example.org"))
    ]
    pairs += [(f"silo-{silo}.pem", f"silo-{silo}", ("supernode", "localhost")) for silo in SILOS]
    for trusted, name, hosts in pairs:
        for host in hosts:
            assert _handshake(secrets / trusted, secrets / f"{name}.pem", secrets / f"{name}.key", host)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(secrets / "ca.crt", secrets / "silo-1.pem", secrets / "silo-1.key", "supernode")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(secrets / "ca.crt", secrets / "superlink.pem", secrets / "superlink.key", "example.com")


def _handshake(trusted: Path, certificate: Path, key: Path, host: str) -> bool:
    """A TLS handshake in memory, as strict as Python 3.13 is by default."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(8):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done.add(side)
    return done == {ours, theirs}
