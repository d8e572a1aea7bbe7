"""Agents that show service-account tokens, with a stand-in for the Kubernetes API server."""

import json
import threading
import time
from contextlib import ExitStack

import grpc
import pytest
from aggregator.support import aggregator, step

from perfd.agent.uplink.grpc_channel import ChannelFactory
from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.aggregator.ingest.kubernetes_tokens import TokenReviews, credential_of_review
from perfd.aggregator.limits import Limits
from perfd.config import AgentIdentityConfig, KubernetesIdentityConfig, TlsConfig, UplinkConfig
from perfd.errors import ConfigError, PerfdError, RefusedError
from perfd.model import JobOrigin
from perfd.net import HttpServer, Response, ServerTls
from tests.support.fake_agent import FakeAgent
from tests.support.pki import Authority

NODE = "authentication.kubernetes.io/node-name"


def review(
    name="system:serviceaccount:team-a:trainer", *, node="n0", audiences=("perfd",), authenticated=True
):
    extra = {NODE: [node]} if node else {}
    status = {
        "authenticated": authenticated,
        "user": {"username": name, "extra": extra},
        "audiences": audiences,
    }
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}


class ApiServer:
    """Reviews tokens as it is told to, and counts."""

    def __init__(self, pki):
        self.reviews = {}
        self.asked = []
        self.status = 201
        self.slow = None
        """Reviews of unknown tokens wait for this event."""
        tls = TlsConfig(certificate=pki.tls("server").certificate, key=pki.tls("server").key)
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        self.server = HttpServer("127.0.0.1:0", {path: self.answer}, tls=ServerTls(tls, key="tls"))

    def answer(self, request):
        spec = json.loads(request.body)["spec"]
        self.asked.append((request.headers["authorization"], spec["token"], spec["audiences"]))
        if self.slow and spec["token"] not in self.reviews:
            self.slow.wait()
        found = self.reviews.get(spec["token"], review(authenticated=False))
        return Response(body=json.dumps(found).encode(), status=self.status)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.sign("server", names="DNS:localhost,IP:127.0.0.1")
    return authority


@pytest.fixture
def api(pki):
    server = ApiServer(pki)
    yield server
    server.server.close()


@pytest.fixture
def config(pki, api, tmp_path):
    (tmp_path / "own").write_text("aggregators-own\n")
    return KubernetesIdentityConfig(
        api_server=f"https://{api.server.address}",
        ca=str(pki.folder / "ca.pem"),
        token_file=str(tmp_path / "own"),
        any_namespace=["perfd/agent"],
    )


def serving(pki, config, limits=None):
    tls = TlsConfig(certificate=pki.tls("server").certificate, key=pki.tls("server").key)
    identity = AgentIdentityConfig(kubernetes=config)
    return aggregator(tls=tls, listen="localhost:0", agent_identity=identity, limits=limits)


def test_an_agent_is_the_node_of_its_pod_and_represents_its_namespace(pki, api, config):
    api.reviews = {
        "good": review(),
        "other": review("system:serviceaccount:team-b:trainer", node="n1"),
        "fleet": review("system:serviceaccount:perfd:agent", node="n2"),
    }
    with serving(pki, config) as running:

        def agent(node, token):
            return FakeAgent(
                running.grpc_address, node=node, agent_id=node, credentials=pki.client(None), token=token
            )

        with agent("n0", "good") as mine:
            mine.hello()
            mine.send(JobOrigin(job="llm", namespace="team-a"), step(1))
            with agent("n1", "other") as other:
                other.hello()
                other.send(step(2))
            with agent("n2", "fleet") as fleet:
                fleet.hello()
                fleet.send(step(3))
        assert running.state.fleet.jobs["llm"].steps.table().step.tolist() == [1, 3]
        assert running.state.audit.counts()["job_owner"] == 1
        for node, token in (("n9", "good"), ("n0", "unknown"), ("n0", None), ("n0", "two words")):
            with agent(node, token) as stranger:
                with pytest.raises(grpc.RpcError):
                    stranger.hello()
                assert stranger.end() is grpc.StatusCode.PERMISSION_DENIED
        assert running.state.audit.counts()["agent_credential"] == 4
    assert {asked[0] for asked in api.asked} == {"Bearer aggregators-own"}
    assert all(asked[2] == ["perfd"] for asked in api.asked)


def test_tokens_of_strangers_keep_no_agent_waiting_that_was_reviewed(pki, api, config):
    """The API server is slow, and each made-up token asks it again."""
    api.reviews = {"good": review()}
    api.slow = threading.Event()
    with serving(pki, config, Limits(token_reviews=4)) as running, ExitStack() as streams:

        def agent(token):
            stream = FakeAgent(
                running.grpc_address, node="n0", agent_id=token, credentials=pki.client(None), token=token
            )
            return streams.enter_context(stream)

        streams.callback(api.slow.set)
        agent("good").hello()
        for number in range(3):
            agent(f"made-up-{number}")
        while len(api.asked) < 4:
            time.sleep(0.01)
        beyond = agent("made-up-3")
        with pytest.raises(grpc.RpcError):
            beyond.hello()
        assert beyond.end() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(api.asked) == 4
        assert running.state.counters.rejected["token_reviews"] == 1
        agent("good").hello()


def test_a_good_token_is_reviewed_once_a_minute_and_a_bad_one_each_time(api, config):
    now_s = [0.0]
    reviews = TokenReviews(config, lambda: now_s[0])
    api.reviews = {"good": review()}
    for now_s[0], asked in ((0.0, 1), (59.9, 1), (60.0, 2)):
        reviews.credential("good")
        assert len(api.asked) == asked
    for _ in range(2):
        with pytest.raises(RefusedError):
            reviews.credential("bad")
    assert len(api.asked) == 4


def test_an_api_server_that_does_not_answer_is_no_refusal(api, config):
    api.status = 403
    with pytest.raises(PerfdError, match="system:auth-delegator") as caught:
        TokenReviews(config).credential("good")
    assert not isinstance(caught.value, RefusedError)
    api.server.close()
    with pytest.raises(PerfdError, match="does not review tokens"):
        TokenReviews(config).credential("good")


@pytest.mark.parametrize(
    ("found", "credential"),
    [
        (
            review(node=None),
            AgentCredential(principal="system:serviceaccount:team-a:trainer", namespace="team-a"),
        ),
        (
            review("system:serviceaccount:perfd:agent"),
            AgentCredential(principal="system:serviceaccount:perfd:agent", nodes=frozenset({"n0"})),
        ),
        (review(audiences=("other",)), None),
        (review(audiences=()), None),
        (review(authenticated=False), None),
        (review("system:node:n0"), None),
        (review("system:serviceaccount::x"), None),
        ({"status": []}, None),
    ],
)
def test_what_a_review_says_is_what_the_agent_may_be(found, credential):
    content = json.dumps(found).encode()
    if credential is None:
        with pytest.raises(RefusedError):
            credential_of_review(content, "perfd", ["perfd/agent"])
    else:
        assert credential_of_review(content, "perfd", ["perfd/agent"]) == credential


def test_a_token_is_shown_anew_for_each_stream_and_never_without_tls(pki, tmp_path):
    token = tmp_path / "token"
    token.write_text("one\n")
    factory = ChannelFactory(UplinkConfig(address="x:1", token_file=str(token), tls=pki.tls("server")))
    assert factory.metadata() == (("authorization", "Bearer one"),)
    token.write_text("two\n")
    assert factory.metadata() == (("authorization", "Bearer two"),)
    with pytest.raises(ConfigError, match="plain text"):
        ChannelFactory(UplinkConfig(token_file=str(token)))


@pytest.mark.parametrize("api_server", ["http://127.0.0.1:1", "kubernetes", "https://"])
def test_an_api_server_without_tls_is_a_sentence(config, api_server):
    with pytest.raises(ConfigError, match="https address"):
        TokenReviews(type(config)(api_server=api_server, ca=config.ca))
