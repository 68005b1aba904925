"""deploy/ as an operator uses it: what kubectl makes of each overlay is valid, and says what docs/kubernetes.md says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from conftest import ROOT, run
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kvferry import _kvferry

TOOLS = ROOT / ".cache/kubernetes"
sys.path.append(str(TOOLS))  # last: .venv has what it needs itself
import kubernetes_validate  # noqa: E402

HERE = Path(__file__).with_name("kubernetes")
DEPLOY = ROOT / "deploy"
KUBERNETES = ("1.31", kubernetes_validate.latest_version())
"""The oldest that a stack here says it runs on, and the newest that there is."""
GUIDES = {"llm-d": HERE / "llm-d-set.yaml", "llm-d, deployments": HERE / "llm-d-deployments.yaml"}
STACKS = ["common", "kserve", "aibrix", "production-stack", "dynamo", *GUIDES]
KINDS = yaml.safe_load((HERE / "kinds.yaml").read_text())
TEARDOWN_S = 15
"""For vLLM to end after its last request."""

Object = dict[str, Any]


@pytest.fixture(scope="session")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, with a key."""
    folder = tmp_path_factory.mktemp("kubernetes") / "deploy"
    shutil.copytree(DEPLOY, folder, ignore=shutil.ignore_patterns("*.key"))
    (folder / "kubernetes/common/kvferry.key").write_text("0" * 64 + "\n")
    return folder


def rendered(deploy: Path, stack: str) -> list[Object]:
    """The objects, as the API server is sent them."""
    folder = deploy / "kubernetes" / stack
    if stack in GUIDES:
        folder = deploy.parent / stack.replace(", ", "-")
        folder.mkdir(exist_ok=True)
        shutil.copy(GUIDES[stack], folder / "guide.yaml")
        (folder / "kustomization.yaml").write_text(yaml.safe_dump({
            "resources": ["guide.yaml"], "components": ["../deploy/kubernetes/llm-d"],
            "images": [{"name": "docker.io/vllm/vllm-openai", "newName": "REGISTRY/vllm-openai-kvferry", "newTag": "v0.32.0"}]}))
    return list(yaml.safe_load_all(run(TOOLS / "bin/kubectl", "kustomize", folder)))


# ---- valid ----

def closed(schema: Any) -> Any:
    """No other properties than those that are named."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: closed(each) for name, each in schema.items()}
    return {"type": "object", "additionalProperties": False} | schema if "properties" in schema else schema


def pods_in(value: Any, schema: Object) -> Iterator[Object]:
    """The pods' templates, where a kind's schema has them."""
    if kind := schema.get("pod"):
        yield value if kind == "template" else {"spec": value}
    for name, each in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            yield from pods_in(value[name], each)
    for each in value if "items" in schema else ():
        yield from pods_in(each, schema["items"])


def pods_of(thing: Object) -> list[Object]:
    if thing["kind"] in KINDS:
        return list(pods_in(thing["spec"], KINDS[thing["kind"]]["spec"]))
    return [thing["spec"]["template"]] if thing["kind"] == "Deployment" else []


def check(thing: Object) -> None:
    if (kind := KINDS.get(thing["kind"])) is None:
        for version in KUBERNETES:
            kubernetes_validate.validate(thing, version, strict=True)
        return
    assert thing["apiVersion"] == kind["apiVersion"]
    assert thing.keys() == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.validate(thing["spec"], closed(kind["spec"]))
    for pod in pods_of(thing):
        check({"apiVersion": "v1", "kind": "Pod", "metadata": pod.get("metadata", {}), "spec": pod["spec"]})


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_rendered_is_valid(deploy: Path, stack: str) -> None:
    things = rendered(deploy, stack)
    assert things
    for thing in things:
        check(thing)


def test_a_wrong_field_is_no_longer_valid(deploy: Path) -> None:
    """In a kind of Kubernetes' own, a custom one, and a pod inside that."""
    policy = next(thing for thing in rendered(deploy, "common") if thing["kind"] == "NetworkPolicy")
    policy["spec"]["ingres"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check(policy)
    service, = rendered(deploy, "kserve")
    for where in (service["spec"], service["spec"]["prefill"]["template"]):
        where["replica"] = 1
        with pytest.raises(jsonschema.ValidationError):
            check(service)
        del where["replica"]
    check(service)


# ---- what an engine's pod says ----

def option(words: list[str], name: str) -> str | None:
    """What vLLM makes of its arguments; of two it takes the last."""
    parser = FlexibleArgumentParser()
    parser.add_argument(name)
    value: str | None = vars(parser.parse_known_args(words)[0])[name.strip("-").replace("-", "_")]
    return value


def engines(deploy: Path) -> Iterator[Any]:
    """Each with its stack, a name, its pod's spec, and its labels, which KServe has elsewhere."""
    for stack in STACKS:
        for thing in rendered(deploy, stack):
            labels = (thing["spec"].get("labels", {}), thing["spec"].get("prefill", {}).get("labels", {})) if "spec" in thing else ()
            for number, pod in enumerate(pods_of(thing)):
                if "volumes" in pod["spec"]:  # Dynamo's front end has none
                    label = pod.get("metadata", {}).get("labels", {}) or labels[min(number, 1)]
                    yield stack, f"{thing['kind']} {thing['metadata']['name']} {number}", pod["spec"], label


@pytest.fixture(scope="session")
def pods(deploy: Path) -> list[Any]:
    found = list(engines(deploy))
    assert len(found) == 2 * (len(STACKS) - 1), [name for _, name, _, _ in found]
    return found


def words_of(container: Object) -> list[str]:
    env = {each["name"]: each.get("value", "") for each in container["env"]}
    return [*container.get("args", []), *shlex.split(env.get("VLLM_ADDITIONAL_ARGS", ""))]


def test_engines_have_the_connector_and_its_policy(pods: list[Any]) -> None:
    for _, name, spec, _ in pods:
        words = words_of(spec["containers"][0])
        config = json.loads(option(words, "--kv-transfer-config") or "{}")
        assert config["kv_connector"] == "KVFerryConnector" or config["kv_connector_module_path"] == "kvferry.nixl", name
        assert (config["kv_role"], config["kv_load_failure_policy"]) == ("kv_both", "recompute"), name
        assert "VLLM_PLUGINS" not in {each["name"] for each in spec["containers"][0]["env"]}, f"{name}: no middleware"


def test_engines_have_the_key_and_an_address(pods: list[Any], deploy: Path) -> None:
    secret = next(thing for thing in rendered(deploy, "common") if thing["kind"] == "Secret")
    for stack, name, spec, _ in pods:
        container = spec["containers"][0]
        env = {each["name"]: each for each in container["env"]}
        mount = next(each for each in container["volumeMounts"] if each["name"] == "kvferry-key")
        volume = next(each["secret"] for each in spec["volumes"] if each["name"] == "kvferry-key")
        assert volume == {"secretName": secret["metadata"]["name"], "defaultMode": 0o400}, name
        file, = secret["data"]
        assert env["KVFERRY_KEY_FILE"]["value"] == f"{mount['mountPath']}/{file}", name
        if stack != "dynamo":  # whose workers find it themselves
            assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP", name


def initial(option_name: str) -> int:
    return next(int(first) for name, _, first, *_ in _kvferry.options() if name == option_name)


def test_a_pod_has_the_time_to_end(pods: list[Any]) -> None:
    """The sum of docs/kubernetes.md."""
    lease_s, grace_s = initial("lease_ttl_ms") / 1000, 15
    for stack, name, spec, _ in pods:
        container, whole_s = spec["containers"][0], spec["terminationGracePeriodSeconds"]
        if stack == "dynamo":
            assert "lifecycle" not in container and whole_s >= lease_s + TEARDOWN_S
            continue
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:3] == ["kvferry", "drain", "--timeout"], name
        drain_s, shutdown_s = float(command[3]), float(option(words_of(container), "--shutdown-timeout") or 0)
        assert shutdown_s >= lease_s and drain_s >= grace_s + lease_s + 45, name
        assert whole_s >= drain_s + shutdown_s + TEARDOWN_S, name


def port_of(container: Object, port: int | str) -> int:
    return port if isinstance(port, int) else next(each["containerPort"] for each in container["ports"] if each["name"] == port)


def test_probes_ask_what_kvferry_says(pods: list[Any]) -> None:
    for stack, name, spec, _ in pods:
        container = spec["containers"][0]
        if stack == "dynamo":
            continue
        assert container["readinessProbe"]["httpGet"]["path"] == "/kvferry/ready", name
        if "livenessProbe" in container:
            assert container["livenessProbe"]["httpGet"]["path"] == "/health", name


def test_the_network_policy_has_the_engines_and_lets_probes_in(pods: list[Any], deploy: Path) -> None:
    policy = next(thing["spec"] for thing in rendered(deploy, "common") if thing["kind"] == "NetworkPolicy")
    label = policy["podSelector"]["matchLabels"]
    among, others = policy["ingress"]
    assert among == {"from": [{"podSelector": {"matchLabels": label}}]}
    open_ports = {each["port"] for each in others["ports"]}
    for _, name, spec, labels in pods:
        container = spec["containers"][0]
        assert label.items() <= labels.items(), name
        wanted = {each["containerPort"] for each in container.get("ports", [])}
        if "readinessProbe" in container:
            wanted.add(port_of(container, container["readinessProbe"]["httpGet"]["port"]))
        assert wanted and wanted <= open_ports, name


def test_the_monitor_finds_the_engines(pods: list[Any], deploy: Path) -> None:
    """Those of stacks that have no monitor of their own."""
    monitor = next(thing["spec"] for thing in rendered(deploy, "common") if thing["kind"] == "PodMonitor")
    port, = (each["port"] for each in monitor["podMetricsEndpoints"])
    for stack, name, spec, labels in pods:
        assert monitor["selector"]["matchLabels"].items() <= labels.items(), name
        if stack in ("aibrix", "production-stack", "dynamo"):
            assert port in {each.get("name") for each in spec["containers"][0]["ports"]}, name


def test_llm_d_s_own_part_stays(deploy: Path) -> None:
    for stack, guide in GUIDES.items():
        before = [pod for thing in yaml.safe_load_all(guide.read_text()) for pod in pods_of(thing)]
        after = {pod["metadata"]["labels"]["llm-d.ai/role"]: pod["spec"] for thing in rendered(deploy, stack) for pod in pods_of(thing)}
        for pod in before:
            old, new = pod["spec"], after[pod["metadata"]["labels"]["llm-d.ai/role"]]
            assert old.get("initContainers") == new.get("initContainers")
            first, = new["containers"]
            assert first["args"][:len(old["containers"][0]["args"])] == old["containers"][0]["args"]
            assert first["image"] == "REGISTRY/vllm-openai-kvferry:v0.32.0"


def test_aibrix_hands_over(pods: list[Any]) -> None:
    found = [labels["model.aibrix.ai/kv-connector-type"] for stack, _, _, labels in pods if stack == "aibrix"]
    assert found == ["shfs", "shfs"]


def test_no_key_is_kept(deploy: Path) -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/kubernetes/common/kvferry.key"], cwd=ROOT)
    assert ignored.returncode == 0


# ---- what is named exists ----

def named_commands() -> set[str]:
    texts = [ROOT / "docs/kubernetes.md", *(file for file in DEPLOY.rglob("*") if file.suffix in (".yaml", ".py") or "Dockerfile" in file.name)]
    return {word for file in texts for word in re.findall(r"(?:`|\[|&& |^RUN )kvferry,? ([a-z]+)\b", file.read_text(), re.M)}


def test_each_command_that_is_named_is_one() -> None:
    assert {"drain", "ready", "key", "identity"} <= named_commands()
    for command in named_commands():
        run(sys.executable, "-m", "kvferry.cli", command, "--help")
