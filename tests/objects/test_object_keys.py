"""Keys of stored files: inside their folder and their node's part, whatever the names are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.capture.object_keys import (
    UNKNOWN_FOLDER,
    check_folder,
    file_key,
    is_of_node,
    job_folder,
    report_key,
)
from perfd.errors import CaptureError

FOLDER = "gpu1/team-a/llm/2"


def test_a_key_has_cluster_namespace_job_attempt_capture_ranks_and_node():
    folder = job_folder("gpu1", "team-a", "llm", 2)
    assert folder == FOLDER
    assert file_key(folder, "c1", (3,), "n1", "rank3.sqlite") == f"{FOLDER}/c1/rank-3/node=n1/rank3.sqlite"
    assert file_key(folder, "c1", (0, 1, 7), "n1.example", "a.sqlite") == (
        f"{FOLDER}/c1/ranks-0-7/node=n1.example/a.sqlite"
    )
    assert file_key(folder, "c1", (), "n1", "a.sqlite") == f"{FOLDER}/c1/node/node=n1/a.sqlite"
    assert report_key(folder, "c1", "perfd.report.html") == f"{FOLDER}/c1/report/perfd.report.html"


def test_unknown_parts_have_a_placeholder():
    assert job_folder("", "", "llm", 1) == "unknown/unknown/llm/1"
    assert check_folder("") == UNKNOWN_FOLDER
    assert file_key("", "c1", (), "n1", "a").startswith(f"{UNKNOWN_FOLDER}/c1/")


@pytest.mark.parametrize(
    "folder",
    ["../../x/1", "a/b/c", "a/b/c/1/e", "a//c/1", "a/b/node=n2/1", "a/b/c/..", "/a/b/c/1", "a/b/c/1/"],
)
def test_a_folder_that_leads_elsewhere_is_refused(folder):
    with pytest.raises(CaptureError, match="is not CLUSTER/NAMESPACE/JOB/ATTEMPT"):
        file_key(folder, "c1", (), "n1", "a")


@given(st.text(), st.text(), st.text(), st.text(), st.text())
def test_a_key_stays_in_its_parts_whatever_the_names_are(cluster, namespace, job, node, name):
    folder = job_folder(cluster, namespace, job, 1)
    key = file_key(folder, "c1", (0,), node, name)
    parts = key.split("/")
    assert len(parts) == 8
    assert all(parts)
    assert ".." not in key
    assert [part for part in parts if "=" in part] == [parts[6]]
    assert is_of_node(key, folder, "c1", node)


@given(st.text(), st.text())
def test_two_nodes_have_different_keys(one, other):
    keys = {file_key(FOLDER, "c1", (), node, "a") for node in (one, other)}
    assert len(keys) == len({one, other})
    if one != other:
        assert not is_of_node(file_key(FOLDER, "c1", (), one, "a"), FOLDER, "c1", other)


@pytest.mark.parametrize(
    "key",
    [
        f"{FOLDER}/c2/rank-0/node=n1/a",
        f"{FOLDER}/c1/rank-0/node=n2/a",
        f"{FOLDER}/c1/report/perfd.report.html",
        f"{FOLDER}/c1/rank-0/node=n1/../a",
        f"{FOLDER}/c1/rank-0/node=n1/a/b",
        f"{FOLDER}/c1/rank-x/node=n1/a",
        "gpu1/team-b/llm/2/c1/rank-0/node=n1/a",
        f"gpu1/c1/rank-0/node=n1/{FOLDER}/c1/rank-0/node=n1/a",
    ],
)
def test_a_key_of_another_capture_node_or_job_is_refused(key):
    assert is_of_node(f"{FOLDER}/c1/rank-0/node=n1/a", FOLDER, "c1", "n1")
    assert not is_of_node(key, FOLDER, "c1", "n1")
