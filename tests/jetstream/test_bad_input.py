"""What goes wrong around a group: other groups and clocks, moved jobs, revoked credentials, lost streams."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jetstream.support import WAIT_S, Node, node, until
from jetstream.test_group import config, moves_on, producing, rows, shared, started_alerts
from jetstream.test_real_server import OUTAGE

from tests.support.group_members import PARTITIONS, Member, seconds_until
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.system


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as running:
        yield running


def history(folder: Path, name: str = "history") -> dict[str, Any]:
    return config(folder, path=str(folder / f"{name}.sqlite"))


def stored(folder: Path, job: str, name: str = "history") -> list[int]:
    """A job's steps in the histories of all partitions."""
    found = rows(folder, f"SELECT step FROM steps WHERE job = '{job}' ORDER BY step", name)
    return [step for (step,) in found]


def until_stored(folder: Path, job: str, last: int, name: str = "history") -> None:
    """Wait for a step that is known to be stored too: at the end of a test aggregators are killed."""
    seconds_until(lambda: last in stored(folder, job, name))


def test_two_groups_on_one_stream_have_their_own_clusters_jobs(tmp_path: Path, server: NatsServer) -> None:
    with contextlib.ExitStack() as stack:
        members = {
            name: stack.enter_context(
                Member(tmp_path, [server.address], name, cluster=name, **history(tmp_path, name))
            )
            for name in ("east", "west")
        }
        agents = {
            name: stack.enter_context(
                node(tmp_path / f"of-{name}", server.address, cluster=name, partitions=PARTITIONS)
            )
            for name in members
        }
        lasts = {"east": agents["east"].produce(20), "west": agents["west"].produce(30)}
        for name, member in members.items():
            seconds_until(lambda one=member, name=name: one.newest_step("job-n0") == lasts[name])
            assert len(set(member.holders())) == 1
            until_stored(tmp_path, "job-n0", lasts[name], name)
    for name, last in lasts.items():
        assert stored(tmp_path, "job-n0", name) == list(range(1, last + 1))


def test_a_group_with_another_number_of_partitions_is_kept_out(tmp_path: Path, server: NatsServer) -> None:
    with contextlib.ExitStack() as stack:
        member = stack.enter_context(Member(tmp_path, [server.address], "a", **history(tmp_path)))
        seconds_until(lambda: None not in member.holders())
        before = member.holders()
        stranger = stack.enter_context(
            Member(tmp_path, [server.address], "b", partitions=7, **history(tmp_path, "other"))
        )
        seconds_until(lambda: "nats.group.partitions is 7" in stranger.log)
        with producing(tmp_path, server) as nodes:
            moves_on(member, nodes)
        assert member.holders() == before
        # Once the other one is gone, so is the reason.
        member.stop()
        seconds_until(lambda: None not in stranger.holders() and len(stranger.holders()) == 7)


def test_a_stream_that_is_deleted_is_created_again_and_jobs_go_on(tmp_path: Path, server: NatsServer) -> None:
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(Member(tmp_path, [server.address], name, **history(tmp_path)))
            for name in "ab"
        ]
        seconds_until(lambda: shared(members))
        with producing(tmp_path, server) as nodes:
            moves_on(members[0], nodes)
            server.ask(lambda js: js.delete_stream("perfd"))
            for member in members:
                moves_on(member, nodes)


def test_leases_that_are_deleted_are_claimed_anew(tmp_path: Path, server: NatsServer) -> None:
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(Member(tmp_path, [server.address], name, **history(tmp_path)))
            for name in "ab"
        ]
        seconds_until(lambda: shared(members))
        with producing(tmp_path, server) as nodes:
            moves_on(members[0], nodes)
            server.ask(lambda js: js.delete_key_value("perfd-default"))
            seconds_until(lambda: shared(members))
            for member in members:
                moves_on(member, nodes)
        last = {one.job: one.spool.last_sequence for one in nodes}
        seconds_until(lambda: all(members[0].newest_step(job) == step for job, step in last.items()))
        for job, step in last.items():
            until_stored(tmp_path, job, step)
    for job, step in last.items():
        assert stored(tmp_path, job) == list(range(1, step + 1))


def test_a_job_that_moves_to_another_cluster_goes_on_there(tmp_path: Path, server: NatsServer) -> None:
    with contextlib.ExitStack() as stack:
        east, west = (
            stack.enter_context(
                Member(tmp_path, [server.address], name, cluster=name, **history(tmp_path, name))
            )
            for name in ("east", "west")
        )
        for member in (east, west):
            seconds_until(lambda one=member: None not in one.holders())
        options = {"partitions": PARTITIONS}
        with node(tmp_path / "spool", server.address, cluster="east", **options) as agent:
            moved = agent.produce(20)
            assert agent.uplink.wait_acknowledged(moved, WAIT_S)
            # What is stored; an agent that moves before would send the newest batches to both.
            seconds_until(lambda: agent.spool.stats().batches == 0)
        # The same spool, whose sequence goes on.
        with node(tmp_path / "spool", server.address, cluster="west", **options) as agent:
            last = agent.produce(20)
            assert agent.uplink.wait_acknowledged(last, WAIT_S)
            seconds_until(lambda: west.newest_step("job-n0") == last)
            assert east.newest_step("job-n0") == moved
            until_stored(tmp_path, "job-n0", moved, "east")
            until_stored(tmp_path, "job-n0", last, "west")
    assert stored(tmp_path, "job-n0", "east") == list(range(1, moved + 1))
    assert stored(tmp_path, "job-n0", "west") == list(range(moved + 1, last + 1))


def test_clocks_that_are_minutes_apart_neither_lose_nor_repeat_anything(
    tmp_path: Path, server: NatsServer
) -> None:
    with contextlib.ExitStack() as stack:
        members = []
        for name, offset_s in (("ahead", 300), ("behind", -420)):
            clock = tmp_path / f"{name}.offset"
            clock.write_text(str(offset_s))
            members.append(
                stack.enter_context(
                    Member(
                        tmp_path,
                        [server.address],
                        name,
                        program=("-m", "benchmarks.stepped_clock"),
                        environment={"PERFD_CLOCK_OFFSET_FILE": str(clock)},
                        **history(tmp_path),
                    )
                )
            )
        seconds_until(lambda: shared(members))
        with producing(tmp_path, server) as nodes:
            for member in members:
                moves_on(member, nodes)
            seconds_until(lambda: len(started_alerts(members[0])) == len(nodes))
            # What is not stored when one is killed is evaluated again.
            seconds_until(lambda: len(rows(tmp_path, "SELECT job FROM alerts")) == len(nodes))
            fired = started_alerts(members[0])
            for victim, other in (members, members[::-1]):
                victim.kill()
                moves_on(other, nodes)
                assert started_alerts(other) == fired
                victim.start()
                seconds_until(lambda: shared(members))
                moves_on(victim, nodes)
        last = {one.job: one.spool.last_sequence for one in nodes}
        seconds_until(lambda: all(members[0].newest_step(job) == step for job, step in last.items()))
        for job, step in last.items():
            until_stored(tmp_path, job, step)
    for job, step in last.items():
        assert stored(tmp_path, job) == list(range(1, step + 1))


def test_credentials_that_are_revoked_while_connected_end_it_and_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import nkeys  # noqa: PLC0415  (only where the tests run that need it)

    public = {}
    for name in ("n0", "all"):
        seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
        (tmp_path / name).write_bytes(seed)
        public[name] = nkeys.from_seed(bytearray(seed)).public_key.decode()

    def users(*names: str) -> str:
        return f"authorization {{ users = [{', '.join(f'{{nkey: {public[name]}}}' for name in names)}] }}"

    with NatsServer(tmp_path, more=users("n0", "all")) as server, contextlib.ExitStack() as stack:
        settings = history(tmp_path)
        member = stack.enter_context(
            Member(tmp_path, [server.address], "a", nkey_file=str(tmp_path / "all"), **settings)
        )
        agent: Node = stack.enter_context(
            node(tmp_path / "spool", server.address, partitions=PARTITIONS, nkey_file=str(tmp_path / "n0"))
        )
        last = agent.produce(20)
        seconds_until(lambda: member.newest_step(agent.job) == last)
        server.configure(users("all"))
        # The server reads its configuration in its own time, and may take what comes before.
        agent.produce(20)
        assert until(lambda: OUTAGE in caplog.messages)
        last = agent.produce(20)
        assert not agent.uplink.wait_acknowledged(last, 3.0)
        server.configure(users("n0", "all"))
        seconds_until(lambda: member.newest_step(agent.job) == last)
        # The aggregator's own: leases cannot be renewed, and nothing is lost.
        server.configure(users("n0"))
        last = agent.produce(20)
        seconds_until(lambda: not member.get("/api/v1/group")["connected"])
        server.configure(users("n0", "all"))
        seconds_until(lambda: member.newest_step(agent.job) == last)
        until_stored(tmp_path, agent.job, last)
    assert stored(tmp_path, agent.job) == list(range(1, last + 1))
