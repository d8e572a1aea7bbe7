"""Uploads to a real S3 server: what is stored is whole, and each failure is a sentence without secrets."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from objects.object_server import (
    ACCESS_KEY,
    NEEDS_SERVER,
    SECRET_KEY,
    credentials,
    faulty,
    make_bucket,
    opened,
    s3_server,
    with_boto,
)

from perfd.capture.upload import Uploader, UploadQueue
from perfd.clock import SystemClock
from perfd.config import ObjectReadingConfig, ObjectStorageConfig
from perfd.doctor.storage_probe import probe_reports, probe_upload
from perfd.errors import StorageError
from perfd.model import CaptureFile, CaptureRequest, CaptureTool
from perfd.net import ObjectStorage

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), NEEDS_SERVER]

WITHIN_S = 300
PARTS_BYTES = 20 * 1024 * 1024
"""Three parts."""
REQUEST = CaptureRequest(
    capture_id="c1", job="llm", tool=CaptureTool.NSYS, max_duration_s=1.0, object_folder="gpu1/team/llm/1"
)
KEY = "gpu1/team/llm/1/c1/rank-0/node=n1/rank0.bin"


@pytest.fixture
def proxy(server):
    with faulty(server.url) as started:
        yield started


@pytest.fixture
def storage(tmp_path):
    def make(url, bucket="s3://traces/perfd", **options):
        keys = options.pop("credentials_file", None) or str(credentials(tmp_path / "credentials"))
        config = ObjectReadingConfig(url=bucket, endpoint=url, credentials_file=keys, **options)
        return ObjectStorage(config, key="object_storage")

    return make


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "captures" / "c1" / "rank0.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(os.urandom(PARTS_BYTES))
    return path


def without_secrets(text):
    assert SECRET_KEY not in text
    assert ACCESS_KEY not in text
    assert "Signature" not in text
    return text


def test_a_multipart_file_is_read_back_unchanged_and_has_a_temporary_link(server, storage, large, tmp_path):
    tested = storage(server.url, server_side_encryption="AES256", link_lifetime_s=120.0)
    tested.put(KEY, large)
    assert tested.size_bytes(KEY) == PARTS_BYTES
    tested.fetch(KEY, tmp_path / "copy", PARTS_BYTES)
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0
    link, lifetime_s = tested.link(KEY)
    content, headers = opened(link)
    assert content == large.read_bytes()
    assert headers["x-amz-server-side-encryption"] == "AES256"
    assert lifetime_s == 120.0
    assert parse_qs(urlsplit(link).query)["X-Amz-Expires"] == ["120"]
    assert SECRET_KEY not in link
    parts = with_boto(
        "import boto3, sys; s3 = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1',"
        " aws_access_key_id='a', aws_secret_access_key='b');"
        "print(s3.head_object(Bucket='traces', Key=sys.argv[2])['ETag'])",
        server.url,
        f"perfd/{KEY}",
    )
    assert parts.strip('"').endswith("-3"), "it was stored in three parts"


def test_links_lead_to_the_address_that_browsers_know(server, storage):
    tested = storage(server.url, public_endpoint="https://traces.example.org")
    assert tested.link("a/b")[0].startswith("https://traces.example.org/traces/perfd/a/b?")


def test_a_file_larger_than_expected_is_not_read(server, storage, large, tmp_path):
    tested = storage(server.url)
    tested.put("large", large)
    with pytest.raises(StorageError, match="larger than expected"):
        tested.fetch("large", tmp_path / "copy", PARTS_BYTES - 1)
    with pytest.raises(StorageError, match="is larger than 1000 bytes"):
        tested.read("large", 1000)
    assert tested.read("large", PARTS_BYTES) == large.read_bytes()


def test_each_failure_is_a_sentence_that_says_what_to_do(server, storage, large, tmp_path, monkeypatch):
    with pytest.raises(StorageError) as missing:
        storage(server.url, "s3://nothing").put(KEY, large)
    assert str(missing.value) == (
        "rank0.bin cannot be stored in s3://nothing: the bucket does not exist: create it, or correct `url` "
        "(NoSuchBucket)."
    )
    with pytest.raises(StorageError, match=r"the file does not exist: a lifecycle rule .* \(NoSuchKey\)"):
        storage(server.url).fetch("nothing", tmp_path / "copy", 1)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with pytest.raises(StorageError, match="no server answers: check `endpoint` and the network"):
        storage("http://127.0.0.1:1").put(KEY, large)


def test_a_full_bucket_and_damage_in_transit_are_named(proxy, storage, large):
    tested = storage(proxy.url)
    proxy.fault = "full"
    with pytest.raises(StorageError) as full:
        tested.put(KEY, large)
    assert "the bucket is full: raise its quota, or shorten its lifecycle rule" in without_secrets(
        str(full.value)
    )
    proxy.fault = "damaged"
    with pytest.raises(StorageError, match="the data was damaged in transit; it is sent again"):
        tested.put(KEY, large)
    proxy.release()
    tested.put(KEY, large)
    assert tested.read(KEY, PARTS_BYTES) == large.read_bytes()


def test_a_server_that_is_too_slow_is_named(proxy, storage, large):
    tested = storage(proxy.url, timeout_s=0.5)
    proxy.fault = "stuck"
    with pytest.raises(StorageError, match=r"the server is too slow \(`timeout_s`\)"):
        tested.put(KEY, large)


def test_an_upload_that_hangs_is_interrupted_at_once(proxy, storage, large):
    proxy.fault = "stuck"
    given_up = threading.Event()
    failed = []

    def put():
        with pytest.raises(StorageError, match="was interrupted") as error:
            storage(proxy.url).put(KEY, large, given_up.is_set)
        failed.append(str(error.value))

    thread = threading.Thread(target=put)
    thread.start()
    assert proxy.stuck.acquire(timeout=WITHIN_S)
    given_up.set()
    thread.join(WITHIN_S)
    assert len(failed) == 1


@pytest.mark.parametrize("number", range(3))
def test_an_agent_that_is_killed_in_the_middle_loses_nothing(proxy, storage, large, tmp_path, number):
    captures, keys = large.parent.parent, credentials(tmp_path / "keys")
    UploadQueue(captures, "n1").add(
        REQUEST, (0,), [CaptureFile(path=str(large), size_bytes=large.stat().st_size)]
    )
    before = hashlib.sha256(large.read_bytes()).hexdigest()
    proxy.fault = "stuck"
    command = [sys.executable, Path(__file__).with_name("upload_process.py"), captures, proxy.url, keys]
    # After this many parts arrived, in any order.
    killed = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)
    for _ in range(1 + number % 3):
        assert proxy.stuck.acquire(timeout=WITHIN_S)
    killed.kill()
    assert killed.communicate(timeout=WITHIN_S)[0] == b"", "nothing was reported as stored"
    assert UploadQueue(captures, "n1").has("c1")
    proxy.release()
    successor = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        assert successor.stdout.readline().strip() == f"s3://traces/perfd/{KEY}"
        assert hashlib.sha256(storage(proxy.url).read(KEY, PARTS_BYTES)).hexdigest() == before
    finally:
        successor.kill()
        successor.communicate()
    assert large.exists()


def test_an_outage_of_the_server_delays_an_upload_and_loses_nothing(server, storage, large):
    captures, reports, more = large.parent.parent, [], threading.Condition()

    def report(upload):
        with more:
            reports.append(upload)
            more.notify_all()

    def wait(holds):
        with more:
            assert more.wait_for(lambda: holds(reports), WITHIN_S), reports

    server.kill()
    uploader = Uploader(
        storage(server.url),
        UploadQueue(captures, "n1"),
        clock=SystemClock(),
        report=report,
        unredacted=True,
        first_wait_s=0.05,
    )
    try:
        uploader.share(REQUEST, (0,), [CaptureFile(path=str(large), size_bytes=1)], lambda: False)
        uploader.start()
        wait(lambda found: found and "no server answers" in found[0].reason)
        server.start()
        # Its buckets were in its memory.
        wait(lambda found: any("the bucket does not exist" in one.reason for one in found))
        make_bucket(server.url, "traces")
        wait(lambda found: found[-1].url == f"s3://traces/perfd/{KEY}")
    finally:
        uploader.stop()
    assert not uploader.needs("c1")
    assert storage(server.url).read(KEY, PARTS_BYTES) == large.read_bytes()


POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:AbortMultipartUpload"],
            "Resource": "arn:aws:s3:::traces/perfd/gpu1/*/node=n1/*",
        }
    ],
}
MAKE_USER = """
import boto3, json, sys
iam = boto3.client('iam', endpoint_url=sys.argv[1], region_name='us-east-1',
    aws_access_key_id='a', aws_secret_access_key='b')
iam.create_user(UserName='n1')
iam.put_user_policy(UserName='n1', PolicyName='perfd', PolicyDocument=sys.argv[2])
key = iam.create_access_key(UserName='n1')['AccessKey']
print(json.dumps([key['AccessKeyId'], key['SecretAccessKey']]))
import requests; requests.post(sys.argv[1] + '/moto-api/reset-auth', data='0').raise_for_status()
"""


def test_the_documented_policy_lets_an_agent_write_as_its_node_only(storage, large, tmp_path):
    with s3_server(tmp_path) as checking:
        make_bucket(checking.url, "traces")
        access_key, secret_key = json.loads(with_boto(MAKE_USER, checking.url, json.dumps(POLICY)))
        keys = credentials(tmp_path / "n1", access_key, secret_key)
        agent = storage(checking.url, credentials_file=str(keys))
        agent.put(KEY, large)
        for elsewhere in (
            KEY.replace("node=n1", "node=n2"),
            KEY.replace("gpu1", "gpu2"),
            "gpu1/team/llm/1/c1/report/perfd.report.html",
        ):
            with pytest.raises(StorageError, match=r"the credentials do not permit this: .*\(AccessDenied\)"):
                agent.put(elsewhere, large)
        with pytest.raises(StorageError, match="the credentials do not permit this"):
            agent.read(KEY, PARTS_BYTES)
        stranger = storage(checking.url)
        with pytest.raises(StorageError) as unknown:
            stranger.put(KEY, large)
        assert "the access key is unknown: renew the credentials" in without_secrets(str(unknown.value))
        forged = credentials(tmp_path / "forged", access_key, "another-secret")
        with pytest.raises(StorageError, match="the secret key is wrong: renew the credentials"):
            storage(checking.url, credentials_file=str(forged)).put(KEY, large)


def test_doctor_stores_a_small_file_where_agents_and_the_aggregator_do(server, tmp_path):
    keys = str(credentials(tmp_path / "keys"))
    config = ObjectReadingConfig(url="s3://traces/perfd", endpoint=server.url, credentials_file=keys)
    uploads = probe_upload(config, "n1", {"PERFD_CLUSTER": "gpu1"})
    assert (uploads.url, uploads.problem) == (
        "s3://traces/perfd/gpu1/unknown/doctor/0/doctor/node/node=n1/doctor",
        "",
    )
    assert probe_reports(config).problem == ""
    missing = ObjectReadingConfig(url="s3://nothing", endpoint=server.url, credentials_file=keys)
    for facts in (probe_upload(missing, "n1", {}), probe_reports(missing)):
        assert "the bucket does not exist: create it" in without_secrets(facts.problem)
    unreadable = ObjectReadingConfig(url="s3://traces", credentials_file=str(tmp_path / "none"))
    assert "object_storage.credentials_file" in probe_reports(unreadable).problem
    assert (probe_upload(None, "n1", {}), probe_reports(None)) == (None, None)


def test_agents_need_no_more_than_their_configuration(server, tmp_path, large):
    config = ObjectStorageConfig(
        url="s3://traces", endpoint=server.url, credentials_file=str(credentials(tmp_path / "keys"))
    )
    tested = ObjectStorage(config, key="capture.object_storage")
    tested.put(KEY, large)
    assert tested.url_of(KEY) == f"s3://traces/{KEY}"
    assert tested.key_of(f"s3://traces/{KEY}") == KEY
    assert tested.key_of(f"s3://others/{KEY}") is None
