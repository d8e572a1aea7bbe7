"""What the webhook changes in a pod, and that it never keeps one from starting."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.pods.job_of_pod import LABELS

from perfd.injection import Injection, patch_of, reviewed

INJECTION = Injection(
    containers=[
        {"name": "perfd-files", "securityContext": {"readOnlyRootFilesystem": True}},
        {"name": "perfd-agent", "restartPolicy": "Always"},
    ],
    volumes=[{"name": "perfd", "emptyDir": {}}],
    env={"NCCL_PROFILER_PLUGIN": "/run/perfd/p.so", "PERFD_HOOK_SOCKET": "/run/perfd/hook.sock"},
    job_labels=list(LABELS),
)


def a_pod(*, gpus: int = 8, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}}}
    return {"metadata": {"name": "p", "labels": labels or {}}, "spec": {"containers": [main], **spec}}


def applied(pod: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod after the patch, of which each operation adds."""
    found = copy.deepcopy(pod)
    for operation in patch:
        assert operation["op"] == "add"
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        place: Any = found
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            place.insert(len(place) if last == "-" else int(last), operation["value"])
        else:
            place[last] = operation["value"]
    return found


def test_a_pod_gets_agent_volume_and_environment_and_keeps_all_else() -> None:
    pod = a_pod(labels={"kueue.x-k8s.io/queue-name": "q", "batch.kubernetes.io/job-name": "pretrain"})
    pod["spec"] |= {"initContainers": [{"name": "own"}], "volumes": [{"name": "data"}]}
    pod["spec"]["containers"][0] |= {"env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "data"}]}
    after = applied(pod, patch_of(pod, INJECTION))
    spec = after["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["perfd-files", "perfd-agent", "own"]
    assert [one["name"] for one in spec["volumes"]] == ["data", "perfd"]
    assert spec["shareProcessNamespace"] is True
    (main,) = spec["containers"]
    assert [one["name"] for one in main["env"]] == ["A", "NCCL_PROFILER_PLUGIN", "PERFD_HOOK_SOCKET"]
    assert main["volumeMounts"] == [{"name": "data"}, {"name": "perfd", "mountPath": "/run/perfd"}]
    assert after["metadata"]["labels"] == pod["metadata"]["labels"] | {"perfd-agent": "injected"}
    assert after["metadata"]["annotations"] == {"perfd/job": "pretrain"}


def test_a_bare_pod_gets_them_too() -> None:
    pod: dict[str, Any] = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    pod["metadata"] = {"labels": {"perfd/inject": "true"}}
    after = applied(pod, patch_of(pod, INJECTION))
    assert [len(one["env"]) for one in after["spec"]["containers"]] == [2, 2]
    assert after["metadata"]["annotations"] == {"perfd/job": "default"}


def test_what_a_container_sets_itself_stays() -> None:
    pod = a_pod()
    own = {"name": "NCCL_PROFILER_PLUGIN", "value": "mine"}
    pod["spec"]["containers"][0]["env"] = [own]
    env = applied(pod, patch_of(pod, INJECTION))["spec"]["containers"][0]["env"]
    assert [one for one in env if one["name"] == own["name"]] == [own]


@pytest.mark.parametrize(
    ("labels", "gpus", "wanted"),
    [
        ({}, 8, True),
        ({}, 0, False),
        ({"perfd/inject": "true"}, 0, True),
        ({"perfd/inject": "false"}, 8, False),
    ],
)
def test_pods_without_gpus_are_left_out_unless_they_ask(
    labels: dict[str, str], gpus: int, *, wanted: bool
) -> None:
    assert bool(patch_of(a_pod(gpus=gpus, labels=labels), INJECTION)) is wanted


def test_a_slice_of_a_gpu_is_a_gpu() -> None:
    pod = a_pod(gpus=0)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.10gb": 1}}
    assert patch_of(pod, INJECTION)


@pytest.mark.parametrize("name", ["perfd", "perfd-agent"])
def test_a_pod_that_has_an_agent_is_left_as_it_is(name: str) -> None:
    assert patch_of(a_pod(initContainers=[{"name": name}]), INJECTION) == []


@pytest.mark.parametrize(
    ("of_pod", "of_container", "user"),
    [
        ({}, {}, {"runAsUser": 0}),
        ({"runAsUser": 1000}, {}, {"runAsUser": 1000}),
        ({"runAsUser": 1000}, {"runAsUser": 7}, {"runAsUser": 7}),
        ({"runAsNonRoot": True}, {}, {"runAsNonRoot": True}),
        ({}, {"runAsNonRoot": True, "runAsUser": 7}, {"runAsNonRoot": True, "runAsUser": 7}),
        ({"runAsUser": 0}, {}, {"runAsUser": 0}),
    ],
)
def test_the_agent_is_the_trainings_user_and_never_root_where_that_is_forbidden(
    of_pod: dict[str, Any], of_container: dict[str, Any], user: dict[str, Any]
) -> None:
    pod = a_pod(securityContext=of_pod)
    pod["spec"]["containers"][0]["securityContext"] = of_container
    files, agent = applied(pod, patch_of(pod, INJECTION))["spec"]["initContainers"]
    assert agent["securityContext"] == user
    assert files["securityContext"] == {"readOnlyRootFilesystem": True} | user


def test_the_job_is_named_as_the_nodes_agent_names_it() -> None:
    pod = a_pod(labels={"job-name": "inner", "jobset.sigs.k8s.io/jobset-name": "outer"})
    pod["metadata"]["ownerReferences"] = [{"name": "owner", "controller": True}]
    assert applied(pod, patch_of(pod, INJECTION))["metadata"]["annotations"] == {"perfd/job": "outer"}
    pod["metadata"]["labels"] = {}
    assert applied(pod, patch_of(pod, INJECTION))["metadata"]["annotations"] == {"perfd/job": "owner"}


def answer(body: object) -> dict[str, Any]:
    return dict(json.loads(reviewed(json.dumps(body).encode(), INJECTION))["response"])


def test_the_answer_has_the_patch_of_the_pod() -> None:
    found = answer({"request": {"uid": "u", "namespace": "research", "object": a_pod()}})
    assert (found["uid"], found["allowed"], found["patchType"]) == ("u", True, "JSONPatch")
    assert json.loads(base64.b64decode(found["patch"])) == patch_of(a_pod(), INJECTION)


def test_a_pod_that_is_left_as_it_is_is_admitted_without_a_patch() -> None:
    assert answer({"request": {"uid": "u", "object": a_pod(gpus=0)}}) == {"uid": "u", "allowed": True}


PODS = [{}, {"spec": None}, {"spec": {}}, {"spec": {"containers": []}}, {"spec": {"containers": [7]}}]


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_that_nothing_can_be_added_to_starts_with_a_warning(pod: dict[str, Any]) -> None:
    labelled = pod | {"metadata": {"labels": {"perfd/inject": "true"}}}
    found = answer({"request": {"uid": "u", "object": labelled}})
    assert found["allowed"] is True
    assert "patch" not in found
    assert found["warnings"][0].startswith("perfd's agent was not added")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"request": 7}', b"\xff", b"[" * 10_000])
def test_what_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not an AdmissionReview"):
        reviewed(body, INJECTION)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "x"]), json_values))
def test_whatever_the_pod_is_it_is_admitted(pod: dict[str, Any]) -> None:
    assert answer({"request": {"uid": "u", "object": pod}})["allowed"] is True
