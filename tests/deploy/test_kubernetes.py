"""The Helm chart: what it renders, what it refuses, and a Pod of it that podman runs."""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.kubernetes.chart import (
    CHART,
    KUBERNETES,
    ROOT,
    containers,
    helm,
    mistakes,
    one,
    pod_specs,
    refusal,
    render,
)
from perfd_collectors.pod_resources import PodResourcesOptions
from perfd_collectors.pods.job_of_pod import LABELS

from perfd.aggregator.group.partition_config import check_group
from perfd.cli.commands import aggregator
from perfd.config import AgentConfig, AggregatorConfig, GatewayConfig, parse
from perfd.injection import Injection

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not shutil.which("helm") and not os.environ.get("CI"),
        reason="needs Helm (tests/deploy/kubernetes/install.sh)",
    ),
]
TRAINING = {
    "training.enabled": True,
    "training.image": "registry.example/train:1",
    "training.command": ["torchrun", "train.py"],
}
MONITORING = {
    "serviceMonitor.enabled": True,
    "podMonitor.enabled": True,
    "prometheusRule.enabled": True,
    "grafanaDashboards.enabled": True,
}
NATS = {"servers": ["tls://nats:4222"], "cluster": "a"}
GROUP = {
    "aggregator.replicas": 3,
    "aggregator.config": {
        "nats": NATS | {"replicas": 3, "group": {"partitions": 12}},
        "history": {"url": "postgresql://perfd@db/perfd"},
    },
    "aggregator.persistence.enabled": False,
    "gateway.enabled": True,
    "gateway.config": {"nats": NATS | {"partitions": 12}},
}
VALUES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "aggregator only": {"agent.enabled": False},
    "agents only, of another cluster's aggregator": {
        "aggregator.enabled": False,
        "aggregatorAddress": "perfd.example:9461",
    },
    "with privileges": {
        "agent.features": {"ranks": True, "hostNetworkCounters": True},
        "agent.runtimeClassName": "nvidia",
        "agent.spoolHostPath": "/var/lib/perfd",
        "agent.priorityClassName": "system-node-critical",
    },
    "steps from the logs of all pods": {
        "agent.features.podLogs": True,
        "agent.spoolHostPath": "/var/lib/perfd",
        "agent.config": {"collectors": {"pods": {"options": {"namespaces": ["team-*"]}}}},
    },
    "ranks and steps of all pods": {"agent.features": {"ranks": True, "podLogs": True}},
    "the container of each GPU": {"agent.features.podResources": True},
    "an agent that a webhook adds": {"injection.by": "webhook", "agent.enabled": False},
    "an agent that a webhook adds, with cert-manager": {
        "injection.by": "webhook",
        "injection.webhook": {
            "replicas": 2,
            "certificateSecret": "perfd-webhook-tls",
            "annotations": {"cert-manager.io/inject-ca-from": "monitoring/perfd-webhook"},
        },
    },
    "without privileges, spool on the node": {"agent.spoolHostPath": "/var/lib/perfd"},
    "mutual TLS": {"tls": {"aggregatorSecret": "perfd-server", "agentSecret": "perfd-client", "mutual": True}}
    | TRAINING,
    "history in PostgreSQL": {
        "aggregator.config": {"history": {"url": "postgresql://perfd@db/perfd?sslmode=require"}},
        "aggregator.historyPasswordSecret": "history",
        "aggregator.persistence.enabled": False,
    },
    "a group behind gateways": GROUP,
    "a group over TLS, monitored": GROUP
    | MONITORING
    | {
        "tls": {"aggregatorSecret": "perfd-server", "agentSecret": "perfd-client", "mutual": True},
        "gateway.tlsSecret": "perfd-gateway",
        "gateway.extraVolumes": [{"name": "nats", "secret": {"secretName": "nats"}}],
        "gateway.extraVolumeMounts": [{"name": "nats", "mountPath": "/etc/nats", "readOnly": True}],
        "serviceMonitor.scrapeTimeout": "10s",
        "serviceMonitor.relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
    },
    "agents that publish to NATS": GROUP
    | {
        "gateway.enabled": False,
        "agent.config": {"uplink": {"nats": NATS | {"partitions": 12}}},
        "tls.agentSecret": "perfd-client",
    },
    "no volume": {"aggregator.persistence.enabled": False, "networkPolicy.enabled": False},
    "a volume of one's own": {
        "aggregator.persistence": {"existingClaim": "mine", "storageClassName": "fast"},
        "aggregator.extraVolumes": [{"name": "key", "secret": {"secretName": "wandb"}}],
        "aggregator.extraVolumeMounts": [{"name": "key", "mountPath": "/etc/wandb", "readOnly": True}],
    },
    "configured": {
        "aggregator.config": {"history": {"retention_days": 7}, "rules": {"interval_s": 15}},
        "agent.config": {"spool": {"max_bytes": 5_000_000_000}, "collectors": {"nvml": {"interval_s": 0.1}}},
    },
    "monitored": MONITORING,
    "monitored, with all that Prometheus Operator takes": MONITORING
    | {
        "prometheusRule.fleet": True,
        "prometheusRule.disabled": ["PerfdGpuIdle"],
        "serviceMonitor.scrapeTimeout": "10s",
        "serviceMonitor.relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
        "serviceMonitor.metricRelabelings": [{"sourceLabels": ["rank"], "regex": ".+", "action": "drop"}],
        "podMonitor.scrapeTimeout": "20s",
    },
    "everything of a platform": {
        "serviceAccount": {"annotations": {"example.org/role": "perfd"}, "labels": {"team": "ml"}},
        "aggregator.ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"nginx.ingress.kubernetes.io/auth-type": "basic"},
            "hosts": ["perfd.example.org"],
            "tls": [{"hosts": ["perfd.example.org"], "secretName": "perfd-tls"}],
        },
        "aggregator.podDisruptionBudget": {"enabled": True, "maxUnavailable": 0},
        "aggregator.extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
        "aggregator.podLabels": {"team": "ml"},
        "aggregator.topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"team": "ml"}},
            }
        ],
        "agent.extraEnv": [{"name": "TZ", "value": "UTC"}],
        "agent.extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "agent.extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
        "agent.podLabels": {"team": "ml"},
        "agent.updateStrategy": {"type": "OnDelete"},
    },
    "an account that exists": {"serviceAccount": {"create": False, "name": "monitoring"}},
    "W&B": {"image.wandb": True, "aggregator.config": {"exporters": {"wandb": {"mode": "offline"}}}},
    "nobody may ask over HTTP": {"networkPolicy.httpFrom": []},
    "pinned image": {"image.digest": f"sha256:{'a' * 64}", "imagePullSecrets": [{"name": "pull"}]},
    "a Job": TRAINING | {"training.kind": "Job"},
    "a JobSet of many nodes": TRAINING | {"training.kind": "JobSet", "training.nodes": 64},
    "a PyTorchJob": TRAINING | {"training.kind": "PyTorchJob", "training.nodes": 2},
    "a PyTorchJob of one node": TRAINING | {"training.kind": "PyTorchJob"},
    "a Job as root on the node's network, without NCCL": TRAINING
    | {
        "training.runAsUser": 0,
        "training.hostNetwork": True,
        "training.nccl": False,
        "training.gpusPerNode": 0,
        "training.env": [{"name": "A", "value": "b"}],
        "sidecar.nodeNameFrom": "metadata.name",
        "sidecar.config": {"collectors": {"nvml": {"enabled": False}}},
    },
}
every_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())


def test_helm_finds_nothing_to_say() -> None:
    found = helm("lint", "--strict", CHART)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@every_values
def test_kubernetes_knows_every_field(values: dict[str, Any], version: str) -> None:
    documents = render(values, f"--kube-version={version}")
    assert documents
    said = {
        f"{document['kind']} {document['metadata']['name']}": found
        for document in documents
        if (found := mistakes(document, version))
    }
    assert said == {}


@every_values
def test_perfd_takes_the_configuration_that_the_chart_writes(values: dict[str, Any]) -> None:
    for document in render(values):
        for name, text in document.get("data", {}).items():
            if name == "agent.yaml":
                config = parse(text, AgentConfig)
                assert config.uplink.tls or config.uplink.allow_plaintext or config.uplink.nats
            elif name == "aggregator.yaml":
                parse(text, AggregatorConfig)
            elif name == "gateway.yaml":
                parse(text, GatewayConfig)


@every_values
def test_containers_have_no_privilege_that_nobody_asked_for(values: dict[str, Any]) -> None:
    ranks = values.get("agent.features", {}).get("ranks", False)
    pod_logs = values.get("agent.features", {}).get("podLogs", values.get("agent.features.podLogs", False))
    added: dict[str, list[str]] = {"own-spool": ["CHOWN"]}
    pod_resources = values.get("agent.features.podResources", False)
    if ranks or pod_logs or pod_resources:
        added = {"agent": ["SYS_PTRACE", "DAC_READ_SEARCH"] if ranks else []}
    for spec in pod_specs(render(values)):
        names = {container["name"] for container in containers(spec)}
        assert spec["automountServiceAccountToken"] is (pod_logs and "agent" in names)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec.get("hostPID", False) is (ranks and "agent" in names)
        for container in containers(spec):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            # The training writes where it likes.
            assert context.get("readOnlyRootFilesystem", False) is (container["name"] != "pytorch")
            assert context["capabilities"].get("add", []) == added.get(container["name"], [])
            user = context.get("runAsUser", spec["securityContext"].get("runAsUser"))
            root_training = "pytorch" in names and values.get("training.runAsUser") == 0
            assert (user == 0) is (container["name"] in added or root_training)


def test_only_agents_that_read_pods_may_ask_the_api_and_only_for_what_they_need() -> None:
    documents = render({"agent.features.podLogs": True}, "--namespace=monitoring")
    role = one(documents, "ClusterRole")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
    ]
    binding = one(documents, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "perfd-agent-monitoring"
    account = {"kind": "ServiceAccount", "name": "perfd", "namespace": "monitoring"}
    assert binding["subjects"] == [account]
    kinds = {
        document["kind"]
        for values in VALUES.values()
        if "podLogs" not in json.dumps(values)
        for document in render(values)
    }
    assert not [kind for kind in kinds if "Role" in kind]


def test_an_agent_that_asks_the_kubelet_has_its_directory_of_sockets_and_no_token() -> None:
    values = {"agent.features.podResources": True, "agent.kubeletDirectory": "/var/lib/k0s/kubelet/"}
    documents = render(values)
    spec = one(documents, "DaemonSet")["spec"]["template"]["spec"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert paths == {"pod-resources": "/var/lib/k0s/kubelet/pod-resources"}
    (agent,) = spec["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert PodResourcesOptions().socket == mounted["pod-resources"] + "/kubelet.sock"
    assert agent["securityContext"]["runAsUser"] == 0
    assert spec["automountServiceAccountToken"] is False
    config = yaml.safe_load(one(documents, "ConfigMap", "perfd-agent")["data"]["agent.yaml"])
    assert config["collectors"]["pod_resources"] == {"enabled": True}


def test_all_kinds_of_agents_know_what_the_cluster_is_called() -> None:
    values = TRAINING | {"cluster": "east", "injection.by": "webhook", "agent.features.podLogs": True}
    documents = render(values)
    found = {
        container["name"]: variable["value"]
        for spec in pod_specs(documents)
        for container in containers(spec)
        for variable in container.get("env", [])
        if variable["name"] == "PERFD_CLUSTER"
    }
    assert found == {"agent": "east", "perfd": "east"}
    injected = json.dumps(documents)
    assert injected.count("PERFD_CLUSTER") == 3
    assert "PERFD_CLUSTER" not in json.dumps(render(values | {"cluster": None}))


@pytest.mark.parametrize("name", ["", "a b", "x" * 64, 7])
def test_a_cluster_is_called_by_what_fits_a_label(name: object) -> None:
    assert "cluster" in refusal({"cluster": name})


INJECTION = {"injection.by": "policy", "tls.agentSecret": "perfd-client"}


def test_the_policy_is_one_that_kubernetes_knows_and_that_never_keeps_a_pod_from_starting() -> None:
    documents = render(INJECTION, "--kube-version=1.36.0", "--namespace=monitoring")
    kinds = ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    injection = [document for document in documents if document["kind"] in kinds]
    assert [mistakes(document, "1.36") for document in injection] == [[], [], []]
    policy = one(documents, kinds[0])
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert {document["spec"].get("policyName") for document in injection[1:]} == {policy["metadata"]["name"]}
    (excluded,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert {"kube-system", "monitoring"} <= set(excluded["values"])


def test_a_mutation_that_fails_leaves_no_pod_half_changed() -> None:
    """The API server applies one mutation if the other fails, and a pod without its volumes cannot start."""
    spec = one(render(INJECTION, "--kube-version=1.36.0"), "MutatingAdmissionPolicy")["spec"]
    volumes, agent = (
        spec["mutations"][0]["applyConfiguration"]["expression"],
        spec["mutations"][1]["jsonPatch"]["expression"],
    )
    condition, _, _ = agent.partition("?")
    assert (
        condition == "!has(object.spec.volumes) || !object.spec.volumes.exists(v, v.name == 'perfd-state') "
    )
    assert agent.startswith(condition + "? [] :")
    assert 'name: "perfd-state"' in volumes
    # The node's agent leaves pods with this label to the agent in them.
    assert ("perfd-agent" in volumes, "/metadata/labels/perfd-agent" in agent) == (False, True)


def test_the_configuration_of_an_injected_agent_is_one_that_perfd_takes() -> None:
    changed = {"injection.config": {"collectors": {"nvml": {"interval_s": 0.5}}}}
    spec = one(render(INJECTION | changed, "--kube-version=1.36.0"), "MutatingAdmissionPolicy")["spec"]
    patch = spec["mutations"][1]["jsonPatch"]["expression"]
    _, _, value = patch.partition('"name": dyn("PERFD_CONFIG"), "value": dyn(')
    text, _ = json.JSONDecoder().raw_decode(value)
    config = parse(text, AgentConfig)
    assert config.uplink.tls is not None
    assert config.collectors["nvml"].interval_s == 0.5
    assert config.collectors["nccl"].options["directory"] == "/run/perfd"


def test_the_webhook_takes_what_the_chart_adds_and_never_keeps_a_pod_from_starting() -> None:
    documents = render({"injection.by": "webhook", "tls.agentSecret": "t"}, "--namespace=monitoring")
    injection = parse(one(documents, "ConfigMap", "perfd-webhook")["data"]["injection.yaml"], Injection)
    assert injection.job_labels == list(LABELS)
    files, agent = injection.containers
    config = parse(files["env"][0]["value"], AgentConfig)
    assert config.uplink.address == "perfd-aggregator.monitoring.svc:9461"
    assert agent["restartPolicy"] == "Always"
    mounted = {mount["name"] for container in injection.containers for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in injection.volumes}
    webhooks = one(documents, "MutatingWebhookConfiguration")["webhooks"]
    assert [webhook["failurePolicy"] for webhook in webhooks] == ["Ignore", "Ignore"]
    # The certificate is that of the Service, by the authority that the API server is given.
    secret = one(documents, "Secret")["data"]
    assert {webhook["clientConfig"]["caBundle"] for webhook in webhooks} == {secret["ca.crt"]}


def test_policy_and_webhook_add_the_same() -> None:
    text = one(render({"injection.by": "webhook"}), "ConfigMap", "perfd-webhook")["data"]["injection.yaml"]
    injection = parse(text, Injection)
    spec = one(render({"injection.by": "policy"}, "--kube-version=1.36.0"), "MutatingAdmissionPolicy")["spec"]
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    places = [variables["job"].index(f"'{label}'") for label in injection.job_labels]
    assert places == sorted(places)
    configuration, containers_added = (
        spec["mutations"][0]["applyConfiguration"]["expression"],
        spec["mutations"][1]["jsonPatch"]["expression"],
    )
    assert all(f'"{name}":"{value}"' in configuration for name, value in injection.env.items())
    assert all(f'name: "{volume["name"]}"' in configuration for volume in injection.volumes)
    for container in injection.containers:
        for value in [container["name"], *container.get("args", []), *container.get("command", [])]:
            written = json.dumps(value)
            for character in "&<>":
                # As Go's JSON has it.
                written = written.replace(character, f"\\u{ord(character):04x}")
            assert f"dyn({written})" in containers_added


def test_a_cluster_whose_policies_are_not_stable_is_refused_them() -> None:
    found = helm("template", "perfd", CHART, "--set=injection.by=policy", "--kube-version=1.35.0")
    assert "needs Kubernetes 1.36" in found.stderr


def test_rules_are_those_that_ship_also_in_the_packaged_chart(tmp_path: Path) -> None:
    assert helm("package", CHART, "--destination", tmp_path).returncode == 0
    (package,) = tmp_path.iterdir()
    shipped = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "rules").glob("*.yaml"))]
    for chart in (CHART, package):
        documents = render({"prometheusRule.enabled": True}, chart=chart)
        rules = [document["spec"] for document in documents if document["kind"] == "PrometheusRule"]
        assert rules == shipped


def test_rules_can_be_left_out_and_changed() -> None:
    def alerts(settings: dict[str, Any]) -> dict[str, Any]:
        documents = render({"prometheusRule": {"enabled": True} | settings})
        specs = [document["spec"] for document in documents if document["kind"] == "PrometheusRule"]
        rules = [rule for spec in specs for group in spec["groups"] for rule in group["rules"]]
        return {rule.get("alert", rule.get("record")): rule for rule in rules}

    shipped = alerts({})
    hot = {"for": "10m", "labels": {"severity": "info"}}
    changed = alerts({"disabled": ["PerfdGpuIdle"], "overrides": {"PerfdGpuTooHot": hot}})
    assert set(shipped) - set(changed) == {"PerfdGpuIdle"}
    different = {name for name in changed if changed[name] != shipped[name]}
    assert different == {"PerfdGpuTooHot"}
    assert changed["PerfdGpuTooHot"]["for"] == "10m"
    assert changed["PerfdGpuTooHot"]["labels"]["severity"] == "info"
    assert changed["PerfdGpuTooHot"]["expr"] == shipped["PerfdGpuTooHot"]["expr"]
    assert "fleet:perfd_gpus_idle:count" in set(alerts({"fleet": True})) - set(shipped)


def test_thresholds_of_rules_are_values() -> None:
    def expressions(thresholds: dict[str, float]) -> dict[str, str]:
        overrides = {name: {"threshold": threshold} for name, threshold in thresholds.items()}
        documents = render({"prometheusRule": {"enabled": True, "overrides": overrides}})
        specs = [document["spec"] for document in documents if document["kind"] == "PrometheusRule"]
        rules = [rule for spec in specs for group in spec["groups"] for rule in group["rules"]]
        assert not any("threshold" in rule for rule in rules)
        return {rule["alert"]: " ".join(rule["expr"].split()) for rule in rules if "alert" in rule}

    shipped = expressions({})
    thresholds = {
        "PerfdGpuIdle": 0.1,
        "PerfdGpuTooHot": 2,
        "PerfdNodeSuspect": 0.99,
        "PerfdServerKvCacheFull": 0.5,
    }
    changed = expressions(thresholds)
    assert {name for name in shipped if changed[name] != shipped[name]} == set(thresholds)
    # A number that occurs twice is the same threshold, and no other number changes.
    limited = "rate(perfd_gpu_clocks_limited_{}_thermal_seconds_total[1m]) > 2"
    assert changed["PerfdGpuTooHot"] == " or ".join(map(limited.format, ("hw", "sw")))
    assert changed["PerfdNodeSuspect"] == "perfd_node_suspect_ratio >= 0.99"
    assert changed["PerfdServerKvCacheFull"].endswith("> 0.5 and perfd_server_queued_requests > 0")
    active = 'perfd_gpu_sm_active_ratio{perfd_job!=""}'
    assert changed["PerfdGpuIdle"] == (
        f"avg_over_time({active}[5m]) < 0.1 and {active}"
        " unless on (cluster, namespace, perfd_job) perfd_job_ended == 1"
    )


def test_the_names_of_the_ingress_are_names_of_the_aggregator() -> None:
    ingress = {"enabled": True, "hosts": ["perfd.example.org"]}
    documents = render({"aggregator.ingress": ingress, "aggregator.config": {"http_hosts": ["perfd"]}})
    text = one(documents, "ConfigMap", "perfd-aggregator")["data"]["aggregator.yaml"]
    assert parse(text, AggregatorConfig).http_hosts == ["perfd", "perfd.example.org"]


@pytest.mark.parametrize("role", ["aggregator", "agent"])
def test_a_platform_may_set_the_users_itself(role: str) -> None:
    kind = {"aggregator": "StatefulSet", "agent": "DaemonSet"}[role]
    contexts = {f"{role}.podSecurityContext": {}, f"{role}.securityContext": {"runAsUser": 7}}
    spec = one(render(contexts), kind)["spec"]["template"]["spec"]
    assert spec["securityContext"] == {}
    assert [container["securityContext"] for container in spec["containers"]] == [{"runAsUser": 7}]


def test_the_test_of_the_release_may_reach_the_aggregator() -> None:
    documents = render({"networkPolicy.httpFrom": []})
    test = one(documents, "Pod", "perfd-test")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    rules = one(documents, "NetworkPolicy", "perfd-aggregator")["spec"]["ingress"]
    peers = [
        peer
        for rule in rules
        for peer in rule["from"]
        if {"port": "http", "protocol": "TCP"} in rule["ports"]
    ]
    assert [
        peer["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items() for peer in peers
    ] == [True]


def test_dashboards_are_those_that_ship_one_config_map_each() -> None:
    shipped = {path.name: path.read_text() for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    documents = render(
        {"grafanaDashboards.enabled": True, "aggregator.enabled": False, "agent.enabled": False}
    )
    maps = [document for document in documents if document["kind"] == "ConfigMap"]
    assert all(found["metadata"]["labels"]["grafana_dashboard"] == "1" for found in maps)
    found = {
        name.removeprefix("perfd-"): text for document in maps for name, text in document["data"].items()
    }
    assert {name: json.loads(text) for name, text in found.items()} == {
        name: json.loads(text) for name, text in shipped.items()
    }


def test_agents_stream_to_the_service_of_the_aggregator() -> None:
    documents = render({}, "--namespace=monitoring")
    service = one(documents, "Service")
    config = parse(one(documents, "ConfigMap", "perfd-agent")["data"]["agent.yaml"], AgentConfig)
    port = next(port["port"] for port in service["spec"]["ports"] if port["name"] == "grpc")
    assert config.uplink.address == f"{service['metadata']['name']}.monitoring.svc:{port}"


def test_agents_stream_to_the_gateway_where_there_is_one() -> None:
    documents = render(GROUP, "--namespace=monitoring")
    gateway = one(documents, "Service", "perfd-gateway")
    config = parse(one(documents, "ConfigMap", "perfd-agent")["data"]["agent.yaml"], AgentConfig)
    assert config.uplink.address == "perfd-gateway.monitoring.svc:9461"
    pods = one(documents, "Deployment", "perfd-gateway")["spec"]["template"]["metadata"]["labels"]
    assert gateway["spec"]["selector"].items() <= pods.items()
    # A group has no gRPC of its own.
    served = one(documents, "Service", "perfd-aggregator")["spec"]["ports"]
    assert [port["name"] for port in served] == ["http"]


def test_each_aggregator_of_a_group_has_an_address_at_which_the_others_may_reach_it(tmp_path: Path) -> None:
    documents = render(GROUP, "--namespace=monitoring")
    workload = one(documents, "StatefulSet")["spec"]
    names = one(documents, "Service", workload["serviceName"])["spec"]
    assert (names["clusterIP"], names["publishNotReadyAddresses"]) == ("None", True)
    assert names["selector"].items() <= workload["template"]["metadata"]["labels"].items()

    file = tmp_path / "aggregator.yaml"
    file.write_text(one(documents, "ConfigMap", "perfd-aggregator")["data"]["aggregator.yaml"])
    arguments = workload["template"]["spec"]["containers"][0]["args"][1:]
    parser = argparse.ArgumentParser()
    aggregator.configure(parser)
    words = [word.replace("$(POD_NAME)", "perfd-aggregator-1") for word in arguments]
    config = aggregator.effective_config(parser.parse_args([f"--config={file}", *words[1:]]))
    address = "http://perfd-aggregator-1.perfd-aggregators.monitoring.svc:9460"
    assert check_group(config).address == address

    policy = one(documents, "NetworkPolicy", "perfd-aggregator")["spec"]
    peers = [peer for rule in policy["ingress"] for peer in rule["from"]]
    assert {"podSelector": policy["podSelector"]} in peers


def test_prometheus_asks_a_group_for_its_partitions() -> None:
    documents = render(GROUP | MONITORING, "--namespace=monitoring")
    assert "ServiceMonitor" not in [document["kind"] for document in documents]
    found = one(documents, "ScrapeConfig")["spec"]["httpSDConfigs"]
    assert found == [{"url": "http://perfd-aggregator.monitoring.svc:9460/api/v1/http_sd"}]


def test_labels_that_prometheus_operator_and_grafana_select_by_are_set() -> None:
    labels = {"release": "kube-prometheus-stack"}
    documents = render(MONITORING | {"serviceMonitor.labels": labels, "prometheusRule.labels": labels})
    for document in documents:
        if document["kind"] in {"ServiceMonitor", "PrometheusRule"}:
            assert document["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_selectors_find_the_pods() -> None:
    documents = render(MONITORING)
    pods = {
        kind: one(documents, kind)["spec"]["template"]["metadata"]["labels"]
        for kind in ("DaemonSet", "StatefulSet")
    }
    for kind, name, target in (
        ("Service", None, "StatefulSet"),
        ("NetworkPolicy", "perfd-aggregator", "StatefulSet"),
        ("NetworkPolicy", "perfd-agent", "DaemonSet"),
        ("PodMonitor", None, "DaemonSet"),
    ):
        spec = one(documents, kind, name)["spec"]
        wanted = spec.get("selector", spec.get("podSelector"))
        assert wanted.get("matchLabels", wanted).items() <= pods[target].items()
    monitor = one(documents, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitor.items() <= one(documents, "Service")["metadata"]["labels"].items()


def test_a_new_configuration_makes_new_pods() -> None:
    def checksum(interval_s: float) -> str:
        documents = render({"agent.config": {"collectors": {"nvml": {"interval_s": interval_s}}}})
        annotations: dict[str, str] = one(documents, "DaemonSet")["spec"]["template"]["metadata"][
            "annotations"
        ]
        return annotations["checksum/config"]

    assert checksum(0.5) == checksum(0.5) != checksum(0.2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"agent.features.ranks": "yes"}, "at '/agent/features/ranks': got string, want boolean"),
        (
            {"aggregator.config": {"history": {"retention_days": "a week"}}},
            "/retention_days': got string, want",
        ),
        ({"agent.config": {"spol": {}}}, "additional properties 'spol' not allowed"),
        ({"aggregatr": {}}, "additional properties 'aggregatr' not allowed"),
        ({"aggregator.replicas": 2}, "more than 1 need aggregator.config.nats.group"),
        (
            {"aggregator.config": {"nats": NATS | {"group": {"partitions": 8}}}},
            "needs aggregator.config.history.url",
        ),
        (
            {"aggregator.config": {"nats": NATS | {"group": {"address": "http://a:1"}}}},
            "at '/aggregator/config/nats/group/address': false schema",
        ),
        ({"gateway.enabled": True}, "at '/gateway/config': missing property 'nats'"),
        (
            GROUP | {"tls.agentSecret": "perfd-client"},
            "gateway.tlsSecret: with tls.agentSecret agents stream over TLS",
        ),
        ({"agent.config": {"uplink": {"address": "a:1"}}}, "at '/agent/config/uplink/address': false schema"),
        ({"training.enabled": True}, "at '/training/image': got null, want string"),
        (TRAINING | {"training.kind": "MPIJob"}, "at '/training/kind': value must be one of 'Job'"),
        (TRAINING | {"training.nodes": 0}, "at '/training/nodes': minimum: got 0, want 1"),
        (TRAINING | {"training.name": "My_Job"}, "at '/training/name': 'My_Job' does not match"),
        ({"aggregator.resources": {"limits": {"memory": "lots"}}}, "'lots' does not match pattern"),
        ({"image.digest": "latest"}, "at '/image/digest': 'latest' does not match pattern"),
        ({"aggregator.ingress.enabled": True}, "at '/aggregator/ingress/hosts': minItems: got 0, want 1"),
        ({"aggregator.config": {"exporters": {"wandb": {"mode": "offline"}}}}, "needs an image with W&B"),
        (
            {"aggregator.config": {"exporters": {"wandb": {"mode": "maybe"}}}},
            "/wandb/mode': value must be one of 'disabled', 'offline', 'online'",
        ),
        ({"prometheusRule": {"enabled": True, "disabled": ["Perfd"]}}, "no rule is named Perfd."),
        ({"prometheusRule": {"enabled": True, "overrides": {"Gone": {}}}}, "no rule is named Gone."),
        (
            {"prometheusRule": {"enabled": True, "overrides": {"PerfdAgentDown": {"threshold": 1}}}},
            "PerfdAgentDown has no threshold: override its expr.",
        ),
        (
            {"prometheusRule": {"overrides": {"PerfdGpuIdle": {"threshold": "high"}}}},
            "at '/prometheusRule/overrides/PerfdGpuIdle/threshold': got string, want number",
        ),
    ],
)
def test_a_value_that_cannot_be_is_named(values: dict[str, Any], said: str) -> None:
    assert said in refusal(values)


def test_a_cluster_without_native_sidecars_is_refused() -> None:
    found = helm("template", "perfd", CHART, "--kube-version=1.28.0")
    assert "incompatible with Kubernetes v1.28.0" in found.stderr
